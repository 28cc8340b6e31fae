#!/usr/bin/env python3
"""Rules of the repository that no compiler checks: who may include whom, and what may stand where.

    tools/tidy.py [ROOT]        prints PATH:LINE: message for each problem; exit 1 when there is any

Each rule is one function below; what a rule permits is a table beside it. The allow-lists only
shrink: an entry that nothing needs any more is a problem too.
"""

import os
import re
import subprocess
import sys

# Module -> modules whose headers it may include. docs/ARCHITECTURE.md shows the same table.
ALLOWED = {
    "base": set(),
    "recipe": {"base"},
    "kernels": {"base"},
    "model": {"base", "kernels"},
    "cache": {"base"},
    "transport": {"base"},
    "engine": {"base", "recipe", "kernels", "model", "cache"},
    "cluster": {"base", "transport"},
    "gateway": {"base", "recipe", "transport", "cluster", "cache"},
    "worker": {"base", "recipe", "kernels", "model", "cache", "transport", "engine", "cluster"},
}
ALLOWED["plan"] = set(ALLOWED)  # the simulator runs the real policies

# Built from halves, so that this file passes its own rules.
MARKERS = "|".join(a + b for a, b in (("FIX", "ME"), ("TO", "DO"), ("XX", "X")))

# name, pattern, what to do instead, path prefixes that may. In C++ code outside comments.
CODE_BANS = [
    ("clock", r"\b(?:system|steady|high_resolution|utc|file)_clock\b|\bclock_gettime\b|\bgettimeofday\b"
     r"|\btime\s*\(\s*(?:nullptr|NULL|0|&)|\bstd::(?:local|gm)time\b",
     "take a galley::Clock", ["src/base/real_clock.cc"]),
    ("timer", r"\b(?:steady|system|high_resolution|deadline|basic_waitable|waitable)_timer\b"
     r"|\bclock_type\s*::\s*now\b", "use Loop::at; sockets wait through gateway/timed_io.h",
     ["src/gateway/timed_io.h", "src/gateway/timed_io.cc"]),
    ("sleep", r"\bsleep_(?:for|until)\b|\b(?:nano|u)?sleep\s*\(", "use Loop::at", []),
    ("random_device", r"\brandom_device\b", "use base/entropy.h", []),
    ("thread", r"\bstd::j?thread\b|\bpthread_create\b", "threads belong to base; tests may start their own",
     ["src/base/*", "src/*_test.cc"]),
    ("thread_pool", r"\b(?:static_)?thread_pool\b", "use base/task_pool.h or base/worker_pool.h", []),
    ("mutex", r"\bstd::(?:\w+_)?mutex\b|\bstd::condition_variable\w*"
     r"|<(?:mutex|shared_mutex|condition_variable)>", "use base/mutex.h, which is annotated",
     ["src/base/mutex.h", "src/base/log.cc"]),
    ("regex", r"\bstd::(?:basic_)?w?regex\b|<regex>", "std::regex recurses on its input", []),
]
CODE_BAN_FOLDERS = ("src/", "apps/", "bindings/")

# In every text file but data.
TEXT_BANS = [
    ("marker", rf"\b(?:{MARKERS})\b", "finish it, or file an issue"),
    ("path", r"(?<![\w.])/(?:root|work)/", "a path of one machine"),
]

# Compiled with flags the machine may lack: an inline function of any other header could be linked from there into everything.
ISA_FOLDERS = ("src/kernels/avx2/", "src/kernels/avx512/", "src/kernels/amx/")
ISA_INCLUDES = re.compile(
    r"<(?:cstddef|cstdint|immintrin\.h)>|\"kernels/(?:matmul|row_kernels|tile_kernels|probe_loops|(?:\w+/)?[\w-]+-inl)\.h\"")

FILE_BYTES_MAX = 256 * 1024
DATA_FOLDERS = ("tests/golden/", "tests/data/", "models/", "fuzz/corpus/")
LOCK_FILE = re.compile(r"(?:^|/)(?:package-lock\.json|[^/]*\.lock|[^/]*-lock\.yaml)$")
README_LINES_MAX = 20
CPP = (".h", ".hpp", ".cc", ".cpp")
SKIPPED_WITHOUT_GIT = {".git", "build", ".cache", "__pycache__", "node_modules"}


