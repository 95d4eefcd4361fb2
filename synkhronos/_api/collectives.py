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
import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np
from pytensor.compile.sharedvalue import SharedVariable

from synkhronos._api.data import Data, as_literal
from synkhronos._api.unusable import aligned, why_unusable
from synkhronos._checks import check_integer, is_integer, shown
from synkhronos._compiling.graph_types import tensor_type
from synkhronos._engine.commands import collectives as commands
from synkhronos._engine.commands.base import CommandCache
from synkhronos._engine.group import Group, current
from synkhronos._engine.runner import retried
from synkhronos._engine.shipping import distribute_in, share_variables
from synkhronos._engine.variables import Entry, NewValues, is_array, new_values
from synkhronos._errors import DeprecatedWarning, InputError, InputTypeError
from synkhronos._plan.rows import Picks, Selection, edges, select
from synkhronos._proofs.reductions import NAMES, Reduction, check_adds, parse
from synkhronos._warnings import warn

Variables = SharedVariable | str | Sequence[SharedVariable | str]

_REPLACING = ("scatter", "set_value")  # members lose the values that they hold


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
        given = None if values is None else _values(found, values, own=True)
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
        arrays = _values(found, values, own=True, rows=True)
        flat = [e.label for e, a in zip(found.entries, arrays, strict=True) if not a.ndim]
        if flat:
            raise InputError(f"scatter: the values of {flat} are 0-d, and have no rows to divide")
        chosen = [_chosen(a, select(batch, len(a))) for a in arrays]
        borders = tuple([edges(len(a), found.group.size) for a in chosen])
        for entry, border in zip(found.entries, borders, strict=True):
            _check_lengths([entry], "scatter", {b - a for a, b in itertools.pairwise(border)})
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
        _check_lengths(found.entries, "all_gather", None)
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
        _check_lengths(found.entries, "reduce_scatter", lengths_there)
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
        arrays = _values(found, values, rows=batch is not None)
        if batch is not None:
            flat = [e.label for e, a in zip(found.entries, arrays, strict=True) if not a.ndim]
            if flat:
                raise InputError(
                    f"set_value: batch={shown(batch)} selects rows, and {flat} are 0-d"
                )
            arrays = [_chosen(a, select(batch, len(a))) for a in arrays]
            for entry, array in zip(found.entries, arrays, strict=True):
                _check_lengths([entry], "set_value", {len(array)})
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
        return lengths[0] if _is_single(shared_vars) else lengths


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
        return found[0] if _is_single(shared_vars) else found


def _shapes(shared_vars: Variables, what: str) -> list[list[tuple[int, ...]]]:
    found: list[list[tuple[int, ...]]] = operands(shared_vars, what).run(commands.Shapes)
    return found


# the channel sends the same object as a number
_all_reduces: CommandCache[commands.AllReduce] = CommandCache(64)


def _is_single(shared_vars: Variables) -> bool:
    return isinstance(shared_vars, SharedVariable | str)


@dataclass
class Operands:
    """The variables of a collective, known to all members."""

    group: Group
    what: str
    entries: list[Entry]
    single: bool  # the user has passed one variable, and not a list
    # values that the user has set in the master; they travel with the command
    new: NewValues | None

    @property
    def numbers(self) -> tuple[int, ...]:
        """As commands name the variables."""
        return tuple([e.number for e in self.entries])

    def reduction(self, op: str) -> Reduction:
        """The reduction that a user has named, checked for each variable."""
        kind = reduction(op, self.what)
        if kind is Reduction.SUM:
            for entry in self.entries:
                variable: Any = entry.variable
                if variable.type.dtype == "bool":
                    check_adds(kind, "bool", f"{self.what}: {entry.label}")
        return kind

    def run(
        self, command: type[commands.Collective], *args: object, master_input: object = None
    ) -> Any:
        """Run a collective of this kind."""
        return self.group.runner.run(
            command(self.numbers, *args, new=self.new), self.what, master_input=master_input
        )


def reserved(what: str, timeout: float | None) -> AbstractContextManager[Any]:
    """Reserve the runner of the current group, for a collective of this name."""
    called = f"synk.{what}"
    return current(called).runner.reserved(called, timeout)


