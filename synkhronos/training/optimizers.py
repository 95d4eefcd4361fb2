"""Update rules around other rules: a mean of the parameters, a guard, a rate that follows the step.

Each takes a rule with Lasagne's signature and returns one, so they can be combined. States that
they add are states of the rule, so checkpoints hold them. All stay elementwise: members update
their chunks of one flat vector as before.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.tensor.variable import TensorVariable

from synkhronos._checks import check_number, shown
from synkhronos._compiling.graph_types import Variables
from synkhronos._errors import InputTypeError
from synkhronos.extensions.updates import apply_rule
from synkhronos.extensions.updates._slots import gradients, names_of, trainable

type Params = Sequence[SharedVariable]

Rule = Callable[..., object]

_AVERAGE, _SKIPPED = "synkhronos_average_of", "synkhronos_skipped"


def ema(rule: Rule, decay: float = 0.999) -> Rule:
    """Also keep an exponential moving average of each parameter.

    After each step, ``average = decay * average + (1 - decay) * parameter``. It begins at the
    parameter's value. `averages_of` finds it; `fit` validates with it.

    Parameters
    ----------
    rule : callable
        An update rule, ``rule(loss_or_grads, params, ...) -> updates``.
    decay : float, 0 to 1 (excluded)

    Returns
    -------
    callable
        A rule.

    Raises
    ------
    InputError, InputTypeError
        The decay is out of range, or `rule` is not a rule.

    Notes
    -----
    Cost: one more state of the size of the parameters, read and written in the same loop.

    Source: Polyak and Juditsky, Acceleration of stochastic approximation by averaging, 1992; with
    this decay as in Tarvainen and Valpola, arXiv:1703.01780, equation 1.

    Examples
    --------
    >>> import numpy as np, pytensor
    >>> from synkhronos.extensions import updates
    >>> from synkhronos.training import averages_of, ema
    >>> w = pytensor.shared(np.float64(1.0), name="w")
    >>> found = ema(updates.sgd, 0.5)(w**2, [w], learning_rate=0.5)
    >>> {v.name: float(new.eval()) for v, new in found.items()}
    {'w': 0.0, 'w.average': 0.5}
    >>> averages_of(found)
    {w: w.average}
    """
    _check_rule("ema", rule)
    decay = check_number("ema: decay", decay, 0, below=1)

    def averaged(
        loss_or_grads: Variables, params: Params, *args: object, **kwargs: object
    ) -> object:
        updates = apply_rule(rule, loss_or_grads, params, args, kwargs)
        kept = [p for p in params if p in updates]
        made = {}
        for param, name in zip(kept, names_of(kept), strict=True):
            average = pytensor.shared(
                np.array(param.get_value(borrow=True)),
                name=f"{name}.average",
                shape=param.type.shape,
            )
            setattr(average.tag, _AVERAGE, param)
            share = np.asarray(1 - decay, param.type.dtype)
            made[average] = average + share * (updates[param] - average)
        return {**updates, **made}

    return _named(averaged, rule)


def averages_of(variables: Iterable[SharedVariable]) -> dict[SharedVariable, SharedVariable]:
    """The averages that `ema` keeps, by parameter.

    Parameters
    ----------
    variables : iterable of SharedVariable
        Such as ``train.state``, or the updates of a rule.

    Returns
    -------
    dict
        Empty if there are none. It can be the `givens` of a function.

    Examples
    --------
    >>> averages_of([])
    {}
    """
    return {getattr(v.tag, _AVERAGE): v for v in variables if hasattr(v.tag, _AVERAGE)}


def guarded(rule: Rule) -> Rule:
    """Leave parameters and states as they are in a step whose gradient is not finite.

    Parameters
    ----------
    rule : callable
        An update rule, ``rule(loss_or_grads, params, ...) -> updates``.

    Returns
    -------
    callable
        A rule. One more state counts the steps that were left out.

    Raises
    ------
    InputTypeError
        `rule` is not a rule.

    Notes
    -----
    Cost: one more pass over the gradients, which counts elements that are infinite or not a number,
    and one round of the members to add up these counts.

    Examples
    --------
    >>> import numpy as np, pytensor, pytensor.tensor as pt
    >>> from synkhronos.extensions import updates
    >>> from synkhronos.training import guarded
    >>> w = pytensor.shared(np.float64(0.0), name="w")
    >>> found = guarded(updates.sgd)(pt.log(w), [w], learning_rate=0.5)
    >>> {v.name: float(new.eval()) for v, new in found.items()}
    {'w': 0.0, 'steps skipped': 1.0}
    """
    _check_rule("guarded", rule)

    def held(loss_or_grads: Variables, params: Params, *args: object, **kwargs: object) -> object:
        kept = trainable(params)
        grads = gradients(loss_or_grads, params, kept)
        updates = apply_rule(rule, grads, kept, args, kwargs)
        bad = pt.add(*[pt.sum(pt.or_(pt.isnan(g), pt.isinf(g))) for g in grads])
        whole = pt.eq(bad, 0)
        skipped = pytensor.shared(np.zeros((), np.int64), name="steps skipped")
        setattr(skipped.tag, _SKIPPED, True)
        found = {v: pt.switch(whole, new, v) for v, new in updates.items()}
        return {**found, skipped: skipped + pt.switch(whole, 0, 1).astype("int64")}

    return _named(held, rule)


def skips_in(variables: Iterable[SharedVariable]) -> list[SharedVariable]:
    """The counts of the steps that `guarded` has left out, among these variables."""
    return [v for v in variables if getattr(v.tag, _SKIPPED, False)]


def clipped(rule: Rule, limit: float = 0.01) -> Rule:
    """Keep each parameter between ``-limit`` and ``limit``, after each step.

    Parameters
    ----------
    rule : callable
        An update rule, ``rule(loss_or_grads, params, ...) -> updates``.
    limit : float, above 0

    Returns
    -------
    callable
        A rule.

    Raises
    ------
    InputError, InputTypeError
        The limit is out of range, or `rule` is not a rule.

    Notes
    -----
    Cost: none that can be measured; it stays in the same loop.

    Source: Arjovsky, Chintala and Bottou, Wasserstein GAN, arXiv:1701.07875, algorithm 1.

    Examples
    --------
    >>> import numpy as np, pytensor
    >>> from synkhronos.extensions import updates
    >>> from synkhronos.training import clipped
    >>> w = pytensor.shared(np.float64(0.0), name="w")
    >>> found = clipped(updates.sgd, 0.25)((w - 3) ** 2, [w], learning_rate=0.5)
    >>> float(found[w].eval())
    0.25
    """
    _check_rule("clipped", rule)
    limit = check_number("clipped: limit", limit, above=0)

    def within(loss_or_grads: Variables, params: Params, *args: object, **kwargs: object) -> object:
        updates = apply_rule(rule, loss_or_grads, params, args, kwargs)
        found = dict(updates)
        for p in params:
            if p in updates:
                most = np.asarray(limit, p.type.dtype)
                found[p] = pt.clip(updates[p], -most, most)
        return found

    return _named(within, rule)


def scheduled(rule: Rule, schedule: Callable[[TensorVariable], object], **options: object) -> Rule:
    """Let the learning rate of a rule follow a schedule.

    Parameters
    ----------
    rule : callable
        An update rule with an argument ``learning_rate``, such as `extensions.updates.adam`.
    schedule : callable
        From the step, a 0-d int64 variable that begins at 0, to the rate, a 0-d variable. Those of
        ``pytensor_ml.optim`` are such functions. pytensor-ml's own rules take them by themselves.
    **options
        More arguments of the rule.

    Returns
    -------
    callable
        A rule. One more state counts the steps.

    Raises
    ------
    InputTypeError
        `rule` is not a rule, or `schedule` is not a function.

    Notes
    -----
    Cost: none that can be measured. Nothing is compiled again.

    Examples
    --------
    >>> import numpy as np, pytensor
    >>> from synkhronos.extensions import updates
    >>> from synkhronos.training import scheduled
    >>> w = pytensor.shared(np.float64(1.0), name="w")
    >>> found = scheduled(updates.sgd, lambda step: 0.5 / (1 + step))(w**2, [w])
    >>> {v.name: float(new.eval()) for v, new in found.items()}
    {'w': 0.0, 'step of the schedule': 1.0}
    """
    _check_rule("scheduled", rule)
    if not callable(schedule):
        raise InputTypeError(
            f"scheduled: {shown(schedule)} is not a function from the step to the rate: for a "
            "constant rate, pass it to the rule as learning_rate"
        )

    def timed(loss_or_grads: Variables, params: Params, *args: object, **kwargs: object) -> object:
        step = pytensor.shared(np.zeros((), np.int64), name="step of the schedule")
        given = {"learning_rate": schedule(step), **options, **kwargs}
        updates = apply_rule(rule, loss_or_grads, params, args, given)
        return {**updates, step: step + 1}

    return _named(timed, rule)


def _check_rule(what: str, rule: object) -> None:
    if not callable(rule):
        raise InputTypeError(
            f"{what}: {shown(rule)} is not an update rule: give a callable (loss_or_grads, params, "
            "...) that returns updates, such as synkhronos.extensions.updates.adam"
        )


def _named(made: Rule, rule: Rule) -> Rule:
    """The made rule under the name of the one that it is around."""
    inner = rule.func if isinstance(rule, functools.partial) else rule
    made.__name__ = f"{made.__name__} {getattr(inner, '__name__', repr(inner))}"
    return made
