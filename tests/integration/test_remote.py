"""`galley chat --url` and `galley bench --url` against a server, and what they say when there is none.

Method: `galley serve` without a model (it repeats what was said), with a key. Runs with plain `python3 test_remote.py`;
needs GALLEY_BIN.
"""

import html.parser
import http.server
import json
import pathlib
import re
import subprocess
import tempfile
import threading
import unittest

from test_serve import ANSWER, GALLEY, MODEL, Server

KEY = "gk-secret"
TRACES = pathlib.Path(__file__).resolve().parents[1] / "data" / "traces"


def galley(*arguments, stdin="", env=None, timeout=60):
    return subprocess.run([GALLEY, *arguments], input=stdin, capture_output=True, text=True, timeout=timeout, env=env)


class NoAnswer(http.server.BaseHTTPRequestHandler):
    """What its path asks for, and no answer of a model."""

    def log_message(self, *_):
        pass

    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        kind = self.path.split("/")[1]
        self.send_response(204 if kind == "nothing" else 200)
        self.send_header("content-type", "text/html" if kind == "page" else "text/event-stream")
        self.end_headers()
        if kind == "page":
            self.wfile.write(b"<html>")
        elif kind == "half":
            self.wfile.write(b'data: {"choices":[{"delta":{"content":"Hi"}}]}\n\n')
        elif kind == "line":
            self.pour()

    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.pour()

    def pour(self):
        try:
            while True:
                self.wfile.write(b"x" * 65536)
        except OSError:
            pass


class Page(html.parser.HTMLParser):
    """Counts tags, and sees that what opens also closes."""

    EMPTY = {"meta", "line", "circle", "polyline"}

    def __init__(self, text):
        super().__init__()
        self.tags, self.open = {}, []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags[tag] = self.tags.get(tag, 0) + 1
        if tag not in self.EMPTY:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags[tag] = self.tags.get(tag, 0) + 1

    def handle_endtag(self, tag):
        last = self.open.pop()
        # The end tag of a paragraph, a row or a cell is written, too.
        assert last == tag, (last, tag)


class RemoteTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--server.key", KEY)

    @classmethod
    def tearDownClass(cls):
        code, _, err = cls.server.stop()
        assert code == 0, err

    def ask(self, command, *arguments, **more):
        return galley(command, "--url", self.server.url, "--key", KEY, *arguments, **more)

    def test_a_conversation(self):
        done = self.ask("chat", "--name", MODEL, "--no-thinking", stdin="Hello!\nAnd again\n/stats\n/new\n/exit\n")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn(ANSWER, done.stdout)
        self.assertIn("And again", done.stdout)
        self.assertRegex(done.stdout, r"prompt +\d+ tokens, 0 of them from the cache")
        self.assertRegex(done.stdout, r"answer +\d+ tokens")

    def test_the_model_is_the_first_that_is_listed(self):
        done = self.ask("chat", stdin="Hello!\n")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("Hello!", done.stdout)

    def test_a_url_may_end_in_v1(self):
        done = galley("chat", "--url", self.server.url + "/v1/", "--key", KEY, "--name", MODEL, stdin="Hello!\n")
        self.assertIn("Hello!", done.stdout, done.stderr)

    def test_what_goes_wrong_is_said(self):
        wrong = galley("chat", "--url", self.server.url, "--key", "x", "--name", MODEL, stdin="Hello!\n")
        self.assertNotEqual(wrong.returncode, 0)
        self.assertIn("401", wrong.stderr)
        self.assertIn("not known here", wrong.stderr)
        nobody = galley("chat", "--url", "http://127.0.0.1:1", "--name", MODEL, stdin="Hello!\n")
        self.assertNotEqual(nobody.returncode, 0)
        self.assertIn("127.0.0.1", nobody.stderr)
        unknown = self.ask("chat", "--name", "gpt-9", stdin="Hello!\n")
        self.assertIn("gpt-9", unknown.stderr)
        for url in ("file:///etc/passwd", "gopher://x"):
            refused = galley("chat", "--url", url, "--name", MODEL, stdin="Hello!\n")
            self.assertNotEqual(refused.returncode, 0)
            self.assertNotIn("root:", refused.stdout + refused.stderr)
        both = galley("chat", "--url", self.server.url, "--model", "models/mini")
        self.assertNotEqual(both.returncode, 0)

    def test_what_is_no_answer_is_an_error(self):
        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), NoAnswer) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            url = f"http://127.0.0.1:{server.server_port}/"
            request = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions",
                       "body": {"model": MODEL, "messages": [{"role": "user", "content": "x"}]}}
            with tempfile.NamedTemporaryFile("w") as file:
                file.write(json.dumps(request) + "\n")
                file.flush()
                for kind, said in (("nothing", "broke off"), ("page", "text/html"), ("half", "broke off"), ("line", "event of more")):
                    done = galley("chat", "--url", url + kind, "--name", MODEL, stdin="Hello!\n")
                    self.assertEqual(done.returncode, 1, kind)
                    self.assertIn(said, done.stderr, kind)
                    done = galley("bench", "--url", url + kind, "--name", MODEL, "--jsonl", file.name)
                    self.assertEqual(done.returncode, 1, kind)
                    self.assertIn(said, done.stdout + done.stderr, kind)
            endless = galley("chat", "--url", url, stdin="Hello!\n")
            self.assertEqual(endless.returncode, 1)
            self.assertIn("more than", endless.stderr)
            server.shutdown()

    def test_the_key_may_be_a_variable(self):
        done = galley(
            "chat", "--url", self.server.url, "--name", MODEL, stdin="Hello!\n",
            env={"GALLEY_KEY": KEY, "PATH": "/usr/bin:/bin"},
        )
        self.assertIn("Hello!", done.stdout, done.stderr)

    def test_closed_loop(self):
        done = self.ask("bench", "--name", MODEL, "--requests", "20", "--concurrency", "4", "--prompt", "50",
                        "--shared", "10", "--output", "16", "--json", "--goal-first", "60000", "--goal-token", "60000")
        self.assertEqual(done.returncode, 0, done.stderr)
        figures = json.loads(done.stdout)
        self.assertEqual((figures["requests"], figures["failed"]), (20, 0))
        self.assertEqual(figures["prompt_tokens"], 20 * 50)
        self.assertLessEqual(figures["answer_tokens"], 20 * 16)
        self.assertGreater(figures["answer_tokens"], 20)
        self.assertEqual(figures["good_requests"], 20)
        for name in ("first_token_ms", "between_steps_ms", "per_token_ms", "whole_answer_ms"):
            self.assertLessEqual(figures[name]["p50"], figures[name]["p99"])
            self.assertGreater(figures[name]["p99"], 0, name)

    def test_open_loop_and_a_report(self):
        with tempfile.TemporaryDirectory() as folder:
            report = pathlib.Path(folder) / "report.html"
            done = self.ask("bench", "--name", MODEL, "--requests", "20", "--rate", "200", "--prompt", "20",
                            "--output", "8", "--html", str(report))
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertRegex(done.stdout, r"requests +20 done, 0 failed")
            text = report.read_text()
        page = Page(text)
        self.assertEqual(page.tags["svg"], 3)
        self.assertEqual(page.tags["circle"], 20)
        self.assertEqual(page.open, [])
        self.assertNotRegex(text, r"<script|src=|href=")
        self.assertIn("200 a second at random times", text)

    def test_a_trace_is_played(self):
        for name, count in (("mooncake.jsonl", 5), ("lmcache.jsonl", 5), ("flexlb.jsonl", 4), ("azure.csv", 3)):
            path = TRACES / name
            done = self.ask("bench", "--name", MODEL, "--trace", str(path), "--requests", str(count), "--trace-lengths",
                            "0.01", "--trace-pace", "20", "--json")
            self.assertEqual(done.returncode, 0, done.stderr)
            figures = json.loads(done.stdout)
            self.assertEqual((figures["requests"], figures["failed"]), (count, 0))
            self.assertGreater(figures["prompt_tokens"], 2 * count)
        done = self.ask("bench", "--name", MODEL, "--trace", str(TRACES / "README.md"))
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("line 1", done.stderr)

    def test_requests_of_a_file(self):
        bodies = {
            "/v1/chat/completions": {"messages": [{"role": "user", "content": "Hello!"}]},
            "/v1/responses": {"input": "Hello!"},
            "/v1/messages": {"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 50},
            "/v1/completions": {"prompt": "Hello!"},
        }
        with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
            for url, body in bodies.items():
                file.write(json.dumps({"custom_id": url, "method": "POST", "url": url, "body": {"model": MODEL, **body}}))
                file.write("\n")
            file.flush()
            done = self.ask("bench", "--jsonl", file.name, "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        figures = json.loads(done.stdout)
        self.assertEqual((figures["requests"], figures["failed"]), (4, 0))
        self.assertGreater(figures["prompt_tokens"], 8)
        self.assertGreater(figures["answer_tokens"], 20)

    def test_failures_are_counted(self):
        done = self.ask("bench", "--name", "gpt-9", "--requests", "3", "--json")
        self.assertNotEqual(done.returncode, 0)
        self.assertEqual(json.loads(done.stdout)["failed"], 3)
        self.assertIn("gpt-9", done.stderr)


if __name__ == "__main__":
    unittest.main()
