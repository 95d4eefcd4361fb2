"""The loss and its gradients as a group computes them, and the update that members keep.

Each training function has one `InstalledStep`: what all ways of training have in common.
"""

# These rules hold here:
#
# * Members have the update from the first step on, and until a restart: `installed` compares the
#   master's `Member`, of which a restart makes another.
# * Before each step `settle` brings what the user has set into the arrays of the node, by a command
#   only where writing is not enough. Then `post_leaves` writes the rule's scalars.
# * So the command of a step holds no value that changes, and is sent again as a number.

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytensor
from pytensor.compile.io import In
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Variable
from pytensor.graph.replace import clone_replace
from pytensor.tensor.random.type import RandomType

from synkhronos._api.advice import Timing, seconds_of
from synkhronos._api.data import Data
from synkhronos._api.group_function import GroupFunction
from synkhronos._api.report import Measurements, Report
from synkhronos._api.request import Request
from synkhronos._api.timed_parts import TimedParts
from synkhronos._checks import shown
from synkhronos._compiling.memory import trim
from synkhronos._compiling.python_mode import python_mode
from synkhronos._engine.commands.base import Command
from synkhronos._engine.commands.call import Call
from synkhronos._engine.commands.clocks import seconds_by_phase
from synkhronos._engine.function_plan import Plan
from synkhronos._engine.group import Group
from synkhronos._engine.member import Member
from synkhronos._engine.replicas import compiled, configured
from synkhronos._engine.runner import retried
from synkhronos._engine.shipping import distribute_in, share_variables
from synkhronos._engine.variables import Entry, check_whole, to_send
from synkhronos._errors import InputError, InputTypeError
from synkhronos._host.arena import Arena
from synkhronos._transport import serialization
from synkhronos.extensions._step.commands import MakeNodeShared
from synkhronos.extensions._step.exchanges import Exchange
from synkhronos.extensions._step.install import MemberState
from synkhronos.extensions._step.objective import Objective
from synkhronos.extensions._step.partition import Partition
from synkhronos.extensions._step.resident import MakeEqual
from synkhronos.extensions._step.resident_recipe import UpdateRule
from synkhronos.extensions._step.same_rows import INTEGERS, SameRows


@dataclass(frozen=True)
class TrainPlan:
    """The parts of a training function."""

    function: Plan  # of the loss, the outputs and the gradients
    n_outputs: int  # the loss and the user's outputs
    params: tuple[SharedVariable, ...]
    goal: Objective
    partition: Partition
    rule: UpdateRule
    exchange: Exchange | None
    inputs: tuple[Variable, ...]  # those with rows, as the user gave them
    aliases: tuple[str, ...]  # other names of the first inputs
    order: tuple[tuple[int, ...], ...] = ()  # of the gradients, as in a `FlatRecipe`

    @property
    def partials(self) -> tuple[tuple[int, bool], ...]:
        """As for a `Step`: of the partial values of the loss, those that the update reads."""
        leaves = self.partition.leaves
        return tuple(
            (leaves.index(place), average)
            for _, average, place in self.goal.partials
            if place in leaves
        )


