"""A survey of a million answers in twelve thousand cells: python demos/pymc/survey.py.

Each answer is yes or no, from a person of one of 51 states, 6 groups of age, 5 of education, 4 of
race, and 2 of sex. The model is a logistic regression with an effect of each group. No row is
aggregated by hand: Synkhronos finds the rows that repeat, and the log-density costs what its cells
cost. The script prints the time of a gradient, plain and so, then samples. `--picture FILE.png`
draws the effects beside those that the answers were drawn with (it needs matplotlib).

The answers are drawn by chance: no survey of this size is in the public domain.
"""

import argparse
import time

import numpy as np
import pymc as pm

import synkhronos as synk

GROUPS = {"state": 51, "age": 6, "education": 5, "race": 4}
SPREADS = {"state": 0.4, "age": 0.3, "education": 0.2, "race": 0.5}
LEVEL, OF_WOMEN = -0.2, 0.25


def draw_answers(rows):
    """The true effects of each group, the groups of each row, and its answer."""
    rng = np.random.default_rng(11)
    effects = {name: rng.normal(0, SPREADS[name], count) for name, count in GROUPS.items()}
    columns = {name: rng.integers(0, count, rows) for name, count in GROUPS.items()}
    columns["female"] = rng.integers(0, 2, rows)
    logit = LEVEL + OF_WOMEN * columns["female"]
    for name, effect in effects.items():
        logit += effect[columns[name]]
    columns["yes"] = rng.random(rows) < 1 / (1 + np.exp(-logit))
    return effects, columns


def cells(columns):
    """The number of kinds of persons."""
    number = columns["female"]
    for name, count in GROUPS.items():
        number = number * count + columns[name]
    return len(np.unique(number))


def make_model(columns):
    """The answers: a level, an effect of women, and effects of groups around zero."""
    coords = {name: range(count) for name, count in GROUPS.items()}
    with pm.Model(coords=coords) as model:
        level, of_women = pm.Normal("level"), pm.Normal("women")
        logit = level + of_women * columns["female"]
        for name in GROUPS:
            spread = pm.HalfNormal(f"spread_{name}", 0.5)
            unit = pm.Normal(f"unit_{name}", dims=name)
            effect = pm.Deterministic(f"of_{name}", spread * unit, dims=name)
            logit += effect[columns[name]]
        pm.Bernoulli("yes", logit_p=logit, observed=columns["yes"])
    return model


def seconds(model, mode, repeats=10):
    """The median time of the log-density with its gradient."""
    function = model.logp_dlogp_function(ravel_inputs=True, mode=mode)
    start = model.initial_point(0)
    point = np.concatenate([np.ravel(start[v.name]) for v in model.continuous_value_vars])
    function(point)
    taken = []
    for _ in range(repeats):
        began = time.perf_counter()
        function(point)
        taken.append(time.perf_counter() - began)
    return np.median(taken)


def draw(path, effects, posterior):
    """Write a picture: the effects of states and of ages, found and true."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(
        1, 2, figsize=(9, 3.2), layout="constrained", width_ratios=[3, 1], sharey=True
    )
    for axis, name in zip(axes, ("state", "age"), strict=True):
        found = posterior[f"of_{name}"].values.reshape(-1, GROUPS[name])
        found = found - found.mean(axis=1, keepdims=True)
        true = effects[name] - effects[name].mean()
        mean, (low, high) = found.mean(axis=0), np.quantile(found, [0.03, 0.97], axis=0)
        at = np.arange(GROUPS[name])
        axis.errorbar(
            at, mean, yerr=[mean - low, high - mean], fmt="o", markersize=3, label="found"
        )
        axis.plot(at, true, "x", markersize=5, color="black", label="true")
        axis.axhline(0.0, color="grey", linewidth=1)
        axis.set(xlabel=name)
    axes[0].set(ylabel="effect on the log odds")
    axes[0].legend()
    figure.savefig(path)


def main():
    """Time gradients, sample, and draw."""
    parser = argparse.ArgumentParser(description=__doc__.partition(":")[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--chains", type=int, default=2)
    parser.add_argument("--draws", type=int, default=500)
    parser.add_argument("--tune", type=int, default=500)
    parser.add_argument("--mode", default="NUMBA", help="of PyTensor")
    parser.add_argument("--picture", default="", help="such as survey.png or survey.svg")
    options = parser.parse_args()
    effects, columns = draw_answers(options.rows)
    print(f"{options.rows:,} answers in {cells(columns):,} cells")
    model = make_model(columns)
    plain, ours = seconds(model, options.mode), seconds(synk.pymc.fast(model), options.mode)
    print(f"a gradient: {1e3 * plain:.3g} ms plain, {1e3 * ours:.3g} ms by cells")
    began = time.perf_counter()
    draws = synk.pymc.sample(
        model,
        chains=options.chains,
        mode=options.mode,
        draws=options.draws,
        tune=options.tune,
        random_seed=1,
    )
    taken = time.perf_counter() - began
    print(f"{options.chains * options.draws:,} draws in {taken:.3g} s, compiling included")
    women = draws.posterior["women"].values
    low, high = np.quantile(women, [0.03, 0.97])
    print(f"effect of women: {women.mean():.3f} ({low:.3f} to {high:.3f}), true {OF_WOMEN}")
    if options.picture:
        draw(options.picture, effects, draws.posterior)
        print(f"picture: {options.picture}")


if __name__ == "__main__":
    main()
