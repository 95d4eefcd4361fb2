"""The directive ``verbs``: usage, arguments and help of each verb of ``synk``, from its parser."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from pathlib import Path

from docutils import nodes
from docutils.parsers.rst import Directive
from docutils.statemachine import StringList
from sphinx.application import Sphinx

import synkhronos.cli
from synkhronos.cli._parser import parsers_for, verbs


class Verbs(Directive):
    """One section for each verb."""

    def run(self) -> list[nodes.Node]:
        for file in (Path(__file__), *Path(synkhronos.cli.__file__).parent.glob("*.py")):
            self.state.document.settings.env.note_dependency(str(file))
        _, parsers = parsers_for(None)
        found = nodes.Element()
        for verb in verbs():
            lines = list(described(parsers[verb.name], verb.aliases))
            text = StringList(lines, source=f"synk {verb.name}")
            self.state.nested_parse(text, 0, found, match_titles=True)
        return list(found.children)


def described(parser: argparse.ArgumentParser, aliases: tuple[str, ...]) -> Iterator[str]:
    """The section of a verb."""
    yield from (parser.prog, "-" * len(parser.prog), "")
    parser.formatter_class = lambda prog: argparse.HelpFormatter(prog, width=100)
    usage = parser.format_usage().removeprefix("usage: ").rstrip()
    yield from literal((line.strip() for line in usage.splitlines()), "shell")
    yield from block(parser.description or "")
    if aliases:
        yield from (f"Also called {', '.join(f'``{a}``' for a in aliases)}.", "")
    for action in parser._actions:
        if isinstance(action, argparse._HelpAction) or action.help == argparse.SUPPRESS:
            continue
        words = action.option_strings or [str(action.metavar or action.dest)]
        value = "" if not action.option_strings or action.nargs == 0 else f" {value_of(action)}"
        yield ", ".join(f"``{word}{value}``" for word in words)
        text = (action.help or "") % {**vars(action), "prog": parser.prog}
        yield from (f"   {text}", "")


def value_of(action: argparse.Action) -> str:
    """What stands behind an option."""
    if action.choices is not None and action.metavar is None:
        return "{" + ",".join(map(str, action.choices)) + "}"
    metavar = action.metavar or action.dest.upper()
    return metavar if isinstance(metavar, str) else " ".join(metavar)


def block(text: str) -> Iterator[str]:
    """Paragraphs of a help text; a line that ends with a colon begins a literal block."""
    for paragraph in text.split("\n\n"):
        first, *rest = paragraph.splitlines() or [""]
        if first.endswith(":") and rest:
            kind = "shell" if first == "Examples:" else "text"
            yield from (first, "", *literal(rest, kind))
        elif first.startswith("  "):
            yield from literal(paragraph.splitlines(), "text")
        else:
            yield from (*paragraph.splitlines(), "")


def literal(lines: Iterable[str], kind: str) -> Iterator[str]:
    """A block of text, or of command lines."""
    yield from (f".. code-block:: {kind}", "", *(f"   {line}" for line in lines), "")


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directive."""
    app.add_directive("verbs", Verbs)
    return {"parallel_read_safe": True}
