"""Responses that the server keeps, as the `openai` client sees them, also after `kill -9`.

Method: `galley serve` without a model (it repeats what was said) on a folder of its own. Runs with plain
`python3 test_responses.py`; needs GALLEY_BIN.
"""

import os
import pathlib
import subprocess
import tempfile
import threading
import unittest

import openai
from test_serve import ANSWER, GALLEY, MODEL, Server

OFF = {"effort": "none"}


def client(server, key="none"):
    return openai.OpenAI(base_url=server.url + "/v1", api_key=key, max_retries=0, timeout=10)


class ResponsesTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.server = self.start()
        self.client = client(self.server)

    def tearDown(self):
        self.client.close()
        code, _, err = self.server.stop()
        self.assertEqual(code, 0, err)
        self.folder.cleanup()

    def start(self, *flags):
        return Server("--server.data", self.folder.name, *flags)

    def kill(self):
        self.client.close()
        self.server.process.kill()
        self.server.process.communicate()

    def create(self, text, **more):
        return self.client.responses.create(model=MODEL, input=text, reasoning=OFF, **more)

    def test_read_list_delete_cancel(self):
        reply = self.create("Hello!", metadata={"a": "b"})
        self.assertTrue(reply.store)
        again = self.client.responses.retrieve(reply.id)
        self.assertEqual(again.model_dump(), reply.model_dump())
        self.assertEqual(again.output_text, ANSWER)
        items = self.client.responses.input_items.list(reply.id)
        self.assertEqual([item.content[0].text for item in items], ["Hello!"])
        self.assertTrue(items.data[0].id)
        with self.assertRaises(openai.BadRequestError) as caught:
            self.client.responses.cancel(reply.id)
        self.assertIn("synchronous", caught.exception.message)
        self.client.responses.delete(reply.id)
        for call in (
            self.client.responses.retrieve,
            self.client.responses.delete,
            self.client.responses.cancel,
            self.client.responses.input_items.list,
        ):
            with self.assertRaises(openai.NotFoundError):
                call(reply.id)

    def test_a_conversation_by_name(self):
        first = self.create("one")
        second = self.create("two", previous_response_id=first.id)
        with self.client.responses.stream(
            model=MODEL, input="three", previous_response_id=second.id, reasoning=OFF
        ) as stream:
            third = stream.get_final_response()
        self.assertEqual(third.previous_response_id, second.id)
        self.assertGreater(second.usage.input_tokens, first.usage.input_tokens)
        self.assertGreater(third.usage.input_tokens, second.usage.input_tokens)
        said = [
            item.content[0].text
            for item in self.client.responses.input_items.list(third.id, order="asc", limit=2)
        ]  # the client follows the pages
        self.assertEqual([said[0], said[2], said[4]], ["one", "two", "three"])
        self.assertEqual(len(said), 5)
        # The same conversation sent in full has the same prompt.
        full = self.client.responses.create(
            model=MODEL,
            reasoning=OFF,
            store=False,
            input=[
                {"role": "user", "content": "one"},
                *first.output,
                {"role": "user", "content": "two"},
                *second.output,
                {"role": "user", "content": "three"},
            ],
        )
        self.assertEqual(full.usage.input_tokens, third.usage.input_tokens)
        with self.assertRaises(openai.BadRequestError) as caught:
            self.create("x", previous_response_id="resp_nobody")
        self.assertEqual(caught.exception.code, "previous_response_not_found")

    def test_what_is_not_to_be_stored(self):
        reply = self.create("Hello!", store=False)
        self.assertFalse(reply.store)
        with self.assertRaises(openai.NotFoundError):
            self.client.responses.retrieve(reply.id)

    def test_kill_and_restart(self):
        kept = [self.create(f"turn {i}") for i in range(5)]
        # Killed while others are being written, too.
        seen, stop = [], threading.Event()

        def write():
            other = client(self.server)
            while not stop.is_set():
                try:
                    reply = other.responses.create(model=MODEL, input="more", reasoning=OFF)
                    seen.append(reply)
                except openai.APIConnectionError:
                    return

        writer = threading.Thread(target=write)
        writer.start()
        while len(seen) < 5:
            self.assertTrue(writer.is_alive())
        self.kill()
        stop.set()
        writer.join()
        self.server = self.start()
        self.client = client(self.server)
        for reply in [*kept, *seen]:
            self.assertEqual(self.client.responses.retrieve(reply.id).output, reply.output)
        following = self.create("and now", previous_response_id=kept[-1].id)
        self.assertGreater(following.usage.input_tokens, kept[-1].usage.input_tokens)

    def test_two_servers_do_not_share_a_folder(self):
        second = subprocess.run(
            [GALLEY, "serve", "--server.port", "0", "--server.data", self.folder.name],
            capture_output=True,
            text=True,
            timeout=20,
        )
        self.assertNotEqual(second.returncode, 0)
        self.assertIn("in use by another process", second.stderr)

    def test_nobody_else_may_read_the_folder(self):
        mode = os.stat(pathlib.Path(self.folder.name) / "responses.db").st_mode
        self.assertEqual(mode & 0o077, 0)


class OtherServersTest(unittest.TestCase):
    def test_a_key_sees_its_own(self):
        secrets, lines = [], []
        for name in ("alice", "bob"):
            made = subprocess.run([GALLEY, "keys", "new", name], capture_output=True, text=True, check=True)
            secret, line = [line.strip() for line in made.stdout.splitlines() if line.startswith("  ")]
            secrets.append(secret)
            lines.append(line)
        with tempfile.NamedTemporaryFile("w", suffix=".keys") as file:
            file.write("\n".join(lines))
            file.flush()
            server = Server("--server.keys_file", file.name)
        alice, bob = (client(server, secret) for secret in secrets)
        reply = alice.responses.create(model=MODEL, input="Hello!", reasoning=OFF)
        self.assertEqual(alice.responses.retrieve(reply.id).id, reply.id)
        with self.assertRaises(openai.NotFoundError):
            bob.responses.retrieve(reply.id)
        with self.assertRaises(openai.BadRequestError):
            bob.responses.create(model=MODEL, input="x", previous_response_id=reply.id)
        alice.close()
        bob.close()
        self.assertEqual(server.stop()[0], 0)

    def test_a_server_that_keeps_none(self):
        server = Server("--server.responses", "false")
        asking = client(server)
        raw = asking.responses.with_raw_response.create(model=MODEL, input="Hello!", store=True)
        self.assertIn("keeps no responses", raw.headers["x-galley-note"])
        with self.assertRaises(openai.APIStatusError) as caught:
            asking.responses.create(model=MODEL, input="more", previous_response_id="resp_1")
        self.assertEqual((caught.exception.status_code, caught.exception.param), (501, "previous_response_id"))
        asking.close()
        self.assertEqual(server.stop()[0], 0)

    def test_a_folder_that_cannot_be_used_is_said_at_start(self):
        with tempfile.NamedTemporaryFile() as file:
            done = subprocess.run(
                [GALLEY, "serve", "--server.port", "0", "--server.data", file.name],
                capture_output=True, text=True, timeout=20,
            )
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("server.data", done.stderr)


if __name__ == "__main__":
    unittest.main()
