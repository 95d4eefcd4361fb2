"""The model that is read: as it is given, and copies of it."""

from __future__ import annotations

from pymc import Model, modelcontext
from pymc.model.core import BaseModel
from pymc.model.transform.optimization import freeze_dims_and_data
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant, Variable

from synkhronos._checks import shown
from synkhronos._compiling.python_mode import python_mode
from synkhronos._errors import InputError, InputTypeError


def model_of(model: Model | None, what: str = "parallel") -> Model:
    """The outermost model of the given one, or of the current context; `what` wants it."""
    if model is None:
        try:
            return modelcontext(None).root
        except TypeError:
            raise InputTypeError(
                f"{what}() was given no model, and is not inside of one: write {what}(model), "
                "or call it inside of `with model:`"
            ) from None
    if not isinstance(model, BaseModel):
        count = "draws" if what == "sample" else "members"
        also = f", as in {what}(model, {count}={model})" if isinstance(model, int) else ""
        of_bambi = type(model).__module__.partition(".")[0] == "bambi"
        then = ": give its model.backend.model, after model.build()" if of_bambi else ""
        found = "a model of Bambi" if of_bambi else type(model).__name__
        raise InputTypeError(
            f"{what} takes a pymc.Model first{also}; found {found} {shown(model)}{then}"
        )
    return model.root


def refuse_divided(model: Model) -> None:
    """Raise if the model has another log-density already."""
    if "logp" not in vars(model):
        return
    if getattr(model.logp, "lasting", False):
        raise InputError(
            "this model comes from synk.pymc.fast: give the model that it was made from"
        )
    raise InputError("the model is divided already: call close() on that division first")


def copied(model: Model, frozen: bool = False) -> Model:
    """A copy of a model, with its initial values, and its variables in the same order.

    If it is frozen, its dims and data are constants.
    """
    _refuse_shared_values(model)
    kept: list[str] | None = None if frozen else []
    try:
        copy = freeze_dims_and_data(model, dims=kept, data=kept)
    except NotImplementedError as exc:
        raise InputError(f"the model cannot be copied: {exc}") from exc
    copy.name, copy.check_bounds = model.name, model.check_bounds  # which PyMC's copies lose
    order = {name: i for i, name in enumerate(model.named_vars)}
    kinds = ("free_RVs", "observed_RVs", "deterministics", "potentials", "data_vars")
    for variables in [getattr(copy, kind) for kind in kinds]:
        variables.sort(key=lambda v: order[v.name])
    return copy


def _refuse_shared_values(model: Model) -> None:
    """Raise for the same data as the values of two variables: PyMC copies them twice, and fails."""
    seen: dict[Variable, str] = {}
    for rv in model.observed_RVs:
        value = model.rvs_to_values[rv]
        if value in model.data_vars and value in seen:
            raise InputError(
                f"the model cannot be copied: {seen[value]} and {rv.name} observe the same data "
                f"{value.name}, and PyMC copies data once for each. Make a pm.Data for each, or "
                "call synk.pymc.sample or synk.pymc.parallel, which need no copy"
            )
        seen[value] = rv.name


def length_of(model: Model, dim: str) -> int:
    """The length of a dimension. Nothing is compiled: it may be that of an axis of shared data."""
    length = model.dim_lengths[dim]
    if isinstance(length, Constant):
        return int(length.data)
    if isinstance(length, SharedVariable):
        return int(length.get_value())
    return int(length.eval(mode=python_mode("none")))


def twin_of(model: Model, **others: object) -> Model:
    """The same variables as another model, with other attributes.

    The model itself is not changed, since a sampler may read it in another thread.
    """
    found: Model = object.__new__(type(model))
    vars(found).update(vars(model), **others)
    return found


def without_initial_values(model: Model) -> Model:
    """A twin without initial values, for copies that need none."""
    return twin_of(model, rvs_to_initial_values=dict.fromkeys(model.rvs_to_initial_values))


def undivided(model: Model) -> Model:
    """A twin with the log-density of the graph, also while the model has another one."""
    found = twin_of(model)
    for name in ("logp", "_cache"):  # a frozen model keeps functions of the other one there
        vars(found).pop(name, None)
    return found


def initial_values_of(model: Model) -> dict[str, object]:
    """The initial values that a copy of the model can have, by the names of variables.

    Raises
    ------
    NotImplementedError
        One is computed from variables of the model.
    """
    found = {rv.name: v for rv, v in model.rvs_to_initial_values.items() if v is not None}
    for name, value in found.items():
        if isinstance(value, Variable) and not isinstance(value, Constant):
            raise NotImplementedError(f"the initial value of {name} is computed from the model")
    return found
