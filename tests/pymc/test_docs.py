"""The page on PyMC: its examples run, and its list of models is that of the tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from zoo import KINDS

PAGE = Path(__file__).parent.parent.parent / "docs" / "pymc.rst"


@pytest.mark.parametrize("refused", [False, True])
def test_the_page_lists_the_models_that_are_tested(refused: bool) -> None:
    divided, _, rest = PAGE.read_text().rpartition("These are refused")
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
