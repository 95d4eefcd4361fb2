"""A process that makes steps of a user's function in a group of its own, on request.

Its first line on standard output tells of the process, as JSON; then for each line of its standard
input it makes steps, and tells how many, and how long they took. Output of the user's code goes
to standard error.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any, TextIO

import numpy as np

import synkhronos as synk
from synkhronos._checks import shown
from synkhronos._engine.exit_codes import code_of
from synkhronos._errors import InputError, SynkhronosError
from synkhronos._host.environment import environment
from synkhronos.cli._say import complain
from synkhronos.extensions._rows.batches import Batches
from synkhronos.training._from_config.functions import function_of

_WARM = 2  # steps before the first measurement of a batch; the first one compiles
_LOOK = 0.2  # of the time of a measurement: enough to know how long a step takes

Step = Callable[[int], object]


def main(task: dict[str, Any]) -> None:
    """Serve until standard input ends; then the process ends with an exit code."""
    sys.exit(serve(task["function"], task["members"], task["devices"]))


def serve(name: str, members: int, devices: str | None) -> int:
    """Serve until standard input ends; returns the exit code."""
    requests, replies = _own_streams()
    try:
        synk.fork(members, devices=devices)
        function = function_of(name, os.getcwd(), "synk bench")
    except SynkhronosError as exc:  # it says all; errors of the user's own code have a traceback
        complain(str(exc))
        return code_of(type(exc))
    try:
        stopwatch = Stopwatch(step_of(function))
        _tell(replies, environment())
        for line in requests:
            _tell(replies, stopwatch.measured(*json.loads(line)))
        synk.close()
    except Exception as exc:
        traceback.print_exc()
        return code_of(type(exc))
    return 0


def _own_streams() -> tuple[TextIO, TextIO]:
    """Standard input and output; what the user's code prints goes to standard error from now on."""
    streams = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return streams


def _tell(replies: TextIO, value: dict[str, Any]) -> None:
    replies.write(f"{json.dumps(value)}\n")
    replies.flush()


def step_of(function: Callable[[], object]) -> Step:
    """The function that makes a step, from what the user's function has returned.

    Raises
    ------
    InputError
        It is neither a function of the number of rows, nor a function and its data.
    """
    found = function()
    if callable(found):
        return found
    if not isinstance(found, tuple) or len(found) < 2 or not callable(found[0]):
        raise InputError(
            f"synk bench: the function returned {shown(found)}: give a function of the group and "
            "its data, as in `return train, x, y`, or a function of the number of rows"
        )
    call, *args = found
    return Shuffled(call, args)


class Shuffled:
    """Calls a function of the group with its data, and rows in the order of shuffled epochs."""

    def __init__(self, call: Callable[..., object], args: list[Any]) -> None:
        self._call = call
        self._args = args
        self._n = len(args[0])
        self._rows: dict[int, Iterator[np.ndarray]] = {}

    def __call__(self, rows: int) -> None:
        if rows > self._n:
            raise InputError(
                f"synk bench: a step of {rows:,} rows, and the data have {self._n:,}: give smaller "
                "batches, or a function with more data"
            )
        if rows not in self._rows:
            self._rows[rows] = _epochs(Batches(self._n, rows, last="drop"))
        self._call(*self._args, batch=next(self._rows[rows]))


def _epochs(batches: Batches) -> Iterator[np.ndarray]:
    while True:
        yield from batches


class Stopwatch:
    """Measures steps, as many as fill a time."""

    def __init__(self, step: Step, clock: Callable[[], float] = time.perf_counter) -> None:
        self._step = step
        self._clock = clock
        self._steps: dict[int, int] = {}  # by the rows of a step

    def measured(self, rows: int, seconds: float) -> dict[str, float]:
        """Make steps of `rows` rows for about `seconds`; the first time also to warm up."""
        if rows not in self._steps:
            self._make(rows, _WARM)
            steps = 1
            while (took := self._make(rows, steps)) < _LOOK * seconds:
                steps *= 2
            self._steps[rows] = max(1, round(seconds * steps / took))
        steps = self._steps[rows]
        return {"steps": steps, "seconds": self._make(rows, steps)}

    def _make(self, rows: int, steps: int) -> float:
        began = self._clock()
        for _ in range(steps):
            self._step(rows)
        return self._clock() - began
