"""The time of a gradient, by the operations in a model's graph."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pymc as pm
import pytest

from synkhronos.pymc._density.estimate import gradient_seconds
from synkhronos.pymc._reading.declared import Declared
from synkhronos.pymc._reading.reading import read

ROWS = 10_000


def levels(r: np.random.Generator) -> None:
    a = pm.Normal("a", shape=50)
    pm.Normal("y", a[r.integers(50, size=ROWS)], observed=r.normal(size=ROWS))


def products(r: np.random.Generator) -> None:
    b = pm.Normal("b", shape=40)
    pm.Normal("y", pm.math.dot(r.normal(size=(ROWS, 40)), b), observed=r.normal(size=ROWS))


def mixtures(r: np.random.Generator) -> None:
    w, mu = pm.Dirichlet("w", np.ones(3)), pm.Normal("mu", shape=3)
    pm.NormalMixture("y", w, mu, observed=r.normal(size=ROWS))


def choices(r: np.random.Generator) -> None:
    utilities = pm.Normal("b") * r.normal(size=(ROWS, 3))
    pm.Categorical("y", logit_p=utilities, observed=r.integers(3, size=ROWS))


def arithmetic(r: np.random.Generator) -> None:
    pm.Normal("y", pm.Normal("mu"), observed=r.normal(size=ROWS))


def powers(r: np.random.Generator) -> None:
    pm.Normal("y", pm.Uniform("a") ** r.normal(size=ROWS), observed=r.normal(size=ROWS))


def cubes(r: np.random.Generator) -> None:
    pm.Normal("y", (pm.Uniform("a") + r.normal(size=ROWS)) ** 3, observed=r.normal(size=ROWS))


@pytest.mark.parametrize(
    ("of", "least"),
    [
        (levels, 1.5),  # nanoseconds of a row that the kind takes by itself
        (products, 6.0),
        (mixtures, 30.0),
        (choices, 60.0),  # softmax and its logarithm
        (arithmetic, 0.0),
        (powers, 18.0),  # of a number for each row
        (cubes, 0.0),  # a product
    ],
)
def test_operations_that_take_most_of_the_time_are_counted(
    of: Callable[[np.random.Generator], None], least: float
) -> None:
    with pm.Model() as model:
        of(np.random.default_rng(1))
    found = gradient_seconds(read(model, None, Declared.of(model, ()), None)) / ROWS * 1e9
    assert least <= found <= least + 10
