"""The parameters, gradients, states and numbers of update rules, checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
from numpy.typing import DTypeLike
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Variable
from pytensor.tensor.sharedvar import TensorSharedVariable
from pytensor.tensor.type import DenseTensorType
from pytensor.tensor.variable import TensorVariable

from synkhronos._checks import shown
from synkhronos._compiling.graph_types import Variables
from synkhronos._errors import InputError, InputTypeError, UnusedWarning
from synkhronos._warnings import warn

Updates = dict[SharedVariable, Variable]
Hyper = float | TensorVariable  # a number or a 0-d variable


@dataclass(frozen=True)
class Slot:
    """A parameter, its gradient, and the value from which its step starts."""

    param: TensorSharedVariable
    grad: Variable  # with the coupled decay
    start: object  # the parameter less the decoupled decay
    name: str
    taken: set[str]  # the names that states have

    def num(self, value: Hyper) -> TensorVariable:
        """A number in the parameter's dtype."""
        return in_dtype(value, self.param.type.dtype)

    def above_zero(self, value: Hyper) -> object:
        """A number in the parameter's dtype that stays above zero: 1e-8 is 0 in float16."""
        dtype = np.dtype(self.param.type.dtype)
        if isinstance(value, float) and value > 0 and dtype.type(value) == 0:
            value = float(np.finfo(dtype).tiny)
        return self.num(value)

    def state(self, what: str) -> TensorSharedVariable:
        """A state of the parameter's type, zero."""
        name = _unused(f"{self.name}.{what}", self.taken)
        return zeros_like(self.param, name)

    def mixed(self, weight: Hyper, old: object, new: object) -> TensorVariable:
        """``weight * old + (1 - weight) * new``."""
        return self.num(weight) * old + self.num(1.0 - weight) * new

    def running_mean(
        self, updates: Updates, what: str, weight: Hyper, value: object
    ) -> TensorVariable:
        """The new value of a state that holds a running mean."""
        state = self.state(what)
        updates[state] = found = self.mixed(weight, state, value)
        return found


def slots_of(
    loss_or_grads: Variables,
    params: Sequence[SharedVariable],
    learning_rate: Hyper,
    weight_decay: Hyper,
    decoupled: bool,
) -> list[Slot]:
    (decay,) = hypers(weight_decay=weight_decay)
    kept = trainable(params)
    grads = gradients(loss_or_grads, params, kept)
    taken: set[str] = set()
    found = []
    for param, grad, name in zip(kept, grads, names_of(kept), strict=True):
        start = param
        if not (isinstance(decay, float) and decay == 0):
            rate = in_dtype(decay, param.type.dtype)
            if decoupled:
                start = param - in_dtype(learning_rate, param.type.dtype) * rate * param
            else:
                grad = grad + rate * param
        found.append(Slot(param, grad, start, name, taken))
    return found


def clock(rule: str, slots: Sequence[Slot]) -> tuple[TensorSharedVariable, TensorVariable]:
    """The count of steps of all parameters, and its new value.

    A float, so that what is made of it is of no wider dtype; float16 would stop at 2048.
    """
    dtype = np.result_type(np.float32, *(s.param.type.dtype for s in slots))
    count = pytensor.shared(np.zeros((), dtype), name=f"{rule}.t")
    return count, count + in_dtype(1.0, dtype)


def weight_so_far(beta: Hyper, t: TensorVariable) -> TensorVariable:
    """``1 - beta**t``: the sum of the weights of a running mean from zero after t steps.

    By way of logarithms, which keeps the digits that 1 - 0.999 loses in float32.
    """
    if isinstance(beta, float):
        with np.errstate(divide="ignore", invalid="ignore"):
            logarithm: float | TensorVariable = float(np.log(beta))
    else:
        logarithm = pt.log(beta)
    return -pt.expm1(t * in_dtype(logarithm, t.type.dtype))


def hypers(**given: object) -> list[Hyper]:
    """Hyper-parameters as floats or 0-d variables."""
    return [_hyper(name, value) for name, value in given.items()]


