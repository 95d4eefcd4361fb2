"""Collectives inside graphs: operations that combine the values of all members.

================  ==========================================  ==================================
operation         value in member r                           its gradient gives member r
================  ==========================================  ==================================
`all_reduce`      the members' values, reduced                for "avg": the mean of theirs
`all_gather`      the members' rows, joined                   its rows of the sum of theirs
`reduce_scatter`  part r of the rows, reduced                 theirs, joined
`broadcast`       the value of one member                     if it is that member: their sum
`rank`            r                                           none
================  ==========================================  ==================================

They belong into the graphs of a group's functions and training functions: outputs, updates, losses,
and loops of ``pytensor.scan`` with a number of steps. All members compute the function at once, and
meet at each operation. Members without rows in a call meet the others and contribute nothing. They
get the results, too. In a group of one, and outside of groups, each operation returns its argument,
and `rank` is 0.

The value of a collective is the same in all members, but for `reduce_scatter` and `rank`. So an
update by it keeps one value in all members, and an output of it needs no reduction.

**Gradients.** A training function follows the gradient of the mean of the members' losses, weighted
by rows. Member r has n_r of all n rows and the loss L_r. Its weight is w_r = n_r / n, and the loss
of the group is L = sum_r w_r L_r. Each member differentiates its own loss; the gradient of L is the
mean of the members' gradients, weighted by w.

Let y = sum_s x_s be an `all_reduce`, and g_r the gradient of L_r by y. L changes with x_s by
sum_r w_r g_r. The value that member s returns counts w_s times in the mean. So it has to return
(sum_r w_r g_r) / w_s. This is the sum of the g_r if all members have equally many rows, or if the
function has no scattered inputs. For an "avg", y = sum_s w_s x_s, the same derivation gives the
mean sum_r w_r g_r. In general, with the matrix W of the weights on its diagonal, the gradient
through a linear map M of the members' values is W^-1 M^T W g.

So gradients are exact for a loss that is a mean over rows, and for one that is the same in all
members, since it is its own mean; also for sums of both, such as penalties. Training functions
refuse a loss with collectives that is a sum over rows: divide it by the number of rows. If you take
gradients yourself, reduce them by "avg".
"""

from __future__ import annotations

import pytensor.tensor as pt
from pytensor.graph.op import Op
from pytensor.tensor import TensorLike
from pytensor.tensor.variable import TensorVariable

from synkhronos._checks import check_integer, shown
from synkhronos._compiling.late_imports import import_late
from synkhronos._engine.graph_exchanges import PLAIN, Weighing
from synkhronos._errors import InputError, InputTypeError
from synkhronos._proofs.reductions import COMBINE, Reduction, check_adds, parse
from synkhronos._public import belong_to as _belong_to
from synkhronos.ops import _collectives as _ops

__all__ = ["all_gather", "all_reduce", "broadcast", "rank", "reduce_scatter"]

import_late("ops")


def all_reduce(x: TensorLike, op: str = "sum") -> TensorVariable:
    """Reduce a value over all members; each gets the result.

    Parameters
    ----------
    x : variable
        Of any number of dimensions, and of the same shape in all members.
    op : {"sum", "avg", "max", "min", "prod"}
        "avg" is weighted by the members' rows in the call, and not weighted in a function without
        scattered inputs. Integers and bools are rounded to the nearest.

    Returns
    -------
    variable
        Of the type of `x`.

    Raises
    ------
    InputError
        Another reduction; and in a call, if the members' shapes differ.
    InputTypeError
        Not a dense variable, or the sum of bools.

    Notes
    -----
    Cost: that of the communicator, which `synkhronos.all_reduce` uses too, and of a call of Python.
    The results of both are equal to the last bit.

    Gradient: see `synkhronos.ops`. The gradient of "max" and "min" goes to each member that has
    the extreme value, as PyTensor's own goes to each such element.

    Examples
    --------
    >>> import numpy as np, pytensor.tensor as pt, synkhronos as synk
    >>> _ = synk.fork(2)
    >>> x = pt.vector("x", dtype="float64")
    >>> centred = x - synk.ops.all_reduce(x.mean(), "avg")
    >>> f = synk.function([x], centred, mode="FAST_COMPILE")
    >>> f(np.array([1.0, 2.0, 6.0]))
    array([-2., -1.,  3.])
    >>> synk.close()
    """
    x, reduction = _dense(x, "all_reduce"), _reduction(op, "all_reduce")
    check_adds(reduction, x.type.dtype, f"all_reduce: {x}")
    if reduction is Reduction.AVG:
        return _ops.AllReduce(Reduction.SUM, Weighing(given=True))(x)[0]
    return _ops.AllReduce(reduction)(x)[0]


