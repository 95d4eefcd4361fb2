"""Private names of other libraries, each taken away: a warning tells the loss, the rest works."""

from __future__ import annotations

import functools
import importlib.util
import math
import os
import pkgutil
import sys
import warnings
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from numba.core.caching import NullCache
from pytensor.compile.ops import FromFunctionOp
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.rewriting.db import EquilibriumDB, SequenceDB
from pytensor.link.numba.linker import NumbaLinker

import synkhronos as synk
from synkhronos import _libraries
from synkhronos._backends import jax as jax_backend
from synkhronos._compiling import where
from synkhronos._compiling.compile_cache import uncacheable
from synkhronos._compiling.kept import contents
from synkhronos._compiling.kept.digests import Unkeyed
from synkhronos._compiling.lean import covariance_loops, rewrite
from synkhronos._compiling.lean.closed import ClosedLinker
from synkhronos._compiling.lean.linker import LeanLinker
from synkhronos._compiling.vectorised import rewrite as vectorised_rewrite
from synkhronos._engine import shipping
from synkhronos._libraries import library as library_module
from synkhronos._libraries.keras import KERAS
from synkhronos._libraries.library import Library, NameGone, optional_gain, usable
from synkhronos._transport.processes.fork_safety import numba_parallel_has_run
from synkhronos.search._studies import call_back

pm = pytest.importorskip("pymc")
nutpie = pytest.importorskip("nutpie")

from synkhronos.pymc._chains import progress  # noqa: E402
from synkhronos.pymc._density.density import Density  # noqa: E402
from synkhronos.pymc._density.density import _join as join_density  # noqa: E402
from synkhronos.pymc._group.advice import Gradient  # noqa: E402
from synkhronos.pymc._map.compilations import Compilations  # noqa: E402


def libraries() -> list[Library]:
    found = []
    for module in pkgutil.iter_modules(_libraries.__path__):
        listed = importlib.import_module(f"{_libraries.__name__}.{module.name}")
        found += [v for v in vars(listed).values() if isinstance(v, Library)]
    return [each for each in found if importlib.util.find_spec(each.package)]


LISTED = [(each, place) for each in libraries() for place in each.lost]
HELD = [(each, place) for each, place in LISTED if "()" not in place]
TAKEN = [  # the import of Keras takes seconds
    pytest.param(*each, id=each[1], marks=[pytest.mark.thorough] * (each[0] is KERAS))
    for each in HELD
]


@pytest.fixture(autouse=True)
def _nothing_is_told_yet() -> Iterator[None]:
    def forget() -> None:
        library_module.tell.cache_clear()
        usable.cache_clear()

    forget()
    yield
    forget()


