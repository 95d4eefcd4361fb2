"""The metadata stands in pyproject.toml; here is what PyPI shows, made of README.rst.

PyPI has no files of the repository. With ``Repository`` in ``[project.urls]``, links and pictures
get its address; without it, links become their words and pictures are left out.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).parent
PICTURE = re.compile(  # with the name of a substitution, the options and the caption below it
    r"^\.\. (?:\|(?P<name>\w+)\| )?(?:image|figure):: (?!\w+:)\S+\n(?:(?: .*)?\n)*(?=\S|\Z)",
    re.MULTILINE,
)
TARGET = re.compile(r"(?P<option>^   :target: )(?P<path>[\w./]+)$", re.MULTILINE)
LINK = re.compile(r"`(?P<words>[^`<]+?)\s+<(?P<path>[\w./]+)>`_")


def long_description(readme: str, repository: str, version: str) -> str:
    """README.rst as it can be read away from the repository.

    Parameters
    ----------
    readme : str
        Links and pictures are paths in the repository.
    repository : str
        The address of the repository; "": none is known.
    version : str
        The links lead to the files of this version, by its tag.
    """
    if repository:
        files, raw = (f"{repository}/{kind}/v{version}/" for kind in ("blob", "raw"))
        readme = re.sub(
            r"(?m)^(\.\. .*(?:image|figure):: )(?!\w+:)(\S+)$", rf"\g<1>{raw}\g<2>", readme
        )
        readme = TARGET.sub(rf"\g<option>{files}\g<path>", readme)
        return LINK.sub(rf"`\g<words> <{files}\g<path>>`_", readme)
    for picture in PICTURE.finditer(readme):
        readme = readme.replace(picture[0], "")
        readme = re.sub(rf" ?\|{picture['name']}\|", "", readme)
    return LINK.sub(r"\g<words>", readme)


if __name__ == "__main__":
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    source = (ROOT / "synkhronos" / "__init__.py").read_text(encoding="utf-8")
    setup(
        long_description=long_description(
            (ROOT / "README.rst").read_text(encoding="utf-8"),
            project["urls"].get("Repository", ""),
            re.search(r'^__version__ = "(.+)"$', source, re.MULTILINE)[1],
        ),
        long_description_content_type="text/x-rst",
    )
