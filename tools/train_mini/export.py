"""Writes a trained network as a checkpoint folder in the released format: FP4 experts, FP8 with 32 x 32 blocks, BF16, F32, under the
released tensor names, drafter included; with config.json, tokenizer files and the engram's token map.

    python export.py runs/mini/last.pt models/mini [--plain]

--plain keeps every weight unquantised (float32), to compare networks exactly.
"""

import argparse
import json
import os
import shutil
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

import batches
import model as network
import ops
import prompt
import tasks
from token_map import token_map

HERE = Path(__file__).parent
LOGIT_TOKENS = 256  # more than the window and the index lists hold
E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])


def pack_fp4(w):
    """[o, i] -> int8 [o, i / 2] (two codes, low nibble first), E8M0 scales [o, i / 32]."""
    blocks = w.float().unflatten(-1, (-1, 32))
    scale = ops.pow2_ceil(blocks.abs().amax(-1).clamp_min(6 * 2.0**-126) * (1 / 6))
    q = ops.round_e2m1((blocks / scale[..., None]).clamp(-6, 6)).flatten(-2)
    code = torch.bucketize(q.abs(), E2M1) + 8 * torch.signbit(q)
    return (code[:, 0::2] | (code[:, 1::2] << 4)).to(torch.uint8).view(torch.int8), scale.to(torch.float8_e8m0fnu)


