"""Gradients on their way to other nodes while a member computes the rest of them.

Behind each gradient stands an operation that tells of it (`ops._ready`). The listener here copies
the gradient to the member's flat vector, counts it in a word that the node's summing process reads,
and wakes that process when a chunk is whole. Gradients without such a word are published at the
end.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from pytensor.compile.mode import get_mode
from pytensor.link.basic import JITLinker, PerformLinker
from pytensor.link.numba.linker import NumbaLinker
from pytensor.link.vm import VMLinker

from synkhronos._compiling.graph_types import ModeLike
from synkhronos._engine.function_plan import Plan
from synkhronos._engine.member import Member
from synkhronos._engine.replicas import Recipe
from synkhronos._errors import InputError
from synkhronos._host.arena import Arena
from synkhronos._host.descriptors import Descriptor
from synkhronos._plan.chunks import Range, chunks
from synkhronos._transport.communicators.board import Board, progress
from synkhronos._transport.communicators.communicator import Communicator
from synkhronos._transport.communicators.sums import BackgroundSums, Sums
from synkhronos._transport.shared_state.ordered_words import ordered
from synkhronos.extensions._step.exchanges import Exchange, HalfPrecision, TopK
from synkhronos.extensions._step.flat import FlatRecipe
from synkhronos.extensions._step.layout import ALIGN
from synkhronos.ops._ready import in_order

Order = tuple[tuple[int, ...], ...]
"""Which parameters' gradients are told of together, in the order of telling."""


def check_overlap(exchange: Exchange | None, rule: object, mode: ModeLike) -> None:
    """Refuse what sums that are made while members compute do not go with."""
    if isinstance(exchange, TopK):
        raise InputError(
            f"make_train_function: overlap=True and exchange={exchange}: the largest elements are "
            "known when all are computed: leave one of them out, or use HalfPrecision"
        )
    if rule is not None:
        raise InputError(
            f"make_train_function: overlap=True is for gradients, and with {rule} members exchange "
            "none: leave it out"
        )
    linker = get_mode(mode).linker
    python = isinstance(linker, VMLinker | PerformLinker) and not isinstance(linker, JITLinker)
    if not (python or isinstance(linker, NumbaLinker)):
        raise InputError(
            f"make_train_function: overlap=True: the {type(linker).__name__} of this mode does not "
            'tell of a gradient before all are computed: use mode="NUMBA", "CVM" or '
            '"FAST_COMPILE", or leave overlap= out'
        )


def telling_plan(function: Plan, first: int, count: int) -> tuple[Plan, Order]:
    """The plan of a function that tells of `count` outputs, the gradients, from `first` on."""
    recipe: Recipe = function.recipe
    places = [output.partials[0] for output in function.outputs[first : first + count]]
    distinct = list(dict.fromkeys(places))
    found, order = in_order([recipe.outputs[i] for i in distinct])
    told = dict(zip(distinct, found, strict=True))
    outputs = tuple(told.get(i, v) for i, v in enumerate(recipe.outputs))
    slicing = tuple(
        replace(s, variables=(told[i],)) if i in told else s for i, s in enumerate(recipe.slicing)
    )
    made = replace(function, recipe=replace(recipe, outputs=outputs, slicing=slicing))
    by_number = [tuple(p for p, i in enumerate(places) if i == distinct[k]) for k in order]
    return made, tuple(by_number)


class Overlap:
    """One member's part in sums that are made while it computes."""

    def __init__(
        self,
        recipe: FlatRecipe,
        member: Member,
        arena: Arena,  # where the vectors are: that of `Communicator.mappable`
        published: list[list[np.ndarray]],  # of each member of the node, its flat vectors
        totals: list[np.ndarray],  # those of the node's leader
    ) -> None:
        comm = member.communicator
        node, members = member.on_node.node, comm.home.size
        assert node is not None
        leads = comm.home.rank == comm.leader
        words = [arena.empty((8,), np.int64)]
        if leads:
            words.append(arena.empty((Board.words(members),), np.int64))
        for word in words:
            word[:] = 0
        exposed = comm.expose(words)
        self._node = node
        self._process: BackgroundSums | None = None
        self._pipe: Descriptor | None = None
        self._held = exposed  # keeps the memory
        self._progress = ordered(memoryview(words[0]))
        at = arena.offset(exposed[comm.leader][1])
        self._board = Board(arena.buffer, at, members)
        self._order = recipe.order
        places = {t.param: (i, t) for i, b in enumerate(recipe.buckets) for t in b.placements}
        self._targets = [
            published[comm.home.rank][i][t.start : t.start + t.size]
            for i, t in (places[p] for p in range(len(places)))
        ]
        ranges = [
            [Range(i, t.start, t.start + -(-t.size // ALIGN) * ALIGN) for i, t in group]
            for group in ([places[p] for p in params] for params in self._order)
        ]
        found = chunks(ranges, [v.itemsize for v in totals])
        self._wakes = {c.after for c in found}
        self._told = len(self._order)
        self._listens = False
        half = recipe.exchange if isinstance(recipe.exchange, HalfPrecision) else None
        self._sums = Sums(
            chunks=found,
            dtypes=[v.dtype.str for v in totals],
            lengths=[v.size for v in totals],
            published=[[*map(arena.offset, vectors)] for vectors in published],
            totals=[*map(arena.offset, totals)],
            progress=[arena.offset(e[0]) for e in exposed],
            board=at,
            members=members,
            format=None if half is None else half.format,
            seed=half.seed if half is not None and half.stochastic else None,
        )

    def link(self, member: Member) -> None:
        """Start the node's summing process, and learn how to wake it; all members call this."""
        self.close()
        comm = member.communicator
        self._process = comm.start_sums(self._sums, member.on_node.cores)
        comm.barrier()
        self._pipe = self._board.open_pipe()

    def close(self) -> None:
        """End the process, if this member leads."""
        process, self._process = self._process, None
        if process is not None:
            process.close()
        pipe, self._pipe = self._pipe, None
        if pipe is not None:
            pipe.close()

    def begin(self, weights: Sequence[float], count: int, has_rows: bool) -> None:
        """Begin a step, before any gradient is computed; `weights`: of the members of the node."""
        self._told = 0
        self._listens = has_rows  # else what is computed stands for rows of another member
        if self._process is not None:
            self._process.begin(self._node.number, weights, count)

    def publish(self, number: int, gradient: np.ndarray) -> None:
        """Publish a gradient that has just been computed."""
        if not self._listens:
            return
        for param in self._order[number]:
            # a copy, which the summing process reads while the function may use its memory again
            target = self._targets[param]
            np.copyto(target.reshape(gradient.shape), gradient)
        self._tell(number + 1)

    def publish_rest(self, gradients: Sequence[object] | None) -> None:
        """Publish what has not been told of; without rows, zeros."""
        while self._told < len(self._order):
            for param in self._order[self._told]:
                self._targets[param][...] = (
                    0 if gradients is None else np.asarray(gradients[param]).reshape(-1)
                )
            self._tell(self._told + 1)

    def _tell(self, values: int) -> None:
        self._told = values
        self._progress[0] = progress(self._node.number, values)
        if values in self._wakes and self._pipe is not None:
            try:
                os.write(self._pipe, b"\0")
            except BlockingIOError:  # it has not read the earlier ones, so it will wake
                return

    def finish(self, comm: Communicator) -> None:
        """Wait for the sums, once all members of all nodes have computed."""
        comm.enter()
        if self._process is not None:
            self._process.finish(self._node.number)
        comm.home.barrier()
