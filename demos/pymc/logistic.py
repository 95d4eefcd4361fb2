"""A logistic regression whose rows are divided over members. Run: python demos/pymc/logistic.py."""

import numpy as np
import pymc as pm
from comparison import arguments, compare


def model(rows: int) -> pm.Model:
    rng = np.random.default_rng(1)
    x, w = rng.normal(size=(rows, 20)), rng.normal(size=20)
    y = (rng.random(rows) < 1 / (1 + np.exp(-x @ w))).astype(int)
    with pm.Model() as made:
        a, b = pm.Normal("a", 0, 1), pm.Normal("b", 0, 1, shape=20)
        pm.Bernoulli("y", logit_p=a + pm.math.dot(x, b), observed=y)
    return made


if __name__ == "__main__":
    compare(model, arguments(__doc__, rows=50_000))
