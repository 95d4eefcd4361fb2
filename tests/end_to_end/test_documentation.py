"""The front page: its badges and its figures are those of the project."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

ROOT = Path(__file__).parents[2]
FIGURES = ROOT / "docs" / "figures"


def test_badges_say_what_the_project_says() -> None:
    badges = runpy.run_path(str(FIGURES / "badges.py"))["badges"]()
    assert {p.name: p.read_text() for p in (FIGURES / "badges").iterdir()} == badges


def test_speeds_of_the_front_page_were_measured() -> None:
    """Each figure of the table stands in a table of the page on benchmarks."""
    readme = (ROOT / "README.rst").read_text()
    table = readme[readme.index("\nSpeed\n") : readme.index("PyTensor gains from threads")]
    cells = [cell.strip("*") for cell in re.findall(r"     - (\S.*)", table)]
    shown = [cell for cell in cells if cell[0].isdigit()]
    measured = "\n".join(path.read_text() for path in (FIGURES / "measured").iterdir())
    assert len(shown) == 40
    assert not [cell for cell in shown if cell not in measured]
