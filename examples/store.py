#!/usr/bin/env python3
"""Blocks of another engine, kept over its restarts: what its author writes around galley.store.

    python examples/store.py [FOLDER]

The engine here is a stand-in with one property that matters: the rows of a block follow from all tokens up to its end, and making them
takes long. Its prompt is cut into blocks of 16 tokens; each layer's rows are a part of the block.
"""

import hashlib
import sys
import tempfile
import time

from galley.store import Damaged, Store

BLOCK_TOKENS = 16
LAYERS = 4
WEIGHTS = b"toy-engine-1"  # another model, another quantisation: other keys


def block_keys(tokens):
    """A name for each whole block that stands for all that its rows depend on."""
    keys, parent = [], hashlib.sha256(WEIGHTS).digest()[:16]
    for begin in range(0, len(tokens) // BLOCK_TOKENS * BLOCK_TOKENS, BLOCK_TOKENS):
        block = b"".join(token.to_bytes(4, "little") for token in tokens[begin:begin + BLOCK_TOKENS])
        parent = hashlib.sha256(parent + block).digest()[:16]
        keys.append(parent)
    return keys


def compute_block(tokens, end):
    """The engine's work: a part for each layer."""
    time.sleep(0.01)
    seed = repr(tokens[:end]).encode()
    return [hashlib.sha256(seed + bytes([layer])).digest() * 512 for layer in range(LAYERS)]


def prefill(store, tokens, tenant):
    keys = block_keys(tokens)
    cache = []
    lease = store.match(keys, namespace=tenant)
    for index in range(len(lease)):
        try:
            cache.append(lease.get(index))
        except Damaged:  # a promise that cannot be kept shortens the hit
            break
    hit = len(cache)
    for index in range(hit, len(keys)):
        parts = compute_block(tokens, (index + 1) * BLOCK_TOKENS)
        store.put(keys[index], parts, namespace=tenant, parent=keys[index - 1] if index else bytes(16), retention="agent")
        cache.append(parts)
    store.commit()
    return hit, cache


def run(folder):
    prompt = list(range(1000, 1640))
    caches = []
    for tokens, tenant in ((prompt, "alice"), (prompt + list(range(64)), "alice"), (prompt, "bob")):
        with Store(folder) as store:  # a new process each time, as far as the store can tell
            begin = time.monotonic()
            hit, cache = prefill(store, tokens, tenant)
            print(f"{tenant}: {hit} of {len(cache)} blocks from the store, {time.monotonic() - begin:.3f} s")
            caches.append(cache)
    assert caches[1][:len(caches[0])] == caches[0]
    print("the same rows")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        run(sys.argv[1])
    else:
        with tempfile.TemporaryDirectory() as scratch:
            run(scratch)
