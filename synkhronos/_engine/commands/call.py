"""Runs a function: each member on its part of the rows; the master combines the results.

These rules hold:

* The call says which rows each member computes (`edges`), and all members read the same call. So
  each knows the rows of every other without a message. Only sliceable shared variables, whose
  lengths the master cannot know, cost a meeting for that.
* Members whose part has no rows take no part in averages, and compute nothing. Only where the graph
  has collectives they compute a row of another member: one that is missing in a meeting would keep
  the others waiting.
* Values are combined in the order of ranks, weighted by rows, and in the same order when they are
  large and all members reduce them. So a result is bit-equal from run to run, and one whose
  reduction is proved depends on the group's size only by rounding.
* Nothing is changed before all is computed. New values are set at the end, by `Changes`, and are
  final after the verdict.
* A part is kept while the same call is repeated, so a repetition must find the same memory: what
  the master writes anew (lists of rows, arrays) lies where it lay before.
* The shorter way (`Part.repetition`) gives what the long way gives. It leaves out only checks of
  what cannot change between repetitions: shapes, dtypes, places, the compiled function.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Variable

from synkhronos._backends.jax import brought, is_far, rounded, shared_cache, weighted
from synkhronos._compiling.compile_cache import compiles_at_call, uncacheable
from synkhronos._compiling.graph_types import tensor_type
from synkhronos._engine.commands.base import Command
from synkhronos._engine.graph_exchanges import collective
from synkhronos._engine.member import Member
from synkhronos._engine.ready_values import listening
from synkhronos._engine.replicas import Answer, Recipe, Replica, Update, Variant, is_dense
from synkhronos._engine.variables import NewValues
from synkhronos._errors import InputError
from synkhronos._host.arena import ArrayRef, FileRef
from synkhronos._plan.rows import Picks, Selection, Span, select, slices
from synkhronos._proofs.reductions import COMBINE, Reduction, check_shapes, combine, normalized
from synkhronos._warnings import log

# All members reduce values of at least this size, in chunks; only the master reduces smaller ones.
BIG_BYTES = 1 << 16
_NUMBERS = (np.ndarray, float)  # types that float() converts fast
_SUM, _AVG = Reduction.SUM, Reduction.AVG  # a look-up in an Enum takes longer


@dataclass(frozen=True)
class Argument:
    """One input of a call: where its array is, and which rows are used."""

    source: Any  # arrayRef, FileRef, ScatteredSource, or a value
    # selection, ArrayRef of a list of rows, or None (all of them: it is not scattered)
    rows: Selection | ArrayRef | None = None

    def __reduce__(self) -> Any:
        return Argument, (self.source, self.rows)


@dataclass(frozen=True)
class Call(Command):
    """Run a function."""

    lent = True

    function: int
    arguments: tuple[Argument, ...]
    # the first row of each member's part, and the end; None without scattered inputs
    edges: tuple[int, ...] | None
    # which outputs of the recipe, and how their partial values combine
    outputs: tuple[int, ...]
    reductions: tuple[Reduction | None, ...]
    slices: int = 1  # the number of slices of each part
    # for each member, the rows of its sliceable shared variables
    batch_s: tuple[Any, ...] | None = None
    new: NewValues | None = None  # values of shared variables that the user has set in the master
    # the function is not compiled yet: one member compiles first, the others use its cache
    first: bool = False
    pure: bool = False
    extra: tuple[int, ...] = ()  # further outputs, whose values stay in the members
    # the lengths of each member's slices, if these are not `slices` slices of equal length
    slice_lengths: tuple[tuple[int, ...], ...] | None = None

    @property
    def sliced(self) -> bool:
        """Whether the value of a part is computed from several slices."""
        return self.slices > 1 or self.slice_lengths is not None

    def lengths(self, rank: int, rows: int) -> tuple[int, ...]:
        """The lengths of the slices of a member's part."""
        if self.slice_lengths is not None:
            return self.slice_lengths[rank]
        return tuple([hi - lo for lo, hi in slices(rows, self.slices)])

    def __reduce__(self) -> Any:  # takes half the time and bytes of a dataclass's own
        return _call, (*[getattr(self, name) for name in _CALL_FIELDS],)

    @property
    def repeats(self) -> bool:  # type: ignore[override]
        """Whether the same call is likely to be posted again: not with a list of rows in it."""
        return not any([isinstance(a.rows, Picks) for a in self.arguments])

    def run(self, member: Member) -> object:
        """Compute this member's part; returns its contribution to the outputs.

        New values of variables are final after the verdict.
        """
        part, outputs = compute_call(self, member)
        return contribute_call(self, member, part, outputs)

    def answer(self, member: Member, own: Contribution, reports: dict[int, Any]) -> list[Any]:
        """Combine the contributions in the order of ranks: the values of the outputs."""
        if not self.outputs:
            return []
        part = own.part
        assert part is not None
        if part.scalars is not None:
            reports[member.master] = [as_float(v) for v in own.values]
            return part.reduced([reports[r] for r in part.participants])
        given = [own if r == member.master else reports[r] for r in part.participants]
        weights, outputs = _weights_of(part), member.replicas[self.function].recipe.outputs
        return [
            _combine_one([g.values[i] for g in given], op, weights, outputs[number])
            for i, (number, op) in enumerate(zip(self.outputs, self.reductions, strict=True))
        ]


