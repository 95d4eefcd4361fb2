"""Rules under a virtual clock: their own code, at any speeds and schedules, in one process.

`simulate` runs a rule of `synkhronos.rules` on flat vectors. Nothing is forked, nothing waits, and
the same arguments give the same bits.
"""

# These rules hold here:
#
# * A rule's own code computes: `meeting`, `plan`, `exchange`, `merge`. Only what members and the
#   master do around it is written again here.
# * Time is a number. By the clock, the next to act is the member with the earliest time, and of
#   those the lowest rank. So a simulation has one course.
# * A step takes effect at its end, by the parameters that the member has then. Only `Hogwild`
#   computes by those that it has read at the begin.
# * An exchange is whole: no other member sees half of it. Where a rule has turns, one waits for the
#   other.
# * Staleness counts what others have committed since a member's last exchange.
# * Each way of a free rule has a class in `_WORLDS`. A new way needs one, and nothing else here.

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from synkhronos._checks import is_integer
from synkhronos._errors import InputError
from synkhronos._proofs.reductions import normalized
from synkhronos.extensions._apart.centre_optimizer import ElementwiseUpdate
from synkhronos.rules import FreeRule, GoSGD, RoundRule, Rule
from synkhronos.rules._base import STARTS_AS_CENTRE, Turn, TurnRule, Vector

Gradient = Callable[[Vector, int, int], Vector]
Inner = Callable[[Vector, Vector, int], None]
RunLog = Mapping[int, Sequence[tuple[Any, ...]]]


class Exchange(NamedTuple):
    """One turn of a member, or one meeting (rank -1).

    Attributes
    ----------
    version : int
        Of the centre, after it.
    rank : int
    step : int
        The member's steps so far.
    staleness : int
    present : int
        Members that took part at this time.
    does : str
    to : int
        The receiver of a message.
    """

    version: int
    rank: int
    step: int
    staleness: int
    present: int
    does: str
    to: int = -1


@dataclass
class Simulation:
    """The findings of a simulation.

    Attributes
    ----------
    centre : vector
        For `GoSGD`, the members' mean by their weights.
    members : list of vector
    versions : list of vector
        The centre at first, and after each exchange that has changed it or what lies beside it.
    log : list of Exchange
    seconds : float
        Of the virtual clock.
    steps : list of int
        Of each member.
    weights : list of float
        Of the members, for `GoSGD`.
    """

    centre: Vector
    members: list[Vector]
    versions: list[Vector] = field(default_factory=list)
    log: list[Exchange] = field(default_factory=list)
    seconds: float = 0.0
    steps: list[int] = field(default_factory=list)
    weights: list[float] = field(default_factory=list)


