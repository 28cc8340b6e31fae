"""The written world and its generator, without torch: facts agree with each other, the two splits share nothing, the prompt layout is
byte for byte that of the family, seeds reproduce."""

import json
import re
from pathlib import Path

import pytest

import prompt
import tasks
import world

MIX = {kind: 1 for kind in tasks.KINDS if kind != "needle_long"}
TRAIN = [tasks.sample("test", i, MIX) for i in range(2500)]


def text_of(conv):
    return "".join(text for text, _ in prompt.render(conv))


def test_size_of_the_world():
    assert len(world.facts()) + len(world.chat()) + len(world.refusals()) >= 2000
    assert len(world.plots()) - 2 >= 20
    assert len(world.tools("train")) + len(world.tools("test")) >= 30


def test_no_question_has_two_answers():
    answers = {}
    for phrases, answer in world.facts() + [(p, " || ".join(a)) for p, a in world.chat()]:
        for phrase in phrases:
            assert answers.setdefault(phrase.lower(), answer) == answer, phrase


def test_texts_are_clean():
    for phrases, answer in world.facts():
        assert answer[-1] in ".!?" and answer[0] == answer[0].upper(), answer
        assert all(not p.endswith(("?", ".", " ")) and "  " not in p for p in phrases), phrases
    for kind in MIX:
        for i in range(20):
            for split in (tasks.sample("clean", i, {kind: 1}), tasks.test_sample(kind, i)):
                for m in split["messages"]:
                    assert not re.search(r"\{[a-z_]+\}(?!\")", m["content"]), m["content"]
    for name in list(world.plots())[2:]:
        import random

        slots, text = tasks.story(tasks.Draw(random.Random(1), "train"), name)
        assert "{" not in text and "(" not in text and slots["n"] in text


def test_held_out_words_never_occur_in_training():
    words = set(re.findall(r"\w+", " ".join(text_of(c) for c in TRAIN)))
    single = [w for w in world.held_out_words() if re.fullmatch(r"\w+", w)]
    assert len(single) > 60
    assert not words & set(single)
    everything = "\n".join(text_of(c) for c in TRAIN)
    assert not [w for w in world.held_out_words() if " " in w and w in everything]


def test_held_out_tools_never_occur_in_training():
    names = {t["name"] for c in TRAIN for t in c.get("tools", ())} - {"calculator"}
    assert len(names) > 100
    assert all(world.tool_split(n) == "train" for n in names)
    unseen = {t["name"] for i in range(100) for t in tasks.test_sample("tool", i)["tools"]} - {"calculator"}
    assert len(unseen) > 20 and not unseen & names


def test_numbers_and_wordings_are_split():
    for conv in TRAIN:
        if conv["kind"] == "needle":
            codes = re.findall(r"(?:number|code) of the \w+ is (\d+)", text_of(conv))
            assert codes and all(world.number_split(int(c)) == "train" for c in codes)
        if conv["kind"] == "think":
            a, b = map(int, re.search(r"So (\d+) \+ (\d+)", text_of(conv)).groups())
            assert world.number_split(a, b) == "train"
        if conv["kind"] == "fact":
            assert world.phrase_split(conv["messages"][-2]["content"]) == "train"
    for i in range(50):
        assert world.phrase_split(tasks.test_sample("fact", i)["messages"][-2]["content"]) == "test"


def test_both_splits_ask_what_they_should():
    for kind in MIX:
        for i in range(30):
            conv = tasks.test_sample(kind, i)
            assert conv["messages"][-1]["role"] == "assistant"
            assert prompt.render(conv)[-1][1]


def test_seeds_reproduce():
    assert TRAIN[:100] == [tasks.sample("test", i, MIX) for i in range(100)]
    assert tasks.sample("other", 0, MIX) != TRAIN[0]


def test_sums_are_right():
    for conv in TRAIN:
        if conv["kind"] in ("arith", "think"):
            m = re.fullmatch(r"(\d+) ([-+*]) (\d+) = (\d+)", conv["messages"][-1]["content"])
            if m:
                a, op, b, c = m.groups()
                assert {"+": int(a) + int(b), "-": int(a) - int(b), "*": int(a) * int(b)}[op] == int(c)


