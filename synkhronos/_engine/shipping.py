"""Sends functions and shared variables to all members."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from pytensor.compile.ops import FromFunctionOp
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors, toposort
from pytensor.tensor.elemwise import CAReduce

from synkhronos._engine.commands.definitions import Define, Forget, Replicate
from synkhronos._engine.group import Group, current
from synkhronos._engine.replicas import Recipe
from synkhronos._engine.runner import retried
from synkhronos._engine.shippable import Shippable
from synkhronos._engine.variables import Entry, check_dense, define, is_array, make_contiguous
from synkhronos._errors import InputError, StateTorn, WorkerError
from synkhronos._libraries.library import optional_gain
from synkhronos._libraries.pytensor import PYTENSOR
from synkhronos._transport import serialization

# What a function raises that cannot be sent: the master or a worker refuses it, or one of its
# variables is half written
_UNSENT = InputError, WorkerError, StateTorn

# The number by which the members know a shared variable; None: no such variable
Numbered = Callable[[object], int | None]


@retried
def distribute() -> None:
    """Send all functions to the members that have not been sent yet; first calls do it otherwise.

    Notes
    -----
    Cost: two rounds for any number of functions; the values of new shared variables are
    broadcast. Graphs are sent without values: tens of kilobytes each.

    Examples
    --------
    >>> import synkhronos as synk
    >>> _ = synk.fork(2)
    >>> synk.distribute()
    >>> synk.close()
    """
    group = current("synk.distribute")
    with group.runner.reserved("synk.distribute"):
        distribute_in(group)


def distribute_in(group: Group, needed: Collection[Shippable] | None = None) -> None:
    """Send the functions of a group to its members, while the runner is reserved.

    If a function among the `needed` cannot be sent, this raises; None: all are needed. Any other
    that cannot be sent raises at its first call.
    """
    group.check("distribute")
    pending = [f for f in list(group.inventory.functions.values()) if not f.shipped]
    wanted = [f for f in pending if not f.refused or needed is None or f in needed]
    try:
        _ship(group, wanted)
    except _UNSENT:
        if len(wanted) == 1 and (needed is None or wanted[0] in needed):
            raise
        _ship_each(group, wanted, needed)


def _ship_each(
    group: Group, functions: Sequence[Shippable], needed: Collection[Shippable] | None
) -> None:
    """Send functions one by one; then raise for a needed one that could not be sent."""
    failed: Exception | None = None
    for f in functions:
        try:
            _ship(group, [f])
        except _UNSENT as exc:
            f.refused = True
            failed = exc if needed is None or f in needed else failed
    if failed is not None:
        raise failed


def _ship(group: Group, functions: Sequence[Shippable]) -> None:
    shareds = list(dict.fromkeys(s for f in functions for s in f.plan.shareds))
    entries = share_variables(group, shareds)
    if functions and group.size > 1:
        _forget_dropped(group)
        _ship_recipes(group, [f.plan.recipe for f in functions])
    for f in functions:
        f.ship(list(dict.fromkeys(entries[s] for s in f.plan.shareds)))


def _ship_recipes(group: Group, recipes: list[Recipe]) -> None:
    variables = group.member.variables

    def numbered(obj: object) -> int | None:
        if not isinstance(obj, SharedVariable):
            return None
        entry = variables.find(obj)
        return None if entry is None else entry.number

    packed = _pack(recipes, numbered)
    group.runner.run(Replicate(packed), "distribute")


def _pack(recipes: list[Recipe], numbered: Numbered) -> bytes:
    reducers: dict[type, Any] = {FromFunctionOp: _reduce_wrapped, CAReduce: _reduce_reduction}
    try:
        return serialization.pack_graph((_in_order(recipes), recipes), numbered, reducers)
    except Exception as exc:
        raise _unshippable(recipes, numbered, reducers, exc) from exc


def _in_order(recipes: list[Recipe]) -> list[Variable]:
    """All variables, inputs first: so the depth of the pickle does not grow with the graph's."""
    roots = [v for r in recipes for v in r.outputs]
    roots += [u.new for r in recipes for u in r.updates]
    slicings = [s for r in recipes for s in (*r.slicing, *(u.slicing for u in r.updates))]
    roots += [v for s in slicings for v in s.variables]
    roots += [s.finish.finished for s in slicings if s.finish is not None]
    return [v for node in toposort(roots) for v in node.outputs]


