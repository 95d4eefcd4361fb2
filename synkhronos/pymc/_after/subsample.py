"""`loo_subsample`: PSIS-LOO of some rows, and an approximation of all others."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pymc as pm
from pymc.pytensorf import resolve_backend_compile_kwargs
from xarray import DataArray, Dataset, DataTree

from synkhronos._checks import check_integer, check_number, or_none, shown
from synkhronos._errors import InputError, InputTypeError
from synkhronos.pymc._after.division import By
from synkhronos.pymc._after.elpd import is_pointwise, of_arviz, totals_of_sample, warn_of_rows
from synkhronos.pymc._after.loo_rows import LooRows, StoredRows
from synkhronos.pymc._after.moments import good_k_of
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

_WHAT = "loo_subsample"
_METHODS = ("lpd", "plpd")


def loo_subsample(
    data: DataTree,
    observations: int | np.ndarray,
    pointwise: bool | None = None,
    var_name: str | None = None,
    reff: float | None = None,
    *,
    seed: int | None = 315,
    method: str = "lpd",
    thin: int | None = None,
    log_jacobian: DataArray | None = None,
    model: pm.Model | None = None,
    progressbar: bool = True,
    backend: str | None = None,
    compile_kwargs: dict[str, object] | None = None,
    cores: int | None = None,
    on: object = None,
) -> Any:
    """Estimate PSIS-LOO from a sample of the rows, for data of which all rows take too long.

    The result is that of `arviz.loo_subsample`: ``az.compare`` takes it. All rows get a cheap
    approximation, and some of them PSIS-LOO; the mean difference corrects the sum. Log-likelihoods
    are computed from the model when they are needed, or taken from the group ``log_likelihood``.

    Parameters
    ----------
    data : DataTree
        Has the group ``posterior``, with the dimensions chain and draw.
    observations : int or integer array
        The number of rows that are drawn at random, or their numbers, over all dims.
    pointwise : bool, optional
        Whether the result has ``elpd_i`` and ``pareto_k``, which are NaN for other rows. Default:
        ArviZ's ``rcParams["stats.ic_pointwise"]``.
    var_name : str, optional
        The observed variable; needed if there are several.
    reff : float, optional
        The relative efficiency of the draws. Default: ArviZ's, from the posterior.
    seed : int or None
        Of the rows. Rows of one seed are those of ArviZ.
    method : "lpd" or "plpd"
        The approximation. "lpd" has the log of the mean likelihood of each row, so it computes all
        log-likelihoods. "plpd" has the log-likelihood at the mean of the parameters: one draw.
    thin : int, optional
        Only each draw with this distance is used.
    log_jacobian : DataArray, optional
        Added to each row's log predictive density, if the model is one of transformed data.
    model : pymc.Model, optional
        Default: that of the current context. "plpd" needs it, and "lpd" if `data` has no
        log-likelihoods. With a model the approximation is computed from it.
    progressbar, cores, on
        As for `sample_posterior_predictive`. Blocks of rows are the items of a pool, as for `loo`.
    backend, compile_kwargs
        As for `pm.compute_log_likelihood`.

    Returns
    -------
    ELPDDataLOOSubsample
        Of ArviZ. ``log_weights`` is None.

    Raises
    ------
    InputError, InputTypeError
        There is no posterior, no such variable or row, or fewer than 25 draws; `reff` leaves fewer
        than 5 draws for the tail; all draws in the tail of a row have the same likelihood; or
        parameters are whole numbers, of which "plpd" would take a mean.
    WorkerError, WorkerDied
        A process has failed or died.

    Warns
    -----
    UserWarning
        Pareto k is too large for some rows of the sample, or their log-likelihood is not finite.

    Notes
    -----
    Cost: with "plpd" each log-likelihood of the sample, and one of each row; with "lpd" all of
    them. Memory: 64 MB of log-likelihoods in each process, with "lpd" as for `loo`. ArviZ's
    arguments log_p, log_q, log_weights and log_lik_fn, and ``thin="auto"``, are left out.

    See Magnusson, Andersen, Jonasson, Vehtari, "Bayesian Leave-One-Out Cross-Validation for Large
    Data", ICML 2019, and "Leave-One-Out Cross-Validation for Bayesian Model Comparison in Large
    Data", AISTATS 2020.

    Examples
    --------
    >>> import numpy as np, pymc as pm, xarray as xr
    >>> import synkhronos as synk, synkhronos.pymc
    >>> rng = np.random.default_rng(0)
    >>> with pm.Model() as model:
    ...     mu = pm.Normal("mu")
    ...     y = pm.Normal("y", mu, observed=rng.normal(size=1000))
    >>> draws = rng.normal(0, 0.03, size=(4, 250))
    >>> idata = xr.DataTree.from_dict({"posterior": xr.Dataset({"mu": (("chain", "draw"), draws)})})
    >>> found = synk.pymc.loo_subsample(idata, 100, method="plpd", model=model)
    >>> found.subsample_size, found.n_data_points
    (100, 1000)
    """
    by = By.of(_WHAT, cores, progressbar, on)
    reff = or_none(check_number, f"{_WHAT}: reff", reff, most=math.inf, above=0)
    thin = or_none(check_integer, f"{_WHAT}: thin", thin, 1)
    seed = or_none(check_integer, f"{_WHAT}: seed", seed, 0)
    if method not in _METHODS:
        raise InputError(f'{_WHAT}: method={shown(method)}: give "lpd" or "plpd"')
    asked = _asked(observations)
    whole = posterior_with_draws(_WHAT, data)
    every = slice(None, None, thin)
    posterior = whole.isel(draw=every)
    draws = draws_of(posterior)
    check_draws(_WHAT, draws)
    reff = efficiency_of(whole, draws) if reff is None else reff
    tail = tail_of(_WHAT, draws, reff)
    stored = None
    own = None
    if model is not None or method == "plpd" or "log_likelihood" not in data:
        given = resolve_backend_compile_kwargs(backend, compile_kwargs)
        own = OfModel(_WHAT, model_of(model, _WHAT), var_name, posterior, given)
        rows = own.labels
    if "log_likelihood" in data:
        group = data["log_likelihood"].to_dataset().isel(draw=every)
        rows, stored = rows_of_group(_WHAT, group, var_name if own is None else own.name, tail)
        check_same_draws(_WHAT, stored, draws)
        if by.pool is not None and (own is None or method == "plpd"):
            refuse_pool(_WHAT)
    numbers = _numbers(rows.size, asked, seed)
    sample = _sample(stored, own, posterior, numbers, tail)
    jacobian = np.broadcast_to(jacobian_of(_WHAT, log_jacobian, rows), rows.shape).reshape(-1)
    if method == "plpd" and own is not None:
        approximate = own.at_means()
    else:
        work = _every_row(stored, own)
        approximate = computed(_WHAT, work, rows, by)[0].reshape(-1)
    approximate = approximate + jacobian
    elpd, pareto_k, lppd = computed(_WHAT, sample, _labels(rows, numbers), by)
    elpd += jacobian[numbers]
    lppd += jacobian[numbers]
    good_k = good_k_of(draws)
    then = "give moment_match=True to loo, or fit the model again"
    warn_of_rows(_labels(rows, numbers), pareto_k, lppd, good_k, then, 2)
    total, own_se, se, p = totals_of_sample(elpd, lppd, approximate[numbers], approximate)
    each = is_pointwise(pointwise)
    values = {
        "scale": "log",
        "elpd": total,
        "se": se,
        "p": p,
        "n_samples": draws,
        "n_data_points": rows.size,
        "warning": bool((pareto_k > good_k).any()),
        "good_k": good_k,
        "elpd_i": _spread(rows, numbers, elpd, "elpd_i") if each else None,
        "pareto_k": _spread(rows, numbers, pareto_k, "pareto_k") if each else None,
        "log_weights": None,
        "subsampling_se": own_se,
        "subsample_size": numbers.size,
        "loo_subsample_observations": numbers,
        "elpd_loo_approx": _spread(rows, np.arange(rows.size), approximate, method),
        "thin_factor": thin,
        "log_jacobian": log_jacobian,
    }
    return of_arviz("loo", "LOOSubsample", values)


def _sample(
    stored: StoredRows | None,
    own: OfModel | None,
    posterior: Dataset,
    numbers: np.ndarray,
    tail: int,
) -> LooRows:
    """The log-likelihoods with these numbers, for all draws."""
    if stored is None:
        assert own is not None
        return own.function().at(posterior, numbers, tail)
    if own is not None:
        own.check(stored.of_first_draw())
    return stored.chosen(numbers)


def _every_row(stored: StoredRows | None, own: OfModel | None) -> LooRows:
    """Those of all rows, by the model if there is one."""
    if own is not None:
        return own.rows(0)
    assert stored is not None
    return replace(stored, tail=0)


def _asked(observations: Any) -> int | np.ndarray:
    """The number of rows, or their numbers: each once, in order."""
    if not np.ndim(observations):
        return check_integer(f"{_WHAT}: observations", observations, 1)
    numbers = np.asarray(observations)
    if numbers.ndim != 1 or not numbers.size or numbers.dtype.kind not in "iu":
        raise InputTypeError(
            f"{_WHAT}: observations={shown(observations)}: give the number of rows, or a vector of "
            "their numbers"
        )
    return np.unique(numbers)


def _numbers(rows: int, asked: int | np.ndarray, seed: int | None) -> np.ndarray:
    """The numbers of the rows of the sample; those of a seed are ArviZ's."""
    if isinstance(asked, np.ndarray):
        if asked[0] < 0 or asked[-1] >= rows:
            raise InputError(
                f"{_WHAT}: observations from {asked[0]} to {asked[-1]}: there are {rows:,} rows, "
                f"so give numbers from 0 to {rows - 1}"
            )
        return asked.astype(np.int64)
    if asked > rows:
        raise InputError(f"{_WHAT}: observations={asked:,}: there are {rows:,} rows")
    return np.random.default_rng(seed).choice(rows, size=asked, replace=False)


def _labels(rows: DataArray, numbers: np.ndarray) -> DataArray:
    """How messages name the rows of the sample: by their label, or by number over several dims."""
    return rows[numbers] if rows.ndim == 1 else DataArray(numbers, {"row": numbers}, "row")


def _spread(rows: DataArray, numbers: np.ndarray, values: np.ndarray, name: str) -> DataArray:
    """Numbers of the rows of the sample, and NaN for the others."""
    found = np.full(rows.size, np.nan)
    found[numbers] = values
    spread = rows.copy(data=found.reshape(rows.shape))
    spread.name = name
    return spread
