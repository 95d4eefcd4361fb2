"""Run tests that others wrote, as they are and inside of `synk.pymc.everywhere`; list what differs.

The folder is that of a source with its tests, such as PyMC's, Bambi's or PyMC-Marketing's at the
version that is installed. Further arguments are pytest's, from that folder:

    .venv/companions/bin/python -P tests/others.py ../bambi-0.21.0 tests -k "not plot"

Ends with 1 if a test that passes as it is does not pass inside.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from xml.etree import ElementTree

_INSIDE = "SYNK_TESTS_EVERYWHERE"


def pytest_configure() -> None:
    """As pytest's plugin: PyMC's functions are ours from now on."""
    if os.environ.get(_INSIDE):
        import synkhronos as synk

        synk.pymc.everywhere()


def outcomes(folder: Path, arguments: list[str], inside: bool) -> dict[str, str]:
    """What became of each test, by its name."""
    here = str(Path(__file__).parent)
    with tempfile.TemporaryDirectory() as made:
        report = Path(made, "report.xml")
        words = [sys.executable, "-m", "pytest", "-p", Path(__file__).stem, f"--junitxml={report}"]
        subprocess.run(
            [*words, "-p", "no:cacheprovider", "-q", *arguments],
            cwd=folder,
            env=os.environ | {"PYTHONPATH": here, _INSIDE: "yes" * inside},
            check=False,
        )
        cases = ElementTree.parse(report).iter("testcase")
        return {
            f"{case.get('classname')}::{case.get('name')}": next(
                (part.tag for part in case if part.tag in ("failure", "error", "skipped")), "passed"
            )
            for case in cases
        }


def main(folder: str, *arguments: str) -> int:
    """Run both, and print a line for each test that differs."""
    plain, ours = (outcomes(Path(folder), [*arguments], inside) for inside in (False, True))
    differing = [name for name in plain | ours if plain.get(name) != ours.get(name)]
    for name in differing:
        print(f"{name}: {plain.get(name, 'missing')} as it is, {ours.get(name, 'missing')} inside")
    passed = [sum(each == "passed" for each in found.values()) for found in (plain, ours)]
    print(f"{len(plain)} tests: {passed[0]} pass as they are, {passed[1]} inside")
    return any(plain.get(name) == "passed" for name in differing)


if __name__ == "__main__":
    if len(sys.argv) < 2 or {"-h", "--help"} & set(sys.argv):
        print(__doc__)
    else:
        sys.exit(main(*sys.argv[1:]))
