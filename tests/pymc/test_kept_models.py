"""Models that were compiled before: the same draws, in any process; and nothing that is stale."""

from __future__ import annotations

import logging
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from copy import copy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import kept_models
import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from pymc.sampling import mcmc
from pytensor.compile.mode import get_mode, predefined_modes
from pytensor.graph.basic import Apply, equal_computations
from pytensor.graph.op import Op
from pytensor.link.numba.linker import NumbaLinker
from pytensor.link.vm import VMLinker
from selection import thorough
from user_scripts import LIMIT

import synkhronos as synk
from synkhronos._compiling.data.lifted import Data
from synkhronos._compiling.direct import functions
from synkhronos._compiling.direct.unfit import UnfitError
from synkhronos._compiling.kept.digests import Unkeyed
from synkhronos._compiling.kept.folder import Folder
from synkhronos._compiling.kept.keys import graph_key
from synkhronos._errors import InputError
from synkhronos.pymc._chains import sampling
from synkhronos.pymc._density import step_methods
from synkhronos.pymc._density.nutpie import compiled_soon, data_stay
from synkhronos.pymc._density.op import DividedLogp
from synkhronos.pymc._kept import copies, entry, estimate, graphs, models
from synkhronos.pymc._kept.estimate import Estimate
from synkhronos.pymc._kept.graphs import Graphs
from synkhronos.pymc._map.compilations import Compilations
from synkhronos.pymc._reading.declared import Declared
from synkhronos.pymc._reading.models import length_of

nutpie = pytest.importorskip("nutpie")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folder:
    found = Folder(tmp_path / "kept")
    monkeypatch.setattr(models, "kept_folder", lambda: found)
    return found


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[pm.Model]:
    """The models that nutpie compiles."""
    found, make = [], nutpie.compile_pymc._make_functions

    def noted(model: pm.Model, **given: object) -> object:
        found.append(model)
        return make(model, **given)

    monkeypatch.setattr(nutpie.compile_pymc, "_make_functions", noted)
    return found


def made(build: Callable[[], object], **given: object) -> pm.Model:
    with pm.Model(**given) as model:
        build()
    return model


