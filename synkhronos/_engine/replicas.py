"""The copy of a function in one member: compiled variants, slices, accumulation.

These rules hold:

* Nothing here changes a shared variable. Updates are computed as outputs, random states too; the
  caller sets them when all members have computed. So PyTensor's own updates are never used.
* Every slice of a part starts from the same values of the shared variables. Only random states
  move from slice to slice, or two slices would draw the same numbers.
* A variant is compiled once, at its first use: which outputs, with or without rows, for whole parts
  or for slices. The graph is the same in every member, so one member's machine code serves all by
  PyTensor's cache.
* PyTensor's configuration of the master, when the function was made, holds for each compilation,
  whatever the process has now.
* In mode JAX a length is a program. So lengths are few, and what is compiled is remembered
  (`_Compiled.lengths`); values are ready before a call returns, since JAX reads memory in place
  that belongs to the user afterwards.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytensor
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors
from pytensor.tensor.basic import Alloc, Join, MakeVector, ScalarFromTensor, TensorFromScalar
from pytensor.tensor.elemwise import CAReduce, DimShuffle, Elemwise
from pytensor.tensor.shape import Reshape, Shape, Shape_i, SpecifyShape
from pytensor.tensor.subtensor import (
    AdvancedIncSubtensor,
    AdvancedSubtensor,
    IncSubtensor,
    Subtensor,
)
from pytensor.tensor.type import TensorType

from synkhronos._backends import jax as jax_backend
from synkhronos._backends.machine_code import repeated
from synkhronos._compiling.data.aligned import aligned_empty
from synkhronos._compiling.graph_types import ModeLike
from synkhronos._compiling.lean.mode import lean, without_c
from synkhronos._compiling.memory import rarely_collected
from synkhronos._compiling.progress import watch
from synkhronos._compiling.python_mode import python_mode
from synkhronos._compiling.traces import untraced
from synkhronos._compiling.vectorised.rewrite import vectorising
from synkhronos._engine.graph_collectives import ordered
from synkhronos._engine.ready_values import Listener, listener, listening, told_among
from synkhronos._libraries.fork_safe_lock import ForkSafeLock
from synkhronos._proofs.reductions import Accumulator, Reduction


def is_dense(kind: object) -> bool:
    """Whether values of this type are arrays of numpy."""
    return isinstance(kind, TensorType) and not hasattr(kind, "format")


@dataclass(eq=False)
class Finish:
    """An expression of reduced values, evaluated once: by the master, or over a member's slices."""

    placeholders: tuple[Variable, ...]
    finished: Variable
    _function: Any = None

    def __call__(self, values: Sequence[Any]) -> object:
        """The value of the expression."""
        if self._function is None:
            self._function = pytensor.function(
                self.placeholders, self.finished, mode=python_mode(), on_unused_input="ignore"
            )
        typed = [
            p.type.filter(v, allow_downcast=True)
            for p, v in zip(self.placeholders, values, strict=True)
        ]
        return self._function(*typed)

    def __getstate__(self) -> dict[str, object]:
        return {"placeholders": self.placeholders, "finished": self.finished}


@dataclass(frozen=True)
class Slicing:
    """The variables computed for each slice of a part, and how they make the part's value.

    Without `finish` there is one variable, and its reduction is the value.
    """

    variables: tuple[Variable, ...]
    reductions: tuple[Reduction | None, ...]
    finish: Finish | None = None

    def joined(self, values: Sequence[object]) -> object:
        """The part's value, from the variables reduced over all slices."""
        return values[0] if self.finish is None else self.finish(values)


@dataclass(frozen=True)
class Update:
    """The new value that a call gives a shared variable."""

    shared: SharedVariable
    new: Variable
    reduction: Reduction | None
    slicing: Slicing
    everywhere: bool = False  # reduced over members too, like an output
    by_rows: bool = False  # its value depends on the scattered rows
    alike: bool = False  # it does, and collectives in the graph make it equal in all members
    own: bool = False  # it depends on the rank, or on a collective that parts the members
    sources: tuple[SharedVariable, ...] = ()  # what it depends on, but for what collectives equal


