"""Goal: the Python package converts values, errors and threads rightly, and its stubs tell the truth.

Method: small requests through the small vocabulary of the C++ tests. What the codec answers is tested
in src/recipe; here only what crosses into Python.
"""

import ast
import inspect
import json
import pathlib
import pickle
import subprocess
import sys
import threading

import pytest

import galley
from galley import recipe
from galley.recipe import Options, Reply, Request, RequestError, Tokenizer

ROOT = pathlib.Path(__file__).resolve().parents[2]
VOCABULARY = ROOT / "tests" / "data" / "small_tokenizer.json"
USER = "<｜User｜>"


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.from_file(str(VOCABULARY))


def chat(**fields):
    body = {"model": "mine", "messages": [{"role": "user", "content": "Hi"}], **fields}
    return Request.parse("chat", json.dumps(body), Options(models={"mine": "v4.1"}))


def events(stream):
    frames = stream.decode().split("\n\n")
    assert frames[-1] == ""
    assert frames[-2] == "data: [DONE]"
    return [json.loads(frame.removeprefix("data: ")) for frame in frames[:-2]]


def test_tokenizer_round_trip(tokenizer):
    text = "Hello wörld, 你好"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.decode(tuple(tokenizer.encode(text))) == text
    assert tokenizer.encode("") == []
    assert max(tokenizer.encode(text)) < tokenizer.vocabulary_size


def test_text_never_becomes_a_control_token(tokenizer):
    user = tokenizer.find_added(USER)
    assert user not in tokenizer.encode(USER)
    assert tokenizer.encode(USER, added=True) == [user]
    assert tokenizer.find_added("<nothing>") is None


def test_loading_errors():
    with pytest.raises(FileNotFoundError):
        Tokenizer.from_file("/nowhere/tokenizer.json")
    with pytest.raises(ValueError):
        Tokenizer.from_json("{}")


def test_rename():
    renamed = Tokenizer.from_json(VOCABULARY.read_text(encoding="utf-8"), rename={0: "<first>"})
    assert renamed.find_added("<first>") == 0
    with pytest.raises(ValueError, match="begin▁of▁sentence"):
        chat().token_ids(renamed)


@pytest.mark.parametrize("bad", [-1, 2**32, 2**70])
def test_ids_have_32_bits(tokenizer, bad):
    with pytest.raises((OverflowError, TypeError)):
        tokenizer.decode([bad])
    with pytest.raises((OverflowError, TypeError)):
        Reply(chat(), tokenizer).feed(bad)


def test_request_values(tokenizer):
    request = chat(temperature=0.5, seed=7, stop=["END"], stream=True, user_id="someone")
    assert (request.protocol, request.model, request.version) == ("chat", "mine", "v4.1")
    assert request.stream is True
    assert request.user == "someone"
    assert request.sampling.temperature == 0.5
    assert request.sampling.seed == 7
    assert request.sampling.top_k is None
    assert request.constraint is None
    assert request.stop_ids(tokenizer) == [1]
    assert request.max_tokens(10) == 65536
    assert request.max_tokens(10, context_tokens=30) == 20
    assert isinstance(request.notes, list)


def test_body_may_be_text_or_bytes():
    body = '{"model":"mine","messages":[{"role":"user","content":"ö"}]}'
    options = Options(models={"mine": "v4"})
    assert (
        Request.parse("chat", body, options).render().text
        == Request.parse("chat", body.encode(), options).render().text
    )
    with pytest.raises(TypeError):
        Request.parse("chat", 7, options)


def test_constraint():
    request = chat(
        messages=[{"role": "user", "content": "Answer in JSON."}],
        response_format={"type": "json_object"},
    )
    kind, text = request.constraint
    assert kind == "json"
    assert isinstance(text, str)


