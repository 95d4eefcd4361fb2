"""Makes the recipe of a function from its outputs, reductions, updates and givens.

Everything is checked here, before anything is shipped.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pytensor
import pytensor.tensor as pt
from pytensor.compile.io import In, Out
from pytensor.compile.rebuild import UnusedInputError
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.replace import clone_replace
from pytensor.graph.traversal import ancestors
from pytensor.tensor.random.type import RandomType

from synkhronos._backends.jax import runs_jax
from synkhronos._engine.graph_collectives import has_collectives
from synkhronos._engine.replicas import Finish, Recipe, Slicing, Stream, Update, settings
from synkhronos._errors import InputError, InputTypeError, place_of_user
from synkhronos._plan.inference import Proof, Unproved, depends_on, prove
from synkhronos._plan.reductions import Reduction, parse

log = logging.getLogger("synkhronos")

Structure = Literal["none", "single", "list", "dict"]


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


_MET = "statistics over the rows of all members: compute each part at once"


@dataclass(frozen=True)
class Plan:
    """The master's description of a function."""

    recipe: Recipe
    inputs: tuple[Variable, ...]
    types: tuple[Any, ...]  # of the inputs that the user has passed
    names: tuple[str | None, ...]
    defaults: tuple[Any, ...]
    scattered: tuple[bool, ...]
    structure: Structure
    keys: tuple[str, ...]
    outputs: tuple[OutputPlan, ...]
    shareds: tuple[SharedVariable, ...]
    pure: bool  # without updates of any kind
    whole: str  # why a new value cannot be computed from slices; empty if all can

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
    options: dict[str, Any],
) -> Plan:
    """Check the arguments of `function` and make its plan."""
    mode, name, unused = (options.pop(k, None) for k in ("mode", "name", "on_unused_input"))
    _check_options(options)
    label = name or f"at {place_of_user()}"
    bound = _inputs(inputs, "inputs"), _inputs(bcast_inputs, "bcast_inputs")
    variables = [i.variable for i in (*bound[0], *bound[1])]
    types = tuple(v.type for v in variables)
    _check_distinct(variables)
    structure, keys, wanted = parse_outputs(outputs)
    changes = parse_updates(updates)
    wanted, changes = _replaced(wanted, changes, _pairs(givens))
    _add_default_updates(wanted, changes, options.pop("no_default_updates", False))
    sliceables = _sliceables(sliceable_shareds, wanted, changes)
    scattered = [_is_scattered(i.variable) for i in bound[0]] + [False] * len(bound[1])
    _check_inputs(variables, [v for v, _, _ in wanted], changes, unused)
    used = _shareds([*(v for v, _, _ in wanted), *(c.new for c in changes)])
    given = [*variables, *sliceables]
    variables, places = _of_any_length(variables, scattered, sliceables)
    exchanged = [(a, b) for a, b in zip(given, [*variables, *places], strict=True) if a is not b]
    wanted, changes = _replaced(wanted, changes, exchanged, strict=False)
    rows = [v for v, s in zip(variables, scattered, strict=True) if s] + places
    partials: list[Variable] = []
    reductions: list[Reduction | None] = []
    planned = [
        _plan_output(v, op, fixed, rows, infer, partials, reductions, label)
        for v, op, fixed in wanted
    ]
    made = [_plan_update(c, rows, infer) for c in changes if not _is_stream(c.shared)]
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
            _slicing(v, rows, infer)[0] if op is None else Slicing((v,), (op,))
            for v, op in zip(partials, reductions, strict=True)
        ),
        updates=tuple(update for update, _ in made),
        sliceables=tuple(sliceables),
        places=tuple(places),
        streams=tuple(streams),
        mode=mode,
        config=settings(),
        options=options,
        jax=runs_jax(mode),
        has_collectives=has_collectives([*partials, *(u.new for u, _ in made)]),
    )
    return Plan(
        recipe=recipe,
        inputs=tuple(variables),
        types=types,
        names=tuple(i.name or i.variable.name for i in (*bound[0], *bound[1])),
        defaults=tuple(i.value for i in (*bound[0], *bound[1])),
        scattered=tuple(scattered),
        structure=structure,
        keys=keys,
        outputs=tuple(planned),
        shareds=tuple(dict.fromkeys([*used, *(c.shared for c in changes), *sliceables])),
        pure=not changes,
        whole=_MET if recipe.has_collectives else next((w for _, w in made if w), ""),
    )


def _inputs(inputs: Any, what: str) -> list[In]:
    if inputs is None:
        return []
    if not isinstance(inputs, list | tuple):
        raise InputTypeError(f"{what} must be a list of variables, found {type(inputs).__name__}")
    found = []
    for given in inputs:
        variable = given.variable if isinstance(given, In) else given
        if not isinstance(variable, Variable) or isinstance(variable, SharedVariable):
            raise InputTypeError(f"{what}: {given!r} is not an input variable")
        if not isinstance(given, In):
            given = In(given)
        if given.update is not None:
            raise InputError(f"{what}: In(..., update=) is not supported: use updates=")
        found.append(given)
    return found


