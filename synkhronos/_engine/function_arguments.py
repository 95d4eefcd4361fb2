"""The arguments of `function`, as the user has given them: checked, and brought into one form.

These rules hold:

* PyTensor's forms of every argument are accepted, and mean what they mean there. Some are not
  followed, such as ``In(..., update=)``: they are refused by name and never ignored.
* An error says the argument, what was found, and what to write instead.
* The graph ends at the inputs, as in PyTensor: nothing above one is computed, drawn or updated.
  So the givens are replaced below the inputs only, in outputs, updates and default updates alike.
* The user's variables and lists are never changed.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import pytensor
import pytensor.tensor as pt
from pytensor.compile.io import In, Out
from pytensor.compile.rebuild import UnusedInputError
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.gradient import DisconnectedType
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.null_type import NullType
from pytensor.graph.replace import clone_replace
from pytensor.graph.traversal import ancestors

from synkhronos._checks import shown
from synkhronos._compiling.graph_types import tensor_type
from synkhronos._errors import InputError, InputTypeError, UnusedWarning
from synkhronos._proofs.reductions import Reduction, parse
from synkhronos._warnings import warn

Structure = Literal["single", "list", "dict"]


def inputs_of(inputs: object, what: str, downcast: bool | None) -> list[In]:
    """The inputs as `In`; `downcast` is for those that are given as variables."""
    if inputs is None:
        return []
    if not isinstance(inputs, list | tuple):
        raise InputTypeError(f"{what} must be a list of variables, found {type(inputs).__name__}")
    found = []
    for given in inputs:
        variable = given.variable if isinstance(given, In) else given
        if not isinstance(variable, Variable) or isinstance(variable, SharedVariable | Constant):
            raise InputTypeError(f"{what}: {shown(given)} is not an input variable")
        if not isinstance(given, In):
            given = In(given, allow_downcast=downcast)
        _check_option(given, what)
        found.append(given)
    return found


def _check_option(given: In, what: str) -> None:
    """Refuse options of an input that calls would not follow."""
    if given.update is not None:
        raise InputError(f"{what}: In(..., update=) is not supported: use updates=")
    if given.shared and given.value is None:
        raise InputError(f"{what}: In({given.variable}, shared=True) needs a value=")
    if given.value is not None and not given.implicit:
        raise InputError(
            f"{what}: In({given.variable}, value=, implicit=False) is not supported: in PyTensor "
            "an argument of a call would overwrite the variable. Leave implicit out, and set the "
            "variable; or leave value out, and pass the argument in each call"
        )


def check_distinct(variables: list[Variable]) -> None:
    """Refuse an input that is listed twice."""
    for i, variable in enumerate(variables):
        if variable in variables[:i]:
            raise InputError(f"input {variable} is listed twice")


def roots(inputs: Sequence[Variable]) -> list[Variable]:
    """The inputs; in place of one that is computed from others, a variable without an owner.

    PyTensor cuts the graph at the inputs: nothing above one is computed, drawn or updated.
    """
    return [v if v.owner is None else v.type(name=v.name) for v in inputs]


def parse_outputs(
    outputs: object,
) -> tuple[Structure, tuple[str, ...], list[tuple[Variable, Reduction | None, bool]]]:
    """Read every form of outputs: (structure, keys, [(variable, reduction, named)]).

    A tuple of a variable and a reduction's name (or None) is one output; every other tuple is a
    list.
    """
    if outputs is None:
        return "list", (), []
    if isinstance(outputs, Mapping):
        bad = [k for k in outputs if not isinstance(k, str)]
        if bad:
            raise InputTypeError(f"the keys of dict outputs are names, found {bad[0]!r}")
        return "dict", tuple(outputs), [_parse_output(o) for o in outputs.values()]
    if isinstance(outputs, list) or (isinstance(outputs, tuple) and not _is_pair(outputs)):
        return "list", (), [_parse_output(o) for o in outputs]
    return "single", (), [_parse_output(outputs)]


def _is_pair(value: object) -> bool:
    return (
        isinstance(value, tuple)
        and len(value) == 2
        and isinstance(value[0], Variable | Out)
        and (value[1] is None or isinstance(value[1], str))
    )


def _parse_output(output: Any) -> tuple[Variable, Reduction | None, bool]:
    reduction, named = None, False
    if isinstance(output, tuple):
        if not _is_pair(output):
            raise InputTypeError(
                f"output {shown(output)}: give a variable or a pair (variable, reduction's name)"
            )
        output, reduction, named = output[0], parse(output[1]), True
    if isinstance(output, list):  # PyTensor would stack it
        raise InputTypeError(
            f"output {shown(output)} is a list in the list of outputs: give one flat list, a dict, "
            "or pt.stack of the variables for one array"
        )
    return _variable(output), reduction, named


def _variable(given: Any, what: str = "output") -> Variable:
    variable = given.variable if isinstance(given, Out) else given
    if isinstance(variable, Variable):
        return variable
    try:
        return pt.as_tensor_variable(variable)
    except Exception as exc:
        raise InputTypeError(f"{what} {shown(given)} is not a variable ({exc})") from None


@dataclass
class Change:
    """An update as the user gave it."""

    shared: SharedVariable
    new: Variable
    reduction: Reduction | None = None
    named: bool = False  # the user has named the reduction
    # "all": reduced over members. "local": each member has its own value. Empty: as "local", but
    # the user has not said so
    scope: str = ""


def substituted(
    outputs: Sequence[object],
    updates: object,
    givens: object,
    inputs: Sequence[Variable] = (),
    places: Sequence[Variable] = (),
) -> tuple[list[Any], list[Change]]:
    """Outputs and updates with the givens replaced; the latter also with default updates.

    `plan` takes both as they are. Between, gradients of the outputs can be taken. `places` are the
    `roots` of `inputs`.
    """
    wanted, pairs = [_parse_output(o) for o in outputs], pairs_of(givens, inputs)
    substitution = Substitution(pairs, list(zip(inputs, places, strict=True)))
    found, changes = with_default_updates(wanted, parse_updates(updates), substitution, False)
    return [(v, op) if named else v for v, op, named in found], changes


def parse_updates(updates: object) -> list[Change]:
    """Read every form of updates: dict or pairs, (var, new[, reduction[, "all" or "local"]])."""
    items = _update_items(updates)
    found: list[Change] = []
    for item in items:
        if isinstance(item, Change):
            found.append(item)
            continue
        shared, new, *rest = item
        if not isinstance(shared, SharedVariable):
            raise InputTypeError(f"updates: {shown(shared)} is not a shared variable")
        if any(shared.container is c.shared.container for c in found):
            raise InputError(f"updates: {shared} is updated twice")
        if len(rest) > 2 or (len(rest) == 2 and rest[1] not in ("all", "local")):
            raise InputError(
                f"updates of {shared}: give (var, new), (var, new, reduction), "
                '(var, new, reduction, "all") for one value in all members, or '
                f'(var, new, reduction, "local") for a value of each member\'s own; '
                f"found {shown(item)}"
            )
        op = parse(rest[0], f"reduction of the update of {shared}") if rest else None
        scope = rest[1] if len(rest) == 2 else ""
        if scope == "all" and op in (None, Reduction.GATHER):
            raise InputError(f'updates of {shared}: an "all" update cannot be reduced by {op}')
        found.append(Change(shared, _new(shared, new), op, bool(rest), scope))
    return found


def _update_items(updates: Any) -> list[Any]:
    if updates is None:
        return []
    if isinstance(updates, Mapping):
        return [(k, *v) if isinstance(v, tuple) else (k, v) for k, v in updates.items()]
    items = _tuples(updates, "updates", "(variable, new value)")
    short = [item for item in items if isinstance(item, tuple) and len(item) < 2]
    if short:
        raise InputError(
            f"updates: {shown(short[0])} is not a pair of a variable and its new value"
        )
    return items


def _tuples(given: Any, what: str, pair: str) -> list[Any]:
    """The tuples of a list; a `Change` is one already."""
    try:
        return [each if isinstance(each, Change) else tuple(each) for each in given]
    except (TypeError, ValueError):  # ValueError: a variable is a vector
        raise InputTypeError(
            f"{what}={shown(given)}: give a dict, or a list of pairs {pair}"
        ) from None


def _new(shared: SharedVariable, new: object) -> Variable:
    try:
        return shared.type.filter_variable(new, allow_convert=True)
    except (TypeError, ValueError, NotImplementedError) as exc:
        raise InputTypeError(
            f"the update of {shared} has another type than the variable, {shared.type}: {exc}"
        ) from None


Pairs = Sequence[tuple[Variable, Variable]]


def pairs_of(
    givens: Any, inputs: Sequence[Variable], strict: bool = True
) -> list[tuple[Variable, Variable]]:
    """The givens as pairs of what is replaced and what replaces it."""
    if givens is None:
        return []
    given = givens.items() if isinstance(givens, Mapping) else givens
    pairs = _tuples(given, "givens", "(variable, what replaces it)")
    for pair in pairs:
        if len(pair) != 2:
            raise InputError(f"givens: {shown(pair)} is not a pair (variable, what replaces it)")
        old = pair[0]
        if not isinstance(old, Variable):
            raise InputTypeError(f"givens: {shown(old)} is not a variable of the graph")
    _check_replaced([old for old, _ in pairs], inputs)
    return [(old, _given(old, new, strict)) for old, new in pairs]


def _check_replaced(olds: list[Variable], inputs: Sequence[Variable]) -> None:
    for i, old in enumerate(olds):
        if old in olds[:i]:
            raise InputError(f"givens: {old} is replaced twice")
        if old in inputs:
            raise InputError(
                f"givens: {old} is an input, which cannot be replaced. Make another input y, and "
                f"give {{{old}: ...}} an expression of y"
            )


def _given(old: Variable, new: object, strict: bool) -> Variable:
    """The replacement of a variable."""
    if isinstance(new, Variable):
        return new
    try:
        found: Variable = old.type.filter_variable(new)
    except (TypeError, ValueError, NotImplementedError):
        if strict:
            raise _unfit(old, new) from None
        found = _variable(new, "givens: what replaces a variable,")
    return found


def _unfit(old: Variable, new: object) -> InputTypeError:
    kind = tensor_type(old)
    found = new.type if isinstance(new, Variable) else _described(new)
    other: object = new.type if isinstance(new, Variable) else new
    if getattr(other, "ndim", None) != getattr(kind, "ndim", None):
        remedy = (
            "give it as many dimensions; or pass rebuild_strict=False, if the graph is also right "
            "for what replaces it"
        )
    elif str(getattr(other, "dtype", None)) != str(getattr(kind, "dtype", None)):
        remedy = (
            "cast one of them. The dtype of pt.matrix() and the like is floatX; to make it "
            "float32, set PYTENSOR_FLAGS=floatX=float32 before Python starts, or write it into "
            "~/.pytensorrc"
        )
    else:
        remedy = "make the lengths in their types equal, or pass rebuild_strict=False"
    return InputTypeError(f"givens: {old} is {kind}, and what replaces it is {found}: {remedy}")


def _described(value: object) -> str:
    dtype, ndim = getattr(value, "dtype", ""), getattr(value, "ndim", None)
    return f"{type(value).__name__} {dtype}{'' if ndim is None else f' of {ndim} dimensions'}"


class Substitution:
    """The replacements of variables in all graphs of a function, at once.

    Parameters
    ----------
    givens : pairs of Variable
        The user's.
    cuts : pairs of Variable
        Inputs, and their `roots`, which also replace them inside of the givens.
    strict : bool
        What replaces a variable must be of its type.
    """

    def __init__(self, givens: Pairs, cuts: Pairs = (), strict: bool = True) -> None:
        self.strict = strict
        self.pairs = [(old, root) for old, root in cuts if root is not old]
        new = clone_replace([new for _, new in givens], self.pairs) if self.pairs else None
        self.pairs += givens if new is None else zip([old for old, _ in givens], new, strict=True)

    def __call__(self, variables: list[Variable]) -> list[Variable]:
        """Copies of these graphs in which all pairs are replaced."""
        try:
            found: list[Variable] = clone_replace(
                variables, replace=self.pairs, rebuild_strict=self.strict
            )
        except TypeError:
            unfit = [pair for pair in self.pairs if not pair[0].type.is_super(pair[1].type)]
            if not (self.strict and unfit):
                raise
            raise _unfit(*unfit[0]) from None
        return found


Wanted = list[tuple[Variable, Reduction | None, bool]]


def replaced(
    wanted: Wanted, changes: list[Change], substitution: Substitution
) -> tuple[Wanted, list[Change]]:
    """Outputs and updates, with what the substitution replaces."""
    if not substitution.pairs:
        return wanted, changes
    new = substitution([*(v for v, _, _ in wanted), *(c.new for c in changes)])
    replaced = [(v, op, named) for v, (_, op, named) in zip(new, wanted, strict=False)]
    for change, value in zip(changes, new[len(wanted) :], strict=True):
        change.new = _new(change.shared, value)
    return replaced, changes


def without_defaults(given: object) -> bool | list[object]:
    """A user's no_default_updates, checked: what PyTensor takes."""
    if given is None:
        return False
    if isinstance(given, list) and all(isinstance(v, Variable) for v in given):
        return given
    if not isinstance(given, bool):
        raise InputTypeError(
            f"no_default_updates={shown(given)}: give a bool, or a list of shared variables whose "
            "default updates are left out"
        )
    return given


