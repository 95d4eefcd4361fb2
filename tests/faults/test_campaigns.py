"""The parts of scripts/chaos begin: what they import is found as the script sets the path."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = (ROOT / "scripts" / "chaos").read_text()
NAMED = re.findall(r"command=\((tests/\S+\.py)\)", SCRIPT)
PROGRAMS = [name for name in NAMED if "argparse" in (ROOT / name).read_text()]  # that have --help


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_part_begins(program: str) -> None:
    folders = re.search(r'export PYTHONPATH="(.*)"', SCRIPT)[1].replace("$root", str(ROOT))
    done = subprocess.run(
        [sys.executable, "-P", program, "--help"],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": folders},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "usage:" in done.stdout


def test_there_are_parts() -> None:
    assert len(PROGRAMS) > 4
