"""Recipes: blocks of code on pages, with a name that begins with ``recipe-``."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[2] / "docs"
_BLOCK = r"^\.\. code-block:: python\n +:name: (recipe-[\w-]+)\n\n((?: .*\n|\n)+)"


def recipes() -> dict[str, str]:
    """The code of all recipes of the documentation, by name."""
    found: dict[str, str] = {}
    for page in sorted(DOCS.rglob("*.rst")):
        for name, code in re.findall(_BLOCK, page.read_text(), re.M):
            assert name not in found, f"{page}: a second {name}"
            found[name] = textwrap.dedent(code)
    return found


def run_recipe(name: str, **given: Any) -> dict[str, Any]:
    """Run a recipe with these variables; the variables that there are then."""
    scope = {"__name__": "__main__", **given}
    exec(compile(recipes()[name], name, "exec"), scope)
    return scope
