"""Reports over several nodes: the master fetches what the members of other nodes have measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from launching import Launcher, run

REPORTS = """
import json
import numpy as np
import pytensor, pytensor.tensor as pt
import synkhronos as synk
from synkhronos.extensions import make_train_function, updates

pytensor.config.mode = "FAST_COMPILE"
size = synk.fork(2)
x = pt.matrix("x", dtype="float64")
s, w = pytensor.shared(np.zeros(()), name="s"), pytensor.shared(np.zeros(3), name="w")
f = synk.function([x], x.sum(), updates=[(s, s + x.mean(), "avg", "all")])
train = make_train_function(((x @ w - 1) ** 2).mean(), [w], x, None, updates.sgd, 0.1)
rows = np.ones((10, 3))
found = f.report(rows)
for _ in range(4):
    train(rows)
step = train.report()
print(json.dumps([float(s.get_value()), found.rows, found.seconds["compute"],
                  step.calls, step.rows, step.seconds["compute"], train.seconds()["update"]]))
train(rows)
synk.close()
assert train.report() is step  # what the other node has counted since has ended with it
"""


TRACE = """
from synkhronos._engine.commands.tracing import StartTrace, StopTrace

synk.fork(2)
group = synk.current_group()
x = pt.vector("x", dtype="float64")
f = synk.function([x], x.sum(), name="f")
f(np.ones(8))
with group.trace() as trace:
    for _ in range(5):
        f(np.ones(8))
alignment = group.run(StartTrace(10), "trace")
group.run(StopTrace(), "trace")
print(json.dumps([trace.error, [m.node for m in trace.members], alignment.offsets, alignment.errors,
                  [e["name"] for e in trace.events() if e.get("tid") == 3].count("function f")]))
"""


@pytest.mark.slow
@pytest.mark.thorough
def test_a_report_and_a_trace_of_two_nodes(mpi: Launcher, tmp_path: Path) -> None:
    """Of one job, in two groups.

    Both nodes have the clock of this machine: they differ by no more than the error.
    """
    report, trace = map(json.loads, run(mpi, 2, tmp_path, REPORTS + TRACE).splitlines()[-2:])
    value, rows, compute, steps, step_rows, step_compute, update = report
    assert value == 0
    assert (rows, step_rows, steps) == (10, 10, 3)
    for seconds in (compute, step_compute, update):
        assert len(seconds) == 4
        assert all(s > 0 for s in seconds)
    error, nodes, offsets, errors, calls = trace
    assert 0 < error < 1
    assert nodes == [0, 0, 2, 2]
    assert calls == 5
    assert offsets[:2] == errors[:2] == [0, 0]
    assert all(abs(o) <= e < 1 for o, e in zip(offsets[2:], errors[2:], strict=True))
