"""The loads of spec recipe 9.4, made from fixed seeds.

Sizes follow the spec: documents of 4,000 characters, a request of 4 turns with 6 tools in 11.1 kB, an
answer of 6.4 kB, a conversation of 77,000 tokens.
"""

import json
import random

DOCUMENT_CHARS = 4000
BODY_BYTES = 11_100
OUTPUT_BYTES = 6_400
CONVERSATION_TOKENS = 77_000
MODEL = "DeepSeek-V4-Pro"

WORDS = """the of and to in is that for with on as are this be from by at or an it which we can will each
other their time value list return number file path server request table index error message update window
system result process memory thread buffer packet network client branch commit field record column query
please could should would about between during before after because however number small large quick open
closed first second third last next left right early late simple complex stable current previous""".split()


def documents(text):
    return [text[i : i + DOCUMENT_CHARS] for i in range(0, len(text), DOCUMENT_CHARS)]


def prose(rng, size):
    """About `size` characters of sentences."""
    parts, have = [], 0
    while have < size:
        words = rng.choices(WORDS, k=rng.randint(5, 14))
        parts.append(" ".join(words).capitalize() + rng.choice([". ", ". ", "! ", "?\n"]))
        have += len(parts[-1])
    return "".join(parts)[:size].rstrip()


def code(rng, size):
    lines, have = [], 0
    while have < size:
        a, b, c = rng.sample(WORDS, 3)
        lines.append(
            rng.choice(
                [
                    f"def {a}_{b}({c}, limit={rng.randrange(100)}):\n    return {c}[:limit]\n",
                    f"for {a} in range({rng.randrange(1000)}):\n    {b}.append({a} * {rng.random():.3f})\n",
                    f"    if {a} is None or {b} > {rng.randrange(10_000)}:\n        raise ValueError('{c}')\n",
                ]
            )
        )
        have += len(lines[-1])
    return "".join(lines)


def listing(rng, size):
    """Hashes and numbers: many tokens, as in the output of tools."""
    lines, have = [], 0
    while have < size:
        lines.append(f"{rng.getrandbits(64):016x} {rng.randrange(10**6)} {rng.choice(WORDS)}.py\n")
        have += len(lines[-1])
    return "".join(lines)


def tool(rng, name):
    properties = {
        word: {
            "type": rng.choice(["string", "integer", "boolean", "number"]),
            "description": prose(rng, 40),
        }
        for word in rng.sample(WORDS, 5)
    }
    properties["mode"] = {"type": "string", "enum": ["fast", "exact", "both"]}
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": prose(rng, 150),
            "parameters": {
                "type": "object",
                "properties": properties,
                "required": sorted(properties)[:3],
            },
        },
    }


def request_body():
    """4 turns, 6 tools; the last message is padded until the body has BODY_BYTES."""
    rng = random.Random(1)
    names = ["search", "read_file", "write_file", "run", "list_files", "fetch"]
    messages = [{"role": "system", "content": prose(rng, 400)}]
    for turn in range(3):
        call = f"call_{turn:02d}_abcdefghijklmnopqrst1234"
        arguments = json.dumps({"path": f"src/{rng.choice(WORDS)}.py", "limit": rng.randrange(500)})
        messages += [
            {"role": "user", "content": prose(rng, 100)},
            {
                "role": "assistant",
                "content": prose(rng, 60),
                "reasoning_content": prose(rng, 100),
                "tool_calls": [
                    {
                        "id": call,
                        "type": "function",
                        "function": {"name": names[turn], "arguments": arguments},
                    }
                ],
            },
            {"role": "tool", "tool_call_id": call, "content": listing(rng, 1000)},
            {"role": "assistant", "content": prose(rng, 80), "reasoning_content": ""},
        ]
    body = {
        "model": MODEL,
        "stream": True,
        "messages": [*messages, {"role": "user", "content": ""}],
        "tools": [tool(rng, name) for name in names],
    }
    missing = BODY_BYTES - len(json.dumps(body))
    body["messages"][-1]["content"] = prose(rng, missing)
    return json.dumps(body)


def output_text():
    """Reasoning, an answer with code and Chinese, and two calls."""
    rng = random.Random(2)
    call = (
        '<｜DSML｜invoke name="write_file">\n'
        f'<｜DSML｜parameter name="path" string="true">src/{rng.choice(WORDS)}.py</｜DSML｜parameter>\n'
        f'<｜DSML｜parameter name="text" string="true">{code(rng, 500)}</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="limit" string="false">{"lines": 20, "bytes": 4096}</｜DSML｜parameter>\n'
        "</｜DSML｜invoke>\n"
    )
    calls = f"\n\n<｜DSML｜tool_calls>\n{call}{call}</｜DSML｜tool_calls>"
    chinese = "我们先看一下这个文件的内容，然后再决定怎么修改。" * 8
    answer = f"{prose(rng, 900)}\n\n```python\n{code(rng, 700)}```\n\n{chinese}\n"
    rest = OUTPUT_BYTES - len((answer + calls + "</think>").encode())
    return f"{prose(rng, rest)}</think>{answer}{calls}"


def conversation(documents_of_mix, document_count):
    """Turns of a user's and an assistant's document, taken evenly from the mix; and the same with one
    turn more."""
    step = len(documents_of_mix) // document_count
    roles = ("user", "assistant")
    messages = [
        {"role": roles[i % 2], "content": documents_of_mix[i * step]} for i in range(document_count)
    ]
    messages = messages[: len(messages) - 1 + len(messages) % 2]
    rng = random.Random(3)
    turn = [
        {"role": "assistant", "content": prose(rng, 1500)},
        {"role": "user", "content": prose(rng, 500)},
    ]

    def body(all_messages):
        return json.dumps(
            {
                "model": MODEL,
                "thinking": {"type": "disabled"},
                "messages": all_messages,
            }
        )

    return body(messages), body(messages + turn)
