"""How the members of a node train between two meetings of the nodes."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

from synkhronos._engine.member import Member
from synkhronos._plan.rows import edges
from synkhronos._transport.communicators.communicator import Communicator
from synkhronos.extensions._apart.free.free_member import Assignment
from synkhronos.extensions._apart.free.free_state import FreeState
from synkhronos.extensions._apart.free.pages import Page, clear_pages
from synkhronos.extensions._apart.member_values import MemberValues
from synkhronos.extensions._apart.nodes.team import Team
from synkhronos.extensions._apart.recipe import PARAMETER, STATISTIC, LocalArrays


class NodeTraining(ABC):
    """The base."""

    local: MemberValues
    arrays: LocalArrays
    pages: list[Page]
    # of the leader: the values from which a round begins, and the first states
    first: list[np.ndarray]
    # of each vector of parameters, then of statistics: where the node's value may be. A round
    # begins with the first place
    places: list[list[np.ndarray]]

    @property
    @abstractmethod
    def now(self) -> int:
        """The number of the places in which the node's values are."""

    @abstractmethod
    def compile(self) -> None:
        """Compile what a round calls."""

    @abstractmethod
    def clear(self) -> None:
        """In the leader: set to zero what is counted in a round."""

    @abstractmethod
    def share(self, comm: Communicator, batches: int) -> tuple[int, int]:
        """The share of this node in the batches of all: the first one, and the end."""

    @abstractmethod
    def train(self, member: Member, work: Assignment) -> None:
        """Train without the other nodes."""


class FreeTraining(NodeTraining):
    """Members train apart, by a free rule; the node's values are the centre."""

    def __init__(self, free: FreeState) -> None:
        self._free = free
        self.local = free.local
        self.arrays = free.arrays
        self.pages = free.shared.pages
        self.first = free.lent
        a, b = free.versions
        vectors = zip(a.vectors, b.vectors, strict=True)
        self.places = [[x[0], y[0]] for x, y in vectors]
        self.places += [list(both) for both in zip(a.statistics, b.statistics, strict=True)]

    @property
    def now(self) -> int:
        return self._free.shared.centre.number % 2

    def compile(self) -> None:
        self._free.compile()

    def clear(self) -> None:
        self._free.clear()

    def share(self, comm: Communicator, batches: int) -> tuple[int, int]:
        borders, first = edges(batches, comm.size), comm.rank - comm.home.rank
        return borders[first], borders[first + comm.home.size]

    def train(self, member: Member, work: Assignment) -> None:
        participant = self._free.participant(member, work)
        participant.arrive()
        try:
            while participant.step(lambda: _stopped(member)):
                pass
            participant.rest()
        except BaseException:
            participant.withdraw()
            raise
        finally:
            self.local.hide()
        home = member.communicator.home
        home.barrier()
        if home.rank == member.communicator.leader:
            participant.conclude()


class SynchronousTraining(NodeTraining):
    """Members make synchronous steps, on values of the node."""

    now = 0

    def __init__(self, team: Team, arrays: LocalArrays, pages: list[Page]) -> None:
        self.local = self._team = team
        self.arrays = arrays
        self.pages = pages
        self.first = team.first
        kinds = list(zip(arrays.kinds, team.first, strict=True))
        self.places = [
            [v.reshape(-1)] for wanted in (PARAMETER, STATISTIC) for k, v in kinds if k is wanted
        ]

    def compile(self) -> None:
        self._team.compile()

    def clear(self) -> None:
        clear_pages(self.pages)

    def share(self, comm: Communicator, batches: int) -> tuple[int, int]:
        borders = edges(batches, comm.nodes)
        return borders[comm.node], borders[comm.node + 1]

    def train(self, member: Member, work: Assignment) -> None:
        page = self.pages[member.communicator.home.rank]
        self._team.train(member, work, page, lambda: _stopped(member))


def _stopped(member: Member) -> bool:
    return member.size > 1 and member.stopping
