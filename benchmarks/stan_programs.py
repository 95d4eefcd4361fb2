"""The models of `pymc_gallery_models.py` as Stan programs, whole and as a sum over slices of rows.

Parameters stand in the order of the PyMC models, so that both have the same gradient. The two that
have a Cholesky factor take Stan's own parameters of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from pymc_gallery_models import rng

CENSORED_AT = 1.5

type Arrays = dict[str, Any]


@dataclass(frozen=True)
class RowSum:
    """A log-density that is a sum over rows.

    Attributes
    ----------
    density : str
        The name of Stan's function.
    observed : str
        The declaration of what is sliced, as an argument of a function.
    given : str
        The arguments after the bar; "@" follows what has rows.
    passed : str
        The declarations of all that `given` names.
    """

    density: str
    observed: str
    given: str
    passed: str

    @property
    def name(self) -> str:
        """What is sliced."""
        return self.observed.split()[-1]

    def whole(self) -> str:
        """The statement that adds all rows."""
        return f"target += {self.density}({self.name} | {self.given.replace('@', '')});"

    def function(self) -> str:
        """A function of the rows of a slice."""
        kind = self._kind()
        rows = self.given.replace("@", "[first:last]")
        return (
            f"real of_{self.name}_l{kind}({self.observed}, int first, int last, {self.passed}) "
            f"{{ return {self.density}({self.name} | {rows}); }}"
        )

    def sliced(self) -> str:
        """The statement that adds the slices, in threads."""
        names = ", ".join(word.split()[-1] for word in self.passed.split(", "))
        function = f"of_{self.name}_l{self._kind()}"
        return f"target += reduce_sum({function}, {self.name}, grain, {names});"

    def _kind(self) -> str:
        return "pmf" if " int " in self.observed else "pdf"


@dataclass(frozen=True)
class Program:
    """A Stan program, and its data.

    Attributes
    ----------
    data, parameters, priors : str
        The declarations and the statements.
    sums : tuple of RowSum
    arrays : callable
        The data, from what the PyMC model observes; indices count from 0.
    same : bool
        Whether the parameters, without constraints, are those of the PyMC model.
    """

    data: str
    parameters: str
    priors: str
    sums: tuple[RowSum, ...]
    arrays: Callable[[np.ndarray], Arrays]
    same: bool = True

    def source(self, threads: int) -> str:
        """The program for this number of threads."""
        sliced = threads > 1
        functions = "\n".join(s.function() for s in self.sums) if sliced else ""
        added = "\n".join(s.sliced() if sliced else s.whole() for s in self.sums)
        return (
            f"functions {{ {functions} }}\n"
            f"data {{ int grain; {self.data} }}\n"
            f"parameters {{ {self.parameters} }}\n"
            f"model {{ {self.priors}\n{added} }}\n"
        )

    def values(self, observed: np.ndarray, threads: int) -> Arrays:
        """The data, with two slices for each thread."""
        return self.arrays(observed) | {"grain": -(-len(observed) // (2 * threads))}


def one_based(**indices: np.ndarray) -> Arrays:
    return {name: np.asarray(index, int) + 1 for name, index in indices.items()}


def item_response(y: np.ndarray) -> Arrays:
    r, rows = rng(), len(y)
    person, item = r.integers(0, 1500, rows), r.integers(0, 32, rows)
    return {"N": rows, "y": y.astype(int)} | one_based(person=person, item=item)


def election(y: np.ndarray) -> Arrays:
    r, rows = rng(), len(y)
    state, age, edu = r.integers(0, 51, rows), r.integers(0, 4, rows), r.integers(0, 4, rows)
    region, past = r.integers(0, 5, 51), r.normal(0, 0.1, 51)
    female, black = r.integers(0, 2, rows), r.integers(0, 2, rows)
    x = np.stack([female, black, female * black], axis=1).astype(float)
    index = one_based(state=state, age=age, edu=edu, region=region, pair=edu * 4 + age)
    return {"N": rows, "y": y.astype(int), "past": past, "x": x} | index


def cumulative(y: np.ndarray) -> Arrays:
    r, rows = rng(), len(y)
    x, group = r.normal(size=(rows, 8)), r.integers(0, 100, rows)
    return {"N": rows, "x": x, "start": np.linspace(-2, 2, 4)} | one_based(group=group, y=y)


def censored(y: np.ndarray) -> Arrays:
    x = rng().normal(size=(len(y), 6))
    known = y < CENSORED_AT
    limits = y[~known]
    return {
        "N": int(known.sum()),
        "M": len(limits),
        "y": y[known],
        "limits": limits,
        "x": x[known],
        "later": x[~known],
    }


def neural_network(y: np.ndarray) -> Arrays:
    return {"N": len(y), "x": rng().normal(size=(len(y), 10)), "y": y.astype(int)}


def frailty(y: np.ndarray) -> Arrays:
    r, rows = rng(), len(y)
    patient, x = r.integers(0, 500, rows), r.normal(size=(rows, 4))
    exposure = np.log(r.uniform(0.2, 2, rows))
    return {"N": rows, "x": x, "exposure": exposure, "y": y.astype(int)} | one_based(
        patient=patient
    )


def multivariate(y: np.ndarray) -> Arrays:
    return {"N": len(y), "y": y}


def radon(y: np.ndarray) -> Arrays:
    r, rows, counties = rng(), len(y), 386
    county, floor = r.integers(0, counties, rows), r.integers(0, 2, rows).astype(float)
    uranium = r.normal(size=counties)
    return {"N": rows, "y": y, "floor_": floor, "uranium": uranium} | one_based(county=county)


def trolley(y: np.ndarray) -> Arrays:
    r, rows = rng(), len(y)
    person, story = r.integers(0, 331, rows), r.integers(0, 30, rows)
    x = r.integers(0, 2, (rows, 3)).astype(float)
    index = one_based(person=person, story=story, y=y)
    return {"N": rows, "x": x, "start": np.linspace(-2, 2, 6)} | index


def factorisation(y: np.ndarray) -> Arrays:
    r, rows = rng(), len(y)
    user, film = r.integers(0, 943, rows), r.integers(0, 1682, rows)
    return {"N": rows, "y": y} | one_based(user=user, film=film)


def survey(y: np.ndarray) -> Arrays:
    r, rows = rng(), len(y)
    state, age, edu, race, female = (r.integers(0, k, rows) for k in (51, 6, 5, 4, 2))
    index = one_based(state=state, age=age, edu=edu, race=race)
    return {"N": rows, "y": y.astype(int), "female": female.astype(float)} | index


def regression(y: np.ndarray) -> Arrays:
    return {"N": len(y), "x": rng().normal(size=(len(y), 20)), "y": y}


PROGRAMS: dict[str, Program] = {
    "irt": Program(
        "int N; array[N] int person; array[N] int item; array[N] int y;",
        "vector[1500] ability; vector[32] difficulty; vector<lower=0>[32] slope;",
        "ability ~ std_normal(); difficulty ~ std_normal(); slope ~ lognormal(0, 0.5);",
        (
            RowSum(
                "bernoulli_logit_lupmf",
                "array[] int y",
                "slope[item@] .* (ability[person@] - difficulty[item@])",
                "vector slope, array[] int item, vector ability, array[] int person, "
                "vector difficulty",
            ),
        ),
        item_response,
    ),
    "election88": Program(
        "int N; array[N] int state; array[N] int age; array[N] int edu; array[N] int pair; "
        "array[51] int region; vector[51] past; matrix[N, 3] x; array[N] int y;",
        "vector[5] b; vector<lower=0>[5] sd; vector[5] of_region; vector[51] z_state; "
        "vector[4] z_age; vector[4] z_edu; vector[16] z_pair;",
        "b ~ std_normal(); sd ~ normal(0, 0.5); of_region ~ normal(0, sd[1]); "
        "z_state ~ std_normal(); z_age ~ std_normal(); z_edu ~ std_normal(); "
        "z_pair ~ std_normal(); vector[3] slopes = b[3:5]; real level = b[2]; "
        "vector[51] of_state = of_region[region] + b[1] * past + sd[2] * z_state; "
        "vector[4] of_age = sd[3] * z_age; vector[4] of_edu = sd[4] * z_edu; "
        "vector[16] of_pair = sd[5] * z_pair;",
        (
            RowSum(
                "bernoulli_logit_lupmf",
                "array[] int y",
                "level + x@ * slopes + of_state[state@] + of_age[age@] + of_edu[edu@] "
                "+ of_pair[pair@]",
                "real level, matrix x, vector slopes, vector of_state, array[] int state, "
                "vector of_age, array[] int age, vector of_edu, array[] int edu, "
                "vector of_pair, array[] int pair",
            ),
        ),
        election,
    ),
    "cumulative": Program(
        "int N; matrix[N, 8] x; array[N] int group; array[N] int y; vector[4] start;",
        "ordered[4] cuts; vector[8] b; real<lower=0> sd; vector[100] z;",
        "cuts ~ normal(start, 0.2); b ~ normal(0, 0.5); sd ~ normal(0, 0.5); z ~ std_normal(); "
        "vector[100] of_group = sd * z;",
        (
            RowSum(
                "ordered_logistic_lupmf",
                "array[] int y",
                "x@ * b + of_group[group@], cuts",
                "matrix x, vector b, vector of_group, array[] int group, vector cuts",
            ),
        ),
        cumulative,
    ),
    "censored": Program(
        "int N; int M; matrix[N, 6] x; matrix[M, 6] later; array[N] real y; array[M] real limits;",
        "vector[6] b; real<lower=0> alpha;",
        "b ~ normal(0, 0.3); alpha ~ lognormal(0, 0.3);",
        (
            RowSum(
                "weibull_lupdf",
                "array[] real y",
                "alpha, exp(x@ * b)",
                "real alpha, matrix x, vector b",
            ),
            RowSum(
                "weibull_lccdf",
                "array[] real limits",
                "alpha, exp(later@ * b)",
                "real alpha, matrix later, vector b",
            ),
        ),
        censored,
    ),
    "bnn": Program(
        "int N; matrix[N, 10] x; array[N] int y;",
        "matrix[10, 20] one; matrix[20, 20] two; vector[20] three;",
        "to_vector(one) ~ std_normal(); to_vector(two) ~ std_normal(); three ~ std_normal();",
        (
            RowSum(
                "bernoulli_logit_lupmf",
                "array[] int y",
                "tanh(tanh(x@ * one) * two) * three",
                "matrix x, matrix one, matrix two, vector three",
            ),
        ),
        neural_network,
    ),
    "frailty": Program(
        "int N; matrix[N, 4] x; array[N] int patient; vector[N] exposure; array[N] int y;",
        "vector[4] b; real<lower=0> theta; real<lower=0> base; vector<lower=0>[500] frail;",
        "b ~ normal(0, 0.3); theta ~ gamma(4, 2); base ~ gamma(4, 4); "
        "frail ~ gamma(theta, theta); vector[500] rate = log(base) + log(frail);",
        (
            RowSum(
                "poisson_log_lupmf",
                "array[] int y",
                "exposure@ + rate[patient@] + x@ * b",
                "vector exposure, vector rate, array[] int patient, matrix x, vector b",
            ),
        ),
        frailty,
    ),
    "mvnormal": Program(
        "int N; array[N] vector[5] y;",
        "vector<lower=0>[5] sd; cholesky_factor_corr[5] L; vector[5] mu;",
        "mu ~ std_normal(); sd ~ exponential(1); L ~ lkj_corr_cholesky(2); "
        "matrix[5, 5] root = diag_pre_multiply(sd, L);",
        (
            RowSum(
                "multi_normal_cholesky_lupdf",
                "array[] vector y",
                "mu, root",
                "vector mu, matrix root",
            ),
        ),
        multivariate,
        same=False,
    ),
    "radon": Program(
        "int N; array[N] int county; vector[N] floor_; vector[386] uranium; array[N] real y;",
        "vector[3] gamma_; vector<lower=0>[2] sd; cholesky_factor_corr[2] L; matrix[2, 386] z; "
        "real<lower=0> sigma;",
        "gamma_ ~ std_normal(); sd ~ exponential(1); L ~ lkj_corr_cholesky(2); "
        "to_vector(z) ~ std_normal(); sigma ~ exponential(1); "
        "matrix[386, 2] each = (diag_pre_multiply(sd, L) * z)'; "
        "vector[386] level = gamma_[1] + gamma_[2] * uranium + each[, 1]; "
        "vector[386] slope = gamma_[3] + each[, 2];",
        (
            RowSum(
                "normal_lupdf",
                "array[] real y",
                "level[county@] + slope[county@] .* floor_@, sigma",
                "vector level, array[] int county, vector slope, vector floor_, real sigma",
            ),
        ),
        radon,
        same=False,
    ),
    "trolley": Program(
        "int N; matrix[N, 3] x; array[N] int person; array[N] int story; array[N] int y; "
        "vector[6] start;",
        "ordered[6] cuts; vector<lower=0>[2] sd; vector[3] b; vector[331] z_person; "
        "vector[30] z_story;",
        "cuts ~ normal(start, 0.2); sd ~ normal(0, 1); b ~ normal(0, 0.5); "
        "z_person ~ std_normal(); z_story ~ std_normal(); "
        "vector[331] of_person = sd[1] * z_person; vector[30] of_story = sd[2] * z_story;",
        (
            RowSum(
                "ordered_logistic_lupmf",
                "array[] int y",
                "x@ * b + of_person[person@] + of_story[story@], cuts",
                "matrix x, vector b, vector of_person, array[] int person, vector of_story, "
                "array[] int story, vector cuts",
            ),
        ),
        trolley,
    ),
    "factorisation": Program(
        "int N; array[N] int user; array[N] int film; array[N] real y;",
        "matrix[943, 10] users; matrix[1682, 10] films;",
        "to_vector(users) ~ std_normal(); to_vector(films) ~ std_normal();",
        (
            RowSum(
                "normal_lupdf",
                "array[] real y",
                "rows_dot_product(users[user@], films[film@]), 1.0",
                "matrix users, array[] int user, matrix films, array[] int film",
            ),
        ),
        factorisation,
    ),
    "survey": Program(
        "int N; array[N] int state; array[N] int age; array[N] int edu; array[N] int race; "
        "vector[N] female; array[N] int y;",
        "vector[2] b; vector<lower=0>[4] sd; vector[51] z_state; vector[6] z_age; "
        "vector[5] z_edu; vector[4] z_race;",
        "b ~ std_normal(); sd ~ normal(0, 0.5); z_state ~ std_normal(); z_age ~ std_normal(); "
        "z_edu ~ std_normal(); z_race ~ std_normal(); real level = b[1]; real slope = b[2]; "
        "vector[51] of_state = sd[1] * z_state; vector[6] of_age = sd[2] * z_age; "
        "vector[5] of_edu = sd[3] * z_edu; vector[4] of_race = sd[4] * z_race;",
        (
            RowSum(
                "bernoulli_logit_lupmf",
                "array[] int y",
                "level + slope * female@ + of_state[state@] + of_age[age@] + of_edu[edu@] "
                "+ of_race[race@]",
                "real level, real slope, vector female, vector of_state, array[] int state, "
                "vector of_age, array[] int age, vector of_edu, array[] int edu, "
                "vector of_race, array[] int race",
            ),
        ),
        survey,
    ),
    "regression": Program(
        "int N; matrix[N, 20] x; array[N] real y;",
        "real a; vector[20] b; real<lower=0> sigma;",
        "a ~ std_normal(); b ~ std_normal(); sigma ~ exponential(1);",
        (
            RowSum(
                "normal_lupdf",
                "array[] real y",
                "a + x@ * b, sigma",
                "real a, matrix x, vector b, real sigma",
            ),
        ),
        regression,
    ),
}
