"""Training functions: gradient, exact reduction and update of all members in one round.

Parameters and the update rule's states have one value on each node, in shared memory. Each member
updates its own chunk of it.
"""

# These rules hold here:
#
# * All that can be refused is refused here, in the master, before any member knows of the function.
#   Members install it at the first step.
# * The order: the graphs end at the inputs; givens and default updates are replaced; the reduction
#   of the loss is proved; it is differentiated; gradients are clipped; the rule is applied and
#   partitioned; the members' function is planned.
# * The rule gets placeholders in place of gradients. So its graph is that of the update alone, and
#   `partition_rule` can read it. What it depends on besides is a scalar that each step sends.
# * Collectives may be in a loss that is a mean over rows, and in no rule: a member updates only its
#   chunk, by gradients that are reduced already.
# * Nothing of the user's is changed here: an `In` is copied before its variable is replaced.
# * The ways to train share one `TrainPlan`. They differ by the class that is returned: `_ALONE` has
#   it by the way of the rule.

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytensor
from pytensor.compile.io import In
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors
from pytensor.tensor.random.type import RandomType

from synkhronos._api.data import Data
from synkhronos._backends.jax import runs_jax
from synkhronos._checks import check_flag, shown
from synkhronos._compiling.graph_types import ModeLike, Output, Variables
from synkhronos._compiling.progress import telling
from synkhronos._engine.function_arguments import Change, roots, substituted
from synkhronos._engine.function_plan import plan
from synkhronos._engine.graph_collectives import has_collectives
from synkhronos._engine.group import Group, current
from synkhronos._errors import InputError, InputTypeError, UnusedWarning
from synkhronos._plan.rows import Picks, select
from synkhronos._proofs.reductions import Reduction
from synkhronos._warnings import place_of_user, warn
from synkhronos.extensions._apart.free.function import FreeFunction
from synkhronos.extensions._apart.nodes.function import NodesFunction
from synkhronos.extensions._apart.rounds.function import RoundFunction
from synkhronos.extensions._step.exchanges import Exchange, TopK, exchange_of
from synkhronos.extensions._step.function import TrainFunction
from synkhronos.extensions._step.installed_step import TrainPlan, arranged
from synkhronos.extensions._step.listed_inputs import listed_inputs
from synkhronos.extensions._step.objective import Objective, objective
from synkhronos.extensions._step.overlap import check_overlap, telling_plan
from synkhronos.extensions._step.partition import Partition, partition_rule
from synkhronos.extensions._step.resident_recipe import UpdateRule
from synkhronos.extensions._step.training_function import TrainingFunction
from synkhronos.extensions.updates import apply_rule, clipped
from synkhronos.extensions.updates._slots import check_loss, gradients, trainable
from synkhronos.rules import Nodes
from synkhronos.rules._base import Rule, way_of

Clip = Callable[[list[Variable]], Sequence[Variable]]

# The training functions of members that step by themselves, by the way of the rule.
_ALONE = {
    "turns": FreeFunction,
    "gossip": FreeFunction,
    "races": FreeFunction,
    "nodes": NodesFunction,
}