@pytest.mark.parametrize(
    ("protocol", "body"),
    [
        ("chat", {"messages": [{"role": "user", "content": 7}]}),
        ("messages", {"max_tokens": 5, "messages": [{"role": "user", "content": 7}]}),
        ("responses", {"input": 7}),
    ],
)
def test_request_error_is_the_whole_answer(protocol, body):
    with pytest.raises(RequestError) as caught:
        Request.parse(protocol, json.dumps({"model": "DeepSeek-V4.1-Flash", **body}))
    error = caught.value
    assert isinstance(error, ValueError)
    assert (error.status, error.code) == (400, "invalid_argument")
    assert error.where
    assert str(error) in json.loads(error.body)["error"]["message"]
    assert pickle.loads(pickle.dumps(error)).body == error.body


def test_context_overflow():
    with pytest.raises(RequestError, match="maximum context length is 20 tokens"):
        chat(max_tokens=50).max_tokens(10, context_tokens=20)


def test_unknown_names():
    for call in (
        lambda: Request.parse("smtp", "{}"),
        lambda: Options(models={"a": "v3"}),
        lambda: Options(compat="none"),
        lambda: Reply(chat()).finish("because"),
        lambda: Reply(chat()).fail("a", code="nothing"),
    ):
        with pytest.raises(ValueError, match="no such"):
            call()


def test_prompt(tokenizer):
    request = Request.parse(
        "chat",
        json.dumps({"model": "mine", "messages": [{"role": "user", "content": f"Say {USER}"}]}),
        Options(models={"mine": "v4.1"}),
    )
    prompt = request.render()
    text = prompt.text.encode()
    spelled = [text[span.begin : span.end].decode() for span in prompt.controls]
    assert spelled.count(USER) == 1
    assert prompt.text.count(USER) == 2
    ids = prompt.token_ids(tokenizer)
    assert ids == request.token_ids(tokenizer)
    assert tokenizer.decode(ids) == prompt.text
    assert prompt.images == []


def test_images():
    image = {"type": "image_url", "image_url": {"url": "https://example.org/a", "detail": "low"}}
    prompt = chat(messages=[{"role": "user", "content": [image]}]).render()
    (found,) = prompt.images
    assert (found.is_data_url, found.detail) == (False, "low")
    assert found.reference == "https://example.org/a"
    assert "messages[0]" in found.path
    assert recipe.image_tokens(640, 480) == 206
    with pytest.raises(ValueError):
        recipe.image_tokens(0, 1)


def test_fim(tokenizer):
    prompt = recipe.render_fim("def f(", "): pass")
    assert "def f(" in prompt.text
    assert tokenizer.find_added("<｜fim▁hole｜>") in prompt.token_ids(tokenizer)


OUTPUT = "why not</think>Hello there"


def test_whole_reply_does_not_depend_on_grouping(tokenizer):
    ids = tokenizer.encode(OUTPUT, added=True)
    bodies = []
    for chunks in (ids, [ids], [ids[:1], tuple(ids[1:])]):
        reply = Reply(chat(), tokenizer, id="r", created=5, seed=9)
        assert reply.start(12, cached_tokens=3, fingerprint="fp") == b""
        assert all(reply.feed(chunk) == b"" for chunk in chunks)
        bodies.append(reply.finish())
    assert bodies[0] == bodies[1] == bodies[2]
    body = json.loads(bodies[0])
    assert (body["id"], body["created"], body["system_fingerprint"]) == ("r", 5, "fp")
    message = body["choices"][0]["message"]
    assert message["reasoning_content"] == "why not"
    assert message["content"] == "Hello there"
    assert body["usage"]["prompt_tokens"] == 12
    assert body["usage"]["completion_tokens"] == len(ids)


def test_streamed_reply(tokenizer):
    reply = Reply(chat(stream=True), tokenizer)
    stream = b"".join(reply.feed(token) for token in tokenizer.encode(OUTPUT, added=True))
    stream += reply.finish("length")
    chunks = events(stream)
    text = "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks)
    assert text == "Hello there"
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"
    assert chunks[0]["id"].startswith("chatcmpl-")
    with pytest.raises(ValueError, match="has ended"):
        reply.finish()


