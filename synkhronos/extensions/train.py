"""Training functions: gradient, exact reduction and update of all members in one round.

Parameters and the update rule's states have one value on each node, in shared memory. Each member
updates its own chunk of it.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import pytensor
from pytensor.compile.io import In
from pytensor.compile.mode import Mode
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Variable
from pytensor.graph.replace import clone_replace
from pytensor.graph.traversal import ancestors
from pytensor.tensor.random.type import RandomType

from synkhronos._api.advice import Advised, Timing
from synkhronos._api.data import Data
from synkhronos._api.group_function import GroupFunction
from synkhronos._api.report import Measurements, Report
from synkhronos._api.timed_parts import TimedParts
from synkhronos._engine.commands.call import Call
from synkhronos._engine.commands.clocks import seconds_by_phase
from synkhronos._engine.compile import Change, Plan, plan, substituted
from synkhronos._engine.graph_collectives import has_collectives
from synkhronos._engine.group import Group, current, retried
from synkhronos._engine.member import Member
from synkhronos._engine.progress import telling
from synkhronos._engine.replicas import compiled, configured
from synkhronos._engine.shipping import distribute_in, share_variables
from synkhronos._engine.variables import Entry, check_whole, to_send
from synkhronos._errors import (
    InputError,
    InputTypeError,
    UnusedWarning,
    place_of_user,
    shown,
    warn,
)
from synkhronos._host.cores import trim
from synkhronos._plan.rows import Picks, select
from synkhronos._transport import serialization
from synkhronos._transport.communicators.half_precision import FORMATS
from synkhronos.extensions._step.command import (
    InstallUpdate,
    MakeNodeShared,
    Step,
    set_scalar,
)
from synkhronos.extensions._step.flat import lay_out, shapes_of
from synkhronos.extensions._step.objective import Objective, objective
from synkhronos.extensions._step.partition import Partition, partition_rule
from synkhronos.extensions._step.resident import InstallResidentUpdate, MakeEqual, ResidentStep
from synkhronos.extensions._step.resident_recipe import UpdateRule
from synkhronos.extensions.updates import apply_rule
from synkhronos.extensions.updates._slots import (
    check_loss,
    fitted_gradient,
    gradients,
    trainable,
)

Clip = Callable[[list[Variable]], Sequence[Variable]]


class TrainFunction(Advised):
    """A training step of all members; made by `make_train_function`.

    Attributes
    ----------
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

    def __init__(
        self,
        group: Group,
        plan_: Plan,
        n_outputs: int,
        params: Sequence[SharedVariable],
        goal: Objective,
        partition: Partition,
        rule: UpdateRule,
        compress: str | None,
        aliases: Sequence[str],
    ) -> None:
        self._group = group
        self._goal = goal
        self._compress = compress
        self._partition = partition
        self._rule = rule
        self._member: Member | None = None  # that the update is installed in
        self._entries: list[tuple[Entry, np.ndarray | None]] = []
        self._finish: Any = None
        self._resident = False  # parameters and states lie where each member's JAX computes
        self._update: Any = None
        places = [place for _, _, place in goal.partials]
        self._partials = tuple(
            (partition.leaves.index(place), average)
            for _, average, place in goal.partials
            if place in partition.leaves
        )
        step_of = functools.partial(_step_of, group, plan_.recipe.jax, goal.average, self._partials)
        self._function = GroupFunction(group, plan_, n_outputs, step_of)
        self._number = self._function.number
        self._measurements = Measurements(group, self._number)
        self._n_inputs = len(plan_.inputs)
        self._aliases = [name for name in aliases if name not in plan_.names]
        for leaf in partition.leaves:
            if not isinstance(leaf, SharedVariable) and leaf not in (*plan_.inputs, *places):
                raise InputError(
                    f"the update rule depends on {leaf}, which is not an input of the function: "
                    "list it in bcast_inputs"
                )
        self.params = list(params)
        states = [v for unit in partition.units for v in unit.everything if v not in self.params]
        self.state = [*states, *(v for v, _ in partition.states)]
        self.streams = [s for s in plan_.shareds if isinstance(s.type, RandomType)]
        scalars = [leaf for leaf in partition.leaves if isinstance(leaf, SharedVariable)]
        named = {*self.params, *self.state, *self.streams}
        found = dict.fromkeys([*scalars, *plan_.shareds])
        self.settings = [s for s in found if s not in named]

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
            Rows to use, as for a function; also by position, after all inputs.
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
        gradients, and writes its chunk of parameters and states.
        """
        group = self._group
        if kwargs or len(args) > self._n_inputs:
            args, kwargs, batch = _arranged(args, kwargs, batch, self._n_inputs, self._aliases)
        with group.lock if timeout is None else group.limited(timeout):
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
        args, kwargs, batch = _arranged(args, kwargs, batch, self._n_inputs, self._aliases)
        with self._group.lock:
            call = self._function.make(args, kwargs, batch=batch, num_slices=num_slices)
            every = replace(
                call,
                outputs=call.outputs + call.extra,
                reductions=call.reductions + tuple(kinds[i] for i in call.extra),
                extra=(),
            )
            with self._function.telling() if call.first else nullcontext():
                values = self._group.run(every, "train.gradients")[len(call.outputs) :]
            self._function.compiled(every)
        n = len(self._goal.partials)
        if self._goal.factor is None:
            return [np.asarray(v) for v in values[n:]]
        return self._finished(values[:n], values[n:], self._function.arguments.bind(args, kwargs))

    def _finished(
        self, partials: list[Any], reduced: list[Any], given: list[Any]
    ) -> list[np.ndarray]:
        """The factor and the direct terms of the gradient, in the master."""
        goal = self._goal
        if self._finish is None:
            places = [p.type() for p in self.params]
            self._finish = pytensor.function(
                [*(v for _, _, v in goal.partials), *places, *self._function.plan.inputs],
                goal.full_gradients(places),
                mode=Mode(linker="py", optimizer="fast_compile"),
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
        args, kwargs = _by_position(args, kwargs, self._aliases)
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
        with self._group.lock, function.telling("measuring"):
            parts = TimedParts(function, args, kwargs, batch)
            return function.what, parts.rows, parts.timing(None, self._plain_update(args, kwargs))

    def _plain_update(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Callable[[], Any]:
        """A function that updates copies of parameters and states in place, in plain PyTensor."""
        rule, recipe = self._rule, self._function.plan.recipe
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
        for i, leaf in enumerate(self._partition.leaves):
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

    def _install_update(self) -> None:
        group, recipe = self._group, self._function.plan.recipe
        self._resident = recipe.jax and group.member.resident
        variables = [v for unit in self._partition.units for v in unit.everything]
        if self._resident:
            variables = [v for v, _ in self._rule.updates]
        for v in variables:
            check_whole(v)
        share_variables(group, variables, values=False)
        distribute_in(group, (self._function,))
        flat: Any
        install: type[InstallUpdate] | type[InstallResidentUpdate]
        if self._resident:
            flat, install = self._rule.recipe(recipe.mode, recipe.config), InstallResidentUpdate
        else:
            members = group.member.communicator.home.size
            shapes = shapes_of(self._partition)
            how = recipe.mode, recipe.config, self._compress
            flat, install = lay_out(self._partition, shapes, members, *how), InstallUpdate
        registry = group.member.variables

        def numbered(obj: Any) -> int | None:
            entry = registry.find(obj) if isinstance(obj, SharedVariable) else None
            return None if entry is None else entry.number

        packed = serialization.pack_graph(flat, numbered) if group.size > 1 else b""
        group.run(install(packed, self._number), "train", master_input=flat)
        self._update = group.member.updates[self._number]
        self._measurements.use()
        if self._resident:
            self._entries = [(e, None) for e in self._update.entries]
        else:
            self._entries = self._update.entries
        self._shapes = [np.shape(e.storage[0]) for e, _ in self._entries]
        self._member = group.member

    def _settle(self) -> None:
        """See to it that each parameter and state is one array, with the master's value."""
        changed = [
            (entry, view, shape)
            for (entry, view), shape in zip(self._entries, self._shapes, strict=True)
            if entry.is_set or entry.differs or (view is not None and entry.view is not view)
        ]
        if changed:
            self._join(changed)

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
            self._group.run(join or MakeNodeShared(numbers, self._number, compared), "train")
            trim()  # the values that the arrays have replaced


