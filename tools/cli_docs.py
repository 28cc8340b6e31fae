"""Writes the manual page and the shell completions of the `galley` binary, from what its --help says.

    python3 tools/cli_docs.py BINARY FOLDER

makes FOLDER/galley.1, galley.bash, _galley (zsh) and galley.fish.
"""

import pathlib
import re
import subprocess
import sys
from dataclasses import dataclass, field


@dataclass
class Option:
    names: list[str]
    value: str  # "" for a flag
    text: str


@dataclass
class Command:
    words: list[str]  # behind `galley`
    text: str
    usage: str
    options: list[Option] = field(default_factory=list)
    positionals: list[Option] = field(default_factory=list)
    commands: list["Command"] = field(default_factory=list)

    def all(self):
        yield self
        for command in self.commands:
            yield from command.all()


NOTE = re.compile(r"\s+(REQUIRED|Excludes:.*|Needs:.*)")


def entry(line):
    """An entry of a section: its names, its value's kind, its text if that begins in this line."""
    line = re.sub(r" ?\(Env:[^)]*\) ?", "  ", line.strip())  # behind it there may be one space only
    head, _, text = re.match(r"^(\S.*?)(?:(\s{2,})(\S.*))?$", line).groups()
    names, _, value = NOTE.sub("", " " + head).strip().partition(" ")
    return names, value.strip(), text or ""


def parse(binary, words):
    text = subprocess.run([binary, *words, "--help"], capture_output=True, text=True, check=True).stdout
    lines = text.splitlines()
    usage = next(i for i, line in enumerate(lines) if line.startswith("Usage: "))
    command = Command(words, " ".join(lines[:usage]).strip(), lines[usage][7:])
    section, last, indent = "", None, 2
    for line in lines[usage + 1 :]:
        if line.startswith("[Option Group: "):
            section, last, indent = "", None, 4
        elif re.match(r"^ *[A-Z]\w+:$", line):
            section, last = line.strip()[:-1], None
        elif section and re.match(rf"^ {{1,{indent}}}\S", line):
            names, value, about = entry(line)
            if section == "Subcommands":
                command.commands.append(parse(binary, [*words, names]))
                last = None
            elif names.startswith("-") or section == "Positionals":
                last = Option(names.split(","), value, about)
                (command.positionals if section == "Positionals" else command.options).append(last)
        elif line.strip() and last is not None and line.startswith("   "):
            last.text = f"{last.text} {line.strip()}".strip()
    return command


def roff(text):
    return text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq")


def man(root, version):
    out = [f'.TH GALLEY 1 "" "Galley {version}" "User Commands"', ".SH NAME", "galley \\- " + roff(root.text)]
    out += [".SH SYNOPSIS", ".B galley", "COMMAND [OPTIONS]"]
    for command in root.all():
        if command is root:
            continue
        out += [f'.SH "{roff("galley " + " ".join(command.words)).upper()}"', roff(command.text), ".PP",
                ".B " + roff(command.usage)]
        for option in command.positionals + command.options:
            value = f" \\fI{roff(option.value)}\\fR" if option.value else ""
            out += [".TP", f"\\fB{roff(', '.join(option.names))}\\fR{value}", roff(option.text)]
    out += [".SH SEE ALSO", "The documentation in the source tree, and /openapi.json of a running server."]
    return "\n".join(out) + "\n"


def flags(command):
    return [name for option in command.options for name in option.names]


def bash(root):
    cases = "\n".join(
        f'    "{" ".join(command.words)}") words="{" ".join([*(c.words[-1] for c in command.commands), *flags(command)])}" ;;'
        for command in root.all()
    )
    return f"""# bash completion of galley
_galley() {{
  local current=${{COMP_WORDS[COMP_CWORD]}} at="" words="" word
  for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
    case " {' '.join(sorted({w for c in root.all() for w in c.words}))} " in
      *" $word "*) at="${{at:+$at }}$word" ;;
    esac
  done
  case "$at" in
{cases}
  esac
  # shellcheck disable=SC2207
  COMPREPLY=($(compgen -W "$words" -- "$current"))
}}
complete -o default -F _galley galley
"""


def zsh(root):
    return f"""#compdef galley
autoload -U +X bashcompinit && bashcompinit
{bash(root)}"""


def fish(root):
    def quote(text):
        first = text.split(". ")[0]
        return "'" + first.replace("\\", "\\\\").replace("'", "\\'") + "'"

    out = ["# fish completion of galley"]
    for command in root.all():
        inside = " and ".join(f"__fish_seen_subcommand_from {word}" for word in command.words) or "__fish_use_subcommand"
        for sub in command.commands:
            out.append(f"complete -c galley -n '{inside}' -a {sub.words[-1]} -d {quote(sub.text)}")
        for option in command.options:
            names = " ".join(
                f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}" for name in option.names
            )
            out.append(f"complete -c galley -n '{inside}' {names}{' -r' if option.value else ''} -d {quote(option.text)}")
    return "\n".join(out) + "\n"


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    binary, folder = sys.argv[1], pathlib.Path(sys.argv[2])
    version = subprocess.run([binary, "--version"], capture_output=True, text=True, check=True).stdout.split()[-1]
    root = parse(binary, [])
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in {
        "galley.1": man(root, version), "galley.bash": bash(root), "_galley": zsh(root), "galley.fish": fish(root)
    }.items():
        (folder / name).write_text(text)


if __name__ == "__main__":
    main()
