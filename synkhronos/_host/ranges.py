"""Sets of byte ranges, and the ranges of an arena that other machines do not have yet."""

from __future__ import annotations

import bisect
from collections.abc import Iterator


class Ranges:
    """Ranges (start, stop), sorted; ranges that touch are merged.

    >>> r = Ranges(); r.add(4, 6); r.add(0, 3); r.add(3, 4); r.add(9, 10); list(r)
    [(0, 6), (9, 10)]
    >>> r.discard(2, 5); list(r), r.missing(0, 10)
    ([(0, 2), (5, 6), (9, 10)], [(2, 5), (6, 9)])
    """

    def __init__(self) -> None:
        self._found: list[tuple[int, int]] = []

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)

    def add(self, start: int, stop: int) -> None:
        if not self._found:
            self._found = [(start, stop)]
            return
        first, last = self._touched(start, stop)
        if first < last:
            start = min(start, self._found[first][0])
            stop = max(stop, self._found[last - 1][1])
        self._found = [*self._found[:first], (start, stop), *self._found[last:]]

    def discard(self, start: int, stop: int) -> None:
        first, last = self._touched(start, stop)
        left = [(a, min(b, start)) for a, b in self._found[first:last] if a < start]
        right = [(max(a, stop), b) for a, b in self._found[first:last] if b > stop]
        self._found = [*self._found[:first], *left, *right, *self._found[last:]]

    def missing(self, start: int, stop: int) -> list[tuple[int, int]]:
        """The parts of a range that are not in the set."""
        at = max(0, bisect.bisect_left(self._found, (start + 1,)) - 1)
        found = []
        while at < len(self._found) and self._found[at][0] < stop:
            a, b = self._found[at]
            if start < a:
                found.append((start, a))
            start, at = max(start, b), at + 1
        return [*found, (start, stop)] if start < stop else found

    def _touched(self, start: int, stop: int) -> tuple[int, int]:
        """Indices of the ranges that overlap or touch a range: the first, and one past the last."""
        first = bisect.bisect_left(self._found, start, key=lambda r: r[1])
        return first, bisect.bisect_right(self._found, stop, lo=first, key=lambda r: r[0])


class DirtyRanges:
    """Ranges that were written or freed, until the other machines have acknowledged them.

    >>> dirty = DirtyRanges(); dirty.write(0, 8); dirty.take()
    ([(0, 8)], [])
    >>> dirty.write(8, 2); dirty.take()
    ([(0, 10)], [])
    >>> dirty.free(0, 8); dirty.take()
    ([(8, 2)], [(0, 8)])
    >>> dirty.acknowledge(); dirty.take()
    ([], [])
    """

    def __init__(self) -> None:
        self._written = Ranges()
        self._freed = Ranges()
        self._pending: tuple[Ranges, Ranges] | None = None  # of the latest message

    def write(self, start: int, length: int) -> None:
        self._written.add(start, start + length)

    def free(self, start: int, length: int) -> None:
        """Note a freed range; earlier writes to it need not travel."""
        self._written.discard(start, start + length)
        self._freed.add(start, start + length)

    def take(self) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
        """Ranges (start, length) that were written, and that were freed before.

        They are returned again until they are acknowledged.
        """
        if self._pending is None:
            if not (self._written or self._freed):
                return [], []
            self._pending = self._written, self._freed
        else:
            written, freed = self._pending
            for start, stop in self._freed:
                written.discard(start, stop)
                freed.add(start, stop)
            for start, stop in self._written:
                written.add(start, stop)
        self._written, self._freed = Ranges(), Ranges()
        written, freed = self._pending
        return [(a, b - a) for a, b in written], [(a, b - a) for a, b in freed]

    def acknowledge(self) -> None:
        """Forget what `take` returned last: all machines have it."""
        self._pending = None
