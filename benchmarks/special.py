"""Nanoseconds for one value of elementary and special functions, beside those of other software.

Each cell is the median over interleaved rounds, with one thread; the last column is the fastest
other one over ours, in the same rounds. "numba" calls libm, or SciPy's code by its address. Ours
and that of numba include PyTensor's call, and memory for the result.

    python benchmarks/special.py [--values 20000] [--rounds 60] [--only tanh erf] [--minima]
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
import pytensor
import pytensor.tensor as pt
import scipy.special as scipy_special
from common import describe_machine, show
from pymc.distributions.dist_math import i0e, i1e
from threadpoolctl import threadpool_limits

from synkhronos._compiling.lean.mode import lean
from synkhronos._compiling.vectorised.rewrite import vectorising
from synkhronos.pymc import parallel as parallel  # tells the code of PyMC's functions

Array = np.ndarray


def normal(r: np.random.Generator, n: int) -> Array:
    return r.normal(size=n)


def positive(r: np.random.Generator, n: int) -> Array:
    return r.gamma(2.0, 2.0, n)


def inside(r: np.random.Generator, n: int) -> Array:
    return r.uniform(0, 1, n)


# PyTensor's function, where it is looked at, and the names in numpy, scipy.special and JAX.
FUNCTIONS: dict[str, tuple[Callable[..., Any], Any, str, str, str]] = {
    "exp": (pt.exp, normal, "exp", "", "numpy.exp"),
    "exp2": (pt.exp2, normal, "exp2", "", "numpy.exp2"),
    "expm1": (pt.expm1, normal, "expm1", "", "numpy.expm1"),
    "log": (pt.log, positive, "log", "", "numpy.log"),
    "log1p": (pt.log1p, positive, "log1p", "", "numpy.log1p"),
    "log2": (pt.log2, positive, "log2", "", "numpy.log2"),
    "log10": (pt.log10, positive, "log10", "", "numpy.log10"),
    "log1mexp": (lambda x: pt.log1mexp(-x), positive, "", "", ""),
    "sigmoid": (pt.sigmoid, normal, "", "expit", "nn.sigmoid"),
    "softplus": (pt.softplus, normal, "", "", "nn.softplus"),
    "tanh": (pt.tanh, normal, "tanh", "", "numpy.tanh"),
    "sinh": (pt.sinh, normal, "sinh", "", "numpy.sinh"),
    "cosh": (pt.cosh, normal, "cosh", "", "numpy.cosh"),
    "arctan": (pt.arctan, normal, "arctan", "", "numpy.arctan"),
    "sin": (pt.sin, normal, "sin", "", "numpy.sin"),
    "cos": (pt.cos, normal, "cos", "", "numpy.cos"),
    "i0e": (i0e, positive, "", "i0e", "scipy.special.i0e"),
    "i1e": (i1e, positive, "", "i1e", "scipy.special.i1e"),
    "erf": (pt.erf, normal, "", "erf", "scipy.special.erf"),
    "erfc": (pt.erfc, normal, "", "erfc", "scipy.special.erfc"),
    "erfcx": (pt.erfcx, normal, "", "erfcx", ""),
    "erfinv": (pt.erfinv, inside, "", "erfinv", "scipy.special.erfinv"),
    "erfcinv": (pt.erfcinv, inside, "", "erfcinv", ""),
    "gammaln": (pt.gammaln, positive, "", "gammaln", "scipy.special.gammaln"),
    "digamma": (pt.psi, positive, "", "digamma", "scipy.special.digamma"),
    "trigamma": (pt.tri_gamma, positive, "", "", ""),
    "x ** 1.75": (lambda x: x**1.75, positive, "", "", ""),
}


def compiled(function: Callable[..., Any], dtype: str, vectorised: bool) -> Callable[..., Any]:
    x = pt.vector("x", dtype=dtype)
    with vectorising(vectorised), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # SciPy's code called through Python
        made = pytensor.function(
            [pytensor.In(x, borrow=True)], function(x), mode=lean("NUMBA"), trust_input=True
        )
    return lambda value: made(value)


def contenders(name: str, value: Array, jax: Any) -> dict[str, Callable[[], Any]]:
    """Calls that compute a function of the value, by the name of their column."""
    function, _, in_numpy, in_scipy, in_jax = FUNCTIONS[name]
    ours = compiled(function, value.dtype.name, True)
    libm = compiled(function, value.dtype.name, False)
    found: dict[str, Callable[[], Any]] = {
        "ours": lambda: ours(value),
        "numba": lambda: libm(value),
    }
    out = np.empty_like(value)
    for column, module, called in (
        ("numpy", np, in_numpy),
        ("SciPy", scipy_special, in_scipy),
    ):
        if called:
            ufunc = getattr(module, called)
            found[column] = lambda ufunc=ufunc: ufunc(value, out=out)
    if in_jax and jax is not None:
        called = jax
        for part in in_jax.split("."):
            called = getattr(called, part)
        run, held = jax.jit(called), jax.numpy.asarray(value)
        found["XLA"] = lambda: run(held).block_until_ready()
    return found


def measured(calls: dict[str, Callable[[], Any]], rounds: int, summary: Any) -> dict[str, float]:
    """Seconds of each, from rounds that go through all of them."""
    times: dict[str, list[float]] = {column: [] for column in calls}
    for call in calls.values():
        call()
    for _ in range(rounds):
        for column, call in calls.items():
            began = time.perf_counter()
            call()
            times[column].append(time.perf_counter() - began)
    return {column: float(summary(found)) for column, found in times.items()}


def xla() -> Any:
    """JAX with float64, or None if it is not installed."""
    try:
        import jax
        import jax.nn
        import jax.scipy.special
    except ImportError:
        return None
    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_platforms", "cpu")
    return jax


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--values", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--only", nargs="*", default=list(FUNCTIONS))
    parser.add_argument("--minima", action="store_true", help="instead of medians")
    asked = parser.parse_args()
    describe_machine()
    features = numba.config.CPU_FEATURES or numba.core.codegen.get_host_cpu_features()
    print(f"numba uses {'' if '+avx512f' in features else 'no '}registers of 512 bits")
    columns, jax = ("ours", "numba", "SciPy", "numpy", "XLA"), xla()
    summary = np.min if asked.minima else np.median
    with threadpool_limits(1):
        for dtype in ("float64", "float32"):
            rows = []
            for name in asked.only:
                value = FUNCTIONS[name][1](np.random.default_rng(0), asked.values).astype(dtype)
                found = measured(contenders(name, value, jax), asked.rounds, summary)
                each = {c: 1e9 * s / asked.values for c, s in found.items()}
                best = min(ns for c, ns in each.items() if c != "ours")
                cells = [f"{each[c]:.2f}" if c in each else "" for c in columns]
                rows.append([name, *cells, f"{best / each['ours']:.1f}"])
            what = "minima" if asked.minima else "medians"
            show(f"{dtype}: nanoseconds for one value, {what}", ["", *columns, "ratio"], rows)


if __name__ == "__main__":
    main()
