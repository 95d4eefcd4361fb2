"""The facts of a report about a run, read from its folder; all of them may be missing there."""

from __future__ import annotations

import datetime
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from synkhronos._errors import InputError
from synkhronos.training._record.run_folder import is_number, read_metrics, read_starts, writer_of
from synkhronos.training._record.scalars import text_of

# Where time goes, for a reader: the phases of the clocks that each part is made of.
SPLIT = {
    "compute": ("scatter", "compute"),
    "exchange": ("copy", "reduce", "update"),
    "wait": ("wait",),
    "read": (),
    "script": ("between",),
}
_NO_VALUES = ("kind", "time", "step", "epoch", "rows", "seconds", "reading", "skipped")
_NO_CURVES = ("start", "resumed", "saved", "warning", "end")
_POINTS = 1000  # of a curve; of more, the lowest and highest of neighbours are kept
_SHOWN = 200  # checkpoints, warnings

type Series = tuple[list[float], list[float]]  # steps, values


@dataclass(frozen=True)
class Note:
    """A warning of a run."""

    when: str
    step: str
    what: str
    text: str


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint of a run."""

    name: str
    when: str
    step: str
    epoch: str


@dataclass(frozen=True)
class Run:
    """The facts of a report about one run."""

    name: str
    folder: str
    number: int  # its place among the runs of the report
    state: str  # whether and why it has ended
    ended: bool  # it has ended for a reason, not by an exception or a death
    began: str
    lasted: str
    # of the latest start: the command line; host, process and folder
    command: str
    place: str
    starts: int
    # of the latest start, by the path of the value
    config: dict[str, str]
    environment: dict[str, str]
    last: dict[str, str]  # the last value of each metric, the steps and the epochs
    curves: dict[str, Series]  # by title
    # for each member, the fractions of its time by the names of `SPLIT`; may be empty
    split: list[dict[str, float]]
    checkpoints: list[Checkpoint]  # those that are still there, of those that the run has written
    saved: int  # how many it has written
    notes: list[Note]
    more: int  # notes that were left out


def read_run(folder: str | os.PathLike[str], number: int, name: str) -> Run:
    """Read a run.

    Raises
    ------
    InputError
        The folder holds none.
    """
    path = Path(folder)
    starts, lines, trouble = read_starts(path), [], "there is no run.json"
    try:
        lines = read_metrics(path)
    except OSError as exc:
        trouble = f"metrics.jsonl: {exc.strerror}"
        starts = starts if isinstance(exc, FileNotFoundError) else []
    if not starts and not lines:
        raise InputError(
            f"{path}: there is no run to report ({trouble}): give folders that fit(folder=) or "
            "Recorder has made"
        )
    latest = starts[-1] if starts else {}
    argv = latest.get("argv")
    state, ended = _state(path, lines)
    saved = [line for line in lines if line.get("kind") == "saved"]
    notes = [_note(line) for line in lines if line.get("kind") == "warning"]
    return Run(
        name=name,
        folder=str(path),
        number=number,
        state=state,
        ended=ended,
        began=_began(starts, lines),
        lasted=_lasted(starts, lines),
        command=" ".join(map(text_of, argv)) if isinstance(argv, list) else "",
        place=", ".join(
            f"{key} {text_of(latest[key])}" for key in ("host", "pid", "cwd") if key in latest
        ),
        starts=len(starts),
        config=dict(_flat("", latest.get("config"))),
        environment=dict(_flat("", latest.get("environment"))),
        last=_last(lines),
        curves=curves(lines),
        split=split(lines),
        checkpoints=[_checkpoint(line) for line in saved if _is_there(path, line)][-_SHOWN:],
        saved=len(saved),
        notes=notes[-_SHOWN:],
        more=max(0, len(notes) - _SHOWN),
    )


def _state(path: Path, lines: Sequence[Mapping[str, object]]) -> tuple[str, bool]:
    latest = lines[-1] if lines else {}
    if latest.get("kind") == "end":
        reason = text_of(latest.get("reason"))
        return (f"ended: {reason}", True) if reason else ("ended by an exception", False)
    pid = writer_of(path)
    if pid is not None and Path(f"/proc/{pid}").exists():
        return f"goes on (process {pid})", True
    return "has no end: killed, or on another machine", False


def _began(starts: Sequence[Mapping[str, object]], lines: Sequence[Mapping[str, object]]) -> str:
    if starts:
        return text_of(starts[0].get("time")).replace("T", " ")
    return _when(lines[0].get("time"))


def _lasted(starts: Sequence[Mapping[str, Any]], lines: Sequence[Mapping[str, Any]]) -> str:
    """The time from the first line to the last, pauses between starts included."""
    times = [e["time"] for e in lines if is_number(e.get("time")) and math.isfinite(e["time"])]
    try:
        first = datetime.datetime.fromisoformat(starts[0]["time"]).timestamp()
    except (IndexError, KeyError, TypeError, ValueError):
        first = min(times, default=0.0)
    seconds = max(times, default=first) - first
    if not 0 <= seconds < 1e9:
        return ""
    return str(datetime.timedelta(seconds=round(seconds)))


def _when(seconds: Any) -> str:
    """Local time."""
    try:
        return datetime.datetime.fromtimestamp(seconds).isoformat(" ", "seconds")
    except (TypeError, ValueError, OverflowError, OSError):
        return ""


def _flat(path: str, value: object) -> Iterator[tuple[str, str]]:
    """The values in an object by their paths, without those that are not there."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _flat(f"{path}.{key}" if path else str(key), item)
    elif isinstance(value, list) and any(isinstance(item, Mapping | list) for item in value):
        for i, item in enumerate(value):
            yield from _flat(f"{path}[{i}]", item)
    elif value is not None:
        yield path, ", ".join(map(text_of, value)) if isinstance(value, list) else text_of(value)