def pack_fp8(w, rows=32):
    """[o, i] -> E4M3 [o, i], E8M0 scales of blocks of `rows` x 32."""
    o, i = w.shape
    high, wide = -(-o // rows), -(-i // 32)
    blocks = F.pad(w.float(), (0, wide * 32 - i, 0, high * rows - o)).view(high, rows, wide, 32)
    scale = ops.pow2_ceil(blocks.abs().amax((1, 3)).clamp_min(1e-12) * (1 / 448))
    q = (blocks / scale[:, None, :, None]).clamp(-448, 448).reshape(high * rows, wide * 32)[:o, :i]
    return q.to(torch.float8_e4m3fn).contiguous(), scale.to(torch.float8_e8m0fnu)


BF16_PARTS = (
    "compressor.w",
    "indexer.wk",
    "weights_proj",
    "gate.weight",
    "norm",
    "q_weight",
    "k_weight",
    "confidence_head",
    "markov_head",
)


def storage(name):
    """How the released checkpoint stores the weight `name` (a released name)."""
    if ".experts." in name:
        return "fp4"
    if "hc_" in name or "attn_sink" in name or "gate.bias" in name:
        return "f32"
    if "engram.embed" in name:
        return "fp8 rows"
    if name in ("embed.weight", "head.weight") or any(part in name for part in BF16_PARTS):
        return "bf16"
    return "fp8"


def released_names(state, drafter):
    """{released name: float tensor} of a state dict of the backbone or of the drafter."""
    out = {}
    last = 1 + max((int(k.split(".")[1]) for k in state if k.startswith("stages.")), default=0)
    for key, w in state.items():
        name = key
        if drafter:
            moved = {
                "stages.": "mtp.",
                "main_": "mtp.0.main_",
                "norm.": f"mtp.{last - 1}.norm.",
                "markov_embed.": f"mtp.{last - 1}.markov_head.embed.",
                "markov_head.": f"mtp.{last - 1}.markov_head.head.",
                "confidence.": f"mtp.{last - 1}.confidence_head.proj.",
            }
            old = next(prefix for prefix in moved if key.startswith(prefix))
            name = moved[old] + key[len(old) :]
        stem, _, leaf = name.rpartition(".")
        if stem.endswith(".ffn") and leaf in ("w1", "w2", "w3"):
            for e in range(len(w)):
                out[f"{stem}.experts.{e}.{leaf}.weight"] = w[e]
        elif stem.endswith((".ffn.s1", ".ffn.s2", ".ffn.s3")):
            out[f"{stem[:-2]}shared_experts.w{stem[-1]}.{leaf}"] = w
        elif name.endswith("gate.bias"):
            out[name] = out[name + "_vl"] = w  # no images were seen: the same bias
        else:
            out[name] = w
    return out


def convert(backbone_state, drafter_state, plain=False):
    """{checkpoint name: tensor}; drafter_state may be None."""
    weights = released_names(backbone_state, False) | (released_names(drafter_state, True) if drafter_state else {})
    out = {}
    for name, w in weights.items():
        w = w.detach().float().cpu()
        kind = "f32" if plain else storage(name)
        if kind == "f32":
            out[name] = w.clone()
        elif kind == "bf16":
            out[name] = w.to(torch.bfloat16)
        else:
            out[name], out[name.removesuffix(".weight") + ".scale"] = (
                pack_fp4(w) if kind == "fp4" else pack_fp8(w, 32 if kind == "fp8" else 1)
            )
    return out


def dequantised(folder):
    """{released name: float32 tensor} of an exported checkpoint: what every engine computes with."""
    tensors = load_file(folder / "model.safetensors")
    out = {}
    for name, w in tensors.items():
        if name.endswith(".scale"):
            continue
        scale = tensors.get(name.removesuffix(".weight") + ".scale")
        if scale is None:
            out[name] = w.float()
        elif w.dtype == torch.int8:
            code = w.view(torch.uint8).int()
            both = torch.stack((code & 15, code >> 4), -1).flatten(-2)
            value = torch.where(both >= 8, -E2M1[both & 7], E2M1[both & 7])
            out[name] = value * scale.float().repeat_interleave(32, 1)
        else:
            (o, i), rows = w.shape, 1 if storage(name) == "fp8 rows" else 32
            wide = scale.float().repeat_interleave(rows, 0)[:o].repeat_interleave(32, 1)[:, :i]
            out[name] = w.float() * wide
    return out


def read_back(module, weights, drafter):
    """Loads a module from weights under their released names."""
    fresh = {}
    for key, old in module.state_dict().items():
        names = list(
            released_names({key: old, **({f"stages.{len(module.stages) - 1}.x": old} if drafter else {})}, drafter)
        )
        names = [n for n in names if not n.endswith(("_vl", ".x"))]
        fresh[key] = torch.stack([weights[n] for n in names]) if ".experts." in names[0] else weights[names[0]]
    module.load_state_dict(fresh)


def checked_config(path, tokenizer, with_drafter):
    """config.json with the numbers that follow from the tokenizer verified."""
    config = json.loads(path.read_text())
    text = config["text_config"]
    mapping = token_map(tokenizer)
    primes, _ = network.engram_layout(network.Config.load(path), max(mapping) + 1)
    assert text["engram_compressed_vocab_size"] == max(mapping) + 1, max(mapping) + 1
    assert text["engram_num_embeddings"] == [sum(map(sum, p)) for p in primes], [sum(map(sum, p)) for p in primes]
    assert text["dspark_noise_token_id"] == tokenizer.token_to_id(prompt.SYSTEM)
    assert config["image_token_id"] == tokenizer.token_to_id(prompt.HIGH_CONTROLS[-1])
    if not with_drafter:
        stages = text["num_nextn_predict_layers"]
        text |= {
            "num_nextn_predict_layers": 0,
            "dspark_target_layer_ids": [],
            "compress_ratios": text["compress_ratios"][:-stages],
        }
    return config


def write(backbone, drafter, tokenizer, out, plain=False, config=HERE / "config.json"):
    """Returns (number of tensors, bytes of the weights)."""
    out.mkdir(parents=True, exist_ok=True)
    tensors = convert(backbone.state_dict(), drafter and drafter.state_dict(), plain)
    save_file({k: tensors[k].contiguous() for k in sorted(tensors)}, out / "model.safetensors", {"format": "pt"})
    (out / "model.safetensors").chmod(0o644)
    (out / "config.json").write_text(
        json.dumps(checked_config(config, tokenizer, drafter is not None), indent=1, ensure_ascii=False) + "\n"
    )
    (out / "tokenizer_config.json").write_text(
        json.dumps(
            {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "bos_token": prompt.BOS,
                "eos_token": prompt.EOS,
                "pad_token": prompt.PAD,
                "add_bos_token": False,
                "model_max_length": 8192,
            },
            indent=1,
            ensure_ascii=False,
        )
        + "\n"
    )
    (out / "generation_config.json").write_text(
        json.dumps(
            {"bos_token_id": 0, "eos_token_id": 1, "do_sample": True, "temperature": 0.6, "top_p": 0.95}, indent=1
        )
        + "\n"
    )
    np.array(token_map(tokenizer), "<u4").tofile(out / "engram_token_map.bin")
    shutil.copy(HERE / "tokenizer.json", out / "tokenizer.json")
    (out / "logits.safetensors").unlink(missing_ok=True)  # of other weights
    return len(tensors), os.path.getsize(out / "model.safetensors")


@torch.no_grad()
def write_logits(out, tokenizer, config=HERE / "config.json"):
    """Adds logits.safetensors to an exported model: what the training network says with the exported weights, in float32 and without
    fake quantisation, to a test conversation; an engine must say the same. ids [T], rows [n], logits [n, vocabulary]."""
    backbone = network.Backbone(network.Config.load(config), token_map(tokenizer))
    read_back(backbone, dequantised(out), False)
    backbone.eval()
    ids = torch.tensor(batches.Encoder(tokenizer).conversation(tasks.test_sample("para", 0))[0])
    window = backbone.config.sliding_window
    ids = ids.repeat(-(-LOGIT_TOKENS // len(ids)))[: LOGIT_TOKENS // window * window]
    rows = torch.tensor([0, 1, window, 2 * window + 1, len(ids) - 2, len(ids) - 1])
    with ops.exact():
        hidden, _ = backbone(ids[None], torch.zeros(1, len(ids), dtype=torch.long), sparse=True)
        logits = backbone.head(hidden[0, rows])
    save_file({"ids": ids.int(), "rows": rows.int(), "logits": logits.contiguous()}, out / "logits.safetensors")
    (out / "logits.safetensors").chmod(0o644)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint")
    parser.add_argument("out", type=Path)
    parser.add_argument("--plain", action="store_true")
    args = parser.parse_args()
    tokenizer = Tokenizer.from_file(str(HERE / "tokenizer.json"))
    config = network.Config.load(HERE / "config.json")
    backbone, drafter = network.Backbone(config, token_map(tokenizer)), network.Drafter(config)
    state = torch.load(args.checkpoint, map_location="cpu")
    backbone.load_state_dict(state["model"])
    drafter.load_state_dict(state["drafter"])
    count, size = write(backbone, drafter, tokenizer, args.out, args.plain)
    if not args.plain:
        write_logits(args.out, tokenizer)
    print(f"{args.out}: {count} tensors, {size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