@dataclass(frozen=True)
class ExtendedCall(Command):
    """A call and more in one command: it repeats and can be undone as the call does."""

    call: Call

    @property
    def repeats(self) -> bool:  # type: ignore[override]
        """As the call does."""
        return self.call.repeats

    @property
    def pure(self) -> bool:  # type: ignore[override]
        """As the call is: changes in place cannot be undone."""
        return self.call.pure


_CALL_FIELDS = tuple(f.name for f in fields(Call))


def _call(*values: Any) -> Call:
    return Call(*values)


@dataclass(frozen=True)
class ScatteredSource:
    """The name of rows of which each node has its own, in `OnNode.scattered_rows`."""

    number: int


# The position, reduction and dtype of each output, where all are real 0-d values that the master
# can sum, average or compare as floats.
Scalars = tuple[tuple[int, Any, Any], ...]


@dataclass
class Part:
    """A member's inputs and rows in a call; kept while the same call is repeated."""

    call: Call
    arguments: list[Any]
    sliceables: list[object]
    rows: int
    weights: tuple[float, ...] | None  # rows of every member; None: all count the same
    participants: tuple[int, ...]
    scalars: Scalars | None
    variant: Variant  # what the member contributes
    # what it computes. Where a function has collectives, a member without rows computes it for a
    # row of another member, so that it comes to all meetings; `stands_in` says so
    computed: Variant
    lengths: tuple[int, ...]  # of the slices that the rows are cut into
    fractions: list[float]  # of the participants in an average
    reads_list: bool  # of rows, in shared memory; a repeated call overwrites it
    stands_in: bool = False
    repetition: Callable[[], Sequence[object]] | None = None  # computes the same, by a shorter path
    # (source, list of rows, argument): copied before each repetition
    copied: Sequence[tuple[np.ndarray, np.ndarray, np.ndarray]] = ()

    def take_rows(self) -> None:
        """Take the rows that are listed now."""
        for source, rows, target in self.copied:
            source.take(rows, 0, target, "clip")  # see `_taken_rows`

    def reduced(self, given: Sequence[Sequence[float]]) -> list[np.ndarray]:
        """The reduced outputs, from those of each participant, where all are scalars."""
        found = []
        assert self.scalars is not None
        for i, op, dtype in self.scalars:
            total = 0.0
            if op is _SUM:
                for values in given:  # `sum` of a list takes twice as long
                    total += values[i]
            elif op is _AVG:
                for values, fraction in zip(given, self.fractions, strict=True):
                    total += values[i] * fraction
            else:
                total = COMBINE[op].reduce([values[i] for values in given])
            found.append(np.array(total, dtype))
        return found


