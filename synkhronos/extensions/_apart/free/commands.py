"""The commands of free rules: install, begin a run, take part in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from synkhronos._engine.commands.base import Command
from synkhronos._engine.commands.call import ExtendedCall, compute_call
from synkhronos._engine.commands.clocks import Clocks
from synkhronos._engine.member import Member
from synkhronos._transport.communicators.communicator import Communicator
from synkhronos.extensions._apart.centre_optimizer import ElementwiseUpdate
from synkhronos.extensions._apart.free.centre import Centre, Version
from synkhronos.extensions._apart.free.gossiper import Gossiper
from synkhronos.extensions._apart.free.pages import REALS, WEIGHT, Page, length
from synkhronos.extensions._apart.free.participant import Assignment, Participant, Shared, Slot
from synkhronos.extensions._apart.free.racer import Racer
from synkhronos.extensions._apart.free.turn_taker import TurnTaker
from synkhronos.extensions._apart.nodes.team import Team
from synkhronos.extensions._apart.own_values import Local, Vectors
from synkhronos.extensions._apart.recipe import (
    PARAMETER,
    STATE,
    STATISTIC,
    LocalArrays,
    LocalRecipe,
)
from synkhronos.extensions._step.commands import scalars, unpacked
from synkhronos.extensions._step.flat import Arrays
from synkhronos.rules import GoSGD, Hogwild
from synkhronos.rules._base import FreeRule, Turn, TurnRule


class Free:
    """What a member keeps of a training function with a free rule.

    Attributes
    ----------
    local : Local
    leaves : list of array
        The scalars of the optimizer's rule, which the master sets.
    settings : list of array
        As `leaves`, for the optimizer at the centre.
    views : dict of array
        Where the master puts the first values of the variables that members have, too.
    first : dict of array
        The same, and those of the states of the optimizer at the centre.
    lent : list of array
        The leader's arrays of these, and of the optimizer's states.
    versions : tuple of Version
    torn : bool
        A copy of the centre need not be of one version.
    """

    def __init__(
        self,
        local: Local,
        shared: Shared,
        versions: tuple[Version, Version],
        arrays: LocalArrays,
        values: list[np.ndarray],
        torn: bool,
        settings: list[np.ndarray],
    ) -> None:
        self.torn = torn
        self.settings = settings
        self._arrays = arrays
        self._at_centre = None if shared.optimizer is None else shared.optimizer.recipe
        self.lent = values
        self.local = local
        self.leaves = local.leaves
        self.shared = shared
        self.versions = versions
        self.views = arrays.views(values)
        self.first = self.views | self._states(versions[0])

    def clear(self) -> None:
        """In the leader: set all words and the rule's vectors to zero, and states as at first."""
        for page in self.shared.pages:
            for words in (page.words, page.reals):
                np.asarray(words)[...] = 0
            page.reals[WEIGHT] = 1 / len(self.shared.pages)
        self.shared.numbers[0] = 0
        for version in self.versions:
            version.counts[...] = 0
            for _, *beside in version.vectors:
                for vector in beside:
                    vector[...] = 0
        self._fill()

    def _fill(self) -> None:
        """Give the optimizer at the centre states that are possible between two parameters, too."""
        if self._at_centre is None:
            return
        for k, variables in enumerate(reversed(self._at_centre.states), 1):
            some = variables[0].get_value(borrow=True).ravel()[:1]
            for vectors in self.versions[0].vectors:
                vectors[-k][...] = some if some.size else 0

    def _states(self, version: Version) -> dict[Any, np.ndarray]:
        """The states of the optimizer at the centre: views of a version, 0-d ones as float64."""
        recipe = self._at_centre
        if recipe is None:
            return {}
        kinds = zip(self.lent, self._arrays.kinds, strict=True)
        shapes = [v.shape for v, kind in kinds if kind is PARAMETER]
        columns = list(zip(*version.vectors, strict=True))
        states = [
            vector.reshape(shape)
            for column in columns[len(columns) - len(recipe.states) :]
            for vector, shape in zip(column, shapes, strict=True)
        ]
        found: dict[Any, np.ndarray] = dict(self._arrays.outer_views(self.lent, states))
        return found | {v: version.scalars[k : k + 1] for k, v in enumerate(recipe.scalars)}

    def values(self, version: Version) -> dict[Any, np.ndarray]:
        """The values of parameters and statistics in a copy of the centre."""
        parameters, statistics = iter(version.vectors), iter(version.statistics)
        vectors = []
        for kind, like in zip(self._arrays.kinds, self.lent, strict=True):
            if kind is PARAMETER:
                vectors.append(next(parameters)[0].reshape(like.shape))
            else:
                vectors.append(next(statistics).reshape(like.shape) if kind is STATISTIC else like)
        views = self._arrays.views(vectors)
        states = self._states(version)
        if self._at_centre is not None:
            for v in self._at_centre.scalars:
                states[v] = states[v].astype(v.type.dtype).reshape(())
        return {v: views[v] for v in self._arrays.trained()} | states

    def participant(self, member: Member, rule: FreeRule, assignment: Assignment) -> Participant:
        """This member in a run."""
        if isinstance(rule, TurnRule):
            return TurnTaker(member, self.local, rule, self.shared, assignment)
        if isinstance(rule, GoSGD):
            return Gossiper(member, self.local, rule, self.shared, assignment)
        assert isinstance(rule, Hogwild)
        return Racer(member, self.local, rule, self.shared, assignment)


