"""Print a script that lets the shell complete the commands of `synk`.

The script is static: a Tab imports nothing. It has to be printed again after an update.

Examples:
  synk completion bash > ~/.local/share/bash-completion/completions/synk
  synk completion zsh > ~/.zfunc/_synk          # ~/.zfunc must be in fpath
  synk completion fish > ~/.config/fish/completions/synk.fish
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence

from synkhronos._errors import needing
from synkhronos.cli._parser import Verb

# Arguments that are files or folders, by their names in the help
_FILES = ("FILE", "FOLDER", "CONFIG", "SCRIPT", "RUN")


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this verb."""
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), help="the shell")


def run(options: argparse.Namespace) -> int:
    """Print the script."""
    from synkhronos.cli._parser import parsers_for, verbs

    parser, children = parsers_for(None)
    if options.shell == "fish":
        sys.stdout.write(_for_fish(parser, children, verbs()) + "\n")
        return 0
    with needing("shtab"):
        import shtab
    for child in children.values():
        for action in child._actions:
            if _is_file(action):
                action.complete = shtab.FILE  # type: ignore[attr-defined]
    sys.stdout.write(shtab.complete(parser, options.shell) + "\n")
    return 0


def _for_fish(
    parser: argparse.ArgumentParser,
    children: Mapping[str, argparse.ArgumentParser],
    verbs: Sequence[Verb],
) -> str:
    """The script for fish, which shtab does not write.

    https://fishshell.com/docs/current/cmds/complete.html
    """
    none = "__fish_use_subcommand"
    lines = [_line(none, "-f"), *_options(none, parser)]
    for verb in verbs:
        names = " ".join((verb.name, *verb.aliases))
        lines.append(_line(none, f"-a {_quoted(names)}", verb.text.partition("\n")[0]))
        chosen = f"__fish_seen_subcommand_from {names}"
        actions = children[verb.name]._actions
        if not any(_is_file(action) for action in actions if not action.option_strings):
            lines.append(_line(chosen, "-f"))
        lines += _options(chosen, children[verb.name])
    return "\n".join(lines)


def _options(when: str, parser: argparse.ArgumentParser) -> Iterator[str]:
    for action in parser._actions:
        if action.help is argparse.SUPPRESS or isinstance(action.choices, Mapping):
            continue
        words = [
            f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}"
            for name in action.option_strings
        ]
        if words and action.nargs != 0:
            words.append("-r" if _is_file(action) else "-x")
        if action.choices is not None:
            words.append(f"-a {_quoted(' '.join(map(str, action.choices)))}")
        if words:
            yield _line(when, " ".join(words), str(action.help or ""))


def _is_file(action: argparse.Action) -> bool:
    return str(action.metavar or "").strip(".[] ") in _FILES


def _line(when: str, words: str, text: str = "") -> str:
    about = f" -d {_quoted(text)}" if text else ""
    return f"complete -c synk -n {_quoted(when)} {words}{about}"


def _quoted(text: str) -> str:
    """A text between single quotes, in which fish knows two escapes."""
    plain = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{plain}'"
