"""`loo`: PSIS-LOO by blocks of rows, on all cores."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import arviz_stats
import numpy as np
import pymc as pm
from arviz_base import rcParams
from pymc.model import modelcontext
from pymc.model.transform.optimization import freeze_dims_and_data
from pymc.pytensorf import resolve_backend_compile_kwargs
from xarray import DataArray, Dataset, DataTree

from synkhronos._checks import check_flag, check_integer, check_number, or_none
from synkhronos._errors import InputError
from synkhronos.pymc._after.calculation import in_processes
from synkhronos.pymc._after.densities import Density, posterior_of
from synkhronos.pymc._after.division import checked, divided
from synkhronos.pymc._after.loo_rows import (
    SAMPLE_DIMS,
    LooRows,
    ModelRows,
    StoredRows,
    function_of_rows,
)
from synkhronos.pymc._after.moments import Matching, good_k_of, match_moments
from synkhronos.pymc._after.pareto import tail_length
from synkhronos.pymc._after.points import Points
from synkhronos.pymc._after.work import InMemory
from synkhronos.pymc._reading.models import model_of, without_initial_values

_FEWEST, _FEWEST_IN_TAIL = 25, 5  # draws
_NAMED = 5  # rows in a warning


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
    progressbar, cores
        As for `sample_posterior_predictive`.
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
    log-likelihoods in each process. The formulas are ArviZ's; see Vehtari et al., "Pareto
    Smoothed Importance Sampling", JMLR 25(72), 2024.

    Where a model's operations are known to keep rows apart, a block costs its share of the
    likelihood. Where they are not, each block computes all rows of such operations.

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
    cores = checked("loo", cores, progressbar)
    matching = _matching(moment_match, k_threshold, max_iters, split, cov, log_jacobian)
    reff = or_none(check_number, "loo: reff", reff, 0.0, math.inf)
    posterior = posterior_of(data, "loo")
    if missing := [dim for dim in SAMPLE_DIMS if dim not in posterior.dims]:
        raise InputError(f"loo: the posterior has no dimension {missing[0]!r}")
    shape = tuple(posterior.sizes[dim] for dim in SAMPLE_DIMS)
    if math.prod(shape) < _FEWEST:
        raise InputError(f"loo: {math.prod(shape)} draws are too few: {_FEWEST} are needed")
    reff = _efficiency(posterior) if reff is None else reff
    tail = tail_length(math.prod(shape), reff)
    if tail < _FEWEST_IN_TAIL:
        raise InputError(
            f"loo: reff={reff:g} leaves {tail} of {math.prod(shape)} draws for the tail, and "
            f"{_FEWEST_IN_TAIL} are needed: reff is effective draws for each draw, about 1"
        )
    given = resolve_backend_compile_kwargs(backend, compile_kwargs)
    if "log_likelihood" in data:
        rows, work = _of_group(data["log_likelihood"].to_dataset(), var_name, tail)
    else:
        rows, work = _of_model(modelcontext(model), var_name, posterior, tail, given)
    jacobian = _jacobian(log_jacobian, rows)
    elpd, pareto_k, lppd = _computed(work, rows, cores, progressbar)
    elpd += jacobian
    lppd += jacobian
    more: dict[str, np.ndarray | None] = {}
    if matching is not None:
        more["influence_pareto_k"] = pareto_k.copy()
        own = model_of(model, "loo"), posterior, work, str(rows.name), given
        effective = match_moments(
            *own, matching, reff, (elpd, pareto_k, lppd), cores=cores, progressbar=progressbar
        )
        more |= {"p_loo_i": lppd - elpd, "n_eff_i": effective}
    return _result(rows, elpd, pareto_k, lppd, math.prod(shape), pointwise, more)


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
    threshold = or_none(check_number, "loo: k_threshold", threshold)
    most = check_integer("loo: max_iters", most, 1)
    if asked and log_jacobian is not None:
        raise InputError(
            "loo: moment_match=True with log_jacobian=: give one of them; to a result with "
            "pointwise=True the Jacobian can be added"
        )
    return Matching(threshold, most, split, covariances) if asked else None


def _efficiency(posterior: Dataset) -> float:
    """The effective draws of a draw, averaged over all elements of all variables, as in ArviZ."""
    if posterior.sizes["chain"] == 1:
        return 1.0
    ess = posterior.azstats.ess(method="mean")
    draws = posterior.sizes["chain"] * posterior.sizes["draw"]
    return float(np.hstack([ess[v].values.ravel() for v in ess.data_vars]).mean() / draws)


def _of_group(group: Dataset, name: str | None, tail: int) -> tuple[DataArray, LooRows]:
    """The labels of the rows, and the work, from log-likelihoods that are known."""
    chosen = _chosen(name, [str(v) for v in group.data_vars], "the group log_likelihood")
    values = group[chosen]
    rows = _some(values.isel(chain=0, draw=0, drop=True))
    own = [dim for dim in values.dims if dim not in SAMPLE_DIMS]
    if not own:
        values, own = values.expand_dims("row"), ["row"]
    values = values.transpose(*own, *SAMPLE_DIMS)
    length, each = values.shape[0], math.prod(values.shape[1:-2])
    return rows, StoredRows(length, each, math.prod(values.shape[-2:]), tail, values)


def _of_model(
    model: pm.Model, name: str | None, posterior: Dataset, tail: int, given: dict[str, object]
) -> tuple[DataArray, LooRows]:
    """The labels of the rows, and the work, from log-likelihoods that are computed."""
    name = _chosen(name, [v.name for v in model.observed_RVs], "the model")
    frozen = freeze_dims_and_data(without_initial_values(model))
    density = Density(frozen, "likelihood", [name])
    points = Points.of_dataset(posterior, model, SAMPLE_DIMS)
    [whole] = density.graphs
    plain = density.compiled(given)
    if not in_processes(plain):
        raise InputError(
            'loo: mode JAX compiles no blocks of rows: name another one, as in backend="numba"'
        )
    inputs = points.inputs_of(plain, density.inputs)
    first = plain(*[values[0, ...] for values in inputs])[0]
    length, each = (first.shape[0], math.prod(first.shape[1:])) if first.ndim else (1, 1)
    known = np.broadcast_to(first[(None,) * 2], (*map(len, _coords(points)), *first.shape))
    labels = points.dataset({name: known}, density.model, SAMPLE_DIMS)[name]
    rows = _some(labels.isel(chain=0, draw=0, drop=True))

    def compiled(graph: Any, more: Any) -> Any:
        return density.compiled_from([graph], [*density.values, *more], given)

    function, _ = function_of_rows(whole, length, first.reshape(-1), inputs, compiled)
    return rows, ModelRows(length, each, len(inputs[0]), tail, function, inputs)


def _some(rows: DataArray) -> DataArray:
    if not rows.size:
        raise InputError(f"loo: {rows.name} has no rows: it has the shape {rows.shape}")
    return rows


def _coords(points: Points) -> list[DataArray]:
    return [points.coords[dim] for dim in SAMPLE_DIMS]


def _chosen(name: str | None, names: Sequence[str], where: str) -> str:
    if name is None and len(names) == 1:
        return names[0]
    if name not in names:
        asked = "give var_name=" if name is None else f"var_name={name!r}"
        raise InputError(f"loo: {asked}: {where} has {list(names)}")
    return name


def _jacobian(given: DataArray | None, rows: DataArray) -> np.ndarray | float:
    if given is None:
        return 0.0
    if not isinstance(given, DataArray) or set(given.dims) != set(rows.dims):
        raise InputError(
            f"loo: log_jacobian: give a DataArray with the dimensions {list(rows.dims)}"
        )
    found = given.transpose(*rows.dims).values
    if found.shape != rows.shape or not np.isfinite(found).all():
        raise InputError(f"loo: log_jacobian: give finite numbers of the shape {rows.shape}")
    return found


def _computed(
    work: LooRows, rows: DataArray, cores: int | None, progressbar: bool
) -> list[np.ndarray]:
    """elpd, Pareto k and lppd, in the shape of the rows."""
    few = work.parts[0][:8]
    scratch = InMemory([np.empty(work.rows * work.each) for _ in range(4)])
    list(work.compute([few], scratch))  # the first call takes longer
    began = time.perf_counter()
    list(work.compute([few], scratch))
    seconds = (time.perf_counter() - began) * work.rows / max(1, len(few))
    with divided(work, seconds, "loo", cores, progressbar) as division:
        arrays = [division.empty((work.rows * work.each,), np.float64) for _ in range(4)]
        division.run(InMemory(arrays))
    *found, same = (np.array(array) for array in arrays)
    if same.any():
        raise InputError(
            f"loo: all draws in the tail have the same likelihood of {_named(rows, same > 0)}, so "
            "that no distribution can be fitted to their weights"
        )
    return [each.reshape(rows.shape) for each in found]


def _result(
    rows: DataArray,
    elpd: np.ndarray,
    pareto_k: np.ndarray,
    lppd: np.ndarray,
    draws: int,
    pointwise: bool | None,
    more: Mapping[str, np.ndarray | None],  # by fields of the result, with a number for each row
) -> Any:
    pointwise = rcParams["stats.ic_pointwise"] if pointwise is None else pointwise
    good_k = good_k_of(draws)
    bad, undefined = pareto_k > good_k, ~np.isfinite(lppd)
    if undefined.any():
        warnings.warn(
            f"elpd is not finite: the log-likelihood of {_named(rows, undefined)} is -inf, inf or "
            "NaN for some draws. Look at these rows: their values may be outside of the support",
            UserWarning,
            stacklevel=3,
        )
    if (large := bad & ~undefined).any():
        then = "fit it again" if more else "give moment_match=True, or fit it again"
        warnings.warn(
            f"Pareto k is above {good_k:.2f} for {_named(rows, large, pareto_k)}: the posterior "
            "without such a row may differ much from that with it, so that importance sampling is "
            f"not reliable. Look at these rows, use a more robust model, or {then} without each of "
            "them",
            UserWarning,
            stacklevel=3,
        )
    elpd_i = rows.copy(data=elpd)
    total, se, p, _ = elpd_i.azstats.loo_summary(rows.copy(data=lppd - elpd))
    values = {
        "scale": "log",
        "elpd": total,
        "se": se,
        "p": p,
        "n_samples": draws,
        "n_data_points": int(elpd.size),
        "warning": bool(bad.any()),
        "good_k": good_k,
        "elpd_i": elpd_i if pointwise else None,
        "pareto_k": rows.copy(data=pareto_k) if pointwise else None,
        "log_weights": None,
    }
    found = _of_arviz(values)
    for name, numbers in more.items() if pointwise else ():
        setattr(found, name, None if numbers is None else rows.copy(data=numbers))
    return found


def _of_arviz(values: dict[str, object]) -> Any:
    """A result of ArviZ, of the class that its version has.

    It is not one of `arviz_stats.loo` for a few numbers, which asks SciPy for a sum: SciPy looks
    whether they are JAX's, and so reads an attribute of the module that imports JAX late.
    """
    made = getattr(arviz_stats, "ELPDDataLOO", None)  # from 1.3
    if made is not None:
        return made(**values)
    return arviz_stats.ELPDData(kind="loo", **values)


def _named(rows: DataArray, marked: np.ndarray, values: np.ndarray | None = None) -> str:
    """How messages name rows: their number, and the names of the first, or of the largest."""
    marked = marked.reshape(rows.shape)
    places = np.flatnonzero(marked)
    if values is not None:
        places = places[np.argsort(-values.ravel()[places], kind="stable")]
    named = []
    for place in places[:_NAMED]:
        index = np.unravel_index(place, rows.shape)
        at = ", ".join(
            f"{dim}={rows[dim].values[i] if dim in rows.coords else i}"
            for dim, i in zip(rows.dims, index, strict=True)
        )
        at = at or str(rows.name)  # a scalar
        named.append(at if values is None else f"{at}: {values[index]:.2f}")
    more = ", ..." if len(places) > _NAMED else ""
    return f"{len(places):,} of {marked.size:,} rows ({'; '.join(named)}{more})"
