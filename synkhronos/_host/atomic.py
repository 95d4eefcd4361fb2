"""A value that is replaced as a whole, whoever else replaces it meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class AtomicReference[T]:
    """A value that a signal handler, a finalizer or another thread may replace at any moment.

    A lock would not do: a handler that waits for what it has interrupted would wait for ever. So a
    change is computed from the value, and published by one compare-and-swap; if another change was
    published first, it is computed anew. See Herlihy, Wait-free synchronization, 1991.

    An exception of a handler leaves either the old value or the new one.

    Parameters
    ----------
    value : object
        Is never changed in place.

    Examples
    --------
    >>> free = AtomicReference((1, 2, 3))
    >>> free.update(lambda found: (found[1:], found[0]))
    1
    >>> free.value
    (2, 3)
    """

    def __init__(self, value: T) -> None:
        # a value, and under 0 the one that has followed it
        self._latest: tuple[T, dict[int, Any]] = (value, {})

    @property
    def value(self) -> T:
        """The latest value."""
        return self._newest()[0]

    def update[R](self, change: Callable[[T], tuple[T, R]]) -> R:
        """Replace the value by ``change(value)[0]``; returns ``change(value)[1]``.

        `change` has no effects, since it may run repeatedly.
        """
        while True:
            value, after = self._newest()
            new, result = change(value)
            mine: tuple[T, dict[int, object]] = (new, {})
            if after.setdefault(0, mine) is mine:  # one call of C: nothing comes in between
                self._latest = mine  # shortens the next walk; an older one would do, too
                return result

    def _newest(self) -> tuple[T, dict[int, object]]:
        found = self._latest
        while found[1]:
            found = found[1][0]
        return found
