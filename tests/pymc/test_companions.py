"""PyMC's companions: their models are divided or rightly refused, and one environment holds them.

They are installed by scripts/test --companions, since not every version of them agrees with the
newest PyMC.
"""

from __future__ import annotations

import re
import time
import tomllib
from importlib.metadata import requires
from multiprocessing import resource_tracker
from pathlib import Path

import pytest
from comparing import check_equal, evaluated, points
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from zoo_companions import COMPANIONS, version_of

import synkhronos as synk

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "pymc_companions.rst"
SECONDS_OF_A_REFUSAL = 60  # goal: 5 on an idle machine; reading without structure took 15 to 34
MODELS = [(package, name) for package, models in COMPANIONS.items() for name in models]

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # theirs
    pytest.mark.timeout(900),
]


@pytest.fixture(scope="module", autouse=True)
def tracker_runs() -> None:
    """pymc-bart starts Python's process that tracks shared memory, which lasts."""
    resource_tracker.ensure_running()


def model_of(package: str, name: str) -> object:
    if version_of(package) is None:
        pytest.skip(f"{package} is not installed")
    return COMPANIONS[package][name].make()


@pytest.mark.parametrize(
    ("package", "name"), [m for m in MODELS if not COMPANIONS[m[0]][m[1]].reason]
)
def test_models_of_companions_are_equal_to_the_plain_ones(package: str, name: str) -> None:
    model = model_of(package, name)
    at = points(model, 2)
    with synk.Group(2), synk.pymc.parallel(model) as parallel:
        assert parallel.names
        divided = evaluated(model, at)
    check_equal(evaluated(model, at), divided)


@pytest.mark.parametrize(("package", "name"), [m for m in MODELS if COMPANIONS[m[0]][m[1]].reason])
def test_refusals_need_no_compiling(package: str, name: str) -> None:
    model = model_of(package, name)
    reason = re.escape(COMPANIONS[package][name].reason)
    began = time.monotonic()
    with pytest.raises(synk.InputError, match=reason):
        synk.pymc.parallel(model, members=2)
    assert time.monotonic() - began < SECONDS_OF_A_REFUSAL


def bound_of(package: str) -> SpecifierSet:
    """The versions of PyMC that a package allows."""
    found = [Requirement(text) for text in requires(package) or ()]
    [bound] = [r.specifier for r in found if r.name == "pymc" and not r.marker]
    return bound


@pytest.mark.parametrize("package", COMPANIONS)
def test_one_environment_holds_us_and_the_companion(package: str) -> None:
    if version_of(package) is None:
        pytest.skip(f"{package} is not installed")
    bounds = tomllib.loads((ROOT / "pyproject.toml").read_text())
    ours = Requirement(bounds["project"]["optional-dependencies"]["pymc"][0]).specifier
    present = version_of("pymc")
    assert present is not None
    assert present in bound_of(package)
    assert present in ours


@pytest.mark.parametrize("package", COMPANIONS)
def test_the_page_names_the_bound_of_each_companion(package: str) -> None:
    if version_of(package) is None:
        pytest.skip(f"{package} is not installed")
    [row] = re.findall(rf"^   \* - {package}\n((?:     - .*\n)+)", PAGE.read_text(), re.M)
    assert f"     - ``{bound_of(package)}``" in row.splitlines()
