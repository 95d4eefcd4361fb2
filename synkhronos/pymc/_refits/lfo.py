"""`lfo`: each time of a series is predicted by a fit to the times before."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import pymc as pm
from xarray import DataArray, DataTree

from synkhronos._checks import check_integer, check_number, shown
from synkhronos._errors import InputError
from synkhronos.pymc._after.elpd import is_pointwise, of_arviz
from synkhronos.pymc._after.loo_rows import LooRows
from synkhronos.pymc._reading.models import model_of
from synkhronos.pymc._refits.fits import Refits
from synkhronos.pymc._refits.refit import Carried

_METHODS = ("approx", "exact")


def lfo(
    data: DataTree,
    min_observations: int,
    forecast_horizon: int = 1,
    time_dim: str | None = None,
    pointwise: bool | None = None,
    var_name: str | None = None,
    method: str = "approx",
    k_threshold: float = 0.7,
    *,
    model: pm.Model | None = None,
    backend: str | None = None,
    compile_kwargs: dict[str, object] | None = None,
    **kwargs: Any,
) -> Any:
    """Leave the future of a time series out, and predict the next times from the past.

    The result and the arguments are those of `arviz.lfo_cv`, which wants a wrapper that samples.
    Here `map` fits the times, with one compilation for all of them.

    Parameters
    ----------
    data : DataTree
        The fit to all times, with the group ``posterior``.
    min_observations : int
        The number of times that the first fit knows.
    forecast_horizon : int
        The number of times that are predicted together.
    time_dim : str, optional
        The dim of the times. Default: the only dim of the observed variable. The rows are in the
        order of time.
    pointwise : bool, optional
        Whether the result has numbers of each time. Default: ArviZ's ``rcParams``.
    var_name : str, optional
        The observed variable; needed if there are several. The others stay whole in all fits.
    method : "approx" or "exact"
        "exact" fits at each time, in all slots. "approx" carries draws on to later times by
        importance sampling, and fits again if that is not reliable; then one process has all of the
        fits, whose chains run on several cores.
    k_threshold : float
        The Pareto k above which "approx" fits again.
    model : pymc.Model, optional
        Default: that of the current context.
    backend, compile_kwargs
        As for `pm.compute_log_likelihood`.
    **kwargs
        As for `cross_validate`: arguments of `map` and of `pm.sample`.

    Returns
    -------
    ELPDDataLFO
        Of ArviZ; ``az.compare`` takes it.

    Raises
    ------
    InputError, InputTypeError
        An argument is not possible, the observed variable has more dims than that of the times,
        there are too few times or fewer than 25 draws, or the log-likelihoods in `data` are not
        those of the model. Nothing was fitted.
    SynkhronosError
        A fit has failed. With ``folder=`` the others are kept.
    KeyboardInterrupt
        Ctrl-C. The fits in ``folder`` stay.

    Warns
    -----
    UserWarning
        More than half of the times needed a new fit, or draws of some fits diverged.

    Notes
    -----
    Cost: a compilation in each slot; "exact" one fit for each time, "approx" mostly a few. Times
    that are left out cost as much as others, see `cross_validate`. Times that are predicted
    together have the product of their likelihoods, each given what was observed before it.

    See Bürkner, Gabry, Vehtari, "Approximate Leave-Future-Out Cross-Validation for Bayesian Time
    Series Models", Journal of Statistical Computation and Simulation 90(14), 2020.

    Examples
    --------
    ::

        found = synk.pymc.lfo(idata, 20, model=model, random_seed=1)
        found.refits, found.elpd_i
    """
    first = check_integer("lfo: min_observations", min_observations, 1)
    horizon = check_integer("lfo: forecast_horizon", forecast_horizon, 1)
    threshold = check_number("lfo: k_threshold", k_threshold)
    if method not in _METHODS:
        raise InputError(f'lfo: method={shown(method)}: give "approx" or "exact"')
    model = model_of(model, "lfo")
    fits = Refits("lfo", data, model, var_name, (backend, compile_kwargs), kwargs)
    rows = fits.rows
    _check_times(rows, time_dim, first, horizon)
    times = rows.size
    origins = np.arange(first, times - horizon + 1)
    if method == "exact":
        items = {
            f"{time}": {
                "out": np.arange(time, times),
                "scored": np.arange(time, time + horizon),
                "together": True,
            }
            for time in origins
        }
        results = fits.run(items)
        elpd = np.array([results[name]["elpd"][0] for name in items])
        pareto_k, refits = None, origins
    else:
        asked = {"times": times, "first": first, "horizon": horizon, "threshold": threshold}
        [found] = fits.run({"times": asked}, Carried).values()
        elpd, pareto_k = found["elpd"], found["pareto_k"]
        refits = np.array(found["refits"], int)
    p = fits.log_means(lambda work: Windows.of(work, first, horizon)) - elpd
    many = method == "approx" and 2 * len(refits) > len(origins)
    if many:
        warnings.warn(
            f"lfo: {len(refits)} of {len(origins)} times needed a new fit: importance sampling "
            'carries draws of this model not far. Give method="exact", which fits all at once',
            UserWarning,
            stacklevel=2,
        )
    at = rows[origins]

    def of_times(values: np.ndarray | None) -> DataArray | None:
        return at.copy(data=values) if values is not None and is_pointwise(pointwise) else None

    values = {
        "elpd": elpd.sum(),
        "se": np.sqrt(elpd.size * elpd.var()),
        "p": p.sum(),
        "n_samples": fits.draws,
        "n_data_points": elpd.size,
        "scale": "log",
        "warning": many,
        "good_k": None if pareto_k is None else threshold,
        "elpd_i": of_times(elpd),
        "pareto_k": of_times(pareto_k),
        "forecast_horizon": horizon,
        "min_observations": first,
        "refits": refits,
        "n_refits": len(refits),
        "p_lfo_i": of_times(p),
    }
    return of_arviz("lfo_cv", "LFO", values)


def _check_times(rows: DataArray, dim: str | None, first: int, horizon: int) -> None:
    if rows.ndim != 1 or dim not in (None, *rows.dims):
        asked = "" if dim is None else f"time_dim={dim!r}: "
        raise InputError(
            f"lfo: {asked}{rows.name} has the dims {list(rows.dims)}, and one dim of times is "
            "needed, with a log-likelihood for each"
        )
    if first + horizon > rows.size:
        raise InputError(
            f"lfo: min_observations={first} and forecast_horizon={horizon}: {rows.name} has "
            f"{rows.size} times, which is fewer than their sum"
        )


@dataclass
class Windows(LooRows):
    """Log-likelihoods of some rows together, from each row on."""

    inner: LooRows
    first: int
    length: int  # rows of a window

    @staticmethod
    def of(work: LooRows, first: int, length: int) -> Windows:
        """From the row `first` on."""
        return Windows(work.rows - first - length + 1, 1, work.draws, 0, work, first, length)

    @property
    def in_processes(self) -> bool:
        return self.inner.in_processes

    def of_first_draw(self) -> np.ndarray:
        rows = self.inner.of_first_draw()[self.first :]
        return np.lib.stride_tricks.sliding_window_view(rows, self.length).sum(axis=-1)

    def log_likelihoods(self, rows: range, found: np.ndarray) -> None:
        wide = np.empty((len(rows) + self.length - 1, self.draws))
        begin = self.first + rows.start
        self.inner.log_likelihoods(range(begin, begin + len(wide)), wide)
        found[:] = wide[: len(rows)]
        for later in range(1, self.length):
            found += wide[later : later + len(rows)]
