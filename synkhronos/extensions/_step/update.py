"""A node-shared update in one member: totals, derived scalars, chunks, whole units; and a step."""

# These rules hold here:
#
# * All members call the same methods in the same order: `begin`, `publish`, `add_up`, `scalars`,
#   `apply`, with the barriers of `Step` between. A member without rows publishes zeros.
# * Before `enter` a member writes only its own gradients and the node's sums of them. What fails
#   until then changes no value. After `enter` all write in place: no code of the user runs, nothing
#   is compiled, and Ctrl-C waits.
# * Each element of the node's vectors has one writer: the member whose chunk it is in, or the owner
#   of a whole unit. A count that the node has in common is written by its first member.
# * Gradients are added up in the order of ranks, between nodes by the communicator. Totals are
#   broadcast from one node, so that all nodes update by the same bits.
# * All that does not change from step to step is made once: views, calls, compiled functions. Loops
#   are called once on dummy values when they are installed, since numba compiles at the first call.

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.compile.io import In
from pytensor.compile.mode import get_mode
from pytensor.graph.basic import Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.replace import clone_replace
from pytensor.graph.rewriting.basic import GraphRewriter
from pytensor.graph.traversal import ancestors

from synkhronos._backends.jax import runs_jax
from synkhronos._backends.reduction_loops import weighted_sum
from synkhronos._compiling.graph_types import ModeLike
from synkhronos._compiling.progress import watch
from synkhronos._compiling.python_mode import python_mode
from synkhronos._engine.commands.base import COMPUTE, COPY, REDUCE, SCATTER, UPDATE, WAIT, Stopwatch
from synkhronos._engine.commands.call import (
    ExtendedCall,
    Part,
    as_float,
    check_combinable,
    compute_call,
    contribute_call,
)
from synkhronos._engine.member import Ending, Member
from synkhronos._engine.ready_values import listening
from synkhronos._engine.replicas import compiled, configured
from synkhronos._engine.variables import Entry
from synkhronos._proofs.reductions import COMBINE, Reduction
from synkhronos._transport.communicators.communicator import Communicator
from synkhronos._transport.communicators.half_precision import Rounding
from synkhronos.extensions._step.exchanges import HalfPrecision
from synkhronos.extensions._step.flat import Arrays, FlatRecipe
from synkhronos.extensions._step.install import MemberState
from synkhronos.extensions._step.layout import Segment, copies
from synkhronos.extensions._step.overlap import Overlap
from synkhronos.extensions._step.partition import Loop, Use, WholeUpdate
from synkhronos.extensions._step.sparse import SparseSum

_FUSED = 4  # up to this many members, the compiled loop of an update sums the gradients
_NEUTRAL = {"sum": 0.0, "prod": 1.0, "min": np.inf, "max": -np.inf}


@dataclass(frozen=True)
class Inputs:
    """The inputs of one update, beside the gradients in the flat vectors."""

    # this member's gradients, where they were computed. None: all are in the flat vectors
    flat: list[np.ndarray] | None
    weights: list[float]  # the weight of each member's gradient
    leaves: list[np.ndarray]  # the values of the rule's scalars, 0-d


@dataclass
class _Call:
    """One call of a compiled loop, with everything that is known before the step."""

    function: Any
    bucket: int
    segment: Segment
    gradients: list[np.ndarray]
    values: list[np.ndarray]
    targets: list[np.ndarray]
    scalars: tuple[int, ...]


