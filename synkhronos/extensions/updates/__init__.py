"""Update rules, each split into two functions: one for the gradient, one for the update.

The first writes the gradient into one flat vector. The members then reduce this vector. The second
makes the update from it, the same in each member's replica::

    grad_updates, param_updates, grad_shared = updates.adam(loss, params)
    f_grad = synk.function([x, y], loss, updates=grad_updates)
    f_update = synk.function([], updates=param_updates)
    f_grad(x_data, y_data)
    synk.all_reduce(grad_shared, "avg")     # weights=rows of each member, if they differ
    f_update()

`sgd`, `momentum`, `nesterov_momentum`, `adagrad`, `rmsprop`, `adadelta`, `adam`, `adamax`,
`amsgrad` and `nadam` have this form. The attribute `rule` of each is its serial form, which returns
plain updates. `split` makes the two functions' updates from any rule of Lasagne's signature.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, cast

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Variable
from pytensor.tensor.variable import TensorVariable

import synkhronos.extensions.updates._rules as _rules
from synkhronos._checks import check_options, shown
from synkhronos._compiling.graph_types import Variables
from synkhronos._errors import InputError, InputTypeError
from synkhronos.extensions.updates._momentum import apply_momentum
from synkhronos.extensions.updates._momentum import (
    apply_nesterov_momentum as apply_nesterov_momentum,
)
from synkhronos.extensions.updates._norms import norm_constraint, total_norm_constraint
from synkhronos.extensions.updates._slots import (
    Hyper,
    Updates,
    fitted,
    fitted_gradient,
    gradients,
    label,
    names_of,
    pairs,
    shape_of,
    trainable,
    zeros_like,
)

__all__ = [
    "Split",
    "adadelta",
    "adagrad",
    "adam",
    "adamax",
    "amsgrad",
    "apply_momentum",
    "apply_nesterov_momentum",
    "flat_unflat_grads",
    "flatten_vars",
    "momentum",
    "nadam",
    "nesterov_momentum",
    "nonflat_grads",
    "norm_constraint",
    "rmsprop",
    "rule_of",
    "sgd",
    "sgd_nonflat",
    "split",
    "total_norm_constraint",
    "unflatten_vars",
    "vars_flat_size",
]

Pairs = list[tuple[SharedVariable, Variable]]
Clip = Callable[[list[Variable]], Sequence[Variable]]
type OneOrMore = TensorVariable | list[TensorVariable]  # more if there are several dtypes


class _Updates(NamedTuple):
    grad_updates: Pairs
    param_updates: Pairs
    grad_shared: object


class Split(_Updates):
    """The updates of the two functions of a rule, and what is reduced between them.

    A function that returns one is also a rule: ``lambda loss, params: adam(loss, params, 0.01)``.

    Attributes
    ----------
    grad_updates : list of (shared, gradient)
        They write the gradient of a member's rows into `grad_shared`.
    param_updates : list of (shared, new value)
        New values of parameters and of the rule's states, made from `grad_shared`.
    grad_shared : shared vector, or list of them
        All gradients one after the other, in the order of the parameters; a list with one vector
        for each dtype where there are several.
    """

    _undivided: Callable[[], Updates] | None = None  # makes the same updates in one piece


class SplitRule(Protocol):
    """A rule that returns a Split; `rule` is the same in Lasagne's form."""

    __name__: str
    rule: Callable[..., object]

    def __call__(
        self,
        loss: Variables,
        params: Sequence[SharedVariable],
        *args: object,
        clip: Clip | None = None,
        **kwargs: object,
    ) -> Split:
        """Make the two lists of updates, as `split` does."""
        ...


