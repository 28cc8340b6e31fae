"""`galley cache` on a real store folder, made by the Python package galley.store.

Method: the command as it is. Needs GALLEY_BIN and GALLEY_STORE_LIBRARY.
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path += [str(ROOT / "bindings/python/galley"), str(ROOT / "tests")]
import segment_reader  # noqa: E402
import store as galley_store  # noqa: E402

GALLEY = os.environ["GALLEY_BIN"]
SECONDS_MAX = 120


def run(*arguments):
    return subprocess.run([GALLEY, "cache", *arguments], capture_output=True, text=True, timeout=SECONDS_MAX, check=False)


def answer(*arguments):
    done = run(*arguments, "--json")
    assert done.stderr == "", done.stderr
    return json.loads(done.stdout)


class CacheTest(unittest.TestCase):
    def setUp(self):
        self.scratch = tempfile.TemporaryDirectory()
        self.path = os.path.join(self.scratch.name, "store")
        with galley_store.Store(self.path) as store:
            for n in range(12):
                store.put(bytes([n]) * 16, [bytes([n]) * 9000], namespace="a" if n < 8 else "b", retention="agent" if n < 4 else "chat")

    def tearDown(self):
        self.scratch.cleanup()

    def damage(self):
        for name in os.listdir(self.path):
            if name.startswith("chat") and name.endswith(".segment"):
                with open(os.path.join(self.path, name), "r+b") as file:
                    file.seek(4096 + 5000)
                    file.write(b"!")

    def test_looking(self):
        segments = answer("ls", self.path)
        self.assertEqual([(one["class"], one["blocks"]) for one in segments], [("agent", 4), ("chat", 8)])
        stat = answer("stat", self.path)
        self.assertEqual((stat["keys"], stat["segments"]), (12, 2))
        self.assertEqual(stat["namespaces"]["a"]["blocks"], 8)
        self.assertEqual(stat["classes"]["chat"]["blocks"], 8)
        table = run("ls", self.path).stdout.splitlines()
        self.assertEqual(len(table), 3)
        self.assertEqual({line.index("20") for line in table[1:]}, {table[0].index("FROM")})  # columns stand under their heads
        self.assertIn("12 keys in 2 segments", run("stat", self.path).stdout)

    def test_verify(self):
        done = run("verify", self.path)
        self.assertEqual((done.returncode, done.stdout.split()[0]), (0, "12"))
        self.damage()
        done = run("verify", self.path)
        self.assertEqual(done.returncode, 1)
        self.assertIn("namespace a, corruption: block 04040404", done.stdout)
        self.assertEqual(answer("verify", self.path)["damaged_blocks"], 1)

    def test_purge_export_import(self):
        other = os.path.join(self.scratch.name, "other")
        self.assertEqual(answer("export", self.path, other, "--namespace", "a", "--class", "chat")["copied"], 4)
        self.assertEqual({space for space, _ in segment_reader.read_store(other)}, {b"a"})
        expected = {"namespace": "a", "blocks": 8, "unowned_pages_erased": 0, "files_in_doubt": 0}
        self.assertEqual(answer("purge", self.path, "--namespace", "a"), expected)
        self.assertEqual(answer("stat", self.path)["keys"], 4)
        for file in os.listdir(self.path):
            with open(os.path.join(self.path, file), "rb") as opened:
                self.assertNotIn(bytes([5]) * 9000, opened.read())
        self.assertEqual(answer("import", self.path, other)["copied"], 4)
        self.assertEqual(answer("import", self.path, other)["known"], 4)
        self.assertEqual(answer("stat", self.path)["keys"], 8)

    def test_gc(self):
        before = answer("stat", self.path)["bytes"]
        self.assertEqual(answer("gc", self.path)["segments"], 2)
        self.assertEqual(answer("gc", self.path, "--bytes-max", str(before - 1))["evicted_segments"], 1)

    def test_beside_a_writer(self):
        with galley_store.Store(self.path) as store:
            store.put(b"n" * 16, [b"new"])
            store.commit()
            self.assertEqual(answer("stat", self.path)["keys"], 13)
            for command in (["gc", self.path], ["purge", self.path, "--namespace", "a"]):
                done = run(*command)
                self.assertEqual(done.returncode, 1)
                self.assertIn("another process writes here", done.stderr)

    def test_wrong_usage(self):
        for command in ("ls", "stat", "verify", "gc"):
            done = run(command, os.path.join(self.scratch.name, "none"))
            self.assertEqual((done.returncode, done.stdout), (1, ""))
            self.assertIn("no such folder", done.stderr)
        self.assertEqual(run("purge", self.path).returncode, 2)
        self.assertEqual(run("ls").returncode, 2)
        before = answer("ls", self.path)
        for limit in ("1 Zoll", "0", ""):
            self.assertEqual(run("gc", self.path, "--bytes-max", limit).returncode, 1, limit)
        self.assertEqual(answer("ls", self.path), before)
        other = os.path.join(self.scratch.name, "other")
        done = run("export", self.path, other, "--class", "nope")
        self.assertEqual(done.returncode, 1)
        self.assertIn("no blocks of class 'nope'", done.stderr.replace('"', "'"))
        self.assertFalse(os.path.exists(other))

    def test_a_folder_that_is_no_store(self):
        other = os.path.join(self.scratch.name, "home")
        os.mkdir(other)
        with open(os.path.join(other, "notes.part"), "w") as file:
            file.write("mine")
        for command in (["ls"], ["stat"], ["verify"], ["gc"], ["purge", "--namespace", "a"]):
            done = run(command[0], other, *command[1:])
            self.assertEqual((done.returncode, done.stdout), (1, ""))
            self.assertIn("holds no store", done.stderr)
        self.assertEqual(os.listdir(other), ["notes.part"])

    def chat_segment(self):
        return next(name for name in os.listdir(self.path) if name.startswith("chat") and name.endswith(".segment"))

    def test_losses_are_no_success(self):
        name = self.chat_segment()
        path = os.path.join(self.path, name)

        def cut(count):
            with open(path, "r+b") as file:
                file.truncate(count)

        def loop():
            os.rename(path, os.path.join(self.scratch.name, "kept"))
            os.symlink(name, path)

        def folder():
            os.unlink(path)
            os.mkdir(path)

        # Every command would mend what it may write: those that only look come first.
        for damage in (lambda: cut(100), lambda: cut(0), loop, folder):
            damage()
            for command in ("ls", "stat", "verify"):
                done = run(command, self.path)
                self.assertEqual(done.returncode, 1, command)
                self.assertIn(name, done.stderr)
            done = run("export", self.path, os.path.join(self.scratch.name, "other"))
            self.assertEqual(done.returncode, 1)
            self.assertEqual(json.loads(run("verify", self.path, "--json").stdout)["damaged_segments"], 1)
        done = run("gc", self.path)
        self.assertEqual(done.returncode, 1)
        self.assertIn(name, done.stderr)
        done = run("purge", self.path, "--namespace", "a")
        self.assertEqual(done.returncode, 1)
        self.assertIn("4 blocks of namespace", done.stdout)
        self.assertIn("may hold more", done.stdout)

    def test_export_without_damaged_blocks_is_no_success(self):
        self.damage()
        done = run("export", self.path, os.path.join(self.scratch.name, "other"))
        self.assertEqual(done.returncode, 1)
        self.assertIn("11 blocks copied, 0 were there, 1 did not verify", done.stdout)

    def test_a_copy_under_another_name_stops_nothing(self):
        name = self.chat_segment()
        copy = os.path.join(self.path, "x" + name)
        shutil.copy(os.path.join(self.path, name), copy)
        with open(copy, "rb") as file:
            before = file.read()
        done = run("verify", self.path)
        self.assertEqual((done.returncode, done.stdout.split()[0]), (0, "12"))
        self.assertIn("x" + name, done.stderr)
        done = run("purge", self.path, "--namespace", "a")
        self.assertEqual(done.returncode, 1)  # the copy holds the namespace's bytes, and nobody here may erase them
        self.assertIn("8 blocks of namespace", done.stdout)
        self.assertIn("x" + name, done.stderr)
        with open(copy, "rb") as file:
            self.assertEqual(file.read(), before)
        os.unlink(copy)
        self.assertEqual(answer("stat", self.path)["keys"], 4)

    def test_purge_erases_what_nobody_owns(self):
        path = os.path.join(self.path, self.chat_segment())
        with open(path, "r+b") as file:
            file.seek(4096 + 40)  # the head of the first record
            byte = file.read(1)
            file.seek(4096 + 40)
            file.write(bytes([byte[0] ^ 1]))
            file.truncate(os.path.getsize(path) - 9000)  # the footer and more
        done = run("purge", self.path, "--namespace", "a")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("pages that no block known owned", done.stdout)
        with open(path, "rb") as file:
            content = file.read()
        for n in range(4, 8):
            self.assertNotIn(bytes([n]) * 500, content)
        self.assertIn(bytes([8]) * 9000, content)


if __name__ == "__main__":
    unittest.main()
