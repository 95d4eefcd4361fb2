"""The plan of the sparse sum: exact, the same on all nodes, and as few words as the paper says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from synkhronos._plan.top_k import Sparse, largest, sum_of_largest
from synkhronos._plan.transfers import Gather, Plan, Swap, alone, run


def side_by_side(plans: Sequence[Plan[Any]], words: list[int] | None = None) -> list[Any]:
    """Run the plans of many nodes in one process; counts the words that each node receives."""
    results: list[Any] = [None] * len(plans)
    found: list[Any] = [None] * len(plans)
    while True:
        wanted = []
        for i, plan in enumerate(plans):
            try:
                wanted.append(plan.send(found[i]))
            except StopIteration as end:
                results[i] = end.value
        if not wanted:
            return results
        assert len({type(w) for w in wanted}) == 1
        assert len(wanted) == len(plans)
        if isinstance(wanted[0], Gather):
            found = [[w.array for w in wanted]] * len(plans)
        else:
            found = [[w.parts[i] for w in wanted] for i in range(len(plans))]
        for i, each in enumerate(found if words is not None else ()):
            others = [a for k, a in enumerate(each) if k != i]
            words[i] += sum(a.size // 4 if a.dtype == np.uint8 else a.size for a in others)


def sparse(vector: np.ndarray, k: int) -> Sparse:
    numbers = largest(vector, k)
    return Sparse(numbers, vector[numbers])


def oracle(vectors: Sequence[np.ndarray], k: int) -> np.ndarray:
    """In plain numpy, by sorting; of equal magnitudes the first are taken."""

    def top(vector: np.ndarray) -> np.ndarray:
        kept = np.zeros_like(vector)
        for i in sorted(range(len(vector)), key=lambda i: (-abs(vector[i]), i))[:k]:
            kept[i] = vector[i]
        return kept

    return top(sum(top(v) for v in vectors))


def summed(vectors: Sequence[np.ndarray], k: int, words: list[int] | None = None) -> np.ndarray:
    nodes = len(vectors)
    plans = [sum_of_largest(sparse(v, k), k, i, nodes) for i, v in enumerate(vectors)]
    first, *others = side_by_side(plans, words)
    for other in others:
        np.testing.assert_array_equal(other.numbers, first.numbers)
        np.testing.assert_array_equal(other.values, first.values)
    assert len(first.numbers) <= k
    assert (np.diff(first.numbers) > 0).all()
    found = np.zeros_like(vectors[0])
    found[first.numbers] = first.values
    return found


VECTORS = st.integers(1, 5).flatmap(
    lambda nodes: st.integers(1, 40).flatmap(
        lambda n: st.lists(
            st.lists(st.integers(-4, 4), min_size=n, max_size=n), min_size=nodes, max_size=nodes
        )
    )
)


@settings(max_examples=60)
@given(VECTORS, st.integers(1, 40))
def test_the_k_largest_of_the_sums_of_the_k_largest(rows: list[list[int]], k: int) -> None:
    """Many equal magnitudes, zeros, sums that vanish; fewer nonzeros than k."""
    vectors = [np.array(row, np.float64) for row in rows]
    k = min(k, len(rows[0]))
    np.testing.assert_array_equal(summed(vectors, k), oracle(vectors, k))


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_values_of_each_dtype(dtype: str) -> None:
    rng = np.random.default_rng(2)
    vectors = [(1e25 * rng.standard_normal(500)).astype(dtype) for _ in range(3)]
    found = summed(vectors, 40)
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, oracle(vectors, 40))


def apart(nodes: int, n: int) -> list[np.ndarray]:
    """Each node's large elements are in a place of their own, so nothing adds up."""
    rng = np.random.default_rng(1)
    found = [0.001 * rng.random(n) for _ in range(nodes)]
    for i, v in enumerate(found):
        v[i * n // nodes : (i + 1) * n // nodes] += 1
    return found


def crowded(nodes: int, n: int) -> list[np.ndarray]:
    """All large elements are at the beginning: one region of equal ones would get them all."""
    rng = np.random.default_rng(1)
    return [rng.standard_normal(n) * (np.arange(n) < n // 50) for _ in range(nodes)]


def skewed(nodes: int, n: int) -> list[np.ndarray]:
    """Node i has its large elements in one of two places, which the mean of borders would miss."""
    rng = np.random.default_rng(1)
    return [
        rng.standard_normal(n) * (np.arange(n) // (n // 8) == 7 * (i > 0)) for i in range(nodes)
    ]


@pytest.mark.parametrize("nodes", [2, 3, 4, 8])
@pytest.mark.parametrize("make", [apart, crowded, skewed])
def test_words(make: Any, nodes: int) -> None:
    """At most 6 k words arrive at each node, as in the paper, however the elements lie."""
    n, k = 100_000, 1_000
    words = [0] * nodes
    vectors = [v.astype("f4") for v in make(nodes, n)]  # a word is then 4 bytes
    found = summed(vectors, k, words)
    np.testing.assert_array_equal(np.count_nonzero(found), k)
    assert max(words) <= 6 * k
    assert min(words) > k / 10  # they were counted


@pytest.mark.parametrize("kind", ["normal", "equal", "zeros", "striped", "sparse"])
def test_a_sample_gives_the_same_elements(kind: str) -> None:
    """Of long vectors, a sample finds candidates; it may mislead, but not about the result."""
    rng = np.random.default_rng(4)
    vector = rng.standard_normal(20_000)
    if kind == "equal":
        vector = np.round(vector)
    elif kind == "zeros":
        vector[rng.permutation(20_000)[50:]] = 0
    elif kind == "striped":  # the sample sees only the largest, or only the smallest
        vector[::32] *= 100
    elif kind == "sparse":
        vector[::32] = 0
    for k in (1, 100, 600):
        chosen = sorted(range(20_000), key=lambda i: (-abs(vector[i]), i))[:k]
        wanted = sorted(i for i in chosen if vector[i])
        assert largest(vector, k).tolist() == wanted


def test_not_finite_anywhere_is_none_everywhere() -> None:
    vector = np.arange(5.0)
    plans = [sum_of_largest(s, 2, i, 2) for i, s in enumerate((sparse(vector, 2), None))]
    assert side_by_side(plans) == [None, None]
    assert run(sum_of_largest(None, 2, 0, 1), alone) is None


def test_one_node_sends_to_itself() -> None:
    vector = np.array([0.0, 3.0, -4.0, 1.0])
    found = run(sum_of_largest(sparse(vector, 2), 2, 0, 1), alone)
    assert found is not None
    assert found.numbers.tolist() == [1, 2]
    assert found.values.tolist() == [3, -4]
    assert alone(Swap([vector]))[0] is vector
