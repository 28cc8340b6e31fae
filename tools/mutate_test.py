#!/usr/bin/env python3
"""Goal: no mutation of mutate.py is stale. Method: what each one replaces stands exactly once in its file, becomes something
else, and the test it names is still written; nothing is built."""
import re
import unittest

import mutate


class MutationsTest(unittest.TestCase):
    def test_each_fits_its_file(self):
        for name, (file, old, new, _, _) in mutate.MUTATIONS.items():
            with self.subTest(name):
                self.assertEqual((mutate.ROOT / file).read_text().count(old), 1)
                self.assertNotEqual(old, new)

    def test_each_names_a_test(self):
        sources = {}
        for name, (_, _, _, program, test) in mutate.MUTATIONS.items():
            with self.subTest(name):
                if program not in sources:
                    files = (mutate.ROOT / "src" / program.split("/")[0]).rglob("*_test.cc")
                    sources[program] = "".join(file.read_text() for file in files)
                suite, case = re.fullmatch(r"(?:\w+/)?(\w+)\.(\w+)(?:/\w+)?", test).groups()
                self.assertRegex(sources[program], rf"TEST(_F|_P)?\(\s*{suite},\s*{case}\)")


if __name__ == "__main__":
    unittest.main()
