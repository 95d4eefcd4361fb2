"""Few lengths for any rows, where each length of a part is another program to compile. Pure."""

from __future__ import annotations

from collections import Counter

_FIRST = 4  # lengths that get programs of their own when they come
_OFTEN = 8  # how often another must have come to get one, too
_MOST = 32  # of those


class Lengths:
    """Which lengths have programs, and how parts of other lengths are put together.

    Powers of two have programs of their own, and the first other lengths that come, and those that
    come often: equal batches are computed in one piece. What else comes is cut into the longest
    lengths that there are programs for, and powers of two. So there are at most 36 programs
    besides those of the powers of two, and a part of n rows has at most 1 + log2(n) pieces.

    >>> lengths = Lengths()
    >>> for rows in (43, 8, 100, 64, 30, 31):
    ...     lengths.note(rows)
    >>> lengths.pieces(43), lengths.pieces(44), lengths.pieces(175)
    ((43,), (43, 1), (128, 43, 4))
    """

    def __init__(self) -> None:
        self._known: set[int] = set()
        self._own = 0
        self._asked: Counter[int] = Counter()

    def pieces(self, rows: int) -> tuple[int, ...]:
        """The lengths to cut a part into."""
        if rows in self._known or not rows & rows - 1 or self._deserves(rows):
            return (rows,)
        found = []
        while rows:
            power = 1 << rows.bit_length() - 1
            found.append(max([n for n in self._known if n <= rows] + [power]))
            rows -= found[-1]
        return tuple(found)

    def _deserves(self, rows: int) -> bool:
        often = self._asked[rows] >= _OFTEN and self._own < _FIRST + _MOST
        return often or self._own < _FIRST

    def note(self, rows: int) -> None:
        """A part of so many rows has been computed, in these pieces."""
        pieces = self.pieces(rows)
        if len(pieces) > 1:
            self._asked[rows] += 1
        elif rows & rows - 1 and rows not in self._known:
            self._own += 1
            self._known.add(rows)
