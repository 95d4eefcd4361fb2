"""Collectives: move and combine the values of shared variables between members."""

# These rules hold here:
#
# * A collective posts its command after all of its arguments are checked. Before that go at most
#   functions and variables that members do not know yet (`operands`), and `permute`'s question for
#   shapes.
# * The runner is reserved from the first check to the result. Between the look at what the user has
#   set and the command that carries it, no other thread can set or send anything by this group.
# * What the user has set in the master travels in the same command (`Operands.new`); `broadcast`
#   sends all values anyway. Where members keep values of their own instead, a warning says so.
# * `retried` is around the whole: after a restart, variables are looked up and shipped again.
# * Only `all_reduce` keeps its commands: loops call it, and the channel sends a kept object as a
#   number.
# * `nccl` is accepted as in 2017, and read nowhere.

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable, Sequence
from typing import Any

from synkhronos._api.operands import (
    Variables,
    as_weights,
    check_lengths,
    is_single,
    operands,
    reserved,
    rows_of,
    values_of,
)
from synkhronos._checks import check_integer, is_integer, shown
from synkhronos._engine.commands import collectives as commands
from synkhronos._engine.commands.base import CommandCache
from synkhronos._engine.group import Group, current
from synkhronos._engine.runner import retried
from synkhronos._engine.variables import NewValues, is_array
from synkhronos._errors import DeprecatedWarning, InputError, InputTypeError
from synkhronos._plan.rows import edges, select
from synkhronos._proofs.reductions import Reduction
from synkhronos._warnings import warn


def weights_by_name[**P, R](collective: Callable[P, R]) -> Callable[P, R]:
    """Decorate what takes weights by their name, and still takes them after all other arguments."""
    plain: Any = collective
    others = inspect.unwrap(plain).__code__.co_argcount

    @functools.wraps(collective)
    def named(*args: P.args, **kwargs: P.kwargs) -> R:
        if len(args) == others + 1 and "weights" not in kwargs:
            *before, weights = args
            warn(
                f"{plain.__name__}: weights without their name are an old spelling: write "
                f"weights={shown(weights)}",
                DeprecatedWarning,
            )
            found: R = plain(*before, **kwargs, weights=weights)
            return found
        return collective(*args, **kwargs)

    return named


@retried
def broadcast(
    shared_vars: Variables,
    values: object = None,
    nccl: bool = True,
    *,
    timeout: float | None = None,
) -> None:
    """Give all members the master's value, or the value given.

    Parameters
    ----------
    shared_vars : shared variable, name, or list of them
    values : array or Data, or a list with one for each variable, optional
        None in a list stands for the master's own value.
    nccl : bool
        Accepted as in 2017, without effect: the group chooses the fastest transport.
    timeout : float, optional
        Seconds that other members may keep the master waiting; default: the group's. After that
        `GroupTimeout` names them, and all values are as before.

    Notes
    -----
    Cost: one round for all variables; each member copies the values once.

    Examples
    --------
    >>> import numpy as np, pytensor, synkhronos as synk
    >>> _ = synk.fork(2)
    >>> s = pytensor.shared(np.zeros(2), name="s")
    >>> synk.broadcast(s, np.array([1.0, 2.0])); synk.get_value(1, s).tolist()
    [1.0, 2.0]
    >>> synk.close()
    """
    del nccl
    with reserved("broadcast", timeout):
        found = operands(shared_vars, "broadcast", arrays=False)
        given = None if values is None else values_of(found, values, own=True)
        others = [(e.number, e.storage[0]) for e in found.entries if not is_array(e)]
        new = NewValues((), tuple(others)) if others else None
        command = commands.Broadcast(found.numbers, new=new)
        found.group.runner.run(command, "broadcast", master_input=given)


