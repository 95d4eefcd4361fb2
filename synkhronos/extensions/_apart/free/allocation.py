"""The arrays of a free rule in one member, and those that the leader of its node lends."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from synkhronos._engine.member import Member
from synkhronos._transport.communicators.communicator import Communicator
from synkhronos.extensions._apart.centre_optimizer import ElementwiseUpdate
from synkhronos.extensions._apart.free.centre import Centre, Version
from synkhronos.extensions._apart.free.free_member import Shared, Slot
from synkhronos.extensions._apart.free.free_state import FREE_MEMBERS, FreeState
from synkhronos.extensions._apart.free.pages import REALS, Page, length
from synkhronos.extensions._apart.meeting import first_vectors
from synkhronos.extensions._apart.member_values import MemberValues
from synkhronos.extensions._apart.recipe import (
    PARAMETER,
    STATE,
    STATISTIC,
    LocalArrays,
    LocalRecipe,
)
from synkhronos.extensions._step.flat import Arrays
from synkhronos.extensions._step.install import scalars
from synkhronos.rules._base import FreeRule


def allocated(rule: FreeRule, recipe: LocalRecipe, member: Member) -> FreeState:
    """Allocate and map what a member keeps of a free rule."""
    return _Allocation(rule, recipe, member).free()


class _Allocation:
    """The arrays of a free rule in one member, and those that the leader of its node lends."""

    def __init__(self, rule: FreeRule, recipe: LocalRecipe, member: Member) -> None:
        self._arrays = LocalArrays(recipe)
        self._rule = rule
        self._recipe = recipe
        self._member = member

    def free(self) -> FreeState:
        member, arrays, recipe = self._member, self._arrays, self._recipe
        comm, kind = member.communicator, FREE_MEMBERS[self._rule.way]
        home = comm.home
        own, gradients = arrays.empty(comm), arrays.gradients(comm)
        for vector in (*own, *gradients):
            vector[...] = 0
        spread = [v for v, k in zip(own, arrays.kinds, strict=True) if k in (PARAMETER, STATISTIC)]
        slots = [like(v, comm) for _ in range(2) for v in spread] if kind.sends else []
        page = new_page(comm)
        lent = self._lent(own, comm) if home.rank == comm.leader else []
        exposed = comm.expose([*page, *own, *slots, *lent])
        n, k = len(page) + len(own), len(page) + len(own) + len(slots)
        versions, first, numbers = self._mapped(exposed[comm.leader][k:])
        if kind.at_centre:
            kinds = zip(own, first, arrays.kinds, strict=True)
            own = [o if kind is STATE else f for o, f, kind in kinds]
        pages = [Page(e[0], e[1], home.size) for e in exposed]
        leaves = scalars(member, Arrays(recipe.flat).leaf_dtypes)
        optimizer, settings = None, list[np.ndarray]()
        if recipe.at_centre is not None:
            dtypes = [np.dtype(v.type.dtype) for v in recipe.at_centre.settings]
            settings = scalars(member, dtypes)
            optimizer = ElementwiseUpdate(recipe.at_centre, settings)
        vectors = first_vectors(arrays.kinds, first)
        local = MemberValues(recipe, arrays, gradients, own, vectors, leaves, member.size)
        shared = Shared(
            pages,
            Centre(versions, pages, home.rank),
            of_kind(PARAMETER, own, arrays),
            of_kind(STATISTIC, own, arrays),
            memoryview(numbers),
            [_slot(e[len(page) : n], e[n:k], arrays) for e in exposed] if kind.sends else [],
            optimizer,
        )
        return FreeState(self._rule, local, shared, versions, arrays, first, settings)

    def _beside(self) -> int:
        """How many vectors the centre has beside its parameters."""
        at_centre = self._recipe.at_centre
        states = 0 if at_centre is None else len(at_centre.states)
        return states + len(self._rule.beside)

    def _scalars(self) -> int:
        return 0 if self._recipe.at_centre is None else len(self._recipe.at_centre.scalars)

    def _lent(self, own: list[np.ndarray], comm: Communicator) -> list[np.ndarray]:
        """The leader's memory: first values, then the rest of the centre's versions."""
        arrays = self._arrays
        parameters, statistics = (
            [v for v, kind in zip(own, arrays.kinds, strict=True) if kind is wanted]
            for wanted in (PARAMETER, STATISTIC)
        )
        beside = [like(v, comm) for _ in range(2 * self._beside()) for v in parameters]
        second = [like(v, comm) for v in (*parameters, *statistics)]
        lengths = [len(self._rule.counts), self._scalars()]
        counts = [comm.empty((n,), np.dtype(np.float64)) for n in lengths for _ in range(2)]
        numbers = comm.empty((1 + len(self._rule.numbers),), np.dtype(np.float64))
        first = arrays.empty(comm)
        for vector in (*first, numbers):  # between two parameters, too: they are exchanged together
            vector[...] = 0
        return [*first, *beside, *second, *counts, numbers]

    def _mapped(
        self, lent: Sequence[np.ndarray]
    ) -> tuple[tuple[Version, Version], list[np.ndarray], np.ndarray]:
        """The two versions, the first values, and the rule's numbers."""
        arrays, rest = self._arrays, iter(lent)
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


def new_page(comm: Communicator) -> list[np.ndarray]:
    """The words and the real numbers of a member's page."""
    return [
        comm.empty((length(comm.home.size),), np.dtype(np.int64)),
        comm.empty((REALS,), np.dtype(np.float64)),
    ]


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