def simulate(
    rule: Rule,
    inner: Inner,
    gradient: Gradient,
    speeds: Sequence[float],
    cost: float = 0.0,
    schedule: Sequence[int] | RunLog | None = None,
    *,
    start: Vector,
    steps: int | Sequence[int] = 0,
    deaths: Mapping[int, int] | None = None,
    rows: Sequence[float] | None = None,
) -> Simulation:
    """Simulate members that train by a rule.

    Parameters
    ----------
    rule : Rule
    inner : callable
        ``inner(w, gradient, rank)`` changes a member's parameters in place. `rank` is that of the
        optimizer's states: with `Swap` they follow the parameters from member to member.
    gradient : callable
        ``gradient(w, rank, step)``: the gradient that a member computes in its step number `step`,
        which counts from 0.
    speeds : sequence of float
        Steps a second, for each member.
    cost : float
        Seconds of an exchange, message or meeting.
    schedule : sequence of int, or {rank: list}, optional
        The ranks in the order in which they exchange, instead of the order that speeds give. For
        rules without turns: in the order in which they step. A member that dies is named once
        more, when it dies. One that waits for a quorum is named again, when it looks. Or the `log`
        of a `Run` of a rule with turns, which is replayed: `steps` and `deaths` do not count then.
    start : vector
        The parameters at first.
    steps : int, or one for each member
        A member that has made all its steps exchanges once more if it has to, and ends.
    deaths : {rank: step}, optional
        A free rule's member dies when it has made this number of steps, before an exchange.
    rows : sequence of float, optional
        The rows of each member's step. Default: 1.

    Returns
    -------
    Simulation

    Raises
    ------
    InputError
        The rule does not work with this number of members, is for nodes, or has no such schedule,
        steps or deaths.

    Notes
    -----
    Exchanges take place one at a time, in the order in which members ask for them, by rank where
    they ask at the same time.

    Examples
    --------
    >>> import numpy as np
    >>> from synkhronos import rules
    >>> from synkhronos.testing import simulate
    >>> def inner(w, gradient, rank):
    ...     w -= 0.1 * gradient
    >>> found = simulate(
    ...     rules.EASGD(period=2), inner, lambda w, rank, step: w, speeds=[1.0, 2.0],
    ...     start=np.ones(1), steps=20,
    ... )
    >>> found.seconds, len(found.log), bool(abs(found.centre[0]) < 0.5)
    (20.0, 20, True)
    """
    members = len(speeds)
    several: Any = [steps] * members if is_integer(steps) else steps
    counts = [int(n) for n in several]
    made: Any = rule.for_members(members)
    deaths = dict(deaths or {})
    weights = [1.0] * members if rows is None else [float(n) for n in rows]
    if not len(counts) == len(weights) == members or min(speeds) <= 0:
        raise InputError(
            f"simulate: {members} speeds, {len(counts)} steps and {len(weights)} rows: give one of "
            "each for each member, and speeds above 0"
        )
    if not set(deaths) <= set(range(members)):
        raise InputError(f"simulate: deaths={deaths} names a rank beyond the {members} members")
    if made.meets:
        if schedule is not None or deaths or len(set(counts)) > 1:
            raise InputError(
                f"simulate: the members of {rule} step together: they have no schedule and no "
                "deaths, and all make equally many steps"
            )
        return _rounds(made, start, gradient, inner, speeds, counts[0], cost, weights)
    if made.way not in _WORLDS:
        raise InputError(f"simulate: {rule} is for several nodes: give the rule of one of them")
    world = _WORLDS[made.way](made, start, gradient, inner, weights, members)
    if not isinstance(schedule, Mapping):
        world.run(speeds, counts, cost, schedule, deaths)
    elif isinstance(world, _Turns):
        world.replay(schedule)
    else:
        raise InputError(f"simulate: {rule} has no turns, so the log of its run is not a schedule")
    return world.found


def _rounds(
    rule: RoundRule,
    start: Vector,
    gradient: Gradient,
    inner: Inner,
    speeds: Sequence[float],
    steps: int,
    cost: float,
    rows: list[float],
) -> Simulation:
    members = len(speeds)
    centre = start.copy()
    outer = [np.zeros_like(centre) for _ in rule.outer]
    w = [centre.copy() for _ in range(members)]
    weights = normalized(rows if rule.by_rows and any(rows) else [1.0] * members)
    owners = list(range(members))  # of the optimizer's states
    warmup = rule.warmup
    found = Simulation(centre, w, [centre.copy()], steps=[steps] * members)
    for step in range(steps):
        found.seconds += 1 / min(speeds)
        common = None
        if step < warmup:
            each = [np.array(gradient(w[rank], rank, step)) for rank in range(members)]
            common = _mean(each, weights)
        for rank in range(members):
            slope = gradient(w[rank], rank, step) if common is None else common
            inner(w[rank], slope, owners[rank])
        since = step + 1 - warmup
        if since > 0 and since % rule.period and step + 1 < steps:
            continue
        number = len(found.log)
        partners = rule.partners(number, members)
        swapped = [w[r].copy() for r in partners]
        owners = [owners[r] for r in partners]
        rule.meeting(w, centre, outer, _mean(w, weights), members)
        if rule.swaps:
            for vector, value in zip(w, swapped, strict=True):
                vector[...] = value
        found.versions.append(centre.copy())
        found.log.append(Exchange(number + 1, -1, step + 1, 0, members, "meeting"))
        found.seconds += cost
    return found


