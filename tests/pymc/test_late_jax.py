"""JAX takes seconds to import: nothing here imports it because another library may do so later."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import sys
import numpy as np, xarray as xr
import synkhronos as synk
from synkhronos._backends import jax as jax_backend
from synkhronos._transport.processes.folded_stacks import _owner
from synkhronos.pymc._after import pareto
from synkhronos.pymc._density.divided import _register_jax

def smoothed(rows, log_survival, elpd, pareto_k, lppd, same):
    elpd[:], pareto_k[:], lppd[:] = -1.0, 0.1, -0.9

assert pareto._compiled()  # but numba, which compiles it for 15 s at its first call, has no JAX
pareto._compiled = lambda: smoothed
numbers = np.random.default_rng(0).normal(size=(2, 50, 4))
groups = {
    "posterior": xr.Dataset({"mu": (("chain", "draw"), numbers[:, :, 0])}),
    "log_likelihood": xr.Dataset({"y": (("chain", "draw", "row"), numbers)}),
}
found = synk.pymc.loo(xr.DataTree.from_dict(groups), True, progressbar=False)
assert found.kind == "loo" and str(found), found
assert "jax" in sys.modules  # ArviZ's, which imports JAX once an attribute is read
assert "jax._src" not in sys.modules, "loo has imported JAX"
_register_jax()
assert not jax_backend.is_held(numbers)
assert _owner("file", "function") == "user"
assert "jax._src" not in sys.modules, "JAX is imported"
"""


def test_loo_and_divided_models_leave_jax_alone() -> None:
    line = [sys.executable, "-W", "ignore", "-c", SCRIPT]
    done = subprocess.run(line, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stderr
