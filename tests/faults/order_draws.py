"""What steps are drawn from."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st
from oracle import FREE, NAMES, Array

seeds = st.integers(0, 99)
slow = st.integers(0, 29).map(lambda n: n == 29)
which = st.integers(0, 5)  # modulo what there is
names = st.sampled_from(NAMES)
free = st.sampled_from(FREE)
batches = st.one_of(
    st.none(),
    st.tuples(st.just("first"), st.integers(0, 9)),
    st.tuples(
        st.just("slice"), st.integers(-9, 9), st.integers(-9, 9), st.sampled_from([1, 2, -1])
    ),
    st.tuples(st.just("rows"), st.lists(st.integers(-9, 9), max_size=7)),
    st.tuples(st.just("array"), st.lists(st.integers(0, 9), min_size=1, max_size=7)),
    st.tuples(st.just("mask"), seeds),
)


def batch_of(given: Any, length: int) -> Any:
    """A batch of `length` rows, of a drawn kind."""
    if given is None or not length:
        return None
    kind, *how = given
    if kind == "first":
        return how[0] % (length + 1)
    if kind == "slice":
        return slice(how[0], how[1], how[2])
    if kind == "mask":
        return np.random.default_rng(how[0]).random(length) < 0.5
    rows = [r % length if r >= 0 else -1 - (-r - 1) % length for r in how[0]]
    return np.array(rows, np.int64) if kind == "array" else rows


def chosen(array: Array, batch: Any) -> Array:
    """The rows that a batch selects."""
    if batch is None:
        return array
    if isinstance(batch, int):
        return array[:batch]
    return array[batch if isinstance(batch, slice | np.ndarray) else np.array(batch, np.int64)]