class FlatUpdate(MemberState, Ending):
    """A node-shared update in one member."""

    entries: list[tuple[Entry, np.ndarray]]  # `views`, as this member knows the variables

    def __init__(
        self,
        recipe: FlatRecipe,
        rank: int,
        gradients: list[list[np.ndarray]],
        values: list[np.ndarray],
        totals: list[np.ndarray],
        accumulated: np.ndarray | None = None,
        node: int = 0,
    ) -> None:
        self.recipe = recipe
        self._rank = rank
        self._published = gradients
        self._added = totals
        # on several nodes, and by a sparse exchange, gradients are added up before the update
        self._gradients = [totals] if totals else gradients
        self._members = len(self._gradients)
        self._mine = gradients[rank]
        self._held = values  # keeps the owner's memory alive
        # the node-shared array of each parameter and state
        self._buckets, self.views = Arrays(recipe).sorted(values)
        kept = [self.views[v] for v in recipe.kept]
        self.sparse: SparseSum | None = None
        self._steps: np.ndarray | None = None  # a count, of which chance follows
        if accumulated is not None:
            self.sparse = SparseSum(recipe, rank, node, accumulated, totals, kept)
        elif kept:
            [self._steps] = kept
        self.overlap: Overlap | None = None

    def end(self) -> None:
        """End the process that adds up while members compute."""
        if self.overlap is not None:
            self.overlap.close()

    @property
    def joined(self) -> Sequence[tuple[Entry, np.ndarray]]:
        """The parameters and states."""
        return self.entries

    @property
    def waits_for_gradients(self) -> bool:
        """Whether all members of the node must have published before the update goes on."""
        if self.overlap is not None:  # which waits for those of all nodes
            return False
        return bool(self._added or self.recipe.partition.levels)

    def compile(self) -> None:
        """Compile the functions that this member calls, and call each once on dummy values."""
        partition, buckets = self.recipe.partition, self.recipe.buckets
        with configured(self.recipe.config):
            self._updates: list[_Call] = []
            direct: list[list[Segment]] = [[] for _ in buckets]
            for i, loop in enumerate(partition.loops):
                alike = len({use.scalars for use in loop.uses}) == 1
                segments = buckets[i].segments(self._rank, alike)
                function = self._loop(loop)
                self._updates += [
                    self._call(function, loop, loop.uses[s.use], i, s) for s in segments
                ]
                if not self._added:
                    direct[i] = segments
            self._copies = copies(buckets, direct)
            self._levels = [self._level(level) for level in range(len(partition.levels))]
            self._stages = [self._stage(k) for k in range(len(partition.levels) + 1)]
            self._whole_updates = [
                (whole, self._whole(whole))
                for whole, owner in zip(partition.whole_updates, self.recipe.owners, strict=True)
                if owner == self._rank
            ]
        self._reduced: dict[int, np.ndarray] = {}

    def _function(
        self,
        inputs: list[Any],
        outputs: Sequence[Variable],
        replace: dict[Variable, Variable],
        mode: ModeLike = None,
    ) -> Any:
        """Compile, with the rule's leaves as the last inputs."""
        places = {v: v.type() for v in self.recipe.partition.leaves}
        function = compiled(
            [*inputs, *places.values()],
            clone_replace(list(outputs), replace=list((replace | places).items())),
            mode=_host_mode(self.recipe.mode) if mode is None else mode,
        )
        function.trust_input = True
        watch(function)
        return function

    def _loop(self, loop: Loop) -> Any:
        gradients, weights, reduced = self._summed(loop.gradient)
        values = [In(v, mutable=True) if loop.targets else In(v) for v in loop.values]
        first = len(gradients) + len(weights)
        function = self._function(
            [*gradients, *weights, *values, *loop.scalars],
            loop.outputs,
            {loop.gradient: reduced},
            _in_place(self.recipe.mode, {i: first + k for i, k in enumerate(loop.targets)}),
        )
        places = (*gradients, *weights, *loop.values, *loop.scalars, *self.recipe.partition.leaves)
        with np.errstate(all="ignore"):  # numba compiles at the first call, here
            function(*[np.ones((1,) * v.type.ndim, v.type.dtype) for v in places])
        return function

    def _summed(self, gradient: Variable) -> tuple[list[Variable], list[Variable], Variable]:
        """Placeholders for each member's gradient and weight, and the sum in the order of ranks."""
        if self._members == 1 or self._members > _FUSED:
            g = gradient.type()
            return [g], [], g
        gradients: list[Variable] = [gradient.type() for _ in range(self._members)]
        weights: list[Any] = [pt.scalar(dtype=gradient.type.dtype) for _ in gradients]
        total = gradients[0] * weights[0]
        for g, w in zip(gradients[1:], weights[1:], strict=True):
            total = total + g * w
        return gradients, weights, total

    def _call(self, function: object, loop: Loop, use: Use, at: int, segment: Segment) -> _Call:
        lo, hi = segment.lo, segment.hi
        values = [v[lo:hi] for v in self._buckets[at]]
        gradients = [g[at][lo:hi] for g in self._gradients]
        targets = [values[k] for k in loop.targets]
        return _Call(function, at, segment, gradients, values, targets, use.scalars)

    def _level(self, number: int) -> list[tuple[int, _Call]]:
        """The calls for a level's totals: (number of the first total, call)."""
        found, first = [], 0
        for loop in self.recipe.partition.levels[number].loops:
            function = self._loop(loop)
            for use in loop.uses:
                at, place = self._place(use.unit)
                # those of the update: `publish` leaves the same long pieces out of the flat vector
                for segment in self.recipe.buckets[at].segments(self._rank, alike=False):
                    if segment.use == place:
                        found.append((first, self._call(function, loop, use, at, segment)))
                first += len(loop.outputs)
        return found

    def _place(self, unit: int) -> tuple[int, int]:
        """The number of the unit's bucket, and the unit's number there."""
        return next(
            (at, k)
            for at, b in enumerate(self.recipe.buckets)
            for k, placement in enumerate(b.placements)
            if placement.unit == unit
        )

    def _stage(self, level: int) -> tuple[list[int], Any]:
        """The scalars that the first `level` levels of totals determine: indices and function."""
        partition = self.recipe.partition
        counts = [len(x.combines) for x in partition.levels]
        have, before = sum(counts[:level]), sum(counts[: max(0, level - 1)])
        totals = set(partition.totals)
        known, new = set(partition.totals[:have]), set(partition.totals[before:have])
        numbers = []
        for i, v in enumerate(partition.scalars):
            used = totals & set(ancestors([v]))
            if used <= known and used & new:
                numbers.append(i)
        outputs = [partition.scalars[i] for i in numbers]
        if level == len(counts):
            outputs += [v for _, v in partition.states]
        return numbers, self._small(partition.totals[:have], outputs) if outputs else None

    def _small(self, totals: Sequence[Variable], outputs: list[Variable]) -> object:
        """A function of a few scalars; compiling it would cost more than it saves."""
        places = {v: v.type() for v in self.recipe.partition.leaves}
        function = pytensor.function(
            [*totals, *places.values()],
            clone_replace(outputs, replace=list(places.items())),
            mode=python_mode(),
            on_unused_input="ignore",
        )
        function.trust_input = True
        return function

    def _whole(self, whole: WholeUpdate) -> object:
        unit = self.recipe.partition.units[whole.unit]
        places: dict[Variable, Variable] = {v: v.type() for v in unit.everything}
        inputs = [*whole.gradients, *places.values(), *whole.scalars]
        return self._function(inputs, whole.outputs, places)

    def listening(self) -> AbstractContextManager[None]:
        """A context in which gradients are told of while the others are computed."""
        return nullcontext() if self.overlap is None else listening(self.overlap.publish)

    def begin(self, member: Member, part: Part, average: bool) -> None:
        """Begin a step, before anything is computed."""
        if self.overlap is None:
            return
        comm = member.communicator
        weights = weights_of(part, member.size, average)
        first = comm.rank - comm.home.rank
        count = 0 if self._steps is None else int(self._steps)
        here = weights[first : first + comm.home.size]
        self.overlap.begin(here, count, part.variant.rows)

    def publish(self, gradients: Sequence[object] | None) -> list[np.ndarray] | None:
        """Copy the gradients that other members read to this member's flat vectors.

        Returns the gradients as flat arrays, for the pieces that only this member reads. Without
        rows the flat vectors become zero.
        """
        if self.overlap is not None:
            self.overlap.publish_rest(gradients)
            return None
        if gradients is None:
            for vector in self._mine:
                vector[...] = 0
            return None
        flat = [_flat(g) for g in gradients]
        # only what others read; long pieces of the own chunk are read where they were computed
        for c in self._copies:
            self._mine[c.bucket][c.lo : c.lo + c.size] = flat[c.param][c.at : c.at + c.size]
        return flat

    def add_up(self, comm: Communicator, given: Inputs) -> Inputs:
        """On several nodes, or by a sparse exchange: add all members' gradients up, on every node.

        Members add up the gradients of their node, chunk by chunk; leaders those of the nodes.
        """
        if not self._added:
            return given
        if self.overlap is not None:
            self.overlap.finish(comm)
            return replace(given, flat=None, weights=[1.0])
        ranks = comm.home.size
        first = comm.rank - comm.home.rank
        weights = given.weights[first : first + ranks]

        def summed(i: int, lo: int, hi: int) -> Any:
            column = [vectors[i][lo:hi] for vectors in self._published]
            return self._sum(column, weights) if any(weights) and hi > lo else 0

        def fill(i: int, lo: int, hi: int) -> None:
            self._added[i][lo:hi] = summed(i, lo, hi)

        if self.sparse is None:
            comm.sum_over_nodes(self._added, fill, self._rounding())
        else:
            self.sparse.accumulate(summed)
            comm.enter()
            if comm.home.rank == comm.leader:
                self.sparse.exchange(comm)
            comm.home.barrier()
        return replace(given, flat=None, weights=[1.0])

    def _rounding(self) -> Rounding | None:
        """How gradients travel between nodes in this step."""
        how = self.recipe.exchange
        if not isinstance(how, HalfPrecision):
            return None
        seeds = None if self._steps is None else (how.seed, int(self._steps))
        return Rounding(how.format, seeds)

    def scalars(
        self, comm: Communicator, given: Inputs
    ) -> tuple[dict[int, np.ndarray], list[np.ndarray]]:
        """Compute totals level by level; returns the derived scalars and the new 0-d states.

        All members call it, after all have published.
        """
        found: dict[int, np.ndarray] = {}
        totals: list[np.ndarray] = []
        states: list[np.ndarray] = []
        for k, (numbers, function) in enumerate(self._stages):
            if k:
                totals += self._totals(k - 1, comm, given, found)
            if function is not None:
                values = function(*totals, *given.leaves)
                found |= dict(zip(numbers, values, strict=False))
                states = values[len(numbers) :]
        return found, states

    def _totals(
        self, level: int, comm: Communicator, given: Inputs, scalars: dict[int, np.ndarray]
    ) -> list[np.ndarray]:
        """A level's totals over all members."""
        levels = self.recipe.partition.levels
        how = levels[level].combines
        mine = np.array([_NEUTRAL[c] for c in how])
        for first, call in self._levels[level]:
            for i, value in enumerate(self._run(call, given, scalars), first):
                mine[i] = COMBINE[Reduction(how[i])](mine[i], value)
        for op in dict.fromkeys(how):
            picked = [i for i, c in enumerate(how) if c == op]
            part = mine[picked]
            comm.home.all_reduce([part], Reduction(op))
            mine[picked] = part
        if comm.nodes > 1:  # equal to the last bit, on which the order of additions has influence
            found = comm.broadcast([mine], 0)
            assert found is not None
            mine = found[0]
        start = sum(len(x.combines) for x in levels[:level])
        places = self.recipe.partition.totals[start : start + len(how)]
        return [np.array(v, p.type.dtype) for v, p in zip(mine, places, strict=True)]

    def apply(self, given: Inputs, scalars: dict[int, np.ndarray]) -> None:
        """Write the new values of this member's chunks and whole units, and what is kept."""
        for call in self._updates:
            _write(call.targets, self._run(call, given, scalars))
        for whole, function in self._whole_updates:
            self._apply_whole(whole, function, given, scalars)
        if self.sparse is not None:
            self.sparse.keep()
        if self._steps is not None and self._rank == 0:
            self._steps += 1

    def _run(self, call: _Call, given: Inputs, scalars: dict[int, np.ndarray]) -> list[object]:
        gradients = call.gradients
        s = call.segment
        if s.param is not None and given.flat is not None:
            gradients = list(gradients)
            gradients[self._rank] = given.flat[s.param][s.at : s.at + s.hi - s.lo]
        weights: list[np.ndarray] = []
        if self._members > _FUSED:
            gradients = [self._sum(gradients, given.weights)]
        elif self._members > 1:
            weights = [np.array(w, gradients[0].dtype) for w in given.weights]
        derived = [scalars[i] for i in call.scalars]
        found: list[object] = call.function(
            *gradients, *weights, *call.values, *derived, *given.leaves
        )
        return found

    def _sum(self, gradients: list[np.ndarray], weights: list[float]) -> np.ndarray:
        """The weighted sum of many members' gradients, in a buffer that is used again."""
        first = gradients[0]
        memory = self._reduced.get(first.dtype.num)
        if memory is None or memory.size < first.size:
            memory = self._reduced[first.dtype.num] = np.empty(first.size, first.dtype)
        out = memory[: first.size]
        weighted_sum(out, gradients, weights)
        return out

    def _apply_whole(
        self, whole: WholeUpdate, function: Any, given: Inputs, scalars: dict[int, np.ndarray]
    ) -> None:
        unit = self.recipe.partition.units[whole.unit]
        gradients = []
        for param in unit.params:
            at, placement = next(
                (at, t)
                for at, b in enumerate(self.recipe.buckets)
                for t in b.placements
                if t.param == param
            )
            pieces = [
                g[at][placement.start : placement.start + placement.size] for g in self._gradients
            ]
            k = unit.params.index(param)
            shape = self.recipe.shapes[unit.everything[k]]
            gradients.append(np.array(self._sum(pieces, given.weights)).reshape(shape))
        views = [self.views[v] for v in unit.everything]
        derived = [scalars[i] for i in whole.scalar_numbers]
        new = function(*gradients, *views, *derived, *given.leaves)
        for k, value in zip(whole.targets, new, strict=True):
            views[k][...] = value


