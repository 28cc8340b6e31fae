"""What the server says at /openapi.json is what it does: real replies of each route fit their schema.

Method: `galley serve` without a model, on a folder of its own, and one with scripted answers where a tool is called;
every reply is validated against the schema its route, status and media type name. A schema allows no member it does
not name, and every operation but those that are marked must have been seen. Runs with plain `python3
test_openapi.py`; needs GALLEY_BIN and the package `jsonschema`.
"""

import json
import re
import tempfile
import time
import unittest
import urllib.error
import urllib.request

import jsonschema
from test_clients import CALL, SCHEMA
from test_serve import MODEL, NO_THINKING, Server

MESSAGES = [{"role": "user", "content": "Hello!"}]


class OpenApiTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.server = Server("--server.data", cls.folder.name)
        cls.document = json.loads(cls.raw("GET", "/openapi.json")[2])
        cls.seen = set()

    @classmethod
    def tearDownClass(cls):
        code, _, err = cls.server.stop()
        assert code == 0, err
        cls.folder.cleanup()

    @classmethod
    def raw(cls, method, path, body=None, headers=None, url=None):
        data = body if isinstance(body, (bytes, type(None))) else json.dumps(body).encode()
        request = urllib.request.Request(
            (url or cls.server.url) + path, data, {"content-type": "application/json", **(headers or {})}, method=method
        )
        try:
            with urllib.request.urlopen(request, timeout=20) as reply:
                return reply.status, reply.headers.get_content_type(), reply.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.headers.get_content_type(), error.read().decode()

    def valid(self, value, schema):
        jsonschema.Draft202012Validator({**schema, "components": self.document["components"]}).validate(value)

    def ask(self, method, path, body=None, headers=None, url=None, expect=200):
        """The reply, once it is what the description says."""
        status, kind, text = self.raw(method, path, body, headers, url)
        self.assertEqual(status, expect, text)
        plain = path.split("?")[0]
        described = next(
            each
            for each in sorted(self.document["paths"], key=lambda each: each.count("{"))
            if re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", each), plain) and method.lower() in self.document["paths"][each]
        )
        operation = self.document["paths"][described][method.lower()]
        self.seen.add((operation["operationId"], status))
        self.assertIn(str(status), operation["responses"], described)
        content = operation["responses"][str(status)]["content"][kind]
        if kind == "application/json":
            self.valid(json.loads(text), content["schema"])
            return json.loads(text)
        if kind == "text/event-stream":
            events = [
                json.loads(line[6:])
                for line in text.splitlines()
                if line.startswith("data: ") and line != "data: [DONE]"
            ]
            self.assertTrue(events)
            for event in events:
                self.valid(event, content["x-event-schema"])
            return events
        return text

    def test_every_operation(self):
        ask = self.ask
        self.generations(self.server.url)
        script = (json.dumps({"text": "</think>" + CALL}) + "\n") * 6
        with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
            file.write(script)
            file.flush()
            scripted = Server("--script", file.name)
            self.tools(scripted.url)
            self.assertEqual(scripted.stop()[0], 0)
        kept = ask("POST", "/v1/responses", {"model": MODEL, "input": "Hello!"})["id"]
        ask("GET", f"/v1/responses/{kept}")
        ask("GET", f"/v1/responses/{kept}/input_items?limit=1&order=asc")
        ask("POST", f"/v1/responses/{kept}/cancel", {}, expect=400)
        ask("DELETE", f"/v1/responses/{kept}")
        ask("GET", f"/v1/responses/{kept}", expect=404)
        tokens = ask("POST", "/v1/tokenize", {"prompt": "Hello!", "return_token_strs": True})["tokens"]
        ask("POST", "/v1/tokenize", {"prompt": 1}, expect=400)
        ask("POST", "/v1/detokenize", {"tokens": tokens})
        for headers in ({}, {"anthropic-version": "2023-06-01"}):
            ask("GET", "/v1/models", headers=headers)
            ask("GET", f"/v1/models/{MODEL}", headers=headers)
        ask("GET", "/v1/models/gpt-9", expect=404)
        self.batches()
        for path in ("/health", "/ready", "/metrics", "/openapi.json"):
            ask("GET", path)
        for path in ("/v1/embeddings", "/v1/tools/search", "/v1/tools/fetch"):
            ask("POST", path, {}, expect=501)
        ask("GET", "/user/balance", expect=501)
        operations = {
            operation["operationId"] for path in self.document["paths"].values() for operation in path.values()
        }
        self.assertEqual(operations, {operation for operation, _ in self.seen})

    def generations(self, url):
        chat = {"model": MODEL, "messages": MESSAGES}
        text = {"model": MODEL, "prompt": "Hello!", "max_tokens": 20}
        answer = {"model": MODEL, "input": "Hello!", "metadata": {"a": "b"}, "user": "me"}
        message = {"model": MODEL, "messages": MESSAGES, "max_tokens": 50}
        for stream in (False, True):
            self.ask("POST", "/v1/chat/completions", {**chat, "stream": stream})
            self.ask("POST", "/v1/chat/completions", {**chat, **NO_THINKING, "stream": stream, "max_tokens": 2})
            self.ask("POST", "/v1/completions", {**text, "stream": stream})
            self.ask("POST", "/v1/responses", {**answer, "stream": stream})
            self.ask("POST", "/v1/responses", {**answer, "stream": stream, "max_output_tokens": 2})
            self.ask("POST", "/v1/messages", {**message, "stream": stream})
            self.ask("POST", "/v1/messages", {**message, "stream": stream, "stop_sequences": ["loaded"]})
        self.ask("POST", "/v1/messages/count_tokens", {"model": MODEL, "messages": MESSAGES})
        for path in ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"):
            self.ask("POST", path, {}, expect=400)

    def tools(self, url):
        function = {"name": "weather", "parameters": SCHEMA}
        for stream in (False, True):
            chat = self.ask(
                "POST",
                "/v1/chat/completions",
                {"model": MODEL, "messages": MESSAGES, "stream": stream,
                 "tools": [{"type": "function", "function": function}]},
                url=url,
            )
            self.assertIn("weather", json.dumps(chat))
            self.ask(
                "POST",
                "/v1/responses",
                {"model": MODEL, "input": "Hello!", "stream": stream,
                 "tools": [{"type": "function", **function}]},
                url=url,
            )
            self.ask(
                "POST",
                "/v1/messages",
                {"model": MODEL, "messages": MESSAGES, "max_tokens": 99,
                 "stream": stream, "tools": [{"name": "weather", "input_schema": SCHEMA}]},
                url=url,
            )

    def batches(self):
        form = b"\r\n".join([
            b"--b", b'Content-Disposition: form-data; name="purpose"', b"", b"batch",
            b"--b", b'Content-Disposition: form-data; name="file"; filename="in.jsonl"', b"",
            json.dumps({"custom_id": "a", "method": "POST", "url": "/v1/responses",
                        "body": {"model": MODEL, "input": "Hello!"}}).encode(),
            b"--b--", b"",
        ])
        upload = self.ask("POST", "/v1/files", form, {"content-type": "multipart/form-data; boundary=b"})
        self.ask("POST", "/v1/files", form, {"content-type": "text/plain"}, expect=400)
        self.ask("GET", "/v1/files?limit=1")
        self.ask("GET", f"/v1/files/{upload['id']}")
        self.ask("GET", f"/v1/files/{upload['id']}/content")
        body = {"input_file_id": upload["id"], "endpoint": "/v1/responses", "completion_window": "24h"}
        batch = self.ask("POST", "/v1/batches", body)
        self.ask("POST", "/v1/batches", {}, expect=400)
        self.ask("GET", "/v1/batches?limit=1")
        deadline = time.monotonic() + 20
        while batch["status"] != "completed":
            self.assertLess(time.monotonic(), deadline)
            batch = self.ask("GET", f"/v1/batches/{batch['id']}")
        self.ask("POST", f"/v1/batches/{batch['id']}/cancel", {}, expect=400)
        self.ask("DELETE", f"/v1/files/{upload['id']}")
        failing = self.ask("POST", "/v1/batches", body, expect=400)
        self.assertIn("error", failing)

    def test_a_schema_refuses_what_it_does_not_name(self):
        with self.assertRaises(jsonschema.ValidationError):
            self.valid({"status": "ok", "more": 1}, {"$ref": "#/components/schemas/Health"})

    def test_requests_are_described(self):
        for path, body in {
            "/v1/chat/completions": {"model": MODEL, "messages": MESSAGES, "unknown": 1},
            "/v1/responses": {"model": MODEL, "input": "x"},
            "/v1/messages": {"model": MODEL, "messages": MESSAGES, "max_tokens": 5},
            "/v1/completions": {"model": MODEL, "prompt": [1, 2]},
        }.items():
            content = self.document["paths"][path]["post"]["requestBody"]["content"]
            self.valid(body, content["application/json"]["schema"])
            with self.assertRaises(jsonschema.ValidationError):
                self.valid({}, content["application/json"]["schema"])


if __name__ == "__main__":
    unittest.main()
