"""Random models: divided and equal to the plain one, or refused by an InputError."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pymc as pm
import pytest
from comparing import check_equal, check_not_worse, far_points, points
from hypothesis import HealthCheck, Phase, given, note, settings
from hypothesis import strategies as st
from pymc.logprob.utils import ParameterValueError
from pymc.pytensorf import gradient
from pytensor.compile.mode import Mode
from pytensor.graph.rewriting.db import RewriteDatabaseQuery
from random_models import models

import synkhronos as synk
from synkhronos.pymc._density import likelihood
from synkhronos.pymc._repeated import choice

UNCHANGED = Mode("py", None)  # rewriting takes most of the time of such small models
STABLE = Mode("py", RewriteDatabaseQuery(include=["canonicalize", "stabilize"]))


@pytest.fixture(scope="module")
def groups() -> Iterator[dict[int, synk.Group]]:
    with synk.Group(2) as two, synk.Group(3) as three:
        yield {2: two, 3: three}


def values(
    model: pm.Model, at: list[dict[str, np.ndarray]], mode: Mode = UNCHANGED
) -> list[tuple[Any, Any]]:
    """(log-density, gradient) at each point."""
    value = model.logp()
    slope = gradient(value, model.continuous_value_vars)
    both = model.compile_fn([value, slope], mode=mode)

    def each(point: dict[str, np.ndarray]) -> tuple[Any, Any]:
        try:
            return tuple(both(point))
        except ParameterValueError:  # rewriting, which PyMC asks for, makes it -inf
            return -np.inf, np.nan

    with np.errstate(all="ignore"):
        return [each(point) for point in at]


def outcome(model: pm.Model, group: synk.Group) -> str:
    """What became of the model; raises if it is wrong."""
    at, far = points(model, 2), far_points(model)[:4]
    refusal = ""
    try:
        with warnings.catch_warnings(), group.active(), synk.pymc.parallel(model):
            warnings.simplefilter("ignore", RuntimeWarning)  # logarithms of 0, as in the plain one
            divided = values(model, at + far)
    except synk.InputError as error:
        refusal = str(error)
    if refusal:
        assert "logp" not in vars(model)
        assert "please report" not in refusal
        return "refused"
    plain = values(model, at + far)
    plain, beyond = plain[: len(at)], plain[len(at) :]
    divided, divided_beyond = divided[: len(at)], divided[len(at) :]
    if any(np.isfinite(value) and np.isnan(slope).any() for value, slope in beyond):
        # what an unstable formula loses, no digits bring back; both are rewritten then
        beyond = values(model, far, STABLE)
        with warnings.catch_warnings(), group.active(), synk.pymc.parallel(model):
            warnings.simplefilter("ignore", RuntimeWarning)
            divided_beyond = values(model, far, STABLE)
    check_not_worse(model, far, beyond, divided_beyond)
    if not all(np.isfinite(slope).all() for _, slope in plain):
        # nan where a stable formula has a number, such as the logarithm of a tiny probability
        plain = values(model, at, STABLE)
    if not any(np.isfinite(value) for value, _ in plain):
        return "nowhere finite"
    check_equal(plain, divided, rtol=1e-6)
    return "divided"


def check(
    groups: dict[int, synk.Group], examples: int, mixing: bool, repeating: bool = False
) -> Counter[str]:
    """Tries so many models, and counts what became of them."""
    found: Counter[str] = Counter()

    @settings(
        max_examples=examples,
        phases=[Phase.generate],  # a failing model is not made smaller: that takes minutes
        suppress_health_check=list(HealthCheck),
        database=None,
        derandomize=examples < 100,
    )
    @given(models(mixing, repeating), st.sampled_from([2, 3]))
    def each(model: pm.Model, size: int) -> None:
        note(model.str_repr())
        found[outcome(model, groups[size])] += 1

    each()
    return found


@pytest.mark.thorough
@pytest.mark.timeout(300)
def test_random_models_whose_rows_repeat(
    groups: dict[int, synk.Group],
    trials: Callable[[int, int], int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Any form that can be found is taken, also where it does not pay."""
    examples = trials(16, 500)
    forms: list[str] = []

    def cheapest(*given: Any) -> Any:
        found = choice.cheapest(*given)
        forms.append(type(found).__name__)
        return found

    monkeypatch.setattr(likelihood, "cheapest", cheapest)
    monkeypatch.setattr(choice, "LEAST_ROWS", 1)
    monkeypatch.setattr(choice, "GAIN", 0.5)
    found = check(groups, examples, mixing=False, repeating=True)
    assert found["divided"] >= examples / 2, found
    assert set(forms) & {"DistinctRows", "SumsByGroup", "QuadraticForm"}, forms


@pytest.mark.thorough
@pytest.mark.timeout(300)
@pytest.mark.parametrize("mixing", [False, True])
def test_random_models(
    groups: dict[int, synk.Group], mixing: bool, trials: Callable[[int, int], int]
) -> None:
    """With --many, 2,000 of them: half an hour."""
    examples = trials(12, 1000)
    found = check(groups, examples, mixing)
    assert found["divided"] >= examples / (4 if mixing else 2), found
