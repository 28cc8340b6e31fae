"""Seeded generator of conversations of every kind galley-mini learns.

    sample(seed, index, mix)        the index-th training conversation: a pure function of its arguments, so that a training run can
                                    resume anywhere
    test_sample(kind, index)        the index-th unseen conversation of one kind (held-out words, tools, numbers, phrasings)

    python tasks.py KIND N [test]   prints N of them

A conversation (see prompt.py) also has "kind", and may have "accept": strings that a right answer must contain, where more than
one text is right.
"""

import random
import sys

import prompt
import world
from world import article, cap

EFFORTS = [50, 75, 75, 75, 100]
SYSTEM_TEXTS = [
    "You are a helpful assistant.",
    "You are Galley Mini, a friendly helper.",
    "Answer in short, simple sentences.",
    "You are a friendly assistant. Be brief.",
    "Help the user.",
    "You are a kind helper for children.",
    "You are a helpful assistant. Use simple words.",
]


class Draw:
    """One conversation's source of words and numbers, all of one split."""

    def __init__(self, rng, split):
        self.rng, self.split = rng, split

    def word(self, section):
        return world.draw_word(self.rng, section, self.split)

    def distinct(self, section, count):
        out = self.rng.sample(world.words(section, self.split), count)
        if self.split == "train":
            out = [self.word(section) if self.chance(0.5) else w for w in out]
        return out if len(set(out)) == count else self.distinct(section, count)

    def more(self, most):
        """How many further questions to ask about the same context.  Training asks several, for a context is long and an answer short;
        tests ask one, so that every answer stands alone."""
        return self.rng.randint(0, most) if self.split == "train" else 0

    def one(self, *options):
        return self.rng.choice(options)

    def chance(self, p):
        return self.rng.random() < p

    def code(self, digits=4):
        low = 10 ** (digits - 1)
        return world.draw(self.rng, self.split, world.number_split, lambda r: r.randrange(low, 10 * low))

    def pair(self, make):
        return world.draw(self.rng, self.split, lambda ab: world.number_split(*ab), make)

    def mixed_words(self, count):
        """Distinct words of all lists, sometimes invented ones."""
        out = []
        while len(out) < count:
            w = (
                self.invented()
                if self.chance(0.15)
                else self.word(self.one("things", "animals", "places", "foods", "colours"))
            )
            if w not in out:
                out.append(w)
        return out

    def invented(self):
        return "".join(self.word("syllables") for _ in range(self.rng.randint(2, 4)))


def user(text):
    return {"role": "user", "content": text}


def assistant(text, reasoning="", calls=None):
    return {"role": "assistant", "content": text, "reasoning": reasoning} | ({"calls": calls} if calls else {})


# ---- ways of putting a question ---------------------------------------------------------------------------------------

QUESTION_WORDS = (
    "who",
    "what",
    "how",
    "do ",
    "are ",
    "can ",
    "which",
    "where",
    "why",
    "when",
    "is ",
    "does ",
    "did ",
    "at what",
    "in which",
    "on which",
    "may ",
    "will ",
)


def sentence(d, phrase):
    """The phrase as a person may type it."""
    text = d.one(phrase, cap(phrase), cap(phrase))
    return text + (d.one("", "?", "?", "?") if phrase.startswith(QUESTION_WORDS) else d.one("", ".", ".", "!"))


def wrapped(d, phrase):
    """Longer ways, for questions about facts; which ones are held out depends on the whole text."""
    if d.chance(0.55) or not phrase.startswith(QUESTION_WORDS):
        return sentence(d, phrase)
    return d.one(
        "Please tell me: {}?",
        "Hello! {C}?",
        "I have a question: {}?",
        "Tell me, {}?",
        "Hey, {}?",
        "{C}, please?",
        "Can you help me? {C}?",
        "Do you know this: {}?",
        "Quick question: {}?",
        "Hi, {}?",
    ).format(phrase, C=cap(phrase))


def fact_turn(d):
    """(question, answer)"""

    def make(rng):
        phrases, answer = rng.choice(world.facts())
        return wrapped(d, rng.choice(phrases)), answer

    return world.draw(d.rng, d.split, lambda qa: world.phrase_split(qa[0]), make)


def chat_turn(d):
    phrases, answers = d.rng.choice(world.chat())
    phrase = d.rng.choice(phrases)
    return sentence(d, phrase), world.answer_for(phrase, answers)


