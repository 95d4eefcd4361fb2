"""Training functions: gradient, exact reduction and update of all members in one round.

Parameters and the update rule's states have one value on a node, in shared memory; each member
updates its own chunk of it.
"""

from __future__ import annotations

import functools
import itertools
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytensor
from pytensor.compile.mode import Mode
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Variable
from pytensor.graph.replace import clone_replace
from pytensor.graph.traversal import ancestors
from pytensor.tensor.random.type import RandomType

from synkhronos._api.data import Data
from synkhronos._api.group_function import GroupFunction
from synkhronos._engine.commands.call import Call
from synkhronos._engine.compile import Plan, plan
from synkhronos._engine.graph_collectives import has_collectives
from synkhronos._engine.group import Group, current, retried
from synkhronos._engine.member import Member
from synkhronos._engine.shipping import distribute_in, share_variables
from synkhronos._engine.variables import Entry, check_whole, to_send
from synkhronos._errors import InputError, InputTypeError
from synkhronos._host.cores import trim
from synkhronos._plan.rows import Picks, select
from synkhronos._transport import serialization
from synkhronos._transport.communicators.half_precision import FORMATS
from synkhronos.extensions._step.command import PHASES, Clocks, Install, Join, Step, set_scalar
from synkhronos.extensions._step.flat import lay_out, shapes_of
from synkhronos.extensions._step.objective import Objective, objective
from synkhronos.extensions._step.partition import Parting, part
from synkhronos.extensions._step.resident import InstallResident, JoinResident, ResidentStep
from synkhronos.extensions._step.resident_recipe import Whole
from synkhronos.extensions.updates import rule_of
from synkhronos.extensions.updates._slots import fitted_gradient, gradients, pairs, trainable

log = logging.getLogger("synkhronos")

Clip = Callable[[list[Variable]], Sequence[Variable]]