def _check_distinct(variables: list[Variable]) -> None:
    for i, variable in enumerate(variables):
        if variable in variables[:i]:
            raise InputError(f"input {variable} is listed twice")


def parse_outputs(
    outputs: Any,
) -> tuple[Structure, tuple[str, ...], list[tuple[Variable, Reduction | None, bool]]]:
    """Read every form of outputs: (structure, keys, [(variable, reduction, named)]).

    A tuple of a variable and a reduction's name (or None) is one output; every other tuple is a
    list.
    """
    if outputs is None:
        return "none", (), []
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
                f"output {output!r}: give a variable or a pair (variable, reduction's name)"
            )
        output, reduction, named = output[0], parse(output[1]), True
    return _variable(output), reduction, named


def _variable(output: Any) -> Variable:
    variable = output.variable if isinstance(output, Out) else output
    if isinstance(variable, Variable):
        return variable
    try:
        return pt.as_tensor_variable(variable)
    except Exception as exc:
        raise InputTypeError(f"output {output!r} is not a variable ({exc})") from None


@dataclass
class Change:
    """An update as the user gave it."""

    shared: SharedVariable
    new: Variable
    reduction: Reduction | None
    named: bool
    everywhere: bool


def parse_updates(updates: Any) -> list[Change]:
    """Read every form of updates: dict or pairs, (var, new[, reduction[, "all"]])."""
    items = _update_items(updates)
    found: list[Change] = []
    for item in items:
        shared, new, *rest = item
        if not isinstance(shared, SharedVariable):
            raise InputTypeError(f"updates: {shared!r} is not a shared variable")
        if any(shared is c.shared for c in found):
            raise InputError(f"updates: {shared} is updated twice")
        if len(rest) > 2 or (len(rest) == 2 and rest[1] != "all"):
            raise InputError(
                f"updates of {shared}: give (var, new), (var, new, reduction) or "
                f'(var, new, reduction, "all"), found {item!r}'
            )
        op = parse(rest[0], f"reduction of the update of {shared}") if rest else None
        if len(rest) == 2 and op in (None, Reduction.GATHER):
            raise InputError(f'updates of {shared}: an "all" update cannot be reduced by {op}')
        found.append(Change(shared, _new(shared, new), op, bool(rest), len(rest) == 2))
    return found


def _update_items(updates: Any) -> list[tuple[Any, ...]]:
    if updates is None:
        return []
    if isinstance(updates, Mapping):
        return [(k, *v) if isinstance(v, tuple) else (k, v) for k, v in updates.items()]
    items = [tuple(item) for item in updates]
    short = [item for item in items if len(item) < 2]
    if short:
        raise InputError(f"updates: {short[0]!r} is not a pair of a variable and its new value")
    return items


def _new(shared: SharedVariable, new: Any) -> Variable:
    try:
        return shared.type.filter_variable(new, allow_convert=True)
    except (TypeError, ValueError, NotImplementedError) as exc:
        raise InputTypeError(
            f"the update of {shared} has another type than the variable, {shared.type}: {exc}"
        ) from None


def _pairs(givens: Any) -> list[tuple[Variable, Any]]:
    if givens is None:
        return []
    pairs = list(givens.items()) if isinstance(givens, Mapping) else [tuple(p) for p in givens]
    return [
        (old, new if isinstance(new, Variable) else old.type.filter_variable(new))
        for old, new in pairs
    ]


Wanted = list[tuple[Variable, Reduction | None, bool]]


def _replaced(
    wanted: Wanted,
    changes: list[Change],
    givens: list[tuple[Variable, Any]],
    strict: bool = True,
) -> tuple[Wanted, list[Change]]:
    """Replace the givens in the whole graph at once."""
    if not givens:
        return wanted, changes
    roots = [*(v for v, _, _ in wanted), *(c.new for c in changes)]
    new = clone_replace(roots, replace=givens, rebuild_strict=strict)
    replaced = [(v, op, named) for v, (_, op, named) in zip(new, wanted, strict=False)]
    for change, value in zip(changes, new[len(wanted) :], strict=True):
        change.new = _new(change.shared, value)
    return replaced, changes


def _add_default_updates(wanted: Wanted, changes: list[Change], without: Any) -> None:
    if isinstance(without, SharedVariable):
        without = [without]
    if without is True:
        return
    have = {c.shared for c in changes} | set(without or ())
    for shared in _shareds([*(v for v, _, _ in wanted), *(c.new for c in changes)]):
        if shared.default_update is not None and shared not in have:
            changes.append(Change(shared, shared.default_update, None, False, False))


def _sliceables(given: Any, wanted: Wanted, changes: list[Change]) -> list[SharedVariable]:
    if given is None:
        return []
    used = set(_shareds([*(v for v, _, _ in wanted), *(c.new for c in changes)]))
    for shared in given:
        if not isinstance(shared, SharedVariable):
            raise InputTypeError(f"sliceable_shareds: {shared!r} is not a shared variable")
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
    return bool(kind.ndim > 0)


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
    used = set(ancestors([*outputs, *(c.new for c in changes)], blockers=variables))
    free = [v for v in used if v.owner is None and not isinstance(v, Constant | SharedVariable)]
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
    log.warning(text)


