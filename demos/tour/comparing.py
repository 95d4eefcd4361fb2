"""The same work in two ways: whether results are equal, and the times of both in a table."""

import time
from typing import NamedTuple

import numpy as np
from rich.table import Table
from telling import console, say


class Compared(NamedTuple):
    """A line of the table."""

    work: str
    plain: float
    ours: float
    unit: str
    more_is_better: bool = False


def check(what, apart, limit):
    """Say how far two results are apart; end the tour if that is too far."""
    if not apart <= limit:
        raise SystemExit(f"{what} differ by {apart:.0e}, with rounding by at most {limit:.0e}")
    say(f"{what} differ by {apart:.0e}, with rounding by at most {limit:.0e}: equal")


def relative(found, expected):
    """The largest difference of two arrays, by the largest value."""
    return float(abs(found - expected).max() / abs(expected).max())


def in_turn(rounds, *functions):
    """The least milliseconds of each function, which other work disturbs least; they take turns."""
    times = np.empty((rounds, len(functions)))
    for i in range(rounds):
        for j, function in enumerate(functions):
            begin = time.perf_counter()
            function()
            times[i, j] = time.perf_counter() - begin
    return 1e3 * times.min(axis=0)


def show(rows):
    """Print the table."""
    table = Table(title="The same work, plain and by Synkhronos")
    table.add_column("work")
    for column in ("plain", "ours", "times"):
        table.add_column(column, justify="right")
    for row in rows:
        times = row.ours / row.plain if row.more_is_better else row.plain / row.ours
        values = [f"{value:.3g} {row.unit}" for value in (row.plain, row.ours)]
        table.add_row(row.work, *values, f"{times:.1f}")
    console.print(table)