def _step_of(
    group: Group, jax: bool, average: bool, partials: tuple[tuple[int, bool], ...], call: Call
) -> Step:
    """The command of a step, from that of its outputs and gradients."""
    kind = ResidentStep if jax and group.member.resident else Step
    return kind(call, call.function, average, partials)


def make_train_function(
    loss: Any,
    params: Sequence[SharedVariable],
    x: Any,
    y: Any = None,
    update_rule: Callable[..., Any] | None = None,
    *args: Any,
    outputs: Sequence[Any] = (),
    bcast_inputs: Sequence[Any] = (),
    updates: Any = None,
    givens: Any = None,
    clip: Clip | None = None,
    reduction: str | None = None,
    compress: str | None = None,
    mode: Any = None,
    name: str | None = None,
    **kwargs: Any,
) -> TrainFunction:
    """Make a function that trains: a call is one step of all members, in one round.

    Parameters
    ----------
    loss : 0-d variable
        Its reduction over rows is proved from the graph: means, sums, both with penalties, masked
        and weighted means. Without a proof, gradients are averaged, weighted by rows, with a
        warning.
    params : list of SharedVariable
    x, y : variable or list of them; y may be None
        The scattered inputs.
    update_rule : callable
        One of `extensions.updates`, or any rule ``rule(loss_or_grads, params, ...) -> updates``.
    *args, **kwargs
        Arguments of the rule. Shared scalars, and 0-d inputs in `bcast_inputs`, can change from
        step to step.
    outputs : list
        More outputs, as for `synk.function`.
    bcast_inputs, updates, givens, mode, name
        As for `synk.function`; `updates` change other variables (running means, generators).
    clip : callable, optional
        Takes the list of reduced gradients and returns the list that the rule gets.
    reduction : {"avg", "sum"}, optional
        How the gradient over all rows follows from those of the members; replaces the proof.
    compress : {"fp16", "bf16"}, optional
        Sends gradients between nodes in 16 bits (half precision, or float32's range with 8 bits of
        precision), and adds them up in their own dtype. Gradients between GPUs are not compressed;
        a warning says so.

    Returns
    -------
    TrainFunction
        ``train(x_data, y_data, batch=None, num_slices=1) -> loss``

    Raises
    ------
    InputError, InputTypeError
        Arguments are wrong or contradict each other, or the rule draws random numbers.

    Notes
    -----
    Parameters and states have one value on each node. If the rule is elementwise, each member
    updates its chunk of one flat vector; else each member updates some of the parameters. Memory
    beside the values: each member's gradients, at most twice.

    Examples
    --------
    >>> import numpy as np, pytensor, pytensor.tensor as pt, synkhronos as synk
    >>> from synkhronos.extensions import make_train_function, updates
    >>> _ = synk.fork(2)
    >>> x, y = pt.vector("x", dtype="float64"), pt.vector("y", dtype="float64")
    >>> w = pytensor.shared(np.zeros(()), name="w")
    >>> loss = ((w * x - y) ** 2).mean()
    >>> train = make_train_function(
    ...     loss, [w], x, y, updates.sgd, learning_rate=0.1, mode="FAST_COMPILE"
    ... )
    >>> data = np.array([1.0, 2.0, 3.0])
    >>> for _ in range(20):
    ...     value = train(data, 2 * data)
    >>> bool(abs(w.get_value() - 2) < 1e-6)
    True
    >>> synk.close()
    """
    group = current("make_train_function")
    if compress not in (None, *FORMATS):
        raise InputError(f'compress={shown(compress)}: use "fp16", "bf16" or None')
    inputs = _inputs(x, y)
    check_loss(loss)
    [loss, *outputs], changes = substituted([loss, *outputs], updates, givens)
    kept = trainable(params)
    with telling(f"proving {name or f'function at {place_of_user()}'}"):
        goal = objective(loss, kept, [v for v in inputs if v.type.ndim], reduction, group.infer)
        if not goal.average and has_collectives([loss]):
            raise InputError(
                f"the loss {loss} contains statistics over the rows of all members, but is not a "
                "mean over these rows. Make it a mean, or use batch normalisation that is not "
                "synchronised"
            )
        rule, moving = _applied(goal, kept, update_rule, args, kwargs, clip, givens)
        changed = {c.shared for c in changes}.union(v for v, _ in rule.updates)
        changes += [c for c in moving if c.shared not in changed]
        partition = partition_rule(list(rule.updates), kept, rule.places)
        rule = replace(rule, leaves=partition.leaves)
        op = "avg" if goal.average else "sum"
        computed = [(v, "avg" if average else "sum") for v, average, _ in goal.partials]
        computed += [(g, op) for g in goal.gradients]
        reported = (loss, op) if goal.factor is None else loss
        plan_ = plan(
            group.number(),
            inputs,
            [reported, *outputs, *computed],
            list(bcast_inputs),
            changes,
            None,
            None,
            group.infer,
            {"mode": mode, "name": name, "on_unused_input": "ignore"},
        )
    _check_used(plan_.inputs, [loss, *_variables(outputs)], partition)
    member = group.member
    if compress and plan_.recipe.jax and member.resident and member.communicator.nodes > 1:
        warn(
            f"compress={compress!r} has no effect here: NCCL moves gradients from GPU to GPU and "
            "adds them up in their own dtype",
            UnusedWarning,
        )
    return TrainFunction(
        group, plan_, 1 + len(outputs), kept, goal, partition, rule, compress, _aliases(x, y)
    )


