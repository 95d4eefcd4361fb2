"""PyMC's companions: their models are divided or rightly refused, and one environment holds them.

They are installed by scripts/test --companions, since not every version of them agrees with the
newest PyMC.
"""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import requires
from pathlib import Path
from typing import Any

import pytest
from comparing import check_equal, evaluated, points
from kinds import Kind
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from pytensor.scan.op import Scan
from zoo_companions import COMPANIONS, version_of

import synkhronos as synk

if not any(map(version_of, COMPANIONS)):
    pytest.skip("none of them is installed", allow_module_level=True)

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "pymc_companions.rst"
MODELS = [(package, name) for package, models in COMPANIONS.items() for name in models]


def kind_of(model: tuple[str, str]) -> Kind:
    return COMPANIONS[model[0]][model[1]]


pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # theirs
    pytest.mark.timeout(900),
]


@pytest.fixture(scope="module")
def kind(request: pytest.FixtureRequest) -> tuple[Kind, Any]:
    """A kind and its model, made before the test: pymc-bart starts a process that lasts."""
    package, name = request.param
    if version_of(package) is None:
        pytest.skip(f"{package} is not installed")
    found = COMPANIONS[package][name]
    return found, found.make()


@pytest.mark.parametrize(
    "kind", [m for m in MODELS if not kind_of(m).reason], ids=" ".join, indirect=True
)
def test_models_of_companions_are_equal_to_the_plain_ones(kind: tuple[Kind, Any]) -> None:
    model = kind[1]
    at = points(model, 2)
    with synk.Group(2), synk.pymc.parallel(model) as parallel:
        assert parallel.names
        divided = evaluated(model, at)
    check_equal(evaluated(model, at), divided)


@pytest.mark.parametrize(
    "kind", [m for m in MODELS if kind_of(m).reason], ids=" ".join, indirect=True
)
def test_refusals_compile_no_loop(kind: tuple[Kind, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Loops would take most of the time: the reason is known by structure."""
    refused, model = kind
    monkeypatch.setattr(Scan, "fn", property(lambda op: pytest.fail("a loop is compiled")))
    with pytest.raises(synk.InputError, match=re.escape(refused.reason)):
        synk.pymc.parallel(model, members=2)


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
