"""Chunks of flat vectors that are sent while the rest is computed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from synkhronos._plan.chunks import Chunk, Range, chunks

LENGTHS = st.lists(st.lists(st.integers(0, 3000), min_size=1, max_size=6), min_size=1, max_size=3)


@given(
    lengths=LENGTHS,
    order=st.randoms(use_true_random=False),
    least=st.integers(1, 9000),
    most=st.integers(8, 9000),
)
def test_each_element_once_and_not_before_it_is_computed(
    lengths: list[list[int]], order: object, least: int, most: int
) -> None:
    """Whatever lies where, and in whichever order it is computed."""
    places = []
    for vector, sizes in enumerate(lengths):
        at = 0
        for size in sizes:
            places.append(Range(vector, at, at + size))
            at += size
    order.shuffle(places)
    itemsizes = [4, 8, 4]
    found = chunks([[place] for place in places], itemsizes, least, most)
    computed = {
        (r.vector, i): number for number, r in enumerate(places, 1) for i in range(r.lo, r.hi)
    }
    seen = [(c.vector, i) for c in found for i in range(c.lo, c.hi)]
    assert sorted(seen) == sorted(computed)
    assert [c.after for c in found] == sorted(c.after for c in found)
    for c in found:
        assert all(computed[c.vector, i] <= c.after for i in range(c.lo, c.hi))
        assert (c.hi - c.lo - 1) * itemsizes[c.vector] <= most


@given(length=st.integers(0, 50), nodes=st.integers(1, 9))
def test_shares_of_nodes_cover_a_chunk(length: int, nodes: int) -> None:
    chunk = Chunk(0, 7, 7 + length, 1)
    shares = [chunk.share(node, nodes) for node in range(nodes)]
    assert [i for lo, hi in shares for i in range(lo, hi)] == list(range(7, 7 + length))
    assert max(hi - lo for lo, hi in shares) - min(hi - lo for lo, hi in shares) <= 1
