"""Outputs, reductions, updates and givens -> the recipe of a replica, and what the master adds.

Everything is checked here, before anything is shipped.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pytensor
import pytensor.tensor as pt
from pytensor.compile.io import In, Out
from pytensor.compile.mode import Mode
from pytensor.compile.rebuild import UnusedInputError
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.replace import clone_replace
from pytensor.graph.traversal import ancestors
from pytensor.tensor.random.type import RandomType

from synkhronos._errors import InputError, InputTypeError
from synkhronos._inference import Proof, Unproved, depends_on, prove
from synkhronos._reductions import Reduction, parse
from synkhronos._replicas import Recipe, Stream, Update, settings

log = logging.getLogger("synkhronos")

Structure = Literal["none", "single", "list", "dict"]


@dataclass(frozen=True)
class OutputPlan:
    """How one output of the user's comes about.

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
    """

    variable: Variable
    mode: Reduction | None
    partials: tuple[int, ...]
    finish: Finish | None = None
    fixed: bool = False
    shareds: tuple[SharedVariable, ...] = ()


@dataclass(frozen=True)
class Plan:
    """A function as the master knows it."""

    recipe: Recipe
    inputs: tuple[Variable, ...]
    names: tuple[str | None, ...]
    defaults: tuple[Any, ...]
    scattered: tuple[bool, ...]
    structure: Structure
    keys: tuple[str, ...]
    outputs: tuple[OutputPlan, ...]
    shareds: tuple[SharedVariable, ...]
    pure: bool  # without updates of any kind


@dataclass(eq=False)
class Finish:
    """An expression of reduced values, evaluated once, in the master."""

    placeholders: tuple[Variable, ...]
    finished: Variable
    _function: Any = None

    def __call__(self, values: Sequence[Any]) -> Any:
        """The value of the output."""
        if self._function is None:
            self._function = pytensor.function(
                self.placeholders,
                self.finished,
                mode=Mode(linker="py", optimizer="fast_compile"),  # small, and no compiler wait
                on_unused_input="ignore",
            )
        typed = [
            p.type.filter(v, allow_downcast=True)
            for p, v in zip(self.placeholders, values, strict=True)
        ]
        return self._function(*typed)


def _finish(proof: Proof) -> tuple[Finish | None, list[Variable]]:
    """What makes the output of the reduced partials, and of values that all members have alike.

    Those are expressions of shared variables and inputs: each member's compiled function computes
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
    bound = _inputs(inputs, "inputs"), _inputs(bcast_inputs, "bcast_inputs")
    variables = [i.variable for i in (*bound[0], *bound[1])]
    _check_distinct(variables)
    structure, keys, wanted = parse_outputs(outputs)
    changes = parse_updates(updates)
    wanted, changes = _replaced(wanted, changes, _pairs(givens))
    _add_default_updates(wanted, changes)
    sliceables = _sliceables(sliceable_shareds, wanted, changes)
    # scalars cannot be cut: they are broadcast wherever they are listed
    scattered = [i.variable.type.ndim > 0 for i in bound[0]] + [False] * len(bound[1])
    rows = [v for v, s in zip(variables, scattered, strict=True) if s] + sliceables
    _check_unused(variables, [v for v, _, _ in wanted], changes, unused)
    partials: list[Variable] = []
    reductions: list[Reduction | None] = []
    planned = [
        _plan_output(v, op, fixed, rows, infer, partials, reductions, name or f"#{number}")
        for v, op, fixed in wanted
    ]
    order = sorted(range(len(variables)), key=lambda i: not scattered[i])
    streams = _streams([*partials, *(c.new for c in changes)], changes, rows)
    recipe = Recipe(
        number=number,
        name=name,
        inputs=tuple(variables[i] for i in order),
        n_scattered=sum(scattered),
        outputs=tuple(partials),
        reductions=tuple(reductions),
        slicing=tuple(
            _reduction_of(v, rows, infer) if op is None else op
            for v, op in zip(partials, reductions, strict=True)
        ),
        updates=tuple(
            _slice_reduction(c, rows, infer) for c in changes if not _is_stream(c.shared)
        ),
        sliceables=tuple(sliceables),
        streams=tuple(streams),
        mode=mode,
        config=settings(),
        options=options,
    )
    used = _shareds([*(v for v, _, _ in wanted), *(c.new for c in changes)])
    return Plan(
        recipe=recipe,
        inputs=tuple(variables),
        names=tuple(i.name or i.variable.name for i in (*bound[0], *bound[1])),
        defaults=tuple(i.value for i in (*bound[0], *bound[1])),
        scattered=tuple(scattered),
        structure=structure,
        keys=keys,
        outputs=tuple(planned),
        shareds=tuple(dict.fromkeys([*used, *(c.shared for c in changes), *sliceables])),
        pure=not changes,
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
            raise InputTypeError(f"{what}: {given!r} is no input variable")
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
        raise InputTypeError(f"output {output!r} is no variable ({exc})") from None


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
            raise InputTypeError(f"updates: {shared!r} is no shared variable")
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
        raise InputError(f"updates: {short[0]!r} is no pair of a variable and its new value")
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
    wanted: Wanted, changes: list[Change], givens: list[tuple[Variable, Any]]
) -> tuple[Wanted, list[Change]]:
    """Carry the givens out, over the whole graph at once."""
    if not givens:
        return wanted, changes
    roots = [*(v for v, _, _ in wanted), *(c.new for c in changes)]
    new = clone_replace(roots, replace=givens)
    replaced = [(v, op, named) for v, (_, op, named) in zip(new, wanted, strict=False)]
    for change, value in zip(changes, new[len(wanted) :], strict=True):
        change.new = value
    return replaced, changes


