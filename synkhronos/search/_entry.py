"""The work of a trial's process: the objective, once or for each fold, and a last message."""

from __future__ import annotations

import contextlib
import math
import mmap
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from synkhronos._checks import shown
from synkhronos._transport.processes.slot_pipe import Pipe
from synkhronos._transport.serialization import unpack_graph
from synkhronos.search._trial import Trial

_PACKAGE = str(Path(__file__).parents[1])


def main(task: dict[str, Any]) -> None:
    """Run the trial that `task` describes, see `TrialProcess`."""
    with contextlib.closing(Pipe(task["requests"], task["replies"])) as pipe:
        _run(pipe, task)


def _run(pipe: Pipe, task: dict[str, Any]) -> None:
    try:
        trial = Trial(pipe, task)
        values = valued(_objective(task["objective"]), trial)
        pipe.send({"pruned": True} if values is None else {"values": values})
    except BaseException as exc:
        if not pipe.is_ours:  # a fork that the objective has made, whose end is not the trial's
            raise
        # by its name: a trial's process does not import Optuna by itself
        if any(kind.__name__ == "TrialPruned" for kind in type(exc).__mro__):
            pipe.send({"pruned": True})
            return
        text = "".join(traceback.format_exception(exc.with_traceback(_of_the_objective(exc))))
        said = traceback.format_exception_only(exc)[-1].strip()
        with contextlib.suppress(OSError):  # nobody reads it
            sys.stderr.write(text)
            sys.stderr.flush()  # the parent may end this process once it is told
        pipe.send({"raised": said, "traceback": text})
        raise SystemExit(1) from None


def _of_the_objective(exc: BaseException) -> TracebackType | None:
    """The traceback from the user's own code on; None for an error that this package raises."""
    found = exc.__traceback__
    while found is not None and found.tb_frame.f_code.co_filename.startswith(_PACKAGE):
        found = found.tb_next
    return found


def _objective(fd: int) -> Callable[[Trial], object]:
    with os.fdopen(fd, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as held:
        found: Callable[[Trial], object] = unpack_graph(bytes(held))
    return found


def valued(objective: Callable[[Trial], object], trial: Trial) -> list[float] | None:
    """The numbers that the objective returns, or their means over folds; None: it was pruned."""
    found: list[list[float]] = []
    for fold in range(trial.folds):
        trial.fold = fold
        values = objective(trial)
        if trial.pruned:
            return None
        found.append(_numbers(values))
        if trial.folds > 1 and len(found[-1]) == 1:  # Optuna prunes studies of one objective
            trial.tell_fold(found[-1][0], fold)
            if trial.should_prune() and fold < trial.folds - 1:
                return None
    return [math.fsum(each) / trial.folds for each in zip(*found, strict=True)]


def _numbers(values: object) -> list[float]:
    listed = values if isinstance(values, list | tuple) else [values]
    try:
        return [_number(v) for v in listed]
    except (TypeError, ValueError):
        raise TypeError(f"the objective has returned {shown(values)}: return a number") from None


def _number(value: Any) -> float:
    if getattr(value, "size", None) == 1:  # float() takes only arrays without dimensions
        value = value.item()
    if isinstance(value, bool | str):
        raise TypeError("not a number")
    return float(value)
