"""`galley doctor` as people and programs meet it, on the machine the tests run on.

Method: the command as it is. What it measures differs from machine to machine and from run to run,
so only the shape is looked at, and that every kernel computes what it should. Runs with plain
`python3 test_doctor.py`; needs GALLEY_BIN.
"""

import json
import os
import pathlib
import re
import resource
import subprocess
import tempfile
import unittest

GALLEY = os.environ["GALLEY_BIN"]
SECONDS_MAX = 120  # usually 10; this machine may be busy
SECTIONS = ["CPU", "kernels", "memory", "compute", "disk", "limits"]


def run(*arguments, **environment):
    return subprocess.run(
        [GALLEY, "doctor", *arguments],
        capture_output=True, text=True, timeout=SECONDS_MAX, env={**os.environ, **environment},
    )  # fmt: skip


class DoctorTest(unittest.TestCase):
    def test_json(self):
        with tempfile.TemporaryDirectory() as folder:
            done = run("--json", "--dir", folder, GALLEY_ISA="avx2")
            self.assertEqual(os.listdir(folder), [], "something was left behind")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        report = json.loads(done.stdout)
        self.assertIs(report["sound"], True)
        findings = report["findings"]
        self.assertEqual(list(dict.fromkeys(one["section"] for one in findings)), SECTIONS)
        for one in findings:
            self.assertLessEqual({"section", "what", "value", "verdict", "advice"}, set(one))
            self.assertIn(one["verdict"], ["good", "ok", "poor", "missing"], one)
            self.assertEqual(one["advice"] == "", one["verdict"] in ("good", "ok"), one)
            self.assertEqual("number" in one, "unit" in one, one)
        named = {one["what"]: one for one in findings}
        self.assertEqual(len(named), len(findings))
        self.assertEqual(named["AVX2"]["value"], "yes")
        self.assertIn("GALLEY_ISA=avx2", named["instruction set"]["value"])
        for isa in ("avx2", "reference"):
            for what in ("BF16", "FP8", "FP4"):
                self.assertEqual(named[f"{isa} {what}"]["verdict"], "ok")
        for what, unit in {
            "total": "B",
            "read, 1 core": "B/s",
            "read, L2, 1 core": "B/s",
            "float32 FMA, 1 core": "FLOP/s",
            "avx2 FP4 product, 1 core": "FLOP/s",
        }.items():
            self.assertGreater(named[what]["number"], 0)
            self.assertEqual(named[what]["unit"], unit)
        total = named["total"]["number"]
        self.assertLessEqual(named["available"]["number"], total)

    def test_small_limits_end_in_a_message(self):
        for limit, value in ((resource.RLIMIT_AS, 300 << 20), (resource.RLIMIT_FSIZE, 1 << 16)):
            with self.subTest(limit), tempfile.TemporaryDirectory() as folder:
                done = subprocess.run(
                    [GALLEY, "doctor", "--dir", folder], capture_output=True, text=True, timeout=SECONDS_MAX,
                    preexec_fn=lambda: resource.setrlimit(limit, (value, value)),
                )  # fmt: skip
                self.assertIn(done.returncode, (0, 1), done.stderr)  # no signal
                self.assertTrue(done.stdout or done.stderr.startswith("galley: "))
                self.assertEqual(os.listdir(folder), [])

    def test_an_error_that_nobody_can_read_is_still_an_exit_status(self):
        with open("/dev/full", "w") as full:
            done = subprocess.run([GALLEY, "model", "pack", "/nowhere"], stderr=full, timeout=SECONDS_MAX)
        self.assertEqual(done.returncode, 1)

    def test_table(self):
        with tempfile.TemporaryDirectory() as folder:
            # A file that is there is read, and stays as it is.
            model = pathlib.Path(folder) / "model"
            model.write_bytes(os.urandom(1 << 20) * 65)
            before = model.stat()
            done = run("--dir", folder, GALLEY_ISA="reference")
            self.assertEqual(os.listdir(folder), ["model"])
            self.assertEqual(model.stat().st_mtime_ns, before.st_mtime_ns)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        lines = done.stdout.splitlines()
        self.assertEqual([line for line in lines if line and line[0] != " "], SECTIONS)
        columns = {
            match.start(1)
            for line in lines
            if (match := re.search(r"  (good|ok|poor|missing)(  |$)", line))
        }
        self.assertEqual(len(columns), 1, done.stdout)
        self.assertRegex(done.stdout, r"(?m)^  read \".*\"  +\d+\.\d\d GB/s")

    def test_wrong_usage_is_exit_2_and_named(self):
        for arguments, words in (
            (["--dir", "/nowhere"], "Directory does not exist: /nowhere"),
            (["--dir", GALLEY], GALLEY),
            (["--dir"], "--dir"),
            (["--jsn"], "--jsn"),
            (["extra"], "extra"),
        ):
            done = run(*arguments)
            self.assertEqual((done.returncode, done.stdout), (2, ""), done)
            self.assertIn(words, done.stderr)
        done = run(GALLEY_ISA="avx3")
        self.assertEqual((done.returncode, done.stdout), (2, ""), done)
        self.assertIn('GALLEY_ISA="avx3": no such instruction set', done.stderr)

    def test_help(self):
        done = run("--help")
        self.assertEqual(done.returncode, 0)
        for word in ("--json", "--dir", "Exit status"):
            self.assertIn(word, done.stdout)


if __name__ == "__main__":
    unittest.main()
