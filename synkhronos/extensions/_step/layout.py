"""Lay parameters, states and gradients out in flat vectors; assign chunks to members. Pure numpy.

A *bucket* holds units one after the other: a flat vector of gradients for each member, and for the
node one of parameters and one of each kind of state. Units begin on cache lines. The bucket is cut
into chunks, one for each member. A unit that is updated as a whole has its own bucket, which one
member updates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from synkhronos._plan.rows import edges

# Elements; 64 bytes of the smallest dtype are a cache line, and what JAX can alias.
ALIGN = 64
# Elements below which one member updates a bucket: more members would cost more than they save.
_ALONE_BELOW = 1 << 12
# Elements from which a member's gradient is read where it was computed. Others are copied into the
# flat vector, where one call of the compiled loop updates many.
_DIRECT_FROM = 1 << 14


@dataclass(frozen=True)
class ParameterPlacement:
    """A parameter's place in a bucket, in elements."""

    unit: int
    param: int
    start: int
    size: int


@dataclass(frozen=True)
class Segment:
    """A range of a bucket that one call updates."""

    # in elements of the bucket
    lo: int
    hi: int
    # the parameter whose gradient is read where it was computed, from element `at`
    param: int | None
    at: int
    use: int  # which of the loop's uses gives the scalars


@dataclass(frozen=True)
class Copy:
    """A piece of a parameter's gradient that is copied to the member's flat vector."""

    param: int
    at: int
    bucket: int
    lo: int
    size: int


@dataclass(frozen=True)
class Bucket:
    """Units one after the other."""

    placements: tuple[ParameterPlacement, ...]
    length: int  # elements, rounded up to cache lines
    borders: tuple[int, ...]  # member r updates elements borders[r] to borders[r + 1]

    def pieces(self, rank: int) -> list[tuple[int, int, ParameterPlacement]]:
        """The pieces of a member's chunk that hold elements: (lo, hi, placement)."""
        lo, hi = self.borders[rank], self.borders[rank + 1]
        found = []
        for placement in self.placements:
            a, b = max(lo, placement.start), min(hi, placement.start + placement.size)
            if a < b:
                found.append((a, b, placement))
        return found

    def segments(self, rank: int, alike: bool) -> list[Segment]:
        """The calls of a member: one for each long piece, one for each run of short ones.

        `alike`: all uses have the same scalars, so that pieces can share one call.
        """
        found: list[Segment] = []
        for a, b, placement in self.pieces(rank):
            use = self.placements.index(placement)
            if b - a >= _DIRECT_FROM:
                found.append(Segment(a, b, placement.param, a - placement.start, use))
            elif alike and found and found[-1].param is None:
                found[-1] = Segment(found[-1].lo, b, None, 0, found[-1].use)
            else:
                found.append(Segment(a, b, None, 0, use))
        return found


def bucket(units: Sequence[tuple[int, int, int]], members: int, number: int) -> Bucket:
    """Lay (unit, param, size) out; a small bucket goes to one member, in turn.

    >>> b = bucket([(0, 0, 100), (1, 1, 5000)], 2, 0)
    >>> b.length, b.borders, [t.start for t in b.placements]
    (5184, (0, 2624, 5184), [0, 128])
    """
    placements, at = [], 0
    for unit, param, size in units:
        placements.append(ParameterPlacement(unit, param, at, size))
        at += -(-size // ALIGN) * ALIGN
    if at < _ALONE_BELOW:
        owner = number % members
        borders = tuple(0 if r <= owner else at for r in range(members + 1))
    else:
        borders = tuple(n * ALIGN for n in edges(at // ALIGN, members))
    return Bucket(tuple(placements), at, borders)


def copies(buckets: Sequence[Bucket], direct: Sequence[Sequence[Segment]]) -> list[Copy]:
    """The pieces that a member copies into its flat vectors: all that it does not read in place."""
    found = []
    for number, (b, segments) in enumerate(zip(buckets, direct, strict=True)):
        kept = {s.param: (s.lo, s.hi) for s in segments if s.param is not None}
        for t in b.placements:
            lo, hi = kept.get(t.param, (t.start, t.start))
            for a, z in ((t.start, lo), (hi, t.start + t.size)):
                if a < z:
                    found.append(Copy(t.param, a - t.start, number, a, z - a))
    return found


def assign_owners(sizes: Sequence[int], members: int) -> list[int]:
    """The member that updates each unit: the largest first, to the member with the fewest elements.

    >>> assign_owners([5, 3, 9], 2)
    [1, 1, 0]
    """
    load = [0] * members
    owner = [0] * len(sizes)
    for i in sorted(range(len(sizes)), key=lambda i: (-sizes[i], i)):
        owner[i] = load.index(min(load))
        load[owner[i]] += sizes[i]
    return owner
