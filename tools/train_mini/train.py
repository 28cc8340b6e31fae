"""Trains galley-mini from nothing to the shipped files.

    python train.py [--run runs/mini] [--out models/mini]

One command does everything and may be killed at any moment: started again, it goes on from the last checkpoint (every ten minutes,
written beside the old one and renamed).  The stages and their data are below in STAGES.  The run folder gets

    last.pt        weights, optimizers, position in the data, progress
    curve.csv      one line per 20 steps             eval.csv    exact match by kind
    curve.png      both as a picture                 log.txt     what was printed
"""

import argparse
import csv
import ctypes.util
import dataclasses
import os
import shutil
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # idle threads must not spin beside other programs
os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "4096")  # a step has more shapes of products than the 1024 kept by default


def with_keeping_allocator():
    """Starts this program anew under jemalloc, told to keep what it has: a step allocates gigabytes in pieces of 4 to 64 MB, and the
    page faults of giving them back and asking again cost 40 % of the time on a CPU."""
    found = ctypes.util.find_library("jemalloc")
    if found and "jemalloc" not in os.environ.get("LD_PRELOAD", ""):
        os.environ["LD_PRELOAD"] = found
        os.environ.setdefault("MALLOC_CONF", "dirty_decay_ms:-1,muzzy_decay_ms:-1,thp:always")
        os.execv(sys.executable, [sys.executable, *sys.argv])


if __name__ == "__main__":
    with_keeping_allocator()  # before the big imports

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer

import batches
import drafting
import evaluate
import ops
from model import Backbone, Config, Drafter, set_quantised
from optim import Optimizers
from token_map import token_map

HERE = Path(__file__).parent
SEED = 1
WARM_STEPS = 40
CONTEXT_WEIGHT = 0.1  # loss of the tokens of prompts, beside 1 for answers ...
CONTEXT_EVERY = 4  # ... taken on one in four of them, four times as heavy: the head is a sixth of all products
HEAD_ROWS = 512  # the head takes multiples of this: a product of a new shape costs more than a few rows (model.padded_groups)
INDEX_WEIGHT = 0.1
GATE_TOKENS = 10_000_000  # by then "copy" must be half right

COPYING = dict(repeat=1)
# Weights of samples.  A fact is met about 60 times in the whole training; tool calls are a third of the tokens, for their long prompts.
WORLD = dict(chat=10, fact=28, unknown=10, story=14, arith=6, think=7, copy=6, reverse=4, sort=4)
WORLD |= dict(needle=6, para=8, memory=8, tool=6, json=5, repeat=6)
# After the first facts and phrases: what looks back into the context, which the world's kinds alone teach slowly.
CONTEXT = {**WORLD, "copy": 12, "repeat": 10, "memory": 14, "para": 14, "needle": 10, "tool": 9, "json": 9}
LONG = {**WORLD, "needle_long": 6}


@dataclasses.dataclass
class Stage:
    name: str
    tokens: int  # how long it lasts
    mix: dict
    rows: int
    length: int
    rates: tuple = (0.007, 0.003, 0.009)  # matrices, rest, embedding tables
    mode: str = "dense"  # dense | index (only indexers learn) | sparse | drafter
    decays: bool = False  # the learning rate falls to 2 % over this stage
    until: float = 0.0  # ends early when the average loss is below this
    takes_export: bool = False  # a training that goes on from an exported model begins here
    share: float = 0.0  # weight in the time, when --minutes limits it; what a stage leaves over goes to the later ones


M = 1_000_000
STAGES = [
    Stage(
        "copying", 3 * M, COPYING, 4, 512, until=0.15, share=0.14
    ),  # leaving the plateau takes steps more than tokens: small batches
    Stage("world", 6 * M, WORLD, 8, 1024, share=0.15),
    Stage("context", 26 * M, CONTEXT, 8, 1024, takes_export=True, share=0.2),
    Stage("settle", 10 * M, CONTEXT, 8, 1024, decays=True, share=0.26),
    Stage("long", 2 * M, LONG, 2, 3072, (0.001, 0.0005, 0.0015), decays=True, share=0.06),
    Stage("index", 1 * M, LONG, 2, 3072, (0.005, 0.003, 0.009), "index", decays=True, share=0.06),
    Stage("sparse", 2 * M, LONG, 2, 3072, (0.0007, 0.0003, 0.0009), "sparse", decays=True, share=0.07),
    Stage("drafter", 6 * M, WORLD, 8, 1024, (0.005, 0.003, 0.003), "drafter", decays=True, share=0.12),
]


