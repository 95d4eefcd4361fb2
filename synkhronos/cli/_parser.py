"""The verbs of ``synk``, and the parser of its command line."""

from __future__ import annotations

import argparse
import ast
import importlib
from dataclasses import dataclass
from pathlib import Path

import synkhronos

_EPILOG = """\
exit codes: 0 done, 1 failed, 2 wrong usage
`synk VERB --help` explains a verb.
"""


@dataclass(frozen=True)
class Verb:
    """What is known of a verb without an import of its file."""

    name: str
    text: str
    aliases: tuple[str, ...] = ()

    @staticmethod
    def of(file: Path) -> Verb:
        tree = ast.parse(file.read_text())
        aliases: tuple[str, ...] = ()
        for node in tree.body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "ALIASES":
                aliases = ast.literal_eval(node.value)
        return Verb(file.stem, ast.get_docstring(tree) or "", aliases)


def verbs() -> list[Verb]:
    """All verbs, by name; none is imported."""
    return [Verb.of(file) for file in sorted(Path(__file__).parent.glob("[!_]*.py"))]


def parsers_for(
    chosen: str | None,
) -> tuple[argparse.ArgumentParser, dict[str, argparse.ArgumentParser]]:
    """The parser of `synk`, and those of its verbs by name; the chosen verb gets its arguments.

    Parameters
    ----------
    chosen : str or None
        Name or alias of a verb; None: all verbs get their arguments.
    """
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        "synk",
        description="Synkhronos: all your cores, for PyTensor functions.",
        epilog=_EPILOG,
        formatter_class=raw,
    )
    parser.add_argument(
        "--version", action="version", version=f"synkhronos {synkhronos.__version__}"
    )
    known = parser.add_subparsers(title="verbs", metavar="VERB", dest="verb")
    children = {}
    for verb in verbs():
        child = children[verb.name] = known.add_parser(
            verb.name,
            aliases=verb.aliases,
            help=verb.text.partition("\n")[0],
            description=verb.text,
            formatter_class=raw,
        )
        if chosen is None or chosen in (verb.name, *verb.aliases):
            module = importlib.import_module(f"synkhronos.cli.{verb.name}")
            module.arguments(child)
            child.set_defaults(verb_main=module.run)
    return parser, children