@retried
def scatter(
    shared_vars: Variables,
    values: object = None,
    batch: object = None,
    *,
    timeout: float | None = None,
) -> None:
    """Divide the rows of values over the members: the rows of a member become its own value.

    Parameters
    ----------
    shared_vars : shared variable, name, or list of them
    values : array or Data, or a list with one for each variable, optional
        Default, and for None in a list: the master's own values. Each value is divided by its own
        number of rows.
    batch : as in a call, optional
        The rows to divide, of each value.
    timeout : float, optional
        As for `broadcast`.

    Notes
    -----
    Cost: one round; each member copies its rows once.

    Examples
    --------
    >>> import numpy as np, pytensor, synkhronos as synk
    >>> _ = synk.fork(2)
    >>> s = pytensor.shared(np.zeros(1), name="s")
    >>> synk.scatter(s, np.arange(5.0)); synk.get_lengths(s)
    [3, 2]
    >>> synk.close()
    """
    with reserved("scatter", timeout):
        found = operands(shared_vars, "scatter")
        if values is None:
            values = None if found.single else [None] * len(found.entries)
        arrays = values_of(found, values, own=True, rows=True)
        flat = [e.label for e, a in zip(found.entries, arrays, strict=True) if not a.ndim]
        if flat:
            raise InputError(f"scatter: the values of {flat} are 0-d, and have no rows to divide")
        chosen = [rows_of(a, select(batch, len(a))) for a in arrays]
        borders = tuple([edges(len(a), found.group.size) for a in chosen])
        for entry, border in zip(found.entries, borders, strict=True):
            check_lengths([entry], "scatter", {b - a for a, b in itertools.pairwise(border)})
        found.run(commands.Scatter, borders, master_input=chosen)


@retried
def gather(
    shared_vars: Variables, nd_up: int = 1, nccl: bool = True, *, timeout: float | None = None
) -> Any:
    """Fetch all members' values to the master.

    Parameters
    ----------
    shared_vars : shared variable, name, or list of them
    nd_up : {0, 1}
        1 stacks the values on a new first axis (equal shapes needed), 0 concatenates them along
        axis 0 (any lengths).
    timeout : float, optional
        As for `broadcast`.

    Returns
    -------
    numpy.ndarray, or list of them
        A list for several variables. The variables are not changed.

    Notes
    -----
    Cost: one round; the master copies all values once.

    Examples
    --------
    >>> import numpy as np, pytensor, synkhronos as synk
    >>> _ = synk.fork(2)
    >>> s = pytensor.shared(np.ones(2), name="s")
    >>> synk.gather(s).shape, synk.gather(s, nd_up=0).shape
    ((2, 2), (4,))
    >>> synk.close()
    """
    del nccl
    with reserved("gather", timeout):
        check_integer("gather: nd_up", nd_up, 0, 1, rest=": 1 stacks, 0 concatenates")
        found = operands(shared_vars, "gather")
        joined = found.run(commands.Gather, "stack" if nd_up else "concatenate")
        return joined[0] if len(joined) == 1 else joined


@retried
def all_gather(shared_vars: Variables, nccl: bool = True, *, timeout: float | None = None) -> None:
    """Give every member all members' values, concatenated along axis 0.

    Parameters
    ----------
    shared_vars : shared variable, name, or list of them
    timeout : float, optional
        As for `broadcast`.

    Examples
    --------
    >>> import numpy as np, pytensor, synkhronos as synk
    >>> _ = synk.fork(2)
    >>> s = pytensor.shared(np.ones(2), name="s")
    >>> synk.all_gather(s); s.get_value().shape
    (4,)
    >>> synk.close()

    Notes
    -----
    Cost: one round; each member copies all values once. 0-d variables cannot hold the result.
    """
    del nccl
    with reserved("all_gather", timeout):
        found = operands(shared_vars, "all_gather")
        flat = [e.label for e in found.entries if e.storage[0].ndim == 0]
        if flat:
            raise InputError(
                f"all_gather: {flat} are 0-d and cannot hold several values; use gather"
            )
        check_lengths(found.entries, "all_gather", None)
        found.run(commands.AllGather)