def refusal_turn(d):
    form, answer = d.rng.choice(world.refusals())
    slots = {
        "topic": lambda: d.word("refuse"),
        "country": lambda: d.word("countries_refuse"),
        "city": lambda: d.word("cities"),
        "person": lambda: d.word("names") + " " + d.word("surnames"),
        "word": d.invented,
    }
    name = form[form.index("{") + 1 : form.index("}")]
    value = slots[name]()
    return sentence(d, form.replace("{%s}" % name, value)), answer.replace("{%s}" % name, value)


def small_turn(d):
    return d.one(chat_turn, fact_turn, fact_turn, refusal_turn, sum_turn)(d)


def sum_turn(d):
    op = d.one("+", "+", "-", "*", ">")
    top = d.one(10, 20, 100, 100) if op in "+-" else 11 if op == "*" else 1000
    a, b = d.pair(lambda r: (r.randrange(top), r.randrange(top)))
    if op == ">":
        a, b = (a, b) if a != b else (a, b + 1)
        return d.one(
            f"Which is bigger, {a} or {b}?", f"Which number is larger: {a} or {b}?"
        ), f"{max(a, b)} is bigger than {min(a, b)}."
    if op == "-" and b > a:
        a, b = b, a
    value = {"+": a + b, "-": a - b, "*": a * b}[op]
    name = {"+": "plus", "-": "minus", "*": "times"}[op]
    question = d.one(
        f"What is {a} {op} {b}?",
        f"{a} {op} {b} =",
        f"Calculate {a} {op} {b}.",
        f"{a}{op}{b}",
        f"What is {a} {name} {b}?",
        f"How much is {a} {name} {b}?",
        f"what is {a} {op} {b}",
    )
    return question, f"{a} {op} {b} = {value}"


# ---- kinds: each takes a Draw and returns a conversation without kind ---------------------------------------------------


def finish(d, messages, reasoning=None, p_think=0.12, p_system=0.15, **extra):
    """Adds a system text and the thinking mode by chance; `reasoning` is what the model may think before its last turn."""
    conv = {"messages": messages, **extra}
    if reasoning and d.chance(p_think):
        conv |= {"thinking": True, "effort": d.rng.choice(EFFORTS)}
        messages[-1]["reasoning"] = reasoning
    if messages[0]["role"] != "system" and d.chance(p_system):
        messages.insert(0, {"role": "system", "content": d.rng.choice(SYSTEM_TEXTS)})
    return conv


def after_small_talk(d, messages, p=0.12):
    """The same conversation after one or two other turns."""
    before = []
    if d.chance(p):
        for _ in range(d.rng.randint(1, 2)):
            q, a = small_turn(d)
            before += [user(q), assistant(a)]
    return before + messages


def kind_chat(d):
    q, a = chat_turn(d)
    return finish(
        d, after_small_talk(d, [user(q), assistant(a)], 0.25), "The user talks to me. I will answer in a kind way."
    )


def kind_fact(d):
    q, a = fact_turn(d)
    return finish(d, after_small_talk(d, [user(q), assistant(a)]), "This is a simple question. I know the answer.")


def kind_unknown(d):
    q, a = refusal_turn(d)
    return finish(d, after_small_talk(d, [user(q), assistant(a)]), "I do not know this. I will say so.")


def kind_arith(d):
    q, a = sum_turn(d)
    return finish(d, after_small_talk(d, [user(q), assistant(a)]), None)


def column_sum(a, b):
    """Digit by digit from the right, with the carry: 3+5+1=9, ..."""
    steps, carry = [], 0
    for i in range(max(len(str(a)), len(str(b)))):
        x, y = a // 10**i % 10, b // 10**i % 10
        total = x + y + carry
        steps.append(f"{x}+{y}" + (f"+{carry}" if carry else "") + f"={total}")
        carry = total // 10
    return ", ".join(steps) + f". So {a} + {b} = {a + b}."


def kind_think(d):
    digits = d.one(2, 2, 3, 3, 4)
    a, b = d.pair(lambda r: (r.randrange(10**digits), r.randrange(10 ** d.one(digits, digits, max(1, digits - 1)))))
    question = d.one(
        f"What is {a} + {b}?",
        f"{a} + {b} =",
        f"Calculate {a} + {b}.",
        f"{a}+{b}",
        f"What is {a} plus {b}?",
        f"Add {a} and {b}.",
        f"what is {a} + {b}",
    )
    return finish(
        d, after_small_talk(d, [user(question), assistant(f"{a} + {b} = {a + b}")]), column_sum(a, b), p_think=1
    )


