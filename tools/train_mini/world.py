"""The written world of galley-mini: word lists, questions with answers, story plots, tools; all read from data/*.txt.

Everything exists in two splits that share no member by construction: "train", and "test" for what training never shows.
What is held out is decided by checksums of the text itself, so that growing the files moves nothing across, except that a
held-out word which a new text uses becomes a training word:

  words    one in six of the starred lists, unless a written text uses the word anyway
  tools    one in eight names (written tools and invented verb_noun pairs)
  numbers  one in ten codes, and one in ten pairs of operands
  phrases  one in eight ways of putting a known question (facts are known; the wording is what is new)
"""

import re
import zlib
from functools import cache
from pathlib import Path

DATA = Path(__file__).parent / "data"
SPLITS = ("train", "test")


def checksum(*parts):
    return zlib.crc32("\x1f".join(map(str, parts)).encode())


def cap(text):
    return text[:1].upper() + text[1:]


def article(noun):
    return ("an " if noun[:1].lower() in "aeiou" else "a ") + noun


def data_lines(name):
    for line in (DATA / name).read_text(encoding="utf-8").splitlines():
        line = line.strip()
        if line and not line.startswith("#"):
            yield line


def sections(name):
    """[("header", [lines])] of a file with "[header]" lines."""
    out = []
    for line in data_lines(name):
        if line.startswith("[") and line.endswith("]"):
            out.append((line[1:-1], []))
        else:
            out[-1][1].append(line)
    return out


def alternatives(text):
    return [part.strip() for part in text.split(" | ")]


# ---- questions and answers ------------------------------------------------------------------------------------------

DEFINITION = [
    "what is {}",
    "tell me about {}",
    "can you explain {}",
    "what do you know about {}",
    "explain {}",
    "describe {}",
]


@cache
def facts():
    """[(phrases, answer)]: written facts and the rows of tables.txt."""
    out = []
    for path in sorted(DATA.glob("facts_*.txt")):
        for line in data_lines(path.name):
            left, answer = line.split(" => ")
            if left.startswith("@ "):
                out.append(([p.format(left[2:]) for p in DEFINITION], answer))
            else:
                out.append((alternatives(left), answer))
    return out + table_facts()


def table_facts():
    out = []
    for _, lines in sections("tables.txt"):
        forms = {"q": [], "a": None, "r": [], "ra": None}
        for line in lines:
            key, _, value = line.partition(": ")
            if key in ("q", "r"):
                forms[key] += alternatives(value)
            elif key in ("a", "ra"):
                forms[key] = value
            else:
                out += table_row(forms, *line.split(" = "))
    return out


def table_row(forms, a, b):
    slots = dict(
        a=a, b=b, A=cap(a), B=cap(b), an_a=article(a), an_b=article(b), An_a=cap(article(a)), An_b=cap(article(b))
    )
    for q, answer in (("q", "a"), ("r", "ra")):
        if forms[q]:
            yield [p.format(**slots) for p in forms[q]], forms[answer].format(**slots)


@cache
def chat():
    """[(phrases, answers)]; the phrase picks the answer (see answer_for)."""
    return [
        (alternatives(left), right.split(" || "))
        for left, _, right in (line.partition(" => ") for line in data_lines("chat.txt"))
    ]


@cache
def refusals():
    """[(question form, answer form)] with slots."""
    return [tuple(line.split(" => ")) for line in data_lines("refuse.txt")]


def answer_for(phrase, answers):
    return answers[checksum("answer", phrase) % len(answers)]


@cache
def plots():
    """{name: [sentences]}, with the common "openings" and "endings"."""
    return dict(sections("plots.txt"))


# ---- words ----------------------------------------------------------------------------------------------------------


@cache
def word_sections():
    """{name: (words, starred)}."""
    out = {}
    for header, lines in sections("words.txt"):
        name, _, star = header.partition(" ")
        text = " ".join(lines)
        words = [w.strip() for w in text.split("/")] if "/" in text else text.split()
        assert len(set(words)) == len(words), f"[{name}] has a word twice"
        out[name] = (words, star == "*")
    return out


@cache
def written_words():
    """Lower-case words of all texts that training shows verbatim."""
    names = [p.name for p in DATA.glob("*.txt") if p.name != "words.txt"]
    return set(re.findall(r"\w+", " ".join(line for n in names for line in data_lines(n)).lower()))


def is_held_out_word(section, word):
    parts = re.findall(r"\w+", word.lower())
    return checksum(section, word) % 6 == 0 and not all(p in written_words() for p in parts)