def _mean(vectors: Sequence[Vector], weights: Sequence[float]) -> Vector:
    mean = vectors[0] * weights[0]
    for vector, weight in zip(vectors[1:], weights[1:], strict=True):
        mean += vector * weight
    return mean


class _World:
    """Members that step by themselves; the base of the simulations of free rules."""

    period = 1
    bound: int | None = None
    queues = False  # exchanges take place one at a time

    def __init__(
        self,
        rule: FreeRule,
        start: Vector,
        gradient: Gradient,
        inner: Inner,
        rows: list[float],
        members: int,
    ) -> None:
        del rule, rows
        self.gradient, self.inner = gradient, inner
        self.present = set(range(members))
        self.done = [0] * members
        self.w = [start.copy() for _ in range(members)]
        self.found = Simulation(start.copy(), self.w, [start.copy()], steps=self.done)

    def begin(self, rank: int) -> None:
        """Begin a step."""

    def step(self, rank: int) -> None:
        """End a step."""
        w = self.w[rank]
        self.inner(w, self.gradient(w, rank, self.done[rank]), rank)
        self.done[rank] += 1

    def exchange(self, rank: int) -> bool:
        """Exchange; returns whether the member waits for others."""
        return False

    def ready(self, rank: int) -> bool:
        """Whether a member that waits for others has something to do now."""
        return True

    def leave(self, rank: int, died: bool) -> None:
        """A member ends."""
        self.present.discard(rank)

    def finish(self) -> None:
        """All have ended."""

    def run(
        self,
        speeds: Sequence[float],
        steps: list[int],
        cost: float,
        schedule: Sequence[int] | None,
        deaths: dict[int, int],
    ) -> None:
        """Run to the end."""
        if schedule is None:
            self._by_clock(speeds, steps, cost, deaths)
        else:
            self._by_schedule(schedule, steps, deaths)
        self.finish()

    def _by_schedule(
        self, schedule: Sequence[int], steps: list[int], deaths: dict[int, int]
    ) -> None:
        waiting: set[int] = set()
        for rank in sorted(self.present):
            self._over(rank, steps, deaths)
        for rank in schedule:
            if rank not in self.present:
                raise InputError(
                    f"simulate: the schedule names rank {rank}; at this time there are "
                    f"{sorted(self.present)}"
                )
            if rank not in waiting:
                until = min(self.done[rank] + self.period, steps[rank])
                while self.done[rank] < until and self.done[rank] != deaths.get(rank):
                    self.begin(rank)
                    self.step(rank)
            if self.done[rank] != deaths.get(rank) and self.exchange(rank):
                waiting.add(rank)
            else:
                waiting.discard(rank)
                self._over(rank, steps, deaths)

    def _by_clock(
        self, speeds: Sequence[float], steps: list[int], cost: float, deaths: dict[int, int]
    ) -> None:
        heap: list[tuple[float, int]] = []
        held: dict[int, float] = {}  # members that a bound keeps from their next step, since when
        waiting: set[int] = set()
        free = 0.0  # when the turn is free again

        def go_on(rank: int, at: float) -> None:
            if self._over(rank, steps, deaths):
                return
            if self._ahead(rank):
                held[rank] = at
            else:
                self.begin(rank)
                heapq.heappush(heap, (at + 1 / speeds[rank], rank))

        def turn(rank: int, at: float) -> None:
            nonlocal free
            before = len(self.found.log)
            waits = self.exchange(rank)
            at = max(at, free if self.queues else 0.0) + cost * (len(self.found.log) - before)
            free = max(free, at)
            self.found.seconds = max(self.found.seconds, at)
            if waits:
                waiting.add(rank)
            else:
                waiting.discard(rank)
                go_on(rank, at)

        def settle(at: float) -> None:
            """Let processes go on whose wait is over; this may end the wait of others."""
            while True:
                if woken := [r for r in sorted(waiting) if self.ready(r)]:
                    turn(woken[0], at)
                elif loose := [r for r in held if not self._ahead(r)]:
                    go_on(loose[0], max(at, held.pop(loose[0])))
                else:
                    return

        for rank in range(len(speeds)):
            go_on(rank, 0.0)
        while heap:
            at, rank = heapq.heappop(heap)
            self.found.seconds = max(self.found.seconds, at)
            self.step(rank)
            due = self.done[rank] % self.period == 0 or self.done[rank] >= steps[rank]
            if due and self.done[rank] != deaths.get(rank):
                turn(rank, at)
            else:
                go_on(rank, at)
            settle(at)

    def _over(self, rank: int, steps: list[int], deaths: dict[int, int]) -> bool:
        """Whether a member has died or made all its steps, in which case it leaves."""
        died = self.done[rank] == deaths.get(rank)
        over = died or self.done[rank] >= steps[rank]
        if over:
            self.leave(rank, died)
        return over

    def _ahead(self, rank: int) -> bool:
        if self.bound is None:
            return False
        return self.done[rank] > self.bound + min(self.done[r] for r in self.present)