@dataclass(frozen=True)
class Stream:
    """A random generator that a function draws from, and its state after a call (or None)."""

    shared: SharedVariable
    after: Variable | None
    by_rows: bool = False


@dataclass(frozen=True)
class Recipe:
    """The information from which a member makes its replica of a function.

    Sliceable shared variables and random streams become inputs of the compiled function, so one
    compiled variant serves every kind of `batch_s` and any number of slices. In the graphs,
    `places` stand for the rows of the sliceables.
    """

    number: int
    name: str | None
    label: str  # by which messages name it: its name, or where it was made
    inputs: tuple[Variable, ...]
    n_scattered: int
    outputs: tuple[Variable, ...]
    reductions: tuple[Reduction | None, ...]
    slicing: tuple[Slicing, ...]  # of the outputs
    updates: tuple[Update, ...]
    sliceables: tuple[SharedVariable, ...]
    places: tuple[Variable, ...]
    streams: tuple[Stream, ...]
    mode: ModeLike
    config: dict[str, object] = field(default_factory=dict)
    options: dict[str, object] = field(default_factory=dict)
    jax: bool = False  # JAX compiles it again for every length
    has_collectives: bool = False  # so all members compute it, each its part at once

    def has_slice_graphs(self, outputs: Sequence[int], sliced: bool) -> bool:
        """Whether other graphs than a whole part's make the values of slices."""
        if not sliced:
            return False
        values = [(self.slicing[i], self.outputs[i]) for i in outputs]
        values += [(u.slicing, u.new) for u in self.updates]
        return any(s.finish is not None or s.variables[0] is not v for s, v in values)


@dataclass(frozen=True)
class Variant:
    """Which outputs of a recipe to compute; without rows: what does not depend on them.

    `by_slices`: the values of slices, which the slicing of each output and update joins.
    """

    outputs: tuple[int, ...]
    rows: bool = True
    by_slices: bool = False


@dataclass
class Answer:
    """The values that a replica has computed; no variable has been changed yet."""

    outputs: list[object]
    updates: list[tuple[Update, object]]
    streams: list[tuple[SharedVariable, object]]


