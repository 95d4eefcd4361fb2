"""The plan of a function: what members compute, how it is reduced, what the master makes of it.

These rules hold:

* The plan is made in the master alone, before anything is shipped. All that can be refused is
  refused here, so a bad function never reaches a member.
* A plan is a value, and follows from the arguments only: no later call changes it.
* A reduction is inferred where it is proved (`_proofs`), and nowhere else. An unproved
  output is averaged, with a warning that says why. A named reduction wins.
* The graph of a part does not depend on the number of members or slices. Lengths in types are
  therefore removed first: PyTensor would compile the length of all rows into a part.
* A value that parts give, and one that slices give, may need different graphs: `Slicing` holds the
  latter. Where there is no proof for slices, the plan says why (`whole`), and calls refuse them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pytensor.compile.io import In
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.replace import clone_replace
from pytensor.graph.traversal import ancestors
from pytensor.scalar.basic import ScalarType
from pytensor.tensor.random.type import RandomType
from pytensor.tensor.type import TensorType

from synkhronos._backends.jax import runs_jax
from synkhronos._compiling.graph_types import tensor_type
from synkhronos._engine.function_arguments import (
    Change,
    Structure,
    Substitution,
    check_distinct,
    check_function_options,
    check_inputs,
    inputs_of,
    is_scattered,
    pairs_of,
    parse_outputs,
    parse_updates,
    replaced,
    roots,
    shareds_among,
    shareds_of,
    sliceables_of,
    with_default_updates,
    without_defaults,
)
from synkhronos._engine.graph_collectives import has_collectives, is_own, unmet_ancestors
from synkhronos._engine.replicas import Finish, Recipe, Slicing, Stream, Update, is_dense, settings
from synkhronos._errors import InputError, InputTypeError, LocalUpdateWarning, ReductionWarning
from synkhronos._proofs import Proof, Unproved, depends_on, prove, row_draws
from synkhronos._proofs.reductions import Reduction, check_adds, parse
from synkhronos._proofs.walk import Made
from synkhronos._warnings import log, place_of_user, warn


@dataclass(frozen=True)
class OutputPlan:
    """How one of the user's outputs is computed."""

    variable: Variable
    mode: Reduction | None
    partials: tuple[int, ...]  # which outputs of the recipe it is made of
    # what the master does with their reduced values; None: the one partial is the output
    finish: Finish | None = None
    # the reduction was named by the user. Else an output that does not depend on rows is averaged
    # where the shared variables it depends on differ between members
    fixed: bool = False
    shareds: tuple[SharedVariable, ...] = ()  # what an output without rows depends on
    whole: str = ""  # why its value cannot be put together from slices; empty if it can


_MET = "collectives over all members: compute each part at once"


@dataclass(frozen=True)
class Plan:
    """The master's description of a function."""

    recipe: Recipe
    inputs: tuple[Variable, ...]
    types: tuple[TensorType, ...]  # of the inputs that the user has passed
    names: tuple[str | None, ...]
    options: tuple[In, ...]
    bare: tuple[bool, ...]  # the user has passed the variable itself, and no `In`
    scattered: tuple[bool, ...]
    structure: Structure
    keys: tuple[str, ...]
    outputs: tuple[OutputPlan, ...]
    shareds: tuple[SharedVariable, ...]
    read: frozenset[object]  # the containers of those whose values the function depends on
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
    outputs: object,
    bcast_inputs: Any,
    updates: object,
    givens: object,
    sliceable_shareds: object,
    infer: bool,
    vectorised: bool,
    options: dict[str, Any],
) -> Plan:
    """Check the arguments of `function` and make its plan."""
    mode, name, unused = (options.pop(k, None) for k in ("mode", "name", "on_unused_input"))
    check_function_options(options)
    label = name or f"at {place_of_user()}"
    downcast = options.pop("allow_input_downcast", None)
    bound = inputs_of(inputs, "inputs", downcast), inputs_of(bcast_inputs, "bcast_inputs", downcast)
    every = [*bound[0], *bound[1]]
    asked = [i.variable for i in every]
    check_distinct(asked)
    structure, keys, wanted = parse_outputs(outputs)
    changes = parse_updates(updates)
    without = without_defaults(options.pop("no_default_updates", None))
    strict = options.pop("rebuild_strict", True)
    pairs, variables = pairs_of(givens, asked, strict), roots(asked)
    cut = Substitution(pairs, list(zip(asked, variables, strict=True)), strict)
    wanted, changes = with_default_updates(wanted, changes, cut, without)
    sliceables = sliceables_of(sliceable_shareds, wanted, changes)
    scattered = [is_scattered(i.variable) for i in bound[0]] + [False] * len(bound[1])
    check_inputs(variables, [v for v, _, _ in wanted], changes, unused)
    used = shareds_of([*(v for v, _, _ in wanted), *(c.new for c in changes)])
    collectives = has_collectives([*(v for v, _, _ in wanted), *(c.new for c in changes)])
    given = [*variables, *sliceables]
    variables, places = _of_any_length(variables, scattered, sliceables)
    exchanged = [(a, b) for a, b in zip(given, [*variables, *places], strict=True) if a is not b]
    wanted, changes = replaced(wanted, changes, Substitution(exchanged, strict=False))
    rows = [v for v, s in zip(variables, scattered, strict=True) if s] + places
    prover = _Prover(rows, infer)
    partials: list[Variable] = []
    reductions: list[Reduction | None] = []
    planned = [
        _plan_output(v, op, fixed, prover, partials, reductions, label) for v, op, fixed in wanted
    ]
    made = [_plan_update(c, prover) for c in changes if not _is_stream(c.shared)]
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
            _slicing(v, rows, prover.proof(v))[0] if op is None else Slicing((v,), (op,))
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
        types=tuple(map(tensor_type, asked)),
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
    kind = tensor_type(variable)
    if kind.shape[0] in (None, 1):
        return variable if place is None else place
    found: Variable = kind.clone(shape=(None, *kind.shape[1:]))(name=variable.name)
    return found