@dataclass(frozen=True)
class InstallFree(Command):
    """Give each member values of its own, and the group a centre; compile the update."""

    recipe: bytes
    rule: FreeRule
    number: int

    def run(self, member: Member) -> None:
        """Allocate and map the arrays; the master compiles first."""
        free = Installation(self.rule, unpacked(self.recipe, member), member).free()
        local = free.local
        local.bind([(member.variables.of(v), view) for v, view in free.views.items()])
        member.clocks[self.number] = Clocks(member)
        member.updates[self.number] = free


class Installation:
    """The arrays of a free rule in one member, and those that the leader of its node lends.

    Without a rule the members of the node step together, on values of the node.

    Attributes
    ----------
    arrays : LocalArrays
    """

    def __init__(self, rule: FreeRule | None, recipe: LocalRecipe, member: Member) -> None:
        self.arrays = LocalArrays(recipe)
        self._rule = rule
        self._recipe = recipe
        self._member = member

    def free(self) -> Free:
        """Allocate and map; the master compiles first."""
        member, arrays, recipe = self._member, self.arrays, self._recipe
        comm, mine = member.communicator, member.rank == member.master
        home = comm.home
        own, gradients = arrays.empty(comm), arrays.gradients(comm)
        for vector in (*own, *gradients):
            vector[...] = 0
        gossips = isinstance(self._rule, GoSGD)
        spread = [v for v, k in zip(own, arrays.kinds, strict=True) if k in (PARAMETER, STATISTIC)]
        slots = [like(v, comm) for _ in range(2) for v in spread] if gossips else []
        page = [
            comm.empty((length(home.size),), np.dtype(np.int64)),
            comm.empty((REALS,), np.dtype(np.float64)),
        ]
        lent = self._lent(own, comm) if home.rank == comm.leader else []
        read = gradients if self._rule is None else []  # by the other members of the node
        exposed = comm.expose([*page, *own, *slots, *read, *lent])
        n, k = 2 + len(own), 2 + len(own) + len(slots) + len(read)
        versions, first, numbers = self._mapped(exposed[comm.leader][k:])
        if self._rule is None:
            own = exposed[comm.leader][2:n]
        if self._rule is None or isinstance(self._rule, Hogwild):
            kinds = zip(own, first, arrays.kinds, strict=True)
            own = [o if kind is STATE else f for o, f, kind in kinds]
        pages = [Page(e[0], e[1], home.size) for e in exposed]
        vectors = [
            Vectors(kind, [], f.reshape(-1), 0, 0)
            for kind, f in zip(arrays.kinds, first, strict=True)
        ]
        leaves = scalars(member, Arrays(recipe.flat).leaf_dtypes)
        optimizer, settings = None, list[np.ndarray]()
        if recipe.at_centre is not None:
            dtypes = [np.dtype(v.type.dtype) for v in recipe.at_centre.settings]
            settings = scalars(member, dtypes)
            optimizer = ElementwiseUpdate(recipe.at_centre, settings)
        local: Local
        if self._rule is None:
            every = [e[k - len(read) : k] for e in exposed]
            local = Team(recipe, arrays, every, own, vectors, leaves, comm)
        else:
            local = Local(recipe, arrays, gradients, own, vectors, leaves, member.size)
        if not mine:
            comm.barrier()
        with member.compiling():
            local.compile()
            if optimizer is not None:
                optimizer.compile()
            _compile_exchange(self._rule, {v.dtype for v in spread})
        if mine:
            comm.barrier()
        shared = Shared(
            pages,
            Centre(versions, pages, home.rank),
            of_kind(PARAMETER, own, arrays),
            of_kind(STATISTIC, own, arrays),
            memoryview(numbers),
            [_slot(e[2:n], e[n:k], arrays) for e in exposed] if gossips else [],
            optimizer,
        )
        torn = isinstance(self._rule, Hogwild)
        return Free(local, shared, versions, arrays, first, torn, settings)

    def _beside(self) -> int:
        """How many vectors the centre has beside its parameters."""
        at_centre = self._recipe.at_centre
        states = 0 if at_centre is None else len(at_centre.states)
        return states + (len(self._rule.beside) if isinstance(self._rule, TurnRule) else 0)

    def _scalars(self) -> int:
        return 0 if self._recipe.at_centre is None else len(self._recipe.at_centre.scalars)

    def _counts(self) -> int:
        return len(self._rule.counts) if isinstance(self._rule, TurnRule) else 0

    def _lent(self, own: list[np.ndarray], comm: Communicator) -> list[np.ndarray]:
        """What the leader allocates: first values, then the rest of the centre's versions."""
        arrays = self.arrays
        parameters, statistics = (
            [v for v, kind in zip(own, arrays.kinds, strict=True) if kind is wanted]
            for wanted in (PARAMETER, STATISTIC)
        )
        beside = [like(v, comm) for _ in range(2 * self._beside()) for v in parameters]
        second = [like(v, comm) for v in (*parameters, *statistics)]
        lengths = [self._counts(), self._scalars()]
        counts = [comm.empty((n,), np.dtype(np.float64)) for n in lengths for _ in range(2)]
        count = 0 if self._rule is None else len(self._rule.numbers)
        numbers = comm.empty((1 + count,), np.dtype(np.float64))
        first = arrays.empty(comm)
        for vector in (*first, numbers):  # between two parameters, too: they are exchanged together
            vector[...] = 0
        return [*first, *beside, *second, *counts, numbers]

    def _mapped(
        self, lent: Sequence[np.ndarray]
    ) -> tuple[tuple[Version, Version], list[np.ndarray], np.ndarray]:
        """The two versions, the first values, and the rule's numbers."""
        arrays, rest = self.arrays, iter(lent)
        first = [next(rest) for _ in arrays.kinds]
        parameters = of_kind(PARAMETER, first, arrays)
        statistics = of_kind(STATISTIC, first, arrays)
        beside = [
            [[next(rest) for _ in parameters] for _ in range(self._beside())] for _ in range(2)
        ]
        second = [next(rest).reshape(-1) for _ in parameters]
        others = [next(rest).reshape(-1) for _ in statistics]
        counts, states = ([next(rest) for _ in range(2)] for _ in range(2))
        made = []
        for k, (own, held) in enumerate(((parameters, statistics), (second, others))):
            vectors = [
                [v, *(column[i].reshape(-1) for column in beside[k])] for i, v in enumerate(own)
            ]
            made.append(Version(vectors, held, counts[k], states[k]))
        return (made[0], made[1]), first, next(rest)


