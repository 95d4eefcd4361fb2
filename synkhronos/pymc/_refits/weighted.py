"""A model of which rows can be left out by data, so that all fits share one compilation."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pymc.model.transform.conditioning import do, remove_value_transforms
from pymc.model.transform.optimization import freeze_dims_and_data
from pytensor.graph.replace import graph_replace

from synkhronos._errors import InputError
from synkhronos.pymc._reading.models import initial_values_of, without_initial_values

KEPT = "kept rows"  # data of the model: 1 for each log-likelihood that counts, 0 for others


def weighted(what: str, model: pm.Model, name: str, shape: tuple[int, ...]) -> pm.Model:
    """A copy in which an observed variable is a potential of the rows that are kept.

    It has all parameters, and no Deterministics. A log-likelihood that is left out is replaced by
    0, and not multiplied by it, since it may be infinite.

    Raises
    ------
    InputError
        PyMC cannot copy the model; `what` is how the message names the call.
    """
    try:
        starts = initial_values_of(model)
        frozen = freeze_dims_and_data(without_initial_values(model))
    except (NotImplementedError, ValueError) as exc:
        raise InputError(f"{what}: the model cannot be copied: {exc}") from exc
    plain = remove_value_transforms(frozen)  # its values are those of the variables
    [term] = plain.logp(vars=[plain[name]], sum=False)
    value = frozen.rvs_to_values[frozen[name]]
    made = do(frozen, {name: value}, make_interventions_shared=False)
    made.check_bounds = model.check_bounds
    _drop_deterministics(made)
    values = {plain.rvs_to_values[plain[v.name]]: made[v.name] for v in made.free_RVs}
    [own] = graph_replace([term], values, strict=False)
    with made:
        kept = pm.Data(KEPT, np.ones(shape))
        pm.Potential("likelihood of kept rows", pt.switch(pt.neq(kept, 0), own, 0.0))
    for variable, start in starts.items():
        made.rvs_to_initial_values[made[variable]] = start
    return made


def _drop_deterministics(model: pm.Model) -> None:
    """They may have a number for each row and draw, and are computed for nobody."""
    for variable in model.deterministics:
        del model.named_vars[variable.name]
        model.named_vars_to_dims.pop(variable.name, None)
    model.deterministics.clear()
