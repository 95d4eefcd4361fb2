"""Where parameters, states and gradients lie in flat vectors, and who updates what. Pure numpy.

A *band* holds units one behind the other: a flat vector of gradients for each member, and one of
parameters and one of each kind of state for the node. Units begin on cache lines. The band is cut
into chunks, one for each member. Units that are updated whole have bands of their own; one member
updates each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from synkhronos._plan.rows import edges

# Elements; 64 bytes of the smallest dtype are a cache line, and what JAX can alias.
ALIGN = 64
# Elements below which a band is one member's: a meeting of several costs more than it saves.
_ALONE_BELOW = 1 << 12
# Elements from which on a member's gradient is read where it was computed; smaller ones are copied
# into its flat vector, where one call of the compiled loop serves many.
_DIRECT_FROM = 1 << 14


@dataclass(frozen=True)
class Tenant:
    """A parameter's place in a band, in elements."""

    unit: int
    param: int
    start: int
    size: int


@dataclass(frozen=True)
class Segment:
    """A range of a band that one call updates.

    Attributes
    ----------
    lo, hi : int
        In elements of the band.
    param : int, or None
        The parameter whose gradient is read where it was computed, from element `at` on.
    at : int
    use : int
        Which of the loop's uses gives the scalars.
    """

    lo: int
    hi: int
    param: int | None
    at: int
    use: int


@dataclass(frozen=True)
class Copy:
    """A piece of a parameter's gradient that the member's flat vector gets."""

    param: int
    at: int
    band: int
    lo: int
    size: int


@dataclass(frozen=True)
class Band:
    """Units one behind the other.

    Attributes
    ----------
    tenants : tuple of Tenant
    length : int
        Elements, cache lines filled up.
    borders : tuple of int
        Member r updates elements borders[r] to borders[r + 1].
    """

    tenants: tuple[Tenant, ...]
    length: int
    borders: tuple[int, ...]

    def pieces(self, rank: int) -> list[tuple[int, int, Tenant]]:
        """The parts of a member's chunk that hold something: (lo, hi, tenant)."""
        lo, hi = self.borders[rank], self.borders[rank + 1]
        found = []
        for tenant in self.tenants:
            a, b = max(lo, tenant.start), min(hi, tenant.start + tenant.size)
            if a < b:
                found.append((a, b, tenant))
        return found

    def segments(self, rank: int, alike: bool) -> list[Segment]:
        """A member's work: long pieces by themselves, runs of short ones in one call.

        `alike`: all uses have the same scalars, so that pieces may share a call.
        """
        found: list[Segment] = []
        for a, b, tenant in self.pieces(rank):
            use = self.tenants.index(tenant)
            if b - a >= _DIRECT_FROM:
                found.append(Segment(a, b, tenant.param, a - tenant.start, use))
            elif alike and found and found[-1].param is None:
                found[-1] = Segment(found[-1].lo, b, None, 0, found[-1].use)
            else:
                found.append(Segment(a, b, None, 0, use))
        return found


def band(units: Sequence[tuple[int, int, int]], members: int, turn: int) -> Band:
    """Lay (unit, param, size) out; a small band goes to one member, in turn.

    >>> b = band([(0, 0, 100), (1, 1, 5000)], 2, 0)
    >>> b.length, b.borders, [t.start for t in b.tenants]
    (5184, (0, 2624, 5184), [0, 128])
    """
    tenants, at = [], 0
    for unit, param, size in units:
        tenants.append(Tenant(unit, param, at, size))
        at += -(-size // ALIGN) * ALIGN
    if at < _ALONE_BELOW:
        owner = turn % members
        borders = tuple(0 if r <= owner else at for r in range(members + 1))
    else:
        borders = tuple(n * ALIGN for n in edges(at // ALIGN, members))
    return Band(tuple(tenants), at, borders)


def copies(bands: Sequence[Band], rank: int, direct: Sequence[Sequence[Segment]]) -> list[Copy]:
    """What a member must copy into its flat vectors: all but what it reads where it is."""
    found = []
    for number, (b, segments) in enumerate(zip(bands, direct, strict=True)):
        kept = {s.param: (s.lo, s.hi) for s in segments if s.param is not None}
        for t in b.tenants:
            lo, hi = kept.get(t.param, (t.start, t.start))
            for a, z in ((t.start, lo), (hi, t.start + t.size)):
                if a < z:
                    found.append(Copy(t.param, a - t.start, number, a, z - a))
    return found


def share_out(sizes: Sequence[int], members: int) -> list[int]:
    """Which member updates each whole unit: the largest first, to whoever has least.

    >>> share_out([5, 3, 9], 2)
    [1, 1, 0]
    """
    load = [0] * members
    owner = [0] * len(sizes)
    for i in sorted(range(len(sizes)), key=lambda i: (-sizes[i], i)):
        owner[i] = load.index(min(load))
        load[owner[i]] += sizes[i]
    return owner
