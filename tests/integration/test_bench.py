"""`galley bench` on a small model: what it asks is what it says, and its figures agree with each other.

Runs with plain `python3 test_bench.py`; needs GALLEY_BIN.
"""

import json
import os
import pathlib
import subprocess
import tempfile
import unittest

GALLEY = os.environ["GALLEY_BIN"]
MODEL = pathlib.Path(__file__).parents[2] / "models" / "mini-test"


def bench(*flags):
    return subprocess.run(
        [GALLEY, "bench", "--model", str(MODEL), *flags], capture_output=True, text=True, timeout=300
    )


class BenchTest(unittest.TestCase):
    def figures(self, *flags):
        done = bench("--json", *flags)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def test_closed_loop(self):
        made = self.figures("--requests", "6", "--prompt", "300", "--shared", "256", "--output", "5")
        self.assertEqual((made["requests"], made["failed"]), (6, 0))
        self.assertEqual(made["prompt_tokens"], 6 * 300)
        self.assertEqual(made["answer_tokens"], 6 * 5)
        self.assertGreater(made["seconds"], 0)
        rate = made["answer_tokens"] / made["seconds"]
        self.assertAlmostEqual(made["answer_tokens_per_second"], rate, delta=rate * 1e-6)
        for times in (made["first_token_ms"], made["whole_answer_ms"]):
            self.assertLessEqual(times["p50"], times["p90"])
            self.assertLessEqual(times["p90"], times["p99"])
        self.assertLess(made["first_token_ms"]["mean"], made["whole_answer_ms"]["mean"])

    def test_one_after_another_share_their_beginning(self):
        made = self.figures(
            "--requests", "3", "--prompt", "400", "--shared", "390", "--output", "2", "--concurrency", "1"
        )
        # The second and the third find it, but for the windows that are computed again.
        self.assertGreater(made["cached_tokens"], 2 * 128)

    def test_open_loop(self):
        """Ten a second for half a second: it cannot be over before the last has come."""
        made = self.figures("--requests", "6", "--rate", "10", "--prompt", "20", "--output", "2")
        self.assertEqual(made["requests"], 6)
        self.assertGreater(made["seconds"], 0.05)

    def test_the_table_names_what_was_done(self):
        done = bench("--requests", "2", "--prompt", "20", "--output", "40", "--acceptance", "1")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("2 done, 0 failed", done.stdout)
        self.assertIn("first token", done.stdout)
        self.assertRegex(done.stdout, r"[1-9]\d* of \d+ drafts verified, [1-9]\d* accepted")

    def test_requests_of_a_batch_file(self):
        with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
            for text in ("one", "two", "three"):
                body = {
                    "model": "mini-test",
                    "messages": [{"role": "user", "content": text}],
                    "max_tokens": 4,
                    "temperature": 0,
                }
                line = {"custom_id": text, "method": "POST", "url": "/v1/chat/completions", "body": body}
                file.write(json.dumps(line) + "\n")
            file.flush()
            made = self.figures("--jsonl", file.name)
            self.assertEqual(made["requests"], 3)
            self.assertLessEqual(made["answer_tokens"], 12)
            file.write("nonsense\n")
            file.flush()
            done = bench("--jsonl", file.name)
        self.assertEqual(done.returncode, 1)
        self.assertIn("line 4", done.stderr)

    def test_wrong_use(self):
        for flags in (("--rate", "1", "--concurrency", "2"), ("--requests", "0"), ("--acceptance", "2"),
                      ("--rate", "1e-12")):
            self.assertEqual(bench(*flags).returncode, 2, flags)
        done = bench("--prompt", "900000", "--output", "900000")
        self.assertEqual(done.returncode, 1)
        self.assertIn("context", done.stderr)


if __name__ == "__main__":
    unittest.main()
