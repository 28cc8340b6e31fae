"""llama.cpp's server with a small random model that has Galley's built-in vocabulary.

    python llama_cpp.py MODEL.gguf PORT     serves until it is killed; prints a line once it listens
"""

import json
import pathlib
import sys
import threading

ROOT = pathlib.Path(__file__).resolve().parents[2]
TOKENIZER = ROOT / "tests" / "data" / "small_tokenizer.json"
HIDDEN, HEADS, KV_HEADS, HEAD_DIM, INTERMEDIATE, LAYERS = 256, 8, 2, 32, 1024, 8
CONTEXT = 4096


def write_model(path):
    import gguf
    import numpy as np

    tokenizer = json.loads(TOKENIZER.read_text())
    spelled = {id: text for text, id in tokenizer["model"]["vocab"].items()}
    control = {each["id"]: each["content"] for each in tokenizer["added_tokens"]}
    spelled |= control
    count = len(spelled)
    numbers = np.random.default_rng(1)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INTERMEDIATE)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(1e4)
    writer.add_rope_dimension_count(HEAD_DIM)
    writer.add_vocab_size(count)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([spelled[id] for id in range(count)])
    kinds = [gguf.TokenType.CONTROL if id in control else gguf.TokenType.NORMAL for id in range(count)]
    writer.add_token_types(kinds)
    writer.add_token_merges([merge if isinstance(merge, str) else " ".join(merge) for merge in tokenizer["model"]["merges"]])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)

    def matrix(name, rows, columns):
        writer.add_tensor(name, numbers.standard_normal((rows, columns), dtype=np.float32) * np.float32(0.3))

    def norm(name):
        writer.add_tensor(name, np.ones(HIDDEN, np.float32))

    matrix("token_embd.weight", count, HIDDEN)
    matrix("output.weight", count, HIDDEN)
    norm("output_norm.weight")
    for layer in range(LAYERS):
        block = f"blk.{layer}."
        norm(block + "attn_norm.weight")
        norm(block + "ffn_norm.weight")
        matrix(block + "attn_q.weight", HEADS * HEAD_DIM, HIDDEN)
        matrix(block + "attn_k.weight", KV_HEADS * HEAD_DIM, HIDDEN)
        matrix(block + "attn_v.weight", KV_HEADS * HEAD_DIM, HIDDEN)
        matrix(block + "attn_output.weight", HIDDEN, HEADS * HEAD_DIM)
        matrix(block + "ffn_gate.weight", INTERMEDIATE, HIDDEN)
        matrix(block + "ffn_up.weight", INTERMEDIATE, HIDDEN)
        matrix(block + "ffn_down.weight", HIDDEN, INTERMEDIATE)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def serve(path, port):
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = path
    params.port = port
    params.n_parallel = 4
    params.n_ctx = params.n_parallel * CONTEXT
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.endpoint_slots = True
    params.verbosity = -1
    server = xllamacpp.Server(params)  # the process serves while it lives
    print(f"llama.cpp listens on {server.listening_address}", flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]))
