"""Models that packages build and fit: what calls `pm.sample` is theirs."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
import pandas as pd
import pymc as pm

# Samples with arguments of `pm.sample`; and the PyMC model, whose parameters are compared.
type Fit = tuple[Callable[..., Any], pm.Model]


def media_mix() -> Fit:
    """A media mix of two channels in 40 regions, two years of weeks."""
    mmm = import_module("pymc_marketing.mmm")
    r = np.random.default_rng(0)
    regions, weeks = 40, 104
    rows = regions * weeks
    data = pd.DataFrame(
        {
            "date": np.tile(pd.date_range("2023-01-01", periods=weeks, freq="W"), regions),
            "geo": np.repeat([f"region {i}" for i in range(regions)], weeks),
            "tv": r.gamma(2, 1, rows),
            "web": r.gamma(2, 1, rows),
        }
    )
    sales = pd.Series(1 + 0.5 * data.tv + 0.2 * data.web + r.normal(0, 0.1, rows), name="y")
    model = mmm.MMM(
        date_column="date",
        dims=("geo",),
        channel_columns=["tv", "web"],
        target_column="y",
        adstock=mmm.GeometricAdstock(l_max=4),
        saturation=mmm.LogisticSaturation(),
    )
    model.build_model(data, sales)
    return lambda **given: model.fit(data, sales, **given), model.model


def groups() -> Fit:
    """A Bambi model of counts with effects of 200 groups, by intercept and slope."""
    bambi = import_module("bambi")
    r = np.random.default_rng(0)
    rows, count = 20_000, 200
    group = r.integers(0, count, rows)
    x, z = r.normal(size=(2, rows))
    effect, slope = r.normal(0, 0.5, (2, count))
    rate = np.exp(1 + 0.3 * x - 0.2 * z + effect[group] + 0.2 * slope[group] * x)
    data = pd.DataFrame({"y": r.poisson(rate), "x": x, "z": z, "group": group.astype(str)})
    model = bambi.Model("y ~ x + z + (x|group)", data, family="poisson")
    model.build()
    return model.fit, model.backend.model


FITS: dict[str, Callable[[], Fit]] = {"media mix": media_mix, "Bambi groups": groups}
