"""Structured output of a running server, judged by others: the package `jsonschema`, and Python's `re`.

Method: one `galley serve` with the model that ships for tests, whose answers at temperature 1 are mostly
noise, so that only the grammar can make them fit. Varied schemas, all protocols, streamed and whole, with
thinking and without, several at a time. GRAMMAR_TEST_REQUESTS: how many (default 60). Needs GALLEY_BIN.
"""

import concurrent.futures
import http.client
import json
import os
import pathlib
import random
import re
import unittest

import jsonschema
from test_serve import Server

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
MODEL = os.environ.get("GRAMMAR_TEST_MODEL", str(ROOT / "models/mini-test"))
NAME = pathlib.Path(MODEL).name
REQUESTS = int(os.environ.get("GRAMMAR_TEST_REQUESTS", "60"))
AT_ONCE = 6
MAX_TOKENS = 400


def random_schema(draw, depth=2):
    """One of the keywords agents use; answers are short whatever the model likes."""
    kind = draw.choice(["string", "enum", "integer", "number", "boolean", "format", "pattern"] + ["object", "array", "anyOf"] * (depth > 0))
    if kind == "string":
        return {"type": "string", "maxLength": draw.randint(0, 12)}
    if kind == "enum":
        return {"enum": draw.sample(["red", "a \"quoted\" word", 7, None, True, "ünï", {"k": [1]}], 3)}
    if kind == "integer":
        low = draw.randint(-50, 50)
        return {"type": "integer", "minimum": low, "maximum": low + draw.randint(1, 500)}
    if kind == "number":
        return {"type": "number", "minimum": 0, "exclusiveMaximum": draw.randint(1, 9)}
    if kind == "boolean":
        return {"type": ["boolean", "null"]}
    if kind == "format":
        return {"type": "string", "format": draw.choice(["date", "ipv4", "uuid"])}
    if kind == "pattern":
        return {"type": "string", "pattern": draw.choice(["^[A-Z]{2}-[0-9]{3}$", "^(ab|ba)+c?$"]), "maxLength": 16}
    if kind == "array":
        return {"type": "array", "items": random_schema(draw, depth - 1), "minItems": draw.randint(0, 2), "maxItems": draw.randint(2, 4)}
    if kind == "anyOf":
        return {"anyOf": [random_schema(draw, depth - 1) for _ in range(2)]}
    names = draw.sample(["name", "size", "x y", "q\"q", "deep", "id"], draw.randint(1, 3))
    return {
        "type": "object",
        "properties": {name: random_schema(draw, depth - 1) for name in names},
        "required": draw.sample(names, draw.randint(0, len(names))),
        "additionalProperties": False,
    }


def post(port, path, body):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    try:
        connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
        reply = connection.getresponse()
        return reply.status, reply.read().decode()
    finally:
        connection.close()


def events(text):
    return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]


PROMPT = [{"role": "user", "content": "Answer in json."}]


def request(protocol, schema, seed, stream, thinking):
    common = {"model": NAME, "stream": stream, "temperature": 1}
    if protocol == "chat":
        return "/v1/chat/completions", common | {
            "messages": PROMPT, "max_tokens": MAX_TOKENS, "seed": seed,
            "thinking": {"type": "enabled" if thinking else "disabled"},
            "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}},
        }
    if protocol == "responses":
        return "/v1/responses", common | {
            "input": "Answer in json.", "max_output_tokens": MAX_TOKENS, "store": False,
            "reasoning": {"effort": "low" if thinking else "none"},
            "text": {"format": {"type": "json_schema", "name": "s", "schema": schema}},
        }
    return "/v1/messages", common | {
        "messages": PROMPT, "max_tokens": MAX_TOKENS,
        "thinking": {"type": "enabled", "budget_tokens": 1024} if thinking else {"type": "disabled"},
        "output_config": {"format": {"type": "json_schema", "schema": schema}},
    }


def read(protocol, stream, text):
    """The answer's text, and whether it was cut by length."""
    if protocol == "chat":
        if stream:
            choices = [one for event in events(text) for one in event["choices"]]
            return "".join(one["delta"].get("content") or "" for one in choices), choices[-1]["finish_reason"] == "length"
        choice = json.loads(text)["choices"][0]
        return choice["message"]["content"], choice["finish_reason"] == "length"
    if protocol == "responses":
        response = events(text)[-1]["response"] if stream else json.loads(text)
        parts = [part["text"] for item in response["output"] if item["type"] == "message" for part in item["content"]]
        return "".join(parts), response["status"] == "incomplete"
    if stream:
        parts = [e["delta"].get("text", "") for e in events(text) if e["type"] == "content_block_delta"]
        reasons = [e["delta"]["stop_reason"] for e in events(text) if e["type"] == "message_delta"]
        return "".join(parts), reasons == ["max_tokens"]
    message = json.loads(text)
    return "".join(b["text"] for b in message["content"] if b["type"] == "text"), message["stop_reason"] == "max_tokens"


class GrammarTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--model", MODEL, "--engine.cache", "8MiB")

    @classmethod
    def tearDownClass(cls):
        code, _, err = cls.server.stop()
        assert code == 0, err

    def ask(self, seed):
        draw = random.Random(seed)
        schema = random_schema(draw)
        protocol = ["chat", "responses", "messages"][seed % 3]
        stream = draw.random() < 0.5
        thinking = draw.random() < 0.3
        path, body = request(protocol, schema, seed, stream, thinking)
        status, text = post(self.server.port, path, body)
        return {"protocol": protocol, "stream": stream, "thinking": thinking, "schema": schema, "status": status, "text": text}

    def test_varied_schemas(self):
        with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
            replies = list(pool.map(self.ask, range(REQUESTS)))
        whole = 0
        for seed, reply in enumerate(replies):
            with self.subTest(seed=seed, **reply):
                self.assertEqual(reply["status"], 200)
                answer, cut = read(reply["protocol"], reply["stream"], reply["text"])
                if cut:
                    continue  # and said so
                whole += 1
                value = json.loads(answer)
                jsonschema.validate(value, reply["schema"], format_checker=jsonschema.FormatChecker())
        print(f"{len(replies)} requests, {whole} answers that were not cut, all valid")
        # A model that rambles is cut in its thinking; without thinking nearly every answer has an end.
        self.assertGreater(whole, REQUESTS // 3)

    def test_regular_expression_choice_and_grammar(self):
        def answer(**more):
            body = {"model": NAME, "messages": PROMPT, "thinking": {"type": "disabled"}, "max_tokens": 60} | more
            status, text = post(self.server.port, "/v1/chat/completions", body)
            self.assertEqual(status, 200, text)
            return json.loads(text)["choices"][0]["message"]["content"]

        for seed in range(5):
            self.assertRegex(answer(guided_regex="(yes|no), [0-9]{1,3}", seed=seed), re.compile(r"^(yes|no), [0-9]{1,3}$"))
            self.assertIn(answer(guided_choice=["red", "dark blue"], seed=seed), ["red", "dark blue"])
            self.assertIn(answer(structured_outputs={"grammar": 'start: "a" ("b" | "c")\n'}, seed=seed), ["ab", "ac"])

    def test_several_answers_have_a_grammar_each(self):
        body = {"model": NAME, "messages": PROMPT, "thinking": {"type": "disabled"}, "n": 4, "guided_regex": "[a-z]{3,9}"}
        status, text = post(self.server.port, "/v1/chat/completions", body)
        self.assertEqual(status, 200, text)
        for choice in json.loads(text)["choices"]:
            self.assertRegex(choice["message"]["content"], re.compile("^[a-z]{3,9}$"))

    def test_forced_calls(self):
        schema = {
            "type": "object", "additionalProperties": False, "required": ["city", "days"],
            "properties": {"city": {"type": "string", "enum": ["Oslo", "Bergen"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
        }
        tools = [{"type": "function", "function": {"name": "weather", "strict": True, "parameters": schema}}]
        for seed in range(12):
            body = {
                "model": NAME, "messages": PROMPT, "tools": tools, "tool_choice": "required", "seed": seed,
                "parallel_tool_calls": False, "max_tokens": MAX_TOKENS, "thinking": {"type": "disabled" if seed % 3 else "enabled"},
            }
            status, text = post(self.server.port, "/v1/chat/completions", body)
            self.assertEqual(status, 200, text)
            choice = json.loads(text)["choices"][0]
            if choice["finish_reason"] == "length":
                self.assertEqual(seed % 3, 0)
                continue
            self.assertEqual(choice["finish_reason"], "tool_calls")
            (call,) = choice["message"]["tool_calls"]
            self.assertEqual(call["function"]["name"], "weather")
            jsonschema.validate(json.loads(call["function"]["arguments"]), schema)

    def test_what_cannot_be_enforced_is_refused_by_name(self):
        def refusal(**more):
            body = {"model": NAME, "messages": PROMPT, "stream": True} | more
            status, text = post(self.server.port, "/v1/chat/completions", body)
            self.assertEqual(status, 400, text)
            return json.loads(text)["error"]["message"]

        self.assertIn("`not`", refusal(guided_json={"not": {"type": "null"}}))
        self.assertIn("oneOf", refusal(guided_json={"oneOf": [{"type": "integer"}, {"minimum": 3}]}))
        self.assertIn("regex", refusal(guided_regex="a("))
        refusal(guided_grammar="start: nothing")
        refusal(guided_json={"enum": [f"value {i}" for i in range(60_000)]})
        # The server goes on.
        self.test_regular_expression_choice_and_grammar()


if __name__ == "__main__":
    unittest.main()
