"""`loo`: PSIS-LOO by blocks of rows, on all cores."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pymc as pm
from pymc.pytensorf import resolve_backend_compile_kwargs
from xarray import DataArray, DataTree

from synkhronos._checks import check_flag, check_integer, check_number, or_none
from synkhronos._errors import InputError
from synkhronos.pymc._after.division import By
from synkhronos.pymc._after.elpd import is_pointwise, of_arviz, warn_of_rows
from synkhronos.pymc._after.loo_rows import LooRows
from synkhronos.pymc._after.moments import Matching, good_k_of, match_moments
from synkhronos.pymc._after.observed import (
    OfModel,
    check_draws,
    check_same_draws,
    computed,
    draws_of,
    efficiency_of,
    jacobian_of,
    posterior_with_draws,
    refuse_pool,
    rows_of_group,
    tail_of,
)
from synkhronos.pymc._reading.models import model_of


def loo(
    data: DataTree,
    pointwise: bool | None = None,
    var_name: str | None = None,
    reff: float | None = None,
    *,
    model: pm.Model | None = None,
    log_jacobian: DataArray | None = None,
    moment_match: bool = False,
    k_threshold: float | None = None,
    max_iters: int = 30,
    split: bool = True,
    cov: bool = True,
    progressbar: bool = True,
    backend: str | None = None,
    compile_kwargs: dict[str, object] | None = None,
    cores: int | None = None,
    on: object = None,
) -> Any:
    """Estimate the expected log predictive density by PSIS-LOO, without a matrix of all draws.

    The result is that of `arviz.loo`: `az.compare` and ArviZ's plots take it. Log-likelihoods are
    computed from the model for some rows at a time, or taken from the group ``log_likelihood`` if
    `data` has it.

    Parameters
    ----------
    data : DataTree
        Has the group ``posterior``, with the dimensions chain and draw.
    pointwise : bool, optional
        Whether the result has ``elpd_i`` and ``pareto_k`` of each row, with the coordinates of the
        rows. Default: ArviZ's ``rcParams["stats.ic_pointwise"]``.
    var_name : str, optional
        The observed variable; needed if there are several.
    reff : float, optional
        The relative efficiency of the draws. Default: ArviZ's, from the posterior.
    model : pymc.Model, optional
        Default: the model of the current context. Not used if `data` has the log-likelihoods.
    log_jacobian : DataArray, optional
        Added to each row's log predictive density, if the model is one of transformed data.
    moment_match : bool
        Whether rows with a large Pareto k are computed again by moment matching, which moves the
        draws to where the posterior without the row is. It needs `model`.
    k_threshold, max_iters, split, cov
        For `moment_match`, as in `arviz.loo_moment_match`: the Pareto k above which a row is
        computed again (default: `good_k`), the most maps of a row, whether only half of the draws
        is moved in the end, and whether covariances are matched.
    progressbar, cores, on
        As for `sample_posterior_predictive`. Blocks of rows, and rows to match, are the items of a
        pool. Log-likelihoods in `data` are not sent: this machine takes what follows from them.
    backend, compile_kwargs
        As for `pm.compute_log_likelihood`.

    Returns
    -------
    ELPDData
        Of ArviZ. ``log_weights`` is None, since they are as many as all log-likelihoods. With
        `moment_match` and `pointwise` it also has ``influence_pareto_k`` (before), ``p_loo_i``, and
        ``n_eff_i`` of the rows that moment matching has changed.

    Raises
    ------
    InputError
        There is no posterior, no such variable, no row, or fewer than 25 draws; `reff` leaves fewer
        than 5 draws for the tail; or all draws in the tail of a row have the same likelihood. For
        moment matching: parameters are discrete, there is a `log_jacobian`, or the log-likelihoods
        are not those of the model.
    WorkerError, WorkerDied
        A process has failed or died.

    Warns
    -----
    UserWarning
        Pareto k is too large for some rows, or their log-likelihood is not finite; they are named.

    Notes
    -----
    Cost: each log-likelihood once, and about 11 ns for each of them. Memory: 64 MB of
    log-likelihoods in each process; more, if those of one row, with all of its columns, take more.
    The formulas are ArviZ's; see Vehtari et al., "Pareto
    Smoothed Importance Sampling", JMLR 25(72), 2024.

    Where a model's operations are known to keep rows apart, a block costs its share of the
    likelihood. Where they are not, each block computes all rows of such operations. ArviZ's
    arguments log_lik_fn, log_weights, pareto_k and mixture are left out.

    Moment matching costs about 3 to 20 log-densities of each draw for each row with a large k. The
    rows are divided over the cores. Memory: some copies of the draws in each process. The method:
    Paananen et al., "Implicitly Adaptive Importance Sampling", Statistics and Computing 31(2),
    2021. Rows whose log-likelihood is not finite stay as they are.

    Examples
    --------
    >>> import numpy as np, pymc as pm, xarray as xr
    >>> import synkhronos as synk, synkhronos.pymc
    >>> rng = np.random.default_rng(0)
    >>> with pm.Model() as model:
    ...     mu = pm.Normal("mu")
    ...     y = pm.Normal("y", mu, observed=rng.normal(size=10))
    >>> draws = rng.normal(0, 0.3, size=(4, 250))
    >>> posterior = xr.Dataset({"mu": (("chain", "draw"), draws)})
    >>> found = synk.pymc.loo(xr.DataTree.from_dict({"posterior": posterior}), model=model)
    >>> found.n_samples, found.n_data_points
    (1000, 10)
    """
    by = By.of("loo", cores, progressbar, on)
    matching = _matching(moment_match, k_threshold, max_iters, split, cov, log_jacobian)
    reff = or_none(check_number, "loo: reff", reff, most=math.inf, above=0)
    posterior = posterior_with_draws("loo", data)
    draws = draws_of(posterior)
    stored = None
    if "log_likelihood" in data:
        rows, stored = rows_of_group("loo", data["log_likelihood"].to_dataset(), var_name, 0)
        if matching is not None:
            check_same_draws("loo: moment_match", stored, draws)
        elif by.pool is not None:
            refuse_pool("loo")
        draws = stored.draws  # as ArviZ: those of the log-likelihoods, which may be fewer
        check_draws("loo", draws)
    reff = efficiency_of(posterior, draws) if reff is None else reff
    tail = tail_of("loo", draws, reff)
    given = resolve_backend_compile_kwargs(backend, compile_kwargs)
    work: LooRows
    if stored is not None:
        work = replace(stored, tail=tail)
    else:
        own = OfModel("loo", model_of(model, "loo"), var_name, posterior, given)
        rows, work = own.labels, own.rows(tail)
    jacobian = jacobian_of("loo", log_jacobian, rows)
    elpd, pareto_k, lppd = computed("loo", work, rows, by)
    elpd += jacobian
    lppd += jacobian
    more: dict[str, np.ndarray | None] = {}
    if matching is not None:
        more["influence_pareto_k"] = pareto_k.copy()
        at = model_of(model, "loo"), posterior, work, str(rows.name), given
        effective = match_moments(*at, matching, reff, (elpd, pareto_k, lppd), by)
        more |= {"p_loo_i": lppd - elpd, "n_eff_i": effective}
    return _result(rows, elpd, pareto_k, lppd, draws, pointwise, more)


def _matching(
    asked: bool,
    threshold: float | None,
    most: int,
    split: bool,
    covariances: bool,
    log_jacobian: DataArray | None,
) -> Matching | None:
    """The options of moment matching, if it is asked for."""
    for name, flag in (("moment_match", asked), ("split", split), ("cov", covariances)):
        check_flag(f"loo: {name}", flag)
    threshold = or_none(check_number, "loo: k_threshold", threshold, -math.inf, math.inf)
    most = check_integer("loo: max_iters", most, 1)
    if asked and log_jacobian is not None:
        raise InputError(
            "loo: moment_match=True with log_jacobian=: give one of them; to a result with "
            "pointwise=True the Jacobian can be added"
        )
    return Matching(threshold, most, split, covariances) if asked else None


def _result(
    rows: DataArray,
    elpd: np.ndarray,
    pareto_k: np.ndarray,
    lppd: np.ndarray,
    draws: int,
    pointwise: bool | None,
    more: Mapping[str, np.ndarray | None],  # by fields of the result, with a number for each row
) -> Any:
    pointwise = is_pointwise(pointwise)
    good_k = good_k_of(draws)
    then = "fit it again" if more else "give moment_match=True, or fit it again"
    warn_of_rows(rows, pareto_k, lppd, good_k, then, 3)
    elpd_i = rows.copy(data=elpd)
    total, se, p, _ = elpd_i.azstats.loo_summary(rows.copy(data=lppd - elpd))
    values = {
        "scale": "log",
        "elpd": total,
        "se": se,
        "p": p,
        "n_samples": draws,
        "n_data_points": int(elpd.size),
        "warning": bool((pareto_k > good_k).any()),
        "good_k": good_k,
        "elpd_i": elpd_i if pointwise else None,
        "pareto_k": rows.copy(data=pareto_k) if pointwise else None,
        "log_weights": None,
    }
    found = of_arviz("loo", "LOO", values)
    for name, numbers in more.items() if pointwise else ():
        setattr(found, name, None if numbers is None else rows.copy(data=numbers))
    return found
