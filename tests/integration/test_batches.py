"""Files and batches as the `openai` client sees them, also after `kill -9`.

Method: `galley serve` without a model (it repeats what was said) on a folder of its own. Runs with plain
`python3 test_batches.py`; needs GALLEY_BIN.
"""

import io
import json
import tempfile
import time
import unittest

import openai
from test_serve import MODEL, Server

SECONDS_MAX = 60


def lines(count, url="/v1/chat/completions", words=1):
    for i in range(count):
        body = {"model": MODEL, "messages": [{"role": "user", "content": f"line {i} " * words}]}
        yield json.dumps({"custom_id": f"c{i}", "method": "POST", "url": url, "body": body})


class BatchesTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.start()

    def start(self, *flags):
        self.server = Server("--server.data", self.folder.name, *flags)
        self.client = openai.OpenAI(
            base_url=self.server.url + "/v1", api_key="none", max_retries=0, timeout=20
        )

    def kill(self):
        self.client.close()
        self.server.process.kill()
        self.server.process.communicate()

    def tearDown(self):
        self.client.close()
        code, _, err = self.server.stop()
        self.assertEqual(code, 0, err)
        self.folder.cleanup()

    def upload(self, text, name="in.jsonl"):
        return self.client.files.create(file=(name, io.BytesIO(text.encode())), purpose="batch")

    def begin(self, text, **more):
        return self.client.batches.create(
            input_file_id=self.upload(text).id,
            endpoint="/v1/chat/completions",
            completion_window="24h",
            **more,
        )

    def end(self, batch):
        deadline = time.monotonic() + SECONDS_MAX
        while batch.status not in ("completed", "failed", "cancelled", "expired"):
            self.assertLess(time.monotonic(), deadline, batch)
            time.sleep(0.05)
            batch = self.client.batches.retrieve(batch.id)
        return batch

    def answers(self, file_id):
        return [json.loads(line) for line in self.client.files.content(file_id).text.splitlines()]

    def test_files(self):
        text = "\n".join(lines(3)) + "\n"
        file = self.upload(text, "näme.jsonl")
        self.assertEqual((file.bytes, file.filename, file.purpose), (len(text), "näme.jsonl", "batch"))
        self.assertEqual(self.client.files.content(file.id).text, text)
        self.assertEqual(self.client.files.retrieve(file.id), file)
        others = [self.upload("x").id for _ in range(4)]
        listed = [each.id for each in self.client.files.list(order="asc", limit=2)]  # follows the pages
        self.assertEqual(listed, [file.id, *others])
        self.assertTrue(self.client.files.delete(file.id).deleted)
        with self.assertRaises(openai.NotFoundError):
            self.client.files.retrieve(file.id)
        with self.assertRaises(openai.NotFoundError):
            self.client.files.content(file.id)
        with self.assertRaises(openai.BadRequestError) as caught:
            self.client.files.create(file=("a.png", b"x"), purpose="vision")
        self.assertEqual(caught.exception.param, "purpose")

    def test_a_batch(self):
        bad = json.dumps({"custom_id": "bad", "method": "POST", "url": "/v1/chat/completions", "body": {}})
        batch = self.begin("\n".join([*lines(5), bad]), metadata={"who": "me"})
        self.assertEqual(batch.metadata, {"who": "me"})
        batch = self.end(batch)
        self.assertEqual(batch.status, "completed")
        counts = batch.request_counts
        self.assertEqual((counts.total, counts.completed, counts.failed), (6, 5, 1))
        answers = self.answers(batch.output_file_id)
        self.assertEqual({answer["custom_id"] for answer in answers}, {f"c{i}" for i in range(5)})
        for answer in answers:
            said = answer["response"]["body"]["choices"][0]["message"]["content"]
            self.assertIn("line " + answer["custom_id"][1:], said)
        (error,) = self.answers(batch.error_file_id)
        self.assertEqual((error["custom_id"], error["response"]["status_code"]), ("bad", 400))
        self.assertEqual([each.id for each in self.client.batches.list()], [batch.id])

    def test_kill_and_restart(self):
        batch = self.begin("\n".join(lines(3000)))
        deadline = time.monotonic() + SECONDS_MAX
        while self.client.batches.retrieve(batch.id).request_counts.completed == 0:
            self.assertLess(time.monotonic(), deadline)
        self.kill()
        self.start()
        after = self.client.batches.retrieve(batch.id)
        self.assertIn(after.status, ("in_progress", "finalizing", "completed"))
        batch = self.end(after)
        self.assertEqual(batch.status, "completed")
        ids = [answer["custom_id"] for answer in self.answers(batch.output_file_id)]
        self.assertEqual(len(ids), 3000)
        self.assertEqual(len(set(ids)), 3000)

    def test_cancel(self):
        batch = self.begin("\n".join(lines(20000)))
        self.assertEqual(self.client.batches.cancel(batch.id).status, "cancelling")
        batch = self.end(batch)
        self.assertEqual(batch.status, "cancelled")
        with self.assertRaises(openai.BadRequestError):
            self.client.batches.cancel(batch.id)

    def test_others_are_answered_meanwhile(self):
        batch = self.begin("\n".join(lines(5000)))
        for _ in range(5):
            reply = self.client.chat.completions.create(
                model=MODEL, messages=[{"role": "user", "content": "Hello!"}]
            )
            self.assertIn("Hello!", reply.choices[0].message.content)
        self.client.batches.cancel(batch.id)
        self.end(batch)

    def test_the_server_says_why_a_batch_cannot_be(self):
        with self.assertRaises(openai.BadRequestError) as caught:
            self.client.batches.create(
                input_file_id="file-none", endpoint="/v1/responses", completion_window="24h"
            )
        self.assertEqual(caught.exception.param, "input_file_id")
        batch = self.end(self.begin('{"custom_id":"a"}\n{"custom_id":"a"}'))
        self.assertEqual(batch.status, "failed")
        self.assertIn("a", batch.errors.data[0].message)


if __name__ == "__main__":
    unittest.main()