class TrainFunction:
    """A training step of all members; made by `make_train_function`.

    Attributes
    ----------
    params : list of SharedVariable
        The parameters that are trained.
    state : list of SharedVariable
        The update rule's states.
    streams : list of SharedVariable
        The random generators that the loss draws from.

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
        parting: Parting,
        whole: Whole,
        compress: str | None,
    ) -> None:
        self._group = group
        self._goal = goal
        self._compress = compress
        self._parting = parting
        self._rule = whole
        self._member: Member | None = None  # that the update is installed in
        self._entries: list[tuple[Entry, np.ndarray | None]] = []
        self._whole: Any = None
        self._resident = False  # parameters and states lie where each member's JAX computes
        self._update: Any = None
        places = [place for _, _, place in goal.partials]
        self._partials = tuple(
            (parting.leaves.index(place), average)
            for _, average, place in goal.partials
            if place in parting.leaves
        )
        step_of = functools.partial(_step_of, group, plan_.recipe.jax, goal.average, self._partials)
        self._function = GroupFunction(group, plan_, n_outputs, step_of)
        self._number = self._function.number
        for leaf in parting.leaves:
            if not isinstance(leaf, SharedVariable) and leaf not in (*plan_.inputs, *places):
                raise InputError(
                    f"the update rule depends on {leaf}, which is no input of the function: list "
                    "it in bcast_inputs"
                )
        self.params = list(params)
        states = [v for unit in parting.units for v in unit.everything if v not in self.params]
        self.state = [*states, *(v for v, _ in parting.states)]
        self.streams = [s for s in plan_.shareds if isinstance(s.type, RandomType)]

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
        batch : optional
            Rows to use, as for a function.
        num_slices : int or "auto"
            Micro-batches: each member computes its gradient slice by slice.
        timeout : float, optional
            Seconds that other members may keep the master waiting; default: the group's.

        Returns
        -------
        object
            The loss over all rows, before the update; a list of it and the outputs, if there are.

        Raises
        ------
        InputError
            Before anything has moved; also when a parameter's values differ between members.
        WorkerError
            A member raised: nothing has changed if it happened while it computed.
        StateTorn
            An earlier step failed in the middle of its update.

        Notes
        -----
        Cost: one round. Each member writes its gradients once, reads its chunk of everybody's, and
        writes its chunk of parameters and states.
        """
        group = self._group
        with group.lock if timeout is None else group.limited(timeout):
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
        """Compute the gradients of the loss over all rows, without a step.

        Parameters are those of a call.

        Returns
        -------
        list of numpy.ndarray
            One for each of `params`, before clipping.
        """
        kinds = self._function.plan.recipe.reductions
        with self._group.lock:
            call = self._function.make(args, kwargs, batch=batch, num_slices=num_slices)
            every = replace(
                call,
                outputs=call.outputs + call.extra,
                reductions=call.reductions + tuple(kinds[i] for i in call.extra),
                extra=(),
            )
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
        if self._whole is None:
            places = [p.type() for p in self.params]
            self._whole = pytensor.function(
                [*(v for _, _, v in goal.partials), *places, *self._function.plan.inputs],
                goal.of_whole(places),
                mode=Mode(linker="py", optimizer="fast_compile"),
                on_unused_input="ignore",
            )
        typed = [
            np.asarray(value, place.type.dtype)
            for value, (_, _, place) in zip(partials, goal.partials, strict=True)
        ]
        values = [np.asarray(v) if isinstance(v, Data) else v for v in given]
        found: list[np.ndarray] = self._whole(*typed, *reduced, *values)
        return found

    def seconds(self) -> dict[str, list[float]]:
        """Where the time of all steps so far has gone: for each phase, every member's seconds.

        scatter (rows of the inputs), compute (outputs and gradients), copy (gradients that other
        members read), wait (for others), reduce (norms and other totals), update (gradients
        reduced and the update made).
        """
        clocks: Sequence[Sequence[float]] = []
        if self._update is not None:
            clocks = self._update.clocks
            if self._group.alive and self._group.member.communicator.nodes > 1:
                clocks = self._group.run(Clocks(self._number), "seconds")
        return {phase: [float(c[i]) for c in clocks] for i, phase in enumerate(PHASES)}

    def _post_leaves(self, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        """Put the values of the rule's scalars where all members read them."""
        partials = {leaf for leaf, _ in self._partials}
        given: list[Any] = []
        for i, leaf in enumerate(self._parting.leaves):
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
        group, recipe = self._group, self._function.plan.recipe
        self._resident = recipe.jax and group.member.resident
        variables = [v for unit in self._parting.units for v in unit.everything]
        if self._resident:
            variables = [v for v, _ in self._rule.updates]
        for v in variables:
            check_whole(v)
        share_variables(group, variables, values=False)
        distribute_in(group, (self._function,))
        flat: Any
        install: type[Install] | type[InstallResident]
        if self._resident:
            flat, install = self._rule.recipe(recipe.mode, recipe.config), InstallResident
        else:
            members = group.member.communicator.home.size
            shapes = shapes_of(self._parting)
            how = recipe.mode, recipe.config, self._compress
            flat, install = lay_out(self._parting, shapes, members, *how), Install
        registry = group.member.variables

        def numbered(obj: Any) -> int | None:
            entry = registry.find(obj) if isinstance(obj, SharedVariable) else None
            return None if entry is None else entry.number

        packed = serialization.pack_graph(flat, numbered) if group.size > 1 else b""
        group.run(install(packed, self._number), "train", master_input=flat)
        self._update = group.member.updates[self._number]
        if self._resident:
            self._entries = [(e, None) for e in self._update.entries]
        else:
            self._entries = self._update.entries
        self._shapes = [np.shape(e.storage[0]) for e, _ in self._entries]
        self._member = group.member

    def _settle(self) -> None:
        """Let all members have the same value of every parameter and state, in one array."""
        changed = [
            (entry, view, shape)
            for (entry, view), shape in zip(self._entries, self._shapes, strict=True)
            if entry.is_set or entry.differs or (view is not None and entry.view is not view)
        ]
        if changed:
            self._join(changed)

    def _join(self, changed: Sequence[tuple[Entry, np.ndarray | None, tuple[int, ...]]]) -> None:
        """Send the master's values where they cannot be written into the members' array here."""
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
            join = JoinResident(numbers, compared) if self._resident else None
            self._group.run(join or Join(numbers, self._number, compared), "train")
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
    """Make a function that trains: one call is one step of all members, in one round.

    Parameters
    ----------
    loss : 0-d variable
        Its reduction over rows is proved from the graph: means, sums, both with penalties, masked
        and weighted means. Where that cannot be done, gradients are averaged, weighted by rows,
        with a warning.
    params : list of SharedVariable
    x, y : variable or list of them; y may be None
        The scattered inputs.
    update_rule : callable
        One of `extensions.updates`, or any rule ``rule(loss_or_grads, params, ...) -> updates``.
    *args, **kwargs
        Of the rule. Shared scalars, and 0-d inputs listed in `bcast_inputs`, can change from step
        to step.
    outputs : list
        More outputs, as for `synk.function`.
    bcast_inputs, updates, givens, mode, name
        As for `synk.function`; `updates` are of other variables (running means, generators).
    clip : callable, optional
        Takes the list of reduced gradients and returns the list that the rule gets.
    reduction : {"avg", "sum"}, optional
        How members' gradients make that of the whole, in place of what would be proved.
    compress : {"fp16", "bf16"}, optional
        On several nodes: gradients travel between them in 16 bits (half precision, or float32's
        range with 8 bits of precision), and are added up in their own dtype. Between GPUs they
        travel as they are, and a warning says so.

    Returns
    -------
    TrainFunction
        ``train(x_data, y_data, batch=None, num_slices=1) -> loss``

    Raises
    ------
    InputError, InputTypeError
        The arguments do not go together, or the rule draws random numbers.

    Notes
    -----
    Parameters and states have one value on the node: of a rule that is elementwise, each member
    updates its chunk of one flat vector; the parameters of other rules are shared out whole. Memory
    beside the values: each member's gradients, twice at most.

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
        raise InputError(f'compress={compress!r}: use "fp16", "bf16" or None')
    inputs = _inputs(x, y)
    loss, outputs = _replaced(loss, outputs, givens)
    kept = trainable(params)
    goal = objective(loss, kept, [v for v in inputs if v.type.ndim], reduction, group.infer)
    if not goal.average and has_collectives([loss]):
        raise InputError(
            f"the loss {loss} holds statistics over the rows of all members, and is no mean over "
            "these rows, with which alone such statistics go. Make it one, or use batch "
            "normalisation that is not synchronised"
        )
    whole = _whole(goal, kept, update_rule, args, kwargs, clip)
    parting = part(list(whole.updates), kept, whole.places)
    whole = replace(whole, leaves=parting.leaves)
    op = "avg" if goal.average else "sum"
    computed = [(v, "avg" if average else "sum") for v, average, _ in goal.partials]
    computed += [(g, op) for g in goal.gradients]
    reported = (loss, op) if goal.factor is None else loss
    plan_ = plan(
        group.number(),
        inputs,
        [reported, *outputs, *computed],
        list(bcast_inputs),
        updates,
        None,
        None,
        group.infer,
        {"mode": mode, "name": name, "on_unused_input": "ignore"},
    )
    _check_used(plan_.inputs, [loss, *_variables(outputs)], parting)
    member = group.member
    if compress and plan_.recipe.jax and member.resident and member.communicator.nodes > 1:
        log.warning(
            "compress=%r compresses nothing here: gradients move from GPU to GPU by NCCL, which "
            "adds up what it moves, in their own dtype",
            compress,
        )
    return TrainFunction(group, plan_, 1 + len(outputs), kept, goal, parting, whole, compress)


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
    """Make the serial twin of `make_train_function`: one process, plain PyTensor.

    Parameters are the same but for `compress`; `reduction` has no meaning here. Reductions of
    outputs, and of `updates`, are left out. ``train`` takes no `num_slices` and no `timeout`.

    Returns
    -------
    callable
        ``train(x_data, y_data, batch=None) -> loss``, or a list of it and the outputs.

    Notes
    -----
    Cost: that of the plain function; `batch` copies the rows.

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
    loss, outputs = _replaced(loss, outputs, givens)
    kept = trainable(params)
    found = _clipped(clip, gradients(loss, params, kept))
    changes = _rule_updates(update_rule, found, kept, args, kwargs)
    others = list(updates.items() if isinstance(updates, dict) else updates or [])
    wanted = [loss, *_variables(outputs)]
    function = pytensor.function(
        [*inputs, *bcast_inputs],
        wanted[0] if len(wanted) == 1 else wanted,
        updates=[*changes.items(), *(pair[:2] for pair in others)],
        mode=mode,
        name=name,
    )
    n = len(inputs)

    def train(*data: Any, batch: Any = None, **named: Any) -> Any:
        """Make one step."""
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

    return list(itertools.chain(listed(x), [] if y is None else listed(y)))


def _replaced(loss: Any, outputs: Sequence[Any], givens: Any) -> tuple[Any, list[Any]]:
    """Carry the givens out before gradients are taken."""
    if givens is None:
        return loss, list(outputs)
    found = list(givens.items() if isinstance(givens, dict) else givens)
    first, *rest = clone_replace([loss, *_variables(outputs)], replace=found)
    named = [(v, o[1]) if isinstance(o, tuple) else v for v, o in zip(rest, outputs, strict=True)]
    return first, named


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
) -> dict[Any, Any]:
    if rule is None:
        raise InputTypeError(
            "no update rule was given: pass one, such as synkhronos.extensions.updates.adam"
        )
    serial = rule_of(rule)
    return dict(pairs(serial(found, params, *args, **kwargs), "the update rule"))


def _whole(
    goal: Objective,
    params: Sequence[SharedVariable],
    rule: Callable[..., Any] | None,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    clip: Clip | None,
) -> Whole:
    places: list[Any] = [p.type(f"gradient of {p.name}") for p in params]
    whole = _clipped(clip, goal.of_whole(places))
    updates = _rule_updates(rule, whole, params, args, kwargs)
    return Whole(tuple(places), tuple(updates.items()), tuple(params))


def _check_used(inputs: Sequence[Variable], outputs: Sequence[Any], parting: Parting) -> None:
    used = {*ancestors(list(outputs)), *parting.leaves}
    for v in inputs:
        if v not in used:
            raise InputError(f"input {v} is used by no output and not by the update rule")