def operands(shared_vars: Variables, what: str, arrays: bool = True) -> Operands:
    """The variables asked for; new ones are shipped. `arrays`: all values must be arrays."""
    group = current(f"synk.{what}")
    single = _is_single(shared_vars)
    given: Any = shared_vars
    if not single and not isinstance(given, list | tuple):
        raise InputTypeError(
            f"{what}: {shown(given)} is not a shared variable, a name, or a list of them"
        )
    asked = [given] if single else list(given)
    if any(not (f.shipped or f.refused) for f in group.inventory.functions.values()):
        distribute_in(group, ())
    variables = [_variable(group, v, what) for v in asked]
    if len({v.container for v in variables}) < len(variables):
        raise InputError(f"{what}: a variable is listed twice")
    known = group.member.variables
    if any([known.find(v) is None for v in variables]):
        share_variables(group, variables)
    entries = [known.of(v) for v in variables]
    wrong = [e.label for e in entries if not is_array(e)]
    if arrays and wrong:
        raise InputTypeError(
            f"{what}: the values of {wrong} are not arrays; only broadcast takes them"
        )
    # broadcast sends all values, whether they are new or not
    replaces = what in _REPLACING
    new = None if what == "broadcast" else new_values(entries, lambda entry: replaces)
    return Operands(group, what, entries, single, new)


def _variable(group: Group, asked: object, what: str) -> SharedVariable:
    if isinstance(asked, str):
        return group.member.variables.named(asked).variable
    if isinstance(asked, SharedVariable):
        return asked
    raise InputTypeError(f"{what}: {shown(asked)} is not a shared variable and not the name of one")


def _check_lengths(entries: Sequence[Entry], what: str, lengths: set[int] | None) -> None:
    """A variable whose type fixes its length cannot take another length."""
    for entry in entries:
        kind = tensor_type(entry.variable)
        if kind.ndim and kind.shape[0] is not None and lengths != {kind.shape[0]}:
            raise InputError(
                f"{what}: the type of {entry.label} fixes its length at {kind.shape[0]}, and "
                "members would get another length: make it without a shape"
            )


def _values(
    found: Operands, values: object, own: bool = False, rows: bool = False
) -> list[np.ndarray]:
    """One array for each variable, of its dtype and shape; `own`: None is the master's own value.

    `rows`: members get rows of it, so it may have another length than the type fixes.
    """
    what, n = found.what, len(found.entries)
    if found.single or (n == 1 and not isinstance(values, list | tuple)):
        values = [values]
    if not isinstance(values, list | tuple):
        raise InputTypeError(f"{what}: give a list with a value for each of the variables")
    if len(values) != n:
        raise InputError(f"{what}: {n} variables and {len(values)} values")
    return [
        _value(e, e.storage[0] if own and v is None else v, what, rows)
        for e, v in zip(found.entries, values, strict=True)
    ]


def _value(entry: Entry, value: object, what: str, rows: bool) -> np.ndarray:
    kind = tensor_type(entry.variable)
    if rows and kind.ndim:
        kind = kind.clone(shape=(None, *kind.shape[1:]))
    if value is None:
        raise InputTypeError(
            f"{what}: the value of {entry.label} is None: give an array. To give all members the "
            f"master's own value, synk.broadcast({entry.label})"
        )
    try:
        given = value.readable if isinstance(value, Data) else as_literal(value, kind.numpy_dtype)
        found = kind.filter(aligned(given), allow_downcast=None)
    except (TypeError, ValueError, AttributeError) as exc:
        raise InputTypeError(
            f"{what}: {entry.label} is {kind}, found {shown(value)}: {why_unusable(value) or exc}"
        ) from None
    return np.ascontiguousarray(found) if np.ndim(found) else np.asarray(found)


def _chosen(array: np.ndarray, rows: Selection) -> np.ndarray:
    if isinstance(rows, Picks):
        return array[rows.rows]
    return array[rows.start : rows.stop]


def reduction(op: str, what: str) -> Reduction:
    """The reduction that a user has named."""
    found = NAMES.get(op) if isinstance(op, str) else None
    if found is None:
        found = parse(op, f"{what}: reduction")
    if found is None or found is Reduction.GATHER:
        raise InputError(f"{what}: op={shown(op)} combines nothing; use avg, sum, prod, min or max")
    return found


def as_weights(
    weights: Sequence[float] | None, op: Reduction, group: Group
) -> tuple[float, ...] | None:
    """A user's weights, checked: one for each rank."""
    size = group.size
    if weights is None:
        return None
    if op is not Reduction.AVG:
        raise InputError(f"weights are for averages; op={str(op)!r} takes none")
    try:
        found = tuple(float(w) for w in weights)
    except (TypeError, ValueError):
        raise InputTypeError(
            f"weights={shown(weights)} is not a list of numbers: give one for each of the {size} "
            "ranks"
        ) from None
    if len(found) != size or min(found) < 0 or not 0 < sum(found) < math.inf:
        raise InputError(
            f"weights={list(weights)}: give one for each of the {size} ranks, none negative and "
            "not all 0"
        )
    return found


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