def _note(line: Mapping[str, object]) -> Note:
    what, text = text_of(line.get("what")), text_of(line.get("text"))
    return Note(_when(line.get("time")), text_of(line.get("step")), what, text)


def _checkpoint(line: Mapping[str, object]) -> Checkpoint:
    path, step, epoch = (text_of(line.get(name)) for name in ("path", "step", "epoch"))
    return Checkpoint(Path(path).name, _when(line.get("time")), step, epoch)


def _is_there(run: Path, line: Mapping[str, object]) -> bool:
    name = Path(text_of(line.get("path"))).name
    try:
        return bool(name) and (run / "ckpt" / name).exists()
    except (OSError, ValueError):  # no name of a file
        return False


def _values(line: Mapping[str, object]) -> Iterator[tuple[str, float]]:
    """The metrics of a line."""
    return ((k, v) for k, v in line.items() if k not in _NO_VALUES and is_number(v))


def _last(lines: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The last value of each metric."""
    found: dict[str, object] = {}
    steps = [line["step"] for line in lines if is_number(line.get("step"))]
    found["steps"] = max(steps, default=0)
    found["epochs"] = sum(line.get("kind") == "epoch" for line in lines)
    values: dict[str, object] = {}
    for line in lines:
        if line.get("kind") not in (*_NO_CURVES, "step"):
            values |= dict(_values(line))
    if "loss" in values:  # first
        found["loss"] = values["loss"]
    found |= values
    return {name: text_of(value) for name, value in found.items()}


def curves(lines: Sequence[Mapping[str, object]]) -> dict[str, Series]:
    """The curves of all metrics, by title; those of epochs come first."""
    found: dict[tuple[str, str], Series] = {}
    for line in lines:
        kind, step = text_of(line.get("kind")), line.get("step")
        if kind in _NO_CURVES or not is_number(step):
            continue
        values = dict(_values(line))
        rows, seconds = line.get("rows"), line.get("seconds")
        if kind == "epoch" and is_number(rows) and is_number(seconds) and seconds > 0:
            values["rows per second"] = rows / seconds
        for name, value in values.items():
            steps, ys = found.setdefault((kind, name), ([], []))
            steps.append(float(step))
            ys.append(float(value))
    first = ("epoch", "validated", "step")
    order = sorted(found, key=lambda key: first.index(key[0]) if key[0] in first else len(first))
    titled: dict[str, Series] = {}
    for kind, name in order:
        steps, values_of = found[kind, name]
        title = name if kind in ("epoch", "validated") else f"{name}, of kind {kind}"
        if kind == "step":
            if len(steps) <= len(found.get(("epoch", name), ([], []))[0]):
                continue  # epochs say as much
            title = f"{name}, of the epoch so far"
        titled.setdefault(title, _thinned(steps, values_of))
    return titled


def _thinned(steps: list[float], values: list[float]) -> Series:
    """As many points as a reader can see: of neighbours, the lowest and the highest."""
    if len(steps) <= _POINTS:
        return steps, values
    size = -(-2 * len(steps) // _POINTS)
    kept = set()
    for begin in range(0, len(steps), size):
        some = range(begin, min(begin + size, len(steps)))
        finite = [i for i in some if math.isfinite(values[i])] or [begin]
        kept |= {min(finite, key=values.__getitem__), max(finite, key=values.__getitem__)}
    chosen = sorted(kept)
    return [steps[i] for i in chosen], [values[i] for i in chosen]


def split(lines: Sequence[Mapping[str, object]]) -> list[dict[str, float]]:
    """The fractions of each member's time in all epochs, by the names of `SPLIT`."""
    totals: dict[str, list[float]] = {}
    reading = 0.0
    for line in lines:
        phases = _phases(line)
        size = len(next(iter(phases.values()), []))
        if not phases or any(len(times) != size for times in [*phases.values(), *totals.values()]):
            continue
        for name, times in phases.items():
            before = totals.get(name, [0.0] * size)
            totals[name] = [a + b for a, b in zip(before, times, strict=True)]
        read = line.get("reading", 0.0)
        reading += read if is_number(read) and 0 <= read < math.inf else 0.0
    found = []
    for rank in range(len(next(iter(totals.values()), []))):
        parts = {
            name: sum(totals[phase][rank] for phase in phases if phase in totals)
            for name, phases in SPLIT.items()
        }
        parts["read"] = min(reading, parts["script"])  # the script waits for the rows
        parts["script"] -= parts["read"]
        whole = sum(parts.values())
        if whole > 0:
            found.append({name: part / whole for name, part in parts.items()})
    return found


def _phases(line: Mapping[str, object]) -> dict[str, list[float]]:
    """The seconds by phase and rank of an epoch's line; empty unless all are numbers."""
    phases = line.get("phases")
    if line.get("kind") != "epoch" or not isinstance(phases, Mapping):
        return {}
    for times in phases.values():
        if not isinstance(times, list) or not all(
            is_number(t) and 0 <= t < math.inf for t in times
        ):
            return {}
    return dict(phases)
