"""Advice: measured times of a function, and the speed-up that follows for 1, 2, ... members."""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from synkhronos._api.request import Request
from synkhronos._api.tables import Table, busy
from synkhronos._errors import InputTypeError
from synkhronos._host import cores as _cores
from synkhronos._host.thread_pools import ThreadLimits

SECONDS = 0.15  # of measuring, for each figure
PARTS = (1, 2, 4, 8)  # the fractions of the rows that are timed: all, a half, ...
ROUND_SECONDS = 20e-6  # of a call beside its compute, where it cannot be measured in a group of one
_SURELY = 0.95  # of a time: less differs by more than the noise of a measurement
_SHOWN = (1, 2, 4, 8, 16, 32)


def seconds_of(call: Callable[[], object], budget: float = SECONDS) -> float:
    """Time of a call: the lower quartile, on which other work on the machine has little effect."""
    call()
    times: list[float] = []
    until = time.perf_counter() + budget
    while len(times) < 5 or (time.perf_counter() < until and len(times) < 2000):
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return float(np.percentile(times, 25))


def seconds_of_parts(call_of: Callable[[int], Callable[[], object]]) -> dict[int, float]:
    """Seconds for all, 1/2, 1/4 and 1/8 of the rows, in this process with one thread.

    `call_of` makes, for k, a function that computes one k-th.
    """
    found = {}
    for k in PARTS:
        call = call_of(k)
        with ThreadLimits(1), np.errstate(all="ignore"):
            found[k] = seconds_of(call)
    return found


@dataclass(frozen=True)
class Timing:
    """Seconds of one call in one mode."""

    mode: str
    # undivided, in plain PyTensor with one thread (XLA uses as many threads as it chooses)
    plain: float
    plain_threads: float  # undivided, with all threads
    rest: float  # the work that stays with the master
    parts: dict[int, float]  # by k: one k-th of the rows
    round: float  # the other costs of a call with several members

    @property
    def around(self) -> float:
        """The work around each call that stays the same for any number of members."""
        return 0.0

    @property
    def share(self) -> float:
        """The fraction of the time that can be divided."""
        return self.parts[1] / (self.parts[1] + self.rest)

    def seconds(self, members: int) -> float:
        """The predicted time of a call with this many members, each on one core."""
        return self.rest + self._part(1 / members) + (self.round if members > 1 else 0.0)

    def _part(self, fraction: float) -> float:
        """Seconds for a fraction of the rows, on the lines between those that were measured."""
        known = sorted((1 / k, t) for k, t in self.parts.items())
        if fraction >= known[0][0]:
            return float(np.interp(fraction, [f for f, _ in known], [t for _, t in known]))
        (low, first), *more = known
        if not more:
            return first * fraction / low
        high, second = more[0]
        slope = max(0.0, (second - first) / (high - low))
        return max(0.0, first - slope * (low - fraction))

    @property
    def saved_by_two(self) -> float:
        """Seconds of compute that a second member saves, from the longest and shortest part."""
        known = sorted((1 / k, t) for k, t in self.parts.items())
        (low, first), (high, last) = known[0], known[-1]
        return (last - first) / (high - low) / 2 if high > low else last / 2

    @property
    def undivided(self) -> float:
        """The time of a plain call, with one thread or with all, and of the work around it."""
        return min(self.plain, self.plain_threads) + self.around