def _hyper(name: str, value: object) -> Hyper:
    try:
        found = pt.as_tensor_variable(value) if isinstance(value, Variable) else np.asarray(value)
        kind = np.dtype(found.dtype).kind
    except (TypeError, ValueError, NotImplementedError):
        kind = "O"
    if kind not in "fiub":
        raise InputTypeError(
            f"{name}={shown(value)}: give a number, a 0-d shared variable or a 0-d input of the "
            "call"
        )
    if found.ndim:
        raise InputError(f"{name}={shown(value)} has {found.ndim} dimensions: give a 0-d value")
    return found if isinstance(found, Variable) else float(found)


def in_dtype(value: Hyper, dtype: DTypeLike) -> TensorVariable:
    """A number or 0-d variable as a 0-d variable of that dtype."""
    if isinstance(value, Variable):
        return pt.cast(value, str(dtype))
    return pt.constant(np.asarray(value, dtype))


# Arguments of rules, checked.


def trainable(params: object, what: str = "params") -> list[TensorSharedVariable]:
    """The parameters that have gradients: those of floats. A warning names the others.

    >>> import numpy as np, pytensor
    >>> trainable([pytensor.shared(np.zeros(2), name="w")])
    [w]
    """
    if not isinstance(params, list | tuple):
        raise InputTypeError(
            f"{what}: give a list of shared variables; found {type(params).__name__} "
            f"{shown(params)}"
        )
    for i, p in enumerate(params):
        if not isinstance(p, SharedVariable) or not isinstance(p.type, DenseTensorType):
            raise InputTypeError(
                f"{what}: number {i} is {shown(p)} ({getattr(p, 'type', type(p).__name__)}), and "
                "only shared tensors can be updated"
            )
        if np.dtype(p.type.dtype).kind == "c":
            raise InputTypeError(f"{what}: {label(p)} is {p.type}; rules are for real parameters")
    twice = sorted({label(p) for p in params if sum(p is q for q in params) > 1})
    if twice:
        raise InputError(f"{what}: {twice} are listed twice; list each parameter once")
    kept = [p for p in params if is_float(p)]
    if not kept:
        raise InputError(f"{what}: none of the {len(params)} variables is of floats")
    if len(kept) < len(params):
        left = [f"{label(p)} ({p.type.dtype})" for p in params if not is_float(p)]
        warn(
            f"{what}: {', '.join(left)} have no gradient and are left as they are; leave them out "
            "of the list",
            UnusedWarning,
        )
    return kept


def gradients(
    loss_or_grads: Variables, params: Sequence[SharedVariable], kept: Sequence[SharedVariable]
) -> list[Any]:
    """The gradients of the parameters kept, each of its parameter's type.

    Parameters
    ----------
    loss_or_grads : 0-d variable, or list of variables
        A list has one for each of `params`.
    params, kept : lists of shared variables
        As the user gave them, and those of them that `trainable` keeps.

    >>> import numpy as np, pytensor
    >>> w = pytensor.shared(np.array([3.0]))
    >>> gradients((w**2).sum(), [w], [w])[0].eval()
    array([6.])
    """
    if isinstance(loss_or_grads, list | tuple):
        if len(loss_or_grads) != len(params):
            raise InputError(
                f"{len(loss_or_grads)} gradients for {len(params)} parameters: give one for each"
            )
        pairs_ = zip(params, loss_or_grads, strict=True)
        return [fitted_gradient(p, g) for p, g in pairs_ if is_float(p)]
    check_loss(loss_or_grads)
    assert isinstance(loss_or_grads, Variable)
    found: Any = pytensor.grad(
        loss_or_grads, list(kept), disconnected_inputs="ignore", return_disconnected="none"
    )
    apart = [label(p) for p, g in zip(kept, found, strict=True) if g is None]
    if apart:
        warn(
            f"the loss does not depend on {', '.join(apart)}: their gradients are zero; leave them "
            "out of the list unless decay shall move them",
            UnusedWarning,
        )
    return [
        pt.zeros_like(p) if g is None else fitted_gradient(p, g)
        for p, g in zip(kept, found, strict=True)
    ]


