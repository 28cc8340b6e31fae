"""Loss and measure of the DSpark drafter on a frozen backbone."""

import random

import torch
import torch.nn.functional as F

import batches
import ops
import tasks

ANCHORS = 48  # blocks per row


def anchors(ids, start, classes, rng, count, size):
    """(row, last) of places where the next size + 1 tokens are answers of one document."""
    B, T = ids.shape
    n = T - size - 1
    ok = (
        (classes[:, 1 : n + 1] == batches.TARGET)
        & (classes[:, size + 1 : size + 1 + n] == batches.TARGET)
        & (start[:, :n] == start[:, size + 1 : size + 1 + n])
    )
    found = ok.nonzero()
    pick = torch.tensor(
        sorted(rng.sample(range(len(found)), min(count, len(found)))), dtype=torch.long, device=ids.device
    )
    return found[pick].T


@torch.no_grad()
def backbone_pass(model, ids, start, classes, rng, count):
    """Features, anchors and the backbone's logits for the tokens the block has to guess."""
    size = model.config.dspark_block_size
    hidden, run = model(ids, start, sparse=True, want_features=True)  # as served
    row, last = anchors(ids, start, classes, rng, count, size)
    steps = torch.arange(size, device=ids.device)
    return run.features, row, last, model.head(hidden[row[:, None], last[:, None] + 1 + steps]).float()


def losses(model, drafter, ids, start, classes, seed):
    """(loss, cross-entropy of the guesses, mean accepted share); the chain sees the true previous tokens."""
    size = model.config.dspark_block_size
    features, row, last, target_logits = backbone_pass(
        model, ids, start, classes, random.Random(seed), ANCHORS * len(ids)
    )
    logits, hidden = drafter(model, features, ids, start, row, last)
    want = ids[row[:, None], last[:, None] + 2 + torch.arange(size, device=ids.device)]
    loss, entropy, accepted = 0.0, 0.0, 0.0
    for i in range(size):
        guess, confidence = drafter.guess(logits, hidden, i, ids[row, last + 1 + i])
        distance = 0.5 * (guess.softmax(-1) - target_logits[:, i].softmax(-1)).abs().sum(-1)  # 1 - chance of acceptance
        ce = F.cross_entropy(guess, want[:, i])
        loss = loss + 0.8**i * (
            0.5 * ce + distance.mean() + 0.1 * F.binary_cross_entropy_with_logits(confidence, 1 - distance.detach())
        )
        entropy, accepted = entropy + ce.detach() / size, accepted + (1 - distance.detach().mean()) / size
    for stage in drafter.stages:
        stage.ffn.counts.clear()
    return loss, entropy, accepted


@ops.plain_if_compiled()
@torch.no_grad()
def measure(
    model,
    drafter,
    encoder,
    samples=160,
    kinds=("chat", "fact", "unknown", "story", "para", "memory", "tool", "json", "think"),
):
    """Greedy acceptance on unseen conversations, at places where the text is the backbone's own greedy text: tokens per verification
    (with the bonus token) and the share of blocks accepted up to each position."""
    size = model.config.dspark_block_size
    device = next(model.parameters()).device
    documents = [encoder.conversation(tasks.test_sample(kinds[i % len(kinds)], 5000 + i)) for i in range(samples)]
    lengths = []
    columns = batches.pack(documents, 512)
    for at in range(0, len(columns[0]), 8):
        ids, start, classes = (torch.tensor(c[at : at + 8], device=device) for c in columns[:3])
        features, row, last, target_logits = backbone_pass(model, ids, start, classes, random.Random(at), 256)
        if not len(row):
            continue
        best = target_logits.argmax(-1)
        own = (best == ids[row[:, None], last[:, None] + 2 + torch.arange(size, device=device)]).all(-1)
        logits, hidden = drafter(model, features, ids, start, row, last)
        previous, alive, length = (
            ids[row, last + 1],
            torch.ones(len(row), dtype=torch.bool, device=device),
            torch.zeros(len(row), device=device),
        )
        for i in range(size):
            previous = drafter.guess(logits, hidden, i, previous)[0].argmax(-1)
            alive = alive & (previous == best[:, i])
            length = length + alive
        lengths.append(length[own])
    length = torch.cat(lengths)
    return length.mean().item() + 1, [(length > i).float().mean().item() for i in range(size)]


def show(result):
    tokens, positions = result
    return f"drafter: {tokens:.2f} tokens per verification; accepted up to position 1..{len(positions)}: " + " ".join(
        f"{p:.2f}" for p in positions
    )
