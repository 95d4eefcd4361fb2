"""Few lengths for any rows, where a function is compiled anew for each length. Pure."""

from __future__ import annotations

from collections import Counter

_FIRST = 4  # lengths that are compiled for when they come
_OFTEN = 8  # how often another must have come to be compiled for, too
_MOST = 32  # of those


class Lengths:
    """Which lengths a function is compiled for, and how parts of others are put together.

    It is compiled for powers of two, for the first other lengths that come, and for those that come
    often: equal batches are computed in one piece. What else comes is cut into the longest of these
    lengths. So it is compiled for at most 36 of them and the powers of two, and a part of n rows
    has at most 1 + log2(n) pieces.

    >>> lengths = Lengths()
    >>> for rows in (43, 8, 100, 64, 30, 31):
    ...     lengths.note(rows)
    >>> lengths.pieces(43), lengths.pieces(44), lengths.pieces(175)
    ((43,), (43, 1), (128, 43, 4))
    """

    def __init__(self) -> None:
        self._whole: set[int] = set()
        self._asked: Counter[int] = Counter()  # of those that were cut

    def pieces(self, rows: int) -> tuple[int, ...]:
        """The lengths to cut a part into."""
        if rows in self._whole or not rows & rows - 1 or self._deserves(rows):
            return (rows,)
        found = []
        while rows:
            power = 1 << rows.bit_length() - 1
            found.append(max([n for n in self._whole if n <= rows] + [power]))
            rows -= found[-1]
        return tuple(found)

    def _deserves(self, rows: int) -> bool:
        often = self._asked[rows] >= _OFTEN and len(self._whole) < _FIRST + _MOST
        return often or len(self._whole) < _FIRST

    def note(self, rows: int) -> None:
        """A part of so many rows has been computed, in these pieces."""
        if len(self.pieces(rows)) > 1:
            self._asked[rows] += 1
        elif rows & rows - 1:
            self._whole.add(rows)