def check_loss(loss: object) -> None:
    """Raise if a loss has no gradient: it is not a 0-d variable of floats."""
    kind = getattr(loss, "type", None)
    if not isinstance(kind, DenseTensorType) or np.dtype(kind.dtype).kind != "f" or kind.ndim:
        raise InputTypeError(
            f"the loss is {kind or shown(loss)}: give a 0-d variable of floats (reduce it by mean "
            "or sum), or a list of gradients"
        )


def fitted_gradient(param: Variable, grad: Variable) -> Variable:
    """A gradient in its parameter's dtype and static shape."""
    try:
        found = pt.as_tensor_variable(grad)
        if np.dtype(found.type.dtype).kind == "c":
            raise TypeError("a complex gradient")
        return param.type.filter_variable(pt.cast(found, param.type.dtype), allow_convert=True)
    except (TypeError, NotImplementedError) as exc:
        raise InputTypeError(
            f"the gradient of {label(param)} ({param.type}) is {shown(grad)}, "
            f"{getattr(grad, 'type', type(grad).__name__)}: give a variable of its shape ({exc})"
        ) from None


def pairs(updates: Any, what: str) -> Updates:
    """Updates as a dict in their order, each new value of its variable's type.

    Raises
    ------
    InputTypeError
        What are no updates at all, or a value of another type: an upcast, say.
    InputError
        Two new values for one variable.
    """
    try:
        listed = list(updates.items()) if isinstance(updates, Mapping) else list(updates)
        listed = [(target, new) for target, new in listed]
    except (TypeError, ValueError):
        listed = [(updates, None)]
    found: Updates = {}
    for target, new in listed:
        if not isinstance(target, SharedVariable):
            raise InputTypeError(
                f"{what}: updates must be a dict, or a list of pairs, of shared variables and "
                f"their new values; found {shown(target)}"
            )
        if target in found:
            raise InputError(f"{what} gives {label(target)} two new values; it can take one")
        found[target] = fitted(target, new, what)
    return found


def fitted(target: SharedVariable, new: object, what: str) -> Variable:
    """A new value that the variable can take.

    Raises
    ------
    InputTypeError
        Another dtype, number of dimensions, or pattern of dimensions known to have length 1.
    """
    try:
        found = target.type.filter_variable(new, allow_convert=True)
        if target.type.in_same_class(found.type):
            return found
    except (TypeError, ValueError, NotImplementedError):
        pass
    raise InputTypeError(
        f"{what} gives {label(target)}, which is {target.type}, a new value of type "
        f"{getattr(new, 'type', type(new).__name__)}: cast it, or what it is made of "
        "(hyper-parameters, floatX), to the variable's type"
    )


def zeros_like(variable: SharedVariable, name: str) -> TensorSharedVariable:
    """A shared variable of the same type and shape, zero."""
    zeros = np.zeros(shape_of(variable), variable.type.dtype)
    found: TensorSharedVariable = pytensor.shared(zeros, name=name, shape=variable.type.shape)
    return found


def shape_of(variable: SharedVariable) -> tuple[int, ...]:
    """The shape that the variable's value has now."""
    return tuple(np.shape(variable.get_value(borrow=True)))


def is_float(variable: Variable) -> bool:
    return np.dtype(getattr(variable.type, "dtype", "O")).kind == "f"


def label(variable: Variable) -> str:
    return variable.name or f"<unnamed {variable.type}>"


def names_of(params: Sequence[SharedVariable]) -> list[str]:
    """A name for each parameter, all different: its own, unless an earlier one has it."""
    given = [p.name for p in params]
    own = [n if n and given.index(n) == i else None for i, n in enumerate(given)]
    taken = {n for n in own if n}
    return [
        own[i] or _unused(given[i] or f"param{i}", taken)  # the users' names have priority
        for i in range(len(params))
    ]


def _unused(name: str, taken: set[str]) -> str:
    """The name, numbered if it is taken; taken from now on."""
    found, n = name, 1
    while found in taken:
        n += 1
        found = f"{name}_{n}"
    taken.add(found)
    return found