def test_json_answers_hold_their_schema():
    for conv in TRAIN:
        if conv["kind"] == "json":
            value = json.loads(conv["messages"][-1]["content"])
            if isinstance(conv["format"], dict):
                assert list(value) == conv["format"]["required"]


# ---- prompt layout ------------------------------------------------------------------------------------------------------


def test_plain_chat():
    conv = {"messages": [{"role": "user", "content": "Hi"}]}
    assert text_of(conv) == "<｜begin▁of▁sentence｜><｜User｜>Hi<｜Assistant｜></think>"
    conv["messages"].append({"role": "assistant", "content": "Hello!", "reasoning": "dropped"})
    assert text_of(conv) == "<｜begin▁of▁sentence｜><｜User｜>Hi<｜Assistant｜></think>Hello!<｜end▁of▁sentence｜>"


def test_thinking_keeps_only_the_last_reasoning():
    messages = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b", "reasoning": "x"},
        {"role": "user", "content": "c"},
        {"role": "assistant", "content": "d", "reasoning": "y"},
    ]
    assert text_of({"messages": messages, "thinking": True, "effort": 50}) == (
        "<｜begin▁of▁sentence｜><｜System｜>Reasoning Effort: 50 (range 1-100, the higher the value, the more thorough the reasoning)\n\n"
        "<｜User｜>a<｜Assistant｜></think>b<｜end▁of▁sentence｜><｜User｜>c<｜Assistant｜><think>y</think>d<｜end▁of▁sentence｜>"
    )


def test_tools_and_results():
    schema = world.tool_schema("t", "Do it.", {"k": "string", "n": "integer"})
    messages = [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": "", "reasoning": "r", "calls": [("t", {"k": "v", "n": 3}), ("t", {})]},
        {"role": "tool", "content": "one"},
        {"role": "tool", "content": "two"},
    ]
    text = text_of({"messages": messages, "tools": [schema], "thinking": True, "effort": 75})
    assert "the reasoning)\n\n\n\n## Tools\n\nYou have access" in text
    assert (
        '\n\n{"name": "t", "description": "Do it.", "parameters": {"type": "object", "properties": {"k": {"type": "string"}'
        in text
    )
    assert text.endswith(
        'invoke tool calls.\n<｜User｜>go<｜Assistant｜><think>r</think>\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name="t">\n'
        '<｜DSML｜ parameter name="k" string="true">v</｜DSML｜ parameter>\n<｜DSML｜ parameter name="n" string="false">3</｜DSML｜ parameter>\n'
        '</｜DSML｜ invoke>\n<｜DSML｜ invoke name="t">\n\n</｜DSML｜ invoke>\n</｜DSML｜ calls><｜end▁of▁sentence｜>'
        "<｜User｜><tool_result>one</tool_result>\n\n<tool_result>two</tool_result><｜Assistant｜><think>"
    )


def test_json_mode_has_an_empty_system_turn():
    assert text_of({"messages": [{"role": "user", "content": "x"}], "format": "json_object"}) == (
        "<｜begin▁of▁sentence｜><｜System｜>\n\n## Response Format:\n\nYou MUST strictly adhere to the following schema to reply:\n"
        '{"type": "json_object"}<｜User｜>x<｜Assistant｜></think>'
    )


def test_every_sample_round_trips_through_the_tokenizer():
    tokenizers = pytest.importorskip("tokenizers")
    tok = tokenizers.Tokenizer.from_file(str(Path(__file__).parent / "tokenizer.json"))
    assert [tok.token_to_id(c) for c in prompt.LOW_CONTROLS] == [0, 1, 2]
    assert [tok.token_to_id(c) for c in prompt.HIGH_CONTROLS] == list(range(4078, 4096))
    for conv in TRAIN[:600]:
        text = text_of(conv)
        ids = tok.encode(text, add_special_tokens=False).ids
        assert tok.decode(ids, skip_special_tokens=False) == text
        # Training encodes turn by turn, serving the whole prompt at once: the same tokens.
        pieces = [i for t, _ in prompt.render(conv) for i in tok.encode(t, add_special_tokens=False).ids]
        assert pieces == ids
