"""Reports of the steps of a training function, as a `Trainer` goes through an epoch."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from synkhronos._api.data import Data
from synkhronos._api.report import Report
from synkhronos._errors import InputError
from synkhronos.extensions._rows.batches import Batches
from synkhronos.extensions._step.installed_step import InstalledStep


class StepReport(NamedTuple):
    """The work since the report before."""

    loss: float  # the mean over `counted` rows; NaN if it is not known yet
    rows: int
    steps: int
    # the rows of the loss. Members that train apart tell it at their end, for all their rows
    counted: int
    part: str = ""  # the name of the function that has made the step, where several take turns


class Rows(ABC):
    """The base of what an epoch is made of: batches as the inputs of steps."""

    batches: Batches
    fixed: tuple[Data, ...] | None  # all rows, where they are in shared memory

    @abstractmethod
    def __iter__(self) -> Iterator[tuple[tuple[object, ...], object, int]]:
        """The inputs of each step, the batch of them, and its number of rows."""

    @abstractmethod
    def begin(self) -> tuple[Data, ...]:
        """All rows, for members that take the batches of the next epoch by themselves."""


def steps_of(
    step: Callable[..., Any], feed: Rows, part: Callable[[], str] = lambda: ""
) -> Generator[StepReport]:
    """Make a step of each batch; each report comes right after its step.

    `part` gives the name of the function that has made the latest one, where several take turns.
    """
    for inputs, batch, rows in feed:
        found = step(*inputs, batch=batch)
        loss = float(found[0] if isinstance(found, list) else found)
        yield StepReport(loss, rows, 1, rows, part())


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