@weights_by_name
@retried
def reduce(
    shared_vars: Variables,
    op: str = "avg",
    in_place: bool = True,
    nccl: bool = True,
    *,
    weights: Sequence[float] | None = None,
    timeout: float | None = None,
) -> Any:
    """Combine all members' values in the master.

    Parameters
    ----------
    shared_vars : shared variable, name, or list of them
    op : {"avg" (or "mean"), "sum", "prod", "min", "max"}
    in_place : bool
        Set the master's variables to the results. False: return the results.
    weights : sequence of float, optional
        For avg: one for each rank.
    timeout : float, optional
        As for `broadcast`.

    Returns
    -------
    None, numpy.ndarray, or list of them
        A list for several variables. Averages of integers and bools are float64; `in_place` rounds
        them.

    Raises
    ------
    InputTypeError
        The sum of bools, which no bool holds.

    Notes
    -----
    Cost: one round; the members divide the work. They combine values in the order of ranks.

    Examples
    --------
    >>> import numpy as np, pytensor, synkhronos as synk
    >>> _ = synk.fork(2)
    >>> s = pytensor.shared(np.array([1.0, 2.0]), name="s")
    >>> synk.reduce(s, "sum", in_place=False).tolist()
    [2.0, 4.0]
    >>> synk.close()
    """
    del nccl
    with reserved("reduce", timeout):
        found = operands(shared_vars, "reduce")
        kind = found.reduction(op)
        reduced = found.run(commands.Reduce, kind, as_weights(weights, kind, found.group), in_place)
        return reduced[0] if not in_place and len(reduced) == 1 else reduced


@weights_by_name
@retried
def all_reduce(
    shared_vars: Variables,
    op: str = "avg",
    nccl: bool = True,
    *,
    weights: Sequence[float] | None = None,
    timeout: float | None = None,
) -> None:
    """Combine all members' values, and give every member the result.

    Parameters
    ----------
    shared_vars : shared variable, name, or list of them
        Equal shapes and dtypes in all members.
    op : {"avg" (or "mean"), "sum", "prod", "min", "max"}
    weights : sequence of float, optional
        For avg: one for each rank, such as its number of rows.
    timeout : float, optional
        As for `broadcast`.

    Raises
    ------
    InputTypeError
        The sum of bools, which no bool holds.

    Notes
    -----
    Cost: one round for all variables. The first call moves the values into shared memory. Each
    member then reduces its own chunk in place, in the order of ranks, so that results are equal in
    all members, bit by bit. Averages of integers and bools are rounded.

    Examples
    --------
    >>> import numpy as np, pytensor, synkhronos as synk
    >>> _ = synk.fork(2)
    >>> s = pytensor.shared(np.array([1.0, 2.0]), name="s")
    >>> synk.all_reduce(s, "sum"); s.get_value().tolist()
    [2.0, 4.0]
    >>> synk.close()
    """
    del nccl
    with reserved("all_reduce", timeout):
        all_reduce_reserved(shared_vars, op, weights)


def all_reduce_reserved(
    shared_vars: Variables, op: str, weights: Sequence[float] | None = None
) -> None:
    """As `all_reduce`, while the runner is reserved."""
    found = operands(shared_vars, "all_reduce")
    kind = found.reduction(op)
    counts = as_weights(weights, kind, found.group)
    if kind in (Reduction.AVG, Reduction.MIN, Reduction.MAX):
        # node-shared values are equal in all members as they are
        found.entries = [e for e in found.entries if not e.settle()]
    if found.entries:
        numbers = found.numbers
        key = numbers, kind, counts
        command = _all_reduces.find(key) if found.new is None else None
        if command is None:
            command = commands.AllReduce(numbers, kind, counts, new=found.new)
            if found.new is None:
                _all_reduces.keep(key, command)
        found.group.runner.run(command, "all_reduce")


