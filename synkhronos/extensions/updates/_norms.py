"""Bounds on norms, of gradients or of new values: pure graphs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.tensor.variable import TensorVariable

from synkhronos._checks import shown
from synkhronos._errors import InputError, InputTypeError
from synkhronos.extensions.updates._slots import Hyper, hypers, in_dtype


def norm_constraint(
    tensor_var: TensorVariable,
    max_norm: Hyper,
    norm_axes: Sequence[int] | None = None,
    epsilon: float = 0.0,
) -> TensorVariable:
    """Scale down the vectors of a tensor whose norms are too large; the others stay as they are.

    Parameters
    ----------
    tensor_var : variable
        A new value of a parameter, a gradient, or any tensor of floats.
    max_norm : 0-d
        Not negative.
    norm_axes : sequence of int, optional
        The axes of a vector. Unless given: axis 0 of a matrix (the incoming weights of a unit), all
        axes but the first of a tensor of 3 to 5 dimensions (a filter of a convolution).
    epsilon : float
        Added to a norm above the bound before the division: 1e-7 in Lasagne and PyMC, which also
        shrink the vectors below the bound.

    Returns
    -------
    variable
        ``tensor_var`` where ``norm <= max_norm``, else ``tensor_var * (max_norm / (norm +
        epsilon))``; of the tensor's dtype.

    Raises
    ------
    InputError
        Axes that the tensor does not have or that must be named; a negative bound.

    Notes
    -----
    Cost: two passes over the tensor. float16 is squared in float32; sums are float64.

    References
    ----------
    Srebro and Shraibman, Rank, Trace-Norm and Max-Norm, COLT 2005; as a rule after each step:
    Hinton et al., arXiv:1207.0580.

    Examples
    --------
    >>> import numpy as np, pytensor.tensor as pt
    >>> w = pt.as_tensor(np.array([[3.0, 0.3], [4.0, 0.4]]))
    >>> norm_constraint(w, 1.0).eval().round(3).tolist()
    [[0.6, 0.3], [0.8, 0.4]]
    """
    tensor = _floats(tensor_var, "norm_constraint")
    axes = _norm_axes(tensor.type.ndim, norm_axes)
    norms = _root(_squares(tensor, axes), [tensor])
    return tensor * pt.cast(_shrinkage(norms, max_norm, epsilon), tensor.type.dtype)


def total_norm_constraint(
    tensor_vars: Sequence[object], max_norm: Hyper, epsilon: float = 0.0, return_norm: bool = False
) -> Any:
    """Scale down tensors, all by one factor, if their norm as one vector is too large.

    A norm up to the bound leaves every bit as it is.

    Parameters
    ----------
    tensor_vars : list of variables
        Gradients, say; dtypes may differ.
    max_norm : 0-d
        Not negative.
    epsilon : float
        Added to a norm above the bound before the division: 1e-6 in torch, 1e-7 in Lasagne.
    return_norm : bool
        Also return the norm as it was.

    Returns
    -------
    list of variables, or (list of variables, 0-d norm)
        Each of its own dtype; the norm of the widest, at least float32.

    Raises
    ------
    InputError
        A negative bound; no tensors.

    Notes
    -----
    Cost: two passes over all tensors. The norm is the root of the sum of full sums of squares, one
    for each tensor.

    References
    ----------
    Pascanu, Mikolov and Bengio, On the difficulty of training recurrent neural networks, ICML
    2013, algorithm 1.

    Examples
    --------
    As a clip, between the reduction and the update:

    >>> import functools, numpy as np, pytensor
    >>> from synkhronos.extensions import updates
    >>> w = pytensor.shared(np.array([3.0, 4.0]), name="w")
    >>> bound = functools.partial(total_norm_constraint, max_norm=1.0)
    >>> split = updates.sgd((w**2).sum() / 2, [w], learning_rate=1.0, clip=bound)
    >>> split.grad_shared.set_value(split.grad_updates[0][1].eval())
    >>> dict(split.param_updates)[w].eval().round(3).tolist()
    [2.4, 3.2]
    """
    if not isinstance(tensor_vars, list | tuple) or not tensor_vars:
        raise InputTypeError(
            f"total_norm_constraint: give a list of tensors; found {shown(tensor_vars)}"
        )
    tensors = [_floats(t, "total_norm_constraint") for t in tensor_vars]
    norm = _root(pt.add(*[_squares(t, None) for t in tensors]), tensors)
    factor = _shrinkage(norm, max_norm, epsilon)
    scaled = [t * pt.cast(factor, t.type.dtype) for t in tensors]
    return (scaled, norm) if return_norm else scaled


def _floats(tensor: Any, what: str) -> Any:
    found = pt.as_tensor_variable(tensor)
    if np.dtype(found.type.dtype).kind != "f":
        raise InputTypeError(f"{what}: {found} is {found.type}; norms are taken of floats")
    return found


def _squares(tensor: TensorVariable, axes: object) -> object:
    """Sums of squares in float64, the dtype in which PyTensor sums; JAX would keep the input's."""
    wide = pt.cast(tensor, "float32") if tensor.type.dtype == "float16" else tensor
    return pt.sum(pt.sqr(wide), axis=axes, keepdims=axes is not None, dtype="float64")


def _root(squares: object, tensors: Sequence[Any]) -> Any:
    """Norms, in the widest of the tensors' dtypes; float16 might not hold them."""
    dtype = np.result_type(np.float32, *(t.type.dtype for t in tensors))
    return pt.cast(pt.sqrt(squares), str(dtype))


def _shrinkage(norm: Any, max_norm: Hyper, epsilon: float) -> Any:
    (bound,) = hypers(max_norm=max_norm)
    if isinstance(bound, float) and not bound >= 0:
        raise InputError(f"max_norm={max_norm}: a norm is not negative; give 0 or more")
    dtype = norm.type.dtype
    most = in_dtype(bound, dtype)
    divisor = norm + in_dtype(float(epsilon), dtype) if epsilon else norm
    # a norm of zero is never above the bound, so the quotient by it is not used
    return pt.switch(pt.le(norm, most), in_dtype(1.0, dtype), most / divisor)


def _norm_axes(ndim: int, asked: Sequence[int] | None) -> tuple[int, ...]:
    if asked is None:
        if ndim == 2:
            return (0,)
        if 3 <= ndim <= 5:
            return tuple(range(1, ndim))
        raise InputError(
            f"norm_constraint: which axes of a tensor with {ndim} dimensions make a vector? "
            "Name them: norm_axes=(0,)"
        )
    axes = tuple(asked)
    if any(not -ndim <= a < ndim for a in axes) or len({a % ndim for a in axes}) < len(axes):
        raise InputError(f"norm_axes={axes}: the tensor has {ndim} dimensions, each named once")
    return axes
