"""Models of many kinds: divided and equal to the plain one, or refused with the right reason."""

from __future__ import annotations

import re

import pymc as pm
import pytest
from comparing import check_equal, evaluated, points
from selection import thorough
from zoo import KINDS

import synkhronos as synk

DIVIDED = [name for name, kind in KINDS.items() if not kind.reason]
# one of each kind of likelihood and of latent variable; the others are in scripts/test --all
TYPICAL = (
    "varying slopes, dim named",
    "custom distribution",
    "several observed, two lengths, a potential",
    "panel, divided by time",
    "latent classes (one discrete parameter per row)",
)
REFUSED = [name for name, kind in KINDS.items() if kind.reason]


@pytest.mark.parametrize("name", [*TYPICAL, *thorough(*(n for n in DIVIDED if n not in TYPICAL))])
def test_divided_models_are_equal_to_the_plain_ones(name: str) -> None:
    kind = KINDS[name]
    model = kind.make()
    at = points(model, 3)
    plain = evaluated(model, at)
    with synk.Group(2) as group, synk.pymc.parallel(model, kind.dim) as parallel:
        assert parallel.group is group
        assert set(parallel.names) <= {rv.name for rv in model.observed_RVs}
        check_equal(plain, evaluated(model, at))
    check_equal(plain, evaluated(model, at))


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_divided_is_refused_with_the_reason(name: str) -> None:
    kind = KINDS[name]
    model = kind.make()
    with synk.Group(2), pytest.raises(synk.InputError, match=re.escape(kind.reason)):
        synk.pymc.parallel(model, kind.dim)
    assert "logp" not in vars(model)


@pytest.mark.each_choice
@pytest.mark.parametrize("members", [1, 3])
@pytest.mark.parametrize(
    "name",
    [
        "hierarchical Poisson-gamma",
        "GLMM, one latent per row",
        "several observed, two lengths, a potential",
    ],
)
def test_any_number_of_members(name: str, members: int) -> None:
    model = KINDS[name].make()
    at = points(model, 2)
    plain = evaluated(model, at)
    with synk.pymc.parallel(model, members=members) as parallel:
        assert parallel.group is not None
        assert parallel.group.size == members
        check_equal(plain, evaluated(model, at))


def test_fewer_rows_than_members() -> None:
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("mu"), 1, observed=[0.5, -1.0])
    at = points(model, 2)
    plain = evaluated(model, at)
    with synk.pymc.parallel(model, members=3):
        check_equal(plain, evaluated(model, at))
