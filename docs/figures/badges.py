"""The badges of the front page, from pyproject.toml: nothing is fetched from a host.

python docs/figures/badges.py
"""

from __future__ import annotations

import argparse
import tomllib
from pathlib import Path

HERE = Path(__file__).parent
WIDTH = 6.6  # of a character, in pixels at 11 pixels of DejaVu Sans or Verdana
BADGE = """\
<svg xmlns="http://www.w3.org/2000/svg" width="{whole}" height="20" role="img"
aria-label="{left}: {right}">
<rect width="{whole}" height="20" rx="3" fill="#555"/>
<path d="M{split} 0h{rest}a3 3 0 0 1 3 3v14a3 3 0 0 1-3 3h-{rest}z" fill="#0b6e4f"/>
<g fill="#fff" text-anchor="middle" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11">
<text x="{at_left}" y="14">{left}</text>
<text x="{at_right}" y="14">{right}</text>
</g>
</svg>
"""


def badge(left: str, right: str) -> str:
    """An SVG with a grey and a green half."""
    split, width = (round(WIDTH * len(text)) + 12 for text in (left, right))
    return BADGE.format(
        whole=split + width,
        split=split,
        rest=width - 3,
        at_left=split / 2,
        at_right=split + width / 2,
        left=left,
        right=right,
    )


def badges() -> dict[str, str]:
    """File names, and what they hold."""
    project = tomllib.loads((HERE.parents[1] / "pyproject.toml").read_text())["project"]
    kinds = [c.split(" :: ") for c in project["classifiers"]]
    pythons = [k[-1] for k in kinds if k[0] == "Programming Language" and "." in k[-1]]
    systems = [k[-1] for k in kinds if k[0] == "Operating System"]
    return {
        "python.svg": badge("Python", f"{pythons[0]} to {pythons[-1]}"),
        "licence.svg": badge("licence", project["license"]),
        "system.svg": badge("system", ", ".join(systems)),
    }


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    for name, text in badges().items():
        (HERE / "badges" / name).write_text(text)
