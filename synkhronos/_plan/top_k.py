"""The sum of the nodes' largest elements, of which the largest are kept: a sparse all-reduce.

It follows Ok-Topk (Li and Hoefler, PPoPP 2022, arXiv:2201.07598). Each node selects k elements of
its vector. The vector is cut into regions, one for each node, and each node adds up the selected
elements of its region. The k largest of these sums go to all nodes.

Two steps differ from the paper. The paper takes both thresholds from an earlier step and corrects
them from time to time; here both selections are exact in each step, so there is no threshold to
save. The paper's regions follow the mean of the nodes' proposals; here they follow the distribution
of all proposals, so that no region gets more than 5/4 k elements.

A word is a value, or the number of an element. A node receives at most

====================================  ==================
the selected elements of its region   5/4 k pairs
every s-th magnitude of all sums      k words
the k largest sums                    k pairs
====================================  ==================

which is 5.5 k words, and about 8 P**2 words of counts and borders for P nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from synkhronos._plan.transfers import Gather, Plan, Swap

_MARKS = 4  # of each node for each region: a region has at most 1 + 1/4 times its share
_NUMBER = np.dtype(np.uint32)  # of an element
_SAMPLED = 32  # one in 32 elements is in the sample
MOST = 1 << 32  # elements of a vector


class Sparse(NamedTuple):
    """Elements of a vector: their numbers, ascending, and their values."""

    numbers: np.ndarray
    values: np.ndarray


def largest(values: np.ndarray, k: int) -> np.ndarray:
    """The numbers, ascending, of the k elements of the largest magnitude.

    Of equal ones the first are taken. Zeros are left out, so there may be fewer than k.

    >>> largest(np.array([0.0, -2.0, 1.0, 2.0, 1.0]), 3).tolist()
    [1, 2, 3]
    """
    magnitudes = np.abs(values)
    likely = _candidates(magnitudes, k)
    if likely is not None:
        return likely[largest(magnitudes[likely], k)]
    if k < magnitudes.size:
        at = magnitudes.size - k
        least = np.partition(magnitudes, at)[at]
        if least > 0:
            chosen = magnitudes > least
            equal = np.flatnonzero(magnitudes == least)
            chosen[equal[: k - np.count_nonzero(chosen)]] = True
            return np.flatnonzero(chosen)
    return np.flatnonzero(magnitudes)


def _candidates(magnitudes: np.ndarray, k: int) -> np.ndarray | None:
    """Numbers of at least k elements, with all of the k largest; None if a sample finds none.

    Of each 32nd element, the one that is about as large as number 2 k of all is the limit. It
    saves two thirds of the time of a selection from all.
    """
    rank = 2 * k // _SAMPLED + _SAMPLED
    sample = magnitudes[::_SAMPLED]
    if rank >= sample.size // 4:
        return None
    found = np.flatnonzero(magnitudes >= np.partition(sample, sample.size - rank)[-rank])
    return found if k <= found.size < magnitudes.size // 2 else None


def sum_of_largest(mine: Sparse | None, k: int, node: int, nodes: int) -> Plan[Sparse | None]:
    """The k largest of the sums of all nodes' elements, on each node.

    Parameters
    ----------
    mine : Sparse, or None
        This node's elements, at most k. None: its vector is not finite.
    k : int
    node, nodes : int
        This node's number, and how many there are.

    Returns
    -------
    Sparse, or None
        None if the vector of some node is not finite.

    Notes
    -----
    Sums are added in the order of nodes. Of equal magnitudes the first elements are kept.
    """
    marks = yield Gather(_marks(mine, _MARKS * nodes))
    if mine is None or any(m.size and m[0] < 0 for m in marks):
        return None
    cuts = np.searchsorted(mine.numbers, _borders(marks, nodes))
    pieces = zip([0, *cuts], [*cuts, len(mine.numbers)], strict=True)
    parts = [_packed(Sparse(mine.numbers[a:b], mine.values[a:b])) for a, b in pieces]
    found = yield Swap(parts)
    sums = _added([_unpacked(part, mine.values.dtype) for part in found])
    sizes = yield Gather(np.array([len(sums.numbers)]))
    if sum(int(n[0]) for n in sizes) > k:
        chosen = yield from _chosen(np.abs(sums.values), sizes, k, node)
        sums = Sparse(sums.numbers[chosen], sums.values[chosen])
    everywhere = yield Gather(_packed(sums))
    kept = [_unpacked(part, mine.values.dtype) for part in everywhere]
    return Sparse(*(np.concatenate(column) for column in zip(*kept, strict=True)))


def _marks(mine: Sparse | None, most: int) -> np.ndarray:
    """Some of the numbers, at equal distances in their list; -1 for a vector that is not finite."""
    if mine is None:
        return np.array([-1])
    count = len(mine.numbers)
    if count <= most:
        return mine.numbers.astype(np.int64)
    return mine.numbers[np.arange(most) * count // most].astype(np.int64)


def _borders(marks: Sequence[np.ndarray], nodes: int) -> np.ndarray:
    """The first number of each region but the first, with about as many marks in each."""
    merged = np.sort(np.concatenate(marks))
    if not merged.size:
        return np.zeros(nodes - 1, np.int64)
    return merged[np.arange(1, nodes) * merged.size // nodes]


def _added(parts: Sequence[Sparse]) -> Sparse:
    numbers = _distinct(np.sort(np.concatenate([part.numbers for part in parts])))
    sums = np.zeros(numbers.size, parts[0].values.dtype)
    with np.errstate(all="ignore"):
        for part in parts:
            sums[np.searchsorted(numbers, part.numbers)] += part.values
    return Sparse(numbers, sums)


def _chosen(
    magnitudes: np.ndarray, sizes: Sequence[np.ndarray], k: int, node: int
) -> Plan[np.ndarray]:
    """Which of this node's sums are among the k largest of all, by the exact k-th magnitude."""
    step = -(-sum(int(n[0]) for n in sizes) // k)
    pivots = yield Gather(np.sort(magnitudes)[::-1][step - 1 :: step])
    low, high = _bracket(pivots, step, k)
    inside = magnitudes[(magnitudes > low) & (magnitudes < high)].astype(np.float64)
    counts = [(magnitudes > high).sum(), (magnitudes == high).sum(), (magnitudes == low).sum()]
    given = yield Gather(np.concatenate([counts, inside]))
    least, more = _kth(given, low, high, k)
    chosen = magnitudes > least
    before = sum(_equal(theirs, least, low, high) for theirs in given[:node])
    equal = np.flatnonzero(magnitudes == least)
    chosen[equal[: max(0, more - before)]] = True
    return np.flatnonzero(chosen)


def _bracket(pivots: Sequence[np.ndarray], step: int, k: int) -> tuple[float, float]:
    """Limits of the k-th largest magnitude.

    A node's pivots are each `step`-th of its magnitudes, from the largest. So at least ``step *
    count`` magnitudes are as large as a pivot that is number `count` of all pivots; and at most
    ``step - 1`` more in each node are larger than it.
    """
    merged = np.sort(np.concatenate(pivots)).astype(np.float64)
    distinct = _distinct(merged)
    larger = merged.size - np.searchsorted(merged, distinct, side="right")
    as_large = merged.size - np.searchsorted(merged, distinct, side="left")
    lows = distinct[step * as_large >= k]
    highs = distinct[step * larger + (step - 1) * len(pivots) < k]
    low = float(lows[-1]) if lows.size else -1.0
    return low, float(highs[0]) if highs.size else np.inf


def _distinct(ordered: np.ndarray) -> np.ndarray:
    """Each value once; numpy.unique takes four times as long, since it does not know the order."""
    first = np.ones(ordered.size, bool)
    first[1:] = ordered[1:] != ordered[:-1]
    return ordered[first]


def _kth(given: Sequence[np.ndarray], low: float, high: float, k: int) -> tuple[float, int]:
    """The k-th largest magnitude, and how many of those equal to it are among the k."""
    above = int(sum(g[0] for g in given))
    at_high = int(sum(g[1] for g in given))
    inside = np.sort(np.concatenate([g[3:] for g in given]))[::-1]
    place = k - above
    if place <= at_high:
        return high, place
    place -= at_high
    if place <= inside.size:
        least = float(inside[place - 1])
        return least, place - int(np.count_nonzero(inside > least))
    return low, place - inside.size


def _equal(given: np.ndarray, least: float, low: float, high: float) -> int:
    """How many of a node's magnitudes are equal to this one."""
    if least == high:
        return int(given[1])
    if least == low:
        return int(given[2])
    return int(np.count_nonzero(given[3:] == least))


def _packed(sparse: Sparse) -> np.ndarray:
    """The numbers, then the values, as bytes."""
    numbers = np.ascontiguousarray(sparse.numbers.astype(_NUMBER))
    values = np.ascontiguousarray(sparse.values)
    return np.concatenate([numbers.view(np.uint8), values.view(np.uint8)])


def _unpacked(raw: np.ndarray, dtype: np.dtype) -> Sparse:
    count = raw.size // (_NUMBER.itemsize + dtype.itemsize)
    numbers, values = np.split(raw, [count * _NUMBER.itemsize])
    return Sparse(numbers.view(_NUMBER).astype(np.int64), values.view(dtype))
