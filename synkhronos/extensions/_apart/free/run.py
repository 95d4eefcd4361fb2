"""A run of a free rule: what the master sees of it, and takes from it.

These rules hold:

* The run is one task of the group: the workers train without the master. The master joins while it
  waits (`wait`, `every`), and only then. So no member may wait for all others: the master may be
  away for any time.
* Each member counts its steps, rows and losses in a page of shared memory, which only it writes.
  The master reads all pages without a message, so its figures may be a step old.
* A point is one version of the centre, with the rows, losses and batches of that moment.
* A worker's death does not end the run while `least` members are left. It is noted, and the steps
  since its last exchange are lost. A worker that raises stops all.
* However the run ends, `_settle` is reached: the task is ended in the group. Unless the run is
  discarded, the variables get the centre's values, and the Batches their new place. After a failure
  of the master, or a second Ctrl-C, nobody waits for it first.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from pytensor.compile.sharedvalue import SharedVariable

from synkhronos._checks import check_seconds
from synkhronos._engine.group import Group
from synkhronos._engine.runner import Task
from synkhronos._errors import WorkerDied
from synkhronos._transport.channels.channel import Failure
from synkhronos._warnings import log
from synkhronos.extensions._apart.free import pages
from synkhronos.extensions._apart.free.free_member import FreeMember, total
from synkhronos.extensions._apart.free.free_state import FreeState
from synkhronos.extensions._apart.points import Point, PointSource

_LOOK_SECONDS = 0.05  # between two looks of the master at the other members


@dataclass(frozen=True)
class Death:
    """A worker that died in a run.

    Attributes
    ----------
    rank, pid : int
    how : str
    steps : int
        Of this member, those that the centre lacks among them.
    """

    rank: int
    pid: int
    how: str
    steps: int


class Run(PointSource):
    """Members that train by a free rule; made by `FreeFunction.start`.

    Use it in a ``with`` statement: the end of the block stops the members and waits for them. Then
    the variables have the centre's values. The master trains inside of `wait` and `every`, and
    does not elsewhere, while the others go on.

    Attributes
    ----------
    history : list of dict
        For each point: rows, epoch, seconds, version, loss.
    deaths : list of Death
    notes : list of str
        After the end: what has to be known of the result, in one line each. So it says if the
        variables differ from the last point because the master began late.
    log : dict of lists
        With ``record=True``, after the end, by rank: for each exchange the centre's version after
        it, the member's steps, the staleness, the members that took part, what was done, and the
        batches since the exchange before. `synkhronos.testing.simulate` can replay it. Of `GoSGD`:
        for each message what was done ("send", "merge", "take back"), the other member, the
        message's number, and the member's steps.

    Notes
    -----
    Ctrl-C inside of the block stops all members at the end of their steps, gives the variables the
    centre's values, and goes on as KeyboardInterrupt. A second Ctrl-C ends members that have not
    stopped by then.
    """

    def __init__(
        self,
        group: Group,
        task: Task,
        free: FreeState,
        participant: FreeMember,
        finished: Callable[[dict[str, object]], None],
        counts: SharedVariable,
        stall_warning: float | None,
        least: int,
        post: Callable[[], None],
    ) -> None:
        self.history: list[dict[str, Any]] = []
        self.deaths: list[Death] = []
        self.notes: list[str] = []
        self.log: dict[int, list[Any]] = {}
        self._group = group
        self._task = task
        self._free = free
        self._participant = participant
        self._pages = participant.shared.pages
        self._finished = finished
        self._counts = counts  # of rows and exchanges
        self._before = counts.get_value()
        self._least = least
        self._post = post  # the values of the optimizer's scalars, such as a learning rate
        self._version = 0
        self._stall = math.inf if stall_warning is None else stall_warning
        self._began = self._looked = time.monotonic()
        self._named: set[int] = set()
        self._stopping = False
        self._over = False
        self._progress: list[dict[str, object]] = []  # at the end
        self._missed: int | None = None  # rows that were used when the master began
        self._counted = (0.0, 0.0)  # rows and loss at the previous point
        self._total = (0.0, 0.0)  # at the end

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, exc: BaseException | None, tb: object) -> None:
        if self._over:
            return
        if exc is None:
            self.stop()
            self.wait()
            return
        self.stop()
        try:
            with contextlib.suppress(WorkerDied):
                self._end(keep=True)
        except KeyboardInterrupt as again:
            self._note(again)
            raise
        self._note(exc)

    def _note(self, exc: BaseException) -> None:
        exc.add_note(
            f"synkhronos: {self._task.what} was stopped; the variables have version "
            f"{self._version} of the centre"
        )

    @property
    def rows(self) -> int:
        """Rows that all members have used so far."""
        return sum(found["rows"] for found in self.progress())

    @property
    def steps(self) -> int:
        """Steps that all members have made so far."""
        return sum(found["steps"] for found in self.progress())

    @property
    def loss(self) -> float:
        """The mean over all rows so far, at each member's own values."""
        counted, loss = self._losses()
        return loss / counted if counted else math.nan

    def _losses(self) -> tuple[float, float]:
        """The rows of steps with a finite loss, and the sum of their losses."""
        if self._over:
            return self._total
        counted, loss = (
            sum(p.reals[word] for p in self._pages) for word in (pages.LOSS_ROWS, pages.LOSS)
        )
        return counted, loss

    def progress(self) -> list[dict[str, Any]]:
        """The work of each member: one dict for each rank.

        Keys: steps, rows, exchanges, staleness (mean), stalest, waited (share of the time), idle
        (seconds since its latest step), refused and put_off (exchanges), present, alive.
        """
        if self._over:
            return self._progress
        now, since = time.monotonic_ns(), time.monotonic() - self._began
        found = []
        for rank, page in enumerate(self._pages):
            w = page.words
            found.append(
                {
                    "steps": w[pages.STEPS],
                    "rows": w[pages.ROWS],
                    "exchanges": w[pages.EXCHANGES],
                    "staleness": w[pages.STALENESS] / max(1, w[pages.EXCHANGES]),
                    "stalest": w[pages.STALEST],
                    "waited": w[pages.WAITED] / 1e9 / max(since, 1e-9),
                    "idle": (now - w[pages.LATEST]) / 1e9 if w[pages.LATEST] else since,
                    "refused": w[pages.REFUSED],
                    "put_off": w[pages.PUT_OFF],
                    "present": bool(w[pages.PRESENT]),
                    "alive": rank not in self._participant.peers.dead,
                }
            )
        return found

    def centre(self) -> Point:
        """A copy of the centre now, of one version; members go on.

        Raises
        ------
        GroupError
            The run has ended.
        """
        with self._joined():
            return self._point()

    def _measures(self) -> dict[str, Callable[[], float]]:
        return {
            "rows": lambda: self.rows,
            "exchanges": lambda: total(self._pages, pages.EXCHANGES),
            "seconds": lambda: time.monotonic() - self._began,
        }

    def _ended(self) -> bool:
        return self._over or self._stopping

    def _raise_failures(self) -> None:
        if self._failed():
            self.wait()

    def set(self, **numbers: float | None) -> None:
        """Change numbers of the rule, such as ``alpha=0.1``; members take them at an exchange.

        Raises
        ------
        InputError, InputTypeError
            The rule has no such number, or the value is out of range. Nothing has changed.
        """
        rule = self._participant.rule.with_numbers(numbers).for_members(self._group.size)
        words: Any = self._participant.shared.numbers
        for i, value in enumerate([float(getattr(rule, name)) for name in rule.numbers], 1):
            words[i] = value
        words[0] += 1
        self._participant.rule = rule

    def stop(self) -> None:
        """Ask all members to stop at the end of their steps."""
        if not self._over:
            self._stopping = True
            self._task.stop()
            self._participant.peers.ring()

    def wait(self, timeout: float | None = None) -> bool:
        """Train until the rows end, or all have stopped; then the variables get the centre.

        Parameters
        ----------
        timeout : float, optional
            Seconds, more than 0, after which it returns False, and the others go on.

        Returns
        -------
        bool
            Whether the run has ended.

        Raises
        ------
        WorkerError
            A member raised. All have stopped, and the variables have the centre's values.
        WorkerDied
            Too few members are left; as above.
        """
        if self._over:
            return True
        check_seconds("timeout", timeout)
        until = math.inf if timeout is None else time.monotonic() + timeout
        if not self._train(lambda: time.monotonic() >= until):
            return False
        self._end(keep=True)
        return True

    def discard(self) -> None:
        """Stop, wait, and leave the variables and the Batches as they were before the start."""
        if not self._over:
            self.stop()
            self._end(keep=False)

    @contextlib.contextmanager
    def _joined(self) -> Iterator[None]:
        with self._group.runner.joined(self._task), self._participant.peers.engaged():
            yield

    def _train(self, enough: Callable[[], bool]) -> bool:
        """Let the master train until it is enough; True if all rows are used or all shall stop."""
        participant = self._participant
        reached = False

        def once() -> bool:  # rows that are refused count no longer
            nonlocal reached
            reached = reached or enough()
            return reached

        self._post()
        try:
            with self._joined():
                try:
                    return self._take_part(once)
                finally:
                    participant.withdraw()
        except Exception:
            self.stop()
            with contextlib.suppress(Exception):
                self._end(keep=True)
            raise

    def _take_part(self, enough: Callable[[], bool]) -> bool:
        participant = self._participant

        def leaves() -> bool:
            return self._shall_stop() or enough()

        while not enough() and not self._stopping:
            if self._missed is None:
                self._missed = self.rows
            participant.arrive()
            while not enough() and participant.step(self._shall_stop, leaves):
                self._look()
            if self._stopping or enough():
                break
            participant.rest()
            if not self._wait_for_rows(enough):
                return self._stopping or not self._workers_at_work()
        return self._stopping

    def _wait_for_rows(self, enough: Callable[[], bool]) -> bool:
        """Wait while others use the last rows; True if one died, whose rows are used again."""
        deaths = len(self.deaths)
        self._watch(
            lambda: (
                enough()
                or self._stopping
                or len(self.deaths) > deaths
                or not self._workers_at_work()
            )
        )
        self._note_deaths()  # a wait may have seen one that has not been looked at
        return len(self.deaths) > deaths

    def _stopped(self) -> bool:
        return self._stopping

    def _shall_stop(self) -> bool:
        self._look()  # also while the master waits for others
        return self._stopping

    def _watch(self, done: Callable[[], bool]) -> None:
        """Wait until it is done, while looking at the others."""
        while not self._participant.peers.wait(done, _LOOK_SECONDS):
            self._look()

    def _workers_at_work(self) -> bool:
        dead = self._participant.peers.dead
        late = self._group.channel.late(self._task.number)
        return any(rank not in dead for rank in late)

    def _look(self) -> None:
        """Look at the others, now and then: deaths, failures, stalls."""
        now = time.monotonic()
        if now - self._looked < _LOOK_SECONDS:
            return
        self._looked = now
        self._participant.serve()
        self._note_deaths()
        if self._failed():
            self.stop()
        self._name_stalled()

    def _failed(self) -> bool:
        """Whether a worker has raised, or too few members are left."""
        reports = self._group.channel.reports(self._task.number).values()
        left = len(self._pages) - len(self._participant.peers.dead)
        return left < self._least or any(isinstance(report, Failure) for report in reports)

    def _note_deaths(self) -> None:
        peers, channel = self._participant.peers, self._group.channel
        peers.glance()
        known = {death.rank for death in self.deaths}
        for worker in channel.workers:
            if worker.rank in peers.dead and worker.rank not in known:
                worker.reap()
                steps = self._pages[worker.rank].words[pages.STEPS]
                death = Death(worker.rank, worker.pid, worker.ended, steps)
                self.deaths.append(death)
                log.warning(
                    "%s: rank %d (pid %d) %s after %d steps; those since its last exchange are "
                    "lost, and the others go on",
                    self._task.what,
                    *(death.rank, death.pid, death.how, death.steps),
                )

    def _name_stalled(self) -> None:
        for rank, found in enumerate(self.progress()):
            at_work = self._pages[rank].words[pages.AT_WORK] or not found["steps"]
            stalls = found["alive"] and found["present"] and found["idle"] > self._stall
            if stalls and at_work and rank not in self._named and rank != self._group.rank:
                self._named.add(rank)
                log.warning(
                    "%s: rank %d has made no step for %.3g s; the others go on",
                    *(self._task.what, rank, found["idle"]),
                )
            elif found["idle"] < self._stall:
                self._named.discard(rank)

    def _point(self) -> Point:
        version, values = self._read()
        counted, loss = self._losses()
        before, sum_before = self._counted
        self._counted = counted, loss
        mean = (loss - sum_before) / (counted - before) if counted > before else math.nan
        position = self._participant.state()
        point = Point(
            values,
            version,
            self._free.torn,
            int(values[self._counts][0]),
            position["epoch"],
            time.monotonic() - self._began,
            mean,
            position,
        )
        self.history.append(point.summary())
        return point

    def _read(self) -> tuple[int, dict[SharedVariable, np.ndarray]]:
        """The version of the centre, and the values of the variables."""
        version, found = self._participant.read(self._watch)
        values = self._free.values(found)
        values[self._counts] = self._before + np.array([self.rows, version])
        return int(values[self._counts][1]), values

    def _end(self, keep: bool) -> None:
        """Wait until all have stopped; give the variables the centre's values."""
        raised: BaseException | None = None
        try:
            with self._joined():
                for act in (self._finish, self._watch_to_the_end, self._watch_to_the_end):
                    try:
                        act()
                    except BaseException as exc:
                        raised = exc
                        self._stop_others(at_once=isinstance(exc, KeyboardInterrupt))
                self._participant.conclude()
                if raised is not None:
                    raise raised
        finally:
            self._settle(keep)

    def _finish(self) -> None:
        if not self._participant.broken:
            self._participant.finish(self._watch)

    def _stop_others(self, at_once: bool) -> None:
        """After a failure of the master, or a second Ctrl-C: nobody waits for it any more."""
        self.stop()
        self._participant.leave()
        if at_once:
            self._group.channel.kill(self._group.channel.late(self._task.number))

    def _watch_to_the_end(self) -> None:
        peers = self._participant.peers
        while self._workers_at_work():
            peers.wait(lambda: not self._workers_at_work(), _LOOK_SECONDS)
            self._looked = 0.0
            self._look()
        self._note_deaths()

    def _settle(self, keep: bool) -> None:
        """End the task in the group, and set the variables."""
        participant = self._participant
        self._free.local.hide()
        self._version, values = self._read()
        if keep:
            self._finished(participant.state())
        self._progress, self._total = self.progress(), self._losses()
        self._over = True
        self._note_late_start()
        self.log = {self._group.rank: participant.log}
        try:
            self.log |= self._group.runner.end_task(self._task, self._least)
        finally:
            for variable, value in values.items() if keep else ():
                variable.set_value(value, borrow=True)

    def _note_late_start(self) -> None:
        """Say so if the master has moved the centre after the last point, by few steps of its own.

        Its parameters are those of the start and a few steps, so its last exchange may take the
        centre far from the point.
        """
        if self._participant.rule.way != "turns":  # the others have no last exchange with a centre
            return
        missed, last = self._missed, self.history[-1]["version"] if self.history else self._version
        own = self._progress[self._group.rank]["steps"]
        if missed is None or self._version <= last or not own or 2 * missed < self.rows:
            return
        text = (
            f"the variables have version {self._version} of the centre, and the last point has "
            f"{last}: the master began when {missed} of {self.rows} rows were used, and exchanged "
            "after the point. Enter run.every or run.wait sooner, or set the point's values"
        )
        self.notes.append(text)
        log.warning("%s: %s", self._task.what, text)
