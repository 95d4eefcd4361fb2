"""A few lengths for any number of rows, where each length needs a compilation. Pure."""

from __future__ import annotations

from collections import Counter

_FIRST = 4  # lengths that get a compilation at once
_OFTEN = 8  # how often another length must come to get one
_MOST = 32  # such other lengths


class Lengths:
    """The lengths that a function is compiled for, and how other lengths are cut into these.

    The function is compiled for powers of two, for the first other lengths, and for lengths that
    come often, so that equal batches are computed in one piece. Other lengths are cut into the
    longest of these. So there are at most 36 compilations and the powers of two, and a part of n
    rows has at most 1 + log2(n) pieces.

    >>> lengths = Lengths()
    >>> for rows in (43, 8, 100, 64, 30, 31):
    ...     lengths.note(rows)
    >>> lengths.pieces(43), lengths.pieces(44), lengths.pieces(175)
    ((43,), (43, 1), (128, 43, 4))
    """

    def __init__(self) -> None:
        self._whole: set[int] = set()
        self._asked: Counter[int] = Counter()  # of lengths that were cut

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
        """Note that a part of this length has been computed."""
        if len(self.pieces(rows)) > 1:
            self._asked[rows] += 1
        elif rows & rows - 1:
            self._whole.add(rows)
