"""Models as PyMC's companions make them: pymc-marketing, pymc-extras, pymc-bart, Bambi."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np
import pymc as pm
from kinds import Kind, rng

CUSTOMERS = 50
WEEKS = 60


def version_of(package: str) -> str | None:
    """The version that is installed; None if there is none."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def marketing_mix(regions: int = 0, **options: Any) -> Any:
    """A media mix of two channels, in one market or in regions."""
    import pandas as pd
    from pymc_marketing.mmm import MMM, GeometricAdstock, LogisticSaturation

    numbers = rng()
    weeks = pd.date_range("2024-01-01", periods=WEEKS, freq="W-MON")
    names = [f"region {i}" for i in range(regions)]
    rows = [{"date": week, "geo": name} for name in names or [""] for week in weeks]
    data = pd.DataFrame(rows)
    for column in ("tv", "web", "holiday"):
        data[column] = numbers.uniform(0.1, 1, len(data))
    data["y"] = 1 + data["tv"] + numbers.uniform(0, 0.2, len(data))
    if not regions:
        data = data.drop(columns="geo")
    made = MMM(
        date_column="date",
        channel_columns=["tv", "web"],
        target_column="y",
        adstock=GeometricAdstock(l_max=4),
        saturation=LogisticSaturation(),
        control_columns=["holiday"],
        dims=("geo",) if regions else None,
        **options,
    )
    made.build_model(data.drop(columns="y"), data["y"])
    return made.model


def customers(name: str) -> Any:
    """A model of customers' lifetime value."""
    import pandas as pd
    from pymc_marketing import clv

    numbers = rng()
    frequency = numbers.integers(1, 8, CUSTOMERS)
    recency = frequency + numbers.integers(0, 8, CUSTOMERS)
    data = pd.DataFrame(
        {
            "customer_id": range(CUSTOMERS),
            "frequency": frequency,
            "recency": recency,
            "T": 20 if name in ("BetaGeoBetaBinomModel", "ShiftedBetaGeoModel") else recency + 5,
            "monetary_value": numbers.gamma(3, 10, CUSTOMERS),
            "individual_transaction_value": numbers.gamma(3, 10, CUSTOMERS),
            "cohort": np.where(numbers.random(CUSTOMERS) < 0.5, "spring", "autumn"),
        }
    )
    made = getattr(clv, name)()
    needed = {
        "GammaGammaModel": ["customer_id", "frequency", "monetary_value"],
        "GammaGammaModelIndividual": ["customer_id", "individual_transaction_value"],
        "ShiftedBetaGeoModel": ["customer_id", "recency", "T", "cohort"],
    }.get(name, ["customer_id", "frequency", "recency", "T"])
    made.build_model(data=data[needed])
    return made.model


def marginal_mixture() -> Any:
    import pymc_extras as pmx

    with pm.Model() as model:
        weights = pm.Dirichlet("weights", np.ones(2))
        mu = pm.Normal("mu", [-1, 1], shape=2)
        kind = pm.Categorical("kind", weights, shape=CUSTOMERS)
        pm.Normal("y", mu[kind], 1, observed=rng().normal(size=CUSTOMERS))
    return pmx.marginalize(model, ["kind"])


def hidden_markov(series: int) -> Any:
    """Hidden states of several series, or of one, summed out; times run along the first axis."""
    import pymc_extras as pmx
    from pymc_extras.distributions import DiscreteMarkovChain

    with pm.Model() as model:
        moves = pm.Dirichlet("moves", np.ones((2, 2)))
        mu = pm.Normal("mu", shape=2)
        start = pm.Categorical.dist([0.5, 0.5])
        shape = (series, WEEKS)
        states = DiscreteMarkovChain("states", P=moves, init_dist=start, shape=shape)
        pm.Normal("y", mu[states.T], 0.5, observed=rng().normal(size=(WEEKS, series)))
    return pmx.marginalize(model, ["states"])


def state_space() -> Any:
    import pandas as pd
    from pymc_extras.statespace import structural

    parts = structural.LevelTrend(order=1) + structural.MeasurementError(name="noise")
    made = parts.build(verbose=False)
    index = pd.date_range("2024-01-01", periods=WEEKS, freq="D")
    data = pd.DataFrame({"y": rng().normal(size=WEEKS).cumsum()}, index=index)
    with pm.Model(coords=made.coords) as model:
        pm.Deterministic("P0", pm.math.eye(1) * 10.0, dims=("state", "state_aux"))
        pm.Normal("initial_level_trend", dims=made.param_dims["initial_level_trend"])
        pm.HalfNormal("sigma_level_trend", dims=made.param_dims["sigma_level_trend"])
        pm.HalfNormal("sigma_noise")
        made.build_statespace_graph(data)
    return model


def trees() -> Any:
    import pymc_bart

    numbers = rng()
    x = numbers.normal(size=(CUSTOMERS, 2))
    with pm.Model() as model:
        mu = pymc_bart.BART("mu", x, x[:, 0] + numbers.normal(size=CUSTOMERS), m=5)
        pm.Normal("y", mu, pm.HalfNormal("sigma"), observed=x[:, 0])
    return model


def formula(text: str, family: str = "gaussian") -> Any:
    import bambi
    import pandas as pd

    numbers = rng()
    data = pd.DataFrame(
        {
            "x": numbers.normal(size=CUSTOMERS),
            "z": numbers.normal(size=CUSTOMERS),
            "group": numbers.choice(["a", "b", "c"], CUSTOMERS),
            "y": numbers.normal(size=CUSTOMERS),
            "count": numbers.poisson(2, CUSTOMERS),
            "yes": numbers.integers(0, 2, CUSTOMERS),
            "grade": pd.Categorical(numbers.choice(["1", "2", "3"], CUSTOMERS), ordered=True),
            "waiting": numbers.gamma(2, 1, CUSTOMERS),
        }
    )
    made = bambi.Model(text, data, family=family)
    made.build()
    return made.backend.model


LIFETIMES = (
    *("BetaGeoBetaBinomModel", "BetaGeoModel", "GammaGammaModel", "GammaGammaModelIndividual"),
    *("ModifiedBetaGeoModel", "ParetoNBDModel", "ShiftedBetaGeoModel"),
)
FORMULAS = {
    "y ~ x + z": "gaussian",
    "y ~ x*group": "t",
    "y ~ x + (x|group)": "gaussian",
    "y ~ hsgp(x, m=8, c=1.5)": "gaussian",
    "count ~ x + (1|group)": "negativebinomial",
    "yes ~ x": "bernoulli",
    "grade ~ x": "cumulative",
    "group ~ x": "categorical",
    "waiting ~ x": "gamma",
}

COMPANIONS: dict[str, dict[str, Kind]] = {
    "pymc-marketing": {
        "media mix": Kind(marketing_mix),
        "media mix of 40 regions": Kind(lambda: marketing_mix(40)),
        "media mix, yearly seasonality": Kind(lambda: marketing_mix(yearly_seasonality=2)),
        **{name: Kind(lambda name=name: customers(name)) for name in LIFETIMES},
    },
    "pymc-extras": {
        "mixture, kinds summed out": Kind(marginal_mixture),
        "hidden states of 4 series, summed out": Kind(lambda: hidden_markov(4)),
        "hidden states of one series": Kind(lambda: hidden_markov(1), "is not a sum over rows"),
        "state space": Kind(state_space, "steps through the rows"),
    },
    "pymc-bart": {"trees": Kind(trees)},
    "bambi": {
        f"{text}, {family}": Kind(lambda t=text, f=family: formula(t, f))
        for text, family in FORMULAS.items()
    },
}
