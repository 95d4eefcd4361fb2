"""Makes the recipe of a function from its outputs, reductions, updates and givens.

Everything is checked here, before anything is shipped.
"""

from __future__ import annotations

import inspect
import logging
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
from pytensor.scalar.basic import ScalarType
from pytensor.tensor.random.type import RandomType

from synkhronos._backends.jax import runs_jax
from synkhronos._checks import shown
from synkhronos._engine.graph_collectives import has_collectives, is_own, unmet_ancestors
from synkhronos._engine.replicas import Finish, Recipe, Slicing, Stream, Update, is_dense, settings
from synkhronos._errors import (
    InputError,
    InputTypeError,
    LocalUpdateWarning,
    ReductionWarning,
    UnusedWarning,
)
from synkhronos._plan.inference import Proof, Unproved, depends_on, prove, row_draws
from synkhronos._plan.reductions import Reduction, check_adds, parse
from synkhronos._warnings import place_of_user, warn

log = logging.getLogger("synkhronos")

Structure = Literal["single", "list", "dict"]


@dataclass(frozen=True)
class OutputPlan:
    """How one of the user's outputs is computed.

    Attributes
    ----------
    partials : tuple of int
        Which outputs of the recipe it is made of.
    finish : Finish, or None
        What the master does with their reduced values; None: the one partial is the output.
    fixed : bool
        The reduction was named by the user. Else an output that does not depend on rows is
        averaged where the shared variables it depends on differ between members.
    shareds : tuple of SharedVariable
        What an output without rows depends on.
    whole : str
        Why its value cannot be put together from slices; empty if it can.
    """

    variable: Variable
    mode: Reduction | None
    partials: tuple[int, ...]
    finish: Finish | None = None
    fixed: bool = False
    shareds: tuple[SharedVariable, ...] = ()
    whole: str = ""


_MET = "collectives over all members: compute each part at once"


@dataclass(frozen=True)
class Plan:
    """The master's description of a function."""

    recipe: Recipe
    inputs: tuple[Variable, ...]
    types: tuple[Any, ...]  # of the inputs that the user has passed
    names: tuple[str | None, ...]
    options: tuple[In, ...]
    bare: tuple[bool, ...]  # the user has passed the variable itself, and no `In`
    scattered: tuple[bool, ...]
    structure: Structure
    keys: tuple[str, ...]
    outputs: tuple[OutputPlan, ...]
    shareds: tuple[SharedVariable, ...]
    read: frozenset[Any]  # the containers of those whose values the function depends on
    pure: bool  # without updates of any kind
    whole: str  # why a new value cannot be computed from slices; empty if all can

    @property
    def graph(self) -> tuple[list[Variable], list[Variable]]:
        """The inputs with rows, and the user's outputs as expressions of all inputs."""
        pairs = zip(self.inputs, self.scattered, strict=True)
        return [v for v, scattered in pairs if scattered], [o.variable for o in self.outputs]

    def undivided(self, subset: Sequence[int]) -> str:
        """Why these outputs, or an update, need undivided parts; empty if they do not."""
        return self.whole or next((w for i in subset if (w := self.outputs[i].whole)), "")


def _finish(proof: Proof) -> tuple[Finish | None, list[Variable]]:
    """The expression of an output: of reduced partials, and of values equal in all members.

    The latter follow from shared variables and inputs. Each member's compiled function computes
    them with the partials, before an update changes what they depend on.
    """
    if proof.finished is None:
        return None, []
    reduced = set(proof.placeholders)
    late = {v for v in ancestors([proof.finished]) if reduced & set(ancestors([v]))}
    alike: dict[Variable, Variable] = {}
    stack, seen = [proof.finished], set[Variable]()
    while stack:
        v = stack.pop()
        if v in seen or isinstance(v, Constant):
            continue
        seen.add(v)
        if v not in late:
            alike[v] = v.type()
        elif v.owner is not None:
            stack += v.owner.inputs
    [finished] = clone_replace([proof.finished], replace=list(alike.items()))
    return Finish((*proof.placeholders, *alike.values()), finished), list(alike)


