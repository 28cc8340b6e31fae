"""Turns conversations into packed rows of token ids.  The position in the endless stream is two integers, so a run resumes
exactly: chunk number k holds the conversations k * CHUNK ... and its rows come in a fixed shuffled order.
"""

import random
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import numpy as np
from tokenizers import Tokenizer

import prompt
import tasks

CHUNK = 400  # conversations packed together
# Classes of tokens: the loss weighs them differently.
PADDING, CONTEXT, TARGET, FREE = -1, 0, 1, 2  # FREE = first copy of random text: nothing to learn from it


class Encoder:
    def __init__(self, tokenizer):
        self.tokenizer = tokenizer
        # One-token pieces of ordinary text, for random sequences.
        self.text_ids = [i for i in range(3 + 256, tokenizer.get_vocab_size() - len(prompt.HIGH_CONTROLS))]

    def ids(self, text):
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def conversation(self, conv):
        """(ids, classes)"""
        if conv["kind"] == "repeat":
            return self.repeat(conv["rng"])
        ids, classes = [], []
        for text, target in prompt.render(conv):
            piece = self.ids(text)
            ids += piece
            classes += [TARGET if target else CONTEXT] * len(piece)
        return ids, classes

    def repeat(self, rng):
        """Random tokens two to four times over: the plainest text whose next token only the context can tell.  A network learns
        to copy from it within a million tokens, from conversations alone it takes far longer."""
        length, times = rng.randint(4, 28), rng.randint(2, 4)
        if rng.random() < 0.5:
            once = [rng.choice(self.text_ids) for _ in range(length)]
        else:
            draw = tasks.Draw(rng, "train")
            once = self.ids(
                " "
                + " ".join(
                    draw.word(draw.one("names", "animals", "things", "foods", "cities", "places"))
                    for _ in range(length)
                )
            )[:40]
        return [0] + once * times, [FREE] * (1 + len(once)) + [TARGET] * (len(once) * (times - 1))


def pack(documents, length):
    """[(ids, classes)] -> (ids, start, classes, document number), each [rows, length]; documents begin at even indices, so that
    groups of two tokens never mix documents.  Longer documents are left out.  The last, unfilled row is there too."""
    rows, row = [], None
    for number, (ids, classes) in enumerate(documents):
        if len(ids) > length:
            continue
        if row is None or len(row[0]) + len(ids) > length:
            row = ([], [], [], [])
            rows.append(row)
        begin = len(row[0])
        if len(ids) % 2 and begin + len(ids) < length:
            ids, classes = ids + [2], classes + [PADDING]
        for column, values in zip(row, (ids, [begin] * len(ids), classes, [number] * len(ids))):
            column.extend(values)
    for ids, start, classes, numbers in rows:
        missing = length - len(ids)
        begin = len(ids)
        ids.extend([2] * missing)
        start.extend(begin + i // 2 * 2 for i in range(missing))
        classes.extend([PADDING] * missing)
        numbers.extend([-1] * missing)
    return [np.array(column) for column in zip(*rows)]


def chunk_rows(encoder, seed, mix, length, chunk):
    """[(ids, start, classes)] of one chunk, in its shuffled order."""
    convs = (tasks.sample(seed, chunk * CHUNK + i, mix) for i in range(CHUNK))
    columns = pack([encoder.conversation(c) for c in convs], length)
    rows = list(zip(*(c[:-1] for c in columns[:3])))  # without the unfilled last row
    random.Random(f"{seed}/rows/{chunk}").shuffle(rows)
    return rows


class Workers:
    """Processes that make chunks ahead of time, for machines with cores to spare.  The data do not depend on their number."""

    def __init__(self, count, tokenizer_path):
        self.count = count
        self.pool = (
            ProcessPoolExecutor(count, get_context("spawn"), _begin_worker, (tokenizer_path,)) if count else None
        )

    def submit(self, *chunk_args):
        return self.pool.submit(_work, *chunk_args)


def _begin_worker(tokenizer_path):
    global _encoder
    _encoder = Encoder(Tokenizer.from_file(tokenizer_path))


def _work(*chunk_args):
    return chunk_rows(_encoder, *chunk_args)


class Stream:
    """Rows of one stage of the training, from a position (chunk, row) on."""

    def __init__(self, encoder, seed, mix, length, position=(0, 0), workers=None):
        self.encoder, self.seed, self.mix, self.length = encoder, seed, mix, length
        self.chunk, self.row = position
        self.workers = workers if workers and workers.count else None
        self.rows, self.ahead = None, {}

    def load(self):
        if self.workers is None:
            return chunk_rows(self.encoder, self.seed, self.mix, self.length, self.chunk)
        for chunk in range(self.chunk, self.chunk + 2 * self.workers.count):
            if chunk not in self.ahead:
                self.ahead[chunk] = self.workers.submit(self.seed, self.mix, self.length, chunk)
        return self.ahead.pop(self.chunk).result()

    def batch(self, size):
        """ids, start, classes [size, length]"""
        out = []
        while len(out) < size:
            if self.rows is None:
                self.rows = self.load()
            if self.row >= len(self.rows):
                self.chunk, self.row, self.rows = self.chunk + 1, 0, None
                continue
            out.append(self.rows[self.row])
            self.row += 1
        return [np.stack(column) for column in zip(*out)]

    @property
    def position(self):
        return self.chunk, self.row
