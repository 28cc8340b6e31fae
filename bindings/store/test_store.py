"""The Python package galley.store on a real folder, and the independent reader of tests/ on what it wrote."""

import gc
import os
import subprocess
import sys
import tempfile
import unittest

import segment_reader
import store as galley_store  # the package's folder is on the path by itself: galley.recipe needs its native half

CHILD = """
import os, signal, store, sys
s = store.Store(sys.argv[1])
for n in range(50):
    s.put(bytes([n]) * 16, [bytes([n]) * 3000, b"x" * n], namespace="t")
    if n % 10 == 9:
        s.commit()
        print(n, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def key(n):
    return bytes([n]) * 16


class StoreTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.path = self.folder.name

    def tearDown(self):
        gc.collect()
        self.folder.cleanup()

    def test_round_trip(self):
        parts = [b"a" * 10_000, bytearray(b"b" * 5), b"", memoryview(b"xcx")[1:2]]
        with galley_store.Store(self.path) as store:
            self.assertTrue(store.put(key(1), parts, namespace="t", parent=key(9), layout=7, retention="chat"))
            self.assertEqual(len(store.match([key(1)], namespace="t", layout=7)), 0)
            store.commit()
            self.assertFalse(store.put(key(1), parts, namespace="t", layout=7))
            lease = store.match([key(1), key(2)], namespace="t", layout=7)
            self.assertEqual((len(lease), lease.miss), (1, "unknown"))
            self.assertEqual(lease.get(0), [bytes(part) for part in parts])
            self.assertEqual(store.match([key(1)], namespace="t", layout=8).miss, "layout")
            self.assertEqual(len(store.match([key(1)], namespace="u", layout=7)), 0)
            small = bytearray(10_006)
            self.assertEqual(b"".join(lease.get_into(0, small)), b"a" * 10_000 + b"b" * 5 + b"c")
            with self.assertRaises(ValueError):
                lease.get_into(0, bytearray(10_005))
            with self.assertRaises(IndexError):
                lease.get(1)
            self.assertEqual(store.stat()["keys"], 1)
            self.assertEqual(store.purge("t"), 1)
            self.assertEqual(len(store.match([key(1)], namespace="t", layout=7)), 0)
            with self.assertRaises(ValueError):
                store.put(b"short", [])
            with self.assertRaises(ValueError):
                store.put(key(1), [], namespace="n" * 64)
            with self.assertRaises(galley_store.Refused):
                galley_store.Store(self.path)
        with self.assertRaises(ValueError):
            store.commit()

    def test_kill_and_an_independent_reader(self):
        child = subprocess.run([sys.executable, "-c", CHILD, self.path], capture_output=True, text=True, check=False,
                               env=dict(os.environ))
        self.assertEqual(child.stdout.split(), ["9", "19", "29", "39", "49"], child.stderr)
        expected = {(b"t", key(n)): ("agent", [bytes([n]) * 3000, b"x" * n]) for n in range(50)}
        self.assertEqual(segment_reader.read_store(self.path), expected)  # an open segment and its journal
        with galley_store.Store(self.path) as store:
            for n in range(50):
                lease = store.match([key(n)], namespace="t")
                self.assertEqual(lease.get(0), expected[b"t", key(n)][1])
            del lease
            store.put(key(60), [b"new"], namespace="u", retention="chat")
            store.commit()
            store.purge("t")
        self.assertEqual(segment_reader.read_store(self.path), {(b"u", key(60)): ("chat", [b"new"])})  # closed ones

    def test_reader_passes_over_damage(self):
        with galley_store.Store(self.path) as store:
            for n in range(5):
                store.put(key(n), [bytes([n]) * 9000])
            store.commit()
        name, = (name for name in os.listdir(self.path) if name.endswith(".segment"))
        with open(os.path.join(self.path, name), "r+b") as file:
            file.seek(4096 + 4096 * 3 * 2 + 1000)  # within the third record
            file.write(b"!")
            file.seek(-8192 + 300, os.SEEK_END)  # and in the footer
            file.write(b"!")
        found = segment_reader.read_store(self.path)
        self.assertEqual({n for _, n in found}, {key(n) for n in (0, 1, 3, 4)})
        with galley_store.Store(self.path) as store:
            self.assertEqual([len(store.match([key(n)])) for n in range(5)], [1, 1, 0, 1, 1])


if __name__ == "__main__":
    unittest.main()
