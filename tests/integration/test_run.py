"""`galley run` as its users meet it: a batch in, answers out, killed and started again.

Method: the shipped test model at temperature 0, whose answers are the same however a batch is cut,
so that a run that was disturbed can be compared with one that was not. Runs with plain
`python3 test_run.py`; needs GALLEY_BIN.
"""

import fcntl
import json
import os
import pathlib
import pty
import re
import select
import signal
import subprocess
import tempfile
import time
import unittest

GALLEY = os.environ["GALLEY_BIN"]
MODEL = pathlib.Path(__file__).parent.parent.parent / "models" / "mini-test"
SECONDS_MAX = 120
URLS = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "messages": "/v1/messages"}


def request(custom_id, text="Hello!", protocol="chat", **fields):
    """One line of a batch, without its end."""
    body = {"model": MODEL.name, "temperature": 0}
    if protocol == "responses":
        body |= {"input": text, "max_output_tokens": 12, "reasoning": {"effort": "none"}}
    else:
        body |= {
            "messages": [{"role": "user", "content": text}],
            "max_tokens": 12,
            "thinking": {"type": "disabled"},
        }
    return json.dumps(
        {"custom_id": custom_id, "method": "POST", "url": URLS[protocol], "body": body | fields}
    )


def read_answers(text):
    """custom_id -> response; a second answer to one request is an error."""
    answers = {}
    for line in text.splitlines():
        answer = json.loads(line)
        assert answer["custom_id"] not in answers, answer["custom_id"]
        assert answer["id"].startswith("batch_req_") and answer["error"] is None, answer
        answers[answer["custom_id"]] = answer["response"]
    return answers


def said(response):
    """What a reply says: it without what differs from run to run."""
    if isinstance(response, dict):
        return {
            key: said(value)
            for key, value in response.items()
            if key not in ("id", "request_id", "created", "created_at", "completed_at")
            # How much of a prompt is shared depends on who came first.
            and "cache" not in key and key not in ("usage", "input_tokens")
        }
    return [said(one) for one in response] if isinstance(response, list) else response


class RunTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.input = self.folder / "in.jsonl"
        self.output = self.folder / "out.jsonl"

    def command(self, *flags, output=None):
        return [GALLEY, "run", str(self.input), str(output or self.output),
                "--model", str(MODEL), *flags]  # fmt: skip

    def run_batch(self, *flags, output=None, **popen):
        return subprocess.run(
            self.command(*flags, output=output),
            capture_output=True, text=True, timeout=SECONDS_MAX, **popen,
        )  # fmt: skip

    def write(self, *lines):
        self.input.write_text("".join(line + "\n" for line in lines))

    def wait_for_lines(self, process, count):
        """Until the output has `count` whole lines, or the process ends."""
        deadline = time.monotonic() + SECONDS_MAX
        while self.output.read_bytes().count(b"\n") < count if self.output.exists() else True:
            if process.poll() is not None:
                return
            self.assertLess(time.monotonic(), deadline, "no progress")
            time.sleep(0.005)

    def test_all_three_protocols(self):
        self.write(*(request(protocol, protocol=protocol) for protocol in URLS))
        done = self.run_batch()
        self.assertEqual((done.returncode, done.stdout), (0, ""), done)
        self.assertRegex(
            done.stderr,
            r"^galley: 3 lines: 3 answered, 0 failed; \d+ prompt tokens, \d+ more from the cache, "
            r"\d+ answer tokens in \d+\.\d s\n$",
        )
        answers = read_answers(self.output.read_text())
        self.assertEqual(set(answers), set(URLS))
        for response in answers.values():
            self.assertEqual(response["status_code"], 200, response)
            self.assertRegex(response["request_id"], r"^req_\w+$")
        bodies = {name: response["body"] for name, response in answers.items()}
        text = bodies["chat"]["choices"][0]["message"]["content"]
        self.assertTrue(text)
        self.assertEqual(bodies["chat"]["object"], "chat.completion")
        self.assertEqual(bodies["responses"]["object"], "response")
        self.assertEqual(bodies["messages"]["type"], "message")
        # One model and one prompt: the three say the same.
        self.assertEqual(bodies["messages"]["content"][-1]["text"], text)
        self.assertEqual(bodies["responses"]["output"][-1]["content"][0]["text"], text)

    def test_killed_and_started_again(self):
        names = [f"line {i}" for i in range(60)]
        lines = [
            request(name, f"What is {i} + {i % 7}?", list(URLS)[i % 3])
            for i, name in enumerate(names)
        ]
        lines[10] = request("line 10", stream=True)  # a failed line is not asked again either
        lines[20] = "nonsense"
        self.write(*lines)
        undisturbed = self.folder / "undisturbed.jsonl"
        done = self.run_batch(output=undisturbed)
        self.assertEqual(done.returncode, 0, done)
        self.assertRegex(done.stderr, r"^galley: 60 lines: 58 answered, 2 failed; ")
        want = read_answers(undisturbed.read_text())
        self.assertEqual(set(want), set(names) - {"line 20"} | {None})

        kills = 0
        for count in (1, 13, 14, 30, 45):
            with subprocess.Popen(
                self.command("--slots", "2"), stdout=subprocess.PIPE, stderr=subprocess.PIPE
            ) as process:
                self.wait_for_lines(process, count)
                process.kill()
                process.communicate()
                kills += process.returncode == -signal.SIGKILL
            before = self.output.read_bytes()
            read_answers(before[: before.rfind(b"\n") + 1].decode())
            # As if the kill had come within a write.
            with self.output.open("ab") as output:
                output.write(b'{"id":"batch_req_torn","custom_id":"line')
        self.assertGreaterEqual(kills, 4)
        left = 60 - len(read_answers(before[: before.rfind(b"\n") + 1].decode()))
        self.assertGreater(left, 0)

        done = self.run_batch()
        self.assertEqual(done.returncode, 0, done)
        self.assertRegex(
            done.stderr,
            rf"^galley: 60 lines: 58 answered, 2 failed; {60 - left} of them by earlier runs; ",
        )
        got = read_answers(self.output.read_text())
        self.assertEqual(set(got), set(want))
        for name, response in want.items():
            self.assertEqual(said(got[name]), said(response), name)

        # Nothing is left: no model is loaded, nothing changes.
        before = self.output.read_bytes()
        done = self.run_batch("--tokenizer", "/nowhere")
        self.assertEqual(
            (done.returncode, done.stderr),
            (0, "galley: 60 lines: 58 answered, 2 failed; 60 of them by earlier runs\n"),
        )
        self.assertEqual(self.output.read_bytes(), before)

    def test_a_bad_line_fails_alone(self):
        self.write(
            request("a"),
            "{",
            request("hot", temperature=9),
            request("hot too", protocol="messages", temperature=9),
            request("other", model="gpt-9"),
            json.dumps({"custom_id": "url", "method": "POST", "url": "/v1/embeddings", "body": {}}),
            request("b"),
        )
        done = self.run_batch()
        self.assertEqual(done.returncode, 0, done)
        self.assertIn("galley: 7 lines: 2 answered, 5 failed; ", done.stderr)
        answers = read_answers(self.output.read_text())
        status = {name: response["status_code"] for name, response in answers.items()}
        self.assertEqual(
            status,
            {"a": 200, None: 400, "hot": 400, "hot too": 400, "other": 400, "url": 404, "b": 200},
        )
        self.assertIn("temperature", answers["hot"]["body"]["error"]["message"])
        self.assertEqual(answers["hot too"]["body"]["type"], "error")
        lines = map(json.loads, self.output.read_text().splitlines())
        (nameless,) = (line for line in lines if line["custom_id"] is None)
        self.assertEqual(nameless["line"], 2)

    def test_what_cannot_be_run_is_refused_before_anything_is_asked(self):
        self.write(request("a"), request("b"), request("a"))
        done = self.run_batch()
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertEqual(
            done.stderr,
            f'galley: custom_id "a" is that of line 1 too (at {self.input}, line 3)\n',
        )
        self.assertFalse(self.output.exists())

        self.write(request("a"))
        done = self.run_batch(output=self.input)
        self.assertEqual(done.returncode, 1)
        self.assertIn("is the input itself", done.stderr)
        for content, message in (
            ("dear diary", "not the beginning of an answer"),
            ("dear diary\n", "is no answer of a batch"),
            ('{"id":"batch_req_1","custom_id":"z","response":{"status_code":200,"body":{}}}\n',
             'custom_id "z", which is not in the batch'),
        ):  # fmt: skip
            self.output.write_text(content)
            done = self.run_batch()
            self.assertEqual(done.returncode, 1)
            self.assertIn(message, done.stderr)
            self.assertIn(str(self.output), done.stderr)
            self.assertEqual(self.output.read_text(), content)
        self.output.unlink()
        with self.output.open("w") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            self.assertIn("another process is writing it", self.run_batch().stderr)
        self.assertEqual(self.run_batch("--slots", "0").returncode, 2)
        self.assertEqual(self.run_batch("--cache", "much").returncode, 2)

    def test_from_a_pipe(self):
        command = self.command()
        command[command.index(str(self.input))] = "-"
        done = subprocess.run(
            command, input=request("a") + "\n" + request("b"),
            capture_output=True, text=True, timeout=SECONDS_MAX,
        )  # fmt: skip
        self.assertEqual(done.returncode, 0, done)
        self.assertEqual(set(read_answers(self.output.read_text())), {"a", "b"})

    def test_a_terminal_sees_how_far_it_is(self):
        self.write(*(request(str(i), f"What is {i} + 1?") for i in range(12)), "nonsense")
        master, slave = pty.openpty()
        with subprocess.Popen(self.command(), stdout=slave, stderr=slave) as process:
            os.close(slave)
            seen = b""
            while select.select([master], [], [], SECONDS_MAX)[0]:
                try:
                    seen += os.read(master, 4096)
                except OSError:  # the other end is closed
                    break
            self.assertEqual(process.wait(SECONDS_MAX), 0, seen)
        os.close(master)
        shown = seen.decode().split("\r")
        self.assertTrue(any(re.match(r"\[#+\.+\] \d+ of 13 lines, .*, \d+:\d\d left", one)
                            for one in shown), shown)  # fmt: skip
        self.assertTrue(any(re.match(r"\[#{40}\] 13 of 13 lines, 1 failed, \d+\.\d tokens/s", one)
                            for one in shown), shown)  # fmt: skip
        self.assertIn("\ngalley: 13 lines: 12 answered, 1 failed", seen.decode())


if __name__ == "__main__":
    unittest.main()
