"""A trace: what each member of a group did, and when; files that trace viewers read."""

from __future__ import annotations

import functools
import gzip
import heapq
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from synkhronos._engine.commands.base import COMPUTE, PHASES
from synkhronos._engine.spans import COLLECT, COMPILE, NAMED, RUN, SPAN
from synkhronos._errors import InputError
from synkhronos._host import files

_FORMAT = b"synkhronos trace 1\n"  # then a line of JSON, then the spans of each member
_OF_OTHER_FILES = (OSError, LookupError, ArithmeticError, ValueError, TypeError, RecursionError)
_OTHERS = {RUN: "command", COLLECT: "collect reports", COMPILE: "compile"}


@dataclass(frozen=True)
class Alignment:
    """By how much members' clocks were ahead of the master's, at one time of the latter."""

    at: float
    # by rank, seconds
    offsets: list[float]
    errors: list[float]


@dataclass(frozen=True)
class MemberTrace:
    """The spans of one member."""

    # the node has the number of its first rank
    rank: int
    node: int
    host: str
    pid: int
    spans: np.ndarray
    names: list[str]  # of kinds from `NAMED` on
    lost: int  # older spans, which were overwritten


class Trace:
    """The work of each member of a group, with times; made by `Group.trace`.

    Attributes
    ----------
    members : list of MemberTrace
        By rank. Times are seconds of the master's clock, `time.perf_counter`.
    master : int
    error : float
        Seconds by which times of other nodes may be wrong; 0 on one node.
    lost : int
        Spans that were overwritten, since there were too many.

    Examples
    --------
    >>> import numpy as np, pytensor.tensor as pt, synkhronos as synk
    >>> x = pt.vector("x", dtype="float64")
    >>> with synk.Group(2) as group:
    ...     f = synk.function([x], x.sum(), name="f", mode="FAST_COMPILE")
    ...     with group.trace() as trace:
    ...         for _ in range(3):
    ...             _ = f(np.ones(10))
    >>> [event["name"] for event in trace.events() if event["ph"] == "X"].count("function f")
    6
    """

    def __init__(
        self, members: Sequence[MemberTrace] = (), master: int = 0, error: float = 0.0
    ) -> None:
        self.members = list(members)
        self.master = master
        self.error = error

    def take(
        self, members: Sequence[MemberTrace], master: int, begin: Alignment, end: Alignment
    ) -> None:
        """Get the spans; clocks are taken to drift evenly from `begin` to `end`."""
        self.master = master
        self.error = max((*begin.errors, *end.errors))
        self.members = [
            replace(
                m,
                spans=on_the_master_clock(
                    m.spans, (begin.at, begin.offsets[m.rank]), (end.at, end.offsets[m.rank])
                ),
            )
            for m in members
        ]

    @property
    def lost(self) -> int:
        """Spans that were overwritten."""
        return sum(m.lost for m in self.members)

    @property
    def length(self) -> float:
        """Seconds from the begin of the first span to the end of the last one."""
        all_of = [m.spans for m in self.members if len(m.spans)]
        if not all_of:
            return 0.0
        return float(max(s["end"].max() for s in all_of) - min(s["start"].min() for s in all_of))

    def seconds(self) -> list[dict[str, float]]:
        """By rank, the seconds that all spans of a name took; an inner span counts for its own.

        Returns
        -------
        list of dict of str to float
        """
        found: list[dict[str, float]] = []
        for m in self.members:
            sums: dict[str, float] = {}
            for start, end, kind, number in nested(m.spans):
                name = self._name(m, kind, number)
                sums[name] = sums.get(name, 0.0) + end - start
            found.append(sums)
        return found

    def __repr__(self) -> str:
        count = sum(len(m.spans) for m in self.members)
        return f"<synkhronos.Trace of {len(self.members)} members, {count:,} spans>"

    def events(self) -> Iterator[dict[str, object]]:
        """The events of the Trace Event Format, which Perfetto and chrome://tracing read.

        A process is a node, a thread a member. Spans of a member are nested: the phases of a step
        are inside of it. A counter shows how many members compute. Times are microseconds from the
        first span on.
        """
        starts = [float(m.spans["start"].min()) for m in self.members if len(m.spans)]
        began = min(starts, default=0.0)
        nodes = {m.node: m.host for m in self.members}
        for node, host in nodes.items():
            yield _named("process_name", node, 0, f"node of rank {node} ({host})")
        for m in self.members:
            role = "master" if m.rank == self.master else "worker"
            yield _named("thread_name", m.node, m.rank, f"rank {m.rank}, {role}, pid {m.pid}")
        for m in self.members:
            for start, end, kind, number in nested(m.spans):
                yield {
                    "name": self._name(m, kind, number),
                    "cat": "phase" if kind < len(PHASES) else "command",
                    "ph": "X",
                    "ts": round(1e6 * (start - began), 3),
                    "dur": round(1e6 * (end - start), 3),
                    "pid": m.node,
                    "tid": m.rank,
                    "args": {"command": number},
                }
        for time, count in self._computing():
            yield {
                "name": "members that compute",
                "ph": "C",
                "ts": round(1e6 * (time - began), 3),
                "pid": self.members[self.master].node,
                "args": {"members": count},
            }

    def _is_possible(self) -> bool:
        """Whether a trace that was read is one that members can have made."""
        kinds = [*range(len(PHASES)), *_OTHERS]
        whole = all(type(n) is int for m in self.members for n in (m.rank, m.node, m.pid, m.lost))
        whole = whole and type(self.master) is int
        named = all(
            type(m.names) is list
            and np.isin(m.spans["kind"], [*kinds, *range(NAMED, NAMED + len(m.names))]).all()
            for m in self.members
        )
        times = [m.spans[field] for m in self.members for field in ("start", "end")]
        finite = all(np.isfinite(each).all() for each in times) and math.isfinite(self.error)
        return whole and named and finite and self.master in range(max(1, len(self.members)))

    def _name(self, m: MemberTrace, kind: int, number: int) -> str:
        if kind >= NAMED:
            return m.names[kind - NAMED]
        if kind == RUN and m.rank != self.master:
            return self._commands.get(number, _OTHERS[RUN])
        return PHASES[kind] if kind < len(PHASES) else _OTHERS[kind]

    @functools.cached_property
    def _commands(self) -> dict[int, str]:
        """The names of commands, as the master knows them."""
        if not self.members:
            return {}
        m = self.members[self.master]
        named = m.spans[(m.spans["kind"] >= NAMED) & (m.spans["number"] > 0)]
        return {int(s["number"]): m.names[int(s["kind"]) - NAMED] for s in named}

    def _computing(self) -> Iterator[tuple[float, int]]:
        """From when on how many members compute."""
        changes: list[tuple[float, int]] = []
        for m in self.members:
            measured = m.spans[m.spans["kind"] == COMPUTE]
            others = m.spans[
                (m.spans["kind"] == RUN) & ~np.isin(m.spans["number"], measured["number"])
            ]
            for span in (*measured, *others):
                changes += [(float(span["start"]), 1), (float(span["end"]), -1)]
        count = 0
        for time, change in sorted(changes):
            count += change
            yield time, count

    def save(self, path: str | Path) -> None:
        """Write a file: .json or .json.gz for viewers; .bin, which is smaller, for `Trace.load`.

        Raises
        ------
        InputError
            The name ends otherwise.
        """
        path = check_path(path)
        if path.suffix == ".bin":
            about = [{**vars(m), "spans": len(m.spans)} for m in self.members]
            head = {"master": self.master, "error": self.error, "members": about}
            arrays = [m.spans.tobytes() for m in self.members]
            files.write(path, b"".join([_FORMAT, json.dumps(head).encode(), b"\n", *arrays]))
            return
        notes = {
            "lost spans": self.lost,
            "error of clocks between nodes, us": round(1e6 * self.error, 1),
        }
        found = {"traceEvents": list(self.events()), "displayTimeUnit": "ms", "otherData": notes}
        raw = json.dumps(found).encode()
        files.write(path, gzip.compress(raw) if path.suffix == ".gz" else raw)

    @staticmethod
    def load(path: str | Path) -> Trace:
        """Read a file that `save` has written with the ending .bin.

        Raises
        ------
        InputError
            The file is not such a trace.
        """
        try:
            kind, head, raw = files.read_bytes(path, most=None).split(b"\n", 2)
            if kind + b"\n" != _FORMAT:
                raise ValueError("it begins otherwise")
            found = json.loads(head)
            members, at = [], 0
            for m in found["members"]:
                spans = np.frombuffer(raw, SPAN, m["spans"], at)
                at += spans.nbytes
                members.append(MemberTrace(**{**m, "spans": spans}))
            trace = Trace(members, found["master"], found["error"])
            if not trace._is_possible():
                raise ValueError("its entries contradict each other")
            return trace
        except _OF_OTHER_FILES as exc:
            raise InputError(f"{path} is not a trace that Trace.save has written: {exc}") from None


