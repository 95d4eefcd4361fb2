"""Models that Bambi has built: how its own fit changes their draws.

Bambi (0.21) centres predictors where there is an intercept. Its fit then moves the intercept of the
draws from the mean of the predictors to zero, and leaves out variables that only sampling needs.
Its other methods take such draws alone. The PyMC model takes only those that were not changed.
"""

from __future__ import annotations

import traceback

import numpy as np
from pymc import Model
from pytensor.graph.traversal import ancestors
from pytensor.tensor import TensorConstant
from xarray import Dataset

from synkhronos._errors import InputError
from synkhronos._warnings import log

_ROWS = "__obs__"  # the dimension of the rows in all of its models
_MADE_BY, _BAMBI = "modeling_interface", "bambi"  # what its fit notes in the draws


def centres_predictors(model: Model) -> bool:
    """Whether Bambi has built this model, and centred its predictors."""
    return _ROWS in model.coords and any(
        _is_centred(v.data) for v in ancestors(model.observed_RVs) if isinstance(v, TensorConstant)
    )


def _is_centred(values: np.ndarray) -> bool:
    """Whether this is a matrix whose columns have the mean 0, up to rounding."""
    if values.ndim != 2 or values.dtype.kind != "f" or not values.size:
        return False
    near = np.sqrt(np.finfo(values.dtype).eps)
    return bool((np.abs(values.mean(0)) <= near * np.abs(values).max(0)).all())


def is_fitting(package: str = _BAMBI) -> bool:
    """Whether code of Bambi, or of a package that calls it, has called this thread's."""
    frames = traceback.walk_stack(None)
    return any(str(f.f_globals.get("__name__")).partition(".")[0] == package for f, _ in frames)


def tell_of_own_fit(model: Model) -> None:
    """Warn if Bambi's methods will take draws of this model for those of its own fit."""
    if centres_predictors(model) and not is_fitting():
        log.warning(
            "Bambi has centred the predictors of this model, so its draws have the intercept at "
            "their mean, and Bambi's predict is wrong with them. Call model.fit, which moves the "
            "intercept, inside of `with synk.pymc.everywhere():`"
        )


def refuse_changed_draws(draws: Dataset, model: Model) -> None:
    """Raise if these are draws of Bambi's fit that are not draws of the model."""
    if draws.attrs.get(_MADE_BY) != _BAMBI:
        return
    missing = [v.name for v in model.free_RVs if v.name not in draws]
    if missing:
        change = f"without {missing[0]}"
    elif centres_predictors(model):
        change = "with an intercept that is moved from the mean of the predictors to zero"
    else:
        return
    raise InputError(
        f"these draws are of Bambi's fit, {change}, so the PyMC model would give other numbers. "
        "Bambi's own methods take them: model.predict(idata, kind='response'), "
        "model.compute_log_likelihood(idata)"
    )
