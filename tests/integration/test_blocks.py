"""A conversation with `galley serve` that outlives the server: its blocks come back from disk.

Method: the small trained model at temperature 0, whose answers are the same however a prompt was computed; a server
without a disk says what is right. Servers end by SIGTERM, by kill -9 at once and while they write, and over a disk that
was damaged meanwhile. Runs with plain `python3 test_blocks.py`; needs GALLEY_BIN.
"""

import hashlib
import json
import os
import pathlib
import random
import re
import stat
import subprocess
import tempfile
import time
import unittest

import openai
from test_serve import GALLEY, Server, curl

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL = "mini-test"
BLOCK = 128
TURNS = ["Go on.", "And then?", "What else?", "Is that all?"]
SECONDS_MAX = 120


def story(words, seed):
    draw = random.Random(seed)
    return " ".join(draw.choice(("the", "cat", "sat", "on", "a", "mat", "and", "ate", "its", "hat")) for _ in range(words))


class Talk:
    """What was said so far, and what the cache had of the newest prompt."""

    def __init__(self, seed=1, words=4500):
        self.messages = [{"role": "system", "content": story(words, seed)}]

    def say(self, server, text, key="none", **more):
        asked = [*self.messages, {"role": "user", "content": text}]
        with openai.OpenAI(base_url=server.url + "/v1", api_key=key, max_retries=0, timeout=SECONDS_MAX) as client:
            reply = client.chat.completions.create(
                model=MODEL, messages=asked, max_tokens=40, temperature=0,
                extra_body={"thinking": {"type": "disabled"}}, **more,
            )  # fmt: skip
        answer = reply.choices[0].message.content
        self.messages = [*asked, {"role": "assistant", "content": answer}]
        self.prompt = reply.usage.prompt_tokens
        self.total = reply.usage.total_tokens
        self.cached = reply.usage.prompt_tokens_details.cached_tokens
        return answer


def metric(server, name, *flags):
    found = re.search(rf"^{re.escape(name)} (\S+)$", curl(server.url + "/metrics", *flags), re.M)
    return float(found[1])


def wait_for_blocks(server, blocks):
    """Until so many are durable."""
    deadline = time.monotonic() + SECONDS_MAX
    while metric(server, "galley_store_blocks") < blocks:
        assert time.monotonic() < deadline, "blocks are not written"
        time.sleep(0.05)


class BlocksTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        plain = Server("--model", str(ROOT / "models" / MODEL))
        talk = Talk()
        cls.right = [talk.say(plain, text) for text in TURNS]
        assert plain.stop()[0] == 0
        cls.prompt = talk.prompt

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.server = None

    def tearDown(self):
        if self.server is not None:
            self.kill()

    def start(self, *flags, **popen):
        self.server = Server(
            "--model", str(ROOT / "models" / MODEL), "--server.data", str(self.folder), *flags, **popen
        )  # fmt: skip

    def stop(self):
        code, _, err = self.server.stop()
        self.server = None
        self.assertEqual(code, 0, err)
        return err

    def kill(self):
        self.server.process.kill()
        self.server.process.communicate()
        self.server = None

    def assert_from_disk(self, talk, earlier_tokens):
        """At least 31/32 of the complete blocks that were there; the end is computed again for its windows."""
        fetched = metric(self.server, 'galley_engine_store_blocks_total{what="fetched"}')
        self.assertGreaterEqual(fetched, earlier_tokens // BLOCK * 31 / 32)
        self.assertGreater(talk.cached, (fetched - 1) * BLOCK)
        self.assertGreater(metric(self.server, "galley_engine_stored_hit_tokens_total"), talk.cached - 1)

    def test_a_conversation_outlives_the_server(self):
        talk = Talk()
        self.start()
        self.assertEqual(talk.say(self.server, TURNS[0]), self.right[0])
        self.assertEqual(talk.cached, 0)
        self.assertGreater(talk.prompt, 4500)
        self.stop()

        self.start()
        before = talk.total
        self.assertEqual(talk.say(self.server, TURNS[1]), self.right[1])
        self.assert_from_disk(talk, before)
        wait_for_blocks(self.server, talk.total // BLOCK - 1)
        self.kill()

        self.start()
        before = talk.total
        self.assertEqual(talk.say(self.server, TURNS[2]), self.right[2])
        self.assert_from_disk(talk, before)
        folder = self.folder / "blocks"
        self.assertEqual(stat.S_IMODE(folder.stat().st_mode), 0o700)
        self.stop()

        # Blocks of the conversation can be looked at, and are all right.
        done = subprocess.run([GALLEY, "cache", "verify", str(folder)], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_killed_at_any_time(self):
        draw = random.Random(7)
        for attempt in range(5):
            talk = Talk()
            self.start()
            pid = self.server.process
            killer = subprocess.Popen(["sh", "-c", f"sleep {draw.uniform(0.1, 1.5):.3f}; kill -9 {pid.pid}"])
            try:
                for text, right in zip(TURNS, self.right):
                    self.assertEqual(talk.say(self.server, text), right, attempt)
            except openai.APIConnectionError:
                pass
            killer.wait()
            self.kill()
        talk = Talk()
        self.start()
        self.assertEqual([talk.say(self.server, text) for text in TURNS], self.right)
        self.assertEqual(metric(self.server, "galley_store_damaged_blocks_total"), 0)
        self.stop()

    def test_damage_shortens_hits_and_changes_no_answer(self):
        talk = Talk()
        self.start()
        talk.say(self.server, TURNS[0])
        self.stop()
        for path in (self.folder / "blocks").glob("*.segment"):
            bytes_ = bytearray(path.read_bytes())
            for at in range(len(bytes_) // 3, len(bytes_) - 200_000, 100_000):
                bytes_[at] ^= 4
            path.write_bytes(bytes_)
        self.start()
        self.assertEqual(talk.say(self.server, TURNS[1]), self.right[1])
        self.assertLess(talk.cached, talk.prompt - 1000)
        self.stop()

    def test_another_tenant_never_hits(self):
        keys = {name: f"key-of-{name}" for name in ("ann", "bob")}
        path = self.folder / "keys"
        path.write_text("".join(f"{name} {hashlib.sha256(key.encode()).hexdigest()}\n" for name, key in keys.items()))
        flags = ("--server.keys_file", str(path))
        talk = Talk()
        self.start(*flags)
        talk.say(self.server, TURNS[0], keys["ann"])
        self.stop()
        self.start(*flags)
        for key, user, hits in ((keys["bob"], "", False), (keys["ann"], "eve", False), (keys["ann"], "", True)):
            again = Talk()
            again.say(self.server, TURNS[0], key, **({"user": user} if user else {}))
            self.assertEqual(again.cached > 0, hits, user)
        self.stop()

    def test_explain_says_where_blocks_are_and_why_not(self):
        talk = Talk(words=1000)
        self.start()
        talk.say(self.server, TURNS[0])
        self.stop()
        request = self.folder / "request.json"
        body = {"model": MODEL, "messages": Talk(words=1000).messages + [{"role": "user", "content": TURNS[0]}],
                "thinking": {"type": "disabled"}}  # fmt: skip
        request.write_text(json.dumps(body))

        def explain(*flags, **popen):
            done = subprocess.run(
                [GALLEY, "cache", "explain", str(self.folder / "blocks"), "--model", str(ROOT / "models" / MODEL), "--json",
                 *flags], capture_output=True, text=True, timeout=SECONDS_MAX, check=False, **popen,
            )  # fmt: skip
            self.assertEqual(done.returncode, 0, done.stderr)
            return json.loads(done.stdout)

        mine = explain("--request", str(request))
        self.assertEqual(mine["tokens"], talk.prompt)
        self.assertEqual([(one["what"], one["count"]) for one in mine["blocks"]], [("on disk", talk.prompt // BLOCK)])
        self.start()
        again = Talk(words=1000)
        again.say(self.server, TURNS[0])
        self.assertEqual(mine["cached_tokens"], again.cached)
        self.stop()
        request.write_text(json.dumps({**body, "user": "eve"}))
        theirs = explain("--request", str(request))
        self.assertEqual([one["what"] for one in theirs["blocks"]], ["never stored, or gone"])
        request.write_text(json.dumps(body))
        other = explain("--request", str(request), "--tenant", "eve")
        self.assertEqual([one["what"] for one in other["blocks"]], ["never stored, or gone"])
        self.assertEqual(other["cached_tokens"], 0)
        foreign = explain("--request", str(request), env={**os.environ, "GALLEY_ISA": "reference"})
        self.assertEqual([one["what"] for one in foreign["blocks"]], ["approximate, or of another machine's arithmetic"])

    def test_a_server_without_room_or_folder_keeps_none(self):
        self.start("--cache.bytes", "0")
        Talk(words=400).say(self.server, TURNS[0])
        self.assertFalse((self.folder / "blocks").exists())
        self.assertNotIn("galley_store_blocks", curl(self.server.url + "/metrics"))
        self.stop()

    def test_a_folder_that_cannot_be_used_is_refused(self):
        (self.folder / "file").write_text("")
        for folder in ("file", "file/below"):
            done = subprocess.run(
                [GALLEY, "serve", "--server.port", "0", "--model", str(ROOT / "models" / MODEL),
                 "--cache.dir", str(self.folder / folder)],
                capture_output=True, text=True, timeout=SECONDS_MAX, check=False,
            )  # fmt: skip
            self.assertNotEqual(done.returncode, 0)
            self.assertIn("cache.dir", done.stderr)


if __name__ == "__main__":
    unittest.main()
