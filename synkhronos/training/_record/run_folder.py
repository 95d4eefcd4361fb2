"""Reads what a run has left in its folder, as a whole or while it is appended."""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self, TypeGuard

from synkhronos._host.files import read_bytes, read_text, reading

RUN, METRICS, LOCK, CHECKPOINTS = "run.json", "metrics.jsonl", ".lock", "ckpt"
_FLOATS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_LARGEST = 1 << 1000
_MOST_PROCESSES = 1 << 22  # Linux's PID_MAX_LIMIT
_BLOCK = 1 << 24  # bytes of one read
_LONGEST = 1 << 26  # bytes of a line
_DAMAGED = b"..."  # instead of the begin of a longer line; it is no JSON, whatever follows


class LineReader:
    """Reads lines in their order, each once; a context that closes the file.

    Parameters
    ----------
    folder : path
        The folder of the run.

    Raises
    ------
    OSError
        The folder holds no run, or cannot be read.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._stack = contextlib.ExitStack()
        self._file = self._stack.enter_context(reading(Path(folder) / METRICS))
        self._rest = b""  # the begin of a line whose end is not written yet

    def new(self) -> list[dict[str, object]]:
        """The whole lines that have been appended since the last call."""
        found = []
        while block := self._file.read(_BLOCK):
            *lines, self._rest = (self._rest + block).split(b"\n")
            if len(self._rest) > _LONGEST:
                self._rest = _DAMAGED
            found += [line for text in lines if (line := _parsed(text)) is not None]
        return found

    def last(self) -> list[dict[str, object]]:
        """The line without an end, if it is whole nevertheless; for when nobody writes any more."""
        rest, self._rest = _parsed(self._rest), b""
        return [] if rest is None else [rest]

    def close(self) -> None:
        """Close the file."""
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def read_metrics(folder: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Read the lines that a run has written, also while it writes.

    Parameters
    ----------
    folder : path
        The folder of the run.

    Returns
    -------
    list of dict
        One for each line, in order. Lines that a kill or a full disk has torn are left out. So are
        those that a line ``{"kind": "resumed", "step": n}`` follows and whose step is larger
        than n: the run went on from step n, and has made them again. The texts "NaN", "Infinity"
        and "-Infinity" are floats again.

    Raises
    ------
    OSError
        The folder holds no run, or cannot be read.

    Notes
    -----
    Cost: reads ``metrics.jsonl`` as a whole, about 100 MB a second.
    """
    lines: list[dict[str, object]] = []
    with LineReader(folder) as reader:
        for line in [*reader.new(), *reader.last()]:
            if (step := step_of_return(line)) is not None:
                lines = [kept for kept in lines if not is_later(kept, step)]
            lines.append(line)
    return lines


def read_starts(folder: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """The entries of ``run.json``, one for each start; without the file, or if damaged, none."""
    found: object = None
    with contextlib.suppress(OSError, ValueError, RecursionError):
        found = json.loads(read_bytes(Path(folder) / RUN))
    starts = found.get("starts") if isinstance(found, dict) else None
    return [e for e in starts if isinstance(e, dict)] if isinstance(starts, list) else []


def writer_of(folder: str | os.PathLike[str]) -> int | None:
    """The pid of the process that writes there, or did so last; None if it is not of this host."""
    with contextlib.suppress(OSError, ValueError):
        pid, _, host = read_text(Path(folder) / LOCK).strip().partition(" ")
        number = int(pid) if host == os.uname().nodename else 0
        return number if 0 < number <= _MOST_PROCESSES else None
    return None


def step_of_return(line: Mapping[str, object]) -> float | None:
    """The step from which the run goes on, if the line says so: later ones no longer count."""
    step = line.get("step")
    return step if line.get("kind") == "resumed" and is_number(step) else None


def is_later(line: Mapping[str, Any], step: float) -> bool:
    """Whether a line is of a later step."""
    return is_number(line.get("step")) and line["step"] > step


def is_number(value: object) -> TypeGuard[int | float]:
    """Whether a value is a float, or an int that a float can hold, and no truth value."""
    if isinstance(value, bool):
        return False
    return isinstance(value, float) or (isinstance(value, int) and abs(value) <= _LARGEST)


def _parsed(text: bytes) -> dict[str, object] | None:
    with contextlib.suppress(ValueError, RecursionError):  # torn, or damaged
        found = json.loads(text)
        if isinstance(found, dict):
            return {name: _with_floats(value) for name, value in found.items()}
    return None


def _with_floats(value: object) -> object:
    if isinstance(value, str):
        return _FLOATS.get(value, value)
    if isinstance(value, list):
        return [_with_floats(item) for item in value]
    if isinstance(value, dict):
        return {name: _with_floats(item) for name, item in value.items()}
    return value
