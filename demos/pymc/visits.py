"""Doctor visits of 5,912 persons under five health insurance plans: python demos/pymc/visits.py.

The RAND Health Insurance Experiment (1974 to 1982) gave each family a plan by chance: free care, a
share of each bill to pay, or a deductible. Each of the 20,190 rows of `visits.csv.gz` is a year of
a person, with the number of visits to a doctor. The model is a negative binomial regression with an
intercept for each person. After sampling it is checked, rated by PSIS-LOO, and predicts the visits
if all had the same plan. `--picture FILE.png` draws the result (it needs matplotlib).

Data: RAND, in the public domain, as used in A. C. Cameron, P. K. Trivedi, "Microeconometrics",
Cambridge University Press 2005. The experiment: W. G. Manning et al., "Health Insurance and the
Demand for Medical Care", American Economic Review 77 (1987), 251-277.
"""

import argparse
import gzip
import warnings
from pathlib import Path

import numpy as np
import pymc as pm

import synkhronos as synk

DATA = Path(__file__).with_name("visits.csv.gz")
PLANS = ["25 %", "50 %", "95 %", "deductible"]  # beside 0: free
HEALTH = ["good", "fair", "poor"]  # beside 0: excellent
TERMS = [*PLANS, *HEALTH, "age", "age squared", "female", "chronic diseases"]
MOST = 15  # visits a year, in the picture
SHOWN = 25  # draws of each chain


def load(persons):
    """The columns by their names, of this number of persons."""
    with gzip.open(DATA, "rt") as file:
        rows = np.genfromtxt(file, delimiter=",", names=True)
    return rows[rows["person"] < persons]


def predictors(rows):
    """A column for each of TERMS; age and diseases in standard deviations."""

    def scaled(values):
        return (values - values.mean()) / values.std()

    age = scaled(rows["age"])
    columns = [rows["plan"] == i for i in range(1, 1 + len(PLANS))]
    columns += [rows["health"] == i for i in range(1, 1 + len(HEALTH))]
    columns += [age, scaled(age**2), rows["female"], scaled(rows["chronic"])]
    return np.stack(columns, axis=1).astype(float)


def make_model(rows):
    """Visits of each row: negative binomial, with a rate for each person and year."""
    person = rows["person"].astype(int)
    coords = {"term": TERMS, "person": range(person.max() + 1), "row": range(len(rows))}
    with pm.Model(coords=coords) as model:
        level = pm.Normal("level", 1.0, 1.0)
        effects = pm.Normal("effects", 0.0, 0.5, dims="term")
        spread = pm.HalfNormal("spread", 1.0)
        persons = pm.Normal("persons", 0.0, 1.0, dims="person")
        alpha = pm.Gamma("alpha", 2.0, 0.5)
        rate = pm.math.exp(level + predictors(rows) @ effects + spread * persons[person])
        pm.NegativeBinomial(
            "visits", mu=rate * rows["eligible"], alpha=alpha, observed=rows["visits"], dims="row"
        )
    return model


def drawn(rows, draws):
    """Visits of each row, drawn from the model for `SHOWN` draws of the posterior."""
    every = -(-draws.posterior.sizes["draw"] // SHOWN)
    few = draws.posterior.to_dataset().isel(draw=slice(None, None, every))
    made = synk.pymc.sample_posterior_predictive(few, make_model(rows), random_seed=1)
    return made.posterior_predictive["visits"].stack(sample=("chain", "draw")).values.T


def with_plan(rows, plan):
    """The same persons and years, had all had one plan."""
    other = rows.copy()
    other["plan"] = plan
    return other


def picture(path, rows, ratios, checked, predicted):
    """Draw the effect of the plans, a check of the model, and what it predicts."""
    import matplotlib.pyplot as plt

    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(12, 3.2), layout="constrained")
    mean = ratios.mean(axis=0)
    low, high = np.quantile(ratios, [0.03, 0.97], axis=0)
    left.errorbar(mean, PLANS, xerr=[mean - low, high - mean], fmt="o", capsize=3)
    left.axvline(1.0, color="grey", linewidth=1)
    left.set(xlabel="visits, as a multiple of those under free care", title="Effect of the plan")
    left.invert_yaxis()
    bins = np.arange(MOST + 2)
    made = [np.histogram(np.minimum(v, MOST), bins)[0] for v in checked]
    seen = np.histogram(np.minimum(rows["visits"], MOST), bins)[0]
    middle.bar(bins[:-1], seen, color="lightgrey", label="observed")
    middle.plot(bins[:-1], np.mean(made, axis=0), "o-", markersize=3, label="model")
    middle.set(xlabel=f"visits in a year ({MOST}: or more)", ylabel="rows", title="Check")
    middle.legend()
    right.boxplot(list(predicted.values()), orientation="horizontal", tick_labels=list(predicted))
    right.set(xlabel="visits of a person in a year, if all had this plan", title="Prediction")
    right.invert_yaxis()
    figure.savefig(path)


def main():
    """Sample, print what the plans change, and draw."""
    parser = argparse.ArgumentParser(description=__doc__.partition(":")[0])
    parser.add_argument("--persons", type=int, default=5912)
    parser.add_argument("--chains", type=int, default=2)
    parser.add_argument("--members-per-chain", type=int, help="default: as is fastest")
    parser.add_argument("--draws", type=int, default=500)
    parser.add_argument("--tune", type=int, default=500)
    parser.add_argument("--mode", help="of PyTensor; default: that of its settings")
    parser.add_argument("--picture", default="", help="such as visits.png or visits.svg")
    options = parser.parse_args()
    rows = load(options.persons)
    print(f"{len(rows):,} years of {options.persons:,} persons, {rows['visits'].sum():,.0f} visits")
    model = make_model(rows)
    draws = synk.pymc.sample(
        model,
        chains=options.chains,
        members_per_chain=options.members_per_chain,
        mode=options.mode,
        draws=options.draws,
        tune=options.tune,
        random_seed=1,
    )
    effects = draws.posterior["effects"].sel(term=PLANS).values.reshape(-1, len(PLANS))
    ratios = np.exp(effects)
    print("visits as a multiple of those under free care, mean and 94 % interval:")
    for plan, values in zip(PLANS, ratios.T, strict=True):
        low, high = np.quantile(values, [0.03, 0.97])
        print(f"  {plan:10}  {values.mean():.2f}  ({low:.2f} to {high:.2f})")
    checked = drawn(rows, draws)
    print(f"mean visits of a row: {rows['visits'].mean():.2f}, of the model {checked.mean():.2f}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of large k, which are counted here
        loo = synk.pymc.loo(draws, pointwise=True, model=model)
    large = int((loo.pareto_k > loo.good_k).sum())
    print(f"elpd by PSIS-LOO: {loo.elpd:,.0f} (se {loo.se:,.0f})")
    print(f"Pareto k is too large for {large:,} rows")
    names = ["free", *PLANS]
    predicted = {n: drawn(with_plan(rows, i), draws).mean(axis=1) for i, n in enumerate(names)}
    means = ", ".join(f"{name} {values.mean():.2f}" for name, values in predicted.items())
    print(f"visits of a person in a year, if all had this plan: {means}")
    if options.picture:
        picture(options.picture, rows, ratios, checked, predicted)
        print(f"picture: {options.picture}")


if __name__ == "__main__":
    main()
