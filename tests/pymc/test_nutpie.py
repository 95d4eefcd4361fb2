"""nutpie compiles a model in less time, samples the same, and is what it was afterwards."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import sys
import threading
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from fork_to import fork_to
from modes import FAST
from pymc import pytensorf
from pytensor.compile.mode import Mode, predefined_modes
from pytensor.raise_op import Assert
from selection import thorough
from user_scripts import run_script

nutpie = pytest.importorskip("nutpie", reason="nutpie is not installed")
from nutpie import compile_pymc  # noqa: E402

import synkhronos as synk  # noqa: E402
from synkhronos._compiling.kept.folder import Folder  # noqa: E402
from synkhronos._compiling.kept.functions import KeptMode  # noqa: E402
from synkhronos._compiling.kept.machine_code import CFunction  # noqa: E402
from synkhronos._compiling.lean.closed import ClosedLinker  # noqa: E402
from synkhronos._compiling.lean.mode import with_lean  # noqa: E402
from synkhronos._libraries.library import tell  # noqa: E402
from synkhronos.pymc._density import nutpie as _nutpie  # noqa: E402
from synkhronos.pymc._density.functions import compiled_as_in_groups  # noqa: E402
from synkhronos.pymc._density.nutpie import compiled_soon  # noqa: E402
from synkhronos.pymc._kept.graphs import Graphs  # noqa: E402
from synkhronos.pymc._kept.models import KeptModel, kept_model, leading  # noqa: E402

NAMES = ("_compile_pymc_model_numba", "_make_functions")


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


@pytest.fixture(scope="module")
def of_groups() -> Any:
    """nutpie's compiled model: numba compiles the C functions around the code that ours call."""
    flags = pytensor.config.change_flags(mode="FAST_COMPILE")  # as in tests, of which it is none
    with flags, _nutpie._in_mode_of_groups:
        return nutpie.compile_pymc_model(model())


@pytest.mark.parametrize("code", ["of groups", *thorough("of nutpie")])
def test_draws_are_those_of_nutpie_also_with_other_data(of_groups: Any, code: str) -> None:
    """Data are shared variables, whose values nutpie keeps beside the machine code."""
    before = state()
    plain = of_groups if code == "of groups" else nutpie.compile_pymc_model(model())
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
    places = ours.user_data["shared"]["data"]
    assert len(places.dtype.names) == len(shared)
    assert not [name for name in places.dtype.names if places[name] % 64]  # at cache lines
    x = np.array([0.3, -1.0, 2.0])
    for rows in (5, 2, 0):
        given = data(rows)
        code, value, gradient = called(ours.with_data(**given), x)
        with found:
            pm.set_data(given)
        assert code == 0
        np.testing.assert_allclose(np.append(value, gradient), np.hstack(wanted({"slopes": x})))


_CODE = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_uint64, *[ctypes.c_void_p] * 4)


def called(compiled: Any, x: np.ndarray, function: Any = None) -> tuple[int, float, np.ndarray]:
    """The code, value and gradient that a sampler gets, of this function or the model's."""
    out, value = np.full(len(x), 7.0), np.full(1, 7.0)
    data = np.ascontiguousarray(compiled.user_data)
    code = _CODE((function or compiled.compiled_logp_func).address)
    found = code(len(x), *[a.ctypes.data for a in (x, out, value, data)])
    return found, value[0], out


@pytest.mark.parametrize("by_factor", [False, *thorough(True)])
def test_what_is_kept_of_a_covariance_is_right_for_other_lengths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_factor: bool
) -> None:
    """Lengths are no part of the key, so the code of numba must take them from its data."""
    monkeypatch.setattr("synkhronos.pymc._kept.models.kept_folder", lambda: Folder(tmp_path))
    for n in (140, 151):  # whose code is that of numba
        place, rows = np.linspace(0, 3, n), np.random.default_rng(n).normal(size=n)
        near = np.exp(-((place[:, None] - place) ** 2)) + 0.1 * np.eye(n)
        with pm.Model() as model:
            cov = pm.HalfNormal("scale") ** 2 * near
            given = {"chol": pt.linalg.cholesky(cov)} if by_factor else {"cov": cov}
            pm.MvNormal("y", np.zeros(n), observed=rows, **given)
        wanted = model.compile_fn([model.logp(), *model.dlogp()], mode=FAST)
        with leading(kept_model(model)):
            found = nutpie.compile_pymc_model(model)
        assert (found.logp_func is None) == (n == 151)
        code, value, gradient = called(found, np.array([0.3]))
        expected = np.hstack(wanted({"scale_log__": np.array(0.3)}))
        assert code == 0
        np.testing.assert_allclose(np.append(value, gradient), expected, rtol=1e-9)


def test_codes_and_bits_are_those_of_nutpie(of_groups: Any) -> None:
    """A point without a value, or of another length, is no error of the program."""
    with compiled_soon():
        ours = [nutpie.compile_pymc_model(model()) for _ in range(2)]  # one is in numba's cache
    again = CFunction.of(ours[1].compiled_logp_func.code)
    for x in ([0.3, 0.1], [np.nan, 0.1], [0.3, 800.0], [0.3, -800.0], [0.3]):
        point = np.array(x)
        code, value, gradient = called(of_groups, point)
        for compiled in ours:
            found = called(compiled, point)
            assert found[0] == code, x
            np.testing.assert_array_equal(found[1], value)
            np.testing.assert_array_equal(found[2], gradient)
        assert called(ours[0], point, again)[0] == code
    assert (
        called(ours[0], np.array([0.3, 0.1]), again)[1]
        == called(of_groups, np.array([0.3, 0.1]))[1]
    )
    codes = [called(ours[0], np.array(x))[0] for x in ([0.3, 0.1], [np.nan, 0.1], [0.3])]
    assert codes == [0, 3, -1]


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


