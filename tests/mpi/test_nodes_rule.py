"""`rules.Nodes` on several nodes: each trains by itself, and their centres meet."""

from __future__ import annotations

from pathlib import Path

import pytest
from launching import Launcher, run
from selection import thorough

TRAIN = """
import sys
import numpy as np
import pytensor, pytensor.tensor as pt
import synkhronos as synk
from synkhronos import rules
from synkhronos.extensions import Batches, make_train_function, updates

pytensor.config.mode = "FAST_COMPILE"
ROWS = np.random.default_rng(0).normal(size=(260, 3))
TARGETS = ROWS @ [3.0, 2.0, 1.0]
SIZE = 10

synk.fork(int(sys.argv[1]))
nodes = synk.current_group().member.communicator.nodes
members = synk.size() // nodes

def trained(rule, epochs):
    x, y = pt.matrix("x", dtype="float64"), pt.vector("y", dtype="float64")
    w = pytensor.shared(np.zeros(3), name="w")
    loss = ((x @ w - y) ** 2).mean()
    train = make_train_function(loss, [w], x, y, updates.sgd, 0.05, rule=rule)
    data = train.build_inputs(ROWS, TARGETS)
    with train.start(*data, Batches(len(ROWS), SIZE, seed=1), epochs=epochs) as run:
        run.wait()
    held = [synk.get_value(rank, w) for rank in range(synk.size())]
    assert all(np.array_equal(v, held[0]) for v in held), held
    assert run.rows == epochs * len(ROWS), run.rows
    return w.get_value()

def serial(order, w):
    for rows in order:
        w = w - 0.1 * ROWS[rows].T @ (ROWS[rows] @ w - TARGETS[rows]) / len(rows)
    return w

if members == 1:  # each node trains serially, on its own batches
    order = Batches(len(ROWS), SIZE, seed=1).order(0)
    batches = [order[at : at + SIZE] for at in range(0, len(order), SIZE)]
    for period in (4, 5):
        c = np.zeros(3)
        for at in range(0, len(batches), period * nodes):
            these = np.array_split(np.arange(at, min(at + period * nodes, len(batches))), nodes)
            found = [serial([batches[i] for i in own], c) for own in these]
            rows = [sum(len(batches[i]) for i in own) for own in these]
            c = np.average(found, axis=0, weights=rows)
        mine = trained(rules.Nodes(rules.Downpour(), rules.Average(period)), 1)
        np.testing.assert_allclose(mine, c, 1e-12)

pairs = [
    (rules.Downpour(quorum=2), rules.DiLoCo(5, momentum=0.5)),
    (rules.EASGD(3), rules.SlowMo(5)),
    (rules.Hogwild(), rules.EASGD(5, meet=True)),
]
# nodes without a rule inside train as members of one with as many rows
first = trained(rules.Nodes(None, rules.SlowMo(3)), 1)
order = Batches(len(ROWS), SIZE, seed=1).order(0)
batches = [order[at : at + SIZE] for at in range(0, len(order), SIZE)]
c, u = np.zeros(3), np.zeros(3)
for at in range(0, len(batches), 3 * nodes):
    these = batches[at : at + 3 * nodes]
    own = np.array_split(np.arange(len(these)), nodes)
    found = [serial([these[int(i)] for i in part], c) for part in own]
    rows = [sum(len(these[int(i)]) for i in part) for part in own]
    u = 0.5 * u + c - np.average(found, axis=0, weights=rows)
    c = c - u
np.testing.assert_allclose(first, c, 1e-11)

for inside, between in pairs[: int(sys.argv[2])]:
    w = trained(rules.Nodes(inside, between), 4)
    assert ((TARGETS - ROWS @ w) ** 2).mean() < 0.5 * (TARGETS**2).mean(), (inside, between, w)
print("good end")
"""


@pytest.mark.parametrize(
    ("ranks", "members", "pairs"), [(2, 2, 1), *thorough((2, 1, 3), (2, 2, 3), (3, 1, 3))]
)
def test_nodes_train_apart_and_meet(
    mpi: Launcher, tmp_path: Path, ranks: int, members: int, pairs: int
) -> None:
    assert "good end" in run(mpi, ranks, tmp_path, TRAIN, str(members), str(pairs))
