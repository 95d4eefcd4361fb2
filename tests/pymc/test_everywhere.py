"""`everywhere`: PyMC's functions are ours for every caller, and PyMC's own again afterwards."""

from __future__ import annotations

import functools
import importlib.util
import io
import logging
import os
import re
import subprocess
import sys
import threading
import tokenize
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pymc as pm
import pymc.sampling.mcmc
import pytest
import xarray as xr
from fork_to import fork_to
from selection import thorough
from test_bambi import built

import synkhronos as synk
from synkhronos.pymc._chains import sampling, stored_chains
from synkhronos.pymc._everywhere import everywhere, script

NAMES = [
    (module, name)
    for name, modules in {
        "sample": (pm, pm.sampling, pm.sampling.mcmc),
        "sample_posterior_predictive": (pm, pm.sampling, pm.sampling.forward),
        "sample_prior_predictive": (pm, pm.sampling, pm.sampling.forward),
        "compute_deterministics": (pm, pm.sampling, pm.sampling.deterministic),
        "compute_log_likelihood": (pm, pm.stats, pm.stats.log_density),
        "compute_log_prior": (pm.stats, pm.stats.log_density),
    }.items()
    for module in modules
]
OWN = [getattr(*each) for each in NAMES]
FAST = {"compile_kwargs": {"mode": "FAST_COMPILE"}}


def replaced() -> list[bool]:
    return [getattr(*each) is not own for each, own in zip(NAMES, OWN, strict=True)]


@pytest.fixture(autouse=True)
def _whole_afterwards() -> Iterator[None]:
    yield
    assert not any(replaced())


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """The lines logged so far."""
    caplog.set_level(logging.INFO, "synkhronos")
    return lambda: [r.getMessage() for r in caplog.records if r.name == "synkhronos"]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The arguments that PyMC's own sampler gets from ours, and does not sample with."""
    found: list[dict[str, Any]] = []
    monkeypatch.setattr(sampling, "pm_sample", lambda **given: found.append(given))
    return found


@pytest.fixture(scope="module")
def model() -> pm.Model:
    with pm.Model() as model:
        mu = pm.Normal("mu")
        pm.Deterministic("double", 2 * mu)
        pm.Normal("y", mu, 1, observed=np.zeros(3))
    return model


def drawn() -> xr.DataTree:
    mu = np.random.default_rng(0).normal(size=(2, 4))
    return xr.DataTree.from_dict({"posterior": xr.Dataset({"mu": (("chain", "draw"), mu)})})


def without_strings(text: str) -> str:
    kinds = (tokenize.STRING, tokenize.COMMENT)
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return "".join(token.string for token in tokens if token.type not in kinds)


def calls(code: str, name: str, **given: Any) -> Callable[..., Any]:
    """A function `call` of a module that has this name."""
    module = {"__name__": name, "pm": pm, **given}
    exec(f"def call(**given):\n    return {code}", module)
    found: Callable[..., Any] = module["call"]
    return found


def test_all_names_are_ours_meanwhile_and_pymcs_own_afterwards() -> None:
    assert not any(replaced())
    with synk.pymc.everywhere():
        assert all(replaced())
        assert [getattr(*each).__wrapped__ for each in NAMES] == OWN
    assert not any(replaced())
    opened = synk.pymc.everywhere()
    assert all(replaced())
    opened.close()
    opened.close()
    assert not any(replaced())
    with pytest.raises(ZeroDivisionError), synk.pymc.everywhere():
        _ = 1 / 0
    assert not any(replaced())


def test_the_last_one_that_is_closed_restores() -> None:
    first, second = synk.pymc.everywhere(), synk.pymc.everywhere()
    first.close()
    first.close()
    assert all(replaced())
    second.close()
    assert not any(replaced())
    with synk.pymc.everywhere() as outer:
        with synk.pymc.everywhere():
            pass
        assert all(replaced())
        assert isinstance(outer, synk.pymc.Everywhere)