class Replica:
    """One function in one member."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self.last_part: Any = None  # of the latest call, in case it is repeated
        self.threaded = not recipe.jax and _may_use_threads(recipe)
        self._compiled: dict[Variant, _Compiled] = {}
        self.used = False  # whether anything of the function has been compiled
        self._buffers: dict[object, np.ndarray] = {}

    def variant(self, variant: Variant) -> _Compiled:
        """The compiled function of a variant, made at its first use."""
        found = self._compiled.get(variant)
        if found is None:
            held = [s for s in self.shareds_of_jax if s not in self.recipe.sliceables]
            found = self._compiled[variant] = _Compiled(self.recipe, variant, held)
            self.used = True
        return found

    def compiles(self, variant: Variant, lengths: Sequence[int]) -> bool:
        """Whether JAX has not yet compiled a variant for one of these lengths."""
        found = self._compiled.get(variant)
        return found is None or not found.lengths.issuperset(lengths)

    @functools.cached_property
    def shareds_of_jax(self) -> list[SharedVariable]:
        """The shared variables whose values are given to JAX: all but random streams."""
        if not self.recipe.jax:
            return []
        roots = [*self.recipe.outputs, *(u.new for u in self.recipe.updates)]
        streams = {s.shared for s in self.recipe.streams}
        found = [v for v in ancestors(roots) if isinstance(v, SharedVariable)]
        return [v for v in dict.fromkeys([*found, *self.recipe.sliceables]) if v not in streams]

    @functools.cached_property
    def sources(self) -> list[SharedVariable]:
        """All that updates depend on; a running value of a deep network depends on most of it."""
        return list(dict.fromkeys(s for u in self.recipe.updates for s in u.sources))

    def repetition(
        self, variant: Variant, arguments: Sequence[object]
    ) -> Callable[[], Sequence[object]] | None:
        """The fastest function that computes the same from new values of shared variables."""
        compiled = self.variant(variant)
        if not compiled.plain or not variant.rows:
            return None
        if not self.recipe.jax:
            return repeated(compiled.function, arguments)
        if any([jax_backend.is_copied(a) for a in arguments]):
            return None
        return functools.partial(compiled, arguments, (), ())

    def buffer(self, key: object, rows: int, like: np.ndarray) -> np.ndarray:
        """Memory for `rows` rows of an input, aligned to 64 bytes, reused by the next call."""
        found = self._buffers.get(key)
        fits = found is not None and (found.dtype, found.shape[1:]) == (like.dtype, like.shape[1:])
        if found is None or not fits or len(found) < rows:
            found = self._buffers[key] = aligned_empty((rows, *like.shape[1:]), like.dtype)
        return found[:rows]

    def run(
        self,
        variant: Variant,
        arguments: Sequence[object],  # the part of each scattered input, then the broadcast inputs
        sliceables: Sequence[object],  # the selected rows of each sliceable shared variable
        # of the slices of the part. All use the same shared values; random streams advance from
        # slice to slice
        lengths: Sequence[int],
    ) -> Answer:
        """Compute outputs and new values from the current values of the shared variables."""
        if self.recipe.jax:
            return self._run_jax(variant, arguments, sliceables, lengths)
        compiled = self._compiled.get(variant) or self.variant(variant)
        whole = len(lengths) == 1 and not variant.by_slices
        if compiled.plain and whole:
            return Answer(compiled(arguments, sliceables, ()), [], [])
        state = [s.shared.container.storage[0] for s in self.recipe.streams]
        if whole:
            values = compiled(arguments, sliceables, state)
            return compiled.answer(values, state)
        return self._run_slices(compiled, arguments, sliceables, state, lengths)

    def _run_jax(
        self,
        variant: Variant,
        arguments: Sequence[object],
        sliceables: Sequence[object],
        lengths: Sequence[int],
    ) -> Answer:
        """As `run`, with generators of JAX, and arrays where JAX reads them in place."""
        compiled = self.variant(variant)
        before = [s.shared.container.storage[0] for s in self.recipe.streams]
        state = [jax_backend.typified(s) for s in before]
        if len(lengths) == 1 and not variant.by_slices:
            values = compiled(self._placed(arguments), self._placed(sliceables, "s"), state)
            answer = compiled.answer(values, state)
        else:
            answer = self._run_slices(compiled, arguments, sliceables, state, lengths)
        compiled.lengths.update(lengths)
        if answer.streams:
            held = dict(zip([s.shared for s in self.recipe.streams], before, strict=True))
            answer.streams = [(s, jax_backend.generator(new, held[s])) for s, new in answer.streams]
        return answer

    def _placed(self, arrays: Sequence[Any], kind: str = "") -> Sequence[object]:
        """Copy arrays that JAX would copy into new memory to memory that is reused."""
        copied = [i for i, a in enumerate(arrays) if jax_backend.is_copied(a)]
        if not copied or not jax_backend.on_cpu():
            return arrays
        found = list(arrays)
        for i in copied:
            found[i] = self.buffer((kind, i), len(arrays[i]), arrays[i])
            np.copyto(found[i], arrays[i])
        return found

    def _total(self, op: Reduction | None) -> Accumulator | jax_backend.Total:
        """An accumulator for the values of slices, on the GPU for arrays of JAX there."""
        if self.recipe.jax and op not in (None, Reduction.GATHER) and not jax_backend.on_cpu():
            return jax_backend.Total(op)
        return Accumulator(op)

    def _run_slices(
        self,
        compiled: _Compiled,
        arguments: Sequence[Any],
        sliceables: Sequence[object],
        state: list[object],
        lengths: Sequence[int],
    ) -> Answer:
        n = self.recipe.n_scattered
        totals = [self._total(op) for s in compiled.slicing for op in s.reductions]
        last: list[object] = []
        told: dict[int, object] = {}  # totals that were told of in the last slice
        edges = list(itertools.accumulate(lengths, initial=0))
        for number, (lo, hi) in enumerate(itertools.pairwise(edges), 1):
            piece: Sequence[object] = [a[lo:hi] if i < n else a for i, a in enumerate(arguments)]
            rows: Sequence[object] = [np.asarray(s)[lo:hi] for s in sliceables]
            if self.recipe.jax:
                piece, rows = self._placed(piece), self._placed(rows, "s")
            ends = number == len(lengths)
            with listening(compiled.totals_told(totals, hi - lo, told) if ends else None):
                last = compiled(piece, rows, state)
            for i, (total, value) in enumerate(zip(totals, last, strict=False)):
                if i not in told:
                    total.add(value, hi - lo)
            state = compiled.next_state(last, state)
        found = [told[i] if i in told else total.result() for i, total in enumerate(totals)]
        values = compiled.joined(found)
        return compiled.answer(values, state, taken=True)


# Ops that run in one thread in every mode; any other may be BLAS or have one inside.
_ONE_THREAD = (
    *(Elemwise, CAReduce, DimShuffle, Shape_i, Shape, Reshape, SpecifyShape, MakeVector, Join),
    *(Alloc, Subtensor, IncSubtensor, AdvancedSubtensor, AdvancedIncSubtensor),
    *(ScalarFromTensor, TensorFromScalar),
)


def _may_use_threads(recipe: Recipe) -> bool:
    roots = [*recipe.outputs, *(u.new for u in recipe.updates)]
    return any(
        v.owner is not None and not isinstance(v.owner.op, _ONE_THREAD) for v in ancestors(roots)
    )


class _Compiled:
    """A variant of a recipe, compiled by PyTensor.

    Updates are computed as outputs: PyTensor's own would change the replica before it is known
    whether every member succeeds.
    """

    def __init__(
        self, recipe: Recipe, variant: Variant, held: Sequence[SharedVariable] = ()
    ) -> None:
        rows = variant.rows
        self._held = held  # passed as inputs: the linker of JAX would copy their values
        self._storages = [s.container.storage for s in held]
        self.lengths: set[int] = set()  # of parts, that JAX has compiled it for
        outputs = variant.outputs if rows else ()
        self._updates = [u for u in recipe.updates if rows or not u.by_rows]
        self._streams = [s.shared for s in recipe.streams]
        self._moves = [s.after is not None and (rows or not s.by_rows) for s in recipe.streams]
        self._goes_on: list[object] = [
            s.after for s, m in zip(recipe.streams, self._moves, strict=True) if m
        ]
        self.slicing = [recipe.slicing[i] for i in outputs] + [u.slicing for u in self._updates]
        self._n_outputs = len(outputs)
        self._values: list[Any] = [recipe.outputs[i] for i in outputs]
        self._values += [u.new for u in self._updates]
        self._n_inputs = len(recipe.inputs) if rows else 0
        self._jax = recipe.jax
        self.plain = not self._updates and not self._streams
        self._n_values: int | None = None  # without the last turn of collectives
        self.function = self._compile(recipe, variant)

    def _compile(self, recipe: Recipe, variant: Variant) -> Any:
        given = [*self._streams, *self._held]
        places = [s.type(name=s.name) for s in given]
        values = (
            [v for s in self.slicing for v in s.variables] if variant.by_slices else self._values
        )
        computed: list[Any] = [*values, *self._goes_on]
        if recipe.has_collectives:
            computed, turn = ordered(computed)
            self._n_values = len(computed)
            computed.append(turn)
        inputs = list(recipe.inputs) if variant.rows else []
        with (
            configured(recipe.config),
            jax_backend.wide() if recipe.jax else contextlib.nullcontext(),
        ):
            function = compiled(
                [*inputs, *recipe.places, *places],
                computed,
                givens=list(zip(given, places, strict=True)),
                mode=jax_backend.declared_dtypes(recipe.mode) if recipe.jax else recipe.mode,
                name=recipe.name,
                **recipe.options,
            )
        function.trust_input = True
        watch(function)
        return function

    def __call__(
        self, arguments: Sequence[Any], sliceables: Sequence[object], state: Sequence[object]
    ) -> list[object]:
        """Outputs, then new values, then the streams' next states."""
        if self._n_inputs != len(arguments):
            arguments = arguments[: self._n_inputs]
        if not self._jax:
            plain: list[object] = self.function(*arguments, *sliceables, *state)
            return plain if self._n_values is None else plain[: self._n_values]
        held = [storage[0] for storage in self._storages]
        with jax_backend.wide():
            values: list[object] = self.function(*arguments, *sliceables, *state, *held)
        jax_backend.send_scalars(values[: self._n_outputs])
        jax_backend.ready(values)  # memory that JAX reads in place is the user's after the call
        return values if self._n_values is None else values[: self._n_values]

    def totals_told(
        self, totals: Sequence[Any], rows: int, told: dict[int, object]
    ) -> Listener | None:
        """The listener for the last slice: it tells of totals in place of the values."""
        tell = listener()
        if tell is None:
            return None
        places = told_among([v for s in self.slicing for v in s.variables])

        def add(number: int, value: np.ndarray) -> None:
            i = places[number]
            totals[i].add(value, rows)
            told[i] = total = totals[i].result()
            tell(number, total)

        return add

    def joined(self, totals: Sequence[object]) -> list[object]:
        """Outputs and new values of a part, of what its slices together gave."""
        left = iter(totals)
        values = [s.joined([next(left) for _ in s.variables]) for s in self.slicing]
        n = self._n_outputs
        return values[:n] + [
            jax_backend.rounded(v, x.type.dtype)
            for v, x in zip(values[n:], self._values[n:], strict=True)
        ]

    def next_state(self, values: Sequence[object], state: Sequence[object]) -> list[object]:
        """The random states after a slice."""
        following = iter(values[len(values) - len(self._goes_on) :])
        return [
            next(following) if moves else old for moves, old in zip(self._moves, state, strict=True)
        ]

    def answer(self, values: list[object], state: Sequence[object], taken: bool = False) -> Answer:
        """Sort what was computed into outputs, new values and random states."""
        n, m = self._n_outputs, len(self._updates)
        after = state if taken else self.next_state(values, state)
        return Answer(
            values[:n],
            list(zip(self._updates, values[n : n + m], strict=True)),
            [
                (s, new)
                for s, new, moves in zip(self._streams, after, self._moves, strict=True)
                if moves
            ],
        )


