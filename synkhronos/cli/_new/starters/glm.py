"""A PyMC model whose likelihood all members evaluate together; run it by `python glm.py`."""

import numpy as np
import pymc as pm

import synkhronos as synk

rng = np.random.default_rng(0)
x = rng.normal(size=(20_000, 3))
true = np.array([1.0, -2.0, 0.5])
y = rng.random(len(x)) < 1 / (1 + np.exp(-(x @ true)))

with pm.Model(coords={"obs": range(len(x))}) as model:
    slopes = pm.Normal("slopes", 0, 2, shape=3)
    pm.Bernoulli("y", logit_p=x @ slopes, observed=y, dims="obs")

# Inside of `parallel`, members divide the rows of "obs". Before that, the log-density and its
# gradient are compared with the plain ones. `synk.pymc.advise(model).show()` says whether it pays.
with model, synk.pymc.parallel(model, "obs"):
    trace = pm.sample(300, tune=300, chains=1, random_seed=1, progressbar=False)

found = trace.posterior["slopes"].mean(("chain", "draw")).values
print(f"slopes {found.round(2)}, with which the observations were drawn {true}")
