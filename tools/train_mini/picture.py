"""Draws curve.png of a run folder: loss over tokens, exact match by kind below it."""

import csv
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt


def rows(path):
    if not path.exists():
        return []
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def draw(run):
    run = Path(run)
    curve, scores = rows(run / "curve.csv"), rows(run / "eval.csv")
    figure, (top, bottom) = plt.subplots(2, 1, figsize=(9, 9), sharex=True)
    begin = 0
    for stage in dict.fromkeys(r["stage"] for r in curve):
        part = [r for r in curve if r["stage"] == stage]
        x = [int(r["tokens"]) / 1e6 for r in part]
        top.plot(x, [float(r["loss"]) for r in part], label=stage)
        if begin:
            for axis in (top, bottom):
                axis.axvline(x[0], color="0.85", zorder=0)
        begin = x[-1]
    top.set_yscale("log")
    top.set_ylabel("cross-entropy of answers (moving average)")
    top.grid(alpha=0.3)
    top.legend(loc="upper right")
    for i, kind in enumerate(dict.fromkeys(r["kind"] for r in scores)):
        part = [r for r in scores if r["kind"] == kind]
        bottom.plot(
            [int(r["tokens"]) / 1e6 for r in part],
            [float(r["exact"]) for r in part],
            label=kind,
            color=plt.cm.tab20(i % 20),
            marker=".",
        )
    bottom.set_ylim(-2, 102)
    bottom.set_ylabel("exact match on unseen samples, %")
    bottom.set_xlabel("tokens, millions")
    bottom.grid(alpha=0.3)
    if scores:
        bottom.legend(loc="upper left", ncols=3, fontsize="small")
    figure.tight_layout()
    figure.savefig(run / "curve.new.png", dpi=110)
    plt.close(figure)
    (run / "curve.new.png").replace(run / "curve.png")


if __name__ == "__main__":
    draw(sys.argv[1])