class Tree:
    """The files to check: what git tracks or would track, else everything on disk."""

    def __init__(self, root):
        self.root = root
        self.problems = []
        self.texts = {}
        for path in self._paths():
            full = os.path.join(root, path)
            if not os.path.isfile(full) or os.path.islink(full):
                continue
            size = os.path.getsize(full)
            is_data = path.startswith(DATA_FOLDERS)
            if size > FILE_BYTES_MAX and not is_data and not LOCK_FILE.search(path):
                self.report(path, 1, f"{size} bytes, more than {FILE_BYTES_MAX}")
            if is_data or size > 4 * FILE_BYTES_MAX:
                continue
            with open(full, "rb") as file:
                data = file.read()
            if b"\0" not in data:
                self.texts[path] = data.decode("utf-8", errors="replace")

    def _paths(self):
        listed = subprocess.run(
            ["git", "-C", self.root, "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            capture_output=True, text=True, check=False)
        if listed.returncode == 0 and os.path.exists(os.path.join(self.root, ".git")):
            return sorted(set(listed.stdout.split("\0")) - {""})
        paths = []
        for folder, folders, files in os.walk(self.root):
            folders[:] = sorted(set(folders) - SKIPPED_WITHOUT_GIT)
            paths += [os.path.relpath(os.path.join(folder, name), self.root) for name in files]
        return sorted(paths)

    def report(self, path, line, message):
        self.problems.append((path, line, message))

    def cpp(self, *folders):
        return [(p, t) for p, t in self.texts.items()
                if p.endswith(CPP) and (not folders or p.startswith(folders))]


def line_of(text, offset):
    return text.count("\n", 0, offset) + 1


COMMENT_OR_STRING = re.compile(
    r'//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|\'(?:\\[^\n]{1,8}|[^\'\\\n])\'', re.S)


def without_comments(text):
    """The code with comments and the insides of strings blanked; lines stay where they are."""
    def blank(match):
        return re.sub(r"[^\n]", " ", match.group())
    return COMMENT_OR_STRING.sub(blank, text)


def check_includes(tree):
    """Quoted includes start at src/ and follow ALLOWED."""
    include = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"]*)"', re.M)
    for path, text in tree.cpp("src/"):
        parts = path.split("/")
        here = parts[1]
        if len(parts) < 3 or here not in ALLOWED:
            tree.report(path, 1, f"{here} is no module; see ALLOWED in tools/tidy.py")
            continue
        for match in include.finditer(text):
            target = match.group(1).split("/")[0]
            if target != here and target not in ALLOWED[here]:
                tree.report(path, line_of(text, match.start()),
                            f'{here} must not include "{match.group(1)}"')


def check_isa_includes(tree):
    """Files of one instruction set include plain structs and what has internal linkage only."""
    for path, text in tree.cpp(*ISA_FOLDERS):
        for match in re.finditer(r"^[ \t]*#[ \t]*include[ \t]*(\S+)", text, re.M):
            if not ISA_INCLUDES.fullmatch(match.group(1)):
                tree.report(path, line_of(text, match.start()),
                            f"{match.group(1)} may bring functions compiled for this instruction set into all of the program")


def check_architecture(tree):
    """The table of docs/ARCHITECTURE.md, `| module | ... | may include |`, equals ALLOWED."""
    path = "docs/ARCHITECTURE.md"
    if path not in tree.texts:
        return
    rows = {}
    for number, line in enumerate(tree.texts[path].splitlines(), 1):
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        name = re.fullmatch(r"`(\w+)`", cells[0])
        if not line.startswith("|") or not name or len(cells) != 3:
            continue
        may = set(rows) if cells[2] == "everything above" else set(re.findall(r"`(\w+)`", cells[2]))
        rows[name.group(1)] = may
        if may != ALLOWED.get(name.group(1)) and name.group(1) in ALLOWED:
            tree.report(path, number, f"{name.group(1)}: not what tools/tidy.py allows")
    for module in ALLOWED.keys() ^ rows.keys():
        tree.report(path, 1, f"{module}: only in one of this table and tools/tidy.py")


def permits(pattern, path):
    """`*` stands for anything, folders included."""
    return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), path) is not None