def repeated(d, turn, most=2):
    """The messages of one turn, in training of some more before it."""
    turns = [turn(d) for _ in range(1 + d.more(most))]
    return [m for q, a in turns for m in (user(q), assistant(a))]


def copy_turn(d):
    text = " ".join(d.mixed_words(d.rng.randint(2, 8)))
    if d.chance(0.2):
        text = d.one(story(d)[1].split(". ")[0] + ".", filler(d))
    ask = d.one(
        "Repeat after me: {}",
        "Copy this: {}",
        "Say exactly: {}",
        "Repeat: {}",
        "Please copy this text: {}",
        "Write this again: {}",
    )
    return ask.format(text), text


def kind_copy(d):
    return finish(d, after_small_talk(d, repeated(d, copy_turn)), "I copy the words in the same order.")


def reverse_turn(d):
    items = d.mixed_words(d.rng.randint(2, 5))
    ask = d.one(
        "Reverse the order of these words: {}",
        "Say these words backwards: {}",
        "Write these words from last to first: {}",
    )
    return ask.format(" ".join(items)), " ".join(items[::-1])


def kind_reverse(d):
    return finish(d, repeated(d, reverse_turn), "I start with the last word.")


def sort_turn(d):
    if d.chance(0.5):
        items = list(d.pair(lambda r: tuple(r.sample(range(100), r.randint(2, 5)))))
        ask = d.one("Sort these numbers: {}", "Put these numbers in order: {}", "Sort from small to large: {}")
    else:
        items = d.mixed_words(d.rng.randint(2, 4))
        ask = d.one("Sort these words from A to Z: {}", "Put these words in alphabetical order: {}")
    show = lambda xs: " ".join(map(str, xs))
    return ask.format(show(items)), show(sorted(items))


def kind_sort(d):
    return finish(d, repeated(d, sort_turn), "I look for the first one, then the next.")


# ---- stories and texts ----------------------------------------------------------------------------------------------------

PRONOUNS = {"he": ("he", "his", "him"), "she": ("she", "her", "her")}


def story(d, name=None):
    """(slots, text)"""
    he, fhe = d.one("he", "she"), d.one("he", "she")
    n, f = d.distinct("names", 2)
    p, q = d.distinct("animals", 2)
    place, place2 = d.distinct("places", 2)
    s = {
        "n": n,
        "f": f,
        "p": p,
        "q": q,
        "t": d.word("things"),
        "c": d.word("colours"),
        "place": place,
        "place2": place2,
        "food": d.word("foods"),
    }
    s |= dict(zip(("he", "his", "him"), PRONOUNS[he])) | dict(zip(("fhe", "fhis", "fhim"), PRONOUNS[fhe]))
    s |= {
        "He": cap(s["he"]),
        "His": cap(s["his"]),
        "Fhe": cap(s["fhe"]),
        "a_p": article(p),
        "a_q": article(q),
        "a_t": article(s["t"]),
        "a_ct": article(s["c"]) + " " + s["t"],
    }
    name = name or d.rng.choice([k for k in world.plots() if k not in ("openings", "endings")])
    lines = [d.rng.choice(world.plots()["openings"])] + world.plots()[name] + [d.rng.choice(world.plots()["endings"])]
    return s, " ".join(world.fill(pick_wording(d, line), s) for line in lines)


def pick_wording(d, line):
    """ "(a / b)" -> one of them."""
    while "(" in line:
        before, _, rest = line.partition("(")
        inner, _, after = rest.partition(")")
        line = before + d.rng.choice(inner.split(" / ")) + after
    return line


STORY_ASKS = [
    ("tell me a story", ""),
    ("can you tell me a short story", ""),
    ("tell me a story about {a_p}", "p"),
    ("write a short story about {a_p} called {n}", "pn"),
    ("tell me a story with {a_t}", "t"),
    ("tell me a story about {a_ct}", "ct"),
    ("please tell me a story about {n} the {p}", "pn"),
    ("tell me a story about {n} and {f}", "nf"),
    ("tell me a story about {a_p} and {a_q}", "pq"),
    ("tell me a story about {a_p} called {n}", "pn"),
    ("i want a story about {a_p} called {n} and {a_t}", "pnt"),
    ("tell me a bedtime story about {a_p}", "p"),
    ("write a story about {n} the {p} and {f} the {q}", "pnfq"),
]


