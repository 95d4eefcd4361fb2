"""Two hosts with addresses of their own: the launcher starts the second by its own means."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hosts import two_hosts
from launching import Job, Launcher

PROGRAM = """
import sys
import numpy as np
import pytensor, pytensor.tensor as pt
import synkhronos as synk
from synkhronos._engine.group import current
from synkhronos.extensions import make_train_function, make_train_function_pytensor
from synkhronos.extensions import updates as rules
from synkhronos.testing import conformance

pytensor.config.mode = "FAST_COMPILE"
size = synk.fork(2)
group = current()
print("second host:", group.channel.device(3), flush=True)
conformance.check_communicator(group, ["float32", "int64"], ((), (3, 4), (70_001,)))
print("collectives", flush=True)

rng = np.random.default_rng(3)
x, y = pt.matrix("x", dtype="float64"), pt.vector("y", dtype="float64")
rows = rng.normal(size=(120, 6))
target = rows @ rng.normal(size=6)

def trained(make):
    w = pytensor.shared(np.zeros(6), name="w")
    loss = ((x @ w - y) ** 2).mean()
    train = make(loss, [w], x, y, rules.momentum, learning_rate=0.02)
    for step in range(10):
        train(rows[10 * step : 10 * step + 20], target[10 * step : 10 * step + 20])
    return w.get_value()

np.testing.assert_allclose(
    trained(make_train_function), trained(make_train_function_pytensor), rtol=1e-10
)
print("trained", flush=True)
"""


@pytest.mark.slow
def test_two_hosts(mpi: Launcher, tmp_path: Path) -> None:
    """All collectives and a training run, over a wire of 1 Gbit/s."""
    script = tmp_path / "script.py"
    script.write_text(PROGRAM)
    with two_hosts(tmp_path) as hosts:
        made = Job(hosts.launcher(mpi), 2, [sys.executable, str(script)], tmp_path)
        try:
            assert made.wait() == 0, made.text
            assert f"second host: node 1 (host-{hosts.addresses[1]})" in made.text
            assert "collectives" in made.text
            assert "trained" in made.text
            made.check_gone()
        finally:
            made.kill()
