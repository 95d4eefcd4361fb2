"""Models of many kinds: divided and equal to the plain one, or refused with the right reason."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import pymc as pm
import pytest
from comparing import check_equal, check_not_worse, evaluated, far_points, plainly, points
from zoo import KINDS

import synkhronos as synk

# numpy's words on overflow, far from the initial point
pytestmark = pytest.mark.filterwarnings("ignore:.* encountered in:RuntimeWarning")

# a named dim, latents of rows, several terms, other data, vectors; the others: scripts/test --all
TYPICAL = (
    "varying slopes, dim named",
    "GLMM, one latent per row",
    "several observed, two lengths, a potential",
    "data of another length set",
    "multinomial, shares of each row",
)
TYPICAL_REFUSALS = (
    "Minibatch",
    "random walk",
    "one multivariate observation",
    "change point summed out, in a potential",
    "simulator (ABC)",
    "custom distribution that sorts rows",
    "nothing observed",
    "a single observation",
    "custom density, difference of neighbours",
    "custom density, folded rows",
)
DIVIDED = [name for name, kind in KINDS.items() if not kind.reason]
REFUSED = [name for name, kind in KINDS.items() if kind.reason]
SIZES = (1, 2, 3)


def cases(names: Iterable[str], typical: Iterable[str]) -> list[Any]:
    """A kind each; those that are not typical are thorough."""
    return [
        pytest.param(name, marks=[] if name in typical else [pytest.mark.thorough])
        for name in names
    ]


def check_divided(name: str, sizes: Iterable[int]) -> None:
    """The divided model equals the plain one, which it is again after the division has ended."""
    kind = KINDS[name]
    model = kind.make()
    at = points(model, 3)
    far = far_points(model)
    divided = []
    for size in sizes:
        with (
            synk.Group(size) as group,
            synk.pymc.parallel(model, kind.dim, row_wise=kind.row_wise) as parallel,
        ):
            assert parallel.group is group
            if kind.names:
                assert sorted(parallel.names) == sorted(kind.names)
            else:
                assert set(parallel.names) <= {rv.name for rv in model.observed_RVs}
            divided.append(evaluated(model, at + far))
        assert "logp" not in vars(model)
    plain = evaluated(model, at + far)
    for found in divided:
        check_equal(plain[: len(at)], found[: len(at)], kind.rtol)
        rtol = max(1e-7, kind.rtol)  # of a process with 100 points the last digits are noise
        check_not_worse(model, far, plain[len(at) :], found[len(at) :], rtol)


@pytest.mark.timeout(300)  # three sizes
@pytest.mark.parametrize("name", cases(DIVIDED, ()))
def test_divided_models_are_equal_to_the_plain_ones(name: str) -> None:
    check_divided(name, SIZES)


@pytest.mark.parametrize(("name", "size"), [(n, SIZES[i % 3]) for i, n in enumerate(TYPICAL)])
def test_typical_models_in_one_size_each(name: str, size: int) -> None:
    check_divided(name, [size])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of PyMC's Simulator
@pytest.mark.filterwarnings("ignore::FutureWarning")  # of PyMC's MatrixNormal
@pytest.mark.parametrize("name", cases(REFUSED, TYPICAL_REFUSALS))
def test_what_cannot_be_divided_is_refused_with_the_reason(name: str) -> None:
    kind = KINDS[name]
    model = kind.make()
    with synk.Group(2), pytest.raises(synk.InputError, match=re.escape(kind.reason)):
        synk.pymc.parallel(model, kind.dim)
    assert "logp" not in vars(model)


def test_fewer_rows_than_members() -> None:
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("mu"), 1, observed=[0.5, -1.0])
    at = points(model, 2)
    plain = plainly(model, at)
    with synk.pymc.parallel(model, members=3):
        check_equal(plain, evaluated(model, at))