@weights_by_name
@retried
def reduce_scatter(
    shared_vars: Variables,
    op: str = "avg",
    *,
    weights: Sequence[float] | None = None,
    timeout: float | None = None,
) -> None:
    """Combine all members' values; each member gets its rows of the result.

    Parameters are those of `all_reduce`; the rows are divided as a call divides its inputs.

    Examples
    --------
    >>> import numpy as np, pytensor, synkhronos as synk
    >>> _ = synk.fork(2)
    >>> s = pytensor.shared(np.arange(3.0), name="s")
    >>> synk.reduce_scatter(s, "sum"); s.get_value().tolist(), synk.get_value(1, s).tolist()
    ([0.0, 2.0], [4.0])
    >>> synk.close()

    Notes
    -----
    Cost: one round; each member reads all values of its rows once.
    """
    with reserved("reduce_scatter", timeout):
        found = operands(shared_vars, "reduce_scatter")
        lengths = {e.storage[0].shape[:1] for e in found.entries}
        if len(lengths) != 1 or () in lengths:
            raise InputError(
                f"reduce_scatter: values of shapes {sorted(lengths)} have no common rows"
            )
        borders = edges(lengths.pop()[0], found.group.size)
        lengths_there = {b - a for a, b in itertools.pairwise(borders)}
        check_lengths(found.entries, "reduce_scatter", lengths_there)
        kind = found.reduction(op)
        found.run(commands.ReduceScatter, kind, borders, as_weights(weights, kind, found.group))


@retried
def permute(shared_vars: Variables, order: Sequence[int], *, timeout: float | None = None) -> None:
    """Give each member the values of another one: rank r gets those of rank ``order[r]``.

    Parameters
    ----------
    shared_vars : shared variable, name, or list of them
        Equal shapes in all members.
    order : sequence of int
        Each rank of the group once. A rank that stands at its own place keeps its values.
    timeout : float, optional
        As for `broadcast`.

    Raises
    ------
    InputError, InputTypeError
        `order` is not a permutation of the ranks, or shapes differ. No value has changed.

    Notes
    -----
    Cost: two rounds, one of which compares shapes. Each member whose rank moves copies the values
    of all variables once, in one meeting with the member that it gets them from; these meetings
    follow one another. Variables whose values are equal in all members, and orders that move
    nothing, cost no round.

    Examples
    --------
    >>> import numpy as np, pytensor, synkhronos as synk
    >>> _ = synk.fork(3)
    >>> s = pytensor.shared(np.zeros(1), name="s")
    >>> synk.scatter(s, np.array([10.0, 11.0, 12.0]))
    >>> synk.permute(s, [1, 0, 2]); synk.gather(s, nd_up=0).tolist()
    [11.0, 10.0, 12.0]
    >>> synk.close()
    """
    with reserved("permute", timeout):
        found = operands(shared_vars, "permute")
        ranks = _permutation(order, found.group.size)
        found.entries = [e for e in found.entries if e.differs]
        if not found.entries or ranks == tuple(range(len(ranks))):
            return
        columns = found.run(commands.Shapes)
        found.new = None  # the members have the values now
        for entry, shapes in zip(found.entries, columns, strict=True):
            if len(set(shapes)) > 1:
                raise InputError(
                    f"permute: the members' values of {entry.label} differ in shape: {shapes}: "
                    "make them equal, such as by synk.broadcast"
                )
        found.run(commands.Permute, ranks)


@retried
def set_value(
    rank: int,
    shared_vars: Variables,
    values: object,
    batch: object = None,
    *,
    timeout: float | None = None,
) -> None:
    """Set the values in one member only.

    Parameters
    ----------
    rank : int
    shared_vars : shared variable, name, or list of them
    values : array or Data, or a list with one for each variable
    batch : as in a call, optional
        Rows of the values to use.
    timeout : float, optional
        As for `broadcast`.

    Examples
    --------
    >>> import numpy as np, pytensor, synkhronos as synk
    >>> _ = synk.fork(2)
    >>> s = pytensor.shared(np.zeros(2), name="s")
    >>> synk.set_value(1, s, np.array([3.0, 4.0])); synk.get_value(1, s).tolist()
    [3.0, 4.0]
    >>> synk.close()

    Notes
    -----
    Cost: one round; one copy.
    """
    with reserved("set_value", timeout):
        rank = _check_rank(current("synk.set_value"), rank)
        found = operands(shared_vars, "set_value")
        arrays = values_of(found, values, rows=batch is not None)
        if batch is not None:
            flat = [e.label for e, a in zip(found.entries, arrays, strict=True) if not a.ndim]
            if flat:
                raise InputError(
                    f"set_value: batch={shown(batch)} selects rows, and {flat} are 0-d"
                )
            arrays = [rows_of(a, select(batch, len(a))) for a in arrays]
            for entry, array in zip(found.entries, arrays, strict=True):
                check_lengths([entry], "set_value", {len(array)})
        found.run(commands.SetValue, rank, master_input=arrays)