@dataclass
class Contribution:
    """A member's values of the outputs; None if it has no value to give."""

    values: Sequence[object]
    part: Part | None = None  # in the master only


def compute_call(
    call: Call, member: Member, ready: Callable[[Part], None] | None = None
) -> tuple[Part, Sequence[object]]:
    """Compute this member's outputs, those of `call.extra` last; nothing without rows.

    `ready` is called with the part after the inputs have been prepared, and before anything is
    computed.
    """
    replica = member.replicas[call.function]
    part = replica.last_part
    # the shorter way: views, buffers and the compiled function are those of the latest call
    if part is not None and part.call is call and part.repetition is not None:
        if part.copied:
            part.take_rows()
        if ready is not None:
            ready(part)
        try:
            return part, part.repetition()
        except Exception as exc:
            _note_shapes(exc, member, part)
            raise
    part = part_of(call, member)
    if ready is not None:
        ready(part)
    answer = _answer(call, member, replica, part)
    if part.stands_in:
        answer = _without_rows(answer)
    if replica.recipe.updates or answer.streams:
        _apply(member, replica, part, answer)
    elif replica.last_part is part and not (call.sliced or replica.recipe.has_collectives):
        _shorten(call, member, replica, part)
    return part, answer.outputs


def _without_rows(answer: Answer) -> Answer:
    """The answer to keep in a member that has computed for a row of another one."""
    kept = [(u, v) for u, v in answer.updates if not u.everywhere and (u.alike or not u.by_rows)]
    return Answer([], kept, answer.streams)


def part_of(call: Call, member: Member) -> Part:
    """This member's part of a call, after it has received the values that the user has set."""
    replica = member.replicas[call.function]
    part = replica.last_part
    if part is not None and part.call is call:
        if part.reads_list:
            part.arguments = _arguments(call, member, replica)
        return part
    if call.new is not None:
        member.take_new(call.new)
    part = _prepare(call, member, replica)
    replica.last_part = part if _stays(call, replica) else None
    return part


def _answer(call: Call, member: Member, replica: Replica, part: Part) -> Answer:
    if call.first:
        return _first(call, member, replica, part)
    if replica.recipe.jax and replica.compiles(part.computed, part.lengths):
        # no member compiles first, and two members must not write the same file of the cache
        with member.compiling(), shared_cache(member.size == 1):
            return _compute(member, replica, part)
    return _compute(member, replica, part)


def compile_alone(call: Call, member: Member, wholly: bool) -> None:
    """Make this member's function of a call, without the others; `wholly`: and its machine code.

    The machine code goes into the cache, so the member computes once; nothing of that is kept.
    """
    replica, part = member.replicas[call.function], part_of(call, member)
    if not part.variant.rows:
        return
    with member.compiling():
        replica.variant(part.variant)
        if wholly:
            _compute(member, replica, part)


def _shorten(call: Call, member: Member, replica: Replica, part: Part) -> None:
    """Let repetitions of the call take a shorter path, if there is one."""
    compute = replica.repetition(part.variant, part.arguments)
    copied = []
    for source, target in zip(call.arguments, part.arguments, strict=False):
        if isinstance(source.rows, ArrayRef):
            if compute is None or call.edges is None or isinstance(source.source, ScatteredSource):
                return
            lo, hi = call.edges[member.rank], call.edges[member.rank + 1]
            copied.append((member.view(source.source), member.view(source.rows)[lo:hi], target))
    part.copied = copied
    part.repetition = compute
    if compute is None or not (replica.shareds_of_jax or replica.threaded):
        return

    def brought_before() -> Sequence[object]:
        bring(member, replica)
        if not replica.threaded:
            return compute()
        with member.on_node.core_limit:
            return compute()

    part.repetition = brought_before


def _stays(call: Call, replica: Replica) -> bool:
    """Whether a repetition of the call can use the same part."""
    picked = any(isinstance(a.rows, Picks) for a in call.arguments)
    once = call.first or call.new or call.slice_lengths
    return not (picked or once or replica.recipe.sliceables)


