"""`reloo`: fits without each of the rows for which PSIS-LOO is not reliable."""

from __future__ import annotations

import math
from copy import deepcopy
from typing import Any

import numpy as np
import pymc as pm
from xarray import DataTree

from synkhronos._checks import check_number, or_none
from synkhronos._errors import InputError
from synkhronos.pymc._after.elpd import is_pointwise
from synkhronos.pymc._after.labels import in_order
from synkhronos.pymc._after.loo import loo
from synkhronos.pymc._after.moments import good_k_of
from synkhronos.pymc._reading.models import model_of
from synkhronos.pymc._refits.fits import FITS, Refits, options_of


def reloo(
    data: DataTree,
    loo_orig: Any = None,
    var_name: str | None = None,
    k_threshold: float | None = None,
    pointwise: bool | None = None,
    *,
    model: pm.Model | None = None,
    backend: str | None = None,
    compile_kwargs: dict[str, object] | None = None,
    **kwargs: Any,
) -> Any:
    """Fit the model again without each row whose Pareto k is large, and correct a result of `loo`.

    The result and the arguments are those of `arviz.reloo`, which wants a wrapper that samples.
    Here `map` fits the rows, in slots of cores, with one compilation for all of them.

    Parameters
    ----------
    data : DataTree
        The fit to all rows, with the group ``posterior``.
    loo_orig : ELPDData, optional
        A result of `loo` or of `arviz.loo` with ``pointwise=True``. Default: that of `loo`. After
        ``loo(moment_match=True)`` few rows are left.
    var_name : str, optional
        The observed variable; needed if there are several. The others stay in all fits.
    k_threshold : float, optional
        The Pareto k above which a row is left out. Default: ArviZ's ``good_k``. ``-np.inf``: each
        row has a fit.
    pointwise : bool, optional
        Whether the result has numbers of each row. Default: ArviZ's ``rcParams``.
    model : pymc.Model, optional
        Default: that of the current context.
    backend, compile_kwargs
        As for `pm.compute_log_likelihood`.
    **kwargs
        As for `cross_validate`: arguments of `map` and of `pm.sample`.

    Returns
    -------
    ELPDData
        Of ArviZ: a copy of `loo_orig` in which rows that were left out have the log predictive
        density of their own fit, and a Pareto k of 0.

    Raises
    ------
    InputError, InputTypeError
        An argument is not possible, `loo_orig` has no numbers of all rows or other rows, there are
        fewer than 25 draws, or the log-likelihoods in `data` are not those of the model. Nothing
        was fitted.
    SynkhronosError
        A fit has failed. With ``folder=`` the others are kept.
    KeyboardInterrupt
        Ctrl-C. The fits in ``folder`` stay.

    Warns
    -----
    UserWarning
        Draws of some fits diverged.

    Notes
    -----
    Cost: a compilation in each slot, and a fit for each row with a large k. Look at the number of
    these rows first. See Vehtari, Gelman, Gabry, "Practical Bayesian Model Evaluation Using
    Leave-One-Out Cross-Validation and WAIC", Statistics and Computing 27(5), 2017. As for
    `cross_validate`, draws do not depend on the number of processes.

    Examples
    --------
    ::

        first = synk.pymc.loo(idata, pointwise=True, moment_match=True, model=model)
        left = (first.pareto_k > first.good_k).sum().item()    # fits that follow
        found = synk.pymc.reloo(idata, first, model=model, random_seed=1)
    """
    threshold = or_none(check_number, "reloo: k_threshold", k_threshold, -math.inf, math.inf)
    model = model_of(model, "reloo")
    options_of("reloo", kwargs, FITS)  # before rows are computed, which may take long
    compilation = {"backend": backend, "compile_kwargs": compile_kwargs}
    if loo_orig is None:
        shared = {k: kwargs[k] for k in ("cores", "progressbar") if k in kwargs}
        loo_orig = loo(data, True, var_name, model=model, **compilation, **shared)
    elpd_i, pareto_k = (getattr(loo_orig, name, None) for name in ("elpd_i", "pareto_k"))
    if elpd_i is None or pareto_k is None:
        raise InputError(
            "reloo: loo_orig has no elpd_i and pareto_k: give a result of loo with pointwise=True"
        )
    if getattr(loo_orig, "subsample_size", None) is not None:
        raise InputError(
            "reloo: loo_orig is a result of loo_subsample, which has numbers of a part of the "
            "rows: give a result of loo"
        )
    most = good_k_of(int(loo_orig.n_samples)) if threshold is None else threshold
    found = deepcopy(loo_orig)
    if (pareto_k.values > most).any():
        fits = Refits("reloo", data, model, var_name, (backend, compile_kwargs), kwargs)
        if dict(fits.rows.sizes) != dict(elpd_i.sizes):
            raise InputError(
                f"reloo: loo_orig has rows of the shape {dict(elpd_i.sizes)}, and the model has "
                f"{dict(fits.rows.sizes)}: give the result for this model"
            )
        _correct(found, fits, most)
    if not is_pointwise(pointwise):
        found.elpd_i = found.pareto_k = found.p_loo_i = None
    return found


def _correct(found: Any, fits: Refits, most: float) -> None:
    """Replace the numbers of rows with a larger Pareto k by those of their fits."""
    rows = fits.rows
    for name in ("elpd_i", "pareto_k", "p_loo_i"):
        if (values := getattr(found, name, None)) is not None:
            setattr(found, name, in_order(f"reloo: {name} of loo_orig", values, rows))
    bad = np.flatnonzero(found.pareto_k.values > most)
    one = {f"{row}": {"out": np.array([row]), "scored": np.array([row])} for row in bad}
    results = fits.run({name: {**item, "together": False} for name, item in one.items()})
    lppd = fits.log_means().reshape(found.elpd_i.shape)
    if getattr(found, "p_loo_i", None) is None:
        found.p_loo_i = found.elpd_i.copy(data=lppd - found.elpd_i.values)
    places = np.unravel_index(bad, lppd.shape)
    new = np.array([results[name]["elpd"][0] for name in one])
    for own, values in (
        (found.elpd_i, new),
        (found.pareto_k, 0.0),
        (found.p_loo_i, lppd[places] - new),
    ):
        own.values[places] = values
    elpd = found.elpd_i.values
    found.elpd = elpd.sum()
    found.se = np.sqrt(elpd.size * elpd.var(ddof=1))
    found.p = found.p_loo_i.values.sum()
    found.warning = bool((found.pareto_k.values > found.good_k).any())
    weights = found.log_weights
    if weights is not None:
        if hasattr(weights, "data_vars"):
            weights = weights[rows.name]
        found.log_weights = in_order("reloo: log_weights of loo_orig", weights, rows).copy()
        found.log_weights.values[places] = np.nan