def plan(
    number: int,
    inputs: Any,
    outputs: Any,
    bcast_inputs: Any,
    updates: Any,
    givens: Any,
    sliceable_shareds: Any,
    infer: bool,
    vectorised: bool,
    options: dict[str, Any],
) -> Plan:
    """Check the arguments of `function` and make its plan."""
    mode, name, unused = (options.pop(k, None) for k in ("mode", "name", "on_unused_input"))
    _check_options(options)
    label = name or f"at {place_of_user()}"
    downcast = options.pop("allow_input_downcast", None)
    bound = _inputs(inputs, "inputs", downcast), _inputs(bcast_inputs, "bcast_inputs", downcast)
    every = [*bound[0], *bound[1]]
    asked = [i.variable for i in every]
    _check_distinct(asked)
    structure, keys, wanted = parse_outputs(outputs)
    changes = parse_updates(updates)
    without = _without(options.pop("no_default_updates", None))
    strict = options.pop("rebuild_strict", True)
    pairs, variables = _pairs(givens, asked, strict), roots(asked)
    cut = Substitution(pairs, list(zip(asked, variables, strict=True)), strict)
    wanted, changes = _with_default_updates(wanted, changes, cut, without)
    sliceables = _sliceables(sliceable_shareds, wanted, changes)
    scattered = [_is_scattered(i.variable) for i in bound[0]] + [False] * len(bound[1])
    _check_inputs(variables, [v for v, _, _ in wanted], changes, unused)
    used = _shareds([*(v for v, _, _ in wanted), *(c.new for c in changes)])
    collectives = has_collectives([*(v for v, _, _ in wanted), *(c.new for c in changes)])
    given = [*variables, *sliceables]
    variables, places = _of_any_length(variables, scattered, sliceables)
    exchanged = [(a, b) for a, b in zip(given, [*variables, *places], strict=True) if a is not b]
    wanted, changes = _replaced(wanted, changes, Substitution(exchanged, strict=False))
    rows = [v for v, s in zip(variables, scattered, strict=True) if s] + places
    partials: list[Variable] = []
    reductions: list[Reduction | None] = []
    planned = [
        _plan_output(v, op, fixed, rows, infer, partials, reductions, label)
        for v, op, fixed in wanted
    ]
    made = [_plan_update(c, rows, infer) for c in changes if not _is_stream(c.shared)]
    _warn_parting([update.shared for update, _, parts in made if parts], label)
    order = sorted(range(len(variables)), key=lambda i: not scattered[i])
    streams = _streams([*partials, *(c.new for c in changes)], changes, rows)
    recipe = Recipe(
        number=number,
        name=name,
        label=label,
        inputs=tuple(variables[i] for i in order),
        n_scattered=sum(scattered),
        outputs=tuple(partials),
        reductions=tuple(reductions),
        slicing=tuple(
            _slicing(v, rows, _proof(v, rows, infer))[0] if op is None else Slicing((v,), (op,))
            for v, op in zip(partials, reductions, strict=True)
        ),
        updates=tuple(update for update, _, _ in made),
        sliceables=tuple(sliceables),
        places=tuple(places),
        streams=tuple(streams),
        mode=mode,
        config={**settings(), "vectorised": vectorised},
        options=options,
        jax=runs_jax(mode),
        has_collectives=collectives,
    )
    return Plan(
        recipe=recipe,
        inputs=tuple(variables),
        types=tuple(v.type for v in asked),
        names=tuple(i.name for i in every),
        options=tuple(every),
        bare=tuple(not isinstance(v, In) for v in (*(inputs or ()), *(bcast_inputs or ()))),
        scattered=tuple(scattered),
        structure=structure,
        keys=keys,
        outputs=tuple(planned),
        shareds=tuple(dict.fromkeys([*used, *(c.shared for c in changes), *sliceables])),
        read=frozenset(s.container for s in (*used, *sliceables)),
        pure=not changes,
        whole=_MET if recipe.has_collectives else next((w for _, w, _ in made if w), ""),
    )