def split(
    rule: Callable[..., object],
    loss: Variables,
    params: Sequence[SharedVariable],
    *args: object,
    clip: Clip | None = None,
    **kwargs: object,
) -> Split:
    """Split an update rule into gradient and update.

    Parameters
    ----------
    rule : callable
        ``rule(loss_or_grads, params, *args, **kwargs)``. It returns new values by shared variable,
        as a dict or a list of pairs. Rules of this module, of PyMC (`pymc.variational.updates`) and
        of Lasagne do so; you can write your own.
    loss : 0-d variable, or list of variables
        The loss, or its gradients in the order of `params`.
    params : list of shared variables
        Those of integers and bools have no gradient and are left as they are, which the log says.
    *args, **kwargs
        Of the rule.
    clip : callable, optional
        Takes the list of gradients, reduced, and returns the list that the rule gets, such as
        ``functools.partial(total_norm_constraint, max_norm=5)``.

    Returns
    -------
    Split
        ``(grad_updates, param_updates, grad_shared)``. The vector has the length of all parameters
        as they are now.

    Raises
    ------
    InputTypeError
        What are no shared variables, no 0-d loss, or a rule that changes a variable's type.
    InputError
        A parameter listed twice; a wrong number of gradients.

    Notes
    -----
    Cost: one more copy of the gradients, in `grad_shared`, so that a step reduces one vector.
    A parameter that the loss does not depend on has a gradient of zero, which the log says.

    Examples
    --------
    >>> import numpy as np, pytensor, pytensor.tensor as pt, synkhronos as synk
    >>> from synkhronos.extensions import updates
    >>> _ = synk.fork(2)
    >>> x, w = pt.vector("x"), pytensor.shared(np.float64(0.0), name="w")
    >>> loss = ((x - w) ** 2).mean() / 2
    >>> grad_updates, param_updates, grad_shared = updates.split(updates.sgd, loss, [w], 1.0)
    >>> f_grad = synk.function([x], loss, updates=grad_updates, mode="FAST_COMPILE")
    >>> f_update = synk.function([], updates=param_updates, mode="FAST_COMPILE")
    >>> _ = f_grad(np.array([1.0, 2.0, 3.0, 6.0]))
    >>> synk.all_reduce(grad_shared, "avg")
    >>> _ = f_update(); w.get_value()
    array(3.)
    >>> synk.close()
    """
    kept = trainable(params)
    found = gradients(loss, params, kept)
    shareds, flats, views = _flattened(found, kept)

    def of(grads: list[Variable]) -> Updates:
        given = clipped(clip, grads, kept)
        return apply_rule(rule, given, kept, args, kwargs)

    param_updates = list(of(views).items())
    grad_updates = list(zip(shareds, flats, strict=True))
    made = Split(grad_updates, param_updates, shareds[0] if len(shareds) == 1 else shareds)
    made._undivided = functools.partial(of, found)
    return made


def apply_rule(
    rule: Callable[..., object],
    loss_or_grads: Variables,
    params: Sequence[SharedVariable],
    args: Sequence[object],
    kwargs: Mapping[str, object],
) -> Updates:
    """The updates of a rule in either form; arguments that it does not take are refused.

    ``lr`` is the name of ``learning_rate`` in 2017.
    """
    rule, options = rule_of(rule), dict(kwargs)
    while isinstance(rule, functools.partial) and not rule.args:
        options = {**rule.keywords, **options}
        rule = rule.func
    name = f"the rule {_name(rule)}"
    signature = inspect.signature(rule)
    known = signature.parameters
    if "lr" in options.keys() - known.keys() and "learning_rate" in known.keys() - options:
        options["learning_rate"] = options.pop("lr")
    check_options(name, options, rule)
    try:
        signature.bind(loss_or_grads, params, *args, **options)
    except TypeError as exc:
        raise InputTypeError(f"{name}: {exc}; it takes {', '.join(known)}") from None
    made = rule(loss_or_grads, params, *args, **options)
    if isinstance(made, Split) and made._undivided is not None:
        made = made._undivided()
    if callable(made) and not isinstance(made, Mapping):
        raise InputTypeError(
            f"{name} returns a function, not updates: it makes a rule when it is called with a "
            "learning rate. Pass that rule, such as adam(1e-3) of pytensor-ml"
        )
    return pairs(made, name)