def make_train_function(
    loss: Variable,
    params: Sequence[SharedVariable],
    x: Variables,
    y: Variables | None = None,
    update_rule: Callable[..., object] | None = None,
    *args: object,
    outputs: Sequence[Output] = (),
    bcast_inputs: Sequence[Variable | In] = (),
    updates: object = None,
    givens: object = None,
    clip: Clip | None = None,
    reduction: str | None = None,
    compress: str | None = None,
    exchange: Exchange | None = None,
    overlap: bool = False,
    rule: Rule | None = None,
    mode: ModeLike = None,
    name: str | None = None,
    **kwargs: object,
) -> Any:
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
    reduction : {"avg" (or "mean"), "sum"}, optional
        How the gradient over all rows follows from those of the members; replaces the proof.
    compress : {"fp16", "bf16"}, optional
        The old spelling of ``exchange=HalfPrecision(compress)``, with a warning.
    exchange : TopK or HalfPrecision, optional
        What nodes send of their gradients: the largest elements, and the others later; or all, in
        16 bits. Gradients between GPUs travel whole: there 16 bits have no effect, with a warning,
        and TopK is refused.
    overlap : bool
        Nodes exchange the first gradients while they compute the others, by a process of their own
        on each node. Values stay the same. On one node it has no effect. TopK, `rule` and mode JAX
        are refused.
    rule : Rule, optional
        A rule of `synkhronos.rules`, by which members train apart. Default: they sum gradients in
        each step.

    Returns
    -------
    TrainFunction; RoundFunction, FreeFunction or NodesFunction with a rule
        ``train(x_data, y_data, batch=None, num_slices=1) -> loss``; a FreeFunction refuses such a
        call, and has ``train.start(x_data, y_data, batches, epochs=1) -> Run``.

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
    _check_lists(outputs=outputs, bcast_inputs=bcast_inputs)
    sent = exchange_of(exchange, compress)
    if check_flag("overlap", overlap):
        check_overlap(sent, rule, mode)
    inputs, bcast_inputs, replaced = _roots(_inputs(x, y), bcast_inputs, givens)
    check_loss(loss)
    [loss, *outputs], changes = substituted([loss, *outputs], updates, *replaced)
    kept = trainable(params)
    with telling(f"proving {name or f'function at {place_of_user()}'}"):
        goal = objective(loss, kept, [v for v in inputs if v.type.ndim], reduction, group.infer)
        if not goal.average and has_collectives([loss]):
            raise InputError(
                f"the loss {loss} contains collectives over members (of synk.ops, or synchronised "
                "batch normalisation), but is not a mean over rows: their gradients are for "
                "means. Divide it by the number of rows, or use statistics of each member's rows"
            )
        optimizer, moving = _applied(goal, kept, update_rule, args, kwargs, clip, replaced)
        if has_collectives([new for _, new in optimizer.updates]):
            raise InputError(
                "the update rule or clip= contains collectives over members (synk.ops), but each "
                "member updates only its chunk of the parameters, by gradients that are already "
                "reduced: leave them out, or use them in the loss"
            )
        changed = {c.shared for c in changes}.union(v for v, _ in optimizer.updates)
        changes += [c for c in moving if c.shared not in changed]
        partition = partition_rule(list(optimizer.updates), kept, optimizer.places)
        optimizer = replace(optimizer, leaves=partition.leaves)
        op = "avg" if goal.average else "sum"
        computed = [(v, "avg" if average else "sum") for v, average, _ in goal.partials]
        computed += [(g, op) for g in goal.gradients]
        reported: Output = (loss, op) if goal.factor is None else loss
        options = {"mode": mode, "name": name, "on_unused_input": "ignore"}

        def planned(changes: list[Change], statistics: Sequence[Change]) -> TrainPlan:
            # over slices; each member keeps its own value
            kept_here = [(c.new, c.reduction or Reduction.AVG) for c in statistics]
            function = plan(
                group.inventory.number(),
                inputs,
                [reported, *outputs, *computed, *kept_here],
                bcast_inputs,
                changes,
                None,
                None,
                group.infer,
                group.vectorised,
                dict(options),
            )
            _check_used(function.inputs, [loss, *_variables(outputs)], partition)
            n, given = 1 + len(outputs), _given(x, y)
            return TrainPlan(function, n, tuple(kept), goal, partition, optimizer, sent, *given)

        if rule is not None:
            _check_rule(rule, group, mode, sent)
            if not rule.meets:
                _check_free(rule, group, outputs, loss, partition)
                reported = (loss, None)
            return _training_apart(group, rule, changes, planned)
        made = planned(changes, ())
    if overlap and group.member.communicator.nodes > 1:
        first = made.n_outputs + len(goal.partials)
        function, order = telling_plan(made.function, first, len(goal.gradients))
        made = replace(made, function=function, order=order)
    if made.function.recipe.jax and group.member.resident:
        _check_resident(sent, group)
    return TrainFunction(group, made)


def _check_resident(sent: Exchange | None, group: Group) -> None:
    """Refuse an exchange that members which compute on GPUs cannot have, or say that it is idle."""
    if isinstance(sent, TopK):
        raise InputError(
            f"make_train_function: exchange={sent}: members compute on GPUs, and NCCL adds up "
            "whole gradients there: leave exchange= out"
        )
    if sent is not None and group.member.communicator.nodes > 1:
        warn(
            f"exchange={sent} has no effect here: NCCL moves gradients from GPU to GPU and "
            "adds them up in their own dtype",
            UnusedWarning,
        )