def _shareds(roots: Iterable[Variable]) -> list[SharedVariable]:
    found = [v for v in ancestors(list(roots)) if isinstance(v, SharedVariable)]
    return list(dict.fromkeys(found))


def _is_stream(shared: SharedVariable) -> bool:
    return isinstance(shared.type, RandomType)


def _streams(roots: list[Variable], changes: list[Change], rows: list[Variable]) -> list[Stream]:
    after = {c.shared: c.new for c in changes if _is_stream(c.shared)}
    found = [s for s in dict.fromkeys([*_shareds(roots), *after]) if _is_stream(s)]
    return [Stream(s, after.get(s), s in after and depends_on(after[s], rows)) for s in found]


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
        for i, (known, other) in enumerate(zip(partials, reductions, strict=True)):
            if known is v and other is reduction:
                return i
        partials.append(v)
        reductions.append(reduction)
        return len(partials) - 1

    if not fixed and not depends_on(variable, rows):
        shareds = tuple(_shareds([variable]))
        return OutputPlan(variable, None, (add(variable, None),), shareds=shareds)
    found = prove(variable, rows) if infer else Unproved("inference is switched off")
    if fixed:
        _check_named(variable, op, found, f"function {function}: output {variable}", rows)
        whole = "" if op is not None else _slicing(variable, rows, infer)[1]
        why = f'output {variable}, of reduction None ({whole}). Name one: (output, "avg")'
        index = add(variable, op)
        return OutputPlan(variable, op, (index,), fixed=True, whole=whole and why)
    if isinstance(found, Unproved):
        if infer:
            log.warning(
                "function %s: output %s is averaged over members, weighted by rows, since no "
                "reduction can be proved (%s). If the members' averages make the right value say "
                'so, (output, "avg"); if not, name another',
                function,
                variable,
                found.reason,
            )
        return OutputPlan(variable, Reduction.AVG, (add(variable, Reduction.AVG),))
    finish, alike = _finish(found)
    indices = [add(p.variable, parse(p.reduction)) for p in found.partials]
    indices += [add(v, None) for v in alike]
    mode = parse(found.partials[0].reduction) if finish is None else None
    return OutputPlan(variable, mode, tuple(indices), finish)


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
    alike = found.finished is None and found.partials[0].reduction is None
    if rows and alike and op in (Reduction.SUM, Reduction.PROD):
        raise InputError(
            f'{what} is the same in all members; its "{op}" would depend on how many members and '
            f'slices there are. Name no reduction, or "avg"; for the {op} over members, '
            "synk.reduce(variable, op, in_place=False)"
        )


def _slicing(value: Variable, rows: list[Variable], infer: bool) -> tuple[Slicing, str]:
    """How slices make a part's value; and if that is unknown, the reason."""
    if not depends_on(value, rows):
        return Slicing((value,), (None,)), ""
    proof = prove(value, rows) if infer else Unproved("")
    if isinstance(proof, Unproved):
        return Slicing((value,), (Reduction.AVG,)), proof.reason
    finish, alike = _finish(proof)
    reductions = [parse(p.reduction) for p in proof.partials] + [None] * len(alike)
    return Slicing((*(p.variable for p in proof.partials), *alike), tuple(reductions), finish), ""


def _plan_update(change: Change, rows: list[Variable], infer: bool) -> tuple[Update, str]:
    """How slices make a new value, as named or as proved; else the reason why they cannot."""
    by_rows = depends_on(change.new, rows)
    op, shared, whole = change.reduction, change.shared, ""
    if change.everywhere and infer:
        _check_named(
            change.new,
            op,
            prove(change.new, rows),
            f"the new value of {shared}",
            rows,
            "Reduce the sum into a separate variable, and add the term in a second function",
        )
    slicing = Slicing((change.new,), (op,))
    if not change.named or (op is None and by_rows):
        slicing, why = _slicing(change.new, rows, infer)
        whole = why and f'the new value of {shared} ({why}). Name one: (variable, new, "avg")'
        op = slicing.reductions[0] if slicing.finish is None else None
    alike = by_rows and has_collectives([change.new]) and _is_alike(change.new, rows, infer)
    if by_rows and not (change.everywhere or alike):
        log.info(
            "the update of %s depends on scattered rows: each member keeps its own value "
            '(reduce it with synk.all_reduce, or give (var, new, reduction, "all"))',
            shared,
        )
    sources = tuple(_shareds([change.new]))
    update = Update(shared, change.new, op, slicing, change.everywhere, by_rows, alike, sources)
    return update, whole


def _is_alike(value: Variable, rows: list[Variable], infer: bool) -> bool:
    """Whether a value is proved to be the same in all members."""
    found = prove(value, rows) if infer else Unproved("")
    return isinstance(found, Proof) and found.finished is None and not found.partials[0].reduction
