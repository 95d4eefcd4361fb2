"""The largest errors of the vectorised functions, which docs/explanation/vectorised.rst has.

    python tests/support/vectorised_errors.py            prints the table
    python tests/support/vectorised_errors.py --write    writes it into the page

A test compares the page with what it measures.
"""

from __future__ import annotations

import argparse
import functools
import re
from pathlib import Path
from typing import Any

import numba
import numpy as np
from vectorised_cases import CASES, allowed, errors, function, swept, swept_powers

from synkhronos._compiling.vectorised.code import inlined

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "vectorised.rst"
POINTS, STEP = 300, 2  # arguments of each domain, and one exponent of so many
NAMES = {
    "atan": "``arctan``",
    "digamma": "``psi``",
    "trigamma": "``tri_gamma``",
    "mills": "inverse Mills ratio",
    "power": "``x ** y``",
}
RULER = f"{'=' * 20}  =======  ======="
HEAD = f"{RULER}\n{'function':20}  float64  float32\n{RULER}\n"


@functools.cache
def loop(name: str) -> Any:
    """A loop of numba with a function of one argument, or of two."""
    if name == "power":
        code = inlined(function(name), 2)

        @numba.njit
        def over(x, y, out):
            for i in range(len(x)):
                out[i] = code(x[i], y[i])

        return over
    code = inlined(function(name))

    @numba.njit
    def over_one(x, out):
        for i in range(len(x)):
            out[i] = code(x[i])

    return over_one


def results(name: str, *x: np.ndarray) -> np.ndarray:
    out = np.empty_like(x[0])
    loop(name)(*x, out)
    return out


def row(name: str) -> str:
    """How the table names a function."""
    return NAMES.get(name, f"``{name}``")


def largest(name: str, dtype: Any) -> dict[str, float]:
    """The largest error by the name of its row."""
    x = swept_powers(dtype, POINTS) if name == "power" else [swept(name, dtype, POINTS, STEP)]
    found = errors(name, results(name, *x), *x)
    shown = row(name)
    apart = allowed(name, *x) != allowed(name, np.ones(1, dtype), np.ones(1, dtype))
    rows = {shown: found[~apart]} | ({f"{shown}, x < 0": found[apart]} if apart.any() else {})
    return {label: float(some.max()) for label, some in rows.items()}


def written(error: float) -> str:
    """As in the table: rounded upwards."""
    return f"{np.ceil(error * 10) / 10:.1f}"


def documented() -> dict[str, tuple[str, str]]:
    """The cells of the page by row."""
    table = PAGE.read_text().partition(HEAD)[2].partition(RULER)[0]
    cells = [re.split(r"\s{2,}", line.strip()) for line in table.splitlines()]
    return {label: (double, single) for label, double, single in cells}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true")
    asked = parser.parse_args()
    lines = []
    for name in [*CASES, "power"]:
        double, single = largest(name, np.float64), largest(name, np.float32)
        lines += [f"{r:20}  {written(double[r]):7}  {written(single[r])}" for r in double]
    table = "\n".join(lines) + "\n"
    print(f"{HEAD}{table}{RULER}")
    if asked.write:
        before, head, rest = PAGE.read_text().partition(HEAD)
        assert head, f"no table in {PAGE}"
        PAGE.write_text(before + head + table + RULER + rest.partition(RULER)[2])


if __name__ == "__main__":
    main()
