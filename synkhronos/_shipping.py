"""Making functions and shared variables known to all members."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pytensor.compile.ops import FromFunctionOp
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.traversal import ancestors

from synkhronos import _parcels
from synkhronos._commands import Define, Forget, Replicate
from synkhronos._errors import InputError
from synkhronos._group import Group
from synkhronos._variables import Entry, define, is_array


def distribute_in(group: Group) -> None:
    """Ship the functions of a group."""
    group.check("distribute")
    pending = [f for f in list(group.functions.values()) if not f._shipped]
    shareds = list(dict.fromkeys(s for f in pending for s in f._plan.shareds))
    entries = share_variables(group, shareds)
    if group.size > 1:
        _ship_recipes(group, [f._plan.recipe for f in pending])
    for f in pending:
        f.ship([entries[s] for s in f._plan.shareds])


def _ship_recipes(group: Group, recipes: list[Any]) -> None:
    forgotten = tuple(group.forgotten)
    if forgotten:
        group.run(Forget(forgotten), "distribute")
        del group.forgotten[: len(forgotten)]
    if not recipes:
        return
    variables = group.member.variables

    def numbered(obj: Any) -> int | None:
        if not isinstance(obj, SharedVariable):
            return None
        entry = variables.find(obj)
        return None if entry is None else entry.number

    packed = _pack(recipes, numbered)
    group.run(Replicate(packed), "distribute")


def _pack(recipes: list[Any], numbered: Any) -> bytes:
    reducers: dict[type, Any] = {FromFunctionOp: _reduce_wrapped}
    try:
        return _parcels.pack_graph(recipes, numbered, reducers)
    except Exception as exc:
        raise _unshippable(recipes, numbered, reducers, exc) from exc


def _reduce_wrapped(op: Any) -> Any:
    """An Op of wrap_py: its own pickling needs an importable function, ours ships the function."""
    function = op._FromFunctionOp__fn
    infer_shape = op._FromFunctionOp__infer_shape
    return FromFunctionOp, (function, op.itypes, op.otypes, infer_shape)


def _unshippable(recipes: list[Any], numbered: Any, reducers: Any, exc: Exception) -> InputError:
    """Name the operation that does not pickle."""
    for recipe in recipes:
        roots = [*recipe.outputs, *(u.new for u in recipe.updates)]
        for variable in ancestors(roots):
            if variable.owner is None:
                continue
            try:
                _parcels.pack_graph(variable.owner.op, numbered, reducers)
            except Exception as cause:
                return InputError(
                    f"function {recipe.name or recipe.number} cannot be shipped to the workers: "
                    f"operation {variable.owner.op} does not pickle ({cause}). Define it in a "
                    "module that can be imported, without lambdas or open files"
                )
    return InputError(f"the functions cannot be shipped to the workers: {exc}")


def share_variables(
    group: Group, shareds: Sequence[SharedVariable], values: bool = True
) -> dict[SharedVariable, Entry]:
    """Make shared variables known to all members, with the master's values.

    Without `values`, new variables get none in the others: they will be joined to one array.
    """
    variables = group.member.variables
    found = {s: variables.find(s) for s in shareds}
    new = [variables.add(s) for s, entry in found.items() if entry is None]
    if new and group.size > 1:
        definitions = [define(e, value=None if is_array(e) else e.storage[0]) for e in new]
        arrays = tuple(e.number for e in new if is_array(e) and values)
        packed = _parcels.pack_graph(definitions, lambda obj: None)
        group.run(Define(packed, arrays), "distribute")
    for entry in new:
        entry.seen = entry.storage[0] if values else None
    complete = {s: variables.find(s) for s in shareds}
    return {s: e for s, e in complete.items() if e is not None}