def make_train_function_pytensor(
    loss: Any,
    params: Sequence[SharedVariable],
    x: Any,
    y: Any = None,
    update_rule: Callable[..., Any] | None = None,
    *args: Any,
    outputs: Sequence[Any] = (),
    bcast_inputs: Sequence[Any] = (),
    updates: Any = None,
    givens: Any = None,
    clip: Clip | None = None,
    reduction: str | None = None,
    mode: Any = None,
    name: str | None = None,
    **kwargs: Any,
) -> Callable[..., Any]:
    """Make a training function of plain PyTensor, in one process.

    The parameters are those of `make_train_function`, without `compress`; `reduction` and the
    reductions of outputs and `updates` are ignored. ``train`` has no `num_slices` and `timeout`.

    Returns
    -------
    callable
        ``train(x_data, y_data, batch=None) -> loss``, or a list of it and the outputs.

    Notes
    -----
    Cost: the plain function, and for `batch` a copy of the rows.

    Examples
    --------
    >>> import numpy as np, pytensor, pytensor.tensor as pt
    >>> from synkhronos.extensions import make_train_function_pytensor, updates
    >>> x, w = pt.vector("x", dtype="float64"), pytensor.shared(np.zeros(()), name="w")
    >>> train = make_train_function_pytensor(
    ...     ((w - x) ** 2).mean(), [w], x, None, updates.sgd, 0.5, mode="FAST_COMPILE"
    ... )
    >>> _ = train(np.array([1.0, 3.0])); w.get_value()
    array(2.)
    """
    del reduction
    inputs = _inputs(x, y)
    check_loss(loss)
    [loss, *outputs], others = substituted([loss, *outputs], updates, givens)
    kept = trainable(params)
    found = _clipped(clip, gradients(loss, params, kept))
    changes, _ = _rule_updates(update_rule, found, kept, args, kwargs, givens)
    wanted = [loss, *_variables(outputs)]
    function = pytensor.function(
        [*inputs, *bcast_inputs],
        wanted[0] if len(wanted) == 1 else wanted,
        updates=[*changes.items(), *((c.shared, c.new) for c in others)],
        mode=mode,
        name=name,
    )
    n, aliases = len(inputs), _aliases(x, y)

    def train(*data: Any, batch: Any = None, **named: Any) -> Any:
        """Make one step."""
        data, named, batch = _arranged(data, named, batch, n + len(bcast_inputs), aliases)
        values = [np.asarray(v) if isinstance(v, Data) else v for v in data]
        if batch is not None:
            rows = select(batch, len(values[0]))
            picked = rows.rows if isinstance(rows, Picks) else slice(rows.start, rows.stop)
            values[:n] = [v[picked] for v in values[:n]]
        return function(*values, **named)

    return train


