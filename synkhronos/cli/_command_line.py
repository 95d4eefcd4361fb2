"""Reads the command line of ``synk``, and runs the verb that it names."""

from __future__ import annotations

import argparse
import ast
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import synkhronos
from synkhronos._errors import SynkhronosError

FAILED, USAGE, INTERRUPTED = 1, 2, 130  # 128 + SIGINT, as shells have it
_EPILOG = """\
exit codes: 0 done, 1 failed, 2 wrong usage
`synk VERB --help` explains a verb.
"""


def verbs() -> dict[str, str]:
    """The docstring of each verb, by name; no verb is imported."""
    files = sorted(Path(__file__).parent.glob("[!_]*.py"))
    return {f.stem: ast.get_docstring(ast.parse(f.read_text())) or "" for f in files}


def _parser(module: Any, chosen: str | None) -> argparse.ArgumentParser:
    """The parser of `synk`, with the arguments of the chosen verb only."""
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
    for name, text in verbs().items():
        summary = text.partition("\n")[0]
        child = known.add_parser(name, help=summary, description=text, formatter_class=raw)
        if name == chosen:
            module.arguments(child)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `synk`; returns the exit code.

    Parameters
    ----------
    arguments : sequence of str, optional
        Default: those of this process.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    chosen = next((a for a in given if not a.startswith("-")), None)
    module = importlib.import_module(f"synkhronos.cli.{chosen}") if chosen in verbs() else None
    parser = _parser(module, chosen)
    try:
        options = parser.parse_args(given)
        if module is None:
            parser.print_help()
            return 0
        return int(module.run(options))
    except SystemExit as ended:  # of argparse: after help, version or wrong usage
        return int(ended.code or 0)
    except SynkhronosError as exc:
        sys.stderr.write(f"synk {chosen}: {exc}\n")
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
