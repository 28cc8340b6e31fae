#!/usr/bin/env python3
"""Galley beside llama.cpp, one run, one machine, at equal bytes of weights a token.

    bench/model/peer.py DIR [--prompt 512] [--steps 48] [--rounds 5] [--threads N]

DIR is a packed checkpoint, for example of `galley model synth` and `galley model pack`. Makes a virtual environment
with the pinned peer, writes a random mixture of experts of as many bytes a token as GGUF (Q4_0 experts, Q8_0 for the
rest; build/bench/peer/), and measures both in turns: prefill of a prompt, then decoding behind it. Prints medians and
ratios. The wheel of llama.cpp is built for any x86-64 machine; what it may use of this one is printed with them.
"""

import argparse
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import venv

ROOT = pathlib.Path(__file__).resolve().parents[2]
HERE = ROOT / "bench" / "model"
WORK = ROOT / "build" / "bench" / "peer"
BENCH = ROOT / "build" / "release" / "bench" / "model" / "model_bench"

# Shape of the peer's model; as many layers as bring its bytes a token near ours.
HIDDEN, HEADS, KV_HEADS, HEAD_DIM = 2048, 32, 8, 64
EXPERTS, USED, INTERMEDIATE, VOCABULARY = 32, 6, 768, 32_000
ATTENTION = 2 * HEADS * HEAD_DIM * HIDDEN + 2 * KV_HEADS * HEAD_DIM * HIDDEN  # q, output, k, v


