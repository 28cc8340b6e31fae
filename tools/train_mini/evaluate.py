"""Exact match by kind on conversations that training never shows.  Teacher-forced: a sample counts when every token of its answers
is the network's first choice, which is the same as greedy decoding giving that text.

    python evaluate.py runs/mini/last.pt [SAMPLES_PER_KIND]     the table, and greedy answers to a few questions
"""

import sys
from pathlib import Path

import torch
import torch.nn.functional as F

import batches
import ops
import prompt
import tasks

QUESTIONS = [
    "Hello!",
    "Who are you?",
    "What is the capital of Spain?",
    "Why is the sky blue?",
    "Tell me a story about a fox called Ruby.",
    "I feel lonely today.",
    "What is 27 + 45?",
    "Repeat after me: kite lamp zorba river",
    "Explain quantum physics to me.",
    "My name is Nadia. What is my name?",
]


@ops.plain_if_compiled()
@torch.no_grad()
def by_kind(model, encoder, count=24, length=1024, kinds=None, sparse=False, rows_at_once=4):
    """{kind: (exact match %, right tokens %, cross-entropy)} over the targets."""
    device = next(model.parameters()).device
    model.eval()
    table = {}
    for kind in kinds or [k for k in tasks.KINDS if k != "needle_long"]:
        documents = [encoder.conversation(tasks.test_sample(kind, i)) for i in range(count)]
        assert max(len(ids) for ids, _ in documents) <= length, kind
        wrong, right_tokens, tokens, loss = set(), 0, 0, 0.0
        columns = batches.pack(documents, length)
        for at in range(0, len(columns[0]), rows_at_once):
            ids, start, classes, number = (torch.tensor(c[at : at + rows_at_once], device=device) for c in columns)
            hidden, _ = model(ids, start, sparse=sparse)
            use = classes[:, 1:] == batches.TARGET
            logits = model.head(hidden[:, :-1][use]).float()
            want = ids[:, 1:][use]
            right = logits.argmax(-1) == want
            wrong |= set(number[:, 1:][use][~right].tolist())
            right_tokens, tokens = right_tokens + right.sum().item(), tokens + len(want)
            loss += F.cross_entropy(logits, want, reduction="sum").item()
        table[kind] = (
            round(100 * (count - len(wrong)) / count, 1),
            round(100 * right_tokens / tokens, 1),
            round(loss / tokens, 3),
        )
    model.train()
    return table


@ops.plain_if_compiled()
@torch.no_grad()
def answer(model, encoder, conv, limit=80, sparse=False):
    """Greedy continuation of a conversation that ends with the user's turn."""
    device = next(model.parameters()).device
    ids = encoder.ids("".join(text for text, _ in prompt.render(conv)))
    begin, window = len(ids), model.config.sliding_window
    model.eval()
    for _ in range(limit):
        width = -(-len(ids) // window) * window
        row = torch.tensor([ids + [2] * (width - len(ids))], device=device)
        hidden, _ = model(row, torch.zeros_like(row), sparse=sparse)
        token = int(model.head(hidden[0, len(ids) - 1]).argmax())
        if token == 1:
            break
        ids.append(token)
    model.train()
    return encoder.tokenizer.decode(ids[begin:], skip_special_tokens=False)


def show(table):
    """Two lines a person can read."""
    return (
        "exact "
        + "  ".join(f"{k} {v[0]:.0f}" for k, v in table.items())
        + "\ntokens "
        + "  ".join(f"{k} {v[1]:.0f}" for k, v in table.items())
    )


def main():
    from tokenizers import Tokenizer

    import model as network
    from token_map import token_map

    here = Path(__file__).parent
    tokenizer = Tokenizer.from_file(str(here / "tokenizer.json"))
    backbone = network.Backbone(network.Config.load(here / "config.json"), token_map(tokenizer))
    state = torch.load(sys.argv[1], map_location="cpu")
    backbone.load_state_dict(state["model"])
    encoder = batches.Encoder(tokenizer)
    if "total" in state:
        print(f"{state['total'] / 1e6:.2f} M tokens, stage {state['stage']}")
    print(show(by_kind(backbone, encoder, int(sys.argv[2]) if len(sys.argv) > 2 else 24)))
    for question in QUESTIONS:
        print(f"\n> {question}\n{answer(backbone, encoder, {'messages': [{'role': 'user', 'content': question}]})}")


if __name__ == "__main__":
    main()