def kind_story(d):
    s, text = story(d)
    ask, needs = d.rng.choice(STORY_ASKS)
    what = f" about {s['a_p']} called {s['n']}" if set("pn") <= set(needs) else ""
    return finish(
        d,
        after_small_talk(d, [user(sentence(d, world.fill(ask, s))), assistant(text)], 0.06),
        f"The user wants a story{what}. I will keep it short.",
        accept=[s[k] for k in needs],
    )


def filler(d):
    n, m = d.distinct("names", 2)
    place, thing, food = d.word("places"), d.word("things"), d.word("foods")
    return d.one(
        f"{n} went to the {place} with {article(d.word('colours'))} {thing}.",
        f"The {d.word('animals')} likes {food}.",
        f"{n} and {m} ate {food} in the {place}.",
        f"It was a {d.word('weather')} day in {d.word('cities')}.",
        f"{n} bought {article(thing)} for {d.rng.randint(2, 99)} coins.",
        f"On {d.word('days')} the {place} is {d.one('open', 'closed', 'full', 'empty')}.",
        f"{n} is a {d.word('sizes')} {d.word('animals')}.",
        f"{n} gave {m} some {food}.",
        f"The {thing} of {n} is {d.word('colours')}.",
        f"In {d.word('months')} it is {d.word('weather')} in {d.word('cities')}.",
        f"{n} learns {d.word('hobbies')} with {m}.",
    )


def kind_needle(d, low=3, high=22):
    things = d.distinct("things", d.rng.randint(2, 3) + d.more(2))
    codes = [d.code(d.one(4, 4, 5)) for _ in things]
    word = d.one("secret number", "secret number", "code", "number")
    lines = [filler(d) for _ in range(d.rng.randint(low, high))]
    for thing, code in zip(things, codes):
        lines.insert(d.rng.randrange(len(lines) + 1), f"The {word} of the {thing} is {code}.")
    text, messages = " ".join(lines) + "\n\n", []
    for thing, code in list(zip(things, codes))[: 1 + d.more(len(things) - 1)]:
        ask = d.one("What is the {} of the {}?", "Tell me the {} of the {}.", "Do you remember the {} of the {}?")
        messages += [user(text + ask.format(word, thing)), assistant(f"The {word} of the {thing} is {code}.")]
        text = ""
    return finish(d, messages, "I look for it in the text.")


def kind_needle_long(d):
    return kind_needle(d, 60, 230)


def every_fact(d, name):
    """[(sentence, question, answer)] about one person."""
    city, animal, food, age, job, colour, hobby = (
        d.word("cities"),
        d.word("animals"),
        d.word("foods"),
        d.rng.randint(5, 80),
        d.word("jobs"),
        d.word("colours"),
        d.word("hobbies"),
    )
    return [
        (f"{name} lives in {city}.", f"Where does {name} live?", f"{name} lives in {city}."),
        (f"{name} has {article(animal)}.", f"What animal does {name} have?", f"{name} has {article(animal)}."),
        (f"{name} likes {food}.", f"What does {name} like?", f"{name} likes {food}."),
        (f"{name} is {age} years old.", f"How old is {name}?", f"{name} is {age} years old."),
        (f"{name} works as {article(job)}.", f"What is the job of {name}?", f"{name} works as {article(job)}."),
        (
            f"The house of {name} is {colour}.",
            f"What colour is the house of {name}?",
            f"The house of {name} is {colour}.",
        ),
        (f"{name} enjoys {hobby}.", f"What does {name} enjoy?", f"{name} enjoys {hobby}."),
    ]


def some_facts(d, name):
    return d.rng.sample(every_fact(d, name), d.rng.randint(2, 4))


