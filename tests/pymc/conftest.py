"""Tests of models; without PyMC they are left out."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import numpy as np
import pytensor
import pytest

pytest.importorskip("pymc", reason="PyMC is not installed (the extra: synkhronos[pymc])")


@pytest.fixture(autouse=True)
def _no_compiler() -> Iterator[None]:
    """Graphs run in Python: no test waits for a compiler unless it asks for one."""
    with warnings.catch_warnings(), pytensor.config.change_flags(mode="FAST_COMPILE"):
        warnings.filterwarnings("ignore", "PyTensor could not link to a BLAS")
        yield


@pytest.fixture
def rng() -> np.random.Generator:
    """Random numbers, the same in every run."""
    return np.random.default_rng(20161104)