make_train_function_theano = make_train_function_pytensor


def _inputs(x: Any, y: Any) -> list[Any]:
    def listed(given: Any) -> list[Any]:
        return list(given) if isinstance(given, list | tuple) else [given]

    found = list(itertools.chain(listed(x), [] if y is None else listed(y)))
    for each in found:
        if not isinstance(each, Variable):
            raise InputTypeError(
                f"make_train_function: x and y are variables of the graph, found {shown(each)}: "
                "pass arrays when you call the training function"
            )
    return found


def _aliases(x: Any, y: Any) -> list[str]:
    """The names that x and y had in 2017, if each is one variable."""
    single = [
        given for given in (x, y) if not isinstance(given, list | tuple) and given is not None
    ]
    return ["x_data", "y_data"][: len(single)] if len(single) == len(_inputs(x, y)) else []


def _arranged(
    args: tuple[Any, ...], kwargs: dict[str, Any], batch: Any, n: int, aliases: Sequence[str]
) -> tuple[tuple[Any, ...], dict[str, Any], Any]:
    """Inputs by position where `aliases` name them, and the batch where it follows n inputs."""
    args, kwargs = _by_position(args, kwargs, aliases)
    if len(args) == n + 1 and batch is None:
        *args_, batch = args
        args = tuple(args_)
    return args, kwargs, batch


