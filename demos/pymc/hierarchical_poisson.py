"""Counts in groups, with one rate per group. Run: python demos/pymc/hierarchical_poisson.py."""

import numpy as np
import pymc as pm
from comparison import arguments, compare


def model(rows: int) -> pm.Model:
    rng = np.random.default_rng(2)
    groups = max(2, rows // 200)
    group, exposure = rng.integers(0, groups, rows), rng.random(rows) + 0.5
    y = rng.poisson(rng.gamma(2, 0.5, groups)[group] * exposure)
    with pm.Model(coords={"obs": range(rows), "group": range(groups)}) as made:
        alpha, beta = pm.Exponential("alpha", 1), pm.Exponential("beta", 1)
        rate = pm.Gamma("rate", alpha, beta, dims="group")
        group = pm.Data("group_of", group, dims="obs")
        exposure = pm.Data("exposure", exposure, dims="obs")
        pm.Poisson("y", mu=rate[group] * exposure, observed=y, dims="obs")
    return made


if __name__ == "__main__":
    compare(model, arguments(__doc__, rows=200_000))
