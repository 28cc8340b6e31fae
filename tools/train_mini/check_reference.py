"""Compares the training network with an independent reference implementation on an exported checkpoint: the dequantised weights are
read back into the network, both run the same tokens, and logits, drafts and confidences are compared.

    python check_reference.py CHECKPOINT.pt|random FOLDER_WITH_refmodel.py [CONFIG.json]

Expected: without fake quantisation of KV relative rms about 1e-6 (float32 sums in another order); with it a few values round the other
way (1e-3 or less).
"""

import random
import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path

import torch
from tokenizers import Tokenizer

import batches
import export
import model as network
import ops
import tasks
from token_map import token_map

HERE = Path(__file__).parent


def relative_rms(a, b):
    return ((a - b).square().mean().sqrt() / b.square().mean().sqrt()).item()


def main():
    checkpoint, folder = sys.argv[1:3]
    config_path = Path(sys.argv[3]) if len(sys.argv) > 3 else HERE / "config.json"
    sys.path.insert(0, folder)
    import refmodel

    torch.set_num_threads(1)
    torch.manual_seed(0)
    ops.use_plain()
    tokenizer = Tokenizer.from_file(str(HERE / "tokenizer.json"))
    config = network.Config.load(config_path)
    backbone, drafter = network.Backbone(config, token_map(tokenizer)), network.Drafter(config)
    if checkpoint != "random":
        state = torch.load(checkpoint, map_location="cpu")
        backbone.load_state_dict(state["model"])
        drafter.load_state_dict(state["drafter"])
    with tempfile.TemporaryDirectory() as out:
        count, size = export.write(backbone, drafter, tokenizer, Path(out), config=config_path)
        print(f"{count} tensors, {size / 1e6:.2f} MB")
        weights, text, _ = refmodel.load_checkpoint(out)
        export.read_back(backbone, weights, False)
        export.read_back(drafter, weights, True)
        backbone.eval(), drafter.eval()

        encoder, ids, i = batches.Encoder(tokenizer), [], 0
        while len(ids) < 3 * config.sliding_window:
            ids += encoder.conversation(tasks.test_sample(random.Random(i).choice(["para", "story", "needle"]), i))[0]
            i += 1
        n = len(ids) // config.sliding_window * config.sliding_window
        ids = torch.tensor(ids[:n])
        for quantised in (False, True):
            reference = refmodel.Ref(out, refmodel.Opt(kvq=quantised))
            memory = refmodel.State(n)
            want, features = reference.forward(memory, ids)
            start = torch.zeros(1, n, dtype=torch.long)
            with torch.no_grad(), nullcontext() if quantised else ops.exact():
                hidden, run = backbone(ids[None], start, sparse=True, want_features=True)
                got = backbone.head(hidden[0]).float()
                # A block after position n - 3: its first token is known.
                last = n - 3
                logits, h = drafter(backbone, run.features, ids[None], start, torch.tensor([0]), torch.tensor([last]))
                previous, guesses, confidences = ids[last + 1][None], [], []
                for k in range(config.dspark_block_size):
                    row, confidence = drafter.guess(logits, h, k, previous)
                    previous = row.argmax(-1)
                    guesses.append(int(previous))
                    confidences.append(confidence[0])
            reference.draft_context(memory, features[: last + 1], 0)
            tokens, want_confidence = reference.draft(memory, last, int(ids[last + 1]))
            print(
                "with KV quantisation" if quantised else "without             ",
                f"tokens {n}  logits rel. rms {relative_rms(got, want):.1e}  max abs {(got - want).abs().max():.1e}  "
                f"argmax equal {(got.argmax(-1) == want.argmax(-1)).float().mean():.3f}  drafts {'equal' if tokens == guesses else (tokens, guesses)}  "
                f"confidence {(torch.stack(confidences) - want_confidence).abs().max():.1e}",
            )


if __name__ == "__main__":
    main()
