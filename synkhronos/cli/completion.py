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

from synkhronos._errors import BackendMissing

# Arguments that are files or folders, by their names in the help
_FILES = ("FILE", "FOLDER", "CONFIG", "SCRIPT", "RUN")


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this verb."""
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), help="the shell")


def run(options: argparse.Namespace) -> int:
    """Print the script."""
    from synkhronos.cli._completion.fish import script
    from synkhronos.cli._parser import parsers_for, verbs

    parser, children = parsers_for(None)
    if options.shell == "fish":
        sys.stdout.write(script(parser, children, verbs(), _FILES) + "\n")
        return 0
    try:
        import shtab
    except ImportError:
        raise BackendMissing("shtab") from None
    for child in children.values():
        for action in child._actions:
            if str(action.metavar or "").strip(".[] ") in _FILES:
                action.complete = shtab.FILE  # type: ignore[attr-defined]
    sys.stdout.write(shtab.complete(parser, options.shell) + "\n")
    return 0