def _host_mode(mode: ModeLike) -> ModeLike:
    """The mode of the update of shared memory: NUMBA instead of JAX, which cannot write to it."""
    return "NUMBA" if runs_jax(mode) else mode


def _write(targets: Sequence[np.ndarray], values: Sequence[object]) -> None:
    """Write each value to its target; a value may lie in the memory of another target."""
    owned, at = [_address(t) for t in targets], [_address(v) for v in values]
    if at == owned:
        return
    others = set(owned)
    found = [
        np.array(v) if a != own and a in others else v
        for v, a, own in zip(values, at, owned, strict=True)
    ]
    for target, value, a, own in zip(targets, found, at, owned, strict=True):
        if a != own:
            target[...] = value


class _Places(GraphRewriter):
    """Names the input whose memory each output shall take; PyTensor's choice is any that fits."""

    def __init__(self, places: dict[int, int]) -> None:
        super().__init__()
        self._places = places

    def apply(self, fgraph: Any) -> None:
        fgraph.update_mapping = self._places

    def add_requirements(self, fgraph: FunctionGraph) -> None:
        pass


def _in_place(mode: ModeLike, places: dict[int, int]) -> ModeLike:
    """The mode, where outputs are written to the memory of these inputs if that is possible."""
    return get_mode(_host_mode(mode)).register((_Places(places), 50.4), (_Places({}), 50.9))


