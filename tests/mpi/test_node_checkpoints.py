"""Checkpoints and PyMC's likelihoods on several nodes, unchanged for the user."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from launching import Launcher, run, run_here
from selection import thorough

TRAIN = """
import os, sys
import numpy as np
import pytensor, pytensor.tensor as pt
import synkhronos as synk
from synkhronos.extensions import make_train_function
from synkhronos.extensions import updates as rules
from synkhronos.extensions.checkpoints import Checkpoints

pytensor.config.mode = "FAST_COMPILE"
folder, first, last, out = sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5]
synk.fork(int(sys.argv[1]))
rng = np.random.default_rng(3)
x, y = pt.matrix("x", dtype="float64"), pt.vector("y", dtype="float64")
rows = rng.normal(size=(120, 6))
target = rows @ rng.normal(size=6)
w = pytensor.shared(np.zeros(6), name="w")
loss = ((x @ w - y) ** 2).mean()
train = make_train_function(loss, [w], x, y, rules.momentum, learning_rate=0.02)
checkpoints = Checkpoints(folder, train)
if first:
    assert checkpoints.restore()["step"] == first
data = synk.data(rows), synk.data(target)
for step in range(first, last):
    train(*data, batch=slice(10 * (step % 10), 10 * (step % 10) + 20))
    if step + 1 == 5:
        checkpoints.save(5)
np.save(out, w.get_value())
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "after"),
    [(1, 2), *thorough((2, 3), (3, 1))],
)
def test_resume_on_another_number_of_nodes(
    mpi: Launcher, tmp_path: Path, before: int, after: int
) -> None:
    """One process writes; the resumed run is the unbroken one."""
    pytest.importorskip("safetensors")
    folder, out = tmp_path / "checkpoints", tmp_path / "w.npy"

    def train(nodes: int, first: int) -> np.ndarray:
        given = TRAIN, "1", str(folder), str(first), "8", str(out)
        if (nodes, first) == (1, 0):
            run_here(tmp_path, *given)
        else:
            run(mpi, nodes, tmp_path, *given)
        return np.load(out)

    wanted = train(before, 0)
    assert [p.name for p in sorted(folder.iterdir())] == ["step-00000005"]
    np.testing.assert_allclose(train(after, 5), wanted, rtol=1e-12)


LIKELIHOOD = """
import numpy as np
import pytensor
import synkhronos as synk

pytensor.config.mode = "FAST_COMPILE"
synk.fork(1)  # the other node stays here, and imports no PyMC of its own accord
import pymc as pm
import synkhronos.pymc

rng = np.random.default_rng(5)
rows = rng.normal(size=(500, 3))
with pm.Model() as model:
    b = pm.Normal("b", shape=3)
    sigma = pm.HalfNormal("sigma")
    pm.Normal("y", (rows * b).sum(axis=1), sigma, observed=rng.normal(size=500))
point = {k: v + 0.1 for k, v in model.initial_point().items()}
wanted = model.compile_logp()(point), model.compile_dlogp()(point)
with synk.pymc.parallel(model):
    found = model.compile_logp()(point), model.compile_dlogp()(point)
np.testing.assert_allclose(found[0], wanted[0])
np.testing.assert_allclose(found[1], wanted[1])
given = dict(draws=10, tune=10, chains=1, cores=1, progressbar=False, random_seed=3, model=model,
             compute_convergence_checks=False)
alone = pm.sample(**given).posterior["b"]
with synk.pymc.parallel(model):
    together = pm.sample(**given).posterior["b"]
np.testing.assert_allclose(together, alone, rtol=1e-6)
print("equal")
"""


@pytest.mark.thorough  # on one node: tests/pymc/test_parallel.py
@pytest.mark.slow
@pytest.mark.skipif(  # not imported here: groups of other tests are forked from this process
    find_spec("pymc") is None, reason="PyMC is not installed (the extra: synkhronos[pymc])"
)
def test_pymc_over_nodes(mpi: Launcher, tmp_path: Path) -> None:
    """A model's likelihood divided among the members of two nodes, and a chain that uses it."""
    assert "equal" in run(mpi, 2, tmp_path, LIKELIHOOD)
