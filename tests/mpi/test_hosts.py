"""Two hosts with addresses of their own: the launcher starts the second by its own means."""

from __future__ import annotations

import platform
import sys
from pathlib import Path

import pytest
from hosts import two_hosts
from launching import Job, Launcher, launcher

PROGRAM = """
import sys
import numpy as np
import pytensor, pytensor.tensor as pt
import synkhronos as synk
from synkhronos._engine.commands.tracing import StartTrace, StopTrace
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

alignment = group.run(StartTrace(10), "trace")  # both hosts have the clock of this machine
group.run(StopTrace(), "trace")
for offset, error in zip(alignment.offsets[2:], alignment.errors[2:], strict=True):
    assert abs(offset) <= error and 1e-4 < error < 1, (offset, error)
print("aligned", flush=True)
"""


@pytest.mark.thorough  # a job of two hosts goes on: test_node_campaign.py
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
            assert "aligned" in made.text
            made.check_gone()
        finally:
            made.kill()


MEMBERS = """
import platform
from dataclasses import dataclass
import synkhronos as synk
from synkhronos._engine.commands.base import Command

@dataclass(frozen=True)
class Print(Command):
    pure = True
    def run(self, member):
        print("on", platform.node())

synk.fork()
synk.current_group().run(Print())
"""


@pytest.mark.thorough
def test_synk_run_on_two_hosts(tmp_path: Path) -> None:
    """All nodes get its settings, and each rank its log."""
    script, logs = tmp_path / "script.py", tmp_path / "logs"
    script.write_text(MEMBERS)
    with two_hosts(tmp_path) as hosts:
        here, there = hosts.addresses
        words = ["-H", f"{here},{there}", "--log-dir", str(logs)]
        words += [f"--launcher-args=-localhost {here}"]
        run = (*hosts.first, sys.executable, "-P", "-m", "synkhronos", "run", *words)
        wired = hosts.launcher(launcher("mpich")).environment
        remote = {"HYDRA_LAUNCHER": "ssh", "HYDRA_LAUNCHER_EXEC": str(hosts.remote)}
        made = Job(Launcher("mpich", run, {**wired, **remote}), 2, [str(script)], tmp_path)
        try:
            assert made.wait() == 0, made.text
            assert f"[rank 3] on host-{there}" in made.text.splitlines()
        finally:
            made.kill()
    for rank in range(4):
        name = f"host-{there}" if rank > 1 else platform.node()
        assert f" on {name}\n" in (logs / f"rank-{rank}.log").read_text()
