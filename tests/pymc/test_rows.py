"""Terms that share their parameters among all rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pymc as pm
import pytest
from comparing import check_equal, evaluated, points
from selection import thorough

import synkhronos as synk

ROWS = 31
CUTS = np.linspace(-1, 1, 3)


def cutpoints() -> Any:
    ordered = pm.distributions.transforms.ordered
    return pm.Normal("cuts", CUTS, 1, shape=3, transform=ordered, initval=CUTS)


SHARED: dict[str, Callable[[Any], Any]] = {
    "p": lambda y: pm.Categorical("y", p=pm.Dirichlet("p", np.ones(4)), observed=y),
    "logit_p": lambda y: pm.Categorical("y", logit_p=pm.Normal("p", shape=4), observed=y),
    "OrderedLogistic": lambda y: pm.OrderedLogistic(
        "y", eta=pm.Normal("eta"), cutpoints=cutpoints(), observed=y
    ),
    "OrderedProbit": lambda y: pm.OrderedProbit("y", eta=0, cutpoints=cutpoints(), observed=y),
}


def model_of(kind: str) -> pm.Model:
    with pm.Model() as model:
        SHARED[kind](np.random.default_rng(0).integers(0, 4, ROWS))
    return model


@pytest.mark.parametrize(
    ("kind", "members"),
    [("p", 1), ("p", 3), ("OrderedLogistic", 2), *thorough(("logit_p", 2), ("OrderedProbit", 3))],
)
def test_categories_of_rows_with_one_vector_of_probabilities(kind: str, members: int) -> None:
    model = model_of(kind)
    at = points(model, 2)
    plain = evaluated(model, at)
    with synk.pymc.parallel(model, members=members) as parallel:
        assert parallel.names == ["y"]
        check_equal(plain, evaluated(model, at))


def test_an_index_that_only_happens_to_have_length_1() -> None:
    """With other data it pairs with the rows: members get what it selects."""
    draw = np.random.default_rng(0)
    with pm.Model() as model:
        table, which = pm.Normal("table", shape=(2, 4)), pm.Data("which", [0])
        mean = table[which, draw.integers(0, 4, ROWS)]
        pm.Normal("y", mean, 1, observed=draw.normal(size=ROWS))
    at = points(model, 2)
    many = {"which": draw.integers(0, 2, ROWS)}
    with synk.pymc.parallel(model, members=2), model:
        pm.set_data(many)
        divided = evaluated(model, at)
    check_equal(evaluated(model, at), divided)