def _prepare(call: Call, member: Member, replica: Replica) -> Part:
    recipe = replica.recipe
    sliceables, length = _slice_shareds(call, member, replica)
    weights: tuple[float, ...] | None = None
    if call.edges is not None:
        weights = tuple(b - a for a, b in zip(call.edges[:-1], call.edges[1:], strict=True))
        _check_lengths(weights[member.rank], length, recipe.label)
    elif length is not None:
        # the one meeting before a call computes: the master cannot know these lengths
        found = member.communicator.all_gather([np.array([length], np.int64)])[0]
        weights = tuple(found.tolist())
    participants = _participants(weights, member)
    takes_part = member.rank in participants
    stands_in = recipe.has_collectives and not takes_part
    if recipe.has_collectives and len(participants) < member.size:
        _check_row_for_all(call, recipe, weights)
    rows = 1 if weights is None else int(weights[member.rank])
    lengths = call.lengths(member.rank, rows) if takes_part else (rows,)
    arguments = _arguments(call, member, replica, stands_in) if takes_part or stands_in else []
    variant = _variant(call, recipe, takes_part, lengths)
    return Part(
        call,
        arguments,
        sliceables,
        rows,
        weights,
        participants,
        _scalars(call, replica),
        variant,
        replace(variant, rows=True) if stands_in else variant,
        (len(arguments[0]) if arguments else 1,) if stands_in else lengths,
        _fractions(weights, participants),
        takes_part and any(isinstance(a.rows, ArrayRef) for a in call.arguments),
        stands_in,
    )


def _check_row_for_all(call: Call, recipe: Recipe, weights: tuple[float, ...] | None) -> None:
    """Raise if members without rows cannot read a row of another member."""
    away = any(isinstance(a.source, ScatteredSource) for a in call.arguments)
    if away or recipe.sliceables:
        what = "rows that each node has its own of" if away else "sliceable shared variables"
        raise InputError(
            f"function {recipe.label} combines values of all members, and has {what}, so each "
            f"member needs a row; they have {weights}"
        )


def _variant(call: Call, recipe: Recipe, rows: bool, lengths: Sequence[int]) -> Variant:
    outputs = call.outputs + call.extra
    sliced = call.slices > 1 or len(lengths) > 1
    return Variant(outputs, rows, by_slices=rows and recipe.has_slice_graphs(outputs, sliced))


def _fractions(weights: tuple[float, ...] | None, participants: tuple[int, ...]) -> list[float]:
    """The weight of each participant in an average; the sum is 1."""
    rows = [1.0 if weights is None else weights[r] for r in participants]
    return normalized(rows if any(rows) else [1.0] * len(rows))


def _participants(weights: tuple[float, ...] | None, member: Member) -> tuple[int, ...]:
    """The ranks that have rows; only the master if none has any."""
    if weights is None:
        return tuple(range(member.size))
    return tuple(r for r, w in enumerate(weights) if w > 0) or (member.master,)


def _check_lengths(rows: float, length: int | None, label: str) -> None:
    if length is not None and length != rows:
        raise InputError(
            f"function {label}: this member's part of the scattered inputs has {rows} rows, its "
            f"sliceable shared variables have {length}: they must agree where a function has both"
        )


def _scalars(call: Call, replica: Replica) -> Scalars | None:
    found = []
    for i, (output, op) in enumerate(zip(call.outputs, call.reductions, strict=True)):
        kind = tensor_type(replica.recipe.outputs[output])
        if op not in COMBINE or not is_dense(kind):
            return None
        if kind.ndim > 0 or kind.dtype not in ("float32", "float64"):
            return None
        found.append((i, op, np.dtype(kind.dtype)))
    return tuple(found)


def _slice_shareds(call: Call, member: Member, replica: Replica) -> tuple[list[object], int | None]:
    """The rows of each sliceable shared variable, and how many they are."""
    shareds = replica.recipe.sliceables
    if not shareds:
        return [], None
    values = [s.container.storage[0] for s in shareds]
    lengths = {len(v) for v in values}
    if len(lengths) > 1:
        found = {s.name: len(v) for s, v in zip(shareds, values, strict=True)}
        raise InputError(f"sliceable shared variables differ in length: {found}")
    if call.batch_s is not None:
        rows = select(call.batch_s[member.rank], lengths.pop(), "batch_s")
        values = [_rows_of(v, rows) for v in values]
    return values, len(values[0])


