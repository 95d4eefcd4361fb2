"""Sets of byte ranges against sets of bytes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from synkhronos._host.ranges import Ranges

SPANS = st.tuples(st.integers(0, 40), st.integers(1, 12)).map(lambda s: (s[0], s[0] + s[1]))


@given(st.lists(st.tuples(st.booleans(), SPANS), max_size=12), SPANS)
def test_ranges_are_sets(
    changes: list[tuple[bool, tuple[int, int]]], asked: tuple[int, int]
) -> None:
    """Sorted and apart from each other, whatever was added and taken away; and what is missing."""
    ranges, wanted = Ranges(), set[int]()
    for added, span in changes:
        if added:
            ranges = ranges.plus(*span)
            wanted |= set(range(*span))
        else:
            ranges = ranges.minus(*span)
            wanted -= set(range(*span))
    found = list(ranges)
    edges = [edge for span in found for edge in span]
    assert edges == sorted(set(edges))
    assert {n for span in found for n in range(*span)} == wanted
    missing = ranges.missing(*asked)
    assert [n for span in missing for n in range(*span)] == sorted(set(range(*asked)) - wanted)