class _Turns(_World):
    """Rules with a centre."""

    queues = True

    def __init__(
        self,
        rule: TurnRule,
        start: Vector,
        gradient: Gradient,
        inner: Inner,
        rows: list[float],
        members: int,
    ) -> None:
        super().__init__(rule, start, gradient, inner, rows, members)
        self.rule, self.rows = rule, rows
        self.period, self.bound = rule.period, rule.bound
        self.centre = [start.copy(), *(np.zeros_like(start) for _ in rule.beside)]
        self.counts = [0.0 for _ in rule.counts]
        self.optimizer, self.scalars = _optimizer(rule, start), np.zeros(0)
        if self.optimizer is not None:
            recipe = self.optimizer.recipe
            self.centre += [v.get_value() for [v] in recipe.states]
            self.scalars = np.array([float(v.get_value()) for v in recipe.scalars])
        self.own = [
            [start.copy() if n in STARTS_AS_CENTRE else np.zeros_like(start) for n in rule.own]
            for _ in range(members)
        ]
        self.version = 0
        self.seen = [0] * members
        self.turns = [Turn(0, 0.0, members, list(self.counts)) for _ in range(members)]
        self.recorded: int | None = None  # members present, in a replay

    def replay(self, log: RunLog) -> None:
        """Repeat the turns of a run, each at the version that it has found."""
        turns = [(rank, *entry[:5]) for rank, entries in log.items() for entry in entries]
        # what changes the centre comes before those who read what it has made
        turns.sort(key=lambda turn: (turn[1], turn[5] in ("read", "wait")))
        for rank, version, steps, _, present, does in turns:
            while self.done[rank] < steps:
                self.step(rank)
            self.recorded = present
            if does == "close":  # maybe by one that has contributed nothing, at the end of the run
                self.turns[rank] = replace(self.turns[rank], waiting=True, read=self.counts[0])
            self.exchange(rank)
            if (self.version, self.found.log[-1].does) != (version, does):
                raise InputError(
                    f"simulate: {self.rule} cannot repeat this log: at version {self.version} rank "
                    f"{rank} does {self.found.log[-1].does!r}, and in the log {does!r} at {version}"
                )
        self.finish()

    def step(self, rank: int) -> None:
        super().step(rank)
        self.turns[rank].rows += self.rows[rank]

    def _turn(self, rank: int) -> Turn:
        last = self.turns[rank]
        return replace(
            last,
            staleness=self.version - self.seen[rank],
            present=len(self.present) if self.recorded is None else self.recorded,
            counts=list(self.counts),
            does="exchange",
            refused=False,
            waits=False,
            closes=0.0,
            optimizer=None,
        )

    def exchange(self, rank: int) -> bool:
        turn = self._turn(rank)
        self.rule.plan(turn)
        if self.optimizer is not None and turn.moves:
            turn.optimizer = self.optimizer.step(self.scalars)
            self.scalars = np.array(self.optimizer.counted(self.scalars), np.float64)
        changes = turn.does not in ("read", "wait")
        if turn.does != "wait":
            new = [np.empty_like(v) for v in self.centre] if changes else self.centre
            self.rule.exchange(turn, self.w[rank], self.own[rank], self.centre, new)
            self.centre, self.counts = new, turn.counts
        if changes:
            self.version += 1
            self.seen[rank] += 1  # staleness counts what others commit
            self.found.versions.append(self.centre[0].copy())
        self.found.log.append(
            Exchange(self.version, rank, self.done[rank], turn.staleness, turn.present, turn.does)
        )
        if not turn.waits:
            self.seen[rank] = self.version
            turn.rows, turn.read = 0.0, (self.counts or [0.0])[0]
        turn.waiting = turn.waits
        self.turns[rank] = turn
        return turn.waits

    def ready(self, rank: int) -> bool:
        return self.rule.ready(self._turn(rank))

    def finish(self) -> None:
        self.found.centre = self.centre[0]


