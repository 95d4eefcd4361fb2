"""Members of a node that make synchronous steps: the node trains as one member."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from synkhronos._engine.commands.call import Argument, Call, as_float
from synkhronos._engine.member import Member
from synkhronos._plan.rows import Picks, edges
from synkhronos._proofs.reductions import Reduction, rounded
from synkhronos._transport.communicators.communicator import Communicator
from synkhronos.extensions._apart.free.claims import RowsOfBatches
from synkhronos.extensions._apart.free.free_member import Assignment
from synkhronos.extensions._apart.free.pages import LOSS, LOSS_ROWS, ROWS, STEPS, Page
from synkhronos.extensions._apart.meeting import first_vectors
from synkhronos.extensions._apart.member_values import MemberValues
from synkhronos.extensions._apart.recipe import LocalArrays, LocalRecipe
from synkhronos.extensions._step.update import FlatUpdate, Inputs, weights_of


class Team(MemberValues):
    """The state of a member whose node trains as one: parameters and states are the node's."""

    def __init__(
        self,
        recipe: LocalRecipe,
        arrays: LocalArrays,
        gradients: list[list[np.ndarray]],  # of each member of the node
        values: list[np.ndarray],  # of the node
        first: list[np.ndarray],
        leaves: list[np.ndarray],
        comm: Communicator,
    ) -> None:
        home = comm.home
        vectors = first_vectors(arrays.kinds, first)
        super().__init__(recipe, arrays, gradients[home.rank], values, vectors, leaves, comm.size)
        flat = recipe.flat.for_node(home.size)
        held = arrays.of_update(values)
        self._update = FlatUpdate(flat, home.rank, gradients, held, [])
        self._comm = comm
        # the same for parameters and statistics, and the states that a round may begin with
        self.first = first

    def train(
        self, member: Member, work: Assignment, page: Page, stopped: Callable[[], bool]
    ) -> None:
        """Make the steps of a round."""
        rows = RowsOfBatches(work.order)
        for number in range(work.begin, work.begin + work.batches):
            if stopped():
                return
            loss, mine = self._together(member, work, self._call(work.call, rows[number]))
            page.words[STEPS] += 1
            page.words[ROWS] += mine
            if mine and np.isfinite(loss):
                page.reals[LOSS] += loss * mine
                page.reals[LOSS_ROWS] += mine

    def _call(self, call: Call, rows: np.ndarray) -> Call:
        """The call in which the members of this node divide these rows."""
        first, n, home = self._comm.rank - self._comm.home.rank, len(rows), self._comm.home
        after = self._comm.size - first - home.size
        borders = (*[0] * first, *edges(n, home.size), *[n] * after)
        arguments = tuple(
            a if a.rows is None else Argument(a.source, Picks(rows)) for a in call.arguments
        )
        return replace(call, arguments=arguments, edges=borders, first=False, new=None)

    def _together(self, member: Member, work: Assignment, call: Call) -> tuple[float, int]:
        """One step; returns this member's loss and its rows."""
        home, update = self._comm.home, self._update
        part, outputs = self.computed(call, member)
        n, m = 1 + len(work.partials), len(self._recipe.statistics)
        mine = part.rows if part.variant.rows else 0
        flat = update.publish(outputs[n : len(outputs) - m] if mine else None)
        first = self._comm.rank - home.rank
        averaging = weights_of(part, member.size, True)[first : first + home.size]
        weights = averaging if work.average else [1.0] * home.size
        leaves = self._leaves_of_step()
        self._add_partials(work.partials, outputs[1:n] if mine else [], averaging, leaves)
        if update.recipe.partition.levels:
            home.barrier()  # all have published
        given = Inputs(flat, weights, leaves)
        scalars, states = update.scalars(home, given)
        statistics = self._averaged(outputs[len(outputs) - m :] if mine else [], averaging)
        home.enter()
        update.apply(given, scalars)
        if home.rank == self._comm.leader:
            for variable, value in zip(self._recipe.statistics, statistics, strict=True):
                held = self._views[variable]
                held[...] = rounded(value, held.dtype)
        home.barrier()
        self._states = [np.asarray(state) for state in states]
        return as_float(outputs[0]) if mine else 0.0, mine

    def _add_partials(
        self,
        partials: Sequence[tuple[int, bool]],
        values: Sequence[np.ndarray],
        averaging: list[float],
        leaves: list[np.ndarray],
    ) -> None:
        """Put the node's partial values of the loss where the update reads them."""
        if not partials:
            return
        sums = np.zeros(len(partials))
        own = averaging[self._comm.home.rank]
        for i, value in enumerate(values):
            sums[i] = as_float(value) * (own if partials[i][1] else 1.0)
        self._comm.home.all_reduce([sums], Reduction.SUM)
        for (leaf, _), total in zip(partials, sums, strict=True):
            leaves[leaf] = np.array(total, leaves[leaf].dtype)

    def _averaged(self, values: Sequence[np.ndarray], averaging: list[float]) -> list[np.ndarray]:
        """The statistics' new values, averaged over the rows of the node."""
        own = averaging[self._comm.home.rank]
        shapes = [np.shape(self._views[v]) for v in self._recipe.statistics]
        found = [np.zeros(shape) for shape in shapes]
        for total, value in zip(found, values, strict=False):
            total[...] = np.asarray(value) * own
        if found:
            self._comm.home.all_reduce(found, Reduction.SUM)
        return found
