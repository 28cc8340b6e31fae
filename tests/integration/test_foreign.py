"""`galley serve --engine-url` in front of the real llama.cpp, and what it says where that is gone.

Method: llama.cpp's server from its wheel, with a small random model in Galley's vocabulary (llama_cpp.py), which draws
all kinds of tokens, halves of characters and control tokens too. What it says when it is asked without Galley is the
right answer. Runs with plain `python3 test_foreign.py`; needs GALLEY_BIN.
"""

import json
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import urllib.request

import llama_cpp
import openai
from test_serve import GALLEY, HELLO, NO_THINKING, Server, curl

MODEL = "DeepSeek-V4.1-Flash"
EOS = 1
STOPS = {EOS, 4079, 4080, 4081, 4084}  # of a completion: end of turn and text, the tokens around gaps
PATIENCE_SECONDS = 120


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def ask(url, body):
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as reply:
        return json.load(reply), reply.headers


def eventually(condition):
    end = time.monotonic() + PATIENCE_SECONDS
    while not condition() and time.monotonic() < end:
        time.sleep(0.05)
    return condition()


class Engine:
    """llama.cpp's server on a port that stays the same when it is started again."""

    def __init__(self, model):
        self.model, self.port = model, free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.start()

    def start(self):
        self.process = subprocess.Popen(
            [sys.executable, llama_cpp.__file__, self.model, str(self.port)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        assert b"listens" in self.process.stdout.readline()

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()

    def whole(self, prompt, count):
        """The ids it answers without Galley, greedily, in one piece: that leaves out none."""
        body = {"prompt": prompt, "n_predict": count, "temperature": 0, "return_tokens": True, "top_k": 0, "min_p": 0}
        ids = ask(self.url + "/completion", body)[0]["tokens"]
        end = next((at for at, id in enumerate(ids) if id in STOPS), len(ids))
        return ids[:end]

    def busy(self):
        with urllib.request.urlopen(self.url + "/slots", timeout=PATIENCE_SECONDS) as reply:
            return sum(slot["is_processing"] for slot in json.load(reply))


class ForeignTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        model = str(pathlib.Path(cls.folder.name) / "random.gguf")
        llama_cpp.write_model(model)
        cls.engine = Engine(model)
        cls.server = Server(
            "--engine-url", cls.engine.url, "--tokenizer", str(llama_cpp.TOKENIZER), "--context-tokens", "100000"
        )
        cls.client = openai.OpenAI(base_url=cls.server.url + "/v1", api_key="none", max_retries=0, timeout=60)
        assert eventually(cls.ready)

    @classmethod
    def tearDownClass(cls):
        cls.client.close()
        code, out, err = cls.server.stop()
        assert code == 0 and "llama.cpp at " + cls.engine.url in out, out + err
        cls.engine.kill()
        cls.folder.cleanup()

    @classmethod
    def ready(cls):
        return '"ready"' in curl(cls.server.url + "/ready")

    def text_of(self, ids):
        return ask(self.server.url + "/detokenize", {"model": MODEL, "tokens": ids})[0]["prompt"]

    def complete(self, prompt, count, **more):
        body = {"model": MODEL, "prompt": prompt, "max_tokens": count, "temperature": 0, **more}
        return ask(self.server.url + "/v1/completions", body)

    def test_the_tokens_are_the_engines(self):
        lengths = []
        for number in range(12):
            prompt = [100 + 17 * number, 200 + number, 300]
            ids = self.engine.whole(prompt, 120)
            reply, _ = self.complete(prompt, 120)
            with self.subTest(prompt=prompt):
                whole = self.text_of(ids)
                lost = len(ids) - reply["usage"]["completion_tokens"]
                # What its stream loses is the very end, where that is no whole character.
                self.assertLessEqual(set(self.text_of(ids[len(ids) - lost :])), {"\ufffd"})
                self.assertEqual(reply["choices"][0]["text"].rstrip("\ufffd"), whole.rstrip("\ufffd"))
                self.assertEqual(reply["usage"]["prompt_tokens"], 3)
                self.assertEqual(reply["choices"][0]["finish_reason"], "length" if len(ids) == 120 else "stop")
            lengths.append(len(ids))
        self.assertGreater(max(lengths), 60)

    def test_streamed_is_whole_and_hits_are_told(self):
        options = {"model": MODEL, "messages": HELLO, "max_tokens": 60, "temperature": 0, "extra_body": NO_THINKING}
        whole = self.client.chat.completions.create(**options)
        text, usage = "", None
        stream = self.client.chat.completions.create(stream=True, stream_options={"include_usage": True}, **options)
        for chunk in stream:
            usage = chunk.usage or usage
            text += "".join(choice.delta.content or "" for choice in chunk.choices)
        self.assertEqual(text, whole.choices[0].message.content)
        self.assertEqual(usage.completion_tokens, whole.usage.completion_tokens)
        self.assertGreater(usage.prompt_tokens_details.cached_tokens, 0)

    def test_who_leaves_stops_the_engine(self):
        stream = self.client.completions.create(model=MODEL, prompt=[700], max_tokens=4000, stream=True, logit_bias={EOS: -100})
        next(iter(stream))
        self.assertGreater(self.engine.busy(), 0)
        stream.close()
        self.assertTrue(eventually(lambda: self.engine.busy() == 0))

    def test_an_answer_outlives_the_engine(self):
        options = {"logit_bias": {str(EOS): -100}}
        right, _ = self.complete([800, 801], 700, **options)
        stream = self.client.completions.create(
            model=MODEL, prompt=[800, 801], max_tokens=700, temperature=0, stream=True, logit_bias={EOS: -100}
        )
        text, chunks = "", 0
        for chunk in stream:
            text += chunk.choices[0].text
            chunks += 1
            if chunks == 20:
                self.engine.kill()
                threading.Timer(3, self.engine.start).start()
        self.assertEqual(text, right["choices"][0]["text"])
        self.assertIn("galley_foreign_attempts_repeated_total", curl(self.server.url + "/metrics"))
        self.assertTrue(eventually(self.ready))

    def test_what_the_engine_refuses(self):
        with self.assertRaises(openai.BadRequestError) as refused:
            self.client.completions.create(model=MODEL, prompt=[5] * (llama_cpp.CONTEXT + 10), max_tokens=5)
        self.assertIn("llama.cpp", str(refused.exception))
        self.assertIn("context", str(refused.exception))

    def test_several_answers(self):
        reply = self.client.completions.create(model=MODEL, prompt=[900, 901], max_tokens=20, n=3, temperature=1, seed=5)
        texts = [choice.text for choice in reply.choices]
        self.assertEqual(len(set(texts)), 3)
        again = self.client.completions.create(model=MODEL, prompt=[900, 901], max_tokens=20, n=3, temperature=1, seed=5)
        self.assertEqual([choice.text for choice in again.choices], texts)


class WithoutEngineTest(unittest.TestCase):
    def test_it_starts_and_is_not_ready(self):
        server = Server("--engine-url", "http://127.0.0.1:1", "--engine-kind", "vllm", "--tokenizer", str(llama_cpp.TOKENIZER))
        self.assertNotIn('"ready"', curl(server.url + "/ready"))
        client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=10)
        with self.assertRaises(openai.InternalServerError) as refused:
            client.chat.completions.create(model=MODEL, messages=HELLO)
        self.assertEqual(refused.exception.status_code, 503)
        self.assertIn("vLLM does not answer", str(refused.exception))
        client.close()
        code, _, err = server.stop()
        self.assertEqual(code, 0)
        self.assertIn("another engine does not answer", err)

    def test_settings_that_do_not_fit(self):
        for flags, reason in (
            (["--engine-url", "http://127.0.0.1:1"], "tokenizer"),
            (["--engine-url", "127.0.0.1:1", "--tokenizer", str(llama_cpp.TOKENIZER)], "http://"),
            (["--engine-url", "http://a:b@127.0.0.1:1", "--tokenizer", str(llama_cpp.TOKENIZER)], "name or password"),
            (["--engine-url", "http://127.0.0.1:1", "--script", "x"], "cannot both answer"),
            (["--engine-kind", "gpt"], "llama.cpp, vllm, sglang"),
        ):
            done = subprocess.run([GALLEY, "serve", *flags], capture_output=True, text=True, timeout=PATIENCE_SECONDS)
            self.assertNotEqual(done.returncode, 0)
            self.assertIn(reason, done.stderr)


if __name__ == "__main__":
    signal.alarm(900)  # whatever hangs
    unittest.main()
