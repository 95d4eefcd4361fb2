"""Show what is kept between runs, or empty it.

Functions and models that this machine has compiled start at once in the next run, from a folder
beside PyTensor's. It has a bound: entries that were not used for longest go first. A next run
compiles anew if it is empty.

Exit codes:
  0  done
  1  the folder cannot be read or written, or belongs to another user
  2  the command line is wrong

Examples:
  synk cache                # the folder, its entries and its size
  synk cache --clear        # empty it
"""

from __future__ import annotations

import argparse

from synkhronos.cli._say import say


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this verb."""
    parser.add_argument("--clear", action="store_true", help="remove all entries")


def run(options: argparse.Namespace) -> int:
    """Say what the folder holds; before that, empty it if that is asked."""
    from synkhronos._compiling.kept.folder import kept_folder

    folder = kept_folder(even_if_off=True)
    if folder is None:
        return 1
    if options.clear:
        folder.clear()
    say(str(folder))
    return 0
