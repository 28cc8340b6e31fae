#!/usr/bin/env python3
"""Writes the 10 MB of text on which tokenizers are compared (spec recipe 9.4).

    bench/recipe/make_text.py --tokenizer tokenizer.json --out text.txt

4 MB Python code (this interpreter's standard library, in order of its paths), 3 MB English words
(every word of that library, drawn at random), 2 MB Chinese (words of the vocabulary, drawn at
random, with punctuation) and 1 MB JSON. The same interpreter version gives the same bytes.
"""

import argparse
import json
import pathlib
import random
import re
import sysconfig

MB = 1_000_000
HAN_WORD = re.compile(r"[\u4e00-\u9fa5]+")


def byte_of_char():
    """GPT-2's table, from printable characters back to bytes."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(b): b for b in plain} | {chr(0x100 + i): b for i, b in enumerate(others)}


def han_words(tokenizer):
    table = byte_of_char()
    words = []
    for spelling in json.loads(tokenizer.read_text("utf-8"))["model"]["vocab"]:
        try:
            text = bytes(table[c] for c in spelling).decode("utf-8")
        except (KeyError, UnicodeDecodeError):
            continue
        if HAN_WORD.fullmatch(text):
            words.append(text)
    return words


def library(size):
    text = ""
    for path in sorted(pathlib.Path(sysconfig.get_path("stdlib")).glob("*.py")):
        text += path.read_text("utf-8", errors="replace")
        if len(text) > size:
            break
    # A small library is simply repeated; caches of whole documents would notice, nothing else.
    return (text * (size // len(text) + 1))[:size]


def fill(size, draw):
    """Pieces of `draw()` until they have `size` bytes."""
    parts, have = [], 0
    while have < size:
        parts.append(draw())
        have += len(parts[-1].encode())
    return "".join(parts)


def sentence(rng, words):
    return "".join(rng.choice(words) for _ in range(rng.randint(3, 12))) + rng.choice("，，，。。？\n")


def record(rng, words):
    return json.dumps(
        {
            "id": rng.randrange(10**9),
            "name": " ".join(rng.choices(words, k=2)),
            "score": round(rng.random() * 100, 3),
            "tags": rng.choices(words, k=rng.randint(0, 5)),
            "active": rng.random() < 0.5,
            "parent": None if rng.random() < 0.3 else {"ref": f"{rng.getrandbits(64):016x}"},
        }
    ) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokenizer", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    args = parser.parse_args()
    rng = random.Random(20261129)
    code = library(4 * MB)
    words = sorted(set(re.findall(r"[A-Za-z]{2,}", code)))
    han = han_words(args.tokenizer)
    parts = [
        code,
        fill(3 * MB, lambda: rng.choice(words) + (" " if rng.random() < 0.9 else rng.choice([". ", ", ", "\n"]))),
        fill(2 * MB, lambda: sentence(rng, han)),
        fill(1 * MB, lambda: record(rng, words)),
    ]
    args.out.write_text("".join(parts), "utf-8")


if __name__ == "__main__":
    main()
