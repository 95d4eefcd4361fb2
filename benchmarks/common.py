"""The header, the timing and the tables of all benchmarks."""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from threadpoolctl import threadpool_info

FIGURES = "SYNK_BENCH_FIGURES"  # names the file of `record`


def answer_help(text: str | None) -> None:
    """End with the text of a script that is asked for it, before it measures anything."""
    if {"-h", "--help"} & set(sys.argv[1:]):
        raise SystemExit(print(text))


def describe_machine() -> None:
    """Cores, versions, and OpenBLAS's core type, which decides the speed of GEMM."""
    import numba
    import pytensor

    np.ones((2, 2)).dot(np.ones((2, 2)))
    kinds = {p.get("architecture") for p in threadpool_info() if p["user_api"] == "blas"}
    preset = os.environ.get("OPENBLAS_CORETYPE", "detected")
    print(
        f"{len(os.sched_getaffinity(0))} cores, {platform.machine()}, Linux {platform.release()}, "
        f"Python {platform.python_version()}, numpy {np.__version__}, "
        f"pytensor {pytensor.__version__}, numba {numba.__version__}, "
        f"OpenBLAS core type {', '.join(map(str, kinds))} ({preset})"
    )


def microseconds(call: Callable[[], Any], repeats: int, pause: float = 0.0) -> float:
    """The median time of a call, in microseconds; `pause` seconds of sleep before each."""
    for _ in range(min(200, repeats)):
        call()
    found = []
    for _ in range(repeats):
        if pause:
            time.sleep(pause)
        began = time.perf_counter()
        call()
        found.append(time.perf_counter() - began)
    return 1e6 * float(np.median(found))


def show(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print a table."""
    record(title, columns, rows)
    table = Table(title=title, title_justify="left")
    for i, column in enumerate(columns):
        table.add_column(column, justify="left" if i == 0 else "right")
    for row in rows:
        table.add_row(*[f"{v:,.1f}" if isinstance(v, float) else str(v) for v in row])
    Console(width=120).print(table)


def record(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Append a table's figures to the file that compare.py names, a JSON line each."""
    path = os.environ.get(FIGURES)
    if path is None:
        return
    with open(path, "a", encoding="utf-8") as file:
        for row in rows:
            for column, value in zip(columns[1:], row[1:], strict=True):
                if isinstance(value, int | float | np.number) and not isinstance(value, bool):
                    name = " | ".join([title, str(row[0]), column])
                    file.write(json.dumps([name, float(value)]) + "\n")