class InstalledStep:
    """A planned training function in its group."""

    def __init__(
        self,
        group: Group,
        plan: TrainPlan,
        command_of: Callable[[Call], Command] = lambda call: call,
    ) -> None:
        self.group = group
        self.plan = plan
        self.partials = plan.partials  # as for a `Step`
        self.kept: Any = None  # what the master keeps, once it is installed
        # the variables that all members have in common, as `MemberState.joined`
        self.entries: Sequence[tuple[Entry, np.ndarray | None]] = ()
        self._member: Member | None = None  # that the update is installed in
        self._finish: Any = None
        # the command of a step, from its `Call`, as for `GroupFunction.call`
        self._command_of = command_of
        function, partition = plan.function, plan.partition
        self.function = GroupFunction(group, function, plan.n_outputs)
        self.number = self.function.number  # of the function, by which members know what they keep
        self._measurements = Measurements(group, self.number)
        self.n_inputs = len(function.inputs)
        self._aliases = [name for name in plan.aliases if name not in function.names]
        places = [place for _, _, place in plan.goal.partials]
        for leaf in partition.leaves:
            if not isinstance(leaf, SharedVariable) and leaf not in (*function.inputs, *places):
                raise InputError(
                    f"the update rule depends on {leaf}, which is not an input of the function: "
                    "list it in bcast_inputs"
                )
        self.same_rows = SameRows(len(plan.inputs))
        states = [v for unit in partition.units for v in unit.everything if v not in plan.params]
        self.states = [*states, *(v for v, _ in partition.states)]  # of the update rule
        # as for a `TrainingFunction`
        self.streams = [s for s in function.shareds if isinstance(s.type, RandomType)]
        scalars = [leaf for leaf in partition.leaves if isinstance(leaf, SharedVariable)]
        named = {*plan.params, *self.states, *self.streams}
        found = dict.fromkeys([*scalars, *function.shareds])
        self.settings = [s for s in found if s not in named]

    @property
    def graph(self) -> tuple[list[Variable], list[Variable]]:
        """The inputs with rows, and the loss and the outputs as expressions of them."""
        inputs, outputs = self.plan.function.graph
        return inputs, outputs[: self.plan.n_outputs]

    @property
    def resident(self) -> bool:
        """Whether gradients lie where each member's JAX computes."""
        return self.function.plan.recipe.jax and self.group.member.resident

    @property
    def installed(self) -> bool:
        """Whether all members have the update; not before the first step, nor after a restart."""
        return self._member is self.function.runner.member

    def request(
        self, args: tuple[object, ...], kwargs: dict[str, object], batch: object, slices: int | str
    ) -> Request:
        """The user's request for a step, noted for a warning of rows that repeat."""
        if kwargs or len(args) > self.n_inputs:
            args, kwargs, batch = arranged(args, kwargs, batch, self.n_inputs, self._aliases)
        if type(batch) in INTEGERS:
            self.same_rows.note(self.function.what, args, kwargs, batch)
        return Request(args, kwargs, batch=batch, slices=slices)

    def call(self, asked: Request) -> object:
        """Compute in all members; returns the loss, with outputs a list of it and these."""
        found = self.function.call(asked, self._command_of)
        return found[0] if len(found) == 1 else found

    def data_of(self, given: Sequence[object], what: str) -> list[tuple[Any, Data]]:
        """The inputs with rows, and their Data; raise if one is anything else."""
        found = []
        plan = self.plan.function
        for variable, value, scattered in zip(plan.inputs, given, plan.scattered, strict=True):
            if not scattered:
                continue
            if not isinstance(value, Data):
                raise InputTypeError(
                    f"{self.function.what}: {what} takes Data for inputs with rows, found "
                    f"{shown(value)} for {variable}: make it with train.build_inputs"
                )
            found.append((variable, value))
        return found

    @retried
    def gradients(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], batch: Any, num_slices: int | str
    ) -> list[np.ndarray]:
        """Compute the gradients of the loss over all rows, as `PlanMethods.gradients` does."""
        kinds = self.function.plan.recipe.reductions
        args, kwargs, batch = arranged(args, kwargs, batch, self.n_inputs, self._aliases)
        with self.group.runner.reserved("train.gradients"):
            call = self.function.make(Request(args, kwargs, batch=batch, slices=num_slices))
            every = replace(
                call,
                outputs=call.outputs + call.extra,
                reductions=call.reductions + tuple(kinds[i] for i in call.extra),
                extra=(),
            )
            with self.function.telling() if call.first else nullcontext():
                values = self.group.runner.run(every, "train.gradients")[len(call.outputs) :]
            self.function.compiled(every)
        n = len(self.plan.goal.partials)
        reduced = values[n : n + len(self.plan.params)]
        if self.plan.goal.factor is None:
            return [np.asarray(v) for v in reduced]
        return self._finished(values[:n], reduced, self.function.arguments.bind(args, kwargs))

    def _finished(
        self, partials: list[object], reduced: list[object], given: list[object]
    ) -> list[np.ndarray]:
        """The factor and the direct terms of the gradient, in the master."""
        goal = self.plan.goal
        if self._finish is None:
            places = [p.type() for p in self.plan.params]
            self._finish = pytensor.function(
                [*(v for _, _, v in goal.partials), *places, *self.function.plan.inputs],
                goal.full_gradients(places),
                mode=python_mode(),
                on_unused_input="ignore",
            )
        typed = [
            np.asarray(value, place.type.dtype)
            for value, (_, _, place) in zip(partials, goal.partials, strict=True)
        ]
        values = [v.readable if isinstance(v, Data) else v for v in given]
        found: list[np.ndarray] = self._finish(*typed, *reduced, *values)
        return found

    def build_inputs(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        force_cast: bool,
        oversize: float,
        minibatch: bool | Sequence[bool],
    ) -> Data | tuple[Data, ...]:
        """Make one Data for each input, as `PlanMethods.build_inputs` does."""
        args, kwargs = by_position(args, kwargs, self._aliases)
        return self.function.build_inputs(args, kwargs, force_cast, oversize, minibatch)

    def seconds(self) -> dict[str, list[float]]:
        """The seconds of each member in each phase."""
        found = seconds_by_phase(self._measurements.cells())
        del found["between"]  # the script's time
        return found

    def report(self) -> Report:
        """Where the time of the steps since the previous report went."""
        return self._measurements.report(self.function.what, "Make at least two steps first")

    def timed(self, asked: Request) -> tuple[str, int | None, Timing]:
        """Measure a step for `synk.advise`; changes no variable."""
        function = self.function
        with self.group.runner.reserved("train"), function.telling("measuring"):
            parts = TimedParts(function, asked)
            plain = self._plain_update(asked.args, asked.kwargs)
            return function.what, parts.rows, parts.timing(None, plain)

    def seconds_alone(self, asked: Request) -> float:
        """Measure the gradients of a step in the master alone; changes no variable."""
        function = self.function
        with (
            self.group.runner.reserved("train"),
            function.telling("measuring"),
            np.errstate(all="ignore"),
        ):
            return seconds_of(TimedParts(function, asked).compute(1))

    def _plain_update(
        self, args: Sequence[object], kwargs: Mapping[str, object]
    ) -> Callable[[], object]:
        """A function that updates copies of parameters and states in place, in plain PyTensor."""
        rule, recipe = self.plan.rule, self.function.plan.recipe
        given = self.function.arguments.bind(args, kwargs)
        values = dict(zip(self.function.plan.inputs, given, strict=True))
        leaves: list[Variable] = [v for v in rule.leaves if not isinstance(v, SharedVariable)]
        changed: dict[Variable, Variable] = {v: v.type() for v, _ in rule.updates}
        new = clone_replace([v for _, v in rule.updates], replace=list(changed.items()))
        with configured(recipe.config):
            written: list[Any] = [In(v, mutable=True) for v in changed.values()]
            update = compiled([*rule.places, *leaves, *written], new, mode=recipe.mode)
        update.trust_input = True
        gradients = [np.full_like(np.asarray(p.container.storage[0]), 0.01) for p in rule.params]
        scalars = [np.asarray(values.get(v, 1), v.type.dtype) for v in leaves]
        copies = [np.array(v.container.storage[0]) for v, _ in rule.updates]
        return functools.partial(update, *gradients, *scalars, *copies)

    def post_leaves(self, args: Sequence[object], kwargs: Mapping[str, object]) -> None:
        """Write the values of the rule's scalars where all members read them."""
        partials = {leaf for leaf, _ in self.partials}
        given: list[object] = []
        for i, leaf in enumerate(self.plan.partition.leaves):
            if i in partials:
                continue
            if isinstance(leaf, SharedVariable):
                value = leaf.container.storage[0]
            else:
                given = given or self.function.arguments.bind(args, kwargs)
                value = given[self.function.plan.inputs.index(leaf)]
                value = value.readable if isinstance(value, Data) else value
            set_scalar(self.kept.leaves[i], value, self.group.arena)

    def install(
        self,
        variables: Sequence[SharedVariable],  # that all members have in common between two steps
        recipe: Callable[[], object],  # makes the recipe of the update
        # makes the command that installs it, of the packed recipe and the function's number
        command: Callable[[bytes, int], Command],
    ) -> None:
        """Make variables and the update known to all members."""
        with self.function.telling():
            self._install(variables, recipe(), command)

    def _install(
        self,
        variables: Sequence[SharedVariable],
        recipe: object,
        command: Callable[[bytes, int], Command],
    ) -> None:
        group = self.group
        for v in variables:
            check_whole(v)
        share_variables(group, variables, values=False)
        distribute_in(group, (self.function,))
        registry = group.member.variables

        def numbered(obj: object) -> int | None:
            entry = registry.find(obj) if isinstance(obj, SharedVariable) else None
            return None if entry is None else entry.number

        packed = serialization.pack_graph(recipe, numbered) if group.size > 1 else b""
        group.runner.run(command(packed, self.number), "train", master_input=recipe)
        self.kept = group.member.installed.of(MemberState, self.number)
        self._measurements.use()
        self.entries = self.kept.joined
        self._shapes = [np.shape(e.storage[0]) for e, _ in self.entries]
        self._member = group.member

    def settle(self) -> bool:
        """Make each parameter and state one array, with the master's value.

        Returns whether the user has set one.
        """
        changed = [
            (entry, view, shape)
            for (entry, view), shape in zip(self.entries, self._shapes, strict=True)
            if entry.is_set or entry.differs or (view is not None and entry.view is not view)
        ]
        if changed:
            self._join(changed)
        return bool(changed)

    def _join(self, changed: Sequence[tuple[Entry, np.ndarray | None, tuple[int, ...]]]) -> None:
        """Make variables node-shared again, with the master's values, if writing is not enough."""
        unsent = set(to_send(entry for entry, _, _ in changed))
        stale = [
            entry
            for entry, view, _ in changed
            if entry in unsent or entry.differs or (view is not None and entry.view is not view)
        ]
        for entry, _, shape in changed:
            check_whole(entry.variable)
            if np.shape(entry.storage[0]) != shape:
                raise InputError(
                    f"{entry.label} was set to shape {np.shape(entry.storage[0])}, the training "
                    f"function was made for {shape}: make another"
                )
        if stale:
            numbers = tuple(e.number for e in stale)
            compared = tuple(e.number for e in stale if e.differs)
            resident = all(view is None for _, view, _ in changed)
            join = MakeEqual(numbers, compared) if resident else None
            command = join or MakeNodeShared(numbers, self.number, compared)
            self.group.runner.run(command, "train")
            trim()  # the values that the arrays have replaced


def arranged(
    args: tuple[object, ...],
    kwargs: dict[str, object],
    batch: object,
    n: int,
    aliases: Sequence[str],
) -> tuple[tuple[Any, ...], dict[str, object], object]:
    """Inputs by position where `aliases` name them, and the batch where it follows n inputs."""
    args, kwargs = by_position(args, kwargs, aliases)
    if len(args) == n + 1 and batch is None:
        *args_, batch = args
        args = tuple(args_)
    return args, kwargs, batch


def by_position(
    args: tuple[object, ...], kwargs: dict[str, object], aliases: Sequence[str]
) -> tuple[tuple[object, ...], dict[str, object]]:
    """Inputs by position where `aliases` name them."""
    for i, name in enumerate(aliases):
        if len(args) == i and name in kwargs:
            kwargs = dict(kwargs)
            args = (*args, kwargs.pop(name))
    return args, kwargs


def set_scalar(place: np.ndarray, value: Any, arena: Arena) -> None:
    """In the master: give one of the rule's scalars its value, on all nodes."""
    if arena.tracks_changes and np.array_equal(place, value, equal_nan=place.dtype.kind in "fc"):
        return
    place[...] = value
    arena.mark_dirty(place)
