#!/usr/bin/env python3
"""Goal: tools/tidy.py reports each kind of violation with file and line, and nothing else.
Method: small trees with one violation each beside a clean one; banned words are built from halves.
"""

import os
import tempfile
import unittest

import tidy

CLEAN = {
    "src/base/README.md": "# base\n",
    "src/base/a.h": "#pragma once\n#include <string>\n",
    "src/base/a.cc": '#include "base/a.h"\nint f() { return 1\'000; }\n',
    "src/recipe/README.md": "# recipe\n",
    "src/recipe/b.h": '// Comment first.\n\n#pragma once\n#include "base/a.h"\n',
    "docs/OTHER.md": "[readme](../README.md#top) [web](https://example.org) `[no](link)`\n",
    "README.md": "# Top\n[docs](docs/OTHER.md) [src](src/base/)\n\n```\n[code](none.md)\n```\n",
}


def problems(files, clean=True):
    with tempfile.TemporaryDirectory() as root:
        for path, content in ({**CLEAN, **files} if clean else files).items():
            full = os.path.join(root, path)
            os.makedirs(os.path.dirname(full), exist_ok=True)
            with open(full, "wb") as file:
                file.write(content if isinstance(content, bytes) else content.encode())
        return tidy.problems_of(root)[1]


class TidyTest(unittest.TestCase):
    def assert_reports(self, files, path, line, message):
        found = problems(files)
        self.assertEqual(len(found), 1, found)
        self.assertEqual(found[0][:2], (path, line), found)
        self.assertIn(message, found[0][2])

    def code(self, text):
        return {"src/recipe/c.cc": '#include "recipe/b.h"\n' + text}

    def test_clean(self):
        self.assertEqual(problems({}), [])

    def test_includes(self):
        for target in ("recipe/b.h", "worker/w.h", "plan/p.h", "apps/a.h", "tools/t.h",
                       "bindings/b.h", "a.h"):
            with self.subTest(target):
                self.assert_reports({"src/base/c.cc": f'\n#  include "{target}"\n'},
                                    "src/base/c.cc", 2, "base must not include")
        self.assert_reports({"src/gateway/README.md": "", "src/gateway/g.cc": '#include "engine/e.h"'},
                            "src/gateway/g.cc", 1, "gateway must not include")

    def test_includes_of_one_instruction_set(self):
        folder = {f"src/kernels/{name}README.md": "# x\n" for name in ("", "avx512/")}
        fine = '#include <cstddef>\n#include <immintrin.h>\n#include "kernels/matmul.h"\n#include "kernels/avx512/widen-inl.h"\n'
        self.assertEqual(problems({**folder, "src/kernels/avx512/a.cc": fine}), [])
        for target in ("<algorithm>", "<vector>", '"kernels/weight.h"', '"base/check.h"'):
            with self.subTest(target):
                self.assert_reports({**folder, "src/kernels/avx512/a.cc": f"\n#include {target}\n"},
                                    "src/kernels/avx512/a.cc", 2, "may bring functions")

    def test_nobody_includes_what_stands_above(self):
        for module, allowed in tidy.ALLOWED.items():
            self.assertNotIn("plan", allowed)
            self.assertNotIn(module, allowed)
            if module != "plan":
                self.assertNotIn("worker", allowed)

    def test_the_table_has_no_cycle(self):
        left = dict(tidy.ALLOWED)
        while left:
            ready = [module for module, allowed in left.items() if not allowed & left.keys()]
            self.assertTrue(ready, left)
            for module in ready:
                del left[module]

    def test_unknown_module(self):
        self.assert_reports({"src/new/README.md": "", "src/new/n.cc": ""}, "src/new/n.cc", 1,
                            "new is no module")

    def test_architecture_table(self):
        rows = [f"| `{module}` | what | {', '.join(f'`{a}`' for a in sorted(allowed))} |"
                for module, allowed in tidy.ALLOWED.items() if module != "plan"]
        rows += ["| `plan` | what | everything above |"]
        head = "| module | owns | may include |\n| --- | --- | --- |\n"
        path = "docs/ARCHITECTURE.md"
        self.assertEqual(problems({path: head + "\n".join(rows)}), [])
        wrong = [row.replace("| `base` |", "| `base`, `model` |") for row in rows]
        found = problems({path: head + "\n".join(wrong)})
        self.assertIn((path, 4, "recipe: not what tools/tidy.py allows"), found)
        self.assert_reports({path: head + "\n".join(r for r in rows if "`engine` |" not in r)
                             .replace("everything above", ", ".join(f"`{m}`" for m in tidy.ALLOWED if m != "plan"))},
                            path, 1, "engine: only in one")

    def test_code_bans(self):
        for text, name in ((" std::chrono::steady_clock::now();", "clock"),
                           ("time(nullptr);", "clock"), ("clock_gettime(0, &t);", "clock"),
                           ("std::this_thread::sleep_for(1s);", "sleep"), ("usleep(1);", "sleep"),
                           ("std::random_device d;", "random_device"),
                           ("std::thread t;", "thread"), ("std::jthread t;", "thread"),
                           ("pthread_create(&t, nullptr, f, nullptr);", "thread"),
                           ("auto t = std::localtime(&s);", "clock"),
                           ("asio::steady_timer t;", "timer"), ("asio::system_timer t;", "timer"),
                           ("Timer::clock_type::now();", "timer"),
                           ("asio::thread_pool p;", "thread_pool"),
                           ("std::mutex m;", "mutex"), ("std::shared_mutex m;", "mutex"),
                           ("std::condition_variable_any c;", "mutex"), ("#include <mutex>", "mutex"),
                           ("std::regex r;", "regex"), ("#include <regex>", "regex"),
                           ("try { f(); } catch (...) {\n}", "catch")):
            with self.subTest(text):
                self.assert_reports(self.code("\n" + text), "src/recipe/c.cc", 3, name + ":")

    def test_words_that_only_look_banned(self):
        self.assertEqual(problems(self.code(
            '// steady_clock\n/* std::thread\n */\nauto s = "std::regex";\nrun_time(0); asleep(1);\n'
            "std::this_thread::yield(); int n = 1'000; catch (...) { log(); }\n")), [])

    def test_allow_lists(self):
        self.assertEqual(problems({"src/base/real_clock.cc": "std::chrono::system_clock::now();",
                                   "src/base/t.cc": "std::jthread t;",
                                   "src/base/mutex.h": "#pragma once\n#include <mutex>\n",
                                   "src/gateway/README.md": "",
                                   "src/gateway/timed_io.cc": "asio::steady_timer t;",
                                   "src/recipe/b_test.cc": "std::thread t;"}), [])
        self.assert_reports({"src/base/real_clock.cc": ""}, "src/base/real_clock.cc", 1,
                            "no longer needed")

    def test_text_bans(self):
        for word in ("FIX" + "ME", "TO" + "DO", "XX" + "X"):
            with self.subTest(word):
                self.assert_reports({"scripts/x.sh": f"\n# {word}: later\n"}, "scripts/x.sh", 2, word)
        for path in ("/ro" + "ot/x", "/wo" + "rk/x"):
            with self.subTest(path):
                self.assert_reports({"scripts/x.sh": f"\n\ncd {path}\n"}, "scripts/x.sh", 3, "path:")
        self.assertEqual(problems({"scripts/x.sh": "mktemp a.XXXXXX; cd src/wo" + "rk/a; cd ./ro" + "ot/\n"}), [])

    def test_sizes(self):
        large = b"x" * (tidy.FILE_BYTES_MAX + 1)
        self.assert_reports({"docs/large.txt": large}, "docs/large.txt", 1, "bytes, more than")
        self.assertEqual(problems({"docs/large.txt": large[1:], "tests/golden/large": large,
                                   "fuzz/corpus/x/large": large, "web/package-lock.json": large}), [])

    def test_headers(self):
        for text in ("#include <string>\n#pragma once\n", "", "#ifndef A_H\n"):
            with self.subTest(text):
                self.assert_reports({"src/base/h.h": text}, "src/base/h.h", 1, "#pragma once")

    def test_readmes(self):
        self.assert_reports({"src/recipe/inner/x.cc": ""}, "src/recipe/inner/README.md", 1, "missing")
        self.assert_reports({"src/base/README.md": "line\n" * 21}, "src/base/README.md", 21, "longer")
        self.assertEqual(problems({"src/base/README.md": "line\n" * 20}), [])

    def test_links(self):
        for link in ("[a](none.md)", "[a](none.md#part)", "![a](none.png)", "[a]: none.md",
                     '[a](none.md "title")', "[a](/README.md)"):
            with self.subTest(link):
                self.assert_reports({"docs/L.md": f"text\n{link}\n"}, "docs/L.md", 2, "nowhere")
        self.assertEqual(problems({"docs/L.md": "[a](#part) [b](mailto:a@example.org) [c](OTHER.md)"}), [])

    def test_binary_files_are_not_read_as_text(self):
        self.assertEqual(problems({"docs/x.png": b"\0" + b"TO" + b"DO"}), [])


if __name__ == "__main__":
    unittest.main()