def compiled(inputs: Sequence[Variable], outputs: Sequence[Variable], **options: Any) -> Any:
    """Call pytensor.function so that the result changes no variable, also by no default_update.

    In mode NUMBA, operations whose own code compiles or runs slowly are replaced.
    """
    mode = options["mode"] = lean(options.get("mode"))
    options["on_unused_input"] = "ignore"
    with rarely_collected(), without_c(mode), untraced():
        if all(getattr(v, "default_update", None) is None for v in ancestors(outputs)):
            return pytensor.function(list(inputs), list(outputs), **options)
        # the option is as deprecated as what it is for; and only here, since filters that tell
        # once of a line start anew after a catch
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            options["no_default_updates"] = True
            return pytensor.function(list(inputs), list(outputs), **options)


@contextlib.contextmanager
def configured(config: dict[str, Any]) -> Iterator[None]:
    """A context with the configuration of PyTensor, and of the group, when the function was made.

    One thread at a time is in it, since PyTensor has one configuration for all threads.
    """
    flags = {**config}
    vectorises = vectorising(flags.pop("vectorised", True))
    with _configuring.held(), pytensor.config.change_flags(**flags), vectorises:
        yield


_configuring = ForkSafeLock()


# Settings that may change in a running process (workers have the others from the environment).
_SETTINGS = ("mode", "linker", "floatX", "exception_verbosity", "on_opt_error")


def settings() -> dict[str, Any]:
    """The settings that a recipe carries."""
    return {name: getattr(pytensor.config, name) for name in _SETTINGS}
