"""The pages and docstrings on PyMC: examples run, and listed models are those of the tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from doc_examples import check_examples, modules_of
from public_names import check_public_names
from zoo import FAMILIES, KINDS

DOCS = Path(__file__).parent.parent.parent / "docs"
MODELS = DOCS / "reference" / "pymc_models.rst"
PAGES = ("pymc", "pymc_sample", "pymc_repeated", "pymc_after", "pymc_loo", "pymc_fleet")


def listed(heading: str) -> list[str]:
    """The models in the list below a heading, without what is said of them."""
    _, _, rest = MODELS.read_text().partition(f"\n{heading}\n")
    found = []
    for line in rest.splitlines():
        if line.startswith("* "):
            found.append(line[2:].partition(": ")[0])
        elif found:
            return found
    return found


@pytest.mark.parametrize("family", FAMILIES)
def test_the_page_lists_the_models_that_are_divided(family: str) -> None:
    kinds = FAMILIES[family]
    assert listed(family) == [name for name, kind in kinds.items() if not kind.reason]


def test_the_page_lists_the_models_that_are_refused() -> None:
    refused = [name for name, kind in KINDS.items() if kind.reason]
    assert listed("Models that are refused") == refused


def test_every_kind_has_a_name_of_its_own() -> None:
    assert len(KINDS) == sum(map(len, FAMILIES.values()))


@pytest.mark.thorough  # scripts/docs runs the same examples
@pytest.mark.parametrize("page", PAGES)
def test_examples(page: str) -> None:
    flags = os.environ.get("PYTENSOR_FLAGS", "")
    done = subprocess.run(
        [sys.executable, "-P", "-m", "doctest", str(DOCS / "howto" / f"{page}.rst")],
        env=os.environ | {"PYTENSOR_FLAGS": f"{flags},mode=FAST_COMPILE,cxx=".strip(",")},
        capture_output=True,
        text=True,
        timeout=270,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize("name", modules_of("synkhronos.pymc"))
def test_examples_of_docstrings(name: str) -> None:
    check_examples(name)


def test_public_names_say_the_package_that_users_import() -> None:
    check_public_names("synkhronos.pymc")