def make_train_function_pytensor(
    loss: Variable,
    params: Sequence[SharedVariable],
    x: Variables,
    y: Variables | None = None,
    update_rule: Callable[..., object] | None = None,
    *args: object,
    outputs: Sequence[Output] = (),
    bcast_inputs: Sequence[Variable | In] = (),
    updates: object = None,
    givens: object = None,
    clip: Clip | None = None,
    reduction: str | None = None,
    mode: ModeLike = None,
    name: str | None = None,
    **kwargs: object,
) -> Callable[..., Any]:
    """Make a training function of plain PyTensor, in one process.

    The parameters are those of `make_train_function`, without `compress`, `exchange` and `overlap`;
    `reduction` and the reductions of outputs and `updates` are ignored. ``train`` has no
    `num_slices` and `timeout`.

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
    _check_lists(outputs=outputs, bcast_inputs=bcast_inputs)
    inputs, bcast_inputs, replaced = _roots(_inputs(x, y), bcast_inputs, givens)
    check_loss(loss)
    [loss, *outputs], others = substituted([loss, *outputs], updates, *replaced)
    kept = trainable(params)
    found = gradients(loss, params, kept)
    found = clipped(clip, found, found)
    changes, _ = _rule_updates(update_rule, found, kept, args, kwargs, replaced)
    wanted = [loss, *_variables(outputs)]
    given: list[Any] = [*inputs, *bcast_inputs]
    function = pytensor.function(
        given,
        wanted[0] if len(wanted) == 1 else wanted,
        updates=[*changes.items(), *((c.shared, c.new) for c in others)],
        mode=mode,
        name=name,
    )
    n, aliases = len(inputs), _aliases(x, y)

    def train(*data: Any, batch: Any = None, **named: object) -> Any:
        """Make one step."""
        data, named, batch = arranged(data, named, batch, n + len(bcast_inputs), aliases)
        values = [v.readable if isinstance(v, Data) else v for v in data]
        if batch is not None:
            rows = select(batch, len(values[0]))
            picked = rows.rows if isinstance(rows, Picks) else slice(rows.start, rows.stop)
            values[:n] = [np.asarray(v)[picked] for v in values[:n]]  # a list, or a table
        return function(*values, **named)

    return train


make_train_function_theano = make_train_function_pytensor


_inputs = functools.partial(listed_inputs, "make_train_function")


def _check_lists(**given: object) -> None:
    for name, value in given.items():
        if not isinstance(value, list | tuple):
            raise InputTypeError(f"make_train_function: {name}={shown(value)}: give a list of them")


def _given(x: Variables, y: Variables | None) -> tuple[tuple[Variable, ...], tuple[str, ...]]:
    """The inputs with rows, and the names that x and y had in 2017."""
    return tuple(v for v in _inputs(x, y) if v.type.ndim), tuple(_aliases(x, y))


Replaced = tuple[object, list[Variable], list[Variable]]  # givens, inputs, and their roots


def _roots(
    inputs: Sequence[Variable], bcast_inputs: Sequence[Variable | In], givens: object
) -> tuple[list[Variable], list[Variable | In], Replaced]:
    """The roots of the inputs, and of those to broadcast; and what is replaced in the graphs."""
    whole = [copy.copy(v) if isinstance(v, In) else v for v in bcast_inputs]
    given = [*inputs, *(v.variable if isinstance(v, In) else v for v in whole)]
    places = roots([v for v in given if isinstance(v, Variable)])
    if len(places) < len(given):
        return list(inputs), whole, (givens, [], [])  # `plan` names what is not a variable
    for i, place in enumerate(places[len(inputs) :]):
        held = whole[i]
        if isinstance(held, In):
            held.variable = place
        else:
            whole[i] = place
    return places[: len(inputs)], whole, (givens, given, places)


def _aliases(x: Variables, y: Variables | None) -> list[str]:
    """The names that x and y had in 2017, if each is one variable."""
    given = [v for v in (x, y) if v is not None]
    return ["x_data", "y_data"][: len(given)] if all(isinstance(v, Variable) for v in given) else []


def _variables(outputs: Sequence[Output]) -> list[Variable]:
    return [o[0] if isinstance(o, tuple) else o for o in outputs]


def _rule_updates(
    rule: Callable[..., object] | None,
    found: list[Variable],
    params: Sequence[SharedVariable],
    args: Sequence[object],
    kwargs: dict[str, object],
    replaced: Replaced,
) -> tuple[dict[SharedVariable, Variable], list[Change]]:
    """The rule's updates, and the default updates of what they depend on."""
    if rule is None:
        raise InputTypeError(
            "no update rule was given: pass one, such as synkhronos.extensions.updates.adam"
        )
    made = apply_rule(rule, found, params, args, kwargs)
    new, moving = substituted(list(made.values()), None, *replaced)
    return dict(zip(made, new, strict=True)), moving