def take(monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    """Take a name away from its module or class."""
    module, _, path = place.partition(":")
    *owners, last = path.split(".")
    owner: Any = functools.reduce(getattr, owners, importlib.import_module(module))
    places = [owner, *(owner if isinstance(owner, type) else type(owner)).__mro__]
    monkeypatch.delattr(next(each for each in places if last in vars(each)), last)


def again(monkeypatch: pytest.MonkeyPatch, *modules: str) -> None:
    """Let modules of this package be imported again."""
    for name in modules:
        monkeypatch.delitem(sys.modules, f"synkhronos.{name}", raising=False)
        package, _, last = f"synkhronos.{name}".rpartition(".")
        monkeypatch.delattr(importlib.import_module(package), last, raising=False)


def test_libraries_have_the_names_and_each_last_part_once() -> None:
    assert {each.package for each in libraries()} >= {"numba", "pytensor", "pymc", "nutpie"}
    for library, place in HELD:
        if library is not KERAS:
            library._found(place)
    for library in libraries():
        assert len(library._places) == len(library.lost)


@pytest.mark.parametrize(("library", "place"), TAKEN)
def test_a_name_that_is_gone_is_told_once(
    monkeypatch: pytest.MonkeyPatch, library: Library, place: str
) -> None:
    """Also where what has the name is asked for, such as a class whose method is replaced."""
    owner = min((p for p in library.lost if f"{place}.".startswith(f"{p}.")), key=len)
    if library is KERAS:
        monkeypatch.setenv("KERAS_BACKEND", "jax")
    take(monkeypatch, place)
    with warnings.catch_warnings(record=True, action="always") as told:
        for _ in range(2):
            with optional_gain():
                library.get(owner.replace(":", ".").rpartition(".")[2])
                pytest.fail("it was found")
    [text] = [str(each.message) for each in told if each.category is synk.VersionWarning]
    assert text.startswith(f"{library.lost[place]}: {library.package} ")
    assert f"has no {place.replace(':', '.')}. Install" in text
    assert library.tried in text


def test_loops_compute_inverses_without_lapack(monkeypatch: pytest.MonkeyPatch) -> None:
    take(monkeypatch, "pytensor.link.numba.cache:_call_cached_ptr")
    with pytest.warns(synk.VersionWarning, match="gradients by covariances"):
        found = covariance_loops._inverse_by_lapack(np.dtype("float64"))
    assert found is covariance_loops._inverse_by_loops


@pytest.mark.parametrize(("library", "place"), [x for x in LISTED if x not in HELD])
def test_an_attribute_that_an_object_lacks(library: Library, place: str) -> None:
    name = place.rpartition(".")[2]
    with pytest.raises(NameGone, match=name):
        library.of(object(), name)
    bare = SimpleNamespace()
    with pytest.raises(NameGone, match=name):
        library.put(bare, name, 1)
    assert not vars(bare)
    library.put(having := SimpleNamespace(**{name: 0}), name, 1)
    assert library.of(having, name) == 1


def test_functions_are_replaced_together_or_not_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    owner = SimpleNamespace(a=1, b=2)
    monkeypatch.setitem(sys.modules, "numba.owner", owner)  # type: ignore[arg-type]
    library = Library("numba", "1", {"all": ("numba.owner:a", "numba.owner:b", "numba.owner:c")})
    restore = library.replace({"a": 3, "b": 4})
    assert (owner.a, owner.b) == (3, 4)
    restore()
    with pytest.raises(NameGone):
        library.replace({"a": 3, "c": 4})
    assert (owner.a, owner.b) == (1, 2)
    with pytest.raises(AttributeError, match="not listed"):
        library.get("d")


def test_functions_are_restored_in_any_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was put in place later stays; nothing that was restored comes back."""
    owner = SimpleNamespace(a=1)
    monkeypatch.setitem(sys.modules, "numba.owner", owner)  # type: ignore[arg-type]
    library = Library("numba", "1", {"all": ("numba.owner:a",)})
    restores = [library.replace({"a": value}) for value in (2, 3, 4)]
    restores[0]()
    assert owner.a == 4
    assert [library.is_in_place("a", value) for value in (2, 3)] == [False, True]
    restores[2]()
    assert owner.a == 3
    restores[1]()
    assert owner.a == 1


def test_a_library_that_is_not_there_is_not_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nutpie", None)
    library = Library("nutpie", "1", {"all": ("nutpie.sample:one",)})
    with pytest.raises(ModuleNotFoundError) as error, optional_gain():
        library.get("one")
    assert not isinstance(error.value, NameGone)


LEAN = [f"_compiling.lean.{name}" for name in ("dispatch", "products", "reductions", "shapes")]
GRAPH = [pt.dvector("x") * 2]


@pytest.mark.parametrize(
    ("place", "lost", "modules"),
    [
        ("numba.np.linalg:ensure_blas", "first calls take longer", LEAN),
        ("pytensor.link.numba.cache:compile_numba_function_src", "first calls take longer", LEAN),
        (
            "pytensor.link.utils:fgraph_to_python",
            "loops take longer",
            ["_compiling.vectorised.dispatch"],
        ),
        ("numba.extending:intrinsic", r"lean\.dispatch is not used", LEAN),
    ],
)
def test_code_that_needs_the_name_is_not_used(
    monkeypatch: pytest.MonkeyPatch, place: str, lost: str, modules: list[str]
) -> None:
    take(monkeypatch, place)
    again(monkeypatch, *modules)
    with pytest.warns(synk.VersionWarning, match=lost):
        assert not usable(f"synkhronos.{modules[0]}")


@pytest.mark.parametrize("name", ["Compiler", "_finalize_final_module"])
def test_a_linker_without_code_of_its_own(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    [place] = [place for _, place in HELD if place.endswith(name)]
    monkeypatch.setattr(NumbaLinker, "jit_compile", lambda self, fn: ("plain", fn))
    take(monkeypatch, place)
    again(monkeypatch, "_compiling.lean.own_copies")
    with pytest.warns(synk.VersionWarning, match=name):
        assert LeanLinker().jit_compile((1, None)) == ("plain", (1, None))


def test_a_graph_that_numba_compiles_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NumbaLinker, "fgraph_convert", lambda self, fgraph: "plain")
    take(monkeypatch, "pytensor.link.numba.cache:CACHED_SRC_FUNCTIONS")
    graph: Any = object()
    with (
        pytensor.config.change_flags(numba__cache=True),
        pytest.warns(synk.VersionWarning, match="twice"),
    ):
        assert LeanLinker().fgraph_convert(graph) == "plain"


def test_a_log_density_that_callers_link_again(monkeypatch: pytest.MonkeyPatch) -> None:
    result = SimpleNamespace(
        library=SimpleNamespace(get_pointer_to_function=lambda name: 0),
        fndesc=SimpleNamespace(llvm_func_name="f"),
    )
    made = SimpleNamespace(compile=lambda types: types, overloads={1: result}, _cache=NullCache())
    monkeypatch.setattr(LeanLinker, "jit_compile", lambda self, fn: made)
    with pytest.warns(synk.VersionWarning, match="links a log-density again"):
        assert ClosedLinker().jit_compile(lambda: None).compile(3) == 3
    assert not hasattr(result.library, "_shared_module")


def test_reasons_that_are_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    function = pytensor.function([GRAPH[0].owner.inputs[0]], GRAPH, mode="NUMBA")
    with warnings.catch_warnings(action="error"):
        assert not list(uncacheable(function))
    take(monkeypatch, "pytensor.link.numba.dispatch.basic:NUMBA_CONSTANT_SIZE_LIMIT")
    with pytest.warns(synk.VersionWarning, match="reports do not say"):
        assert not list(uncacheable(function))


def test_threads_of_numba_that_are_not_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    take(monkeypatch, "numba.np.ufunc.parallel:_is_initialized")
    with pytest.warns(synk.VersionWarning, match="is forked"):
        assert not numba_parallel_has_run()


def test_exponentials_that_pytensor_joins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then its own rewrite stays in the mode."""
    take(monkeypatch, "pytensor.tensor.rewriting.math:local_mul_exp_to_exp_add")
    again(monkeypatch, "_compiling.lean.exponentials")
    database = SequenceDB()
    for name in ("canonicalize", "specialize"):
        database.register(name, EquilibriumDB())
    for module in (rewrite, where):
        monkeypatch.setattr(module, "optdb", database)
    with pytest.warns(synk.VersionWarning, match="more exponentials"):
        rewrite.register()
    assert "synkhronos_lean_operations" in database
    assert rewrite.instead() == ()


def test_operations_whose_graphs_stay_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    take(monkeypatch, "pytensor.compile.rewriting:inline_ofg_node")
    graph = FunctionGraph(outputs=[pt.special.softmax(pt.dvector("x"))], clone=False)
    before = graph.outputs[0]
    with pytest.warns(synk.VersionWarning, match="softmax"):
        vectorised_rewrite._open(graph)
    assert graph.outputs[0] is before


def test_an_operation_that_pickles_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    op = FromFunctionOp(math.sqrt, [pt.dscalar], [pt.dscalar], None)
    assert shipping._reduce_wrapped(op)[1][0] is math.sqrt
    monkeypatch.setattr(FromFunctionOp, "__reduce__", lambda self: "as it does")
    del op._FromFunctionOp__fn
    with pytest.warns(synk.VersionWarning, match="wrap_py"):
        assert shipping._reduce_wrapped(op) == "as it does"


def test_graphs_without_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """A key without the code of operations would be that of other code."""
    take(monkeypatch, "pytensor.link.numba.dispatch.basic:numba_funcify")
    with (
        pytest.warns(synk.VersionWarning, match="kept for later runs"),
        pytest.raises(Unkeyed, match="code of operations"),
    ):
        contents.numba_code()


def test_jax_without_private_names(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("jax")
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    take(monkeypatch, "jax._src.xla_bridge:_backends")
    with pytest.warns(synk.VersionWarning, match="JAX has run is forked"):
        assert not jax_backend.has_run()
    take(monkeypatch, "jax:config._read")
    with pytest.warns(synk.VersionWarning, match="JAX's option"):
        assert jax_backend._option("JAX_PLATFORMS") == "cpu"


def test_callbacks_of_a_study_that_cannot_be_stopped() -> None:
    study: Any = SimpleNamespace()
    called: list[Any] = []
    with pytest.warns(synk.VersionWarning, match="_stop_flag"):
        assert not call_back(study, None, [lambda *given: called.append(given)])
    assert called == [(study, None)]
    assert not vars(study)


def test_chains_whose_table_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    take(monkeypatch, "pymc.sampling.mcmc:NutpieProgressBarManager")
    records = progress.ChainRecords(fd := os.memfd_create("records"), 1)
    os.close(fd)
    with pytest.warns(synk.VersionWarning, match="how far they are"):
        progress.write_progress(records)
    with progress.table(2, {}) as shown:
        shown.update([])


def test_models_of_a_map_that_are_each_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    take(monkeypatch, "pymc.model.fgraph:fgraph_from_model")
    again(monkeypatch, "pymc._map.one_graph")
    found = Compilations()
    monkeypatch.setattr(found, "_compile", lambda model, **given: model)
    with pytest.warns(synk.VersionWarning, match="models with one graph are each compiled"):
        assert found.compiled(model := pm.Model(), backend="numba") is model
    assert found.count == 1


def test_a_pymc_whose_functions_are_not_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    take(monkeypatch, "pymc.sampling.mcmc:assign_step_methods")
    compile_model = nutpie.compile_pymc_model
    with pytest.warns(synk.VersionWarning, match="assign_step_methods"), Compilations():
        assert nutpie.compile_pymc_model is compile_model


def test_a_density_without_its_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    """It joins the graph, rewritten as far as PyTensor's own rewrites do."""
    x = pt.dvector("x")
    graph = FunctionGraph([x], [Density([x], [pt.exp(x).sum()], (True,))(x)], clone=False)
    take(monkeypatch, "pytensor.compile.mode:_ActiveModeGraphRewriter")
    with (
        pytensor.config.change_flags(mode="NUMBA"),
        pytest.warns(synk.VersionWarning, match="_ActiveModeGraphRewriter"),
        pytest.warns(synk.VersionWarning, match="_compile_mode"),
    ):
        join_density.rewrite(graph)
    assert not any(isinstance(node.op, Density) for node in graph.apply_nodes)


def test_gradients_amid_sampling(monkeypatch: pytest.MonkeyPatch) -> None:
    gradient = Gradient(SimpleNamespace(_pytensor_function=lambda point: (0.0, point)), np.ones(2))
    assert gradient().tolist() == [1.0, 1.0]
    take(monkeypatch, "pymc.step_methods.hmc.integration:CpuLeapfrogIntegrator")
    with pytest.warns(synk.VersionWarning, match="NUTS's own work"):
        assert gradient.amid_sampling() is gradient
    with pytest.raises(NameGone, match="gradient is not measured"):
        Gradient(object(), np.ones(2))()