def _inputs(inputs: Any, what: str, downcast: bool | None) -> list[In]:
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


def _check_distinct(variables: list[Variable]) -> None:
    for i, variable in enumerate(variables):
        if variable in variables[:i]:
            raise InputError(f"input {variable} is listed twice")


def roots(inputs: Sequence[Variable]) -> list[Variable]:
    """The inputs; in place of one that is computed from others, a variable without an owner.

    PyTensor cuts the graph at the inputs: nothing above one is computed, drawn or updated.
    """
    return [v if v.owner is None else v.type(name=v.name) for v in inputs]


def parse_outputs(
    outputs: Any,
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


def _is_pair(value: Any) -> bool:
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
    """An update as the user gave it.

    Attributes
    ----------
    named : bool
        The user has named the reduction.
    scope : str
        "all": reduced over members. "local": each member has its own value. Empty: as "local", but
        the user has not said so.
    """

    shared: SharedVariable
    new: Variable
    reduction: Reduction | None = None
    named: bool = False
    scope: str = ""


def substituted(
    outputs: Sequence[Any],
    updates: Any,
    givens: Any,
    inputs: Sequence[Variable] = (),
    places: Sequence[Variable] = (),
) -> tuple[list[Any], list[Change]]:
    """Outputs and updates with the givens replaced; the latter also with default updates.

    `plan` takes both as they are. Between, gradients of the outputs can be taken. `places` are the
    `roots` of `inputs`.
    """
    wanted, pairs = [_parse_output(o) for o in outputs], _pairs(givens, inputs)
    substitution = Substitution(pairs, list(zip(inputs, places, strict=True)))
    found, changes = _with_default_updates(wanted, parse_updates(updates), substitution, False)
    return [(v, op) if named else v for v, op, named in found], changes


def parse_updates(updates: Any) -> list[Change]:
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
    items = [item if isinstance(item, Change) else tuple(item) for item in updates]
    short = [item for item in items if isinstance(item, tuple) and len(item) < 2]
    if short:
        raise InputError(
            f"updates: {shown(short[0])} is not a pair of a variable and its new value"
        )
    return items


def _new(shared: SharedVariable, new: Any) -> Variable:
    try:
        return shared.type.filter_variable(new, allow_convert=True)
    except (TypeError, ValueError, NotImplementedError) as exc:
        raise InputTypeError(
            f"the update of {shared} has another type than the variable, {shared.type}: {exc}"
        ) from None


Pairs = Sequence[tuple[Variable, Variable]]


def _pairs(
    givens: Any, inputs: Sequence[Variable], strict: bool = True
) -> list[tuple[Variable, Variable]]:
    if givens is None:
        return []
    pairs = list(givens.items()) if isinstance(givens, Mapping) else [tuple(p) for p in givens]
    for old, _ in pairs:
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


def _given(old: Variable, new: Any, strict: bool) -> Variable:
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


def _unfit(old: Variable, new: Any) -> InputTypeError:
    kind: Any = old.type
    found = new.type if isinstance(new, Variable) else _described(new)
    other: Any = new.type if isinstance(new, Variable) else new
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


def _described(value: Any) -> str:
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

    Attributes
    ----------
    pairs : list of pairs of Variable
    """

    def __init__(self, givens: Pairs, cuts: Pairs = (), strict: bool = True) -> None:
        self.strict = strict
        self.pairs = [(old, root) for old, root in cuts if root is not old]
        new = clone_replace([new for _, new in givens], self.pairs) if self.pairs else None
        self.pairs += givens if new is None else zip([old for old, _ in givens], new, strict=True)

    def __call__(self, variables: list[Variable]) -> list[Variable]:
        """The same graphs with all replaced."""
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


def _replaced(
    wanted: Wanted, changes: list[Change], substitution: Substitution
) -> tuple[Wanted, list[Change]]:
    if not substitution.pairs:
        return wanted, changes
    new = substitution([*(v for v, _, _ in wanted), *(c.new for c in changes)])
    replaced = [(v, op, named) for v, (_, op, named) in zip(new, wanted, strict=False)]
    for change, value in zip(changes, new[len(wanted) :], strict=True):
        change.new = _new(change.shared, value)
    return replaced, changes


def _without(given: Any) -> bool | list[Any]:
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


def _with_default_updates(
    wanted: Wanted, changes: list[Change], substitution: Substitution, without: bool | list[Any]
) -> tuple[Wanted, list[Change]]:
    """Replace the givens, and add the default updates of what the function then depends on.

    As in PyTensor, the givens are replaced in default updates too, and a default update may bring
    in variables that have one themselves.
    """
    have = {c.shared for c in changes} | set(without if isinstance(without, list) else ())
    given = list(changes)
    while True:
        replaced = _replaced(wanted, [replace(c) for c in given], substitution)
        moving = [
            s
            for s in _shareds([*(v for v, _, _ in replaced[0]), *(c.new for c in replaced[1])])
            if s.default_update is not None and s not in have
        ]
        if without is True or not moving:
            return replaced
        given += [Change(s, _new(s, s.default_update)) for s in moving]
        have.update(moving)


def _sliceables(given: Any, wanted: Wanted, changes: list[Change]) -> list[SharedVariable]:
    if given is None:
        return []
    used = set(_shareds([*(v for v, _, _ in wanted), *(c.new for c in changes)]))
    for shared in given:
        if not isinstance(shared, SharedVariable):
            raise InputTypeError(f"sliceable_shareds: {shown(shared)} is not a shared variable")
        if shared not in used:
            raise InputError(f"sliceable_shareds: {shared} is not used by the function")
        if hasattr(shared.type, "format") or not getattr(shared.type, "ndim", 0):
            raise InputError(f"sliceable_shareds: {shared} is {shared.type}, which has no rows")
    return list(given)


def _is_scattered(variable: Variable) -> bool:
    """Whether an input is cut into parts: scalars are broadcast wherever they are listed."""
    kind: Any = variable.type
    if hasattr(kind, "format"):
        raise InputTypeError(
            f"input {variable.name or variable} is {kind}: the rows of a sparse matrix are not "
            "divided among members. Make it a dense input, or list it in bcast_inputs"
        )
    return bool(getattr(kind, "ndim", 0))


def _of_any_length(
    variables: list[Variable], scattered: list[bool], sliceables: list[SharedVariable]
) -> tuple[list[Variable], list[Variable]]:
    """Variables that replace inputs and sliceables in the graphs, with types of any length.

    A length in a type is that of all rows, and PyTensor would compile it for a part.
    """
    inputs = [_without_length(v) if s else v for v, s in zip(variables, scattered, strict=True)]
    return inputs, [_without_length(s, s.type(name=s.name)) for s in sliceables]


def _without_length(variable: Variable, place: Variable | None = None) -> Variable:
    """The variable (or its place), of a type that fixes no length of axis 0; 1 broadcasts."""
    kind: Any = variable.type
    if kind.shape[0] in (None, 1):
        return variable if place is None else place
    found: Variable = kind.clone(shape=(None, *kind.shape[1:]))(name=variable.name)
    return found


def _check_options(options: Mapping[str, Any]) -> None:
    known = inspect.signature(pytensor.function).parameters
    unknown = [name for name in options if name not in known]
    if unknown:
        raise InputTypeError(
            f"synk.function has no parameter {unknown[0]!r}: it has inputs, outputs, bcast_inputs, "
            "updates, givens, sliceable_shareds, and those of pytensor.function"
        )


def _check_inputs(
    variables: list[Variable], outputs: list[Variable], changes: list[Change], how: str | None
) -> None:
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


def _shareds(roots: Iterable[Variable]) -> list[SharedVariable]:
    return _shareds_among(ancestors(list(roots)))


def _shareds_among(variables: Iterable[Variable]) -> list[SharedVariable]:
    return list(dict.fromkeys(v for v in variables if isinstance(v, SharedVariable)))


def _is_stream(shared: SharedVariable) -> bool:
    return isinstance(shared.type, RandomType)


def _streams(roots: list[Variable], changes: list[Change], rows: list[Variable]) -> list[Stream]:
    after = {c.shared: c.new for c in changes if _is_stream(c.shared)}
    found = [s for s in dict.fromkeys([*_shareds(roots), *after]) if _is_stream(s)]
    return [Stream(s, after.get(s), s in after and depends_on(after[s], rows)) for s in found]


# The name that PyTensor gives to an output that can be computed from means.
_FROM_MEANS = {
    "std": ", or compute pt.sqrt((z**2).mean() - z.mean() ** 2), which is exact",
    "var": ", or compute (z**2).mean() - z.mean() ** 2, which is exact",
}


def _plan_output(
    variable: Variable,
    op: Reduction | None,
    fixed: bool,
    rows: list[Variable],
    infer: bool,
    partials: list[Variable],
    reductions: list[Reduction | None],
    function: str,
) -> OutputPlan:
    def add(v: Variable, reduction: Reduction | None) -> int:
        _check_combined(v, reduction, f"function {function}: output {variable}")
        for i, (known, other) in enumerate(zip(partials, reductions, strict=True)):
            if known is v and other is reduction:
                return i
        partials.append(v)
        reductions.append(reduction)
        return len(partials) - 1

    if not fixed and not depends_on(variable, rows):
        shareds = tuple(_shareds_among(unmet_ancestors(variable)))
        return OutputPlan(variable, None, (add(variable, None),), shareds=shareds)
    found = _proof(variable, rows, infer)
    if fixed:
        _check_named(variable, op, found, f"function {function}: output {variable}", rows)
        whole = "" if op is not None else _slicing(variable, rows, found)[1]
        why = f'output {variable}, of reduction None ({whole}). Name one: (output, "avg")'
        index = add(variable, op)
        return OutputPlan(variable, op, (index,), fixed=True, whole=whole and why)
    if isinstance(found, Unproved):
        _check_combined(variable, Reduction.AVG, f"function {function}: output {variable}")
        if infer:
            divided = ", ".join(str(v) for v in rows if depends_on(variable, [v]))
            warn(
                f"function {function}: output {variable} is averaged over members, weighted by "
                f"rows, since no reduction over the rows of {divided} can be proved "
                f"({found.reason}). If the average of the "
                'members\' values is right, say so: (output, "avg"). Else name another reduction'
                f"{_FROM_MEANS.get(variable.name or '', '')}",
                ReductionWarning,
            )
        return OutputPlan(variable, Reduction.AVG, (add(variable, Reduction.AVG),))
    finish, alike = _finish(found)
    indices = [add(p.variable, parse(p.reduction)) for p in found.partials]
    indices += [add(v, None) for v in alike]
    mode = parse(found.partials[0].reduction) if finish is None else None
    return OutputPlan(variable, mode, tuple(indices), finish)


def _check_combined(value: Variable, op: Reduction | None, what: str) -> None:
    """Refuse a reduction that values of this type do not have."""
    if op is None:
        return
    kind: Any = value.type
    if not (is_dense(kind) or isinstance(kind, ScalarType)):
        raise InputTypeError(
            f'{what} is {kind}, which members cannot combine by "{op}": name the reduction '
            "None, for the master's own value"
        )
    check_adds(op, kind.dtype, what)


def _check_named(
    variable: Variable,
    op: Reduction | None,
    found: Proof | Unproved,
    what: str,
    rows: list[Variable],
    remedy: str = "Name no reduction (it is inferred, exactly), or make two outputs of it",
) -> None:
    """Raise or warn if a reduction over members is provably wrong."""
    if not isinstance(found, Proof):
        return
    if found.penalised and op in (Reduction.AVG, Reduction.SUM):
        raise InputError(
            f"{what} is a sum over rows plus a term that does not depend on them; "
            f'"{op}" over members counts that term wrongly. {remedy}'
        )
    is_ = found.refutes(op)
    if rows and is_:
        warn(
            f'{what} is {is_}; its "{op}" over members is another value, which depends on their '
            f"number. {remedy}. To have it nevertheless, filter this warning, or fork(infer=False)",
            ReductionWarning,
        )
    alike = found.finished is None and found.partials[0].reduction is None
    if rows and alike and op in (Reduction.SUM, Reduction.PROD):
        raise InputError(
            f'{what} is the same in all members; its "{op}" would depend on how many members and '
            f'slices there are. Name no reduction, or "avg"; for the {op} over members, '
            "synk.reduce(variable, op, in_place=False)"
        )


def _proof(value: Variable, rows: list[Variable], infer: bool) -> Proof | Unproved:
    if not infer:
        return Unproved("")
    return prove(value, [*rows, *row_draws(value, rows)])


def _slicing(value: Variable, rows: list[Variable], proof: Proof | Unproved) -> tuple[Slicing, str]:
    """How slices make a part's value; and if that is unknown, the reason."""
    if not depends_on(value, rows):
        return Slicing((value,), (None,)), ""
    if isinstance(proof, Unproved):
        return Slicing((value,), (Reduction.AVG,)), proof.reason
    finish, alike = _finish(proof)
    reductions = [parse(p.reduction) for p in proof.partials] + [None] * len(alike)
    return Slicing((*(p.variable for p in proof.partials), *alike), tuple(reductions), finish), ""


def _plan_update(change: Change, rows: list[Variable], infer: bool) -> tuple[Update, str, bool]:
    """How slices make a new value, as named or as proved; else the reason why they cannot.

    Third, whether the members' values part, from call to call, and the user has not asked for it.
    """
    by_rows = depends_on(change.new, rows)
    op, shared, whole = change.reduction, change.shared, ""
    _check_combined(change.new, op, f"the new value of {shared}")
    proof = _proof(change.new, rows, infer)
    if change.scope == "all":
        _check_named(
            change.new,
            op,
            proof,
            f"the new value of {shared}",
            rows,
            'Reduce the total into a variable of its own, by (variable, total, op, "all"), and '
            "compute the new value from it in a second function",
        )
    slicing = Slicing((change.new,), (op,))
    if not change.named or (op is None and by_rows):
        slicing, why = _slicing(change.new, rows, proof)
        whole = why and f'the new value of {shared} ({why}). Name one: (variable, new, "avg")'
        op = slicing.reductions[0] if slicing.finish is None else None
    unmet = unmet_ancestors(change.new)
    own, sources = any(map(is_own, unmet)), tuple(_shareds_among(unmet))
    met = has_collectives([change.new]) and not own
    alike = by_rows and met and (_is_alike(proof) or not any(v in unmet for v in rows))
    apart = own or (by_rows and not alike and not _is_alike(proof))
    everywhere = change.scope == "all"
    update = Update(shared, change.new, op, slicing, everywhere, by_rows, alike, own, sources)
    reads_itself = any(s.container is shared.container for s in sources)
    if apart and not change.scope and not reads_itself:
        log.info(
            "the update of %s depends on scattered rows: each member keeps its own value "
            '(reduce it with synk.all_reduce, or give (var, new, reduction, "all"))',
            shared,
        )
    return update, whole, apart and reads_itself and not change.scope


def _warn_parting(shareds: Sequence[SharedVariable], function: str) -> None:
    if not shareds:
        return
    names = ", ".join(str(s) for s in shareds)
    warn(
        f"function {function}: the members' values of {names} will differ, since each new value "
        "depends on the old one and on scattered rows, and each member has rows of its own. "
        f'Write ({shareds[0]}, new, "avg", "all") for one value in all members, which is exact if '
        f'new is affine in a mean over rows; or ({shareds[0]}, new, "avg", "local") if each member '
        "shall have its own",
        LocalUpdateWarning,
    )


def _is_alike(proof: Proof | Unproved) -> bool:
    """Whether a value is proved to be the same in all members."""
    return isinstance(proof, Proof) and proof.finished is None and not proof.partials[0].reduction
