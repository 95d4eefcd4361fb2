"""nutpie compiles a model in less time, samples the same, and is what it was afterwards."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from modes import FAST
from pytensor.compile.mode import Mode, predefined_modes
from pytensor.raise_op import Assert
from user_scripts import run_script

nutpie = pytest.importorskip("nutpie", reason="nutpie is not installed")
from nutpie import compile_pymc  # noqa: E402

from synkhronos._compiling.lean.closed import ClosedLinker  # noqa: E402
from synkhronos._compiling.lean.mode import with_lean  # noqa: E402
from synkhronos.pymc._density import nutpie as _nutpie  # noqa: E402
from synkhronos.pymc._density.nutpie import compiled_soon  # noqa: E402

NAMES = ("_compile_pymc_model_numba", "_make_c_logp_func", "_make_c_expand_func")


def model(shift: float = 0.0) -> pm.Model:
    """Two parameters, a deterministic, and data that can be set."""
    with pm.Model() as found:
        x = pm.Data("x", np.arange(20.0) / 20 + shift)
        a, sigma = pm.Normal("a"), pm.HalfNormal("sigma")
        pm.Deterministic("doubled", 2 * a)
        pm.Normal("y", a * x, sigma, observed=np.arange(20.0) % 3)
    return found


def draws(compiled: Any) -> dict[str, np.ndarray]:
    found = nutpie.sample(
        compiled, draws=20, tune=30, chains=1, cores=1, seed=3, progress_bar=False
    )
    return {name: found.posterior[name].values for name in ("a", "sigma", "doubled")}


def state() -> list[object]:
    """What a compilation replaces."""
    return [predefined_modes["NUMBA"], *[getattr(compile_pymc, name) for name in NAMES]]


def test_draws_are_those_of_nutpie_also_with_other_data() -> None:
    """Data are shared variables, whose values nutpie keeps beside the machine code."""
    before = state()
    plain = nutpie.compile_pymc_model(model())
    with compiled_soon():
        ours = nutpie.compile_pymc_model(model())
        assert state()[0] is before[0]  # but while nutpie compiles
    assert state() == before
    other = model(1.0)["x"].get_value()
    for first, second in ((plain, ours), (plain.with_data(x=other), ours.with_data(x=other))):
        found, wanted = draws(second), draws(first)
        for name, value in wanted.items():
            np.testing.assert_allclose(found[name], value, rtol=1e-6, err_msg=name)


def test_data_of_any_dtype_and_shape() -> None:
    """Lengths may be others later: a flag, counts of a row, a matrix, and one number."""
    r = np.random.default_rng(1)

    def data(rows: int) -> dict[str, np.ndarray]:
        return {
            "flag": r.random(rows) < 0.5,
            "counts": r.integers(9, size=rows),
            "matrix": r.normal(size=(rows, 3)),
            "cube": r.normal(size=(2, rows, 2)),
            "one": np.array(r.normal()),
        }

    with pm.Model() as found:
        shared = {name: pm.Data(name, value) for name, value in data(5).items()}
        slopes = pm.Normal("slopes", shape=3)
        each = pt.switch(shared["flag"], shared["counts"] + shared["matrix"] @ slopes, slopes.sum())
        pm.Potential("fits", -((each - shared["one"] * shared["cube"].sum(axis=(0, 2))) ** 2).sum())
        wanted = found.compile_fn([found.logp(), *found.dlogp()], mode=FAST)
    with compiled_soon():
        ours = nutpie.compile_pymc_model(found)
    x = np.array([0.3, -1.0, 2.0])
    for rows in (5, 2, 0):
        given = data(rows)
        code, value, gradient = called(ours.with_data(**given), x)
        with found:
            pm.set_data(given)
        assert code == 0
        np.testing.assert_allclose(np.append(value, gradient), np.hstack(wanted({"slopes": x})))


def called(compiled: Any, x: np.ndarray) -> tuple[int, float, np.ndarray]:
    """The code, value and gradient that a sampler gets."""
    out, value = np.full(len(x), 7.0), np.full(1, 7.0)
    data = np.ascontiguousarray(compiled.user_data)
    function = compiled.compiled_logp_func.ctypes
    pointers = [
        a.ctypes.data_as(kind)
        for a, kind in zip((x, out, value), function.argtypes[1:], strict=False)
    ]
    code = function(len(x), *pointers, data.ctypes.data)
    return code, value[0], out


def test_codes_are_those_of_nutpie() -> None:
    """A point without a value, or of another length, is no error of the program."""
    with compiled_soon():
        ours = nutpie.compile_pymc_model(model())
    plain = nutpie.compile_pymc_model(model())
    for x in ([0.3, 0.1], [np.nan, 0.1], [0.3, 800.0], [0.3, -800.0], [0.3]):
        point = np.array(x)
        found, wanted = called(ours, point), called(plain, point)
        assert found[0] == wanted[0], x
        if not wanted[0]:
            np.testing.assert_allclose(found[1], wanted[1], rtol=1e-12)
            np.testing.assert_allclose(found[2], wanted[2], rtol=1e-12)
    assert [called(ours, np.array(x))[0] for x in ([0.3, 0.1], [np.nan, 0.1], [0.3])] == [0, 3, -1]


def test_all_is_as_before_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    before = state()
    monkeypatch.setattr(compile_pymc, "make_user_data", lambda *given: 1 / 0)
    with pytest.raises(ZeroDivisionError), compiled_soon():
        nutpie.compile_pymc_model(model())
    assert state() == before


def test_threads_that_overlap_restore_nutpie() -> None:
    """The first one to come is also the first one to leave."""
    before = state()
    first, second = compiled_soon(), compiled_soon()
    first.__enter__()
    second.__enter__()
    inside = state()
    first.__exit__(None, None, None)
    assert state() == inside != before
    second.__exit__(None, None, None)
    assert state() == before


def test_another_nutpie_compiles_as_it_does(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delattr(compile_pymc, "_make_c_expand_func")
    found = compile_pymc._compile_pymc_model_numba
    with caplog.at_level(logging.DEBUG, "synkhronos"), compiled_soon():
        assert compile_pymc._compile_pymc_model_numba is found
    assert "nutpie compiles as it is: " in caplog.text
    assert "_make_c_expand_func" in caplog.text


def test_another_record_is_read_as_nutpie_does(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, ...]] = []

    def read(function: Any, shared: Any, keys: Any, record: np.dtype) -> Any:
        asked.append(record.names)
        return lambda x, pointer: function(x, *map(shared.get, keys))

    monkeypatch.setattr(compile_pymc, "make_extraction_fn", read)
    record = np.dtype([("others", [("data", [("key", np.uintp)])])])
    given = np.zeros((), record), ["key"], {"key": np.arange(3)}
    evaluate = _nutpie._with_data(np.add, *given)
    np.testing.assert_array_equal(evaluate(1, None), [1, 2, 3])
    assert asked == [("others",)]


def test_another_sampler_does_not_import_nutpie(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does a nutpie that cannot be imported stop it."""
    monkeypatch.setattr(_nutpie, "pm_sample", lambda **given: given["draws"])
    monkeypatch.setitem(sys.modules, "nutpie.compile_pymc", None)
    assert _nutpie.sample(draws=3) == 3
    monkeypatch.setattr(_nutpie, "compiled_soon", lambda: 1 / 0)
    assert _nutpie.sample(draws=3, nuts_sampler="pymc") == 3


