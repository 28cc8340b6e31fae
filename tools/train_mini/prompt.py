"""The DeepSeek-V4.1 prompt layout, as the engine renders it: what the model reads while training is byte for byte what it
reads when served.  A conversation is a dict:

  messages   [{"role": "system" | "user" | "tool", "content"}, or {"role": "assistant", "content", "reasoning", "calls"}]
             with calls = [(name, {argument: value})]
  tools      schemas ({"name", "description", "parameters"})
  thinking   bool;  effort  1..100
  format     None, "json_object" or a JSON schema
"""

import json

BOS, EOS, PAD = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>"
SYSTEM, USER, ASSISTANT = "<｜System｜>", "<｜User｜>", "<｜Assistant｜>"
THINK, END_THINK = "<think>", "</think>"
DSML = "｜DSML｜"

# Ids 0..2, and the last 18 ids in this order, as in the released tokenizer.
LOW_CONTROLS = [BOS, EOS, PAD]
HIGH_CONTROLS = [
    SYSTEM,
    "<｜fim▁hole｜>",
    "<｜fim▁begin｜>",
    "<｜fim▁end｜>",
    USER,
    ASSISTANT,
    "<|EOT|>",
    THINK,
    END_THINK,
    DSML,
    "<｜latest_reminder｜>",
    "<｜action｜>",
    "<｜query｜>",
    "<｜authority｜>",
    "<｜domain｜>",
    "<｜title｜>",
    "<｜read_url｜>",
    "<｜deepseek_image｜>",
]

TOOLS_HEAD = f"""## Tools

You have access to a set of tools to help answer the user's question. You can invoke tools by writing a "<{DSML} calls>" block like the following:

<{DSML} calls>
<{DSML} invoke name="$TOOL_NAME">
<{DSML} parameter name="$PARAMETER_NAME" string="true|false">$PARAMETER_VALUE</{DSML} parameter>
...
</{DSML} invoke>
<{DSML} invoke name="$TOOL_NAME2">
...
</{DSML} invoke>
</{DSML} calls>

String parameters should be specified as is and set `string="true"`. For all other types (numbers, booleans, arrays, objects), pass the value in JSON format and set `string="false"`.

If thinking_mode is enabled (triggered by <think>), you MUST output your complete reasoning inside <think>...</think> BEFORE any tool calls or final response.

Otherwise, output directly after </think> with tool calls or final response.

### Available Tool Schemas

"""
TOOLS_TAIL = "\n\nYou MUST strictly follow the above defined tool name and parameter schemas to invoke tool calls.\n"
FORMAT_HEAD = "\n\n## Response Format:\n\nYou MUST strictly adhere to the following schema to reply:\n"


def json_text(value):
    return json.dumps(value, ensure_ascii=False)


def effort_text(effort):
    return f"Reasoning Effort: {effort} (range 1-100, the higher the value, the more thorough the reasoning)\n\n"


def calls_text(calls):
    """The DSML block; string values raw, everything else as JSON; a call without arguments has one empty line."""
    blocks = []
    for name, args in calls:
        params = [
            f'<{DSML} parameter name="{k}" string="true">{v}</{DSML} parameter>'
            if isinstance(v, str)
            else f'<{DSML} parameter name="{k}" string="false">{json_text(v)}</{DSML} parameter>'
            for k, v in args.items()
        ]
        blocks.append(f'<{DSML} invoke name="{name}">\n' + "\n".join(params) + f"\n</{DSML} invoke>")
    return f"<{DSML} calls>\n" + "\n".join(blocks) + f"\n</{DSML} calls>"


def answer_text(message):
    """What the model writes for a turn after its reasoning, without the end token."""
    calls = message.get("calls")
    return message.get("content", "") + ("\n\n" + calls_text(calls) if calls else "")


def render(conv):
    """[(text, is_target)], alternating; targets are the assistant's bytes after each turn's header.  A conversation that ends
    with anything but an assistant turn renders to one prompt that ends with the header of the next turn."""
    messages = [dict(m) for m in conv["messages"]]
    tools, thinking, form = conv.get("tools") or [], conv.get("thinking", False), conv.get("format")
    if (tools or form) and messages[0]["role"] != "system":
        messages.insert(0, {"role": "system", "content": ""})
    if tools:
        messages[0]["content"] += "\n\n" + TOOLS_HEAD + "\n".join(map(json_text, tools)) + TOOLS_TAIL
    if form:
        messages[0]["content"] += FORMAT_HEAD + json_text({"type": "json_object"} if form == "json_object" else form)

    segments, text, last = [], BOS, len(messages) - 1
    if thinking:
        text += SYSTEM + effort_text(conv.get("effort", 75))
    elif messages[0]["role"] == "system":
        text += SYSTEM
    before = None
    for i, m in enumerate(messages):
        role = m["role"]
        if role == "system":
            text += (SYSTEM if i else "") + m["content"]
        elif role in ("user", "tool"):
            text += "\n\n" if before in ("user", "tool") else USER
            text += m["content"] if role == "user" else f"<tool_result>{m['content']}</tool_result>"
        else:
            # Without tools the reasoning of earlier turns is dropped; the last turn is the one being generated.
            open_think = thinking and (bool(tools) or i == last)
            segments.append((text + ASSISTANT + (THINK if open_think else END_THINK), False))
            reasoning = m.get("reasoning", "") + END_THINK if open_think else ""
            segments.append((reasoning + answer_text(m) + EOS, True))
            text = ""
        before = role
    if text:
        segments.append((text + ASSISTANT + (THINK if thinking else END_THINK), False))
    return segments