def _by_position(
    args: tuple[Any, ...], kwargs: dict[str, Any], aliases: Sequence[str]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Inputs by position where `aliases` name them."""
    for i, name in enumerate(aliases):
        if len(args) == i and name in kwargs:
            kwargs = dict(kwargs)
            args = (*args, kwargs.pop(name))
    return args, kwargs


def _variables(outputs: Sequence[Any]) -> list[Any]:
    return [o[0] if isinstance(o, tuple) else o for o in outputs]


def _clipped(clip: Clip | None, found: list[Any]) -> list[Any]:
    if clip is None:
        return found
    made = list(clip(found))
    if len(made) != len(found):
        raise InputError(f"clip must return {len(found)} gradients, returned {len(made)}")
    return [fitted_gradient(g, m) for g, m in zip(found, made, strict=True)]


def _rule_updates(
    rule: Callable[..., Any] | None,
    found: list[Any],
    params: Sequence[SharedVariable],
    args: Sequence[Any],
    kwargs: dict[str, Any],
    givens: Any,
) -> tuple[dict[Any, Any], list[Change]]:
    """The rule's updates, and the default updates of what they depend on."""
    if rule is None:
        raise InputTypeError(
            "no update rule was given: pass one, such as synkhronos.extensions.updates.adam"
        )
    made = apply_rule(rule, found, params, args, kwargs)
    new, moving = substituted(list(made.values()), None, givens)
    return dict(zip(made, new, strict=True)), moving


def _applied(
    goal: Objective,
    params: Sequence[SharedVariable],
    rule: Callable[..., Any] | None,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    clip: Clip | None,
    givens: Any,
) -> tuple[UpdateRule, list[Change]]:
    places: list[Any] = [p.type(f"gradient of {p.name}") for p in params]
    whole = _clipped(clip, goal.full_gradients(places))
    updates, moving = _rule_updates(rule, whole, params, args, kwargs, givens)
    return UpdateRule(tuple(places), tuple(updates.items()), tuple(params)), moving


def _check_used(inputs: Sequence[Variable], outputs: Sequence[Any], partition: Partition) -> None:
    used = {*ancestors(list(outputs)), *partition.leaves}
    for v in inputs:
        if v not in used:
            raise InputError(f"input {v} is used neither by an output nor by the update rule")