def _compile_exchange(rule: FreeRule | None, dtypes: set[np.dtype]) -> None:
    """Compile the rule's loops, which would take time in a turn."""
    for dtype in dtypes:
        one = np.ones(1, dtype)
        if isinstance(rule, TurnRule):
            turn = Turn(0, 1.0, 1, [0.0 for _ in rule.counts])
            rule.plan(turn)
            centre = [np.ones(1, dtype) for _ in ("", *rule.beside)]
            new = [np.ones(1, dtype) for _ in centre]
            rule.exchange(turn, one, [np.ones(1, dtype) for _ in rule.own], centre, new)
        elif isinstance(rule, GoSGD):
            rule.merge(one, 0.5, np.ones(1, dtype), 0.5)


def like(v: np.ndarray, comm: Communicator) -> np.ndarray:
    """A new array of zeros of the same shape and dtype."""
    found = comm.empty(v.shape, v.dtype)
    found[...] = 0
    return found


def of_kind(kind: str, values: Sequence[np.ndarray], arrays: LocalArrays) -> list[np.ndarray]:
    """Those of the values that are of a kind, flat."""
    return [v.reshape(-1) for v, k in zip(values, arrays.kinds, strict=True) if k is kind]


def _slot(own: Sequence[np.ndarray], slots: Sequence[np.ndarray], arrays: LocalArrays) -> Slot:
    now = of_kind(PARAMETER, own, arrays) + of_kind(STATISTIC, own, arrays)
    flat = [v.reshape(-1) for v in slots]
    return Slot(now, flat[: len(now)], flat[len(now) :])


@dataclass(frozen=True)
class Rehearse(ExtendedCall):
    """Compute a call in all members, so that it is compiled, and drop the results."""

    def run(self, member: Member) -> None:
        """Compute."""
        compute_call(self.call, member)


@dataclass(frozen=True)
class BeginRun(Command):
    """Give each member the first values, which the master has written."""

    number: int

    def run(self, member: Member) -> None:
        """Copy them; remember the variables' own values, which they have again at the end."""
        local: Local = member.updates[self.number].local
        local.begin(states=True)
        local.bind([(entry, entry.storage[0]) for entry, _ in local.entries])


@dataclass(frozen=True)
class TakePart(Command):
    """Step and exchange until there are no more rows, or the master asks to stop."""

    number: int
    rule: FreeRule
    assignment: Assignment

    def run(self, member: Member) -> list[Any]:
        """Returns the log of this member's exchanges."""
        free: Free = member.updates[self.number]
        participant = free.participant(member, self.rule, self.assignment)

        def stopped() -> bool:
            return member.stopping

        with participant.peers.engaged():
            participant.arrive()
            try:
                while participant.step(stopped):
                    pass
                participant.finish()
            except BaseException:
                participant.leave()
                raise
            finally:
                free.local.hide()
        return participant.log