def test_a_closed_function_is_no_part_of_its_caller() -> None:
    """The caller's code names it only, computes the same, and gets its errors."""
    x = pt.dvector("x")
    positive = Assert("below 0")(x, pt.all(x >= 0))
    graph = [pt.exp(positive).sum() * pt.linalg.inv(pt.outer(x, x) + pt.eye(2))]
    sizes = {}
    for linker in ("closed", "open"):
        mode = pytensor.compile.get_mode("NUMBA")
        if linker == "closed":
            mode = with_lean(Mode(ClosedLinker(), mode.provided_optimizer))
        function = pytensor.function([x], graph, mode=mode)
        inner = function.vm.jit_fn

        @numba.njit
        def caller(value: Any, inner: Any = inner) -> Any:
            return inner(value)[0]

        value = np.array([0.3, 0.4])
        np.testing.assert_allclose(caller(value), function(value)[0], rtol=1e-12)
        with pytest.raises(AssertionError):
            caller(-value)
        [code] = caller.inspect_llvm().values()
        sizes[linker] = len(code)
    assert sizes["closed"] < sizes["open"] / 2


FIRST_AND_LATER = """
    import numpy as np, pymc as pm, synkhronos as synk
    rng = np.random.default_rng(0)
    x = rng.normal(size=300)
    with pm.Model() as model:
        mean = pm.math.exp(pm.Normal("a") + pm.Normal("b") * x)
        counts = rng.poisson(np.exp(0.3 + 0.5 * x))
        pm.NegativeBinomial("y", mu=mean, alpha=pm.HalfNormal("s"), observed=counts)
    given = dict(draws=100, tune=100, chains=1, random_seed=3, progressbar=False, quiet=True)
    found = synk.pymc.sample(model, compute_convergence_checks=False, **given).posterior
    print(*[float(found[name].sum()).hex() for name in found])
"""


@pytest.mark.thorough  # numba compiles all of its own
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_first_run_of_a_script_draws_the_same_as_later_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With empty caches, and then with those that it has filled."""
    flags = [f for f in os.environ.get("PYTENSOR_FLAGS", "").split(",") if f and "dir" not in f]
    monkeypatch.setenv("PYTENSOR_FLAGS", ",".join([*flags, f"base_compiledir={tmp_path}/cache"]))
    monkeypatch.setenv("NUMBA_CACHE_DIR", f"{tmp_path}/numba")
    first, later = (run_script(tmp_path, FIRST_AND_LATER) for _ in range(2))
    assert first == later
    assert len(first.split()) == 3