def _rows_of(value: object, rows: Selection) -> object:
    value = np.asarray(value)  # JAX would compile each slice of its own arrays
    if isinstance(rows, Span):
        return value[rows.start : rows.stop]
    return value[rows.rows]


def _arguments(call: Call, member: Member, replica: Replica, stands_in: bool = False) -> list[Any]:
    """This member's inputs, or for a member without rows those of the first row."""
    found = []
    for i, argument in enumerate(call.arguments):
        source, first = argument.source, 0
        if isinstance(source, ArrayRef | FileRef):
            source = member.view(source)
        elif isinstance(source, ScatteredSource):
            source, first = member.on_node.scattered_rows[source.number]
        if argument.rows is not None and call.edges is not None:
            lo, hi = call.edges[member.rank], call.edges[member.rank + 1]
            if stands_in:
                lo, hi = 0, min(1, call.edges[-1])
            rows = argument.rows
            listed = Picks(member.view(rows)) if isinstance(rows, ArrayRef) else rows
            mine = listed.cut(lo, hi)
            source = _taken_rows(source, mine.shifted(first) if first else mine, replica, i)
        found.append(source)
    return found


def _taken_rows(source: np.ndarray, rows: Selection, replica: Replica, index: int) -> np.ndarray:
    """A member's rows: a view if they are contiguous, else a copy in the member's buffer."""
    if isinstance(rows, Span):
        return source[rows.start : rows.stop]
    buffer = replica.buffer(index, len(rows), source)
    # the master has checked the rows, so "clip" changes nothing; it saves numpy a second pass
    return np.take(source, rows.rows, axis=0, out=buffer, mode="clip")


def _first(call: Call, member: Member, replica: Replica, part: Part) -> Answer:
    """One member compiles and computes first; the others then load from the cache that it fills."""
    if replica.recipe.has_collectives:
        return _first_with_collectives(member, replica, part)
    if member.rank != _leader(call, member, replica, part):
        if compiles_at_call(replica.recipe.mode):  # all but what can be had from the cache
            with member.compiling():
                replica.variant(part.variant)
        member.communicator.barrier()
        return _compile_and_compute(member, replica, part)
    answer = _compile_and_compute(member, replica, part)
    for reason in uncacheable(replica.variant(part.variant).function) if member.size > 1 else ():
        log.warning("every member compiles function %s by itself: %s", replica.recipe.label, reason)
    member.communicator.barrier()
    return answer


def _first_with_collectives(member: Member, replica: Replica, part: Part) -> Answer:
    """The master first computes without the others, only to fill the cache as far as possible.

    JAX caches no programs that call back into Python.
    """
    if member.size > 1 and not replica.recipe.jax:
        if member.rank == member.master:
            with member.compiling(), listening(None):
                _compute(member, replica, part, alone=True)
        member.communicator.barrier()
    with member.compiling():
        return _compute(member, replica, part)


def _leader(call: Call, member: Member, replica: Replica, part: Part) -> int:
    """The rank that compiles first for this member; in JAX, one with slices of the same lengths."""
    order = sorted(part.participants, key=lambda rank: (rank != member.master, rank))
    if not replica.recipe.jax or part.weights is None or member.rank not in order:
        return order[0]
    needs = {r: call.lengths(r, int(part.weights[r])) for r in order}
    return next(r for r in order if needs[r] == needs[member.rank])


def _compile_and_compute(member: Member, replica: Replica, part: Part) -> Answer:
    with member.compiling(), shared_cache(replica.recipe.jax):
        return _compute(member, replica, part)