def all_gather(x: TensorLike) -> TensorVariable:
    """Join the members' values along axis 0, in the order of ranks; each member gets all.

    Parameters
    ----------
    x : variable
        Members may have different numbers of rows, but not in mode JAX. 0-d values become a vector.

    Returns
    -------
    variable
        Of the members' values one after the other. Members without rows in a call give none.

    Raises
    ------
    InputError
        In a call: values that cannot be joined, or unequal ones in mode JAX.

    Notes
    -----
    Cost: each member copies the rows of all.

    Gradient: the member's own rows, see `synkhronos.ops`.

    Examples
    --------
    >>> import numpy as np, pytensor.tensor as pt, synkhronos as synk
    >>> _ = synk.fork(2)
    >>> x = pt.vector("x", dtype="float64")
    >>> distances = abs(x[:, None] - synk.ops.all_gather(x)[None]).max(axis=1)
    >>> f = synk.function([x], (distances, "gather"), mode="FAST_COMPILE")
    >>> f(np.array([1.0, 2.0, 6.0]))
    array([5., 4., 5.])
    >>> synk.close()
    """
    x = _dense(x, "all_gather")
    return _ops.AllGather()(x if x.ndim else x[None])[0]


def reduce_scatter(x: TensorLike, op: str = "sum") -> TensorVariable:
    """Reduce a value over all members; each gets its part of the rows of the result.

    Parameters
    ----------
    x : variable
        With at least one dimension, of the same shape in all members. Its rows are divided as
        those of scattered inputs, see `synkhronos.part_lengths`.
    op : {"sum", "avg", "max", "min", "prod"}
        See `all_reduce`; but an average of integers or bools is a float64.

    Returns
    -------
    variable
        This member's rows; there may be none.

    Raises
    ------
    InputError, InputTypeError
        As `all_reduce` does; or a 0-d variable.

    Notes
    -----
    Cost: each member reduces only its own rows.

    Examples
    --------
    >>> import numpy as np, pytensor.tensor as pt, synkhronos as synk
    >>> _ = synk.fork(2)
    >>> x = pt.vector("x", dtype="float64")
    >>> own = synk.ops.reduce_scatter(x.sum() * pt.arange(1.0, 4.0))
    >>> f = synk.function([x], (own, "gather"), mode="FAST_COMPILE")
    >>> f(np.array([1.0, 2.0]))
    array([3., 6., 9.])
    >>> synk.close()
    """
    x, reduction = _dense(x, "reduce_scatter"), _reduction(op, "reduce_scatter")
    check_adds(reduction, x.type.dtype, f"reduce_scatter: {x}")
    if x.ndim == 0:
        raise InputTypeError(f"reduce_scatter: {x} is 0-d, so it has no rows: use all_reduce")
    if reduction is Reduction.AVG:
        return _ops.ReduceScatter(Reduction.SUM, Weighing(given=True))(x)[0]
    return _ops.ReduceScatter(reduction, PLAIN)(x)[0]


def broadcast(x: TensorLike, root: int = 0) -> TensorVariable:
    """Give all members the value of one of them.

    Parameters
    ----------
    x : variable
    root : int
        The member's rank.

    Returns
    -------
    variable
        Of the type of `x`.

    Raises
    ------
    InputError
        In a call: there is no such member, or it has no rows.

    Notes
    -----
    Cost: a copy of the value in each member.

    Gradient: it goes to that member, zeros to the others.

    Examples
    --------
    >>> import numpy as np, pytensor.tensor as pt, synkhronos as synk
    >>> _ = synk.fork(2)
    >>> x = pt.vector("x", dtype="float64")
    >>> f = synk.function([x], x - synk.ops.broadcast(x[0]), mode="FAST_COMPILE")
    >>> f(np.array([3.0, 4.0, 8.0]))
    array([0., 1., 5.])
    >>> synk.close()
    """
    return _ops.Broadcast(check_integer("broadcast: root", root, 0))(_dense(x, "broadcast"))[0]


def rank() -> TensorVariable:
    """The rank of the member that computes, as a 0-d int64 variable.

    Returns
    -------
    variable
        An output of it is the master's rank. Give it a reduction to see others.

    Notes
    -----
    Cost: none, but the function is compiled for all members to run at once.

    Examples
    --------
    >>> import numpy as np, pytensor.tensor as pt, synkhronos as synk
    >>> _ = synk.fork(2)
    >>> x = pt.vector("x", dtype="float64")
    >>> f = synk.function([x], (x * 0 + synk.ops.rank(), "gather"), mode="FAST_COMPILE")
    >>> f(np.zeros(3))
    array([0., 0., 1.])
    >>> synk.close()
    """
    return _ops.Rank()()[0]


_belong_to(__name__, [all_gather, all_reduce, broadcast, rank, reduce_scatter])


def _dense(x: TensorLike, what: str) -> TensorVariable:
    try:
        found = pt.as_tensor(x)
    except Exception as exc:
        raise InputTypeError(f"{what}: {shown(x)} is not a variable or an array ({exc})") from None
    if hasattr(found.type, "format"):
        raise InputTypeError(f"{what}: {found} is sparse: make it dense")
    return found


def _reduction(op: Op, what: str) -> Reduction:
    found = parse(op, f"{what}: op")
    if found in COMBINE:
        return found
    raise InputError(f'{what}: op={shown(op)}: use "sum", "avg", "max", "min" or "prod"')