# ---- machine ------------------------------------------------------------------------------------------------------------


def measured_seconds():
    """Of products in float32 on this CPU, at the precision that is set."""
    a, b = torch.randn(4096, 256), torch.randn(512, 256)
    best = float("inf")
    for _ in range(5):
        begin = time.perf_counter()
        for _ in range(4):
            F.linear(a, b)
        best = min(best, time.perf_counter() - begin)
    return best


def choose_precision(device):
    """bfloat16 activations on an accelerator. On a CPU float32 activations, which the fused operators need, and products that round
    their inputs to bfloat16 where the CPU has instructions that make this clearly faster (AMX, AVX512-BF16)."""
    if device != "cpu":
        ops.Precision.compute = torch.bfloat16
        return "bfloat16"
    ops.Precision.compute = torch.float32
    seconds = {}
    for precision in ("highest", "medium"):
        torch.set_float32_matmul_precision(precision)
        seconds[precision] = measured_seconds()
    rounds = seconds["medium"] < 0.7 * seconds["highest"]
    torch.set_float32_matmul_precision("medium" if rounds else "highest")
    return (
        f"float32, products {'bfloat16' if rounds else 'float32'} "
        f"(float32 {seconds['highest'] * 1e3:.1f} ms, bfloat16 {seconds['medium'] * 1e3:.1f} ms)"
    )


def choose_ops(device):
    """C++ operators on a CPU, compiled pieces elsewhere, the plain ones if neither can be built."""
    try:
        if device == "cpu":
            import fused

            fused.use()
            return "fused C++"
        ops.use_compiled(device)
        return "compiled"
    except Exception as error:  # a missing compiler must not stop a training
        ops.use_plain()
        return f"plain ({error})"


# ---- one step --------------------------------------------------------------------------------------------------------------


def token_weights(start, classes, step):
    """[B, T - 1] weight of the loss of each next token."""
    kind = classes[:, 1:]
    picked = (torch.arange(kind.shape[1], device=kind.device) % CONTEXT_EVERY == step % CONTEXT_EVERY) & (
        kind == batches.CONTEXT
    )
    weight = torch.where(kind == batches.TARGET, 1.0, torch.where(picked, CONTEXT_WEIGHT * CONTEXT_EVERY, 0.0))
    return weight * (start[:, 1:] == start[:, :-1])


def losses(model, ids, start, weight, whole, **mode):
    """Of some rows of a batch; whole = the sum of the weights of the whole batch and its number of parts.
    (loss to minimise, cross-entropy of answers, KL of the indexers or None); the parts' values add up to the batch's."""
    hidden, run = model(ids, start, **mode)
    w = F.pad(weight, (0, 1)).flatten()  # the last position predicts nothing
    use = w.nonzero()[:, 0]
    use = F.pad(use, (0, -len(use) % HEAD_ROWS), value=ids.shape[1] - 1)
    w = w[use]
    logits = model.head(hidden.flatten(0, 1)[use]).float()
    ce = F.cross_entropy(logits, ids.roll(-1, 1).flatten()[use], reduction="none")
    total, answers, parts = whole
    kl = sum(run.index_losses) / parts if run.index_losses else None
    loss = (ce * w).sum() / total
    return (
        loss + INDEX_WEIGHT * kl if kl is not None else loss,
        (ce.detach() * (w == 1)).sum() / answers,
        None if kl is None else kl.detach(),
    )