def _reduce_wrapped(op: Any) -> object:
    """An Op of wrap_py: its own pickle needs an importable function; ours contains the function."""
    kind = type(op)
    if kind is not FromFunctionOp:  # a derived class pickles itself
        return op.__reduce_ex__(4)
    with optional_gain():
        function = PYTENSOR.of(op, "_FromFunctionOp__fn")
        infer_shape = PYTENSOR.of(op, "_FromFunctionOp__infer_shape")
        return FromFunctionOp, (function, op.itypes, op.otypes, infer_shape)
    return op.__reduce_ex__(4)


def _reduce_reduction(op: CAReduce) -> object:
    """A CAReduce, without its ufunc, which may not pickle and is made when it runs in Python."""
    reduced = op.__reduce_ex__(4)
    state = reduced[2]
    if isinstance(state, dict):
        state = {name: value for name, value in state.items() if name != "_ufunc"}
    return (*reduced[:2], state, *reduced[3:])


def _unshippable(
    recipes: list[Recipe], numbered: Numbered, reducers: Any, exc: Exception
) -> InputError:
    """The error that names the operation which does not pickle."""
    for recipe in recipes:
        roots = [*recipe.outputs, *(u.new for u in recipe.updates)]
        for variable in ancestors(roots):
            if variable.owner is None:
                continue
            try:
                serialization.pack_graph(variable.owner.op, numbered, reducers)
            except Exception as cause:
                return InputError(
                    f"function {recipe.label} cannot be shipped to the workers: "
                    f"operation {variable.owner.op} does not pickle ({cause}). Define it in a "
                    "module that can be imported, without lambdas or open files"
                )
    return InputError(f"the functions cannot be shipped to the workers: {exc}")


def share_variables(
    group: Group, shareds: Sequence[SharedVariable], values: bool = True
) -> dict[SharedVariable, Entry]:
    """Send shared variables to all members, with the master's values, while the runner is reserved.

    Without `values` the other members get no values, since one array of the node will hold them.
    """
    variables = group.member.variables
    unknown = [s for s in shareds if variables.find(s) is None]
    new: list[Entry] = []
    try:
        for shared in unknown:
            if variables.find(shared) is None:  # not a clone of one before it
                new.append(variables.add(shared))
        if new:
            _forget_dropped(group)
            _define(group, new, values)
    except BaseException:  # some members may know them by now
        variables.dropped += [e.number for e in new]
        variables.remove(e.number for e in new)
        raise
    complete = {s: variables.find(s) for s in shareds}
    return {s: e for s, e in complete.items() if e is not None}


def _define(group: Group, entries: list[Entry], values: bool) -> None:
    if group.size == 1:
        for entry in entries:
            entry.seen = entry.storage[0] if values else None
        return
    for entry in entries:
        check_dense(entry.variable)
        make_contiguous(entry)
    objects = {e: e.storage[0] for e in entries if not is_array(e)}
    definitions = [define(e, value=objects.get(e)) for e in entries]
    arrays = tuple(e.number for e in entries if is_array(e) and values)
    try:
        packed = serialization.pack_graph(definitions, lambda obj: None)
    except Exception as exc:
        names = ", ".join(e.label for e in entries if not is_array(e))
        raise InputError(
            f"shared variables {names} cannot be shipped to the workers: a value does not pickle "
            f"({exc})"
        ) from exc
    group.runner.run(Define(packed, arrays), "distribute")
    for entry, value in objects.items():
        entry.seen = value if values else None


def _forget_dropped(group: Group) -> None:
    """Free in all members the functions and shared variables that the user has dropped."""
    functions, variables = tuple(group.inventory.forgotten), tuple(group.member.variables.dropped)
    if functions or variables:
        group.runner.run(Forget(functions, variables), "distribute")
        del group.inventory.forgotten[: len(functions)]
        del group.member.variables.dropped[: len(variables)]
