"""Writes a random model of under 2 MB with every layer role and the real tokenizer, for unit tests that must be fast.

    python make_tiny.py models/mini-test

The values are random but their ranges are those of a trained network: logits of rms 3, so that greedy choices have a margin.
"""

import sys
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
LOGIT_RMS = 3.0


def main():
    torch.manual_seed(7)
    torch.set_num_threads(1)
    ops.use_plain()
    tokenizer = Tokenizer.from_file(str(HERE / "tokenizer.json"))
    config = network.Config.load(HERE / "config_tiny.json")
    backbone, drafter = network.Backbone(config, token_map(tokenizer)).eval(), network.Drafter(config).eval()
    with torch.no_grad():
        for module in (backbone, drafter):
            for name, p in module.named_parameters():
                if name.endswith("norm.weight"):
                    p.copy_(1 + 0.2 * torch.randn_like(p))
                elif "attn_sink" in name or name.endswith("_base"):
                    p.add_(0.5 * torch.randn_like(p))
                elif "hc_" in name and name.endswith("_fn"):
                    p.mul_(20)
        ids = batches.Encoder(tokenizer).conversation(tasks.sample(0, 0, {"para": 1}))[0]
        ids = torch.tensor([(ids * 4)[: 8 * config.sliding_window]])
        hidden, _ = backbone(ids, torch.zeros_like(ids), sparse=True)
        backbone.head.weight.mul_(LOGIT_RMS / backbone.head(hidden).square().mean().sqrt())
    count, size = export.write(backbone, drafter, tokenizer, Path(sys.argv[1]), config=HERE / "config_tiny.json")
    export.write_logits(Path(sys.argv[1]), tokenizer, HERE / "config_tiny.json")
    print(f"{sys.argv[1]}: {count} tensors, {size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
