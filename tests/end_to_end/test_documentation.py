"""The front page and llms.txt: badges, figures and titles are those of the project."""

from __future__ import annotations

import json
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


def title(page: Path) -> str:
    if page.suffix == ".ipynb":
        first = json.loads(page.read_text())["cells"][0]["source"]
        return "".join(first).splitlines()[0].removeprefix("# ")
    text = re.search(r"^(.+)\n====", page.read_text(), re.MULTILINE)
    assert text, page
    return text[1]


def test_llms_txt_names_pages_by_their_titles() -> None:
    docs = ROOT / "docs"
    text = (docs / "llms.txt").read_text()
    assert text.startswith("# Synkhronos\n\n> ")
    links = re.findall(r"^- \[(.+?)\]\(([^)]+)\)", text, re.MULTILINE)
    assert len(links) > 10
    for name, link in links:
        path = link.removeprefix("_sources/").removesuffix(".txt").replace(".html", ".rst")
        assert title(docs / path) == name


def test_pages_for_programs_lead_to_all_pages_on_pymc() -> None:
    """llms.txt links each page of the section, and the table names the folder of long runs."""
    docs = ROOT / "docs"
    section = (docs / "howto" / "section_models.rst").read_text()
    pages = re.findall(r"^   (\w+)$", section, re.MULTILINE)
    text = (docs / "llms.txt").read_text()
    assert len(pages) > 5
    assert not [page for page in pages if f"(_sources/howto/{page}.rst.txt)" not in text]
    assert "folder=" in (docs / "howto" / "programs.rst").read_text()
