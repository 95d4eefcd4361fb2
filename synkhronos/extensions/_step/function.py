"""The training function: a call is one step of all members."""

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

from synkhronos._api.advice import Advised, Timing
from synkhronos._api.data import Data
from synkhronos._api.group_function import GroupFunction
from synkhronos._api.report import Measurements, Report
from synkhronos._api.timed_parts import TimedParts
from synkhronos._engine.commands.base import Command
from synkhronos._engine.commands.call import Call
from synkhronos._engine.commands.clocks import seconds_by_phase
from synkhronos._engine.compile import Plan
from synkhronos._engine.group import Group, retried
from synkhronos._engine.member import Member
from synkhronos._engine.process_bound import ProcessBound
from synkhronos._engine.python_mode import python_mode
from synkhronos._engine.replicas import compiled, configured
from synkhronos._engine.shipping import distribute_in, share_variables
from synkhronos._engine.variables import Entry, check_whole, to_send
from synkhronos._errors import (
    InputError,
)
from synkhronos._host.cores import trim
from synkhronos._transport import serialization
from synkhronos.extensions._step.commands import (
    CollectResiduals,
    InstallUpdate,
    MakeNodeShared,
    Step,
)
from synkhronos.extensions._step.exchanges import Exchange, HalfPrecision, TopK
from synkhronos.extensions._step.flat import lay_out, shapes_of
from synkhronos.extensions._step.install import Kept, set_scalar
from synkhronos.extensions._step.objective import Objective
from synkhronos.extensions._step.partition import Partition
from synkhronos.extensions._step.resident import InstallResidentUpdate, MakeEqual, ResidentStep
from synkhronos.extensions._step.resident_recipe import UpdateRule
from synkhronos.extensions._step.same_rows import INTEGERS, SameRows
from synkhronos.extensions._step.sparse import residuals_of


@dataclass(frozen=True)
class TrainPlan:
    """What a training function is made of.

    Attributes
    ----------
    function : Plan
        Of the loss, the outputs and the gradients.
    n_outputs : int
        The loss and the user's outputs.
    params : tuple of SharedVariable
    goal : Objective
    partition : Partition
    rule : UpdateRule
    exchange : Exchange, or None
    inputs : tuple of Variable
        Those with rows, as the user gave them.
    aliases : tuple of str
        Other names of the first inputs.
    """

    function: Plan
    n_outputs: int
    params: tuple[SharedVariable, ...]
    goal: Objective
    partition: Partition
    rule: UpdateRule
    exchange: Exchange | None
    inputs: tuple[Variable, ...]
    aliases: tuple[str, ...]