class Hands:
    """Threads that each take some rows of a batch on one core. Thousands of small operations would otherwise wait for their slower
    half, above all beside other programs. One hand = everything in the calling thread."""

    def __init__(self, count, fused):
        self.count = count
        self.pool = ThreadPoolExecutor(count, initializer=self.begin, initargs=(fused,)) if count > 1 else None

    @staticmethod
    def begin(fused):
        torch.set_num_threads(1)
        if fused:
            import fused as operators

            operators.set_threads(1)

    def run_all(self, f, items):
        return list(self.pool.map(f, items)) if self.pool else [f(i) for i in items]

    def gradients(self, part_losses, params, rows):
        """Sets .grad of params from part_losses(slice of rows, part number) -> (loss, value, extra); returns the sums of value and extra."""

        def work(part):
            loss, value, extra = part_losses(slice(part * rows // parts, (part + 1) * rows // parts), part)
            return torch.autograd.grad(loss, params, allow_unused=True), value, extra

        parts = min(self.count, rows)
        results = self.run_all(work, range(parts))
        for i, p in enumerate(params):
            grads = [r[0][i] for r in results if r[0][i] is not None]
            for g in grads[1:]:
                grads[0].add_(g)
            p.grad = grads[0] if grads else None
        value = sum(r[1] for r in results)
        return value, None if results[0][2] is None else sum(r[2] for r in results)


class Trainer:
    """One training: owns the networks, the optimizers and the run folder.  args: see main()."""

    def __init__(self, args, stages=tuple(STAGES), config_path=HERE / "config.json"):
        self.args, self.run, self.stages, self.config_path = args, Path(args.run), stages, config_path
        self.run.mkdir(parents=True, exist_ok=True)
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        torch.set_num_threads(args.threads)
        torch.manual_seed(SEED)
        self.encoder = batches.Encoder(Tokenizer.from_file(str(HERE / "tokenizer.json")))
        self.config = Config.load(config_path)
        self.model = Backbone(self.config, token_map(self.encoder.tokenizer)).to(self.device)
        self.drafter = Drafter(self.config).to(self.device)
        self.stage_number, self.done, self.total, self.step, self.stage_step, self.position = 0, 0, 0, 0, 0, (0, 0)
        self.average = None
        self.begin = self.saved = time.time()
        self.say(f"device {self.device}, precision {choose_precision(self.device)}")
        if args.plain:
            ops.use_plain()
        operators = "plain" if args.plain else choose_ops(self.device)
        self.say(f"operators {operators}")
        self.hands = Hands(args.threads if self.device == "cpu" else 1, operators == "fused C++")
        self.workers = batches.Workers(args.workers, str(HERE / "tokenizer.json"))
        self.optimizers = None

    def say(self, text):
        line = time.strftime("%H:%M:%S ") + text
        print(line, flush=True)
        with open(self.run / "log.txt", "a") as file:
            file.write(line + "\n")

    # -- checkpoints
    def save(self):
        state = dict(
            model=self.model.state_dict(),
            drafter=self.drafter.state_dict(),
            optimizers=self.optimizers and self.optimizers.state_dict(),
            stage=self.stages[self.stage_number].name if self.stage_number < len(self.stages) else "done",
            done=self.done,
            total=self.total,
            step=self.step,
            stage_step=self.stage_step,
            position=self.position,
            average=self.average,
            random=torch.get_rng_state(),
        )
        temporary = self.run / "last.pt.new"
        torch.save(state, temporary)
        os.replace(temporary, self.run / "last.pt")
        self.saved = time.time()

    def resume(self):
        """True when there was something to go on from."""
        path = self.run / "last.pt"
        if not path.exists():
            return False
        state = torch.load(path, map_location=self.device)
        self.model.load_state_dict(state["model"])
        self.drafter.load_state_dict(state["drafter"])
        names = [s.name for s in self.stages] + ["done"]
        self.stage_number = names.index(state["stage"])
        for name in ("done", "total", "step", "stage_step", "position", "average"):
            setattr(self, name, state[name])
        torch.set_rng_state(state["random"].cpu())
        self.pending_optimizers = state["optimizers"]
        self.say(
            f"resumed: stage {state['stage']}, {self.done / M:.2f} M tokens into it, {self.total / M:.2f} M in all"
        )
        return True

    def start_from(self, folder):
        """Goes on from an exported model, which knows its world."""
        import export

        weights = export.dequantised(folder)
        export.read_back(self.model, weights, False)
        export.read_back(self.drafter, weights, True)
        self.stage_number = next(i for i, s in enumerate(self.stages) if s.takes_export)
        self.say(f"starting from {folder}")

    # -- stages
    def train(self):
        self.pending_optimizers = None
        if not self.resume() and self.args.start:
            self.start_from(Path(self.args.start))
        while self.stage_number < len(self.stages):
            self.train_stage(self.stages[self.stage_number])
            stage = self.stages[self.stage_number]
            self.evaluate(stage)
            torch.save(
                {"model": self.model.state_dict(), "drafter": self.drafter.state_dict()},
                self.run / f"after_{stage.name}.pt",
            )
            self.stage_number, self.done, self.stage_step, self.position, self.average = (
                self.stage_number + 1,
                0,
                0,
                (0, 0),
                None,
            )
            self.optimizers = None if not self.keeps_optimizers() else self.optimizers
            self.save()
        self.finish()

    def keeps_optimizers(self):
        """Dense stages go on with the momenta of the one before."""
        if self.stage_number in (0, len(self.stages)):
            return False
        return self.stages[self.stage_number].mode == self.stages[self.stage_number - 1].mode == "dense"

    def prepare(self, stage):
        indexing = stage.mode == "index"
        for name, p in self.model.named_parameters():
            p.requires_grad_(stage.mode in ("dense", "sparse") or indexing and "indexer" in name)
        set_quantised(self.model, stage.mode in ("sparse", "drafter"))
        set_quantised(self.drafter, True)
        self.drafter.requires_grad_(stage.mode == "drafter")
        if self.optimizers is None:
            self.optimizers = Optimizers([self.drafter if stage.mode == "drafter" else self.model], stage.rates)
        else:
            self.optimizers.parts = [(o, rate) for (o, _), rate in zip(self.optimizers.parts, stage.rates)]
        if self.pending_optimizers is not None:
            self.optimizers.load_state_dict(self.pending_optimizers)
            self.pending_optimizers = None

    def progress(self, stage):
        """0 .. 1 of the stage, by tokens or by time, whichever is further."""
        part = self.done / stage.tokens
        if self.args.minutes:
            later = sum(s.share for s in self.stages[self.stage_number + 1 :])
            left = self.args.minutes * 60 - (self.stage_begin - self.begin)
            part = max(part, (time.time() - self.stage_begin) / max(left * stage.share / (stage.share + later), 1e-9))
        if self.stage_step > WARM_STEPS and self.average < stage.until:
            part = 1.0
        return min(part, 1.0)

    def rate_factor(self, stage):
        warm = min(1.0, (self.stage_step + 1) / WARM_STEPS)
        return warm * (0.02 + 0.98 * (1 - self.progress(stage)) if stage.decays else 1.0)

    def train_stage(self, stage):
        self.prepare(stage)
        stream = batches.Stream(
            self.encoder, f"{SEED}/{stage.name}", stage.mix, stage.length, self.position, self.workers
        )
        self.say(
            f"stage {stage.name}: {stage.tokens / M:.1f} M tokens, rows {stage.rows} x {stage.length}, {stage.mode}"
        )
        self.stage_begin, begin_tokens = time.time(), self.done
        while self.progress(stage) < 1:
            ids, start, classes = (torch.tensor(c, device=self.device) for c in stream.batch(stage.rows))
            value, extra = self.hands.gradients(
                self.part_losses(stage, ids, start, classes), self.optimizers.params, len(ids)
            )
            self.optimizers.step(self.rate_factor(stage), self.hands.run_all)
            if stage.mode != "drafter":
                self.model.balance(
                    2e-3 if stage.mode == "dense" and not (stage.decays and self.progress(stage) > 0.8) else 0
                )
            extra = None if extra is None else float(extra)
            self.step, self.stage_step = self.step + 1, self.stage_step + 1
            self.done, self.total, self.position = self.done + ids.numel(), self.total + ids.numel(), stream.position
            self.average = value.item() if self.average is None else 0.95 * self.average + 0.05 * value.item()
            if self.stage_step % 20 == 0 or self.stage_step <= 3:
                self.report(stage, extra, (self.done - begin_tokens) / (time.time() - self.stage_begin))
            if time.time() - self.saved > self.args.checkpoint_minutes * 60:
                self.save()
                self.draw()
            every = self.args.evaluate_every * M
            if self.total // every > (self.total - ids.numel()) // every:
                self.evaluate(stage)

    def part_losses(self, stage, ids, start, classes):
        """(rows, part number) -> what Hands.gradients asks for."""
        parts = min(self.hands.count, len(ids))
        if stage.mode == "drafter":

            def of(rows, part):
                seed = f"{SEED}/{self.step}/{part}"
                return [
                    v / parts
                    for v in drafting.losses(self.model, self.drafter, ids[rows], start[rows], classes[rows], seed)
                ]

            return of
        weight = token_weights(start, classes, self.step)
        whole = weight.sum(), (weight == 1).sum(), parts
        mode = dict(sparse=stage.mode == "sparse", index_loss=stage.mode != "dense")
        return lambda rows, part: losses(self.model, ids[rows], start[rows], weight[rows], whole, **mode)

    def report(self, stage, extra, speed):
        part = self.progress(stage)
        bar = ("#" * int(20 * part)).ljust(20, ".")
        more = "" if extra is None else f"  extra {extra:.3f}"
        self.say(
            f"{stage.name:8} [{bar}] step {self.step}  {self.total / M:.2f} M  loss {self.average:.3f}{more}  {speed:.0f} tok/s"
        )
        self.append(
            "curve.csv",
            ["stage", "step", "tokens", "loss", "extra", "tokens_per_second"],
            [
                stage.name,
                self.step,
                self.total,
                f"{self.average:.4f}",
                "" if extra is None else f"{extra:.4f}",
                f"{speed:.0f}",
            ],
        )

    def append(self, name, header, row):
        path = self.run / name
        fresh = not path.exists()
        with open(path, "a", newline="") as file:
            writer = csv.writer(file)
            writer.writerows([header] * fresh + [row])

    def evaluate(self, stage, count=24):
        if stage.mode == "drafter":
            text = drafting.show(drafting.measure(self.model, self.drafter, self.encoder))
            self.say(text)
        else:
            table = evaluate.by_kind(self.model, self.encoder, count, sparse=stage.mode == "sparse")
            self.say(evaluate.show(table))
            if self.total > GATE_TOKENS and table["copy"][0] < 50:
                self.say(
                    "GATE: copying from the context has not formed; change the mix or the model before spending more hours"
                )
            for kind, values in table.items():
                self.append(
                    "eval.csv",
                    ["stage", "tokens", "kind", "samples", "exact", "right_tokens", "cross_entropy"],
                    [stage.name, self.total, kind, count, *values],
                )
        self.draw()

    def draw(self):
        try:
            import picture

            picture.draw(self.run)
        except ImportError:
            pass  # the picture needs matplotlib, training does not

    def finish(self):
        import export

        self.say("exporting to " + self.args.out)
        count, size = export.write(
            self.model, self.drafter, self.encoder.tokenizer, Path(self.args.out), config=self.config_path
        )
        export.write_logits(Path(self.args.out), self.encoder.tokenizer, self.config_path)
        shutil.copy(HERE / "introduction.json", self.args.out)
        self.say(f"{count} tensors, {size / 1e6:.1f} MB")
        set_quantised(self.model, True)  # measure what was written
        self.evaluate(Stage("final", 0, {}, 0, 0, mode="sparse"), self.args.final_samples)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", default="runs/mini", help="folder of checkpoints and logs")
    parser.add_argument("--out", default="models/mini", help="folder of the shipped files")
    parser.add_argument("--start", help="folder of an exported model to go on from where RUN holds no checkpoint")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--checkpoint-minutes", type=float, default=10)
    parser.add_argument("--evaluate-every", type=float, default=1, help="million tokens")
    parser.add_argument("--final-samples", type=int, default=200, help="of each kind, for the last evaluation")
    parser.add_argument("--plain", action="store_true", help="no compiled operators")
    parser.add_argument("--workers", type=int, default=0, help="processes that prepare data; for a GPU take 8")
    parser.add_argument(
        "--minutes",
        type=float,
        default=0,
        help="squeezes all stages into about this time; the last evaluation and the export come after",
    )
    parser.add_argument(
        "--scale",
        type=int,
        default=1,
        help="rows and tokens of every stage after the first times this; a GPU has time for 4",
    )
    args = parser.parse_args()
    stages = STAGES[:1] + [
        dataclasses.replace(s, rows=s.rows * args.scale, tokens=s.tokens * args.scale) for s in STAGES[1:]
    ]
    Trainer(args, stages).train()


if __name__ == "__main__":
    main()