def _optimizer(rule: TurnRule, start: Vector) -> ElementwiseUpdate | None:
    """The optimizer at the centre."""
    if rule.centre is None:
        return None
    what = f"simulate: the optimizer at the centre of {rule}"
    return ElementwiseUpdate.of_vector(rule.centre, start, what)


class _Gossip(_World):
    """`GoSGD`."""

    def __init__(
        self,
        rule: GoSGD,
        start: Vector,
        gradient: Gradient,
        inner: Inner,
        rows: list[float],
        members: int,
    ) -> None:
        super().__init__(rule, start, gradient, inner, rows, members)
        self.rule = rule
        self.choose = [rule.chooser(rank) for rank in range(members)]
        self.found.weights = [1 / members] * members
        self.slots: dict[int, tuple[int, float, Vector]] = {}  # of each sender

    def _merge(self, rank: int) -> None:
        for sender in sorted(self.slots):
            to, weight, sent = self.slots[sender]
            if to == rank:
                self._take(rank, weight, sent)
                del self.slots[sender]

    def _take(self, rank: int, weight: float, sent: Vector) -> None:
        self.rule.merge(self.w[rank], self.found.weights[rank], sent, weight)
        self.found.weights[rank] += weight

    def begin(self, rank: int) -> None:
        self._merge(rank)

    def exchange(self, rank: int) -> bool:
        to = self.choose[rank](sorted(self.present - {rank}))
        if to is not None and rank not in self.slots:
            self.found.weights[rank] /= 2
            self.slots[rank] = to, self.found.weights[rank], self.w[rank].copy()
            self.found.log.append(
                Exchange(
                    len(self.found.log) + 1, rank, self.done[rank], 0, len(self.present), "send", to
                )
            )
        return False

    def leave(self, rank: int, died: bool) -> None:
        super().leave(rank, died)
        if not died:
            self._merge(rank)
            return
        self.found.weights[rank] = 0.0
        for sender in [s for s, slot in self.slots.items() if slot[0] == rank]:
            _, weight, sent = self.slots[sender]
            if sender in self.present:  # it merges its own message before its next step
                self.slots[sender] = sender, weight, sent
            else:
                del self.slots[sender]
                if self.found.weights[sender]:
                    self._take(sender, weight, sent)

    def finish(self) -> None:
        weights = self.found.weights
        if any(weights):
            self.found.centre = _mean(self.w, normalized(weights))


class _Hogwild(_World):
    """`Hogwild`: a gradient is that of the centre at the beginning of the step."""

    def begin(self, rank: int) -> None:
        self.w[rank] = self.found.members[rank] = self.found.centre.copy()

    def step(self, rank: int) -> None:
        gradient = self.gradient(self.w[rank], rank, self.done[rank])
        self.inner(self.found.centre, gradient, rank)
        self.done[rank] += 1
        self.found.versions.append(self.found.centre.copy())
        self.found.log.append(
            Exchange(len(self.found.log) + 1, rank, self.done[rank], 0, len(self.present), "add")
        )


# The simulation of a free rule, by its way.
_WORLDS: dict[str, Callable[..., _World]] = {"turns": _Turns, "gossip": _Gossip, "races": _Hogwild}