def _address(a: Any) -> int:
    address: int = a.__array_interface__["data"][0]
    return address


class _Unlocked:
    """Memory that says it is writable: numba compiles anew for read-only arrays."""

    def __init__(self, a: np.ndarray) -> None:
        self._owner = a
        self.__array_interface__ = a.__array_interface__ | {"data": (_address(a), False)}


def _flat(gradient: object) -> np.ndarray:
    """A gradient as a 1-D array in C order, without a copy if it is in that order."""
    flat = np.ascontiguousarray(gradient).reshape(-1)
    return flat if flat.flags.writeable else np.asarray(_Unlocked(flat))


@dataclass(frozen=True)
class Step(ExtendedCall):
    """A training step in one round: gradients, their reduction, the update of all chunks.

    `call` computes outputs, and gradients as extra outputs.
    """

    update: int
    average: bool  # whether the gradient over all rows is the mean, weighted by rows, or the sum
    # the call's first extra outputs are partial values of the loss. For each: the leaf that its
    # reduced value replaces, and whether it is averaged or summed
    partials: tuple[tuple[int, bool], ...]

    def run(self, member: Member) -> object:
        """Compute gradients, publish them, update this member's chunks."""
        update = member.installed.of(FlatUpdate, self.update)
        clock = member.measured.clocks[self.update].mine
        clock.start(counted=not self.call.first and member.replicas[self.update].used)
        for entry, view in update.entries:
            if entry.storage[0] is not view:  # after a failed command; the value is the same
                entry.storage[0] = view

        def begin(part: Part) -> None:
            update.begin(member, part, self.average)
            clock.lap(SCATTER)

        with update.listening():
            part, outputs = compute_call(self.call, member, begin)
        n = len(self.call.outputs)
        k = n + len(self.partials)
        rows = part.variant.rows
        clock.lap(COMPUTE)
        # before others are waited for: they may need these gradients to go on
        flat = update.publish(outputs[k:] if rows else None)
        clock.lap(COPY)
        # before the update: an output that cannot be combined must change no value
        check_combinable(self.call, member, part, outputs)
        found = contribute_call(self.call, member, part, outputs[:n] if rows else [])
        clock.lap(REDUCE)
        # Ctrl-C between here and the last barrier would leave members with different values
        with member.uninterrupted():
            leaves = self.with_partials(member, update.leaves, part, outputs[n:k])
            given = Inputs(flat, weights_of(part, member.size, self.average), leaves)
            self._update(member, update, given, clock)
        clock.stop(WAIT, part.rows if rows else 0)
        return found

    def _update(self, member: Member, update: FlatUpdate, given: Inputs, clock: Stopwatch) -> None:
        comm = member.communicator
        if update.waits_for_gradients:
            comm.home.barrier()
            clock.lap(WAIT)
        given = update.add_up(comm, given)
        scalars, states = update.scalars(comm, given)
        clock.lap(REDUCE)
        # all members pass, or none: what can fail has been done
        comm.enter()
        clock.lap(WAIT)
        # from here on a death leaves these half written, and marks them
        member.changes.in_place = [entry for entry, _ in update.entries]
        update.apply(given, scalars)
        clock.lap(UPDATE)
        # until here others write their chunks, and read this member's gradients
        comm.home.barrier()
        if member.rank == member.master:
            # the others get them with the scalars of the next step
            for (shared, _), value in zip(update.recipe.partition.states, states, strict=True):
                shared.container.storage[0] = np.asarray(value)
        member.changes.in_place = ()

    def with_partials(
        self, member: Member, given: list[np.ndarray], part: Part, values: Sequence[object]
    ) -> list[np.ndarray]:
        """The rule's scalars, and the reduced partial values of the loss."""
        leaves = list(given)
        if self.partials:
            mine = np.zeros(len(self.partials))
            if part.variant.rows:
                weights = [
                    weights_of(part, member.size, avg)[member.rank] for _, avg in self.partials
                ]
                mine[:] = [as_float(v) * s for v, s in zip(values, weights, strict=True)]
            member.communicator.all_reduce([mine], Reduction.SUM)
            for (leaf, _), value in zip(self.partials, mine, strict=True):
                leaves[leaf] = np.array(value, leaves[leaf].dtype)
        return leaves

    def answer(self, member: Member, own: Any, reports: dict[int, object]) -> list[object]:
        """The call's answer."""
        return self.call.answer(member, own, reports)


def weights_of(part: Part, size: int, average: bool) -> list[float]:
    """The weight of each member's value in the value over all rows."""
    found = [0.0] * size
    for rank, weight in zip(part.participants, part.fractions, strict=True):
        found[rank] = weight if average else 1.0
    return found