def _compute(member: Member, replica: Replica, part: Part, alone: bool = False) -> Answer:
    if replica.recipe.jax:
        bring(member, replica)
    if not (replica.threaded or replica.recipe.has_collectives):
        return _run(member, replica, part)
    with contextlib.ExitStack() as stack:
        if replica.threaded:
            stack.enter_context(member.on_node.core_limit)
        if replica.recipe.has_collectives and member.size > 1 and not alone:
            everybody = len(part.participants) == member.size
            members = None if everybody else part.participants
            stack.enter_context(collective(member.communicator, _weights_of(part), members))
        return _run(member, replica, part)


def bring(member: Member, replica: Replica) -> None:
    """Move values that the user has set to memory that JAX reads without a copy."""
    for shared in replica.shareds_of_jax:
        value = shared.container.storage[0]
        if is_far(value):
            entry = member.variables.of(shared)
            if not member.is_placed(entry):
                member.move(entry, brought(value))


def _run(member: Member, replica: Replica, part: Part) -> Answer:
    try:
        return replica.run(part.computed, part.arguments, part.sliceables, part.lengths)
    except Exception as exc:
        _note_shapes(exc, member, part)
        raise


def _note_shapes(exc: Exception, member: Member, part: Part) -> None:
    """Note the shapes of this member's part, which differ from those that the user passed."""
    recipe = member.replicas[part.call.function].recipe
    if not (part.variant.rows and len(part.participants) > 1 and recipe.n_scattered):
        return
    given = zip(recipe.inputs, part.arguments[: recipe.n_scattered], strict=False)
    found = ", ".join(f"{v.name or v} {np.shape(a)}" for v, a in given)
    with contextlib.suppress(Exception):  # if its notes are not a list
        exc.add_note(
            f"synkhronos: this member had rows of the scattered inputs, as arrays of {found}; what "
            "every member needs whole belongs in bcast_inputs"
        )


def _apply(member: Member, replica: Replica, part: Part, answer: Answer) -> None:
    shared = [(u, v) for u, v in answer.updates if u.everywhere]
    if shared or _missing_shared(replica, part):
        shared = _reduce_updates(member, replica, part, dict(shared))
    new = {u.shared: v for u, v in [*answer.updates, *shared]} | dict(answer.streams)
    differing = _differing(replica, member)
    for update in replica.recipe.updates:
        member.changes.mark(member.variables.of(update.shared), update.shared in differing)
    for variable, value in new.items():
        member.changes.set(member.variables.of(variable), value)


def _differing(replica: Replica, member: Member) -> set[SharedVariable]:
    """Variables to which the updates may give different values in the members."""
    if member.size == 1:
        return set()
    sources = {s: member.variables.of(s) for s in replica.sources}
    own = {s for s, e in sources.items() if e.is_stream or member.changes.differs(e)}
    return {
        u.shared
        for u in replica.recipe.updates
        if not u.everywhere
        and ((u.by_rows and not u.alike) or u.own or not own.isdisjoint(u.sources))
    }


def _missing_shared(replica: Replica, part: Part) -> bool:
    return not part.variant.rows and any(u.everywhere for u in replica.recipe.updates)


def _reduce_updates(
    member: Member, replica: Replica, part: Part, mine: dict[Update, object]
) -> list[tuple[Update, object]]:
    """Reduce the "all" updates over the members that have rows, and give the result to all."""
    comm = member.communicator
    updates = [u for u in replica.recipe.updates if u.everywhere]
    everybody = len(part.participants) == member.size
    found = []
    for update in updates:
        arrays = [_widened(comm.native(mine[update]), update)] if update in mine else []
        op = update.reduction
        assert op is not None
        comm.all_reduce(arrays, op, _weights_of(part), part.participants)
        if not everybody:
            arrays = comm.broadcast(arrays, part.participants[0]) or []
        found.append((update, rounded(arrays[0], update.shared.type.dtype)))
    return found


def _widened(value: Any, update: Update) -> Any:
    wide = value.dtype.kind in "biu" and update.reduction is Reduction.AVG
    if not isinstance(value, np.ndarray):
        return weighted(value, "float64", None) if wide else value
    return np.array(value, np.float64 if wide else value.dtype)


