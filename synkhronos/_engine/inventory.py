"""Objects that a group has made in its members, by number, until the user drops them."""

from __future__ import annotations

import itertools
import weakref

from synkhronos._engine.shippable import Shippable


class Inventory:
    """Functions, and the numbers of all that commands install."""

    def __init__(self) -> None:
        # by number, the functions that the user still has
        self.functions: weakref.WeakValueDictionary[int, Shippable] = weakref.WeakValueDictionary()
        # numbers of what the user has dropped, and the members still keep. A finalizer may add to
        # it at any time; `shipping` sends them with the next functions
        self.forgotten: list[int] = []
        self._numbers = itertools.count(1)  # one call of C, which no handler interrupts

    def number(self) -> int:
        """A new number, which nothing had before."""
        return next(self._numbers)

    def restart(self) -> None:
        """Note that the workers have been replaced: they have nothing any more."""
        for function in list(self.functions.values()):
            function.restart()
