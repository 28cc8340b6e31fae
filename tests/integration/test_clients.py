"""The protocols as their real clients see them: the Python packages `openai` and `anthropic`.

Method: one `galley serve` without a model (it repeats what was said), and one with scripted answers where
a tool is to be called. The clients read the replies with their own types: an event they do not know, or one
that is missing, fails here. Runs with plain `python3 test_clients.py`; needs GALLEY_BIN.
"""

import json
import os
import subprocess
import tempfile
import unittest

import anthropic
import openai
from test_serve import ANSWER, GALLEY, HELLO, MODEL, NO_THINKING, Server, curl

THOUGHT = "No model is loaded, so there is nothing to think about."
CALL = (
    "<｜DSML｜ calls><｜DSML｜ invoke name=\"weather\"><｜DSML｜ parameter name=\"city\" string=\"true\">Oslo"
    "</｜DSML｜ parameter></｜DSML｜ invoke></｜DSML｜ calls>"
)
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


class ClientsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server()
        cls.openai, cls.anthropic = clients(cls.server)

    @classmethod
    def tearDownClass(cls):
        cls.openai.close()
        cls.anthropic.close()
        code, _, err = cls.server.stop()
        assert code == 0, err

    def test_responses(self):
        reply = self.openai.responses.create(model=MODEL, input="Hello!", reasoning={"effort": "none"})
        self.assertEqual(reply.output_text, ANSWER)
        self.assertEqual(reply.status, "completed")
        self.assertEqual(reply.usage.total_tokens, reply.usage.input_tokens + reply.usage.output_tokens)

    def test_responses_streamed(self):
        with self.openai.responses.stream(model=MODEL, input="Hello!") as stream:
            kinds = [event.type for event in stream]
            final = stream.get_final_response()
        self.assertEqual((kinds[0], kinds[-1]), ("response.created", "response.completed"))
        self.assertGreater(kinds.count("response.output_text.delta"), 3)
        self.assertEqual(final.output_text, ANSWER)
        self.assertEqual([item.type for item in final.output], ["reasoning", "message"])

    def test_messages(self):
        reply = self.anthropic.messages.create(
            model=MODEL, max_tokens=100, messages=HELLO, thinking={"type": "disabled"}
        )
        self.assertEqual([(block.type, block.text) for block in reply.content], [("text", ANSWER)])
        self.assertEqual(reply.stop_reason, "end_turn")
        counted = self.anthropic.messages.count_tokens(
            model=MODEL, messages=HELLO, thinking={"type": "disabled"}
        )
        self.assertEqual(
            counted.input_tokens, reply.usage.input_tokens + reply.usage.cache_read_input_tokens
        )

    def test_messages_streamed(self):
        with self.anthropic.messages.stream(model=MODEL, max_tokens=100, messages=HELLO) as stream:
            text = "".join(stream.text_stream)
            final = stream.get_final_message()
        self.assertEqual(text, ANSWER)
        self.assertEqual([block.type for block in final.content], ["thinking", "text"])
        self.assertEqual(final.content[0].thinking, THOUGHT)
        self.assertTrue(final.content[0].signature)
        self.assertGreater(final.usage.output_tokens, 3)

    def test_messages_stop_sequences_and_length(self):
        off = {"type": "disabled"}
        stopped = self.anthropic.messages.create(
            model=MODEL, max_tokens=100, messages=HELLO, thinking=off, stop_sequences=["loaded"]
        )
        self.assertEqual((stopped.stop_reason, stopped.stop_sequence), ("stop_sequence", "loaded"))
        self.assertEqual(stopped.content[0].text, "No model is ")
        cut = self.anthropic.messages.create(model=MODEL, max_tokens=2, messages=HELLO, thinking=off)
        self.assertEqual((cut.stop_reason, cut.usage.output_tokens), ("max_tokens", 2))

    def test_errors_of_messages(self):
        with self.assertRaises(anthropic.BadRequestError) as caught:
            self.anthropic.messages.create(model="gpt-9", max_tokens=9, messages=HELLO)
        self.assertEqual(caught.exception.body["error"]["type"], "invalid_request_error")
        self.assertEqual(caught.exception.body["type"], "error")

    def test_completions(self):
        reply = self.openai.completions.create(model=MODEL, prompt="Hello!", echo=True, max_tokens=50)
        self.assertTrue(reply.choices[0].text.startswith("Hello!No model is loaded."))
        self.assertEqual(reply.choices[0].finish_reason, "stop")
        self.assertEqual(reply.object, "text_completion")
        gap = self.openai.completions.create(model=MODEL, prompt="def f(", suffix="): pass")
        self.assertGreater(gap.usage.prompt_tokens, 6)

    def test_completions_streamed(self):
        text, usage, reasons = "", None, []
        for chunk in self.openai.completions.create(
            model=MODEL, prompt="Hello!", stream=True, stream_options={"include_usage": True}
        ):
            usage = chunk.usage or usage
            text += "".join(choice.text for choice in chunk.choices)
            reasons += [choice.finish_reason for choice in chunk.choices if choice.finish_reason]
        self.assertTrue(text.startswith("No model is loaded."))
        self.assertEqual(reasons, ["stop"])
        self.assertGreater(usage.completion_tokens, 3)

    def test_one_answer_in_each_protocol(self):
        """The same conversation is the same prompt and the same answer, whoever asks."""
        chat = self.openai.chat.completions.create(model=MODEL, messages=HELLO, extra_body=NO_THINKING)
        responses = self.openai.responses.create(model=MODEL, input=HELLO, reasoning={"effort": "none"})
        messages = self.anthropic.messages.create(
            model=MODEL, max_tokens=100, messages=HELLO, thinking={"type": "disabled"}
        )
        texts = {chat.choices[0].message.content, responses.output_text, messages.content[0].text}
        self.assertEqual(texts, {ANSWER})
        usages = {
            (chat.usage.prompt_tokens, chat.usage.completion_tokens),
            (responses.usage.input_tokens, responses.usage.output_tokens),
            (messages.usage.input_tokens, messages.usage.output_tokens),
        }
        self.assertEqual(len(usages), 1, usages)

    def test_tokens(self):
        made = json.loads(curl(self.server.url + "/tokenize", "-d", json.dumps({"prompt": "Hello!"})))
        self.assertEqual(made["count"], len(made["tokens"]))
        back = curl(self.server.url + "/detokenize", "-d", json.dumps({"tokens": made["tokens"]}))
        self.assertEqual(json.loads(back), {"prompt": "Hello!"})