def test_stream_flag_overrides_the_request(tokenizer):
    assert json.loads(Reply(chat(stream=True), tokenizer, stream=False).finish())
    assert events(Reply(chat(), tokenizer, stream=True).finish())


def test_seed_repeats_generated_ids(tokenizer):
    def run(**options):
        return Reply(chat(), tokenizer, created=1, **options).finish()

    assert run(seed=3) == run(seed=3)
    assert run(seed=3) != run(seed=4)
    assert run() != run()


def test_text_reply_and_stop_string():
    reply = Reply(chat(stop=["END"]))
    reply.feed("</think>one EN", count=4)
    assert not reply.finished
    reply.feed(b"D two")
    assert reply.finished
    body = json.loads(reply.fail("the engine broke"))
    assert body["choices"][0]["message"]["content"] == "one "
    assert body["choices"][0]["finish_reason"] == "stop"


def test_feeding_the_wrong_kind(tokenizer):
    with pytest.raises(ValueError):
        Reply(chat()).feed([1])
    with pytest.raises(ValueError):
        Reply(chat(), tokenizer).feed("text")
    with pytest.raises(ValueError):
        Reply(chat(), tokenizer).feed([1], count=3)
    with pytest.raises(ValueError):
        Reply(chat(), tokenizer).feed([1, 2], logprobs=[(-0.5, [])])
    with pytest.raises(TypeError):
        Reply(chat(), tokenizer).feed(1.5)
    with pytest.raises(TypeError):
        Reply(chat(), tokenizer).feed(["a"])


def test_logprobs(tokenizer):
    request = chat(logprobs=True, top_logprobs=1, thinking={"type": "disabled"})
    (token,) = tokenizer.encode("a")
    reply = Reply(request, tokenizer)
    reply.feed(token, logprobs=[(-0.25, [(token, -0.25)])])
    (entry,) = json.loads(reply.finish())["choices"][0]["logprobs"]["content"]
    assert (entry["token"], entry["logprob"]) == ("a", -0.25)
    assert entry["top_logprobs"][0]["token"] == "a"


def test_failed_stream(tokenizer):
    reply = Reply(chat(), tokenizer, stream=True)
    assert reply.keep_alive().startswith(b":")
    end = reply.fail("engine is gone", code="unavailable")
    assert b"engine is gone" in end
    assert b"[DONE]" not in end


def test_error_body():
    status, body = recipe.error_body("messages", "try later", code="overloaded")
    assert status == 429
    assert json.loads(body)["error"]["type"] == "rate_limit_error"


def test_threads_share_a_tokenizer(tokenizer):
    request = chat(messages=[{"role": "user", "content": "word " * 2000}])
    wanted = request.token_ids(tokenizer)
    results = []
    threads = [
        threading.Thread(target=lambda: results.append(request.token_ids(tokenizer)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [wanted] * 4


def test_example_runs():
    result = subprocess.run(
        [sys.executable, ROOT / "examples" / "recipe.py", VOCABULARY],
        capture_output=True,
        check=True,
    )
    chunks = events(result.stdout)
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"


def test_readme_shows_the_example():
    example = (ROOT / "examples" / "recipe.py").read_text(encoding="utf-8").strip()
    assert f"```python\n{example}\n```" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_stubs_name_everything():
    package = pathlib.Path(galley.__file__).parent
    assert (package / "py.typed").exists()
    stub = ast.parse((package / "recipe" / "_native.pyi").read_text(encoding="utf-8"))
    typed = {node.name: node for node in stub.body if isinstance(node, (ast.ClassDef, ast.FunctionDef))}
    for name in recipe.__all__:
        thing = getattr(recipe, name)
        assert inspect.getdoc(thing), name
        if thing.__module__ != "galley.recipe._native":
            continue
        assert name in typed, name
        if isinstance(thing, type):
            members = {node.name for node in typed[name].body if isinstance(node, ast.FunctionDef)}
            public = {member for member in vars(thing) if not member.startswith("_")}
            assert public == members - {"__init__"}, name