def _weights_of(part: Part) -> list[float] | None:
    """The rows of the participants; None: equal weights, since no member has rows."""
    if part.weights is None:
        return None
    weights = [part.weights[r] for r in part.participants]
    return weights if any(weights) else None


def contribute_call(call: Call, member: Member, part: Part, outputs: Sequence[object]) -> object:
    """This member's report of the outputs; all members together reduce large ones first."""
    if member.rank == member.master:
        if len(part.participants) > 1 and part.scalars is None:
            outputs = _reduce_big(call, member, part, outputs)
        # it stays in this process: nothing is copied or pickled
        return Contribution(outputs, part)
    if not part.variant.rows or not call.outputs:
        return None
    if part.scalars is not None:
        return [as_float(v) for v in outputs]
    owner = part.participants[0]
    values = _reduce_big(call, member, part, outputs)
    keep = member.rank == owner and member.master not in part.participants
    return Contribution(
        [
            portable(v) if op is not None or keep else None
            for v, op in zip(values, call.reductions, strict=True)
        ]
    )


def check_combinable(call: Call, member: Member, part: Part, outputs: Sequence[Any]) -> None:
    """Raise in all members if the parts' outputs do not fit together.

    The master finds that out by itself, but only from the reports. This costs an exchange where an
    output's type does not fix its shape.
    """
    if part.scalars is not None or len(part.participants) < 2:
        return
    kinds = [member.replicas[call.function].recipe.outputs[n].type for n in call.outputs]
    checked: list[tuple[int, int, int]] = []  # an output, and the axes in which the parts agree
    for i, (kind, op) in enumerate(zip(kinds, call.reductions, strict=True)):
        first = int(op is Reduction.GATHER)
        if op is not None and is_dense(kind) and None in kind.shape[first:]:
            checked.append((i, first, kind.ndim))
    if not checked:
        return
    mine = np.full(sum([ndim - first for _, first, ndim in checked]), -1, np.int64)
    if part.variant.rows:
        mine[:] = [n for i, first, _ in checked for n in np.shape(outputs[i])[first:]]
    [found] = member.communicator.all_gather([mine], "stack")
    shapes = found[list(part.participants)]
    at = 0
    for _, first, ndim in checked:
        each = shapes[:, at : at + ndim - first]
        at += ndim - first
        check_shapes([tuple(shape) for shape in each.tolist()], joined=bool(first))


def _reduce_big(call: Call, member: Member, part: Part, values: Sequence[object]) -> list[object]:
    """Replace what the members reduce together: by the result in the master, None elsewhere."""
    found = list(values)
    together = len(part.participants) > 1 and member.master in part.participants
    if not together or not part.variant.rows:
        return found
    for i, op in enumerate(call.reductions):
        if op is None or op is Reduction.GATHER:
            continue
        array = member.communicator.native(values[i])
        if array.nbytes >= BIG_BYTES:
            result = member.communicator.reduce(
                [array], op, member.master, _weights_of(part), part.participants
            )
            found[i] = None if result is None else _Reduced(np.asarray(result[0]))
    return found


@dataclass
class _Reduced:
    """A value that all members have reduced together."""

    value: np.ndarray


def _combine_one(
    values: list[object], op: Reduction | None, weights: list[float] | None, output: Variable
) -> object:
    for value in values:
        if isinstance(value, _Reduced):
            return value.value
    dense = is_dense(output.type)
    if op is not None:
        found = combine(values, op, weights)
        return found if dense else found[()]
    first = next((v for v in values if v is not None), None)
    # a copy: the report is lent, and void after the next command
    return np.array(first) if dense else copy.deepcopy(first)


def portable(value: object) -> object:
    """A value that PyTensor takes, and that can be sent: arrays of others become numpy's."""
    foreign = hasattr(value, "__array__") and not isinstance(value, np.generic)
    return np.asarray(value) if foreign else value


def as_float(value: Any) -> float:
    """A real 0-d value as a float; JAX's own conversion takes five times as long as numpy's."""
    return float(value if type(value) in _NUMBERS else np.asarray(value))