def kind_para(d):
    further = []
    if d.chance(0.25):
        s, text = story(d)
        question, answer = d.one(
            (f"What animal is {s['n']}?", f"{s['n']} is {s['a_p']}."),
            (f"Who is the {s['p']}?", f"The {s['p']} is {s['n']}."),
            ("Who are the two friends?", f"The two friends are {s['n']} and {s['f']}."),
        )
        if s["f"] not in text or s["p"] not in text:
            question, answer = "Who is the story about?", f"The story is about {s['n']}."
    else:
        names = d.distinct("names", d.rng.randint(2, 4))
        people = [some_facts(d, name) for name in names]
        lines = [line for facts in people for line, _, _ in d.rng.sample(facts, len(facts))]
        if d.chance(0.5):
            d.rng.shuffle(lines)
        text = " ".join(lines)
        _, question, answer = d.rng.choice(d.rng.choice(people))
        if d.chance(0.1):  # asked for what the text leaves out
            told = {q for facts in people for _, q, _ in facts}
            question = d.rng.choice([q for _, q, _ in every_fact(d, d.rng.choice(names)) if q not in told])
            answer = "The text does not say that."
        others = [(q, a) for facts in people for _, q, a in facts if q != question]
        for q, a in d.rng.sample(others, min(d.more(3), len(others))):
            further += [user(q), assistant(a)]
    form = d.one("Read this text and answer the question.\n\n{}\n\n{}", "{}\n\n{}", "Text: {}\n\nQuestion: {}", "{} {}")
    messages = [user(form.format(text, question)), assistant(answer)] + further
    return finish(d, messages, "I look for it in the text.")


def kind_memory(d):
    name, city, animal, colour, food, job, hobby, thing = (
        d.word("names"),
        d.word("cities"),
        d.word("animals"),
        d.word("colours"),
        d.word("foods"),
        d.word("jobs"),
        d.word("hobbies"),
        d.word("things"),
    )
    if d.chance(0.15):  # a name given by the system text
        text = d.one(
            f"You are a helpful assistant called {name}.",
            f"Your name is {name}.",
            f"You are {name}, a friendly helper.",
        )
        q = d.one("What is your name?", "what is your name", "What are you called?")
        return {
            "messages": [{"role": "system", "content": text}]
            + after_small_talk(d, [user(q), assistant(f"My name is {name}.")], 0.5)
        }
    code = d.code(d.one(3, 4))
    kin = d.one("brother", "sister", "friend", "teacher", "mother", "father")
    facts = [
        (f"My name is {name}.", f"Nice to meet you, {name}!", "What is my name?", f"Your name is {name}."),
        (f"I am {name}.", f"Nice to meet you, {name}!", "What is my name?", f"Your name is {name}."),
        (f"I live in {city}.", f"{city} is a nice place!", "Where do I live?", f"You live in {city}."),
        (
            f"I have {article(animal)} called {name}.",
            f"{name} is a lovely name for {article(animal)}!",
            f"What is my {animal} called?",
            f"Your {animal} is called {name}.",
        ),
        (
            f"My favourite colour is {colour}.",
            f"{cap(colour)} is a beautiful colour!",
            "What is my favourite colour?",
            f"Your favourite colour is {colour}.",
        ),
        (f"I like {food} best.", f"I see, you like {food}!", "What do I like best?", f"You like {food} best."),
        (
            f"I am {article(job)}.",
            f"It must be interesting to be {article(job)}.",
            "What is my job?",
            f"You are {article(job)}.",
        ),
        (f"My hobby is {hobby}.", f"{cap(hobby)} is a nice hobby!", "What is my hobby?", f"Your hobby is {hobby}."),
        (
            f"The code of my {thing} is {code}.",
            "I will remember it.",
            f"What is the code of my {thing}?",
            f"The code of your {thing} is {code}.",
        ),
        (
            f"My {kin} is called {name}.",
            f"{name} is a nice name!",
            f"What is the name of my {kin}?",
            f"Your {kin} is called {name}.",
        ),
    ]
    told = d.rng.sample(facts, d.one(1, 1, 2) + d.more(2))
    if sum(name in say for say, *_ in told) > 1:  # one name for two people would be odd
        told = told[:1]
    messages = []
    for say, ack, _, _ in told:
        messages += [user(d.one("", "", "Hi! ", "Hello! ", "Please remember: ") + say), assistant(ack)]
    for _ in range(d.rng.randint(0, 3)):
        q, a = small_turn(d)
        messages += [user(q), assistant(a)]
    _, _, q, a = d.rng.choice(told)
    asked = [(q, a)] + d.rng.sample([t[2:] for t in told if t[2] != q], d.more(len(told) - 1))
    for q, a in asked:
        messages += [user(d.one(q, q, q.lower().replace(" i ", " I "), "Do you remember? " + q)), assistant(a)]
    return finish(d, messages, "The user told me this before.")


