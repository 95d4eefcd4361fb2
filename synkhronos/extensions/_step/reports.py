"""One report of the steps of several functions that take turns."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from synkhronos._api.report import Report
from synkhronos._errors import InputError
from synkhronos.extensions._step.installed_step import InstalledStep


def report_of(functions: Sequence[InstalledStep], names: str) -> Report:
    """Where the time of the steps since the previous report went, of all functions together.

    Raises
    ------
    InputError
        No step has been counted yet.
    """
    if len(functions) == 1:
        return functions[0].report()
    reports = []
    for function in functions:
        with contextlib.suppress(InputError):  # it has made no step that was counted
            reports.append(function.report())
    if not reports:
        raise InputError(
            f"report: no step of {names} has been measured: of each function, the first step is "
            "not; nor are those of local functions"
        )
    return _together(reports, names)


def _together(reports: Sequence[Report], names: str) -> Report:
    """One report of the calls of several functions that take turns."""
    calls = sum(r.calls for r in reports)
    sums: dict[str, np.ndarray] = {}
    for phase in reports[0].seconds:
        each = [np.array(r.seconds[phase]) * r.calls for r in reports]
        sums[phase] = np.sum(each, axis=0)
    # between two calls of a function, the others work
    work = [sum(np.array(t) for p, t in r.seconds.items() if p != "between") for r in reports]
    most = max(range(len(reports)), key=lambda i: reports[i].calls)
    others = sum(
        w * r.calls for i, (w, r) in enumerate(zip(work, reports, strict=True)) if i != most
    )
    between = np.array(reports[most].seconds["between"]) * reports[most].calls - others
    sums["between"] = np.maximum(between, 0)
    return replace(
        reports[most],
        what=f"functions {names}",
        calls=calls,
        rows=round(sum(r.rows * r.calls for r in reports) / calls),
        seconds={phase: tuple((total / calls).tolist()) for phase, total in sums.items()},
    )