def check_code(tree):
    """CODE_BANS, and no handler that swallows everything."""
    swallow = re.compile(r"\bcatch\s*\(\s*\.\.\.\s*\)\s*\{\s*\}")
    bans = [(re.compile(pattern), name, advice, allowed)
            for name, pattern, advice, allowed in CODE_BANS]
    used = set()
    for path, text in tree.cpp(*CODE_BAN_FOLDERS):
        code = without_comments(text)
        for pattern, name, advice, allowed in bans:
            for match in pattern.finditer(code):
                entries = [entry for entry in allowed if permits(entry, path)]
                used.update((name, entry) for entry in entries)
                if not entries:
                    tree.report(path, line_of(code, match.start()),
                                f"{name}: {match.group().strip()}; {advice}")
        for match in swallow.finditer(code):
            tree.report(path, line_of(code, match.start()), "catch: swallows every exception")
    for _, name, _, allowed in bans:
        for entry in allowed:
            if "*" not in entry and entry in tree.texts and (name, entry) not in used:
                tree.report(entry, 1, f"{name}: no longer needed in the allow-list of tools/tidy.py")


def check_text(tree):
    """TEXT_BANS."""
    bans = [(name, re.compile(pattern), advice) for name, pattern, advice in TEXT_BANS]
    for path, text in tree.texts.items():
        for name, pattern, advice in bans:
            for match in pattern.finditer(text):
                tree.report(path, line_of(text, match.start()), f"{name}: {match.group()}; {advice}")


def check_headers(tree):
    """The first line of a header that is not a comment is #pragma once."""
    for path, text in tree.cpp():
        if not path.endswith((".h", ".hpp")):
            continue
        code = without_comments(text)
        first = next((line for line in code.splitlines() if line.strip()), "")
        if first.split() != ["#pragma", "once"]:
            tree.report(path, 1, "a header starts with #pragma once")


def check_readmes(tree):
    """Each folder of src/ that holds code has a README.md of at most README_LINES_MAX lines."""
    for folder in sorted({os.path.dirname(path) for path, _ in tree.cpp("src/")}):
        readme = tree.texts.get(folder + "/README.md")
        if readme is None:
            tree.report(folder + "/README.md", 1, "missing: what is here, where to start")
        elif len(readme.splitlines()) > README_LINES_MAX:
            tree.report(folder + "/README.md", README_LINES_MAX + 1,
                        f"longer than {README_LINES_MAX} lines")


def check_links(tree):
    """Relative links in Markdown lead somewhere."""
    code = re.compile(r"^(```|~~~).*?^\1|`[^`\n]*`", re.S | re.M)
    link = re.compile(r"\]\(\s*<?([^()\s<>]+)>?[^()]*\)|^\[[^\]\n]+\]:[ \t]*(\S+)", re.M)
    for path, text in tree.texts.items():
        if not path.endswith(".md"):
            continue
        prose = code.sub(lambda match: re.sub(r"[^\n]", " ", match.group()), text)
        for match in link.finditer(prose):
            target = (match.group(1) or match.group(2)).split("#")[0]
            if not target or re.match(r"[a-z][a-z0-9+.-]*:", target):
                continue
            full = os.path.normpath(os.path.join(tree.root, os.path.dirname(path), target))
            if target.startswith("/") or not os.path.exists(full):
                tree.report(path, line_of(prose, match.start()), f"link leads nowhere: {target}")


RULES = [check_includes, check_isa_includes, check_architecture, check_code, check_text, check_headers, check_readmes,
         check_links]


def problems_of(root):
    tree = Tree(root)
    for rule in RULES:
        rule(tree)
    return len(tree.texts), sorted(tree.problems)


def main():
    root = sys.argv[1] if len(sys.argv) > 1 else os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    count, problems = problems_of(root)
    for path, line, message in problems:
        print(f"{path}:{line}: {message}")
    print(f"tidy: {count} files, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