def _add_default_updates(wanted: Wanted, changes: list[Change]) -> None:
    have = {c.shared for c in changes}
    for shared in _shareds([*(v for v, _, _ in wanted), *(c.new for c in changes)]):
        if shared.default_update is not None and shared not in have:
            changes.append(Change(shared, shared.default_update, None, False, False))


def _sliceables(given: Any, wanted: Wanted, changes: list[Change]) -> list[SharedVariable]:
    if given is None:
        return []
    used = set(_shareds([*(v for v, _, _ in wanted), *(c.new for c in changes)]))
    for shared in given:
        if not isinstance(shared, SharedVariable):
            raise InputTypeError(f"sliceable_shareds: {shared!r} is no shared variable")
        if shared not in used:
            raise InputError(f"sliceable_shareds: {shared} is not used by the function")
        if not getattr(shared.type, "ndim", 0):
            raise InputError(f"sliceable_shareds: {shared} has no rows")
    return list(given)


def _check_unused(
    variables: list[Variable], outputs: list[Variable], changes: list[Change], how: str | None
) -> None:
    how = how or pytensor.config.on_unused_input
    used = set(ancestors([*outputs, *(c.new for c in changes)]))
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

    if not depends_on(variable, rows) and not fixed:
        shareds = tuple(_shareds([variable]))
        return OutputPlan(variable, None, (add(variable, None),), shareds=shareds)
    found = prove(variable, rows) if infer else Unproved("inference is switched off")
    if fixed:
        _check_named(variable, op, found, function)
        return OutputPlan(variable, op, (add(variable, op),), fixed=True)
    if isinstance(found, Unproved):
        if infer:
            log.warning(
                "function %s: output %s is averaged over members, weighted by rows, since no "
                'reduction can be proved (%s). Name one: (output, "avg")',
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
    variable: Variable, op: Reduction | None, found: Proof | Unproved, function: str
) -> None:
    wrong = isinstance(found, Proof) and found.penalised and op in (Reduction.AVG, Reduction.SUM)
    if wrong:
        raise InputError(
            f"function {function}: output {variable} is a sum over rows plus a term that does not "
            f'depend on them; "{op}" over members counts that term wrongly. Name no reduction '
            "(it is inferred, exactly), or make two outputs of it"
        )


def _reduction_of(value: Variable, rows: list[Variable], infer: bool) -> Reduction | None:
    """How the slices of a part make the part's value: as proved, else the mean."""
    if not depends_on(value, rows):
        return None
    proof = prove(value, rows) if infer else None
    if isinstance(proof, Proof) and proof.finished is None:
        return parse(proof.partials[0].reduction)
    return Reduction.AVG


def _slice_reduction(change: Change, rows: list[Variable], infer: bool) -> Update:
    """How the values of slices make the new value: as named, as proved, else the mean."""
    by_rows = depends_on(change.new, rows)
    op = change.reduction
    if change.everywhere and by_rows and infer:
        _check_named(change.new, op, prove(change.new, rows), f"update of {change.shared}")
    if not change.named:
        op = _reduction_of(change.new, rows, infer)
    if by_rows and not change.everywhere:
        log.info(
            "the update of %s depends on scattered rows: each member keeps a value of its own "
            '(reduce it with synk.all_reduce, or give (var, new, reduction, "all"))',
            change.shared,
        )
    sources = tuple(_shareds([change.new]))
    return Update(change.shared, change.new, op, change.everywhere, by_rows, sources)
