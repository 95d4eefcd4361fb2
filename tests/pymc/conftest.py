"""Tests of models; without PyMC they are skipped."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytensor
import pytest

from synkhronos._host import cores

try:
    import pymc
except ImportError:
    pymc = None
else:
    look_up = pymc.__getattr__

    def look_up_public(name: str) -> object:
        """As PyMC, which looks for each name that it lacks in ArviZ's plots, and imports these.

        pytest asks the modules that a test module has imported for private names. matplotlib and
        numpyro would be imported, too, for seconds, and be in the memory that all groups fork.
        """
        if name.startswith("_"):
            raise AttributeError(name)
        return look_up(name)

    pymc.__getattr__ = look_up_public


class _Skipped(pytest.Module):
    def collect(self) -> list[pytest.Item]:
        pytest.skip("PyMC is not installed (the extra: synkhronos[pymc])", allow_module_level=True)


def pytest_pycollect_makemodule(
    module_path: Path, parent: pytest.Collector
) -> pytest.Module | None:
    """A test module here is not even imported where there is no PyMC."""
    return None if pymc is not None else _Skipped.from_parent(parent, path=module_path)


@pytest.fixture(autouse=True)
def _no_compiler() -> Iterator[None]:
    """Graphs run in Python: no test waits for a compiler unless it asks for one."""
    with warnings.catch_warnings(), pytensor.config.change_flags(mode="FAST_COMPILE"):
        warnings.filterwarnings("ignore", "PyTensor could not link to a BLAS")
        yield


@pytest.fixture(autouse=True)
def _two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine of one core it counts twice: plans are made for two."""
    there = cores.available()
    if len(there) == 1:
        monkeypatch.setattr(cores, "available", lambda: [*there, *there])


@pytest.fixture
def plans(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """The lines logged so far that say how a model is sampled."""
    caplog.set_level(logging.INFO, "synkhronos")

    def found() -> list[str]:
        lines = [r.getMessage() for r in caplog.records if r.name == "synkhronos"]
        ways = [line for line in lines if not line.startswith("metric ")]
        return [line for line in ways if " chain" in line or "sampled plainly" in line]

    return found


@pytest.fixture(autouse=True)
def _few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models without a gain get the faster density, too."""
    if pymc is not None:
        monkeypatch.setattr("synkhronos.pymc._density.gain.FEW_ROWS", 0)
        monkeypatch.setattr("synkhronos.pymc._density.gain.is_arithmetic", lambda *_: False)
