"""`synk.pymc.sample` on several nodes: the members of all nodes divide each chain."""

from __future__ import annotations

from pathlib import Path

import pytest
from launching import Launcher, run

SAMPLE = """
import dataclasses
import numpy as np
import pymc as pm
import pytensor
import synkhronos as synk
from synkhronos.pymc._sampling import Sampling

measured = Sampling._measured


def slow(self, mode, cores):
    found = measured(self, mode, cores)
    timing = dataclasses.replace(found.best, plain=1e3)  # so that the model is divided
    return dataclasses.replace(found, modes=(timing,))


Sampling._measured = slow
pytensor.config.mode = "FAST_COMPILE"
rng = np.random.default_rng(5)
rows = rng.normal(size=(500, 3))
with pm.Model() as model:
    b = pm.Normal("b", shape=3)
    pm.Normal("y", (rows * b).sum(axis=1), 1, observed=rng.normal(size=500))
given = dict(draws=5, tune=0, chains=2, progressbar=False, random_seed=3, model=model,
             compute_convergence_checks=False)
alone = pm.sample(cores=1, nuts_sampler="pymc", **given).posterior["b"]
synk.fork(1)
together = synk.pymc.sample(**given).posterior["b"]
np.testing.assert_allclose(together, alone, rtol=1e-6)
print("equal", together.shape)
"""


@pytest.mark.slow
@pytest.mark.thorough
def test_chains_run_in_turn_with_the_members_of_all_nodes(mpi: Launcher, tmp_path: Path) -> None:
    pytest.importorskip("pymc", reason="PyMC is not installed (the extra: synkhronos[pymc])")
    said = run(mpi, 2, tmp_path, SAMPLE)
    assert "synkhronos: 2 chains, one after another, with 2 members" in said
    assert "equal (2, 5, 3)" in said
