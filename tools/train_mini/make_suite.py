"""Writes the evaluation suite that ships with the model: unseen conversations with the answers that count as right.

    python make_suite.py OUT.jsonl [SAMPLES_PER_KIND]

One JSON object a line:
  kind      chat, fact, ... (tasks.py); "needle_long" = needles in up to about 2,000 tokens
  request   body of a chat completion: messages, tools, response_format, thinking, reasoning_effort
  expect    "text": the exact answer, and, where given, "reasoning"; or "calls": the tool calls; or "contains": words that a story must hold
"""

import json
import sys

import prompt
import tasks

EFFORT = {50: "low", 75: "high", 100: "max"}


def chat_message(m, number):
    """A history message in the shape of the chat API."""
    if m["role"] == "tool":
        return {"role": "tool", "tool_call_id": f"call_{number}", "content": m["content"]}
    out = {"role": m["role"], "content": m["content"]}
    if m.get("reasoning"):
        out["reasoning_content"] = m["reasoning"]
    return out


def entry(kind, index):
    conv = tasks.test_sample(kind, index)
    messages = conv["messages"]
    # The call itself is the question of the tool kind, so what follows it is cut off.
    end = next((i for i, m in enumerate(messages) if m.get("calls")), len(messages) - 1)
    answer = messages[end]
    request = {"messages": [chat_message(m, i) for i, m in enumerate(messages[:end])]}
    if conv.get("tools"):
        request["tools"] = [{"type": "function", "function": t} for t in conv["tools"]]
    if conv.get("format"):
        form = conv["format"]
        request["response_format"] = (
            {"type": "json_object"}
            if form == "json_object"
            else {"type": "json_schema", "json_schema": {"name": "answer", "schema": form}}
        )
    request["thinking"] = {"type": "enabled" if conv.get("thinking") else "disabled"}
    if conv.get("thinking"):
        request["reasoning_effort"] = EFFORT[conv["effort"]]
    if answer.get("calls"):
        expect = {"calls": [{"name": n, "arguments": a} for n, a in answer["calls"]]}
    elif "accept" in conv:
        expect = {"contains": conv["accept"]}
    else:
        expect = {"text": prompt.answer_text(answer)}
        if kind == "think":
            expect["reasoning"] = answer["reasoning"]
    return {"kind": kind, "request": request, "expect": expect}


def main():
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 200
    with open(sys.argv[1], "w", encoding="utf-8") as out:
        for kind in tasks.KINDS:
            for i in range(count if kind != "needle_long" else count // 2):
                out.write(json.dumps(entry(kind, i), ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
