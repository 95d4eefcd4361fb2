"""What users test their own programs with: the pages about it say what is true."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from selection import thorough
from user_scripts import LIMIT

DOCS = Path(__file__).parents[2] / "docs"
PAGES = [DOCS / "howto" / "test_programs.rst", DOCS / "testing.rst"]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
@pytest.mark.parametrize("step", [1500, *thorough(300)])
def test_the_examples_run(tmp_path: Path, step: int) -> None:
    """With fewer deaths than on the page by default."""
    blocks = re.findall(
        r"code-block:: python\n\n((?:    .*\n|\n)+)", "\n".join(page.read_text() for page in PAGES)
    )
    for block in map(textwrap.dedent, blocks):
        name = re.match(r"# (\w+\.py)\n", block)
        assert name is not None, block
        (tmp_path / name[1]).write_text(block.replace("step=300", f"step={step}"))
    without = ["-p", "no:cacheprovider", "-p", "no:zarr"]  # zarr's plugin imports zarr
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *without, "--rootdir", tmp_path],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )
    assert "2 passed" in done.stdout, done.stdout