class KeysTest(unittest.TestCase):
    """API keys as both clients send them, from a file that `galley keys` wrote and from the environment."""

    def test_keys(self):
        made = subprocess.run([GALLEY, "keys", "new", "alice"], capture_output=True, text=True)
        key, line = (text.strip() for text in made.stdout.splitlines() if text.startswith("  "))
        self.assertRegex(key, r"^gk-[A-Za-z0-9]{40}$")
        self.assertNotIn(key, line)
        with tempfile.NamedTemporaryFile("w", suffix=".keys") as file:
            file.write(line + " requests=2\n")
            file.flush()
            server = Server(
                "--server.keys_file", file.name, env={**os.environ, "GALLEY_SERVER_KEY": "other"}
            )
        for right, wrong in ((key, key[:-1]), ("other", "")):
            for make in (clients, lambda server, key: reversed(clients(server, key))):
                first, second = make(server, right)
                self.assertEqual(len(list(first.models.list())), 3)
                first.close()
                second.close()
                first, second = make(server, wrong or "none")
                with self.assertRaises((openai.AuthenticationError, anthropic.AuthenticationError)):
                    first.models.list()
                first.close()
                second.close()
        chat, messages = clients(server, key)
        for _ in range(2):
            chat.chat.completions.create(model=MODEL, messages=HELLO, extra_body=NO_THINKING)
        with self.assertRaises(anthropic.RateLimitError) as caught:
            messages.messages.create(model=MODEL, max_tokens=9, messages=HELLO)
        self.assertEqual(caught.exception.body["error"]["type"], "rate_limit_error")
        self.assertIn("2 requests a minute", caught.exception.message)
        self.assertGreater(int(caught.exception.response.headers["retry-after"]), 25)
        chat.close()
        messages.close()
        code, _, err = server.stop()
        self.assertEqual(code, 0)
        self.assertIn("key=alice", err)
        self.assertNotIn(key, err)

    def test_bad_files_are_refused(self):
        for text, message in (("", "has no key"), ("alice 12\n", "line 1"), (None, "nowhere")):
            with tempfile.NamedTemporaryFile("w", suffix=".keys") as file:
                file.write(text or "")
                file.flush()
                path = "/nowhere" if text is None else file.name
                done = subprocess.run(
                    [GALLEY, "serve", "--server.port", "0", "--server.keys_file", path],
                    capture_output=True,
                    text=True,
                )
            self.assertEqual(done.returncode, 1, done)
            self.assertIn(message, done.stderr)


