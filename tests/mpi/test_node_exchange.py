"""Gradients between nodes: the largest elements with residuals, or 16 bits by chance."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from exchange_cases import Regression, data
from launching import Launcher, run
from selection import thorough

import synkhronos as synk
from synkhronos.extensions import TopK

PROGRAM = """
import pathlib, sys
import numpy as np
members, folder = int(sys.argv[1]), pathlib.Path(sys.argv[3])
sys.path.append(sys.argv[2])
import synkhronos as synk
from exchange_cases import ROWS, Regression, data, trained_by_numpy
from synkhronos._backends.mpi import World
from synkhronos.extensions import HalfPrecision, TopK
from synkhronos.extensions._step.sparse import SparseSum
from synkhronos.extensions.checkpoints import Checkpoints

# before the start, so that leaders of other nodes have these too
work, failing = SparseSum.exchange, folder / "failing"

def exchange(sums, comm):
    if failing.exists() and comm.node == int(failing.read_text()):
        raise LookupError(f"on node {comm.node}")
    work(sums, comm)

SparseSum.exchange = exchange
received, transfer = [], World.all_to_all_v

def counted(world, parts, sent, into, found):
    received.append(sum(n for i, n in enumerate(found) if i != world.rank))
    transfer(world, parts, sent, into, found)

World.all_to_all_v = counted
synk.fork(members)
nodes = synk.size() // members
steps = data(10)

net = Regression(exchange=TopK(0.2))
for number, (x, y) in enumerate(steps):
    net.train(x, y)
    if number == 4:
        Checkpoints(folder / "sparse", net.train).save(5)
values, residuals = trained_by_numpy(10, 7, members, nodes)
np.testing.assert_allclose(net.values(), values, rtol=1e-12, atol=1e-12)
np.testing.assert_allclose(net.residuals(), residuals, rtol=1e-12, atol=1e-12)
assert len(residuals) == nodes and np.count_nonzero(residuals, axis=1).min() > 15
for rank in range(synk.size()):
    for p in net.params:
        np.testing.assert_array_equal(synk.get_value(rank, p), p.get_value())
assert len(received) == 10 and 0 < max(received) <= 7 * 12 * (nodes - 1)  # 4 and 8 bytes a pair
again = Regression(exchange=TopK(0.2))
Checkpoints(folder / "sparse", again.train).restore()
for x, y in steps[5:]:
    again.train(x, y)
for a, b in zip(again.everything(), net.everything(), strict=True):
    np.testing.assert_array_equal(a, b)
print("sparse: equal")

before = net.everything()
for node in range(nodes):
    failing.write_text(str(node))
    try:
        net.train(*steps[0])
    except LookupError as exc:
        print("raised", exc)
    failing.unlink()
    for a, b in zip(net.everything(), before, strict=True):
        np.testing.assert_array_equal(a, b)
again.train(*steps[0])
net.train(*steps[0])
np.testing.assert_array_equal(net.values(), again.values())

bad = steps[1][0].copy()
bad[-1, 0] = np.nan  # on the last node
kept = net.residuals()
net.train(bad, steps[1][1])
assert np.isnan(net.values()).all()
np.testing.assert_array_equal(net.residuals(), kept)

dense, whole = Regression(), Regression(exchange=TopK(1.0))
for x, y in steps:
    dense.train(x, y)
    whole.train(x, y)
np.testing.assert_allclose(whole.values(), dense.values(), rtol=1e-12)

for how in sys.argv[4].split():
    exchange = HalfPrecision(how, stochastic=True, seed=3)
    unbroken = Regression(exchange=exchange)
    for number, (x, y) in enumerate(steps):
        unbroken.train(x, y)
        if number == 4:
            Checkpoints(folder / how, unbroken.train).save(5)
    resumed = Regression(exchange=exchange)
    Checkpoints(folder / how, resumed.train).restore()
    for x, y in steps[5:]:
        resumed.train(x, y)
    np.testing.assert_array_equal(resumed.values(), unbroken.values())
    other = Regression(exchange=HalfPrecision(how, True))
    nearest = Regression(exchange=HalfPrecision(how))
    for x, y in steps:
        other.train(x, y)
        nearest.train(x, y)
    for found in (other, nearest):
        assert not np.array_equal(found.values(), unbroken.values())
        far = np.linalg.norm(found.values() - dense.values()) / np.linalg.norm(dense.values())
        assert far < 0.05, far
print("good end")
"""


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("nodes", "members", "halves"),
    [(2, 1, "bf16"), *thorough((2, 2, "bf16 fp16"), (3, 1, "bf16 fp16"))],
)
def test_between_nodes(
    mpi: Launcher, tmp_path: Path, nodes: int, members: int, halves: str
) -> None:
    """The oracle, equal bits after a resume, failures in the middle, chance by the step."""
    checkpoints = pytest.importorskip("synkhronos.extensions.checkpoints")
    pytest.importorskip("safetensors")
    support = Path(__file__).parents[1] / "support"
    given = str(members), str(support), str(tmp_path), halves
    said = run(mpi, nodes, tmp_path, PROGRAM, *given, limit=360)
    assert "sparse: equal" in said
    assert said.count("raised ") == nodes
    assert all(f"on node {n}" in said for n in range(nodes))
    assert "good end" in said
    with synk.Group(1):  # one node goes on with the sum of the residuals
        net = Regression(exchange=TopK(0.2))
        checkpoints.Checkpoints(tmp_path / "sparse", net.train).restore()
        assert net.residuals().shape == (1, 35)
        kept, values = net.residuals(), net.values()
        x, y = data(6)[5]
        gradient = np.concatenate([g.ravel() for g in net.train.gradients(x, y)])
        net.train(x, y)
        moved = net.values() != values
        assert moved.any()
        sent = np.argsort(-np.abs(kept[0] + gradient))[:7]
        np.testing.assert_array_equal(net.residuals()[0][sent], 0)
