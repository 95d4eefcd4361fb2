"""Completions for fish, which shtab does not write.

https://fishshell.com/docs/current/cmds/complete.html
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence

from synkhronos.cli._parser import Verb


def script(
    parser: argparse.ArgumentParser,
    children: Mapping[str, argparse.ArgumentParser],
    verbs: Sequence[Verb],
    files: Sequence[str],
) -> str:
    """The script.

    Parameters
    ----------
    parser, children : argparse.ArgumentParser, mapping of them
        As `parsers_for` gives them, with all arguments.
    verbs : sequence of Verb
    files : sequence of str
        The names, in the help, of arguments that are files or folders.
    """
    none = "__fish_use_subcommand"
    lines = [_line(none, "-f"), *_options(none, parser, files)]
    for verb in verbs:
        names = " ".join((verb.name, *verb.aliases))
        lines.append(_line(none, f"-a {_quoted(names)}", verb.text.partition("\n")[0]))
        chosen = f"__fish_seen_subcommand_from {names}"
        if not any(_is_file(a, files) for a in _positional(children[verb.name])):
            lines.append(_line(chosen, "-f"))
        lines += _options(chosen, children[verb.name], files)
    return "\n".join(lines)


def _options(when: str, parser: argparse.ArgumentParser, files: Sequence[str]) -> Iterator[str]:
    for action in parser._actions:
        if action.help is argparse.SUPPRESS or isinstance(action.choices, Mapping):
            continue
        words = [
            f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}"
            for name in action.option_strings
        ]
        if words and action.nargs != 0:
            words.append("-r" if _is_file(action, files) else "-x")
        if action.choices is not None:
            words.append(f"-a {_quoted(' '.join(map(str, action.choices)))}")
        if words:
            yield _line(when, " ".join(words), str(action.help or ""))


def _positional(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    return [action for action in parser._actions if not action.option_strings]


def _is_file(action: argparse.Action, files: Sequence[str]) -> bool:
    return str(action.metavar or "").strip(".[] ") in files


def _line(when: str, words: str, text: str = "") -> str:
    about = f" -d {_quoted(text)}" if text else ""
    return f"complete -c synk -n {_quoted(when)} {words}{about}"


def _quoted(text: str) -> str:
    """A text between single quotes, in which fish knows two escapes."""
    plain = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{plain}'"