def test_one_is_a_context_as_often_as_it_is_used() -> None:
    """Also inside of itself, and after it was closed."""
    one = synk.pymc.everywhere()
    with one:
        with one:
            pass
        assert all(replaced())
        assert repr(one).endswith("until close()")
    assert not any(replaced())
    assert repr(one).startswith("closed")
    with one:
        one.close()
        assert not any(replaced())
    with one:
        assert all(replaced())
    assert not any(replaced())


def test_a_cell_that_has_run_twice_is_closed_once() -> None:
    """What the first run has opened is held by nobody: it stays open until the other one ends."""
    opened = synk.pymc.everywhere()
    opened = synk.pymc.everywhere()
    opened.close()
    assert not any(replaced())
    synk.pymc.everywhere()
    with synk.pymc.everywhere():
        pass
    assert all(replaced())
    synk.pymc.everywhere().close()
    assert not any(replaced())


def around(function: Callable[..., Any]) -> Callable[..., Any]:
    """As the logging of PyMC-Marketing by MLflow."""

    def logged(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    @functools.wraps(function)
    def outer(*args: Any, **kwargs: Any) -> Any:
        return logged(*args, **kwargs)

    return outer


def test_a_function_that_others_have_put_around_pymcs_own_calls_ours(
    model: pm.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that they put there meanwhile; and PyMC's own afterwards."""

    def called() -> str:
        with pytest.raises((synk.InputError, TypeError)) as caught:
            pm.sample_prior_predictive(3, model, cores=0)
        return "ours" if isinstance(caught.value, synk.InputError) else "PyMC's"

    own = pm.sample_prior_predictive
    monkeypatch.setattr(pm, "sample_prior_predictive", around(around(own)))
    found = [called()]
    with synk.pymc.everywhere(quiet=True):
        found.append(called())
        with synk.pymc.everywhere(quiet=True):
            found.append(called())
    found.append(called())
    monkeypatch.setattr(pm, "sample_prior_predictive", own)
    with synk.pymc.everywhere(quiet=True):
        monkeypatch.setattr(pm, "sample_prior_predictive", around(pm.sample_prior_predictive))
        found.append(called())
    found.append(called())
    with synk.pymc.everywhere(quiet=True):
        found.append(called())
    assert found == ["PyMC's", "ours", "ours", "PyMC's", "ours", "PyMC's", "ours"]
    monkeypatch.undo()


def test_an_error_while_it_opens_restores(monkeypatch: pytest.MonkeyPatch) -> None:
    def tell(text: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("synkhronos.pymc._everywhere.everywhere.tell", tell)
    monkeypatch.setattr(sys.modules[__name__], "taken", OWN[0], raising=False)
    with pytest.raises(KeyboardInterrupt):
        synk.pymc.everywhere()


def test_names_that_modules_have_imported_are_found_told_and_restored(
    monkeypatch: pytest.MonkeyPatch, lines: Callable[[], list[str]], model: pm.Model
) -> None:
    before, meanwhile = ModuleType("before"), ModuleType("meanwhile")
    for module in (before, meanwhile):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    own = pm.sample_prior_predictive
    before.draw = own  # type: ignore[attr-defined]
    with synk.pymc.everywhere():
        [line] = lines()
        assert line.startswith("everywhere: ours are also names that were imported before: [")
        assert "'before.draw'" in line
        meanwhile.draw = kept = pm.sample_prior_predictive  # type: ignore[attr-defined]
        assert before.draw is kept
    assert (before.draw, meanwhile.draw) == (own, own)  # type: ignore[attr-defined]
    with pytest.raises(TypeError, match="store"):  # as PyMC's own
        kept(3, model, store="draws")


COMPUTED = ["compute_log_likelihood", "compute_log_prior", "compute_deterministics"]


@pytest.mark.parametrize("name", COMPUTED)
def test_computed_values_are_equal_and_ours(name: str, model: pm.Model) -> None:
    def computed(**ours: int) -> Any:
        function = getattr(pm.stats if "log" in name else pm.sampling, name)
        return function(drawn(), model=model, progressbar=False, **FAST, **ours)

    own = computed()
    with synk.pymc.everywhere():
        xr.testing.assert_allclose(computed(cores=1), own)
    with pytest.raises(TypeError, match="cores"):
        computed(cores=1)


def test_draws_are_ours_whoever_asks(model: pm.Model) -> None:
    """Ours themselves call PyMC's own, also while PyMC's names are ours."""

    def draws(posterior: Any, prior: Any) -> list[Any]:
        given = {"random_seed": 1, "progressbar": False, **FAST}
        return [posterior(drawn(), model, **given), prior(4, model, **given)]

    ours = draws(synk.pymc.sample_posterior_predictive, synk.pymc.sample_prior_predictive)
    with synk.pymc.everywhere():
        whoever = draws(pm.sample_posterior_predictive, pm.sample_prior_predictive)
        direct = draws(synk.pymc.sample_posterior_predictive, synk.pymc.sample_prior_predictive)
    for found in (whoever, direct):
        assert [a.equals(b) for a, b in zip(found, ours, strict=True)] == [True, True]


def test_no_module_of_ours_looks_them_up_when_it_calls() -> None:
    """It would call itself."""
    package = Path(synk.pymc.__file__).parent
    names = "|".join({name for _, name in NAMES})
    looked_up = rf"(?<!`)\b(pm|pymc|sampling|forward|stats|deterministic)\.({names})\("
    texts = {path: path.read_text() for path in package.rglob("*.py")}
    found = [path for path, text in texts.items() if re.search(looked_up, without_strings(text))]
    assert not found


def test_pymc_calls_its_own_functions_inside_of_ours(
    model: pm.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sampled(**given: Any) -> str:
        with pytest.raises(TypeError, match="cores"):
            pm.compute_log_likelihood(drawn(), model=model, cores=1)
        return "sampled"

    monkeypatch.setattr(sampling, "pm_sample", sampled)
    with synk.pymc.everywhere():
        assert pm.sample(model=model) == "sampled"


def test_what_ours_do_not_take_goes_to_pymcs_own_with_a_word(
    model: pm.Model, lines: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    with synk.pymc.everywhere():
        with pytest.raises(ValueError, match="must refer to observed_RVs") as caught:
            pm.compute_log_likelihood(drawn(), model=model, var_names=["mu"])
        assert caught.value.__context__ is None
        with pytest.raises(TypeError, match="nonsense"):
            pm.sample_prior_predictive(3, model, nonsense=1)
        with pytest.raises(TypeError, match="No model on context stack"):
            pm.sample()
        told = lines()
        told = told[told[0].startswith("everywhere:") :]  # names that other packages have imported
        assert [text.partition(":")[0] for text in told] == [
            "this pm.compute_log_likelihood is PyMC's own",
            "this pm.sample_prior_predictive is PyMC's own",
            "this pm.sample is PyMC's own",
        ]
        assert "'mu' is no observed variable" in told[0]
        with pytest.raises(synk.InputError, match="members_per_chain"):  # the user means ours
            pm.sample(model=model, members_per_chain=0)
        assert lines()[-1] == told[-1]


def test_quiet_is_quiet(
    model: pm.Model, lines: Callable[[], list[str]], asked: list[dict[str, Any]]
) -> None:
    with synk.pymc.everywhere():
        before = lines()  # of names that other packages have imported
        pm.sample(model=model, quiet=True)
        assert lines() == before
        with synk.pymc.everywhere(quiet=True):
            pm.sample(model=model)
            with pytest.raises(ValueError, match="must refer"):
                pm.compute_log_likelihood(drawn(), model=model, var_names=["mu"])
        assert lines() == before
        pm.sample(model=model)
        assert len(lines()) > len(before)
    assert len(asked) == 3


def test_draws_of_any_caller_are_in_a_folder(
    model: pm.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is of one model. Who names a folder gets that one; None is a name, too."""

    def place(**given: Any) -> Path | None:
        found = stored_chains.current()
        return found and found.folder.path

    given = {"tune": 9, "chains": 1, "compute_convergence_checks": False}
    call = calls("pm.sample(**given)", "bambi.backend.pymc", model=model)
    with pm.Model() as other:
        pm.Normal("mu")
    night, named = tmp_path / "night", tmp_path / "named"
    monkeypatch.setattr(sampling, "pm_sample", place)
    monkeypatch.chdir(tmp_path)
    with synk.pymc.everywhere(folder="night"):
        monkeypatch.chdir("/")
        with built():
            assert call(model=model, nuts_sampler="pymc", **given) == night
        assert pm.sample(model=model, **given) == night
        with pytest.raises(synk.InputError, match="draws are of another run: another model"):
            pm.sample(model=other, **given)
        with pytest.raises(synk.InputError, match="only nutpie goes on"):  # and not to PyMC's own
            pm.sample(model=model, nuts_sampler="pymc", **given)
        assert pm.sample(model=other, folder=named, **given) == named
        assert pm.sample(model=other, folder=None, **given) is None
        with synk.pymc.everywhere():
            assert pm.sample(model=other, **given) is None
            assert pm.sample(model=other, folder=named, **given) == named
    with pytest.raises(synk.InputTypeError, match="give a path"):
        synk.pymc.everywhere(folder=3)  # type: ignore[arg-type]
    assert not any(replaced())


@pytest.mark.parametrize(
    ("caller", "option", "sampler"),
    [
        ("bambi.backend.pymc", None, "absent"),
        *thorough(("bambi.backend.pymc", "numpyro", "numpyro")),
        *thorough(("bambi.backend.pymc", "pymc", "pymc")),
        ("bambino", None, "pymc"),
    ],
)
def test_the_default_of_bambi(
    caller: str,
    option: str | None,
    sampler: str,
    asked: list[dict[str, Any]],
    lines: Callable[[], list[str]],
) -> None:
    call = calls("pm.sample(**given)", caller)
    with synk.pymc.everywhere(nuts_sampler=option), built():
        call(nuts_sampler="pymc", chains=1, cores=1, init="auto")
    [given] = asked
    assert given.get("nuts_sampler", "absent") == sampler
    told = [text for text in lines() if text.startswith("Bambi asks for")]
    assert len(told) == (sampler != "pymc")
    # Bambi's fit moves the intercept itself
    centred = any(text.startswith("Bambi has centred") for text in lines())
    assert centred == (caller == "bambino")


@pytest.mark.parametrize(
    ("option", "given", "sampler", "init"),
    [
        (None, {"init": "adapt_diag"}, "absent", "absent"),
        (None, {"init": "map"}, "absent", "map"),  # the user's
        *thorough(
            ("nutpie", {"init": "adapt_diag"}, "nutpie", "absent"),
            (None, {"init": "adapt_diag", "callback": print}, "absent", "adapt_diag"),
            ("pymc", {"init": "adapt_diag"}, "pymc", "adapt_diag"),
        ),
    ],
)
def test_the_defaults_of_hssm(
    option: str | None,
    given: dict[str, Any],
    sampler: str,
    init: str,
    asked: list[dict[str, Any]],
    lines: Callable[[], list[str]],
) -> None:
    """It calls Bambi, and names a start that would keep PyMC's own sampler."""
    fit = calls("pm.sample(nuts_sampler='pymc', **given)", "bambi.backend.pymc")
    call = calls("fit(**given)", "hssm.base", fit=fit)
    with synk.pymc.everywhere(nuts_sampler=option), built():
        call(chains=1, cores=1, compile_kwargs={"mode": "NUMBA"}, **given)
    [found] = asked
    assert [found.get(name, "absent") for name in ("nuts_sampler", "init")] == [sampler, init]
    told = [text for text in lines() if text.startswith("HSSM asks for")]
    assert len(told) == (option != "pymc")


def test_threads_and_a_call_that_lasts_longer(
    model: pm.Model, monkeypatch: pytest.MonkeyPatch, asked: list[dict[str, Any]]
) -> None:
    inside, closed = threading.Event(), threading.Event()
    found: list[Any] = []

    def waiting(**given: Any) -> str:
        inside.set()
        assert closed.wait(60)
        assert not any(replaced())
        return "ours"

    monkeypatch.setattr(sampling, "pm_sample", waiting)
    thread = threading.Thread(target=lambda: found.append(pm.sample(model=model)))
    with synk.pymc.everywhere():
        thread.start()
        assert inside.wait(60)
    closed.set()
    thread.join(60)
    assert found == ["ours"]


def test_forks_have_a_state_of_their_own() -> None:
    """Also where another thread holds the lock."""
    held, over = threading.Event(), threading.Event()

    def hold() -> None:
        with everywhere._lock.held():
            held.set()
            over.wait(60)

    opened = synk.pymc.everywhere()
    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(60)

    def check() -> None:
        assert all(replaced())
        opened.close()
        assert not any(replaced())

    pid = fork_to(check)
    over.set()
    thread.join()
    assert os.waitpid(pid, 0)[1] == 0
    assert all(replaced())
    opened.close()


def test_pymc_is_found_until_it_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program may look PyMC up first, and may fail to import it."""
    (tmp_path / "found_late.py").write_text("import sys\nassert sys.ready")
    opened: list[bool] = []
    monkeypatch.setattr(script, "_PYMC", "found_late")
    monkeypatch.setattr(synk.pymc, "everywhere", lambda folder: opened.append(True))
    monkeypatch.setattr(sys, "meta_path", [finder := script._WhenImported(), *sys.meta_path])
    monkeypatch.setattr(sys, "ready", False, raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    early = [importlib.util.find_spec("found_late") for _ in range(2)]
    with pytest.raises(AssertionError):
        importlib.import_module("found_late")
    assert not opened
    monkeypatch.setattr(sys, "ready", True)
    try:
        module = importlib.import_module("found_late")
    finally:
        sys.modules.pop("found_late", None)
    assert opened == [True]
    assert finder not in sys.meta_path
    for spec in early:
        assert spec is not None
        assert spec.loader is not None
        spec.loader.exec_module(module)
    assert opened == [True]


SCRIPT = """
import importlib.util, os, sys
assert importlib.util.find_spec("pymc").name == "pymc"
assert "pymc" not in sys.modules
from pymc import sample
import pymc
assert pymc.sample is sample is not sample.__wrapped__
assert __name__ == "__main__" and sys.argv[1:] == ["a"] and __file__ == sys.argv[0]
with pymc.Model():
    pymc.Normal("x")
    tree = sample(3, tune=9, chains=1, progressbar=False, compute_convergence_checks=False)
assert "night" in tree.posterior.attrs["synkhronos_run"]
import beside
"""


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["script", "module"])
def test_a_script_that_is_not_changed(kind: str, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(SCRIPT)
    (tmp_path / "beside.py").write_text("print('beside')")
    words = {
        "script": [str(tmp_path / "program.py")],
        "module": ["-m", "program"],
    }[kind]
    safe = [] if kind == "script" else ["-P"]
    done = subprocess.run(
        [sys.executable, *safe, "-m", "synkhronos", "run", "--pymc-folder", "night", *words, "a"],
        env=os.environ | {"PYTHONPATH": str(tmp_path)} if safe else None,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=tmp_path,
    )
    assert (done.stdout, done.returncode) == ("beside\n", 0), done.stderr
    assert (tmp_path / "night" / "run.json").exists()


OTHERS = """
import pymc as pm
def test_a_caller(): pm.sample
def test_who_asks_for_pymcs_own(): assert not hasattr(pm.sample, "__wrapped__")
def test_that_fails(): assert False
"""


@pytest.mark.thorough
def test_tests_of_others_are_run_twice_and_differences_are_listed(tmp_path: Path) -> None:
    (tmp_path / "test_others.py").write_text(OTHERS)
    others = Path(__file__).parents[1] / "others.py"
    done = subprocess.run(
        [sys.executable, "-P", str(others), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout.splitlines()[-2:] == [
        "test_others::test_who_asks_for_pymcs_own: passed as it is, failure inside",
        "3 tests: 2 pass as they are, 1 inside",
    ]
    assert done.returncode == 1