def with_default_updates(
    wanted: Wanted, changes: list[Change], substitution: Substitution, without: bool | list[object]
) -> tuple[Wanted, list[Change]]:
    """Replace the givens, and add the default updates of what the function then depends on.

    As in PyTensor, the givens are replaced in default updates too, and a default update may bring
    in variables that have one themselves.
    """
    have = {c.shared for c in changes} | set(without if isinstance(without, list) else ())
    given = list(changes)
    while True:
        found = replaced(wanted, [replace(c) for c in given], substitution)
        moving = [
            s
            for s in shareds_of([*(v for v, _, _ in found[0]), *(c.new for c in found[1])])
            if s.default_update is not None and s not in have
        ]
        if without is True or not moving:
            return found
        given += [Change(s, _new(s, s.default_update)) for s in moving]
        have.update(moving)


def sliceables_of(given: Any, wanted: Wanted, changes: list[Change]) -> list[SharedVariable]:
    """The sliceable shared variables, which the function must use."""
    if given is None:
        return []
    if not isinstance(given, list | tuple):
        raise InputTypeError(f"sliceable_shareds={shown(given)}: give a list of shared variables")
    used = set(shareds_of([*(v for v, _, _ in wanted), *(c.new for c in changes)]))
    for shared in given:
        if not isinstance(shared, SharedVariable):
            raise InputTypeError(f"sliceable_shareds: {shown(shared)} is not a shared variable")
        if shared not in used:
            raise InputError(f"sliceable_shareds: {shared} is not used by the function")
        if hasattr(shared.type, "format") or not getattr(shared.type, "ndim", 0):
            raise InputError(f"sliceable_shareds: {shared} is {shared.type}, which has no rows")
    return list(given)