def rule_of(rule: Callable[..., object]) -> Callable[..., object]:
    """The form ``rule(loss_or_grads, params, ...)`` of a rule in either form.

    Partial applications of rules (`functools.partial`) are rules too.

    >>> from synkhronos.extensions import updates
    >>> updates.rule_of(updates.adam) is updates.adam.rule
    True
    """
    if isinstance(rule, functools.partial):
        return functools.partial(rule_of(rule.func), *rule.args, **rule.keywords)
    if not callable(rule):
        raise InputTypeError(
            f"{shown(rule)} is not an update rule: give a callable (loss_or_grads, params, ...) "
            "that returns updates, such as synkhronos.extensions.updates.adam"
        )
    return cast("Callable[..., Any]", getattr(rule, "rule", rule))


def _name(rule: object) -> str:
    return (
        _name(rule.func)
        if isinstance(rule, functools.partial)
        else (getattr(rule, "__name__", None) or repr(rule))
    )


def clipped(
    clip: Clip | None, grads: Sequence[Variable], like: Sequence[Variable]
) -> list[Variable]:
    """The gradients that a clip makes of others, with the types of those that are `like` them.

    Raises
    ------
    InputError
        The clip is no function, such as the bound itself, or makes another number of gradients.
    """
    if clip is None:
        return list(grads)
    if not callable(clip):
        raise InputTypeError(
            f"clip={shown(clip)}: give a function that takes the list of gradients and returns "
            "another one, such as functools.partial(updates.total_norm_constraint, max_norm=1.0)"
        )
    found = clip(list(grads))
    if not isinstance(found, list | tuple) or len(found) != len(grads):
        raise InputError(
            f"clip must return a list of {len(grads)} gradients, one for each parameter; found "
            f"{shown(found)}"
        )
    return [fitted_gradient(p, g) for p, g in zip(like, found, strict=True)]


# The rules that return a Split.


def _as_split(rule: Callable[..., object]) -> SplitRule:
    """The split form of a rule, with documentation of its own."""

    @functools.wraps(rule)
    def split_rule(
        loss: Variables | None = None,
        params: Sequence[SharedVariable] | None = None,
        *args: object,
        clip: Clip | None = None,
        **kwargs: object,
    ) -> Split:
        if loss is None or params is None:
            name = f"updates.{rule.__name__}"
            raise InputTypeError(
                f"{name} takes a loss and parameters first. A training function takes the rule and "
                f"its arguments apart: make_train_function(loss, params, x, y, {name}, "
                "learning_rate=0.1)"
            )
        return split(rule, loss, params, *args, clip=clip, **kwargs)

    signature = inspect.signature(rule)
    first, *rest = signature.parameters.values()
    last = inspect.Parameter("clip", inspect.Parameter.KEYWORD_ONLY, default=None)
    made = cast("Any", split_rule)
    made.__signature__ = signature.replace(
        parameters=[first.replace(name="loss"), *rest, last], return_annotation=Split
    )
    made.__module__ = __name__
    made.__doc__ = _doc_of_split(rule)
    made.rule = rule
    return cast("SplitRule", made)


_CLIP = """clip : callable, optional
    Takes the list of reduced gradients; returns the list that the rule gets.
lr : 0-d, optional
    The name of `learning_rate` in 2017.
"""
_RETURNS = """Returns
-------
Split
    ``(grad_updates, param_updates, grad_shared)``; see `split`.
"""
_EXAMPLE = """Examples
--------
>>> import numpy as np, pytensor
>>> from synkhronos.extensions import updates
>>> w = pytensor.shared(np.array([1.0, -2.0]), name="w")
>>> found = updates.{name}((w**2).sum(), [w], learning_rate=0.5)
>>> found.grad_shared.get_value().shape
(2,)
"""


def _doc_of_split(rule: Callable[..., object]) -> str:
    """The rule's documentation with another first argument, result and example."""
    text = inspect.getdoc(rule) or ""
    sections = re.split(r"\n(?=\w+\n-{3,}\n)", text)
    for i, section in enumerate(sections):
        if section.startswith("Parameters"):
            sections[i] = section.replace("loss_or_grads", "loss") + _CLIP
        elif section.startswith("Returns"):
            sections[i] = _RETURNS
        elif section.startswith("Examples"):
            sections[i] = _EXAMPLE.format(name=rule.__name__)
    return "\n".join(sections)


