"""Collectives inside graphs, and permutations, over two nodes: values, gradients, failures."""

from __future__ import annotations

from pathlib import Path

import pytest
from launching import Launcher, run
from selection import thorough

PROGRAM = """
import sys
import numpy as np
import pytensor, pytensor.tensor as pt
import synkhronos as synk
from pytensor.compile.ops import wrap_py
from synkhronos import ops
from synkhronos.extensions import make_train_function, make_train_function_pytensor, updates

pytensor.config.mode = "FAST_COMPILE"
size = synk.fork(int(sys.argv[1]))
x, w = pt.vector("x", dtype="float64"), pytensor.shared(0.7, name="w")
most = ops.all_reduce(x.max(), "max")
mean, total = ops.all_reduce(x.mean(), "avg"), ops.all_reduce(x.sum())
f = synk.function(
    [x],
    [mean, total, most, ops.broadcast(x[0]), ops.all_gather(x), x - mean,
     (ops.reduce_scatter(x.sum() * pt.arange(5.0)), "gather")],
    updates=[(w, w + most)],
)
kept = 0.7
for rows in ([3.0, 1.0, 4.0, 1.5, 9.0], [2.0], [5.0, 4.0, 3.0, 2.0]):
    rows = np.array(rows)
    scattered = rows.sum() * np.arange(5.0)
    if len(rows) < size:  # members without rows give no part of an output
        scattered = scattered[: synk.part_lengths(5)[0]]
    wanted = [rows.mean(), rows.sum(), rows.max(), rows[0], rows, rows - rows.mean(), scattered]
    for a, b in zip(f(rows), wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)
    kept += rows.max()
    for rank in range(size):
        assert abs(synk.get_value(rank, w) - kept) < 1e-12

def fails(x):
    if x.min() < 0:
        raise ArithmeticError("negative")
    return x

checked = wrap_py([pt.dvector], [pt.dvector])(fails)
g = synk.function([x], ops.all_reduce(checked(x + 0 * most).sum()))
rows = np.arange(1.0, 7.0)
assert g(rows) == 21
for bad in (0, 5):
    worse = rows.copy()
    worse[bad] *= -1
    try:
        g(worse)
        raise AssertionError("no error")
    except ArithmeticError as exc:
        assert "negative" in str(exc)
    assert g(rows) == 21

s, t = pytensor.shared(np.zeros(2), name="s"), pytensor.shared(np.int64(0), name="t")
order = [*range(1, size), 0]
for rank in range(size):
    synk.set_value(rank, [s, t], [np.full(2, rank + 0.5), np.int64(10 * rank)])
synk.permute([s, t], order)
for rank in range(size):
    moved, number = synk.get_value(rank, [s, t])
    assert moved.tolist() == [order[rank] + 0.5] * 2, moved
    assert number == 10 * order[rank], number

rows, found = np.random.default_rng(1).normal(size=(7, 2)), []
for make in (make_train_function, make_train_function_pytensor):
    x, w = pt.matrix("x", dtype="float64"), pytensor.shared(np.array([0.4, -0.7]), name="w")
    y = x @ w
    loss = ((y - ops.all_reduce(y.mean(), "avg")) ** 4).mean() + ops.all_reduce(y.sum()) ** 2 / 9
    train = make(loss, [w], x, None, updates.sgd, 0.1)
    losses = [float(train(rows, batch=b)) for b in (slice(7), slice(2, 5), slice(0, 1))]
    found.append(np.array([*losses, *w.get_value()]))
np.testing.assert_allclose(*found, rtol=1e-10)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("nodes", "members"), [(2, 1), *thorough((2, 2), (3, 1))])
def test_collectives_inside_graphs(mpi: Launcher, tmp_path: Path, nodes: int, members: int) -> None:
    run(mpi, nodes, tmp_path, PROGRAM, str(members))