def is_scattered(variable: Variable) -> bool:
    """Whether an input is cut into parts: scalars are broadcast wherever they are listed."""
    kind = tensor_type(variable)
    if hasattr(kind, "format"):
        raise InputTypeError(
            f"input {variable.name or variable} is {kind}: the rows of a sparse matrix are not "
            "divided among members. Make it a dense input, or list it in bcast_inputs"
        )
    return bool(getattr(kind, "ndim", 0))


def check_function_options(options: Mapping[str, object]) -> None:
    """Refuse options that `pytensor.function` does not have."""
    known = inspect.signature(pytensor.function).parameters
    unknown = [name for name in options if name not in known]
    if unknown:
        raise InputTypeError(
            f"synk.function has no parameter {unknown[0]!r}: it has inputs, outputs, bcast_inputs, "
            "updates, givens, sliceable_shareds, and those of pytensor.function"
        )


def check_inputs(
    variables: list[Variable], outputs: list[Variable], changes: list[Change], how: str | None
) -> None:
    """Refuse graphs that need more than the inputs, and inputs that no graph needs."""
    how = how or pytensor.config.on_unused_input
    used = set(ancestors([*outputs, *(c.new for c in changes)]))
    free = [v for v in used if v.owner is None and not isinstance(v, Constant | SharedVariable)]
    for v in free:
        if isinstance(v.type, NullType):
            raise InputTypeError(f"an output or update has no value. {v.type.why_null}")
        if isinstance(v.type, DisconnectedType):
            raise InputTypeError(
                "an output or update is a disconnected gradient: it does not depend on what it is "
                "the gradient by. Leave it out, or use zeros"
            )
    missing = sorted(str(v) for v in free if v not in variables)
    if missing:
        raise InputError(
            f"outputs or updates need {', '.join(missing)}: name all that they are computed from "
            "in inputs (scattered), bcast_inputs (whole) or givens"
        )
    unused = [v for v in variables if v not in used]
    if not unused or how == "ignore":
        return
    text = (
        f"input {unused[0]} is not used by any output or update: leave it out, or pass "
        'on_unused_input="ignore"'
    )
    if how == "raise":
        raise UnusedInputError(text)
    warn(text, UnusedWarning)


def shareds_of(roots: Iterable[Variable]) -> list[SharedVariable]:
    """The shared variables that graphs depend on, each once."""
    return shareds_among(ancestors(list(roots)))


def shareds_among(variables: Iterable[Variable]) -> list[SharedVariable]:
    """The shared variables among these, each once."""
    return list(dict.fromkeys(v for v in variables if isinstance(v, SharedVariable)))
