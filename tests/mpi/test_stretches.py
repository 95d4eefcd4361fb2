"""Large sums go over the wire stretch by stretch: short stretches, many of them, and failures."""

from __future__ import annotations

from pathlib import Path

import pytest
from launching import Launcher, run
from selection import thorough

PROGRAM = """
import sys
from dataclasses import dataclass
import numpy as np
import pytensor, pytensor.tensor as pt
import synkhronos as synk
from synkhronos._engine.commands.base import Command
from synkhronos._engine.group import current
from synkhronos._proofs.reductions import Reduction
from synkhronos.extensions import HalfPrecision
from synkhronos.extensions import make_train_function, make_train_function_pytensor
from synkhronos.extensions import updates as rules
from synkhronos.testing import conformance

pytensor.config.mode = "FAST_COMPILE"

@dataclass(frozen=True)
class Shorten(Command):
    nbytes: int

    def run(self, member):
        member.communicator.segment_bytes = self.nbytes

@dataclass(frozen=True)
class Fail(Command):
    '''One member's part of a sum raises; all the same, all come to its end.'''

    rank: int

    def run(self, member):
        comm = member.communicator
        leads = comm.home.rank == comm.leader
        made = [comm.empty((5000,), np.dtype(float))] if leads else []
        [total] = comm.home.expose(made)[comm.leader]

        def fill(i, lo, hi):
            if member.rank == self.rank:  # leaders fill of the first stretch alone
                raise LookupError(f"by member {self.rank}")
            total[lo:hi] = 1.0

        comm.sum_over_nodes([total], fill)
        assert self.rank >= 0 or (total == comm.nodes).all()
        comm.barrier()  # the memory is the leader's

members = int(sys.argv[1])
if members == 0:  # nodes of different sizes: as many members as the number of the process, and one
    import os
    rank = os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("PMI_RANK"))
    members = 1 + int(rank)
synk.fork(members)
group = current()
group.run(Shorten(1000))
conformance.check_communicator(group, ["float32", "float64", "complex64"], ((), (3, 4), (1_001,)))
s = pytensor.shared(np.zeros(6_000), name="s")
for weights in ([1.0] * group.size, [0.0] * (group.size - 1) + [2.0], list(range(group.size))):
    synk.broadcast(s)
    for rank in range(group.size):
        synk.set_value(rank, s, np.full(6_000, rank + 1.0))
    synk.all_reduce(s, "avg", weights=weights)
    wanted = np.average(np.arange(group.size) + 1.0, weights=weights)
    for rank in range(group.size):
        np.testing.assert_allclose(synk.get_value(rank, s), wanted, rtol=1e-14)
synk.set_value(group.size - 1, s, np.zeros(3))
try:
    synk.all_reduce(s, "sum")
except synk.InputError as exc:
    print("unequal:", exc)
synk.broadcast(s)
for rank in range(group.size):
    try:
        group.run(Fail(rank))
    except LookupError as exc:
        print("raised", exc)
    synk.all_reduce(s, "sum")
group.run(Fail(-1))

rng = np.random.default_rng(3)
x, y = pt.matrix("x", dtype="float64"), pt.vector("y", dtype="float64")
rows = rng.normal(size=(120, 700))
target = rows @ rng.normal(size=700)

def trained(make, **more):
    w = pytensor.shared(np.zeros(700), name="w")
    train = make(((x @ w - y) ** 2).mean(), [w], x, y, rules.momentum, learning_rate=1e-4, **more)
    for step in range(3):
        train(rows[10 * step : 10 * step + 21], target[10 * step : 10 * step + 21])
    return w.get_value()

wanted = trained(make_train_function_pytensor)
np.testing.assert_allclose(trained(make_train_function), wanted)
for how, loose in (("fp16", 2**-9), ("bf16", 2**-6)):
    found = trained(make_train_function, exchange=HalfPrecision(how))
    assert 0 < np.linalg.norm(found - wanted) < loose * np.linalg.norm(wanted)
    np.testing.assert_array_equal(found, trained(make_train_function, exchange=HalfPrecision(how)))
print("good end")
"""


@pytest.mark.thorough  # of whole arrays: test_node_numbers.py; failures: test_overlap.py
@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("ranks", "members"),
    [(2, 2), *thorough((2, 0), (3, 1))],
)
def test_short_stretches(mpi: Launcher, tmp_path: Path, ranks: int, members: int) -> None:
    said = run(mpi, ranks, tmp_path, PROGRAM, str(members), limit=360)
    assert "unequal: all_reduce: " in said
    assert said.count("raised") == (ranks * members or 3)
    assert "good end" in said
