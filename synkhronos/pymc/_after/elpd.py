"""Results of ArviZ, and warnings about rows that they are not reliable for."""

from __future__ import annotations

import dataclasses
import warnings
from typing import Any

import arviz_stats
import numpy as np
from arviz_base import rcParams
from arviz_stats.base import array_stats
from xarray import DataArray

from synkhronos.pymc._after.observed import named


def of_arviz(kind: str, name: str, values: dict[str, object]) -> Any:
    """A result of the class ``ELPDData...`` with this name, if ArviZ has it, and of this kind.

    It is not one of `arviz_stats.loo` for a few numbers, which asks SciPy for a sum: SciPy looks
    whether they are JAX's, and so reads an attribute of the module that imports JAX late.
    """
    made = getattr(arviz_stats, f"ELPDData{name}", None)  # from 1.3
    if made is not None:
        return made(**values)
    known = {field.name for field in dataclasses.fields(arviz_stats.ELPDData)}
    found = arviz_stats.ELPDData(kind=kind, **{k: v for k, v in values.items() if k in known})
    for key in values.keys() - known:
        setattr(found, key, values[key])
    return found


def totals_of_sample(
    elpd: np.ndarray,
    lppd: np.ndarray,
    approximate: np.ndarray,  # of the rows of the sample, as elpd and lppd
    of_all: np.ndarray,  # the approximation of all rows
) -> tuple[float, float, float, float]:
    """The elpd of all rows, its error by the sample, its error, and p."""
    total, own_se, se = array_stats.diff_srs_estimator(elpd, approximate, of_all, of_all.size)
    p, _, _ = array_stats.srs_estimator(lppd - elpd, of_all.size)
    return total, own_se, se, p


def is_pointwise(given: bool | None) -> bool:
    """Whether the result has numbers of each row, which ArviZ's settings say by default."""
    return rcParams["stats.ic_pointwise"] if given is None else given


def warn_of_rows(
    rows: DataArray, pareto_k: np.ndarray, lppd: np.ndarray, good_k: float, then: str, level: int
) -> None:
    """Warn of rows whose k is too large, or whose log-likelihoods are not finite.

    `then` is what the user can do. `level` is the number of calls between here and the user.
    """
    undefined = ~np.isfinite(lppd)
    if undefined.any():
        warnings.warn(
            f"elpd is not finite: the log-likelihood of {named(rows, undefined)} is -inf, inf or "
            "NaN for some draws. Look at these rows: their values may be outside of the support",
            UserWarning,
            stacklevel=level + 1,
        )
    if (large := (pareto_k > good_k) & ~undefined).any():
        warnings.warn(
            f"Pareto k is above {good_k:.2f} for {named(rows, large, pareto_k)}: the posterior "
            "without such a row may differ much from that with it, so that importance sampling is "
            f"not reliable. Look at these rows, use a more robust model, or {then} without each of "
            "them",
            UserWarning,
            stacklevel=level + 1,
        )
