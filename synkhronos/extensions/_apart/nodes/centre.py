"""The state of a training function whose nodes meet, in a member."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from synkhronos._engine.member import Member
from synkhronos._engine.variables import Entry
from synkhronos._proofs.reductions import Reduction
from synkhronos.extensions._apart.free.free_member import Assignment
from synkhronos.extensions._apart.free.pages import LOSS, LOSS_ROWS, ROWS
from synkhronos.extensions._apart.meeting import Meeting, Vectors
from synkhronos.extensions._apart.nodes.node_training import NodeTraining
from synkhronos.extensions._step.install import MemberState
from synkhronos.rules._base import RoundRule


class NodeCentre(MemberState):
    """The centre between the nodes, and how the members of this one train."""

    def __init__(
        self, inside: NodeTraining, vectors: list[Vectors], entries: list[tuple[Entry, np.ndarray]]
    ) -> None:
        self.leaves = inside.local.leaves
        self._inside = inside
        self._vectors = vectors  # of the node, as `inside` has their places
        self._entries = entries  # the variables and their views of the centre
        inside.local.bind(entries)

    @property
    def joined(self) -> Sequence[tuple[Entry, np.ndarray]]:
        """Parameters, statistics and the rule's vectors; and the first states."""
        return self._entries

    def compile(self) -> None:
        """Compile what a round calls."""
        self._inside.compile()

    def round(
        self, member: Member, between: RoundRule, work: Assignment, begin: bool
    ) -> list[float]:
        """Train, then meet the other nodes; returns this member's rows, and its loss over them.

        `work` has the batches of all nodes. With `begin`, the node goes on from the centre.
        """
        inside, comm = self._inside, member.communicator
        home = comm.home
        if home.rank == comm.leader:
            inside.clear()
            if begin:
                for v, places in zip(self._vectors, inside.places, strict=True):
                    places[0][...] = v.centre
        home.barrier()
        inside.local.begin(states=begin)
        home.barrier()  # a step may change what another member begins with
        start, stop = inside.share(comm, work.batches)
        inside.train(member, replace(work, begin=work.begin + start, count=stop - start))
        home.barrier()
        self._meet(member, between)
        mine = inside.pages[home.rank]
        rows, finite = float(mine.words[ROWS]), mine.reals[LOSS_ROWS]
        return [rows, mine.reals[LOSS] * (rows / finite) if finite else rows and math.nan]

    def _meet(self, member: Member, rule: RoundRule) -> None:
        inside, comm = self._inside, member.communicator
        now = inside.now
        rows = np.zeros(comm.nodes)
        here = float(sum(page.words[ROWS] for page in inside.pages))
        rows[comm.node] = here / comm.home.size  # each member of the node brings its share
        comm.all_reduce([rows], Reduction.SUM)
        for v, places in zip(self._vectors, inside.places, strict=True):
            v.own = [places[now]]
        me = slice(comm.node, comm.node + 1)
        meeting = Meeting(rule, rows.tolist(), me, False, comm)
        meeting.add_up(self._vectors)
        with member.uninterrupted():
            comm.enter()
            member.changes.in_place = [entry for entry, _ in self._entries]
            meeting.change(self._vectors)
            for v, places in zip(self._vectors, inside.places, strict=True):
                if now:
                    places[0][v.lo : v.hi] = places[now][v.lo : v.hi]
            comm.home.barrier()
            member.changes.in_place = ()