@dataclass(frozen=True, repr=False)
class Advice:
    """The result of `advise`; `str` and `show` format it as a table.

    Attributes
    ----------
    names : tuple of str
        What can be divided.
    rows : tuple of int
        The numbers of rows; empty if there are none.
    cores : int
        The number of cores that this process may use.
    modes : tuple of Timing
    load : float
        The machine's load in the last minute, as it was before the measurement.
    left_out : tuple of str
        Modes that were not measured, to save time.
    """

    names: tuple[str, ...]
    rows: tuple[int, ...]
    cores: int
    modes: tuple[Timing, ...]
    load: float = 0.0
    left_out: tuple[str, ...] = ()

    @property
    def best(self) -> Timing:
        """The mode that is fastest on these cores."""
        return min(self.modes, key=lambda m: m.seconds(self.members_in(m)))

    @property
    def plain(self) -> Timing:
        """The mode in which the plain function is fastest: all speed-ups compare with it."""
        return min(self.modes, key=lambda m: m.undivided)

    @property
    def members(self) -> int:
        """The number of members with which it is fastest, at most one for each core.

        It is 1 also where that one is to have all threads, as in ``synk.fork(1)``.
        """
        return 1 if self._threads_suffice else self.members_in(self.best)

    @property
    def _threads_suffice(self) -> bool:
        """Whether one process whose BLAS has all cores is faster than members."""
        others = self.plain.plain, self.best.seconds(self.members_in(self.best))
        return self.cores > 1 and self.plain.plain_threads < _SURELY * min(others)

    def members_in(self, mode: Timing) -> int:
        """The number of members with which a mode is fastest, at most one for each core."""
        return min(range(1, self.cores + 1), key=mode.seconds)

    @property
    def mode(self) -> str:
        """The name of the mode that is fastest on these cores."""
        return self.best.mode

    def in_mode(self, mode: str | None) -> Timing:
        """The times in a mode; None: the fastest."""
        return {m.mode: m for m in self.modes}[mode] if mode else self.best

    def speedup(self, members: int, mode: str | None = None) -> float:
        """Predict the speed-up over plain PyTensor in its best mode and number of threads.

        Parameters
        ----------
        members : int
        mode : str, optional
            The mode of the members. Default: the fastest.
        """
        timing = self.in_mode(mode)
        return self.plain.undivided / (timing.seconds(members) + timing.around)

    def table(self) -> Table:
        """For each mode the times in milliseconds, and speed-ups."""
        members = [k for k in _SHOWN if k <= max(8, self.cores)]
        columns = ["mode", "plain ms", "threads", *self._columns, *(f"{k}x" for k in members)]
        rows = [
            [
                m.mode,
                *(f"{1e3 * t:.3f}" for t in (m.plain, m.plain_threads)),
                *self._cells(m),
                *(f"{self.speedup(k, m.mode):.2f}" for k in members),
            ]
            for m in self.modes
        ]
        rows += [[mode, *["-"] * (len(columns) - 1)] for mode in self.left_out]
        return Table(self._headline(), columns, rows, self._verdict())

    _columns = ("round",)

    def _cells(self, timing: Any) -> list[str]:
        """The texts of `_columns`."""
        return [f"{1e3 * timing.round:.3f}"]

    def __str__(self) -> str:
        return str(self.table())

    __repr__ = __str__

    def _headline(self) -> str:
        rows = ", ".join(f"{n:,}" for n in self.rows)
        of = f" ({rows} rows)" if rows else ""
        return (
            f"{', '.join(self.names)}{of}: time of a call, and speed-up over plain PyTensor with "
            f"{self._threads()} with 1, 2, ... members"
        )

    def _verdict(self) -> str:
        best, members = self.best, self.members
        if self._threads_suffice:
            divided = self.members_in(best)
            with_members = f"{divided} members" if divided > 1 else "one thread"
            return (
                f"One process with all threads is fastest, synk.fork(1): "
                f"{1e3 * self.plain.plain_threads:.3f} ms; {with_members}: "
                f"{1e3 * best.seconds(divided):.3f} ms.{self._busy()}"
            )
        if members == 1:
            return self._why_one() + self._busy()
        seconds = best.seconds(members)
        each = ", one for each core" if members == self.cores else ""
        return (
            f"Fastest with {members} members{each}: {1e3 * seconds:.3f} ms. That is "
            f"{self.speedup(members):.2f} times as fast as plain PyTensor with {self._threads()}."
            f"{self._busy()}"
        )

    def _threads(self) -> str:
        """With how many threads the plain function is fastest."""
        return "all threads" if self.plain.plain_threads < self.plain.plain else "one thread"

    def _busy(self) -> str:
        found = busy(self.load)
        return f" {found}: measure again when it is idle." if found else ""

    def _why_one(self) -> str:
        best = self.best
        if self.cores == 1:
            return "This process may use one core: nothing can be gained."
        saved = best.saved_by_two
        found = (
            f"One member is fastest: a second one would save {1e6 * saved:,.1f} us of a call, and "
            f"cost {1e6 * best.round:,.0f} us."
        )
        if self.rows and saved > 0:
            rows = float(f"{self.rows[0] * best.round / saved:.1g}")
            found += f" Two members pay from about {rows:,.0f} rows in a call."
        return found

    def show(self) -> None:
        """Print the table: with rich at a terminal if it is installed, else as plain lines."""
        self.table().show()


class Advised(ABC):
    """The base of functions for which `advise` can predict the speed-up."""

    @abstractmethod
    def timed(self, asked: Request) -> tuple[str, int | None, Timing]:
        """Measure a call: the function's name, the rows of the call, the times."""


def advise(f: object, *args: object, batch: object = None, **kwargs: object) -> Advice:
    """Measure a call of a function, and predict its speed-up with 1, 2, ... members.

    Nothing is changed: no shared variable, no random generator. In a group of one (``fork(1)``) the
    prediction takes 20 us for a call's other costs. In a larger group these are measured.

    Parameters
    ----------
    f : Function or TrainFunction
        Made in a group of any size.
    *args, batch, **kwargs
        As for a call.

    Returns
    -------
    Advice
        Times, predictions, the best number of members; ``show()`` prints them.

    Raises
    ------
    InputTypeError
        `f` is something else.
    InputError, BatchError
        The arguments are wrong.

    Notes
    -----
    Cost: about two seconds, and the compilation if the function has not been used; for a
    train function also that of its update. Predictions assume an idle machine whose cores do not
    slow one another down: cores that share memory bandwidth or a turbo clock reach less. In mode
    JAX the time of a part is not measured, but taken as proportional to its rows.

    Examples
    --------
    >>> import numpy as np, pytensor.tensor as pt, synkhronos as synk
    >>> x = pt.matrix("x", dtype="float64")
    >>> with synk.Group(1):
    ...     f = synk.function([x], pt.exp(x).sum(), name="f")
    ...     advice = synk.advise(f, np.ones((1000, 100)))
    >>> advice.rows, advice.speedup(2) > 0
    ((1000,), True)
    """
    if not isinstance(f, Advised):
        raise InputTypeError(
            f"advise takes a function of synk.function or make_train_function, found "
            f"{type(f).__name__}. For a PyMC model use synk.pymc.advise(model)"
        )
    load = os.getloadavg()[0]
    name, rows, timing = f.timed(Request(args, kwargs, batch=batch))
    found = () if rows is None else (rows,)
    return Advice((name,), found, len(_cores.available()), (timing,), load)