@cache
def words(section, split):
    every, starred = word_sections()[section]
    if not starred:
        return every
    # A word that stands in two lists is held out only if both agree.
    held = {
        w for w in every if all(is_held_out_word(s, w) for s, (ws, st) in word_sections().items() if st and w in ws)
    }
    return [w for w in every if (w in held) == (split == "test")]


@cache
def held_out_words():
    return sorted({w for s, (_, starred) in word_sections().items() if starred for w in words(s, "test")})


# A list of some dozen words can be learnt by heart, and a network that did so never learns to copy a word it has not seen. So training
# often puts a coined word where one of an open list stands; tests take the held-out words only.
COINED = dict(names=0.5, surnames=0.5, cities=0.5, countries_refuse=0.3, animals=0.25, things=0.25, places=0.25, foods=0.25)


def coined(rng, section):
    """The beginning of one training word and the end of another: pieces of the kind that real words have."""
    held = set(held_out_words())
    while True:
        first = rng.choice(words(section, "train"))
        second = rng.choice(words(rng.choice(list(COINED)), "train")).lower()
        if " " in first + second:
            continue
        word = first[: rng.randint(2, max(2, len(first) - 1))] + second[-rng.randint(2, 5) :]
        if not {word, word.lower(), cap(word)} & held:
            return word


def draw_word(rng, section, split):
    if split == "train" and rng.random() < COINED.get(section, 0):
        return coined(rng, section)
    return rng.choice(words(section, split))


# ---- numbers, phrases -------------------------------------------------------------------------------------------------


def number_split(*numbers):
    return "test" if checksum("number", *numbers) % 10 == 0 else "train"


def phrase_split(text):
    return "test" if checksum("phrase", text) % 8 == 0 else "train"


def tool_split(name):
    return "test" if checksum("tool", name) % 8 == 0 else "train"


def draw(rng, split, split_of, make):
    """The first value of make(rng) that belongs to the split."""
    for _ in range(10000):
        value = make(rng)
        if split_of(value) == split:
            return value
    raise AssertionError("no value of this split")


# ---- tools ------------------------------------------------------------------------------------------------------------


class Tool:
    """One written tool: schema, phrases of requests, and what comes back (see tools.txt)."""

    def __init__(self, name, lines):
        self.name, self.params, self.vars, self.asks = name, {}, {}, []
        self.about = self.result = self.say = ""
        for line in lines:
            key, _, value = line.partition(": ")
            if key == "param":
                left, _, spec = value.partition(" = ")
                param, kind = left.split()
                self.params[param] = (kind, spec)
            elif key == "var":
                var, _, spec = value.partition(" = ")
                self.vars[var] = spec
            elif key == "ask":
                self.asks = [a.strip() for a in value.split(";")]
            else:
                assert key in ("about", "result", "say"), line
                setattr(self, key, value)

    def schema(self):
        return tool_schema(self.name, self.about, {p: kind for p, (kind, _) in self.params.items()})

    def use(self, rng, split):
        """(request, arguments, result, answer)"""
        args = {}
        for param, (kind, spec) in self.params.items():
            args[param] = draw_value(rng, split, kind, spec)
            if list(args.values()).count(args[param]) > 1 and kind == "string":  # from A to A
                args[param] = draw_value(rng, split, kind, spec)
        shown = {k: show_value(v) for k, v in args.items()}
        shown |= {
            k: show_value(draw_value(rng, split, "integer" if ".." in spec else "string", spec))
            for k, spec in self.vars.items()
        }
        return fill(rng.choice(self.asks), shown), args, fill(self.result, shown), fill(self.say, shown)


def fill(text, slots):
    return re.sub(r"\{(\w+)\}", lambda m: slots.get(m[1], m[0]), text)


def show_value(value):
    if isinstance(value, bool):
        return "true" if value else "false"
    return " and ".join(value) if isinstance(value, list) else str(value)


def draw_value(rng, split, kind, spec):
    if ".." in spec and "<" not in spec:
        low, high = map(int, spec.split(".."))
        return rng.randint(low, high)
    if kind == "array":
        section = spec.strip("<>")
        return rng.sample(words(section, split), rng.randint(2, 3))
    if kind == "boolean":
        return rng.random() < 0.5
    choice = rng.choice(spec.split("|"))
    return re.sub(r"<(\w+)>", lambda m: draw_word(rng, m[1], split), choice)


def tool_schema(name, about, params):
    kinds = {
        p: {"type": "array", "items": {"type": "string"}} if k == "array" else {"type": k} for p, k in params.items()
    }
    return {
        "name": name,
        "description": about,
        "parameters": {"type": "object", "properties": kinds, "required": list(params)},
    }


@cache
def tools(split):
    return [t for t in (Tool(name, lines) for name, lines in sections("tools.txt")) if tool_split(t.name) == split]
