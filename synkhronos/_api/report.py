"""Reports: where the time of a function's calls goes in each member, and what to change."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from synkhronos._api.tables import Table, busy, percent
from synkhronos._engine.commands.base import BYTES, CALLS, PHASES, ROWS
from synkhronos._engine.commands.clocks import Clocks, ReadClocks, seconds_by_phase
from synkhronos._engine.group import Group
from synkhronos._errors import InputError

# A group whose members compute for this fraction of the time is used well.
WELL_USED = 0.8
# The fraction of the time that members lose to a slower one, from which on it is named first.
_UNEVEN = 0.1
# Moving outputs between members reaches more bytes per second than this.
_SLOWEST_MOVE = 100e6
_SHOWN = ("compute", "scatter", "copy", "wait", "reduce", "update", "between")


@dataclass(frozen=True, repr=False)
class Report:
    """Where the time of calls went; made by ``f.report(...)`` and ``train.report()``.

    "between" is the time between the members' work for one call and for the next one: that of the
    script, and of the call itself, which copies arrays into shared memory and sends the command.
    The rest of a worker's time between two calls is a wait for the master.

    Attributes
    ----------
    what : str
        What was called.
    calls : int
        How many calls were measured.
    rows : int
        The rows of a call, on average; 0 if its inputs are not scattered.
    seconds : dict of str to tuple of float
        For each phase the seconds of a call, on average, by rank.
    rank : int
        The master's.
    cores : int
        The cores that the members share; 0 if they are on GPUs or on several nodes.
    nbytes : int
        The bytes of a call's outputs; 0 for training steps.
    load : float
        The machine's load in the minute before the report.

    Examples
    --------
    >>> import numpy as np, pytensor.tensor as pt, synkhronos as synk
    >>> x = pt.matrix("x", dtype="float64")
    >>> with synk.Group(2):
    ...     f = synk.function([x], pt.exp(x).sum(), name="f")
    ...     report = f.report(np.ones((1000, 100)))
    >>> report.rows, len(report.seconds["compute"])
    (1000, 2)
    """

    what: str
    calls: int
    rows: int
    seconds: dict[str, tuple[float, ...]]
    rank: int = 0
    cores: int = 0
    nbytes: int = 0
    load: float = 0.0

    @property
    def size(self) -> int:
        """The number of members."""
        return len(self.seconds["compute"])

    def share(self, *phases: str) -> float:
        """The fraction of the members' time that they spend on these phases."""
        return self._mean(*phases) / max(self._mean(*PHASES), 1e-12)

    def _mean(self, *phases: str) -> float:
        return sum(sum(self.seconds[p]) for p in phases) / self.size

    @property
    def enough_rows(self) -> int | None:
        """The rows of a call with which members would compute for 80 % of the time, about.

        None if that is not known: inputs are not scattered, or were empty. It follows from the
        measured time for each row, and from the time that does not depend on the rows.
        """
        work = self._mean("scatter", "compute")
        if not self.rows or work <= 0:
            return None
        fixed = self._mean(*PHASES) - work
        needed = self.rows * WELL_USED / (1 - WELL_USED) * fixed / work
        digits = 10 ** max(0, math.floor(math.log10(max(needed, 1))) - 1)
        return math.ceil(round(needed / digits, 6)) * digits

    @property
    def verdict(self) -> str:
        """One or two sentences on what binds, and what to change."""
        used, most = self.share("scatter", "compute"), self._slowest()
        if self.cores and self.size > self.cores:
            return (
                f"{self.size} members share {self.cores} cores: start as many members as there "
                f"are cores, synk.fork({self.cores})."
            )
        if most is not None:
            return most
        if used >= WELL_USED:
            found = f"Members compute for {percent(used)} of the time: only the compute binds. "
            return found + (
                "More members help if there are cores for them: synk.advise predicts it."
                if self.size == 1
                else "More cores or a faster graph help."
            )
        between = self.share("between")
        if between > 0.5 * (1 - used) and between > self.share("wait"):
            return self._slow_script(between)
        moving = self.share("wait", "reduce")
        if moving > 0.5 * (1 - used) and self.nbytes > _SLOWEST_MOVE * self._mean("wait", "reduce"):
            return (
                f"Members compute {percent(used)} of the time; {percent(moving)} goes into moving "
                f"{self.nbytes / 1e6:,.1f} MB of outputs to the master. Reduce outputs in the "
                "graph, or keep them in shared variables."
            )
        if (other := busy(self.load)) and self.share("wait") > 0.5 * (1 - used):
            return (
                f"Members compute {percent(used)} and wait {percent(self.share('wait'))} of the "
                f"time. {other}, so members wait for cores: measure again when it is idle."
            )
        return self._fixed_costs(used)

    def _slowest(self) -> str | None:
        """A sentence on a member that computes much longer than the others, if there is one."""
        times = self.seconds["compute"]
        if self.size == 1:
            return None
        slow = max(range(self.size), key=lambda r: times[r])
        others = (sum(times) - times[slow]) / (self.size - 1)
        lost = (times[slow] - others) / max(self._mean(*PHASES), 1e-12)
        if lost < _UNEVEN or times[slow] < 1.2 * others:
            return None
        return (
            f"Rank {slow} computes {times[slow] / max(others, 1e-12):.1f} times as long as the "
            f"others, which wait for it {percent(lost)} of the time: another process uses its "
            "core, or its rows take longer."
        )

    def _slow_script(self, between: float) -> str:
        enough = self.enough_rows
        larger = "" if enough is None else f", or use batches of {enough:,} rows or more"
        return (
            f"{percent(between)} of the time passes between calls, in the script or in copies of "
            "its arrays. Make Data of arrays (synk.data), prepare batches in a thread "
            f"(extensions.Loader){larger}."
        )

    def _fixed_costs(self, used: float) -> str:
        names = {
            "wait": "wait",
            "copy": "copy gradients",
            "reduce": "reduce values",
            "update": "update",
            "between": "are between calls",
        }
        lost = max(names, key=self.share)
        enough = self.enough_rows
        cure = (
            "the compute of a call is too small to be divided"
            if enough is None
            else f"parts are too small; use batches of {enough:,} rows or more"
        )
        share = percent(self.share(lost))
        return f"Members compute {percent(used)} and {names[lost]} {share} of the time: {cure}."

    def table(self) -> Table:
        """The report as a table, in milliseconds of a call."""
        phases = [p for p in _SHOWN if any(self.seconds[p])]
        rows = []
        for r in range(self.size):
            times = [self.seconds[p][r] for p in phases]
            label = f"{r} (master)" if r == self.rank else f"{r}"
            rows.append([label, *(f"{1e3 * t:.3f}" for t in [*times, sum(times)])])
        rows.append(["share", *(percent(self.share(p)) for p in phases), ""])
        of = f" of {self.rows:,} rows" if self.rows else ""
        many = f"{self.calls:,} call{'s' if self.calls > 1 else ''}"
        return Table(
            f"{self.what}: {many}{of} in {self.size} member{'s' if self.size > 1 else ''}; "
            "milliseconds of a call",
            ["rank", *phases, "total"],
            rows,
            self.verdict,
        )

    def as_dict(self) -> dict[str, Any]:
        """The report as plain numbers, lists and texts, for a log or JSON."""
        return {
            "what": self.what,
            "calls": self.calls,
            "rows": self.rows,
            "nbytes": self.nbytes,
            "seconds": {phase: list(times) for phase, times in self.seconds.items()},
            "shares": {phase: self.share(phase) for phase in PHASES},
            "enough_rows": self.enough_rows,
            "verdict": self.verdict,
        }

    def __str__(self) -> str:
        return str(self.table())

    __repr__ = __str__

    def show(self) -> None:
        """Print the table: with rich at a terminal if it is installed, else as plain lines."""
        self.table().show()