def test_a_model_that_was_compiled_is_not_compiled_again(
    folder: Folder, compiled: list[pm.Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not read, not differentiated; the draws are those without anything kept.

    What reads a model is not even imported.
    """
    first, late = kept_models.sampled("schools"), list[str]()
    monkeypatch.setattr(step_methods, "chosen_by", None)
    monkeypatch.setattr(mcmc.tg, "grad", None)
    monkeypatch.setattr("synkhronos.pymc._reading.reading.read", None)
    for module in (sampling, estimate):
        monkeypatch.setattr(module, "import_module", late.append)
    assert kept_models.sampled("schools") == first
    assert not late
    assert len(compiled) == 1
    monkeypatch.undo()
    assert kept_models.sampled("schools") == first  # the folder of the tests keeps nothing


@pytest.mark.parametrize("cheap", [True, *thorough(False)])
def test_a_new_model_has_one_graph_of_its_log_density(
    folder: Folder, monkeypatch: pytest.MonkeyPatch, cheap: bool
) -> None:
    """The key, the estimate, the step methods and nutpie have the same one."""
    calls = []

    def logp(value: Any, mu: Any) -> Any:
        calls.append(value)
        return -((value - mu) ** 2)

    def build() -> None:
        pm.CustomDist("y", pm.Normal("mu"), logp=logp, observed=kept_models._Y)

    monkeypatch.setattr(sampling, "_CHEAP_SECONDS", 1.0 if cheap else 0.0)
    model = made(build)
    kept_models.digest(model, draws=5, tune=5)
    assert len(calls) == 1
    found = Graphs(model)
    assert equal_computations([found.value], [model.logp()])
    assert found.value.name == model.logp().name


def test_the_graph_of_a_model_without_a_key_is_handed_on(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*given: object) -> str:
        raise Unkeyed("a test asks for none")

    monkeypatch.setattr(graphs, "graph_key", refuse)
    made_graphs: list[object] = []
    monkeypatch.setattr(pm.Model, "logp", _noted(pm.Model.logp, made_graphs))
    kept_models.sampled("schools")
    assert len(made_graphs) == 1
    assert not folder.path.exists()


@pytest.mark.thorough
def test_a_new_model_waits_for_no_c_compiler(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither where constants are folded, nor for what runs the function of the initial point."""
    seen, make = [], VMLinker.make_all

    def noted(*args: Any, **kwargs: Any) -> object:
        seen.append(pytensor.config.cxx)
        return make(*args, **kwargs)

    monkeypatch.setattr(VMLinker, "make_all", noted)
    with pytensor.config.change_flags(cxx="none of this name"):
        kept_models.sampled("schools")
        assert pytensor.config.cxx == "none of this name"
    assert set(seen) == {""}


def _noted(function: Callable[..., object], calls: list[object]) -> Callable[..., object]:
    def call(*args: object, **kwargs: object) -> object:
        calls.append(args)
        return function(*args, **kwargs)

    return call


def test_entries_that_are_damaged_or_foreign_count_as_absent(
    folder: Folder, compiled: list[pm.Model]
) -> None:
    first = kept_models.sampled("schools")
    for path in folder.path.iterdir():
        folder.write(path.stem, b"of another program")
    assert kept_models.sampled("schools") == first
    assert len(compiled) == 2
    for path in folder.path.iterdir():
        path.write_bytes(path.read_bytes()[:-1])
    assert kept_models.sampled("schools") == first
    assert len(compiled) == 3
    assert kept_models.sampled("schools") == first
    assert len(compiled) == 3


def plain(
    size: int = 3, scale: float = 1.0, name: str = "a", **given: object
) -> Callable[[], None]:
    def build() -> None:
        a = pm.Normal(name, 0, scale, shape=size, **given)
        pm.Normal("y", a.sum(), 1, observed=np.arange(4.0))

    return build


DIFFERENT = {
    "a constant": plain(scale=2.0),
    "a length": plain(size=4),
    "a name": plain(name="b"),
    "a transform": plain(transform=pm.distributions.transforms.ordered),
    "a distribution": lambda: pm.Normal(
        "y", pm.Cauchy("a", 0, 1, shape=3).sum(), 1, observed=[0.0]
    ),
    "an observed value": lambda: pm.Normal(
        "y", pm.Normal("a", 0, 1.0, shape=3).sum(), 1, observed=[0.0, 1, 2, 4]
    ),
    "a Deterministic": lambda: pm.Deterministic("d", plain()() or pm.math.constant(1.0)),
    "a Potential": lambda: (plain()(), pm.Potential("p", pm.math.constant(1.0))),
}


@pytest.mark.parametrize("what", DIFFERENT)
def test_keys_differ(what: str) -> None:
    before = Graphs(made(plain())).key
    assert before == Graphs(made(plain())).key
    assert before != Graphs(made(DIFFERENT[what])).key


def test_keys_differ_by_what_is_not_in_the_log_density(monkeypatch: pytest.MonkeyPatch) -> None:
    first = Graphs(made(plain()))
    assert first.key != Graphs(made(plain(), check_bounds=False)).key
    begun = Graphs(made(plain(initval=np.ones(3))))
    assert first.key == begun.key
    assert first.initial_key(None) != begun.initial_key(None)
    twice, thrice = (
        Graphs(made(lambda n=n: pm.Deterministic("more", n * pm.Normal("a")))) for n in (2.0, 3.0)
    )
    assert twice.key != thrice.key
    with monkeypatch.context() as other:
        other.setitem(predefined_modes, "NUMBA", get_mode("NUMBA").excluding("fusion"))
        assert first.key != Graphs(made(plain())).key
    monkeypatch.setattr(graphs, "STEP_METHODS", graphs.STEP_METHODS[1:])
    assert first.key != Graphs(made(plain())).key
    assert first.initial_key(None) != first.initial_key({"a": np.ones(3)})


def test_lengths_of_data_that_shapes_follow_from_are_a_part_of_the_key() -> None:
    def build(values: list[float], named: bool) -> Graphs:
        with pm.Model() as model:
            data = pm.Data("x", np.array(values))
            mean = pm.Normal("a") * data
            pm.Normal("y", pm.Deterministic("mean", mean) if named else mean, 1, observed=data)
        return Graphs(model)

    assert build([1.0, 2], named=False).key == build([3.0, 4, 5], named=False).key
    assert build([1.0, 2], named=True).key != build([3.0, 4, 5], named=True).key


def test_values_that_a_length_depends_on_are_a_part_of_the_key() -> None:
    """Also those of an array that is data where no length depends on it."""

    def key(some: bool, count: int) -> str:
        x = np.where(np.arange(210) < count, 1.0, -1.5)
        with pm.Model() as model:
            mu = pm.Normal("mu", shape=210)
            pm.Deterministic("d", mu[pt.as_tensor(x) > 0] if some else mu * x)
        return Graphs(model).key

    assert key(False, 3) == key(False, 4)
    assert key(True, 3) == key(True, 3)
    assert key(True, 3) != key(True, 4)


@pytest.mark.thorough
def test_a_deterministic_has_its_own_length_in_each_model(
    folder: Folder, compiled: list[pm.Model]
) -> None:
    given = {"draws": 5, "tune": 5, "chains": 1, "cores": 1, "progressbar": False}
    for count in (3, 7, 3):
        with pm.Model() as model:
            x = pt.as_tensor(np.where(np.arange(210) < count, 1.0, -1.5))
            pm.Deterministic("d", pm.Normal("mu", shape=210)[x > 0])
        drawn = synk.pymc.sample(model, backend="numba", nuts_sampler="nutpie", **given).posterior
        assert drawn["d"].shape == (1, 5, count)
        assert np.array_equal(drawn["d"], drawn["mu"][..., :count])
    assert len(compiled) == 2


def test_the_key_of_the_initial_point_tells_shared_variables_without_names_apart() -> None:
    scales = [pytensor.shared(np.ones(3)) for _ in range(2)]

    def first(at: int) -> Graphs:
        with pm.Model() as model:
            pm.Normal("a", 0, scales[0] + scales[1] ** 2, shape=3, initval=scales[at])
        return Graphs(model)

    assert first(0).key == first(1).key
    assert first(0).initial_key(None) == first(0).initial_key(None)
    assert first(0).initial_key(None) != first(1).initial_key(None)


def test_only_a_form_is_kept_with_arrays_that_are_not_of_the_graphs() -> None:
    """The key of a form has all values of the data; that of a model has not."""
    foreign = Data(pt.vector().type, kept_models._Y, strict=True, name="synk data 0")
    asked = SimpleNamespace(shared_var_keys={foreign: "key"}, shared_data={"key": kept_models._Y})
    model = kept_models.built("schools")
    found = Graphs(model)
    with pytest.raises(Unkeyed, match="not of the model"):
        entry._record(asked, found)
    model.logp = lambda **given: None
    [(key, array)], once = entry._record(asked, found)
    assert (key, once) == ("key", [])
    assert array is kept_models._Y


def test_data_are_told_apart_without_a_copy_of_them() -> None:
    one, same, other = (
        Data(pt.vector().type, np.full(10_000, value), strict=True) for value in (1.0, 1.0, 2.0)
    )
    assert entry._identity(one) == entry._identity(same) != entry._identity(other)
    assert len(pickle.dumps(entry._identity(one))) < 1000


def with_data() -> pm.Model:
    with pm.Model() as model:
        data = pm.Data("x", np.round(kept_models._X[:, 0]))
        pm.Normal("y", pm.Normal("a") + pm.Normal("b") * data, 1, observed=kept_models._Y)
    return model


def test_a_form_and_a_note_are_those_of_data_and_options(folder: Folder) -> None:
    """Repeated rows are found in the data, and become constants of the code."""
    model = with_data()
    first = models.KeptModel(Graphs(model), folder)
    first.note(1, "estimate")
    again = models.KeptModel(Graphs(with_data()), folder)
    assert again.form_of("dim", True) == first.form_of("dim", True)
    assert again.recall("estimate") == 1
    assert first.form_of("dim", True) != first.form_of("dim", False)
    with model:
        pm.set_data({"x": np.zeros(210)})
    other = models.KeptModel(Graphs(model), folder)
    assert other.graphs.key == first.graphs.key
    assert other.form_of("dim", True) != first.form_of("dim", True)
    assert other.recall("estimate") is None


@pytest.mark.thorough
def test_a_form_is_used_for_its_data_and_options(
    folder: Folder, compiled: list[pm.Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampling, "_CHEAP_SECONDS", 0.0)
    model = with_data()

    def count(**given: object) -> int:
        before = len(compiled)
        kept_models.digest(model, cores=1, **given)
        return len(compiled) - before

    assert [count(), count(), count(repeated=False), count(repeated=False)] == [1, 0, 1, 0]
    with model:
        pm.set_data({"x": np.zeros(210)})
    assert [count(), count()] == [1, 0]


@pytest.mark.parametrize("given", [{}, {"backend": "jax"}, {"jitter_rvs": set()}])
def test_a_model_has_its_form_whenever_it_is_compiled(
    folder: Folder, given: dict[str, object]
) -> None:
    """Also for arguments that nothing is kept for; and once."""
    done, kept = [], models.KeptModel(Graphs(made(plain())), folder)
    kept.form, kept.prepare = "form", lambda: done.append("form")
    for _ in range(2):
        kept.compiled(lambda *_, **__: done.append("compiled"), given)
    assert done == ["form", "compiled", "compiled"]


@pytest.mark.thorough
def test_the_kept_form_is_made_for_pymc_s_own_sampler(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is kept for that one: its model must not stay plain."""
    monkeypatch.setattr(sampling, "_CHEAP_SECONDS", 0.0)
    model, faster = with_data(), list[bool]()
    kept_models.digest(model, cores=1, nuts_sampler=None)
    kept_models.digest(
        model, cores=1, nuts_sampler=None, callback=lambda **_: faster.append("logp" in vars(model))
    )
    assert faster
    assert all(faster)


def test_no_variables_are_not_all_of_them(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    """An array names them as a list does, and an iterator is read once."""
    monkeypatch.setattr(models, "packed", lambda found, _: repr(found).encode())
    monkeypatch.setattr(models, "unpacked", lambda entry, _: entry.decode())
    monkeypatch.setattr(models, "is_fixed", lambda _: False)
    kept = models.KeptModel(Graphs(made(plain())), folder)

    def compiled(**given: object) -> object:
        return kept.compiled(lambda _, var_names=None, **__: var_names, given)

    for names in (None, [], ["a"], iter(["b"]), np.array(["c", "d"])):
        expected = names if names is None or isinstance(names, list) else list(copy(names))
        assert compiled(var_names=names) == expected
    assert [compiled(), compiled(var_names=[])] == ["None", "[]"]
    assert compiled(var_names=("b",)) == "['b']"


def test_a_note_is_that_of_the_names_of_dims(folder: Folder) -> None:
    """The graphs and data of a model do not have them."""

    def estimate(coords: dict[str, Any], dims: str | None = None) -> Estimate:
        with pm.Model(coords=coords) as model:
            pm.Normal("y", pm.Normal("mu"), 1, observed=kept_models._Y, dims=dims)
        return Estimate(model, "rows", Declared(), models.KeptModel(Graphs(model), folder))

    rows = {"rows": range(210)}
    with pytest.raises(InputError, match="is not a dimension"):
        estimate({})
    for _ in range(2):
        with pytest.raises(InputError, match="no observed variable has this dimension"):
            estimate(rows)
        assert estimate(rows, "rows").rows == 210


def test_what_a_function_of_the_user_reads_is_a_part_of_the_key(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = Graphs(made(kept_models.custom)).key
    assert first == Graphs(made(kept_models.custom)).key
    monkeypatch.setattr(kept_models, "SLOPE", 4.0)
    assert first != Graphs(made(kept_models.custom)).key


@pytest.mark.thorough
def test_draws_of_some_variables_and_from_other_values_are_kept_apart(
    folder: Folder, compiled: list[pm.Model]
) -> None:
    first = kept_models.sampled("schools")
    fewer = kept_models.sampled("schools", var_names=["mu"])
    begun = kept_models.sampled("schools", initvals={"mu": np.array(2.0)})
    assert len({first, fewer, begun}) == len(compiled) == 3
    assert kept_models.sampled("schools", var_names=["mu"]) == fewer
    assert kept_models.sampled("schools", initvals={"mu": np.array(2.0)}) == begun
    assert kept_models.sampled("schools", random_seed=2) not in {first, fewer, begun}
    assert len(compiled) == 3


@pytest.mark.thorough
def test_other_data_of_a_graph_are_not_compiled_in_another_slot(
    folder: Folder, compiled: list[pm.Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    def draws(shift: float) -> np.ndarray:
        model = made(lambda: kept_models.schools(shift))
        given = {"draws": 20, "tune": 30, "chains": 1, "cores": 1, "random_seed": 1, "quiet": True}
        given |= {"progressbar": False, "compute_convergence_checks": False}
        with compiled_soon(), Compilations():
            tree = pm.sample(model=model, backend="numba", nuts_sampler="nutpie", **given)
        return tree.posterior["mu"].values

    first, second = draws(0.0), draws(5.0)
    assert len(compiled) == 1
    assert not np.array_equal(first, second)
    monkeypatch.setattr(models, "kept_folder", lambda: None)
    assert np.array_equal(second, draws(5.0))
    assert len(compiled) == 2


def draws_of(copy: pm.Model) -> np.ndarray:
    """Draws by the user's own call of PyMC."""
    given = {"draws": 20, "tune": 30, "chains": 1, "cores": 1, "random_seed": 1, "quiet": True}
    given |= {"progressbar": False, "compute_convergence_checks": False, "backend": "numba"}
    found: np.ndarray = pm.sample(model=copy, nuts_sampler="nutpie", **given).posterior["a"].values
    return found


@pytest.mark.thorough
def test_a_copy_by_fast_is_not_compiled_again(
    folder: Folder, compiled: list[pm.Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By `pm.sample`, nor by nutpie; data that are set are those of the draws."""
    first = draws_of(synk.pymc.fast(with_data()))
    copy = synk.pymc.fast(with_data())
    with monkeypatch.context() as patch:
        patch.setattr(mcmc.tg, "grad", None)
        assert np.array_equal(draws_of(copy), first)
    nutpie.compile_pymc_model(synk.pymc.fast(with_data()))
    assert len(compiled) == 1
    with copy:
        pm.set_data({"x": np.round(kept_models._X[:, 1])})
    second = draws_of(copy)
    assert not np.array_equal(second, first)
    made_before = len(compiled)
    monkeypatch.setattr(models, "kept_folder", lambda: None)
    assert np.array_equal(draws_of(copy), second)
    assert len(compiled) == made_before + 1


def test_a_copy_is_read_anew_when_nutpie_compiles_it(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What PyMC has asked of it before may be of other data, or without a Potential."""
    copy = synk.pymc.fast(with_data())
    found: list[models.KeptModel] = []
    for name in ("assigned", "compiled"):
        monkeypatch.setattr(models.KeptModel, name, lambda kept, *given: found.append(kept))
    copies._assigned(None, copy)
    with copy:
        pm.Potential("more", -(copy["a"] ** 2))
    copies._compiled(None, copy)
    before, after = (kept.key("nutpie") for kept in found)
    assert before != after


def test_copies_are_led_also_if_another_model_was_being_sampled(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Functions that are replaced for good stay when those of a call are restored."""
    monkeypatch.setattr(copies, "_put", {})  # as if no copy had been made in this process
    monkeypatch.setattr(mcmc, "assign_step_methods", mcmc.assign_step_methods)
    monkeypatch.setattr(nutpie, "compile_pymc_model", nutpie.compile_pymc_model)
    with models.leading(models.kept_model(kept_models.built("schools"))):
        copies.lead_copies()
        copies.lead_copies()
        put = dict(copies._put)
    assert mcmc.assign_step_methods is put["assign_step_methods"]
    assert nutpie.compile_pymc_model is put["compile_pymc_model"]
    with models.leading(models.kept_model(kept_models.built("schools"))):
        copies.lead_copies()
    assert copies._put == put


def test_keys_of_a_model_are_the_same_with_c_and_without(folder: Folder) -> None:
    """PyMC asks for them where C is on, and nutpie where it is off."""
    found = []
    for compiler in ("", "some"):
        with pytensor.config.change_flags(cxx=compiler):
            found.append(models.kept_model(kept_models.built("schools")).key("nuts"))
    assert found[0] == found[1]


def test_the_model_of_another_thread_is_compiled_as_it_is(folder: Folder) -> None:
    """Functions of nutpie and PyMC are restored when the last model was sampled."""
    before = nutpie.compile_pymc_model, mcmc.assign_step_methods
    one, two = (models.kept_model(kept_models.built("schools")) for _ in range(2))
    with models.leading(one):
        entered, leave = threading.Event(), threading.Event()

        def lead() -> None:
            with models.leading(two):
                entered.set()
                leave.wait(60)

        thread = threading.Thread(target=lead)
        thread.start()
        assert entered.wait(60)
        assert models._kept_of(one.model) is one
        assert models._kept_of(two.model) is two
        assert models._kept_of(kept_models.built("schools")) is None
    assert nutpie.compile_pymc_model is not before[0]
    leave.set()
    thread.join()
    assert (nutpie.compile_pymc_model, mcmc.assign_step_methods) == before


class Doubled(Op):
    """An operation that numba knows no code of: it calls Python."""

    __props__ = ()

    def make_node(self, x: Any) -> Apply:
        return Apply(self, [x], [x.type()])

    def perform(self, node: Apply, inputs: Any, outputs: Any) -> None:
        outputs[0][0] = np.asarray(2 * inputs[0])


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:Numba will use object mode")
def test_a_model_that_calls_python_is_not_kept(
    folder: Folder, compiled: list[pm.Model], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "synkhronos")
    for count in (1, 2):
        model = made(lambda: pm.Deterministic("twice", Doubled()(pm.Normal("a"))))
        given = {"draws": 5, "tune": 5, "chains": 1, "cores": 1, "progressbar": False}
        synk.pymc.sample(model, backend="numba", nuts_sampler="nutpie", **given)
        assert len(compiled) == count
        assert "is not kept: " in caplog.text


TOGETHER = """
import sys, time
from pathlib import Path
tests, place, mine, other = sys.argv[1:]
sys.path.insert(0, tests)
import kept_models
from synkhronos._compiling.kept.folder import Folder
from synkhronos.pymc._density import gain
from synkhronos.pymc._kept import models

gain.FEW_ROWS = 0

def write_together(folder, key, data, write=Folder.write):
    Path(mine + key).touch()
    until = time.monotonic() + 240
    while not Path(other + key).exists():
        assert time.monotonic() < until
        time.sleep(0.001)
    write(folder, key, data)

Folder.write = write_together
models.kept_folder = lambda: Folder(Path(place))
print(kept_models.sampled("schools"))
"""


def test_dimensions_of_data_are_measured_without_a_compiler(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is kept of a model loads in less time than numba takes for a length."""
    with pm.Model(coords={"of": [1, 2]}) as model:
        pm.Data("x", np.ones((7, 3)), dims=("rows", "columns"))
        model.add_coord("more", length=pt.shape(model["x"])[0] + 1)
    monkeypatch.setattr(NumbaLinker, "make_all", None)
    with pytensor.config.change_flags(mode="NUMBA"):
        lengths = {dim: length_of(model, dim) for dim in model.dim_lengths}
    assert lengths == {"of": 2, "rows": 7, "columns": 3, "more": 8}


@pytest.mark.thorough
def test_two_processes_that_compile_a_model_at_the_same_time(
    folder: Folder, compiled: list[pm.Model], tmp_path: Path
) -> None:
    """Each keeps it: there is one whole entry, and no draw differs."""
    tests, names = str(Path(kept_models.__file__).parent), ("one-", "two-")
    scripts = [
        subprocess.Popen(
            [
                sys.executable,
                "-c",
                TOGETHER,
                tests,
                folder.path,
                *(str(tmp_path / n) for n in each),
            ],
            stdout=subprocess.PIPE,
            text=True,
        )
        for each in (names, names[::-1])
    ]
    one, two = (script.communicate(timeout=LIMIT)[0] for script in scripts)
    assert one == two == f"{kept_models.sampled('schools')}\n"
    assert not compiled
    assert all(path.suffix == ".kept" for path in folder.path.iterdir())


@pytest.mark.thorough
def test_data_of_other_lengths_have_code_of_their_own(
    folder: Folder, compiled: list[pm.Model]
) -> None:
    first, other = kept_models.sampled("regression"), kept_models.sampled("other_rows")
    again = kept_models.sampled("regression"), kept_models.sampled("other_rows")
    assert again == (first, other)
    assert len(compiled) == 1
    folder.clear()
    assert kept_models.sampled("other_rows") == other
    assert len(compiled) == 2


@pytest.mark.thorough
def test_code_of_numba_is_for_data_of_all_lengths(
    folder: Folder, compiled: list[pm.Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    def unfit(*_: object) -> None:
        raise UnfitError

    monkeypatch.setattr(functions, "c_function", unfit)
    kept_models.sampled("regression")
    other = kept_models.sampled("other_rows")
    assert len(compiled) == 1
    folder.clear()
    assert kept_models.sampled("other_rows") == other
    assert len(compiled) == 2


def test_code_for_some_lengths_is_not_taken_for_others(folder: Folder) -> None:
    """Whatever the key of an entry says."""
    short, long = (made(lambda n=n: _mean_of(n)) for n in (210, 217))
    first, other = (models.KeptModel(Graphs(model), folder) for model in (short, long))
    with compiled_soon():
        found = nutpie.compile_pymc_model(short)
    assert entry.is_fixed(found)
    kept = entry.packed(found, first.graphs)
    assert entry.is_fixed(entry.unpacked(kept, first.graphs))
    with pytest.raises(Unkeyed, match="other lengths"):
        entry.unpacked(kept, other.graphs)


def test_code_for_data_that_are_lengths_is_not_taken_for_others(folder: Folder) -> None:
    """Their arrays have the same lengths, and the graphs the same key."""
    first, same, other = (
        models.KeptModel(Graphs(made(lambda n=n: _walk_of(n))), folder) for n in (5, 5, 7)
    )
    assert first.graphs.key == other.graphs.key
    token = data_stay.set(True)
    try:
        with compiled_soon():
            found = nutpie.compile_pymc_model(first.model)
    finally:
        data_stay.reset(token)
    assert entry.is_fixed(found)
    kept = entry.packed(found, first.graphs)
    assert entry.is_fixed(entry.unpacked(kept, same.graphs))
    with pytest.raises(Unkeyed, match="other lengths"):
        entry.unpacked(kept, other.graphs)


def test_a_fault_of_the_small_compiler_leaves_a_model_to_numba(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def wrong(*_: object) -> None:
        raise KeyError("a buffer")

    monkeypatch.setattr(functions, "c_function", wrong)
    with compiled_soon():
        found = nutpie.compile_pymc_model(made(lambda: _mean_of(210)))
    assert not entry.is_fixed(found)
    assert "numba" in caplog.text


def _walk_of(steps: int) -> None:
    step = pm.Normal("step", 0, 1)
    walk = pt.cumsum(pt.alloc(step, pm.Data("steps", np.array(steps))))
    pm.Potential("y", -pt.exp(walk).sum())


def _mean_of(rows: int) -> None:
    pm.Cauchy("y", pm.Normal("mu"), 1, observed=np.linspace(-1, 1, rows))


@pytest.mark.thorough
@pytest.mark.parametrize("cheap", [np.inf, 0.0], ids=["its own form", "a faster form"])
def test_a_model_with_large_arrays_is_kept(
    folder: Folder, compiled: list[pm.Model], monkeypatch: pytest.MonkeyPatch, cheap: float
) -> None:
    monkeypatch.setattr(sampling, "_CHEAP_SECONDS", cheap)
    model = kept_models.built("large")
    first = kept_models.digest(model, chains=1)
    assert kept_models.digest(model, chains=1) == first
    assert len(compiled) == 1


def test_a_graph_of_a_divided_likelihood_is_not_kept() -> None:
    """Numbers of likelihoods begin at 0 in each process, which may divide another model."""

    def evaluated(*_: object) -> None: ...

    theta = pt.dvector("theta")
    value = DividedLogp(evaluated)(theta)[0]  # type: ignore[arg-type]
    with pytest.raises(Unkeyed, match="DividedLogp stands for something of this process"):
        graph_key([theta], [value + theta.sum()])


KINDS = (
    "regression",
    "other_rows",
    "mixture",
    "walk",
    "process",
    "covariance",
    "levels",
    "custom",
    "loop",
)
KINDS = (*KINDS, "imputed", "with_data", "no_rows", "rows")


@pytest.mark.thorough
@pytest.mark.parametrize("at", range(0, len(KINDS), 3), ids=lambda at: " ".join(KINDS[at : at + 3]))
def test_draws_are_the_same_in_every_process(tmp_path: Path, at: int) -> None:
    """Compiled there, compiled before, and with nothing kept; hashes differ between processes."""
    folder = tmp_path / "kept"

    def run(seed: str, place: str) -> str:
        command = [sys.executable, kept_models.__file__, place, *KINDS[at : at + 3]]
        given = {**os.environ, "PYTHONHASHSEED": seed}
        return subprocess.run(
            command, env=given, stdout=subprocess.PIPE, text=True, check=True, timeout=LIMIT
        ).stdout

    first = run("1", str(folder))
    kept = {path.name for path in folder.iterdir()}
    assert first.count("\n") == len(KINDS[at : at + 3])
    assert first == run("2", str(folder)) == run("3", "")
    assert kept == {path.name for path in folder.iterdir()}