@retried
def get_value(rank: int, shared_vars: Variables, *, timeout: float | None = None) -> Any:
    """Fetch the values of one member.

    Parameters
    ----------
    rank : int
    shared_vars : shared variable, name, or list of them
    timeout : float, optional
        As for `broadcast`.

    Examples
    --------
    >>> import numpy as np, pytensor, synkhronos as synk
    >>> _ = synk.fork(2)
    >>> synk.get_value(1, pytensor.shared(np.ones(2))).tolist()
    [1.0, 1.0]
    >>> synk.close()

    Notes
    -----
    Cost: one round; one copy. Returns an array, or a list of them for a list of variables.
    """
    with reserved("get_value", timeout):
        rank = _check_rank(current("synk.get_value"), rank)
        found = operands(shared_vars, "get_value")
        values = found.run(commands.GetValue, rank)
        return values[0] if found.single else values


@retried
def get_lengths(shared_vars: Variables, *, timeout: float | None = None) -> Any:
    """The length of each member's value, in the order of ranks.

    Parameters
    ----------
    shared_vars : shared variable, name, or list of them
    timeout : float, optional
        As for `broadcast`.

    Examples
    --------
    >>> import numpy as np, pytensor, synkhronos as synk
    >>> _ = synk.fork(2)
    >>> synk.get_lengths(pytensor.shared(np.ones(4)))
    [4, 4]
    >>> synk.close()

    Notes
    -----
    Cost: one round. For a list of variables, a list of lists.
    """
    with reserved("get_lengths", timeout):
        found = _shapes(shared_vars, "get_lengths")
        if any(shape == () for column in found for shape in column):
            raise InputError("get_lengths: a 0-d value has no length")
        lengths = [[shape[0] for shape in column] for column in found]
        return lengths[0] if is_single(shared_vars) else lengths


@retried
def get_shapes(shared_vars: Variables, *, timeout: float | None = None) -> Any:
    """The shape of each member's value, in the order of ranks.

    Parameters
    ----------
    shared_vars : shared variable, name, or list of them
    timeout : float, optional
        As for `broadcast`.

    Examples
    --------
    >>> import numpy as np, pytensor, synkhronos as synk
    >>> _ = synk.fork(2)
    >>> synk.get_shapes(pytensor.shared(np.ones((4, 1))))
    [(4, 1), (4, 1)]
    >>> synk.close()

    Notes
    -----
    Cost: one round. For a list of variables, a list of lists.
    """
    with reserved("get_shapes", timeout):
        found = _shapes(shared_vars, "get_shapes")
        return found[0] if is_single(shared_vars) else found


def _shapes(shared_vars: Variables, what: str) -> list[list[tuple[int, ...]]]:
    found: list[list[tuple[int, ...]]] = operands(shared_vars, what).run(commands.Shapes)
    return found


# the channel sends the same object as a number
_all_reduces: CommandCache[commands.AllReduce] = CommandCache(64)


def _permutation(order: Any, size: int) -> tuple[int, ...]:
    """A user's order of ranks, checked."""
    try:
        given = list(order)
    except TypeError:
        given = [None]
    if not all(map(is_integer, given)):
        raise InputTypeError(
            f"permute: order={shown(order)} is not a list of ranks: give, for each rank, the one "
            "whose values it gets"
        )
    ranks = tuple(int(r) for r in given)
    if sorted(ranks) != list(range(size)):
        raise InputError(
            f"permute: order={shown(order)}: give each of the ranks 0 to {size - 1} once"
        )
    return ranks


def _check_rank(group: Group, rank: int) -> int:
    rest = ": the first argument is the rank, the second the variables"
    return check_integer("rank", rank, 0, group.size - 1, rest=rest)
