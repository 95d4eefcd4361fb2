"""Few lengths for any rows: what is cut, how often, and how many lengths there can be."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from synkhronos._plan.lengths import Lengths

ROWS = st.integers(1, 5000)


def asked(parts: list[int]) -> tuple[Lengths, list[tuple[int, ...]]]:
    """Parts that come one after the other, and how each was cut."""
    lengths, found = Lengths(), []
    for rows in parts:
        found.append(lengths.pieces(rows))
        lengths.note(rows)
    return lengths, found


@given(st.lists(ROWS, max_size=60))
def test_pieces_make_the_part(parts: list[int]) -> None:
    """Whatever has come before: all rows, in at most 1 + log2(rows) pieces, the longest first."""
    _, found = asked(parts)
    for rows, pieces in zip(parts, found, strict=True):
        assert sum(pieces) == rows
        assert 1 <= len(pieces) <= rows.bit_length()
        assert list(pieces) == sorted(pieces, reverse=True)


@given(st.lists(ROWS, max_size=300))
def test_lengths_are_few(parts: list[int]) -> None:
    """36, and powers of two: no more for any parts."""
    _, found = asked(parts * 20)
    compiled = {n for pieces in found for n in pieces}
    own = {n for n in compiled if n & n - 1}
    assert len(own) <= 36
    assert len(compiled - own) <= 13


@given(st.lists(ROWS, max_size=60), ROWS)
def test_equal_batches_are_one_piece(parts: list[int], rows: int) -> None:
    """At once if little else has come, and soon in any case."""
    lengths, _ = asked(parts)
    times = 0
    while lengths.pieces(rows) != (rows,):
        lengths.note(rows)
        times += 1
    assert times <= 8
    if len({n for n in parts if n & n - 1}) < 4:
        assert times == 0


def test_an_epoch_with_a_shorter_last_batch() -> None:
    _, found = asked([43] * 78 + [8])
    assert set(found) == {(43,), (8,)}


def test_what_is_known_is_used() -> None:
    """A little more than a length that is compiled for is that, and a little."""
    lengths, _ = asked([500, 300, 100, 7])
    assert lengths.pieces(501) == (500, 1)
    assert lengths.pieces(999) == (512, 300, 128, 32, 16, 8, 2, 1)
    assert lengths.pieces(256) == (256,)


def test_no_rows_are_one_piece() -> None:
    lengths, _ = asked([0, 3, 5, 6, 7, 9])
    assert lengths.pieces(0) == (0,)
