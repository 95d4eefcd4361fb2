"""Sets of byte ranges, and the ranges of an arena that other machines do not have yet."""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from dataclasses import dataclass, replace

from synkhronos._host.atomic import AtomicReference


class Ranges:
    """A value: ranges (start, stop), sorted; ranges that touch are merged.

    >>> r = Ranges().plus(4, 6).plus(0, 3).plus(3, 4).plus(9, 10); list(r)
    [(0, 6), (9, 10)]
    >>> list(r.minus(2, 5)), r.minus(2, 5).missing(0, 10)
    ([(0, 2), (5, 6), (9, 10)], [(2, 5), (6, 9)])
    """

    def __init__(self, found: tuple[tuple[int, int], ...] = ()) -> None:
        self._found = found

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)

    def plus(self, start: int, stop: int) -> Ranges:
        if not self._found:
            return Ranges(((start, stop),))
        first, last = self._touched(start, stop)
        if first < last:
            start = min(start, self._found[first][0])
            stop = max(stop, self._found[last - 1][1])
        return Ranges((*self._found[:first], (start, stop), *self._found[last:]))

    def minus(self, start: int, stop: int) -> Ranges:
        first, last = self._touched(start, stop)
        left = [(a, min(b, start)) for a, b in self._found[first:last] if a < start]
        right = [(max(a, stop), b) for a, b in self._found[first:last] if b > stop]
        return Ranges((*self._found[:first], *left, *right, *self._found[last:]))

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


@dataclass(frozen=True)
class _Changes:
    """Ranges written and freed since the latest message, and those that it contains."""

    written: Ranges
    freed: Ranges
    sent: tuple[Ranges, Ranges] | None  # until it is acknowledged

    def with_written(self, start: int, stop: int) -> _Changes:
        return replace(self, written=self.written.plus(start, stop))

    def with_freed(self, start: int, stop: int) -> _Changes:
        written, freed = self.written.minus(start, stop), self.freed.plus(start, stop)
        return replace(self, written=written, freed=freed)

    def taken(self) -> _Changes:
        """The same, where a new message contains all of it."""
        if self.sent is None and not (self.written or self.freed):
            return self
        written, freed = self.sent or (Ranges(), Ranges())
        for start, stop in self.freed:
            written, freed = written.minus(start, stop), freed.plus(start, stop)
        for start, stop in self.written:
            written = written.plus(start, stop)
        return _Changes(Ranges(), Ranges(), (written, freed))


class DirtyRanges:
    """Ranges that were written or freed, until the other machines have acknowledged them.

    Writes and frees may come at any moment, from signal handlers, finalizers and other threads.

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
        self._changes = AtomicReference(_Changes(Ranges(), Ranges(), None))

    def write(self, start: int, length: int) -> None:
        self._changes.update(lambda found: (found.with_written(start, start + length), None))

    def free(self, start: int, length: int) -> None:
        """Note a freed range; earlier writes to it need not travel."""
        self._changes.update(lambda found: (found.with_freed(start, start + length), None))

    def take(self) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
        """Ranges (start, length) that were written, and that were freed before.

        They are returned again until they are acknowledged.
        """
        sent = self._changes.update(lambda found: ((now := found.taken()), now.sent))
        if sent is None:
            return [], []
        written, freed = sent
        return [(a, b - a) for a, b in written], [(a, b - a) for a, b in freed]

    def acknowledge(self) -> None:
        """Forget what `take` returned last: all machines have it."""
        self._changes.update(lambda found: (replace(found, sent=None), None))
