"""What ships beside the binary: the wheel, the manual page, the completions, the systemd unit, the Dockerfile.

Method: the wheel is made of the binary under test and installed into a fresh virtual environment, which then serves the
model it carries. Runs with plain `python3 test_package.py`; needs GALLEY_BIN.
"""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

from test_serve import GALLEY, curl

ROOT = pathlib.Path(__file__).resolve().parents[2]
SECONDS_MAX = 60


class WheelTest(unittest.TestCase):
    def test_a_fresh_environment_answers(self):
        with tempfile.TemporaryDirectory() as folder:
            tool = ROOT / "tools" / "make_wheel.py"
            wheel = subprocess.run(
                [sys.executable, tool, GALLEY, folder], capture_output=True, text=True, check=True
            ).stdout.strip()
            begun = time.monotonic()
            subprocess.run([sys.executable, "-m", "venv", f"{folder}/venv"], check=True)
            subprocess.run(
                [f"{folder}/venv/bin/pip", "install", "-q", "--no-index", "--disable-pip-version-check", wheel], check=True
            )
            galley = f"{folder}/venv/bin/galley"
            version = subprocess.run([galley, "--version"], capture_output=True, text=True, check=True).stdout
            self.assertIn(pathlib.Path(wheel).name.split("-")[1], version)
            port = pathlib.Path(folder) / "port"
            environment = {name: value for name, value in os.environ.items() if not name.startswith("GALLEY_")}
            server = subprocess.Popen(
                [galley, "serve", "--server.port", "0", "--server.port_file", port, "--server.drain_grace", "0s"],
                stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment,
            )
            deadline = time.monotonic() + SECONDS_MAX
            while not port.exists() and server.poll() is None:
                self.assertLess(time.monotonic(), deadline)
                time.sleep(0.05)
            self.assertIsNone(server.poll(), server.stderr.read() if server.poll() is not None else "")
            url = f"http://127.0.0.1:{port.read_text().strip()}"
            self.assertIn('"mini"', curl(url + "/v1/models"))
            body = {"model": "mini", "max_tokens": 1, "messages": [{"role": "user", "content": "Hello!"}]}
            answer = curl("-H", "content-type: application/json", "-d", json.dumps(body), url + "/v1/chat/completions")
            self.assertEqual(json.loads(answer)["usage"]["completion_tokens"], 1)
            print(f"from the wheel in a fresh environment to the first token: {time.monotonic() - begun:.1f} s")
            server.terminate()
            _, err = server.communicate(timeout=SECONDS_MAX)
            self.assertEqual(server.returncode, 0, err)


class ManualTest(unittest.TestCase):
    def test_manual_and_completions_are_made_of_the_help(self):
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run([sys.executable, ROOT / "tools" / "cli_docs.py", GALLEY, folder], check=True)
            made = {path.name: path.read_text() for path in pathlib.Path(folder).iterdir()}
            self.assertEqual(set(made), {"galley.1", "galley.bash", "_galley", "galley.fish"})

            def complete(*words):
                script = (
                    f"source {folder}/galley.bash; COMP_WORDS=(galley {' '.join(words)}); "
                    f"COMP_CWORD={len(words)}; _galley; echo ${{COMPREPLY[@]}}"
                )
                return set(subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True).stdout.split())

            self.assertEqual(
                complete("serve", "--server.ke"), {"--server.keys_file", "--server.key", "--server.keep_alive_interval"}
            )
            self.assertEqual(complete("model", "in"), {"inspect"})
            self.assertEqual(complete("chat", "--u"), {"--url"})
            self.assertIn("keys", complete("''"))
        for name, text in made.items():
            for word in ("serve", "chat", "bench", "server.data", "inspect", "--url" if name != "galley.fish" else "url"):
                self.assertIn(word, text.replace("\\-", "-"), name)
        # Each command has its section, and nothing of --help was lost.
        listed = subprocess.run([GALLEY, "--help"], capture_output=True, text=True, check=True).stdout
        for command in re.findall(r"^  ([a-z]+) {3,}\S", listed.split("Subcommands:")[1], re.M):
            self.assertIn(f'"GALLEY {command.upper()}"', made["galley.1"])
        flags = subprocess.run([GALLEY, "bench", "--help"], capture_output=True, text=True, check=True).stdout
        for flag in re.findall(r"^ +(--[a-z-]+)", flags, re.M):
            self.assertIn(flag.replace("-", "\\-"), made["galley.1"])


class DeployTest(unittest.TestCase):
    @unittest.skipUnless(shutil.which("systemd-analyze"), "no systemd here")
    def test_the_unit_is_one(self):
        with tempfile.TemporaryDirectory() as folder:
            unit = pathlib.Path(folder) / "galley.service"
            text = (ROOT / "deploy" / "galley.service").read_text().replace("/usr/bin/galley", "/bin/true")
            unit.write_text(text.replace("Documentation=man:galley(1)\n", ""))
            done = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True)
            own = [line for line in done.stderr.splitlines() if "galley" in line]
            self.assertEqual(own, [])

    def test_the_settings_are_known(self):
        with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
            file.write((ROOT / "deploy" / "galley.toml").read_text())
            file.flush()
            done = subprocess.run([GALLEY, "config", "--config", file.name], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("/usr/share/galley/models/mini", done.stdout)

    def test_the_image_keeps_the_linters_rules(self):
        lint = [pathlib.Path(sys.executable).parent / "hadolint", "--no-color"]
        done = subprocess.run([*lint, ROOT / "deploy" / "Dockerfile"], capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stdout), (0, ""), done.stderr)
        bad = subprocess.run([*lint, "-"], input="FROM debian\n", capture_output=True, text=True)
        self.assertIn("DL3006", bad.stdout)

    def test_the_image_copies_what_is_there(self):
        text = (ROOT / "deploy" / "Dockerfile").read_text()
        for source in re.findall(r"^COPY --from=build /src/(\S+)", text, re.M):
            if not source.startswith("build/"):
                self.assertTrue((ROOT / source).exists(), source)
        allowed = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
        for name in allowed:
            self.assertTrue((ROOT / name).exists(), name)
        # Every folder that the build adds is in the context.
        for folder in re.findall(r"^\s*add_subdirectory\((\S+)\)", (ROOT / "CMakeLists.txt").read_text(), re.M):
            optional = folder in ("tests", "fuzz", "bench/engine", "bench/kernels", "bench/model", "bench/store")
            self.assertTrue(optional or any((folder + "/").startswith(each + "/") for each in allowed), folder)


if __name__ == "__main__":
    unittest.main()