def _applied(
    goal: Objective,
    params: Sequence[SharedVariable],
    rule: Callable[..., object] | None,
    args: Sequence[object],
    kwargs: dict[str, object],
    clip: Clip | None,
    replaced: Replaced,
) -> tuple[UpdateRule, list[Change]]:
    places: list[Any] = [p.type(f"gradient of {p.name}") for p in params]
    whole = goal.full_gradients(places)
    whole = clipped(clip, whole, whole)
    updates, moving = _rule_updates(rule, whole, params, args, kwargs, replaced)
    return UpdateRule(tuple(places), tuple(updates.items()), tuple(params)), moving


def _training_apart(
    group: Group,
    rule: Any,
    changes: Sequence[Change],
    planned: Callable[[list[Change], Sequence[Change]], TrainPlan],
) -> TrainingFunction:
    """The training function of a rule; `planned` plans its updates, and what members compute."""
    streams = [c for c in changes if isinstance(c.shared.type, RandomType)]
    statistics = [c for c in changes if not isinstance(c.shared.type, RandomType)]
    _check_averaged(statistics, rule)
    made, variables = planned(streams, statistics), [c.shared for c in statistics]
    if not rule.meets:
        return _ALONE[rule.way](group, made, rule, variables)
    warm = None
    if rule.warmup:
        everywhere = planned([*streams, *(_of_all(c) for c in statistics)], ())
        warm = TrainFunction(group, everywhere)
    return RoundFunction(group, made, rule, variables, warm)


def _check_rule(rule: Rule, group: Group, mode: ModeLike, exchange: Exchange | None) -> None:
    if isinstance(rule, type) and issubclass(rule, Rule):
        raise InputTypeError(
            f"make_train_function: rule={rule.__name__} is a class: call it, as in "
            f"rules.{rule.__name__}()"
        )
    if not isinstance(rule, Rule):
        raise InputTypeError(
            f"make_train_function: rule={shown(rule)} is not a rule of synkhronos.rules; the "
            "optimizer is update_rule"
        )
    if exchange is not None:
        raise InputError(
            f"make_train_function: exchange={exchange} is for gradients, and with {rule} members "
            "exchange none: leave it out"
        )
    if not rule.meets and group.member.resident and runs_jax(mode):
        raise InputError(
            f"make_train_function: {rule} trains in the host's memory so far, and these members "
            "compute on GPUs: use a round rule, such as rules.Average(period), or leave rule= out"
        )


def _check_nodes(rule: Nodes) -> None:
    if rule.between.policy != "keep" or rule.between.warmup:
        raise InputError(
            f"make_train_function: {rule}: between nodes there is neither state= nor warmup="
        )


def _check_averaged(statistics: Sequence[Change], rule: Rule) -> None:
    for c in statistics:
        if c.scope == "all" and c.reduction is not Reduction.AVG:
            raise InputError(
                f"updates of {c.shared}: with {rule} each member has its own value, and a meeting "
                f'takes the mean, so it cannot be reduced by {c.reduction}: use "avg", or leave '
                "rule= out"
            )


def _check_free(
    rule: Any, group: Group, outputs: Sequence[Output], loss: Variable, partition: Partition
) -> None:
    if outputs:
        raise InputError(f"make_train_function: with {rule} there are no outputs beside the loss")
    if has_collectives([loss]):
        raise InputError(
            f"make_train_function: the loss {loss} contains collectives over members (of synk.ops, "
            f"or synchronised batch normalisation), and members never meet with {rule}: use "
            "values of each member's rows"
        )
    inside = rule
    if rule.way == "nodes":
        _check_nodes(rule)
        inside = rule.inside
    elif group.member.communicator.nodes > 1:
        raise InputError(
            f"make_train_function: {rule} is for the members of one node, and these are on "
            f"{group.member.communicator.nodes}: use a round rule, "
            "or rules.Nodes"
        )
    if way_of(inside) == "races" and (partition.whole_updates or partition.levels):
        raise InputError(
            "make_train_function: Hogwild() needs an optimizer that works element by element, and "
            "this one needs whole parameters or norms"
        )


def _of_all(change: Change) -> Change:
    """The same update with one value in all members, as after a meeting."""
    return replace(change, reduction=change.reduction or Reduction.AVG, named=True, scope="all")


def _check_used(
    inputs: Sequence[Variable], outputs: Sequence[Variable], partition: Partition
) -> None:
    used = {*ancestors(list(outputs)), *partition.leaves}
    for v in inputs:
        if v not in used:
            raise InputError(f"input {v} is used neither by an output nor by the update rule")
