"""`synk.pymc.sample` on several nodes: each samples some chains, or all nodes divide each chain."""

from __future__ import annotations

from pathlib import Path

import pytest
from launching import Launcher, job, run

from synkhronos._host.cores import available, domain, share_out

pytestmark = [pytest.mark.slow, pytest.mark.thorough]

MODEL = """
import os, signal
import numpy as np
import pymc as pm
import pytensor
import synkhronos as synk

pytensor.config.mode = "FAST_COMPILE"
rng = np.random.default_rng(5)
rows = rng.normal(size=(500, 3))
with pm.Model() as model:
    b = pm.Normal("b", shape=3)
    pm.Normal("y", (rows * b).sum(axis=1), 1, observed=rng.normal(size=500))
given = dict(draws=5, tune=0, progressbar=False, random_seed=3, model=model,
             compute_convergence_checks=False)
"""

TOGETHER = """
import dataclasses
from synkhronos.pymc._chains import sampling
from synkhronos.pymc._chains.members import Sampling

sampling._CHEAP_SECONDS = sampling._LONG_SECONDS = 0.0  # else it would not be measured
measured = Sampling._measured


def slow(self, mode, cores):
    found = measured(self, mode, cores)
    timing = dataclasses.replace(found.best, plain=1e3)  # so that the model is divided
    return dataclasses.replace(found, modes=(timing,))


Sampling._measured = slow
alone = pm.sample(chains=1, cores=1, nuts_sampler="pymc", **given).posterior["b"]
synk.fork(1)
together = synk.pymc.sample(chains=1, **given).posterior["b"]
np.testing.assert_allclose(together, alone, rtol=1e-6)
print("equal", together.shape)
"""

APART = """
def draws():
    return synk.pymc.sample(chains=3, members_per_chain=1, **given).posterior

alone = pm.sample(chains=3, cores=1, nuts_sampler="pymc", **given).posterior
synk.fork(2)
first, second = draws(), draws()
assert first.chain.values.tolist() == [0, 1, 2], first
np.testing.assert_array_equal(first["b"], second["b"])
np.testing.assert_allclose(first["b"], alone["b"], rtol=1e-6)
f = synk.function([], pytensor.tensor.constant(1.0) * 2)
print("equal", first["b"].shape, f(), synk.current_group().member.on_node.cores)
"""

METRIC = """
x = rng.normal(100, 15, 300)
with pm.Model() as tilted:  # intercept and slope correlate
    b, sigma = pm.Normal("b", 0, 100, shape=2), pm.HalfNormal("sigma", 10)
    pm.Normal("y", b[0] + b[1] * x, sigma, observed=20 + 0.6 * x + rng.normal(0, 5, 300))
given |= dict(model=tilted, draws=1000, tune=1000, chains=2, nuts_sampler="nutpie")
synk.fork(1)
chosen, named = (synk.pymc.sample(**given, **of).posterior["b"]
                 for of in ({}, dict(adaptation="low_rank")))
assert chosen.chain.values.tolist() == [0, 1]
np.testing.assert_array_equal(chosen, named)
print("equal", chosen.shape)
"""

FAILING = """
from synkhronos.pymc._chains import nodes as _node_chains

if os.environ["SYNK_TEST_FAILS"] == "node 1" and os.environ.get(
    "PMI_RANK", os.environ.get("OMPI_COMM_WORLD_RANK")
) == "1":
    start = _node_chains.start_interpreter

    def killed(*args, **kwargs):
        popen = start(*args, **kwargs)
        popen.kill()
        return popen

    _node_chains.start_interpreter = killed

synk.fork(1)
if os.environ["SYNK_TEST_FAILS"] == "interrupt":
    signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
    signal.alarm(4)
try:
    synk.pymc.sample(chains=2, **given | dict(draws=10**7, tune=0))
except (synk.SynkhronosError, KeyboardInterrupt) as exc:
    print(f"raised {type(exc).__name__}: {exc}")
f = synk.function([], pytensor.tensor.constant(1.0) * 2)
print("good end", f())
"""


FOLDER = """
import sys, threading, time


def kill_after(path):
    while not os.path.exists(path):
        time.sleep(0.005)
    os.kill(os.getpid(), signal.SIGKILL)


folder, *after = sys.argv[1:]
synk.fork(1)
for path in after:
    threading.Thread(target=kill_after, args=[path], daemon=True).start()
with synk.pymc.everywhere(), model:
    found = pm.sample(5000, tune=100, chains=3, folder=folder, random_seed=3, progressbar=False,
                      compute_convergence_checks=False)
print("ended", found.posterior["b"].shape, np.isfinite(found.posterior["b"]).all().item())
"""


@pytest.fixture(autouse=True)
def _with_pymc() -> None:
    pytest.importorskip("pymc", reason="PyMC is not installed (the extra: synkhronos[pymc])")


def test_one_chain_runs_with_the_members_of_all_nodes(mpi: Launcher, tmp_path: Path) -> None:
    said = run(mpi, 2, tmp_path, MODEL + TOGETHER)
    assert "synkhronos: 1 chain with 2 members" in said
    assert "equal (1, 5, 3)" in said


def test_nodes_sample_chains_of_their_own(mpi: Launcher, tmp_path: Path) -> None:
    said = run(mpi, 2, tmp_path, MODEL + APART)
    assert said.count("synkhronos: 3 chains on 2 nodes: 2, 1") == 2
    first, _ = share_out(available(), 2, domain)
    assert f"equal (3, 5, 3) 2.0 {sorted(first)}" in said


@pytest.mark.thorough
def test_each_node_chooses_the_same_metric(mpi: Launcher, tmp_path: Path) -> None:
    pytest.importorskip("nutpie")
    said = run(mpi, 2, tmp_path, MODEL + METRIC)
    assert said.count("metric low_rank: ") == 1  # others than the first node are quiet
    assert "equal (2, 1000, 2)" in said


@pytest.mark.parametrize(
    ("fails", "said"),
    [
        ("node 1", "samples this node's chains has ended: killed by SIGKILL"),
        ("interrupt", "raised KeyboardInterrupt"),
    ],
)
def test_what_ends_the_chains_of_one_node_ends_all(
    mpi: Launcher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str, said: str
) -> None:
    """A killed process, or Ctrl-C; the master's own chains would run for hours."""
    monkeypatch.setenv("SYNK_TEST_FAILS", fails)
    printed = run(mpi, 2, tmp_path, MODEL + FAILING)
    assert "raised" in printed
    assert said in printed
    assert "good end 2.0" in printed


def test_a_killed_job_goes_on_in_its_folder(mpi: Launcher, tmp_path: Path) -> None:
    """Also with another number of nodes, for callers of PyMC; with the bits of a job that ended."""

    def files(name: str) -> dict[str, bytes]:
        folder = tmp_path / name
        return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*.npy"))}

    program = MODEL + FOLDER
    said = run(mpi, 2, tmp_path, program, "whole")
    assert "synkhronos: 3 chains on 2 nodes: 2, 1" in said
    assert "ended (3, 5000, 3) True" in said
    with job(mpi, 2, tmp_path, program, "parts", "parts/chain-2/tuning.npy") as killed:
        assert killed.wait() != 0
    before, whole = files("parts"), files("whole")
    assert "chain-2/tuning.npy" in before
    assert before.items() < whole.items()
    said = run(mpi, 1, tmp_path, program, "parts")
    assert "synkhronos: chain 2: goes on after" in said
    assert files("parts") == whole
