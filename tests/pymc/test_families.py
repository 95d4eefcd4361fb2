"""Families at the ends of their support: sums by group are those of PyMC's densities."""

from __future__ import annotations

import itertools

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from comparing import IN_PYTHON

from synkhronos.pymc._repeated.distinct import kinds_of
from synkhronos.pymc._repeated.families import FAMILIES, Family
from synkhronos.pymc._repeated.sums import GroupSums

VALUES = np.array([-1.0, 0.0, 0.5, 1.0, 2.0, 3.0, np.inf, -np.inf, np.nan])
PARAMETERS = {
    "p": [0.0, 0.3, 1.0],
    "n": [2.0],
    "mu": [0.0, 0.7, 3.0],
    "sigma": [0.5],
    "scale": [0.5, 2.0],
    "alpha": [0.5, 1.0, 2.0],
    "beta": [0.5, 1.0, 2.0],
}


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.distribution.__name__)
def test_the_ends_of_the_support(family: Family) -> None:
    """Of each value there are two rows. Where PyMC has nan, -inf is as good: both are refused."""
    rows, names = np.repeat(VALUES, 2), family.parameters
    given = np.array(list(itertools.product(*[PARAMETERS[name] for name in names])))
    columns = dict(zip(names, (pt.dcol(name) for name in names), strict=True))
    sums = GroupSums(kinds_of([np.repeat(np.arange(len(VALUES)), 2)], len(rows)))
    observed = {"value": rows, "n": np.full(len(rows), 2.0)}
    with np.errstate(all="ignore"):
        statistics = family.statistics(sums, *[observed[name] for name in family.observed])
        by_group = family.log_density(*map(pt.constant, statistics), **columns)
        by_row = family.distribution.logp(pt.constant(VALUES), *columns.values())
        evaluate = pytensor.function([*columns.values()], [by_group, by_row], mode=IN_PYTHON)
        found, plain = evaluate(*given.T[:, :, None])
    number = ~np.isnan(plain)
    assert number.sum() > plain.size // 2
    np.testing.assert_allclose(found[number], 2 * plain[number], rtol=1e-12)
    assert np.all(np.isnan(found[~number]) | (found[~number] == -np.inf))
