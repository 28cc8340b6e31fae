#!/usr/bin/env python3
"""Tells whether a set of goldens can be met: how often its own reference misses the set's bounds.

    tools/golden_noise.py --reference DIR SET [--orders 12]

DIR holds refmodel.py, which comes with the goldens; SET is what `galley model check` takes. Needs torch and safetensors; by hand.

Behind a rounding to bfloat16, FP8 or FP4 a difference of 1e-7 moves one code where a value lies close to the middle of two, and one
code moves a row by more than the README's bounds for steps 6 to 8 allow. Most sets have no such value; some do. Here the reference
runs with every sum of a product or a mean taken in a random order. A bound that one of these orders misses separates no right
network from a wrong one: a miss of `galley model check` there, by the size of the miss printed here, is noise.
"""
import argparse
import pathlib
import sys

import torch
from safetensors.torch import load_file

# README of the goldens, steps 6 to 8: relative rms of a layer's streams and of logits, and the share of stored values off by more than
# MOVED.
STREAMS = {"short": 1e-4, "short_act": 2e-3}
LOGITS = {"v4": {"f32": 0.02, "bf16": 0.1, "bf16_act": 0.2}, "v41": {"f32": 0.1, "bf16": 0.25, "bf16_act": 0.4}}
STORED_SHARE = 0.01
MOVED = 1e-4
STORED_LAYERS = range(3)
CAPACITY = 4096  # positions of the reference's state

generator = torch.Generator()
matmul, mean = torch.Tensor.__matmul__, torch.Tensor.mean


def shuffled_matmul(a, b):
    order = torch.randperm(a.shape[-1], generator=generator)
    return matmul(a[..., order].contiguous(), b.index_select(0 if b.ndim == 1 else -2, order).contiguous())


def shuffled_mean(x, dim=None, keepdim=False):
    if dim != -1:
        return mean(x) if dim is None else mean(x, dim, keepdim)
    return mean(x[..., torch.randperm(x.shape[-1], generator=generator)].contiguous(), dim, keepdim)


def shuffle_sums(rm):
    rm.ORDER = "library"  # products by the operator, which is replaced, instead of row by row
    torch.Tensor.__matmul__, torch.Tensor.mean = shuffled_matmul, shuffled_mean


def relative_rms(got, want):
    return float((got - want).square().mean().sqrt() / want.square().mean().sqrt())


def streams_missed(rm, folder, run):
    """Step 6 or 7: the layers' (name, relative rms, misses its bound), each layer fed with the golden streams of the one before."""
    golden = load_file(f"{folder}/{run}.safetensors")
    rounds = run == "short_act"
    model = rm.Ref(str(folder), rm.Opt(kvq=True, bf16=rounds, actq=rounds))
    force = {i: (golden[f"L{i}.streams"].float(), golden[f"L{i}.pre"]) for i in range(model.L)}
    out = []

    def record(layer, name, value):
        if name == "streams" and layer in force:
            error = relative_rms(value, force[layer][0])
            out.append((f"{run} L{layer}.streams", error, error > STREAMS[run]))

    model.forward(rm.State(CAPACITY), golden["ids"].long(), rec=record, force=force)
    return out


def end_to_end_missed(rm, folder, family, run):
    """Step 8: (name, error, misses its bound) of the logits and, in `f32`, of the stored rows, where the error is the share that moved."""
    golden = load_file(f"{folder}/{run}.safetensors")
    model = rm.Ref(str(folder), rm.Opt(kvq=True, bf16=run != "f32", actq=run == "bf16_act"))
    state, windows = rm.State(CAPACITY), {}
    ids = golden["ids"].long()
    prefill, _ = model.forward(state, ids, rec=lambda layer, name, value: name == "win_row" and windows.update({layer: value}))
    out = stored_missed(golden, model, state, windows, len(ids)) if run == "f32" else []
    decoded, _ = model.forward(state, golden["decode.input"].long())
    for name, got in (("prefill.logits", prefill[golden["rows"].long()]), ("decode.logits", decoded)):
        error = relative_rms(got, golden[name])
        out.append((f"{run} {name}", error, error > LOGITS[family][run]))
    return out


def stored_missed(golden, model, state, windows, length):
    out = []
    for layer in STORED_LAYERS:
        for name in ("win_row", "comp", "ik"):
            want = golden.get(f"prefill.L{layer}.{name}")
            if want is None:
                continue
            if name == "win_row":
                got = windows[layer][[0, 1, length - 2, length - 1]]
            else:
                rows = state.get(f"{layer}.{name}", length // model.ratio[layer])
                got = rows if len(rows) == len(want) else torch.cat((rows[:6], rows[-6:]))
            share = float(((got - want).abs() > MOVED).float().mean())
            out.append((f"f32 prefill.L{layer}.{name}", share, share > STORED_SHARE))
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("set", type=pathlib.Path)
    parser.add_argument("--reference", type=pathlib.Path, required=True, help="folder of refmodel.py")
    parser.add_argument("--orders", type=int, default=12, help="how many random orders to try")
    args = parser.parse_args()
    sys.path.insert(0, str(args.reference))
    import refmodel as rm

    shuffle_sums(rm)
    missed = False
    for family in ("v4", "v41"):
        seen = {}
        for order in range(args.orders):
            print(f"\r{family}: order {order + 1} of {args.orders} ", end="", file=sys.stderr, flush=True)
            generator.manual_seed(order)
            for run in STREAMS:
                for name, error, misses in streams_missed(rm, args.set / family, run):
                    seen.setdefault(name, []).append((error, misses))
            for run in LOGITS[family]:
                for name, error, misses in end_to_end_missed(rm, args.set / family, family, run):
                    seen.setdefault(name, []).append((error, misses))
        print("\r", end="", file=sys.stderr)
        for name, results in seen.items():
            sizes = sorted({f"{error:.2g}" for error, misses in results if misses}, key=float)
            if sizes:
                missed = True
                count = sum(misses for _, misses in results)
                print(f"{family}/{name}: {count} of {args.orders} orders miss the bound, by {', '.join(sizes)}")
    if not missed:
        print(f"the reference meets every bound of steps 6 to 8 in all {args.orders} orders")


if __name__ == "__main__":
    main()
