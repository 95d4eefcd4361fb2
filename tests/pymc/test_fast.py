"""The vectorised exponentials and logarithms against libm's."""

from __future__ import annotations

from collections.abc import Callable

import numba
import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

from synkhronos.pymc import _fast, _kernels

SPECIAL = np.array([np.inf, -np.inf, np.nan, 0.0, -0.0, 1.0, -1.0, 800.0, -800.0, -740.0, 1e-320])


def sigmoid(x: np.ndarray) -> np.ndarray:
    """SciPy's underflows to 0 where exp(-x) overflows."""
    y = np.exp(-np.abs(x))
    return np.where(x >= 0, 1, y) / (1 + y)


def softplus(x: np.ndarray) -> np.ndarray:
    return np.logaddexp(0, x)


def arguments(name: str) -> np.ndarray:
    r = np.random.default_rng(3)
    wide = np.exp(r.uniform(-740, 700, 50_000))
    return {
        "exp": np.concatenate([r.uniform(-745, 709.7, 50_000), r.normal(size=50_000)]),
        "log": np.concatenate([wide, r.uniform(0.5, 2, 50_000)]),
        "log1p": np.concatenate([r.uniform(-0.999, 3, 50_000), wide, -wide[wide < 0.9]]),
        "sigmoid": np.concatenate([r.normal(size=50_000), r.uniform(-740, 740, 50_000)]),
        "softplus": np.concatenate([r.normal(size=50_000), r.uniform(-740, 740, 50_000)]),
    }[name]


PAIRS: dict[str, tuple[Callable[..., float], Callable[..., np.ndarray], float]] = {
    "exp": (_kernels.exp, np.exp, 1),
    "log": (_kernels.log, np.log, 1),
    "log1p": (_kernels.log1p, np.log1p, 2),
    "sigmoid": (_kernels.sigmoid, sigmoid, 3),
    "softplus": (_kernels.softplus, softplus, 3),
}


def over(code: Callable[..., float], x: np.ndarray) -> np.ndarray:
    @numba.njit
    def loop(x, out):
        for i in range(len(x)):
            out[i] = code(x[i])

    out = np.empty_like(x)
    loop(x, out)
    return out


@pytest.mark.parametrize("name", PAIRS)
def test_within_units_in_the_last_place(name: str) -> None:
    code, plain, units = PAIRS[name]
    x = arguments(name)
    expected = plain(x)
    assert np.isfinite(expected).all()
    off = np.abs(over(code, x) - expected) / np.spacing(np.abs(expected))
    assert off.max() <= units


@pytest.mark.parametrize("name", PAIRS)
def test_special_values(name: str) -> None:
    code, plain, _ = PAIRS[name]
    with np.errstate(all="ignore"):
        expected = plain(SPECIAL)
    np.testing.assert_allclose(over(code, SPECIAL), expected, rtol=1e-15, atol=0)


def test_the_loops_are_vectorised() -> None:
    """The machine code of a loop holds no call of a function, and packed arithmetic."""

    @numba.njit(fastmath={"contract"})
    def loop(x, out):
        for i in range(len(x)):
            out[i] = _kernels.softplus(x[i]) + _kernels.sigmoid(x[i])

    loop(np.zeros(2), np.zeros(2))
    [llvm] = loop.inspect_llvm().values()
    packed = [line for line in llvm.splitlines() if "x double>" in line]
    assert any("fmul" in line for line in packed)
    assert any("fdiv" in line for line in packed)
    assert not [line for line in llvm.splitlines() if "call" in line and "exp" in line]


def test_fast_functions_stand_in_for_the_plain_ones() -> None:
    x = pt.vector("x", dtype="float64")
    plain = [pt.exp(x), pt.log(pt.exp(x) + 1), pt.softplus(x), pt.sigmoid(x), pt.log1p(pt.exp(x))]
    fast = _fast.with_fast_functions(plain)
    ops = {type(v.owner.op.scalar_op) for v in fast}
    assert ops == set(_fast.FAST)
    value = np.array([-800.0, -1.0, 0.0, 0.5, 20.0])
    in_python = pytensor.function([x], fast, mode="FAST_COMPILE")(value)
    for found, expected in zip(
        in_python, pytensor.function([x], plain, mode="FAST_COMPILE")(value), strict=True
    ):
        np.testing.assert_allclose(found, expected, rtol=1e-15, atol=0)


def test_other_dtypes_are_left_alone() -> None:
    x = pt.vector("x", dtype="float32")
    [kept] = _fast.with_fast_functions([pt.exp(x)])
    assert type(kept.owner.op.scalar_op) not in _fast.FAST


def test_sums_by_indices_are_in_the_loop_unless_it_would_be_vectorised() -> None:
    """numba does not vectorise a loop that adds to indexed elements."""
    x = pt.vector("x", dtype="float64", shape=(9,))
    at = pt.vector("at", dtype="int64", shape=(9,))
    cheap, costly = (pt.zeros(3)[at].inc(v) for v in ((x * 2) ** 2, pt.sigmoid(x * 2) * 3))
    both = _fast.with_fast_functions([cheap, costly])
    assert [_fast.scatters_fast_function(v) for v in both] == [False, True]
    [of_sum] = _fast.with_fast_functions([pt.zeros(3)[at].inc(pt.exp(x).sum())])
    assert not _fast.scatters_fast_function(of_sum)  # another loop computes the sum
