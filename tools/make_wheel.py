"""Packs a built `galley` and the model mini as a Python wheel, so that `pip install` of one file gives a server.

    cmake --build --preset release --target galley
    python3 tools/make_wheel.py build/release/apps/galley dist

The wheel `galley_server` has a command `galley`; `galley serve` without a model of its own serves mini. The binary needs
the shared libraries it was linked with: those of Debian 12. `auditwheel repair` of PyPI puts them into the wheel, so that
it runs elsewhere too.
"""

import base64
import hashlib
import pathlib
import platform
import re
import subprocess
import sys
import tempfile
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
NAME = "galley_server"
MAIN = '''"""Runs the galley binary of this package."""

import os
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent


def main():
    arguments = sys.argv[1:]
    # The model that comes with it answers, unless flags, variables or a file may say what does.
    chosen = ("--model", "--script", "--config")
    free = not any(argument.split("=")[0] in chosen for argument in arguments)
    free = free and not any(name in os.environ for name in ("GALLEY_MODEL", "GALLEY_SCRIPT", "GALLEY_CONFIG"))
    if arguments[:1] == ["serve"] and free and not {"--help", "-h"} & set(arguments):
        arguments += ["--model", str(HERE / "models" / "mini")]
    binary = HERE / "bin" / "galley"
    os.execv(binary, ["galley", *arguments])


if __name__ == "__main__":
    main()
'''


def version():
    return re.search(r"project\(galley VERSION ([\d.]+)", (ROOT / "CMakeLists.txt").read_text())[1]


class Wheel:
    def __init__(self, path):
        self.zip = zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED)
        self.record = []

    def add(self, name, content, mode=0o644):
        info = zipfile.ZipInfo(name, (2026, 1, 1, 0, 0, 0))
        info.external_attr = (0o100000 | mode) << 16
        info.compress_type = zipfile.ZIP_DEFLATED
        self.zip.writestr(info, content)
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        self.record.append(f"{name},sha256={digest},{len(content)}")

    def close(self, name):
        self.zip.writestr(name, "\n".join([*self.record, f"{name},,"]) + "\n")
        self.zip.close()


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    binary, folder = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    tag = f"py3-none-linux_{platform.machine()}"
    path = folder / f"{NAME}-{version()}-{tag}.whl"
    wheel = Wheel(path)
    with tempfile.TemporaryDirectory() as scratch:
        stripped = pathlib.Path(scratch) / "galley"
        subprocess.run(["strip", "-o", stripped, binary], check=True)
        wheel.add(f"{NAME}/bin/galley", stripped.read_bytes(), 0o755)
    for file in sorted((ROOT / "models" / "mini").iterdir()):
        wheel.add(f"{NAME}/models/mini/{file.name}", file.read_bytes())
    wheel.add(f"{NAME}/__init__.py", b'"""A server for DeepSeek-V4 and V4.1 models."""\n')
    wheel.add(f"{NAME}/__main__.py", MAIN.encode())
    info = f"{NAME}-{version()}.dist-info"
    wheel.add(f"{info}/METADATA", (
        f"Metadata-Version: 2.1\nName: galley-server\nVersion: {version()}\n"
        "Summary: A server for DeepSeek-V4 and V4.1 models, with a small one to try\n"
        "License: Apache-2.0\nRequires-Python: >=3.9\n"
    ).encode())
    wheel.add(f"{info}/WHEEL", f"Wheel-Version: 1.0\nGenerator: make_wheel\nRoot-Is-Purelib: false\nTag: {tag}\n".encode())
    wheel.add(f"{info}/entry_points.txt", f"[console_scripts]\ngalley = {NAME}.__main__:main\n".encode())
    wheel.add(f"{info}/licenses/LICENSE", (ROOT / "LICENSE").read_bytes())
    wheel.close(f"{info}/RECORD")
    print(path)


if __name__ == "__main__":
    main()