def check_path(path: str | Path) -> Path:
    """The path, if its ending is one that `Trace.save` knows."""
    path = Path(path)
    if path.suffix in (".json", ".bin") or path.suffixes[-2:] == [".json", ".gz"]:
        return path
    raise InputError(f"the trace {path}: end its name in .json, .json.gz or .bin")


def on_the_master_clock(
    spans: np.ndarray, begin: tuple[float, float], end: tuple[float, float]
) -> np.ndarray:
    """Spans with the times that the master's clock showed.

    Parameters
    ----------
    spans : array of SPAN
    begin, end : tuple of float
        The master's time, and what the member's clock showed more then.
    """
    (t0, o0), (t1, o1) = begin, end
    drift = (o1 - o0) / (t1 - t0) if t1 > t0 else 0.0
    found = spans.copy()
    for field in ("start", "end"):
        about = spans[field] - o0
        found[field] = spans[field] - (o0 + drift * (about - t0))
    return found


def nested(spans: np.ndarray) -> Iterator[tuple[float, float, int, int]]:
    """Spans in order, of which each lies inside of another one or beside it.

    A span that ends after the one in which it has begun, begins at the end of that one.
    """
    waiting = [(start, -end, kind, number) for start, end, kind, number in spans.tolist()]
    heapq.heapify(waiting)
    ends: list[float] = []  # of the spans that are open, the innermost last
    while waiting:
        start, minus_end, kind, number = heapq.heappop(waiting)
        while ends and ends[-1] <= start:
            ends.pop()
        if ends and -minus_end > ends[-1]:
            heapq.heappush(waiting, (ends[-1], minus_end, kind, number))
        elif -minus_end > start:
            ends.append(-minus_end)
            yield start, -minus_end, kind, number


def _named(event: str, pid: int, tid: int, name: str) -> dict[str, object]:
    return {"name": event, "ph": "M", "pid": pid, "tid": tid, "args": {"name": name}}