def test_a_fork_while_another_thread_compiles(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It finds nutpie as it is, and compiles for itself."""
    before, inside, over = state(), threading.Event(), threading.Event()

    def wait(*_: object, **__: object) -> None:
        inside.set()
        assert over.wait(120)

    def hold() -> None:
        with leading(KeptModel(Graphs(model()), Folder(tmp_path))):
            nutpie.compile_pymc_model(model())

    monkeypatch.setattr(_nutpie, "_compiled", wait)
    thread = threading.Thread(target=hold)
    thread.start()
    assert inside.wait(60)
    monkeypatch.undo()

    def check() -> None:
        assert state() == before
        with leading(KeptModel(Graphs(model()), Folder(tmp_path))):
            assert state() != before
            compiled = nutpie.compile_pymc_model(model())
        assert compiled.n_dim
        assert state() == before

    pid = fork_to(check)
    try:
        assert os.waitpid(pid, 0)[1] == 0
    finally:
        over.set()
        thread.join()
    assert state() == before


def test_the_mode_is_that_of_groups_for_nutpie_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A function of the user, or one for JAX, is compiled as ever meanwhile."""
    plain, modes = predefined_modes["NUMBA"], []
    monkeypatch.setattr(compile_pymc, "_make_functions", lambda _, mode: modes.append(mode))
    with _nutpie._in_mode_of_groups:
        assert predefined_modes["NUMBA"] is plain
        for mode in ("NUMBA", "JAX"):
            compile_pymc._make_functions(None, mode=mode)
    assert isinstance(modes[0].linker, ClosedLinker)
    assert modes[1] == "JAX"


def test_functions_of_pymc_are_those_of_groups_in_the_thread_that_asks() -> None:
    asked, leave = threading.Event(), threading.Event()

    def ask() -> None:
        with compiled_as_in_groups:
            asked.set()
            leave.wait(60)

    def is_kept() -> bool:
        given = predefined_modes["NUMBA"]
        return isinstance(pytensorf.Mode(given.linker, given.provided_optimizer), KeptMode)

    thread = threading.Thread(target=ask)
    thread.start()
    assert asked.wait(60)
    assert pytensorf.Mode is not Mode
    assert not is_kept()
    with compiled_as_in_groups:
        assert is_kept()
    assert not is_kept()
    leave.set()
    thread.join()
    assert pytensorf.Mode is Mode


@pytest.mark.thorough  # numba compiles nutpie's C functions
@pytest.mark.parametrize("imported", [True, False])
def test_a_pymc_that_compiles_for_c_itself(monkeypatch: pytest.MonkeyPatch, imported: bool) -> None:
    """PyMC's proposed ``pymc.sampling.numba`` has nutpie's functions.

    nutpie then imports them from there by their names; or it calls that module's only.
    """
    wanted = draws(nutpie.compile_pymc_model(model()))
    spec = importlib.util.spec_from_file_location("pymc.sampling.numba", compile_pymc.__file__)
    assert spec is not None
    assert spec.loader is not None
    of_pymc = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, of_pymc)
    spec.loader.exec_module(of_pymc)
    tell.cache_clear()
    for name in _nutpie._CALLED:
        if imported:
            monkeypatch.setattr(compile_pymc, name, getattr(of_pymc, name))
        else:
            monkeypatch.delattr(compile_pymc, name)
    if imported:
        with compiled_soon():
            ours = nutpie.compile_pymc_model(model())
        assert not hasattr(ours.compiled_logp_func, "inspect_llvm")  # numba has not compiled it
    else:
        monkeypatch.setattr(nutpie, "compile_pymc_model", of_pymc.compile_pymc_model)
        with pytest.warns(synk.VersionWarning, match="nutpie compiles as it is"), compiled_soon():
            ours = nutpie.compile_pymc_model(model())
    for name, value in draws(ours).items():
        np.testing.assert_allclose(value, wanted[name], rtol=1e-6, err_msg=name)
    tell.cache_clear()


@pytest.mark.parametrize("gone", ["_make_functions", "CompiledPyMCModel"])
def test_another_nutpie_compiles_as_it_does(monkeypatch: pytest.MonkeyPatch, gone: str) -> None:
    """One function has another name, or compiled models have other fields."""
    tell.cache_clear()
    monkeypatch.delattr(compile_pymc, gone)
    if gone == "CompiledPyMCModel":
        monkeypatch.setattr(compile_pymc, gone, compile_pymc.CompiledModel, raising=False)
    found = compile_pymc._compile_pymc_model_numba
    told = pytest.warns(synk.VersionWarning, match="nutpie compiles as it is")
    with told, compiled_soon():
        assert compile_pymc._compile_pymc_model_numba is found
    assert gone.replace("CompiledPyMCModel", "user_data") in str(told.list[0].message)
    tell.cache_clear()


def test_options_of_numba_are_those_of_nutpie(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are for the C functions that numba compiles."""
    asked: list[dict[str, Any]] = []
    monkeypatch.setattr(compile_pymc, NAMES[0], lambda *args, **kwargs: asked.append(kwargs))
    with compiled_soon():
        nutpie.compile_pymc_model(model(), error_model="numpy")
        monkeypatch.setattr(_nutpie, "usable", lambda module: False)  # another version of numba
        nutpie.compile_pymc_model(model())
    assert [given.get("error_model") for given in asked] == ["numpy", None]


def test_another_sampler_does_not_import_nutpie(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does a nutpie that cannot be imported stop it."""
    monkeypatch.setattr(_nutpie, "pm_sample", lambda **given: given["draws"])
    monkeypatch.setitem(sys.modules, "nutpie", None)
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
