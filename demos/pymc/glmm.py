"""Overdispersed counts, with one latent variable per row. Run: python demos/pymc/glmm.py."""

import numpy as np
import pymc as pm
from comparison import arguments, compare


def model(rows: int) -> pm.Model:
    rng = np.random.default_rng(3)
    x = rng.normal(size=(rows, 5))
    eta = 0.5 + x @ np.linspace(-0.4, 0.4, 5) + 0.5 * rng.normal(size=rows)
    with pm.Model(coords={"obs": range(rows)}) as made:
        a, b = pm.Normal("a", 0, 1), pm.Normal("b", 0, 1, shape=5)
        scale = pm.HalfNormal("scale", 1)
        noise = pm.Normal("noise", 0, 1, dims="obs")
        mean = pm.math.exp(a + x @ b + scale * noise)
        pm.Poisson("y", mu=mean, observed=rng.poisson(np.exp(eta)), dims="obs")
    return made


if __name__ == "__main__":
    compare(model, arguments(__doc__, rows=20_000))