sgd = _as_split(_rules.sgd)
momentum = _as_split(_rules.momentum)
nesterov_momentum = _as_split(_rules.nesterov_momentum)
adagrad = _as_split(_rules.adagrad)
rmsprop = _as_split(_rules.rmsprop)
adadelta = _as_split(_rules.adadelta)
adam = _as_split(_rules.adam)
adamax = _as_split(_rules.adamax)
amsgrad = _as_split(_rules.amsgrad)
nadam = _as_split(_rules.nadam)


def sgd_nonflat(
    loss: Variables,
    params: Sequence[SharedVariable],
    learning_rate: Hyper,
    clip: Clip | None = None,
) -> Split:
    """Gradient descent with one shared gradient for each parameter, as the original has it.

    Parameters
    ----------
    loss : 0-d loss, or list of gradients
    params : list of shared variables
    learning_rate : 0-d
    clip : callable, optional
        As in `split`.

    Returns
    -------
    Split
        `grad_shared` is the list of gradients, each of its parameter's type and shape.

    Notes
    -----
    Cost: no state. `synk.all_reduce` takes the list in one round, as it does the flat vector.

    Examples
    --------
    >>> import numpy as np, pytensor
    >>> from synkhronos.extensions import updates
    >>> w = pytensor.shared(np.zeros((2, 3)), name="w")
    >>> updates.sgd_nonflat(w.sum(), [w], 0.1).grad_shared
    [w.grad]
    """
    kept = trainable(params)
    shareds, grads = _nonflat(loss, params, kept)
    views = clipped(clip, shareds, kept)
    param_updates = list(_rules.sgd(views, kept, learning_rate).items())
    return Split(list(zip(shareds, grads, strict=True)), param_updates, shareds)


cast("Any", sgd_nonflat).rule = _rules.sgd


# The original's helpers.


def flatten_vars(variables: Sequence[Variable]) -> TensorVariable:
    """Put variables behind one another in one vector.

    Parameters
    ----------
    variables : list of tensors
        Of one dtype, any shapes.

    Returns
    -------
    vector
        A symbolic copy.

    Raises
    ------
    InputTypeError
        Several dtypes: one vector would change some.

    Examples
    --------
    >>> import numpy as np, pytensor
    >>> a, b = pytensor.shared(np.float64(1.0)), pytensor.shared(np.full((1, 2), 2.0))
    >>> flatten_vars([a, b]).eval().tolist()
    [1.0, 2.0, 2.0]

    Notes
    -----
    Cost: one copy.
    """
    found = [pt.as_tensor_variable(v) for v in variables]
    dtypes = {v.type.dtype for v in found}
    if len(dtypes) != 1:
        raise InputTypeError(
            f"flatten_vars: {len(found)} variables of dtypes {sorted(dtypes)}; one vector holds "
            "those of one dtype"
        )
    return pt.concatenate([v.flatten() for v in found])


def unflatten_vars(flat_var: object, variables: Sequence[SharedVariable]) -> list[Any]:
    """Read a vector as variables behind one another.

    Parameters
    ----------
    flat_var : vector
    variables : list of shared variables
        Their shapes as they are now, and their order, say where each lies.

    Returns
    -------
    list of variables
        Views of the vector, of its dtype.

    Raises
    ------
    InputError
        A shared vector of another length than the variables have together.

    Examples
    --------
    >>> import numpy as np, pytensor
    >>> a, b = pytensor.shared(np.float64(1.0)), pytensor.shared(np.full((1, 2), 2.0))
    >>> [v.eval().tolist() for v in unflatten_vars(pytensor.shared(np.arange(3.0)), [a, b])]
    [0.0, [[1.0, 2.0]]]

    Notes
    -----
    Cost: none, the views are not copies.
    """
    if isinstance(flat_var, SharedVariable):
        length, wanted = shape_of(flat_var), (vars_flat_size(variables),)
        if length != wanted:
            raise InputError(
                f"unflatten_vars: {label(flat_var)} has shape {length}, the variables need {wanted}"
            )
    found, start = [], 0
    for variable in variables:
        found.append(_view(flat_var, start, variable))
        start += vars_flat_size([variable])
    return found


