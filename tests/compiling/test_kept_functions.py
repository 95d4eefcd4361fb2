"""Functions that were made before: the same bits, without rewriting, compiling, or numba."""

from __future__ import annotations

import logging
import pickle
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import kept_function
import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from kept_function import MODE, X, made
from pytensor.compile.maker import FunctionMaker
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op

import synkhronos as synk
from synkhronos._compiling import compile_cache
from synkhronos._compiling.kept import machine_code
from synkhronos._compiling.kept.folder import Folder
from synkhronos._compiling.kept.functions import KeptMaker
from synkhronos._compiling.kept.image import Image, NotLoadable
from synkhronos._compiling.lean.closed import ClosedLinker
from synkhronos._compiling.lean.mode import with_lean
from synkhronos.ops._ready import in_order


def bits(values: Any) -> list[tuple[str, bytes]]:
    return [(v.dtype.str, v.tobytes()) for v in values]


@pytest.fixture
def unrewritten(monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph that must not be rewritten."""

    def rewritten(*_: object) -> None:
        raise AssertionError("the graph was rewritten")

    monkeypatch.setattr(FunctionMaker, "prepare_fgraph", staticmethod(rewritten))


def test_a_function_that_was_made_before(keeping: Folder, request: Any) -> None:
    """The same bits; its variables are the new function's own."""
    first = made()
    expected = bits(first(X))
    request.getfixturevalue("unrewritten")
    second = made(2.0)
    assert type(second.maker) is KeptMaker
    assert not hasattr(second.vm.jit_fn, "py_func")
    assert bits(second(X)) != expected
    [w] = second.get_shared()
    w.set_value(np.ones((4, 2)))
    assert bits(second(X)) == expected
    assert keeping.size()[0] == 1
    assert second.maker.fgraph.toposort()[0].op == first.maker.fgraph.toposort()[0].op


FRESH = """
import platform
import sys
from pathlib import Path
from types import ModuleType
from synkhronos._compiling.kept import folder
folder.place = lambda: Path(sys.argv[1])
sys.path.append(sys.argv[2])
from kept_function import X, made

def has_numba():
    names = {name.split(".")[0] for name in sys.modules}
    return "numba" in names or ("llvmlite" in names and platform.machine() == "x86_64")

f = made()
print([v.tobytes().hex() for v in f(X)], has_numba())
try:
    f(X[:, :3])
except ValueError as exc:
    print(str(exc).splitlines()[0])
print(f(X.copy(order="F"))[0].tobytes().hex(), has_numba())
"""


def test_another_process_imports_no_numba(keeping: Folder) -> None:
    """Also for another layout, and to raise an error: results and message are the same."""
    f = made()
    values = f(X)
    with pytest.raises(ValueError, match="dot") as raised:
        f(X[:, :3])
    fortran = f(X.copy(order="F"))[0]
    support = Path(kept_function.__file__).parent
    given = [sys.executable, "-P", "-c", FRESH, str(keeping.path), str(support)]
    told = subprocess.run(given, check=True, capture_output=True, text=True).stdout.splitlines()
    assert told == [
        f"{[v.tobytes().hex() for v in values]} False",
        str(raised.value).splitlines()[0],
        f"{fortran.tobytes().hex()} False",
    ]


def test_llvm_places_code_for_other_processors(
    keeping: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several functions at once, each with its own callable for other arguments."""

    def no_image(*_: object) -> None:
        raise NotLoadable("it is for another processor")

    monkeypatch.setattr(Image, "of", no_image)
    expected = bits(made()(X))
    made(2.0)
    fortran = np.asfortranarray(X[:, ::-1])
    again = [made(1.0), made(2.0)]
    assert [bits(f(X)) for f in again] == [expected, bits(made(2.0)(X))]
    assert bits(again[1](fortran)) != bits(again[0](fortran)) == bits(made()(fortran))
    assert not hasattr(again[0].vm.jit_fn, "py_func")


def test_arguments_of_other_types_are_compiled_for(
    keeping: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also these are kept; and what numba refuses, it refuses."""
    plain = made()
    plain(X)
    second = made()
    kernel, dispatcher = second.vm.jit_fn, plain.vm.jit_fn
    w = np.ones((4, 2))
    read_only = X.copy()
    read_only.flags.writeable = False
    swapped = X.astype(X.dtype.newbyteorder())
    unpickled = pickle.loads(pickle.dumps(X))
    strided = np.repeat(X, 2, axis=1)[:, ::2]
    for given in (X, unpickled, X[:0], np.asfortranarray(X), strided, read_only):
        assert bits(kernel(given, w)) == bits(dispatcher(given, w))
    for wrong in (
        (swapped, w),
        (1.0, w),
        (np.float64(1), w),
        (None, w),
        (X,),
        (X, w, w),
        (X[0], w),
    ):
        with pytest.raises((TypeError, NotImplementedError, ValueError, Exception)):
            dispatcher(*wrong)
        with pytest.raises((TypeError, NotImplementedError, ValueError, Exception)):
            kernel(*wrong)
    third = made()
    monkeypatch.setattr(machine_code, "code_of", None)  # of what is compiled
    assert bits(third.vm.jit_fn(strided, w)) == bits(dispatcher(strided, w))


@pytest.mark.parametrize(
    "options",
    [
        {"name": "f"},
        {"allow_input_downcast": True},
        {"on_unused_input": "ignore"},
        {"trust_input": True},
    ],
    ids=lambda options: next(iter(options)),
)
def test_options_are_those_of_the_call(keeping: Folder, options: dict[str, Any]) -> None:
    expected = bits(made()(X))
    found = made(**options)
    assert found.name == options.get("name")
    assert bits(found(X)) == expected
    if "allow_input_downcast" in options:
        found(X.astype("longdouble"))


def test_an_input_that_is_not_used_is_refused(keeping: Folder) -> None:
    x, y = pt.vector("x"), pt.vector("y")
    for _ in range(2):
        pytensor.function([x, y], x + 1, mode=MODE, on_unused_input="ignore")
        with pytest.raises(pytensor.compile.UnusedInputError, match="y"):
            pytensor.function([x, y], x + 1, mode=MODE)


@pytest.mark.parametrize("mutable", [False, True])
def test_what_may_be_overwritten(keeping: Folder, mutable: bool) -> None:
    """It is a part of the key, whichever comes first."""
    x = pt.vector("x", dtype="float64")
    for each in (mutable, not mutable, mutable):
        given = np.ones(3)
        f = pytensor.function([pytensor.In(x, mutable=each)], pt.exp(x) + 1, mode=MODE)
        f(given)
        assert (given == 1).all() or each
    assert keeping.size()[0] == 2


def test_updates_givens_and_random_numbers(keeping: Folder) -> None:
    """Each function has its own variables, and each call moves them. Machine code is kept, too."""
    of_numba: list[bool] = []

    def run() -> list[Any]:
        x, y = pt.vector("x", dtype="float64"), pt.vector("y", dtype="float64")
        count = pytensor.shared(np.zeros(3), name="count")
        rng = pytensor.shared(np.random.default_rng(5), name="rng")
        after, drawn = pt.random.normal(rng=rng, size=(3,), return_next_rng=True)
        f = pytensor.function(
            [x],
            [drawn + y, count],
            givens={y: 2 * x},
            updates={count: count + y, rng: after},
            mode=MODE,
        )
        values = [*f(np.ones(3)), *f(np.ones(3))]
        of_numba.append(hasattr(f.vm.jit_fn, "py_func"))
        return [
            *bits(values),
            *bits([count.get_value()]),
            rng.get_value().bit_generator.state["state"],
        ]

    expected = run()
    assert run() == expected == run()
    assert of_numba == [True, False, False]
    assert keeping.size()[0] == 1


class OfUser(np.random.Generator):
    """numba's own code takes it as well."""


def test_generators_are_released_and_others_are_numba_s(keeping: Folder) -> None:
    rng = pytensor.shared(np.random.default_rng(5), name="rng")
    after, drawn = pt.random.poisson(3.0, rng=rng, size=(4,), return_next_rng=True)
    plain = pytensor.function([], drawn, updates={rng: after}, mode=MODE)
    plain()
    kept = pytensor.function([], drawn, updates={rng: after}, mode=MODE)
    found = []
    for function in (plain, kept):
        for kind in (np.random.Generator, OfUser):
            given = kind(np.random.PCG64(7))
            before = sys.getrefcount(given)
            found.append([function.vm.jit_fn(given)[0].tolist() for _ in range(3)])
            assert sys.getrefcount(given) == before
    assert found == [found[0]] * 4
    assert not hasattr(kept.vm.jit_fn, "py_func")


def test_no_value_of_a_shared_variable_is_kept(keeping: Folder) -> None:
    made(np.pi)(X)
    [file] = keeping.path.iterdir()
    assert np.float64(np.pi).tobytes() not in file.read_bytes()


def test_the_rest_of_an_entry_may_be_wrong(
    keeping: Folder, caplog: pytest.LogCaptureFixture
) -> None:
    """Then the function is made anew, and kept."""
    caplog.set_level(logging.DEBUG, "synkhronos")
    expected = bits(made()(X))
    [file] = keeping.path.iterdir()
    key, entry = file.stem, keeping.read(file.stem)
    assert entry is not None
    graph, codes = pickle.loads(entry)
    harmed = [
        b"no pickle",
        pickle.dumps((b"no graph", codes)),
        pickle.dumps((graph, [_replaced(codes[0], symbols=("no_such_function",))])),
    ]
    for each in harmed:
        keeping.write(key, each)
        assert bits(made()(X)) == expected
    assert "is not used" in caplog.text
    keeping.write(key, harmed[0])
    made()(X)
    assert keeping.read(key) is not None


def _replaced(code: Any, **changes: Any) -> Any:
    return type(code)(**{**vars(code), **changes})


class Local(Op):
    """An operation that holds what cannot be pickled, or has no key."""

    __props__ = ("held",)

    def __init__(self, held: object) -> None:
        self.held = held

    def make_node(self, x: Any) -> Apply:
        return Apply(self, [x], [x.type()])

    def perform(self, node: Apply, inputs: Any, outputs: Any) -> None:
        outputs[0][0] = inputs[0] + 1


@pytest.mark.filterwarnings("ignore:Numba will use object mode")
@pytest.mark.parametrize("held", ["function", "file"])
def test_what_cannot_be_kept_is_made_as_ever(
    keeping: Folder, caplog: pytest.LogCaptureFixture, held: str
) -> None:
    caplog.set_level(logging.DEBUG, "synkhronos")
    x = pt.vector("x", dtype="float64")
    op = Local((lambda: 1) if held == "function" else sys.stdout)
    f = pytensor.function([x], op(x), mode=MODE)
    assert f(np.ones(2)).tolist() == [2, 2]
    assert "is not kept" in caplog.text
    assert keeping.size()[0] == 0


def test_functions_that_numba_calls_are_numba_s(keeping: Folder) -> None:
    """Their rewritten graph is kept alone."""
    x = pt.vector("x", dtype="float64")
    mode = with_lean(pytensor.compile.Mode(ClosedLinker(), MODE.provided_optimizer))
    for _ in range(2):
        f = pytensor.function([x], x + 1, mode=mode)
        assert f(np.ones(2)).tolist() == [2, 2]
        assert hasattr(f.vm.jit_fn, "py_func")


def test_a_group_s_functions_are_kept(keeping: Folder) -> None:
    """Each member loads what the first run left; results are the same."""

    def run() -> tuple[bytes, bytes]:
        x = pt.matrix("x", dtype="float64")
        w = pytensor.shared(np.ones(4), name="w")
        with synk.Group(2):
            new = w - 0.1 * x.mean(axis=0)
            f = synk.function([x], (x * w).mean(), updates=[(w, new, "avg", "all")], mode="NUMBA")
            values = [f(X) for _ in range(3)]
        return np.asarray(values).tobytes(), w.get_value().tobytes()

    first = run()
    entries = keeping.size()
    assert entries[0] > 0
    assert run() == first
    assert keeping.size() == entries


def test_numba_is_imported_before_workers_start_unless_functions_are_kept(
    keeping: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So forked workers have it, and a run that compiles nothing never imports it."""
    asked: list[str] = []
    monkeypatch.setattr(compile_cache, "usable", asked.append)
    with pytensor.config.change_flags(mode="NUMBA"):
        compile_cache.import_numba()
        assert len(asked) == 1
        keeping.write("0a", b"")
        compile_cache.import_numba()
    assert len(asked) == 1


def test_a_graph_in_an_exact_order_is_not_kept(keeping: Folder) -> None:
    """The order is no part of a pickle: gradients of which members tell while they compute."""
    x = pt.vector("x", dtype="float64")
    outputs, _ = in_order([pt.exp(x), pt.tanh(x)])
    for _ in range(2):
        f = pytensor.function([x], outputs, mode=MODE)
        assert f.maker.kept is not None
    assert keeping.size()[0] == 0


def test_numba_that_another_thread_imports_meanwhile_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = ModuleType("numba")
    monkeypatch.setitem(sys.modules, "numba", theirs)
    for name in ("numba", "numba.core.serialize"):
        monkeypatch.delitem(sys.modules, name, raising=False)

    def pickled(_: object) -> bytes:
        sys.modules["numba"] = theirs
        return b""

    monkeypatch.setattr(machine_code, "pickled", pickled)
    monkeypatch.setattr(machine_code.ctypes, "PYFUNCTYPE", lambda *_: lambda _: lambda *_: None)
    machine_code._lend_unpickling(0)
    assert sys.modules["numba"] is theirs
    assert "numba.core.serialize" not in sys.modules