def _is_stream(shared: SharedVariable) -> bool:
    return isinstance(shared.type, RandomType)


def _streams(roots: list[Variable], changes: list[Change], rows: list[Variable]) -> list[Stream]:
    after = {c.shared: c.new for c in changes if _is_stream(c.shared)}
    found = [s for s in dict.fromkeys([*shareds_of(roots), *after]) if _is_stream(s)]
    return [Stream(s, after.get(s), s in after and depends_on(after[s], rows)) for s in found]


# What PyTensor calls an output that can be computed from means.
_FROM_MEANS = {
    "std": ", or compute pt.sqrt((z**2).mean() - z.mean() ** 2), which is exact",
    "var": ", or compute (z**2).mean() - z.mean() ** 2, which is exact",
}


def _plan_output(
    variable: Variable,
    op: Reduction | None,
    fixed: bool,
    prover: _Prover,
    partials: list[Variable],
    reductions: list[Reduction | None],
    function: str,
) -> OutputPlan:
    rows = prover.rows

    def add(v: Variable, reduction: Reduction | None) -> int:
        _check_combined(v, reduction, f"function {function}: output {variable}")
        for i, (known, other) in enumerate(zip(partials, reductions, strict=True)):
            if known is v and other is reduction:
                return i
        partials.append(v)
        reductions.append(reduction)
        return len(partials) - 1

    if not fixed and not depends_on(variable, rows):
        shareds = tuple(shareds_among(unmet_ancestors(variable)))
        return OutputPlan(variable, None, (add(variable, None),), shareds=shareds)
    found = prover.proof(variable)
    if fixed:
        _check_named(op, found, f"function {function}: output {variable}", rows)
        whole = "" if op is not None else _slicing(variable, rows, found)[1]
        why = f'output {variable}, of reduction None ({whole}). Name one: (output, "avg")'
        index = add(variable, op)
        return OutputPlan(variable, op, (index,), fixed=True, whole=whole and why)
    if isinstance(found, Unproved):
        _check_combined(variable, Reduction.AVG, f"function {function}: output {variable}")
        if prover.infer:
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
    kind = tensor_type(value)
    if not (is_dense(kind) or isinstance(kind, ScalarType)):
        raise InputTypeError(
            f'{what} is {kind}, which members cannot combine by "{op}": name the reduction '
            "None, for the master's own value"
        )
    check_adds(op, kind.dtype, what)


def _check_named(
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


class _Prover:
    """Proves how values of one function follow from their parts, if that is wanted."""

    def __init__(self, rows: list[Variable], infer: bool) -> None:
        self.rows, self.infer = rows, infer
        self._made: Made = {}

    def proof(self, value: Variable) -> Proof | Unproved:
        """The proof, or why there is none."""
        if not self.infer:
            return Unproved("")
        rows = [*self.rows, *row_draws(value, self.rows)]
        return prove(value, rows, made=self._made)


def _slicing(value: Variable, rows: list[Variable], proof: Proof | Unproved) -> tuple[Slicing, str]:
    """How slices make a part's value; and if that is unknown, the reason."""
    if not depends_on(value, rows):
        return Slicing((value,), (None,)), ""
    if isinstance(proof, Unproved):
        return Slicing((value,), (Reduction.AVG,)), proof.reason
    finish, alike = _finish(proof)
    reductions = [parse(p.reduction) for p in proof.partials] + [None] * len(alike)
    return Slicing((*(p.variable for p in proof.partials), *alike), tuple(reductions), finish), ""


def _plan_update(change: Change, prover: _Prover) -> tuple[Update, str, bool]:
    """How slices make a new value, as named or as proved; else the reason why they cannot.

    Third, whether the members' values part, from call to call, and the user has not asked for it.
    """
    rows = prover.rows
    by_rows = depends_on(change.new, rows)
    op, shared, whole = change.reduction, change.shared, ""
    _check_combined(change.new, op, f"the new value of {shared}")
    proof = prover.proof(change.new)
    if change.scope == "all":
        _check_named(
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
    own, sources = any(map(is_own, unmet)), tuple(shareds_among(unmet))
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