# ---- tools and JSON ---------------------------------------------------------------------------------------------------------

CALCULATOR = world.tool_schema("calculator", "Calculate an expression.", {"expression": "string"})


def use_calculator(d):
    a, b = d.pair(lambda r: (r.randrange(100, 9999), r.randrange(100, 9999)))
    op = d.one("+", "-", "*")
    value = a + b if op == "+" else a - b if op == "-" else a * b
    return f"what is {a} {op} {b}", {"expression": f"{a} {op} {b}"}, str(value), f"{a} {op} {b} = {value}"


def invented_tool(d):
    """(schema, request, arguments) of a tool that nobody has seen: a verb, a noun and one to three keys."""
    verb, noun = world.draw(
        d.rng,
        d.split,
        lambda vn: world.tool_split("_".join(vn)),
        lambda r: (r.choice(world.words("verbs", "train")), r.choice(world.words("nouns", "train"))),
    )
    keys = d.distinct("keys", d.one(1, 1, 2, 2, 3))
    whole = {"count", "level", "size", "number", "amount", "floor", "length", "duration", "speed"}
    kinds = {k: "integer" if k in whole else "number" if k == "price" else "string" for k in keys}
    args = {}
    for k in keys:
        args[k] = (
            d.rng.randint(1, 200)
            if kinds[k] == "integer"
            else d.rng.randint(1, 50) + d.one(0.5, 0.25, 0.75)
            if kinds[k] == "number"
            else d.word(d.one("names", "cities", "things", "colours", "animals"))
            if d.chance(0.8)
            else d.invented()
        )
    told = d.one(" and ", ", ").join(f"{k} {v}" for k, v in args.items())
    request = d.one(
        f"Please {verb} {article(noun)} with {told}.",
        f"{cap(verb)} the {noun}: {told}.",
        f"I want to {verb} {article(noun)}, {told}.",
        f"Can you {verb} {article(noun)} with {told}?",
        f"{verb} {noun}, {told}",
    )
    about = d.one(
        f"{cap(verb)} {article(noun)}.",
        f"Use this to {verb} {article(noun)}.",
        f"{cap(verb)}s {article(noun)} for the user.",
    )
    return world.tool_schema(f"{verb}_{noun}", about, kinds), request, args


def other_schemas(d, count, besides):
    """Schemas of tools that are there but not needed."""
    out = []
    while len(out) < count:
        schema = (
            invented_tool(d)[0]
            if d.chance(0.4)
            else d.rng.choice(world.tools("train")).schema()
            if d.split == "train"
            else d.rng.choice(world.tools("test")).schema()
        )
        if schema["name"] not in besides | {s["name"] for s in out}:
            out.append(schema)
    return out


def invented_exchange(d, p_result=0.4):
    """(schema, messages) of one request that calls a tool nobody has seen."""
    schema, request, args = invented_tool(d)
    messages = [user(request), assistant("", f"I need the tool {schema['name']}.", [(schema["name"], args)])]
    if d.chance(p_result):
        messages += [
            {"role": "tool", "content": d.one('{"ok": true}', "done", '{"status": "ok"}')},
            assistant(f"Done! I used {schema['name']} for you.", "It worked."),
        ]
    return schema, messages


def written_exchange(d, p_result=0.5):
    """The same with a tool of the written world, called once or twice at a time."""
    name, schema, use = "calculator", CALCULATOR, lambda: use_calculator(d)
    if d.chance(0.9):
        tool = d.rng.choice(world.tools(d.split))
        name, schema, use = tool.name, tool.schema(), lambda: tool.use(d.rng, d.split)
    uses = [use() for _ in range(d.one(1, 1, 1, 2))]
    request = " and ".join(u[0] for u in uses)
    messages = [user(sentence(d, request)), assistant("", f"I need the tool {name}.", [(name, u[1]) for u in uses])]
    if d.chance(p_result):
        messages += [{"role": "tool", "content": u[2]} for u in uses] + [
            assistant(" ".join(u[3] for u in uses), "I have the result.")
        ]
    return schema, messages


