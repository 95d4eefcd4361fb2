"""The pages on PyMC: examples run, and the list of models is that of the tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from zoo import KINDS

DOCS = Path(__file__).parent.parent.parent / "docs"
MODELS = DOCS / "reference" / "pymc_models.rst"
PAGE = DOCS / "howto" / "pymc.rst"


@pytest.mark.parametrize("refused", [False, True])
def test_the_page_lists_the_models_that_are_tested(refused: bool) -> None:
    divided, _, rest = MODELS.read_text().rpartition("These are refused")
    part = rest if refused else divided[divided.index("Models that were tried") :]
    listed = [line[2:].partition(": ")[0] for line in part.splitlines() if line.startswith("* ")]
    assert listed == [name for name, kind in KINDS.items() if bool(kind.reason) == refused]


def test_examples() -> None:
    flags = os.environ.get("PYTENSOR_FLAGS", "")
    done = subprocess.run(
        [sys.executable, "-P", "-m", "doctest", str(PAGE)],
        env=os.environ | {"PYTENSOR_FLAGS": f"{flags},mode=FAST_COMPILE,cxx=".strip(",")},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == ""