def prepare():
    """Makes the environment and the bench, then runs this file again inside."""
    python = WORK / "venv" / "bin" / "python"
    if not python.exists():
        venv.create(WORK / "venv", with_pip=True)
    install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*install, "-r", HERE / "requirements.txt"], check=True)
    for command in (
        ["--preset", "release", "-DGALLEY_BENCH=ON"],
        ["--build", "--preset", "release", "--target", "model_bench"],
    ):
        subprocess.run(["cmake", *command], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    os.execv(python, [python, __file__, *sys.argv[1:], "--prepared"])


def q4_bytes(values):
    return values * 18 // 32


def q8_bytes(values):
    return values * 34 // 32


def token_bytes(layers):
    """Of weights that the peer reads for a token: attention, router in float32, chosen experts; the head."""
    layer = q8_bytes(ATTENTION) + 4 * EXPERTS * HIDDEN + USED * 3 * q4_bytes(INTERMEDIATE * HIDDEN)
    return layers * layer + q8_bytes(VOCABULARY * HIDDEN)


def write_model(path, layers):
    import gguf
    import numpy as np

    numbers = np.random.default_rng(1)
    writer = gguf.GGUFWriter(path, "qwen3moe")
    writer.add_context_length(8192)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(INTERMEDIATE)
    writer.add_expert_feed_forward_length(INTERMEDIATE)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(HEAD_DIM)
    writer.add_value_length(HEAD_DIM)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(1e6)
    writer.add_expert_count(EXPERTS)
    writer.add_expert_used_count(USED)
    writer.add_vocab_size(VOCABULARY)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([f"t{i}" for i in range(VOCABULARY)])
    writer.add_token_types([1] * VOCABULARY)
    writer.add_token_merges(["t 1"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)

    def norm(name, width):
        writer.add_tensor(name, np.ones(width, np.float32))

    def quantised(name, shape, kind):
        block, size = gguf.GGML_QUANT_SIZES[kind]
        rows, blocks = int(np.prod(shape[:-1])), shape[-1] // block
        data = numbers.integers(0, 256, (rows, blocks, size), dtype=np.uint8)
        scale = np.full((rows, blocks), 0.004 if kind == gguf.GGMLQuantizationType.Q4_0 else 0.0003, np.float16)
        data[:, :, :2] = scale.view(np.uint8).reshape(rows, blocks, 2)
        writer.add_tensor(name, data.reshape(*shape[:-1], blocks * size), raw_dtype=kind)

    q4, q8 = gguf.GGMLQuantizationType.Q4_0, gguf.GGMLQuantizationType.Q8_0
    quantised("token_embd.weight", (VOCABULARY, HIDDEN), q8)
    quantised("output.weight", (VOCABULARY, HIDDEN), q8)
    norm("output_norm.weight", HIDDEN)
    for layer in range(layers):
        block = f"blk.{layer}."
        for name, width in (
            ("attn_norm", HIDDEN),
            ("ffn_norm", HIDDEN),
            ("attn_q_norm", HEAD_DIM),
            ("attn_k_norm", HEAD_DIM),
        ):
            norm(f"{block}{name}.weight", width)
        for name, shape in (
            ("attn_q", (HEADS * HEAD_DIM, HIDDEN)),
            ("attn_k", (KV_HEADS * HEAD_DIM, HIDDEN)),
            ("attn_v", (KV_HEADS * HEAD_DIM, HIDDEN)),
            ("attn_output", (HIDDEN, HEADS * HEAD_DIM)),
        ):
            quantised(f"{block}{name}.weight", shape, q8)
        router = numbers.standard_normal((EXPERTS, HIDDEN), dtype=np.float32) * np.float32(0.02)
        writer.add_tensor(f"{block}ffn_gate_inp.weight", router)
        for name, shape in (
            ("gate", (EXPERTS, INTERMEDIATE, HIDDEN)),
            ("up", (EXPERTS, INTERMEDIATE, HIDDEN)),
            ("down", (EXPERTS, HIDDEN, INTERMEDIATE)),
        ):
            quantised(f"{block}ffn_{name}_exps.weight", shape, q4)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


class Galley:
    name = "galley"

    def __init__(self, options):
        self.command = [BENCH, options.directory, "--json", "--rounds", "1"]
        self.command += ["--prompt", options.prompt, "--steps", options.steps, "--threads", options.threads]
        self.bytes = self.run()["step_bytes"]

    def run(self):
        return json.loads(subprocess.run([str(word) for word in self.command], check=True, stdout=subprocess.PIPE).stdout)

    def round(self):
        """(prefill, decode), tokens a second. Every prompt token runs through every layer, as in the peer."""
        result = self.run()
        return next(line["rate"] for line in result["prefill"] if not line["cut"]), result["decode"][0]["rate"]


class LlamaCpp:
    name = "llama.cpp"

    def __init__(self, options, path):
        import xllamacpp

        params = xllamacpp.CommonParams()
        params.model.path = str(path)
        params.n_ctx = params.n_batch = options.prompt + options.steps + 16
        params.n_ubatch = 512
        params.n_parallel = 1
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = options.threads
        params.verbosity = -1
        self.options = options
        self.uses = xllamacpp.get_system_info()
        self.server = xllamacpp.Server(params)
        self.random = random.Random(1)

    def round(self):
        answer = self.server.handle_completions(
            {
                "prompt": [self.random.randrange(2, VOCABULARY) for _ in range(self.options.prompt)],
                "n_predict": self.options.steps,
                "temperature": 0,
                "ignore_eos": True,
                "cache_prompt": False,
            }
        )
        timings = answer["timings"]
        return timings["prompt_per_second"], timings["predicted_per_second"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=pathlib.Path)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--steps", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--prepared", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not options.prepared:
        prepare()
    ours = Galley(options)
    layers = min(range(1, 200), key=lambda count: abs(token_bytes(count) - ours.bytes))
    path = WORK / f"moe-{layers}.gguf"
    if not path.exists():
        print(f"writing {path.relative_to(ROOT)} ...", file=sys.stderr)
        write_model(path.with_suffix(".part"), layers)
        path.with_suffix(".part").rename(path)
    peer = LlamaCpp(options, path)
    peer.round()  # touches its memory
    rates = {ours.name: [], peer.name: []}
    for number in range(options.rounds):
        for side in (ours, peer):
            rates[side.name].append(side.round())
        print(f"round {number + 1} of {options.rounds}", file=sys.stderr)
    bytes_of = {ours.name: ours.bytes, peer.name: token_bytes(layers)}
    print(f"{options.threads} threads, prompt of {options.prompt}, {options.steps} decoded, medians of {options.rounds}")
    print(f"{'':10} {'MB a token':>10} {'prefill/s':>10} {'decode/s':>10} {'GB/s':>6}")
    middle = {}
    for name, values in rates.items():
        middle[name] = [statistics.median(column) for column in zip(*values)]
        prefill, decode = middle[name]
        mb = bytes_of[name] / 1e6
        print(f"{name:10} {mb:10.1f} {prefill:10.1f} {decode:10.1f} {decode * mb / 1e3:6.1f}")
    ratios = [
        [statistics.median(a[i] / b[i] for a, b in zip(rates[ours.name], rates[peer.name]))] for i in range(2)
    ]
    print(f"{'ratio':10} {'':10} {ratios[0][0]:9.2f}x {ratios[1][0]:9.2f}x   (medians of the rounds' own)")
    print(f"llama.cpp of xllamacpp uses: {peer.uses.strip()}")


if __name__ == "__main__":
    main()