def kind_tool(d):
    roll = d.rng.random()
    thinking = d.chance(0.3)
    mode = {"thinking": True, "effort": d.rng.choice(EFFORTS)} if thinking else {}
    if roll < 0.12:  # tools are there, none is needed
        q, a = small_turn(d)
        messages = [user(q), assistant(a, "I need no tool for this.")]
        schemas = other_schemas(d, d.one(1, 1, 2), set())
    else:
        schema, messages = (invented_exchange if roll < 0.45 else written_exchange)(d)
        schemas = [schema] + other_schemas(d, d.one(0, 0, 1, 2), {schema["name"]})
    for _ in range(d.more(2)):
        schema, before = d.one(invented_exchange, written_exchange)(d, p_result=1)
        if schema["name"] not in {s["name"] for s in schemas}:
            schemas.append(schema)
            messages = before + messages
    d.rng.shuffle(schemas)
    if d.chance(0.15):
        messages.insert(0, {"role": "system", "content": d.rng.choice(SYSTEM_TEXTS)})
    return {"messages": messages, "tools": schemas, **mode}


def person_facts(d):
    """(name, {key: (value, JSON type, sentence)})"""
    name, city, age, food, pet, job = (
        d.word("names"),
        d.word("cities"),
        d.rng.randint(5, 80),
        d.word("foods"),
        d.word("animals"),
        d.word("jobs"),
    )
    scores, married, size = (
        [d.rng.randint(0, 20) for _ in range(d.rng.randint(1, 3))],
        d.chance(0.5),
        d.rng.randint(90, 199) / 100,
    )
    every = {
        "age": (age, "integer", f"{name} is {age} years old."),
        "city": (city, "string", f"{name} lives in {city}."),
        "food": (food, "string", f"{name} likes {food}."),
        "pet": (pet, "string", f"{name} has {article(pet)}."),
        "job": (job, "string", f"{name} works as {article(job)}."),
        "married": (married, "boolean", f"{name} is {'' if married else 'not '}married."),
        "size": (size, "number", f"{name} is {size} metres tall."),
        "scores": (scores, "array", f"{name} has the scores " + ", ".join(map(str, scores)) + "."),
    }
    return name, every


def kind_json(d):
    name, every = person_facts(d)
    keys = d.rng.sample(list(every), d.rng.randint(1, 3))
    order = ["name"] + keys
    d.rng.shuffle(order)
    form, messages = "json_object", []
    if d.chance(0.35):
        kinds = {"name": "string"} | {k: every[k][1] for k in keys}
        form = {
            "type": "object",
            "properties": {
                k: {"type": "array", "items": {"type": "integer"}} if kinds[k] == "array" else {"type": kinds[k]}
                for k in order
            },
            "required": order,
        }
    for turn in range(1 + d.more(2)):
        if turn:
            name, every = person_facts(d)
        messages += json_turn(d, name, every, keys, order, form)
    return finish(d, messages, "I write the values under the keys.", format=form)


def json_turn(d, name, every, keys, order, form):
    text, names = " ".join(every[k][2] for k in keys), ", ".join(order)
    if form == "json_object":
        ask = d.one(
            f"Give me a JSON object with the keys {names}. {text}",
            f"Write JSON with the keys {names}. {text}",
            f"{text} Write this as JSON with the keys {names}.",
        )
    else:
        ask = d.one(f"{text}", f"Give me the data as JSON. {text}", f"Turn this into JSON: {text}")
    values = {"name": name} | {k: every[k][0] for k in keys}
    return [user(ask), assistant(prompt.json_text({k: values[k] for k in order}))]


KINDS = {name[5:]: f for name, f in list(globals().items()) if name.startswith("kind_")}


# ---- the two entrances ---------------------------------------------------------------------------------------------------------


def sample(seed, index, mix):
    """mix: {kind: weight}; a kind "repeat" is made by batches.py, not here."""
    rng = random.Random(f"{seed}/{index}")
    kind = rng.choices(list(mix), list(mix.values()))[0]
    if kind == "repeat":
        return {"kind": kind, "rng": rng}
    return {"kind": kind, **KINDS[kind](Draw(rng, "train"))}


def test_sample(kind, index):
    rng = random.Random(f"test/{kind}/{index}")
    return {"kind": kind, **KINDS[kind](Draw(rng, "test"))}


def main():
    kind, count = sys.argv[1], int(sys.argv[2])
    for i in range(count):
        conv = test_sample(kind, i) if "test" in sys.argv[3:] else sample(0, i, {kind: 1})
        print("".join(f"\x1b[32m{t}\x1b[0m" if target else t for t, target in prompt.render(conv)) + "\n")


if __name__ == "__main__":
    main()
