"""The verbs of ``synk``, and the parser of its command line."""

from __future__ import annotations

import argparse
import ast
import importlib
import re
import sys
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import synkhronos
from synkhronos._checks import closest
from synkhronos._errors import printable
from synkhronos._host import system

_EPILOG = """\
exit codes: 0 done, 1 failed, 2 wrong usage
`synk VERB --help` explains a verb.
"""


class Parser(argparse.ArgumentParser):
    """A parser that says which word may have been meant."""

    # whether options may stand between positional arguments, which argparse else takes for the end
    # of a list
    mixed = False

    def parse_known_args(self, args: Any = None, namespace: object = None) -> Any:
        """Parse them; `parse_known_intermixed_args` calls this method in its turn."""
        if not self.mixed:
            return super().parse_known_args(args, namespace)
        self.mixed = False
        try:
            return self.parse_known_intermixed_args(args, namespace)
        finally:
            self.mixed = True

    def error(self, message: str) -> NoReturn:
        """Name the verb or the choice that is nearest to a wrong one."""
        found = re.search(r"invalid choice: '(.*?)' \(choose from (.*)\)", message)
        if found is not None:
            message += _hint(found[1], re.findall(r"[^\s,']+", found[2]))
        super().error(printable(message, kept="\n"))


class Formatter(argparse.RawDescriptionHelpFormatter):
    """Help as it is written, wrapped where the terminal is narrower (COLUMNS)."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n".join(f"{indent}{line}" for line in wrapped(text, width - len(indent)))


def wrapped(text: str, width: int) -> Iterator[str]:
    r"""The lines of a text; a paragraph with a longer one is filled anew.

    A line that begins with spaces stands for itself. If it has two columns, the second one stays.

    >>> list(wrapped("one two\nthree\n  a   words of a", 13))
    ['one two', 'three', '  a   words', '      of a']
    """
    lines = text.split("\n")
    while lines:
        taken = [lines.pop(0)]
        while lines and _is_plain(taken[0]) and _is_plain(lines[0]):
            taken.append(lines.pop(0))
        if max(map(len, taken)) <= width:
            yield from taken
        elif _is_plain(taken[0]):
            yield from textwrap.wrap(" ".join(taken), width, break_on_hyphens=False)
        else:
            yield from _in_columns(taken[0], width)


def _is_plain(line: str) -> bool:
    return bool(line) and not line.startswith(" ")


def _in_columns(line: str, width: int) -> Iterator[str]:
    found = re.match(r"( +)(?:\S+(?: \S+)* {2,})?", line)
    assert found is not None
    first, margin = found[0], found[1]
    hanging = " " * len(first)
    if len(first) > width // 2:
        yield first.rstrip()
        first = hanging = f"{margin}    "
    elif first == margin:
        hanging = f"{margin}    "
    yield from textwrap.wrap(
        line[found.end() :],
        width,
        initial_indent=first,
        subsequent_indent=hanging,
        break_on_hyphens=False,
    )


def meant(word: str, parser: argparse.ArgumentParser) -> str:
    """The end of a message about an option that a parser does not have."""
    names = [name for action in parser._actions for name in action.option_strings]
    return _hint(word.partition("=")[0], names)


def _hint(word: str, known: Iterable[str]) -> str:
    found = closest(word, list(known))
    return f"; did you mean {found}?" if found else ""


@dataclass(frozen=True)
class Verb:
    """A verb, as far as it is known without an import of its file."""

    name: str
    text: str
    aliases: tuple[str, ...] = ()

    @staticmethod
    def of(file: Path) -> Verb:
        tree = ast.parse(file.read_text(encoding="utf-8"))  # Windows has another default
        aliases: tuple[str, ...] = ()
        for node in tree.body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "ALIASES":
                aliases = ast.literal_eval(node.value)
        return Verb(file.stem, ast.get_docstring(tree) or "", aliases)


def verbs() -> list[Verb]:
    """All verbs, by name; none is imported."""
    return [Verb.of(file) for file in sorted(Path(__file__).parent.glob("[!_]*.py"))]


def parsers_for(
    chosen: str | None,  # name or alias of a verb; None: all verbs get their arguments
) -> tuple[argparse.ArgumentParser, dict[str, argparse.ArgumentParser]]:
    """The parser of `synk`, and those of its verbs by name; the chosen verb gets its arguments."""
    parser = Parser(
        "synk",
        description="Synkhronos: all your cores, for PyTensor functions.",
        epilog="\n".join(filter(None, [_EPILOG, system.works(sys.platform)])),
        formatter_class=Formatter,
    )
    parser.add_argument(
        "--version", action="version", version=f"synkhronos {synkhronos.__version__}"
    )
    known = parser.add_subparsers(title="verbs", metavar="VERB", dest="verb")
    children: dict[str, argparse.ArgumentParser] = {}
    for verb in verbs():
        child = children[verb.name] = known.add_parser(
            verb.name,
            aliases=verb.aliases,
            help=verb.text.partition("\n")[0],
            description=verb.text,
            formatter_class=Formatter,
        )
        if chosen is None or chosen in (verb.name, *verb.aliases):
            module = importlib.import_module(f"synkhronos.cli.{verb.name}")
            module.arguments(child)
            child.set_defaults(verb_main=module.run)
    return parser, children