class ToolsTest(unittest.TestCase):
    """A scripted call of a tool, and the answer once its result was sent back."""

    def setUp(self):
        script = tempfile.NamedTemporaryFile("w", suffix=".jsonl")
        self.addCleanup(script.close)
        script.write(json.dumps({"text": "</think>" + CALL}) + "\n")
        script.write(json.dumps({"text": "</think>It rains."}) + "\n")
        script.flush()
        self.server = Server("--script", script.name)
        self.openai, self.anthropic = clients(self.server)

    def tearDown(self):
        self.openai.close()
        self.anthropic.close()
        self.assertEqual(self.server.stop()[0], 0)

    def test_chat(self):
        tools = [{"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}]
        history = [{"role": "user", "content": "Oslo?"}]
        with self.openai.chat.completions.stream(model=MODEL, messages=history, tools=tools) as stream:
            for _ in stream:
                pass
            choice = stream.get_final_completion().choices[0]
        self.assertEqual(choice.finish_reason, "tool_calls")
        call = choice.message.tool_calls[0]
        self.assertEqual(json.loads(call.function.arguments), {"city": "Oslo"})
        history += [
            choice.message.to_dict(),
            {"role": "tool", "tool_call_id": call.id, "content": "rain"},
        ]
        after = self.openai.chat.completions.create(model=MODEL, messages=history, tools=tools)
        self.assertEqual(after.choices[0].message.content, "It rains.")

    def test_responses(self):
        tools = [{"type": "function", "name": "weather", "parameters": SCHEMA, "strict": False}]
        history = [{"role": "user", "content": "Oslo?"}]
        with self.openai.responses.stream(model=MODEL, input=history, tools=tools) as stream:
            for _ in stream:
                pass
            output = stream.get_final_response().output
        call = output[-1]
        self.assertEqual((call.type, call.name), ("function_call", "weather"))
        self.assertEqual(json.loads(call.arguments), {"city": "Oslo"})
        history += [item.to_dict() for item in output]
        history.append({"type": "function_call_output", "call_id": call.call_id, "output": "rain"})
        after = self.openai.responses.create(model=MODEL, input=history, tools=tools)
        self.assertEqual(after.output_text, "It rains.")

    def test_messages(self):
        tools = [{"name": "weather", "input_schema": SCHEMA}]
        history = [{"role": "user", "content": "Oslo?"}]
        with self.anthropic.messages.stream(
            model=MODEL, max_tokens=99, messages=history, tools=tools
        ) as stream:
            for _ in stream:
                pass
            final = stream.get_final_message()
        self.assertEqual(final.stop_reason, "tool_use")
        call = final.content[-1]
        self.assertEqual((call.type, call.name, call.input), ("tool_use", "weather", {"city": "Oslo"}))
        history.append({"role": "assistant", "content": [block.to_dict() for block in final.content]})
        result = {"type": "tool_result", "tool_use_id": call.id, "content": "rain"}
        history.append({"role": "user", "content": [result]})
        after = self.anthropic.messages.create(
            model=MODEL, max_tokens=99, messages=history, tools=tools
        )
        self.assertEqual(after.content[-1].text, "It rains.")


def clients(server, key="none"):
    return (
        openai.OpenAI(base_url=server.url + "/v1", api_key=key, max_retries=0, timeout=10),
        anthropic.Anthropic(base_url=server.url, api_key=key, max_retries=0, timeout=10),
    )


if __name__ == "__main__":
    unittest.main()