class TrainFunction(ProcessBound, Advised):
    """A training step of all members; made by `make_train_function`.

    Attributes
    ----------
    inputs : list of Variable
        Those with rows: x and y.
    params : list of SharedVariable
        The parameters that are trained.
    state : list of SharedVariable
        The update rule's states.
    streams : list of SharedVariable
        The random generators that the loss draws from.
    settings : list of SharedVariable
        What else a step reads or updates: shared scalars of the rule, such as a learning rate, and
        other shared variables of the loss, the outputs and `updates`.

    Examples
    --------
    >>> import numpy as np, pytensor, pytensor.tensor as pt, synkhronos as synk
    >>> from synkhronos.extensions import make_train_function, updates
    >>> x, w = pt.vector("x", dtype="float64"), pytensor.shared(np.zeros(()), name="w")
    >>> with synk.Group(1):
    ...     train = make_train_function(
    ...         ((w - x) ** 2).mean(), [w], x, None, updates.sgd, 0.5, mode="FAST_COMPILE"
    ...     )
    ...     train.gradients([1.0, 3.0]), train([1.0, 3.0]), train.params
    ([array(-4.)], array(5.), [w])
    """

    _instead = (
        "save its values by extensions.checkpoints.Checkpoints(folder, train), or p.get_value() "
        "of each parameter, and make the function again"
    )

    def __init__(self, group: Group, plan: TrainPlan) -> None:
        self._group = group
        self._plan = plan
        goal, partition = plan.goal, plan.partition
        self._member: Member | None = None  # that the update is installed in
        self._entries: Sequence[tuple[Entry, np.ndarray | None]] = ()
        self._finish: Any = None
        self._update: Any = None
        places = [place for _, _, place in goal.partials]
        self._partials = tuple(
            (partition.leaves.index(place), average)
            for _, average, place in goal.partials
            if place in partition.leaves
        )
        plan_ = plan.function
        self._function = GroupFunction(group, plan_, plan.n_outputs, self._command_of())
        self._number = self._function.number
        self._measurements = Measurements(group, self._number)
        self._n_inputs = len(plan_.inputs)
        self._aliases = [name for name in plan.aliases if name not in plan_.names]
        for leaf in partition.leaves:
            if not isinstance(leaf, SharedVariable) and leaf not in (*plan_.inputs, *places):
                raise InputError(
                    f"the update rule depends on {leaf}, which is not an input of the function: "
                    "list it in bcast_inputs"
                )
        self.inputs = list(plan.inputs)
        self.same_rows = SameRows(len(plan.inputs))
        self.params = list(plan.params)
        states = [v for unit in partition.units for v in unit.everything if v not in self.params]
        self._exchange_states = self._states_of(plan.exchange)
        self.state = [*states, *(v for v, _ in partition.states), *self._exchange_states]
        self.streams = [s for s in plan_.shareds if isinstance(s.type, RandomType)]
        scalars = [leaf for leaf in partition.leaves if isinstance(leaf, SharedVariable)]
        named = {*self.params, *self.state, *self.streams}
        found = dict.fromkeys([*scalars, *plan_.shareds])
        self.settings = [s for s in found if s not in named]

    def _states_of(self, exchange: Exchange | None) -> tuple[SharedVariable, ...]:
        """The variables of what an exchange keeps from step to step."""
        if isinstance(exchange, TopK):
            nodes = self._group.member.communicator.nodes
            return residuals_of(self._plan.params, self._plan.partition, nodes)
        if isinstance(exchange, HalfPrecision) and exchange.stochastic:
            return (pytensor.shared(np.zeros((), np.int64), name="steps of the exchange"),)
        return ()

    @property
    def by_node(self) -> list[SharedVariable]:
        """The states that have a row for each node: residuals of `TopK`."""
        return list(self._exchange_states) if isinstance(self._plan.exchange, TopK) else []

    def collect(self) -> None:
        """Bring the rows of `by_node` from the other nodes to the master's variables.

        `Checkpoints` call it before they save. Without `TopK`, and on one node, nothing moves.

        Notes
        -----
        Cost: on several nodes one round; each node receives the residuals of all others.
        """
        group = self._group
        if self.by_node and group.member.communicator.nodes > 1 and self._member is group.member:
            group.run(CollectResiduals(self._number), "train.collect")

    @property
    def name(self) -> str:
        """Its name, or where it was made."""
        return self._function.label

    @property
    def group(self) -> Group:
        """The group that trains."""
        return self._group

    @property
    def size(self) -> int:
        """The number of members."""
        return self._group.size

    @property
    def mode(self) -> Any:
        """The compilation mode that it was made with; None: PyTensor's default."""
        return self._plan.function.recipe.mode

    @property
    def graph(self) -> tuple[list[Variable], list[Variable]]:
        """The inputs with rows, and the loss and the outputs as expressions of them."""
        inputs, outputs = self._plan.function.graph
        return inputs, outputs[: self._plan.n_outputs]

    @property
    def on_gpus(self) -> bool:
        """Whether members compute on GPUs."""
        return self._resident

    @property
    def compiled(self) -> bool:
        """Whether a step has been made, so that the next one need not compile."""
        return self._function.shipped

    def __repr__(self) -> str:
        return f"<synkhronos.extensions.TrainFunction of {self._function.what} in {self._group!r}>"

    @retried
    def __call__(
        self,
        *args: Any,
        batch: Any = None,
        num_slices: int | str = 1,
        timeout: float | None = None,
        **kwargs: Any,
    ) -> Any:
        """Make one step.

        Parameters
        ----------
        *args, **kwargs
            The inputs, as for a function: Data, numpy arrays or scalars, in order or by name.
            ``x_data`` and ``y_data`` name x and y, too.
        batch : optional
            Rows to use, as for a function; also by position, after all inputs. An integer means
            the first rows; ten such calls in a row on the same inputs raise a BatchWarning.
        num_slices : int or "auto"
            Micro-batches: each member computes its gradient in this many slices.
        timeout : float, optional
            Seconds that the master waits for other members; compiling does not count. Default:
            the group's.

        Returns
        -------
        object
            The loss over all rows, before the update; with outputs, a list of the loss and these.

        Raises
        ------
        InputError
            An argument is wrong, or a parameter's values differ between members. No value has
            changed.
        WorkerError
            A member raised. If it did so while it computed, no value has changed.
        StateTorn
            An earlier step failed in the middle of its update.

        Notes
        -----
        Cost: one round. Each member writes its gradients once, reads its chunk of all members'
        gradients, and writes its chunk of parameters and states. Between nodes, leaders send what
        `exchange` says: by default each element once, and its sum.
        """
        group = self._group
        if kwargs or len(args) > self._n_inputs:
            args, kwargs, batch = arranged(args, kwargs, batch, self._n_inputs, self._aliases)
        if type(batch) in INTEGERS:
            self.same_rows.note(self._function.what, args, kwargs, batch)
        with group.turn("train", timeout):
            return self._step(args, kwargs, batch, num_slices)

    def _step(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], batch: Any, num_slices: int | str
    ) -> Any:
        """As a call, inside of a turn."""
        group = self._group
        group.wake()
        group.check_idle("train")
        if self._member is not group.member:  # none yet, or from before a restart
            self._install()
        self._settle()
        self._post_leaves(args, kwargs)
        found = self._function.call(args, kwargs, None, batch, None, num_slices)
        return found[0] if len(found) == 1 else found

    @retried
    def gradients(
        self, *args: Any, batch: Any = None, num_slices: int | str = 1, **kwargs: Any
    ) -> list[np.ndarray]:
        """Compute the gradients of the loss over all rows; no value changes.

        The parameters are those of a call.

        Returns
        -------
        list of numpy.ndarray
            One for each of `params`, before clipping.
        """
        kinds = self._function.plan.recipe.reductions
        args, kwargs, batch = arranged(args, kwargs, batch, self._n_inputs, self._aliases)
        with self._group.turn("train.gradients"):
            call = self._function.make(args, kwargs, batch=batch, num_slices=num_slices)
            every = replace(
                call,
                outputs=call.outputs + call.extra,
                reductions=call.reductions + tuple(kinds[i] for i in call.extra),
                extra=(),
            )
            with self._function.telling() if call.first else nullcontext():
                values = self._group.run_in_turn(every, "train.gradients")[len(call.outputs) :]
            self._function.compiled(every)
        n = len(self._plan.goal.partials)
        reduced = values[n : n + len(self.params)]
        if self._plan.goal.factor is None:
            return [np.asarray(v) for v in reduced]
        return self._finished(values[:n], reduced, self._function.arguments.bind(args, kwargs))

    def _finished(
        self, partials: list[Any], reduced: list[Any], given: list[Any]
    ) -> list[np.ndarray]:
        """The factor and the direct terms of the gradient, in the master."""
        goal = self._plan.goal
        if self._finish is None:
            places = [p.type() for p in self.params]
            self._finish = pytensor.function(
                [*(v for _, _, v in goal.partials), *places, *self._function.plan.inputs],
                goal.full_gradients(places),
                mode=python_mode(),
                on_unused_input="ignore",
            )
        typed = [
            np.asarray(value, place.type.dtype)
            for value, (_, _, place) in zip(partials, goal.partials, strict=True)
        ]
        values = [np.asarray(v) if isinstance(v, Data) else v for v in given]
        found: list[np.ndarray] = self._finish(*typed, *reduced, *values)
        return found

    def build_inputs(
        self,
        *args: Any,
        force_cast: bool = False,
        oversize: float = 1.0,
        minibatch: bool | Sequence[bool] = False,
        **kwargs: Any,
    ) -> Any:
        """Make one Data for each input, as `synkhronos.Function.build_inputs` does.

        Parameters
        ----------
        *args, **kwargs
            The arrays, in order or by name: x, y, `bcast_inputs`. ``x_data`` and ``y_data`` name x
            and y, too. An input that is None, or not given, gets empty Data: set its value later.
        force_cast, oversize
            As for `synkhronos.data`.
        minibatch : bool, or one for each input

        Returns
        -------
        Data, or tuple of Data

        Raises
        ------
        InputError, InputTypeError
            There are too many arrays, or one does not fit its input.

        Notes
        -----
        Cost: one copy of each array; no communication with the workers.

        Examples
        --------
        >>> import numpy as np, pytensor, pytensor.tensor as pt, synkhronos as synk
        >>> from synkhronos.extensions import make_train_function, updates
        >>> x, w = pt.vector("x", dtype="float64"), pytensor.shared(np.zeros(()), name="w")
        >>> with synk.Group(1):
        ...     train = make_train_function(((w - x) ** 2).mean(), [w], x, None, updates.sgd, 0.5)
        ...     train.build_inputs([1.0, 3.0])
        <synkhronos.Data 'x' float64 (2,)>
        """
        args, kwargs = by_position(args, kwargs, self._aliases)
        return self._function.build_inputs(args, kwargs, force_cast, oversize, minibatch)

    def seconds(self) -> dict[str, list[float]]:
        """The seconds that each member has spent in each phase of all steps so far.

        Phases: scatter (rows of the inputs), compute (outputs and gradients), copy (gradients that
        other members read), wait (for others), reduce (norms and other totals), update (reduce the
        gradients and update). The first step is not counted, since it compiles. `report` shows
        them as a table, for the latest steps.
        """
        found = seconds_by_phase(self._measurements.cells())
        del found["between"]  # the script's time
        return found

    def report(self) -> Report:
        """Where the time of the steps since the previous report went, and what binds.

        Steps are always measured. The first one is not counted, since it compiles.

        Returns
        -------
        Report
            A table and a sentence; ``show()`` prints them, ``as_dict()`` gives plain numbers.

        Raises
        ------
        InputError
            No step has been counted yet.

        Examples
        --------
        >>> import numpy as np, pytensor, pytensor.tensor as pt, synkhronos as synk
        >>> from synkhronos.extensions import make_train_function, updates
        >>> x, w = pt.vector("x", dtype="float64"), pytensor.shared(np.zeros(()), name="w")
        >>> with synk.Group(1):
        ...     train = make_train_function(
        ...         ((w - x) ** 2).mean(), [w], x, None, updates.sgd, 0.5, name="train"
        ...     )
        ...     for _ in range(11):
        ...         loss = train([1.0, 3.0])
        >>> train.report()
        function train: 10 calls of 2 rows in 1 member; milliseconds of a call
        ...
        """
        return self._measurements.report(self._function.what, "Make at least two steps first")

    def timed(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], batch: Any
    ) -> tuple[str, int | None, Timing]:
        """Measure a step for `synk.advise`; changes no variable."""
        function = self._function
        with self._group.turn("train"), function.telling("measuring"):
            parts = TimedParts(function, args, kwargs, batch)
            return function.what, parts.rows, parts.timing(None, self._plain_update(args, kwargs))

    def _plain_update(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Callable[[], Any]:
        """A function that updates copies of parameters and states in place, in plain PyTensor."""
        rule, recipe = self._plan.rule, self._function.plan.recipe
        given = self._function.arguments.bind(args, kwargs)
        values = dict(zip(self._function.plan.inputs, given, strict=True))
        leaves: list[Any] = [v for v in rule.leaves if not isinstance(v, SharedVariable)]
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

    def _post_leaves(self, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        """Write the values of the rule's scalars where all members read them."""
        partials = {leaf for leaf, _ in self._partials}
        given: list[Any] = []
        for i, leaf in enumerate(self._plan.partition.leaves):
            if i in partials:
                continue
            if isinstance(leaf, SharedVariable):
                value = leaf.container.storage[0]
            else:
                given = given or self._function.arguments.bind(args, kwargs)
                value = given[self._function.plan.inputs.index(leaf)]
                value = np.asarray(value) if isinstance(value, Data) else value
            set_scalar(self._update.leaves[i], value, self._group.arena)

    def _install(self) -> None:
        """Make the parameters, states and update known to all members."""
        with self._function.telling():
            self._install_update()

    def _command_of(self) -> Callable[[Call], Command]:
        """Makes the command of a call; it must not refer to this object, which it would outlive."""
        plan = self._plan
        jax, average = plan.function.recipe.jax, plan.goal.average
        return functools.partial(_step_of, self._group, jax, average, self._partials)

    @property
    def _resident(self) -> bool:
        """Whether parameters and states lie where each member's JAX computes."""
        return self._function.plan.recipe.jax and self._group.member.resident

    def _shared(self) -> list[SharedVariable]:
        """The variables that all members have in common between two steps."""
        if self._resident:
            return [v for v, _ in self._plan.rule.updates]
        units = self._plan.partition.units
        return [*(v for unit in units for v in unit.everything), *self._exchange_states]

    def _installation(self) -> tuple[Any, Callable[[bytes, int], Command]]:
        """The recipe of the update, and the command that installs it."""
        plan, recipe = self._plan, self._function.plan.recipe
        if self._resident:
            return plan.rule.recipe(recipe.mode, recipe.config), InstallResidentUpdate
        members = self._group.member.communicator.home.size
        how = recipe.mode, recipe.config, plan.exchange, self._exchange_states
        shapes = shapes_of(plan.partition)
        shapes |= {v: v.get_value(borrow=True).shape for v in self._exchange_states}
        return lay_out(plan.partition, shapes, members, *how), InstallUpdate

    def _install_update(self) -> None:
        group, variables = self._group, self._shared()
        for v in variables:
            check_whole(v)
        share_variables(group, variables, values=False)
        distribute_in(group, (self._function,))
        registry = group.member.variables

        def numbered(obj: Any) -> int | None:
            entry = registry.find(obj) if isinstance(obj, SharedVariable) else None
            return None if entry is None else entry.number

        flat, install = self._installation()
        packed = serialization.pack_graph(flat, numbered) if group.size > 1 else b""
        group.run_in_turn(install(packed, self._number), "train", master_input=flat)
        self._update = group.member.installed.of(Kept, self._number)
        self._measurements.use()
        self._entries = self._update.joined
        self._shapes = [np.shape(e.storage[0]) for e, _ in self._entries]
        self._member = group.member

    def _settle(self) -> bool:
        """See to it that each parameter and state is one array, with the master's value.

        Returns whether the user has set one.
        """
        changed = [
            (entry, view, shape)
            for (entry, view), shape in zip(self._entries, self._shapes, strict=True)
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
            join = MakeEqual(numbers, compared) if self._resident else None
            command = join or MakeNodeShared(numbers, self._number, compared)
            self._group.run_in_turn(command, "train")
            trim()  # the values that the arrays have replaced


def _step_of(
    group: Group, jax: bool, average: bool, partials: tuple[tuple[int, bool], ...], call: Call
) -> Step:
    """The command of a step, from that of its outputs and gradients."""
    kind = ResidentStep if jax and group.member.resident else Step
    return kind(call, call.function, average, partials)


def arranged(
    args: tuple[Any, ...], kwargs: dict[str, Any], batch: Any, n: int, aliases: Sequence[str]
) -> tuple[tuple[Any, ...], dict[str, Any], Any]:
    """Inputs by position where `aliases` name them, and the batch where it follows n inputs."""
    args, kwargs = by_position(args, kwargs, aliases)
    if len(args) == n + 1 and batch is None:
        *args_, batch = args
        args = tuple(args_)
    return args, kwargs, batch


def by_position(
    args: tuple[Any, ...], kwargs: dict[str, Any], aliases: Sequence[str]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Inputs by position where `aliases` name them."""
    for i, name in enumerate(aliases):
        if len(args) == i and name in kwargs:
            kwargs = dict(kwargs)
            args = (*args, kwargs.pop(name))
    return args, kwargs