def vars_flat_size(variables: Sequence[SharedVariable]) -> int:
    """The number of elements of all variables together, as they are now.

    Examples
    --------
    >>> import numpy as np, pytensor
    >>> vars_flat_size([pytensor.shared(np.zeros((2, 3))), pytensor.shared(1.0)])
    7

    Notes
    -----
    Cost: none.
    """
    return sum(int(np.prod(shape_of(v), dtype=np.int64)) for v in variables)


def flat_unflat_grads(
    loss: Variables, params: Sequence[SharedVariable]
) -> tuple[OneOrMore, OneOrMore, list[TensorVariable]]:
    """The gradient of `split`, for your own updates.

    Parameters
    ----------
    loss : 0-d loss, or list of gradients
    params : list of shared variables

    Returns
    -------
    grad_shared : shared vector, or list with one for each dtype
    flat_grad : vector, or list of them
        The gradient, to be put into `grad_shared`.
    unflat_grads : list of variables
        Views of `grad_shared`, one for each parameter.

    Examples
    --------
    >>> import numpy as np, pytensor
    >>> w = pytensor.shared(np.zeros((2, 3)), name="w")
    >>> grad_shared, flat_grad, (view,) = flat_unflat_grads(w.sum(), [w])
    >>> grad_shared.get_value().shape, flat_grad.ndim, view.type.shape
    ((6,), 1, (2, 3))

    Notes
    -----
    Cost: one copy of the gradients.
    """
    kept = trainable(params)
    shareds, flats, views = _flattened(gradients(loss, params, kept), kept)
    return (shareds[0], flats[0], views) if len(shareds) == 1 else (shareds, flats, views)


def nonflat_grads(
    loss: Variables, params: Sequence[SharedVariable]
) -> tuple[list[TensorVariable], list[TensorVariable]]:
    """Gradients, and a shared variable for each.

    Parameters
    ----------
    loss : 0-d loss, or list of gradients
    params : list of shared variables

    Returns
    -------
    grads_shared : list of shared variables
        Zero, of the parameters' types and shapes.
    grads : list of variables
        The gradients, to be put into them.

    Examples
    --------
    >>> import numpy as np, pytensor
    >>> w = pytensor.shared(np.zeros((2, 3)), name="w")
    >>> grads_shared, grads = nonflat_grads(w.sum(), [w])
    >>> grads_shared[0].get_value().shape
    (2, 3)

    Notes
    -----
    Cost: one copy of the gradients.
    """
    return _nonflat(loss, params, trainable(params))


def _nonflat(
    loss: Variables, params: Sequence[SharedVariable], kept: Sequence[SharedVariable]
) -> tuple[list[Any], list[Any]]:
    grads = gradients(loss, params, kept)
    names = names_of(kept)
    return [zeros_like(p, f"{n}.grad") for p, n in zip(kept, names, strict=True)], grads


def _flattened(
    grads: Sequence[Variable], params: Sequence[SharedVariable]
) -> tuple[list[Any], list[Any], list[Any]]:
    """A shared vector and its new value for each dtype, and a view for each parameter."""
    by_dtype: dict[str, list[int]] = {}
    for i, param in enumerate(params):
        by_dtype.setdefault(param.type.dtype, []).append(i)
    shareds, flats, views = [], [], [None] * len(params)
    for dtype, members in by_dtype.items():
        mine = [params[i] for i in members]
        name = "flat_grad" if len(by_dtype) == 1 else f"flat_grad.{dtype}"
        zeros = np.zeros(vars_flat_size(mine), dtype)
        # PyTensor takes a vector known to have one element for a type of its own
        known = (1,) if len(zeros) == 1 else None
        flat = pytensor.shared(zeros, name=name, shape=known)
        for i, view in zip(members, unflatten_vars(flat, mine), strict=True):
            views[i] = view
        shareds.append(flat)
        flats.append(fitted(flat, flatten_vars([grads[i] for i in members]), "the gradient"))
    return shareds, flats, views


def _view(flat: Any, start: int, variable: Any) -> Any:
    """Part of a vector in the shape of a variable."""
    shape = shape_of(variable)
    if not shape:
        return flat[start]
    piece = flat[start : start + vars_flat_size([variable])]
    return piece if variable.type.shape == (None,) else pt.reshape(piece, shape)