class Measurements:
    """Counts of the clocks of one function, and the reports on them."""

    def __init__(self, group: Group, number: int) -> None:
        self._group = group
        self._number = number  # the function's
        self._clocks: Clocks | None = None
        self._before: list[list[float]] = []
        self._over_nodes = False
        self._latest: Report | None = None

    def use(self) -> None:
        """Take the clocks that the members have made."""
        self._over_nodes = self._group.member.communicator.nodes > 1
        made = self._group.member.measured.clocks[self._number]
        if made is not self._clocks:
            self._clocks, self._before, self._latest = made, [], None

    def skip(self) -> None:
        """Leave what was measured so far out of the next report; while the runner is reserved."""
        self._before, self._latest = self._cells(self._group.runner.run), None
        if self._clocks is not None:
            self._clocks.mine.rest()

    def cells(self) -> list[list[float]]:
        """The cells of each member, by rank; empty before there are clocks."""
        return self._cells(self._group.run)

    def _cells(self, run: Callable[..., Any]) -> list[list[float]]:
        if self._clocks is None:
            return []
        if self._over_nodes:
            if not self._group.alive:  # what other nodes have counted has ended with them
                return self._before
            found: list[list[float]] = run(ReadClocks(self._number), "report")
            return found
        return [cells.tolist() for cells in self._clocks.of]

    def report(self, what: str, how: str) -> Report:
        """The report on the calls since the previous report; the previous one if there are none.

        Raises
        ------
        InputError
            Nothing has been measured; the message says `how` to measure.
        """
        now = self.cells()
        since = [
            [a - b for a, b in zip(new, old, strict=True)]
            for new, old in zip(now, self._before or [[0.0] * len(c) for c in now], strict=True)
        ]
        group = self._group
        calls = int(since[group.rank][CALLS]) if since else 0
        if not calls:
            if self._latest is None:
                raise InputError(f"report: no call of {what} has been measured. {how}")
            return self._latest
        self._before = now
        if self._clocks is not None:
            self._clocks.mine.rest()
        here = len(group.cores) == group.size and all(d.kind == "cpu" for d in group.devices)
        self._latest = Report(
            what,
            calls,
            round(sum(c[ROWS] for c in since) / calls),
            _per_call(seconds_by_phase(since), calls, group.rank),
            group.rank,
            len({core for share in group.cores for core in share}) if here else 0,
            round(since[group.rank][BYTES] / calls),
            os.getloadavg()[0],
        )
        return self._latest


def _per_call(
    seconds: dict[str, list[float]], calls: int, master: int
) -> dict[str, tuple[float, ...]]:
    """Seconds of a call; the rest of a worker's time, by the master's clock, is a wait."""
    shared = seconds["between"][master]
    work = [sum(times) for times in zip(*(seconds[p] for p in PHASES[:-1]), strict=True)]
    waits = [t + max(0.0, work[master] - w) for t, w in zip(seconds["wait"], work, strict=True)]
    found = seconds | {"wait": waits, "between": [shared] * len(work)}
    return {phase: tuple(t / calls for t in times) for phase, times in found.items()}
