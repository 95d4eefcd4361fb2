"""Keys of graphs: equal in every process, and different for whatever changes code."""

from __future__ import annotations

import copy
import importlib
import io
import json
import os
import platform
import re
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import nullcontext
from importlib import metadata
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import keyed_graphs as graphs
import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from keyed_graphs import GRAPHS, Scaled, X, Y, drawn, inner, key, looped, scaled_by, shared
from pytensor.compile.mode import Mode, optdb
from pytensor.graph.rewriting.basic import (
    EquilibriumGraphRewriter,
    GraphRewriter,
    dfs_rewriter,
    node_rewriter,
)
from pytensor.misc.ordered_set import OrderedSet

from synkhronos._compiling.kept import keys, packages, processor
from synkhronos._compiling.kept.contents import _made_of
from synkhronos._compiling.kept.digests import Unkeyed
from synkhronos._compiling.kept.keys import graph_key
from synkhronos._compiling.lean.mode import lean
from synkhronos._libraries import imported
from synkhronos._libraries.pytensor import PYTENSOR


def test_keys_are_equal_in_every_process() -> None:
    """Whatever the order of sets and the addresses of objects are there."""
    seed = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"
    command = [sys.executable, "-P", str(Path(graphs.__file__))]
    told = subprocess.run(
        command, env={**os.environ, "PYTHONHASHSEED": seed}, check=True, capture_output=True
    )
    there = json.loads(told.stdout)
    # in a script the functions have the module `__main__`
    assert there == {name: made() for name, made in GRAPHS.items()}
    assert all(re.fullmatch("[0-9a-f]{40}", each) for each in there.values())
    assert len(set(there.values())) == len(there)


def told(triangular: bool) -> Any:
    """A matrix, of which rewrites know by a tag whether it is triangular."""
    found = pt.outer(X, X)
    found.tag.lower_triangular = triangular
    return found


PAIRS: dict[str, tuple[Callable[[], str], Callable[[], str]]] = {
    "what is known of a result": (lambda: key(told(True)), lambda: key(told(False))),
    "operation": (lambda: key(X + Y), lambda: key(X - Y)),
    "property": (lambda: key(X.sum()), lambda: key(X.sum(axis=0))),
    "attribute": (lambda: key(Scaled(2.0)(X)), lambda: key(Scaled(3.0)(X))),
    "order": (lambda: key(X - Y), lambda: key(Y - X)),
    "scalar in a loop": (lambda: key(looped()), lambda: key(looped(factor=3.0))),
    "inner graph": (lambda: key(inner()), lambda: key(inner(3.0))),
    "constant": (lambda: key(X * 2.0), lambda: key(X * 3.0)),
    "dtype of a constant": (
        lambda: key(X * np.float64(2)),
        lambda: key(X * np.float32(2)),
    ),
    "shape of a constant": (
        lambda: key(X * np.ones(1)),
        lambda: key(X * np.ones((1, 1))),
    ),
    "parameter of draws": (lambda: key(drawn()), lambda: key(drawn(2.0))),
    "dtype of an input": (
        lambda: key(X.sum()),
        lambda: key((x := pt.vector("x", dtype="float32")).sum(), inputs=[x, Y]),
    ),
    "static shape": (
        lambda: key(X.sum()),
        lambda: key((x := pt.vector("x", dtype="float64", shape=(3,))).sum(), inputs=[x, Y]),
    ),
    "name": (
        lambda: key(X.sum()),
        lambda: key((x := pt.vector("z", dtype="float64")).sum(), inputs=[x, Y]),
    ),
    "place of an input": (lambda: key(X - Y), lambda: key(X - Y, inputs=[Y, X])),
    "type of a shared variable": (lambda: key(shared() * X), lambda: key(shared("w", "int8") * X)),
    "name of a shared variable": (lambda: key(shared() * X), lambda: key(shared("v") * X)),
    "one shared variable": (
        lambda: key((w := shared()) + w),
        lambda: key(shared() + shared()),
    ),
    "linker": (lambda: key(X, Mode("vm", "fast_run")), lambda: key(X, Mode("py", "fast_run"))),
    "rewrites": (
        lambda: key(X, lean("NUMBA")),
        lambda: key(X, lean("NUMBA").excluding("fusion")),
    ),
    "code of a function": (
        lambda: key(X, lambda x: x * 2),
        lambda: key(X, lambda x: x + 2),
    ),
    "closure": (lambda: key(X, scaled_by(2.0)), lambda: key(X, scaled_by(3.0))),
    "global": (lambda: key(X, _with_global(2.0)), lambda: key(X, _with_global(3.0))),
    "option": (lambda: key(X, "borrow"), lambda: key(X, None)),
}


def _with_global(factor: float) -> Any:
    names: dict[str, Any] = {"factor": factor}
    exec("def function(x):\n    return x * factor", names)
    return names["function"]


@pytest.mark.parametrize("name", PAIRS)
def test_what_changes_code_changes_the_key(name: str) -> None:
    one, other = PAIRS[name]
    assert one() == one()
    assert other() == other()
    assert one() != other()


def test_a_hash_that_was_noted_is_no_part_of_it() -> None:
    """PyTensor's dicts of properties note it, and it differs between processes."""
    before = key(pt.exp(X))
    hash(pt.exp(X).owner.op)
    assert key(pt.exp(X)) == before


def test_values_of_shared_variables_are_no_part_of_it() -> None:
    assert key(shared(value=1.0) * X) == key(shared(value=2.0) * X)


def test_operations_of_the_user_count_with_their_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also with what has been registered for their class."""
    before = key(Scaled(2.0)(X))
    with monkeypatch.context() as patch:
        patch.setattr(Scaled, "perform", lambda self, node, inputs, outputs: None)
        assert key(Scaled(2.0)(X)) != before
    assert key(Scaled(2.0)(X)) == before

    class Registry:
        @staticmethod
        def dispatch(kind: type) -> Any:
            return scaled_by(2.0) if kind is Scaled else None

    assert graph_key([X, Y], [Scaled(2.0)(X)], registries=[Registry]) != before


class _Changed:
    """PyTensor's flags, and another value of one."""

    def __init__(self, name: str) -> None:
        assert hasattr(pytensor.config, name)
        self._name = name

    def __getattr__(self, name: str) -> object:
        return "another" if name == self._name else getattr(pytensor.config, name)


def test_the_machine_is_a_part_of_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Versions, this package's own files, the processor, settings of numba, PyTensor's flags."""
    before = keys.machine()

    def now() -> str:
        for each in (keys._lasting, packages.versions, processor.processor):
            each.cache_clear()
        return keys.machine()

    assert now() == before
    assert {"numpy", "pytensor", "pymc", "numba", "llvmlite", "nutpie"} < set(packages._VERSIONS)
    for name in packages._VERSIONS:
        with monkeypatch.context() as patch:
            known = packages.version
            patch.setattr(packages, "version", lambda n, k=known, o=name: "0" if n == o else k(n))
            assert now() != before, name
    with monkeypatch.context() as patch:
        patch.setattr(sys, "version", "4.0")
        assert now() != before
    for owner, name, value in (
        (sys, "platform", "another"),
        (os, "confstr", lambda name: "another"),
        (platform, "machine", lambda: "another"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, value)
            assert now() != before, name
    with monkeypatch.context() as patch:
        patch.setattr(processor, "_told_by_linux", lambda: ("flags : another",))
        assert now() != before
        patch.setattr(processor, "_told_by_linux", tuple)
        of_llvm = now()
        patch.setattr("llvmlite.binding.get_host_cpu_name", lambda: "another")
        assert now() not in (before, of_llvm)
        patch.undo()
        patch.setattr(processor, "_told_by_linux", tuple)
        patch.setattr("llvmlite.binding.get_host_cpu_features", dict)
        assert now() not in (before, of_llvm)
    with monkeypatch.context() as patch:
        patch.setenv("NUMBA_OPT", "0")
        assert now() != before
    with monkeypatch.context() as patch:
        patch.setattr(processor.ctypes, "CDLL", lambda name: None)
        patch.setattr("llvmlite.binding.targets.has_svml", lambda: False)
        assert now() == before
        patch.setattr("llvmlite.binding.targets.has_svml", lambda: True)
        assert now() != before
    with monkeypatch.context() as patch:
        (tmp_path / "edited.py").write_text("")
        patch.setattr(sys.modules["synkhronos"], "__path__", [str(tmp_path)])
        assert now() != before
    assert {"floatX", "numba__fastmath", "optimizer", "optimizer_excluding"} < set(keys._FLAGS)
    for name in keys._FLAGS:
        with monkeypatch.context() as patch:
            patch.setattr(keys, "pytensor", SimpleNamespace(config=_Changed(name)))
            assert now() != before, name
    assert now() == before


@pytest.mark.skipif(sys.platform != "linux", reason="LLVM tells of the processor")
def test_what_linux_says_of_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same at each time: no clock speed and no number of a core."""
    before = processor._told_by_linux()
    names = [each.partition(":")[0].strip() for each in before if ":" in each]
    assert {"flags", "Features"} & set(names)
    assert not {"cpu MHz", "bogomips", "processor", "apicid", "core id"} & set(names)
    assert len(names) == len(set(names))
    text = "".join(each for each in before if ":" in each)

    def told(text: str) -> tuple[str, ...]:
        monkeypatch.setattr(processor, "open", lambda *_, **__: io.StringIO(text), raising=False)
        return processor._told_by_linux()

    assert told(f"processor : 7\n{text}cpu MHz : 12\n\nflags : of the next one\n") == before
    assert told(re.sub(r"((flags|Features)\s*:.*)", r"\1 more", text)) != before
    assert told("processor : 0\nvendor_id : IBM/S390\n") == ()


def test_features_that_an_emulator_leaves_out(monkeypatch: pytest.MonkeyPatch) -> None:
    before = processor._told_by_linux()
    features = processor.NUMPY.get("__cpu_features__")
    [found, *_] = [name for name, is_there in features.items() if is_there]
    monkeypatch.setitem(features, found, False)
    assert processor._told_by_linux() == tuple(each for each in before if each != found)


def test_versions_by_the_names_of_folders(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As `importlib.metadata` says, and the first one on the path; others are asked of it."""
    for name in packages._VERSIONS:
        if packages.version(name) is not None:
            assert packages.version(name) == metadata.version(name)
    for name in ("first/Some_Package-1.2.dist-info", "second/some_package-2.0.dist-info"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "second" / "linked.egg-info").mkdir()
    (tmp_path / "second" / "linked.egg-info" / "PKG-INFO").write_text("Version: 3.4\nName: linked")
    (tmp_path / "first" / "gone.egg-link").write_text("/no/folder")
    paths = [str(tmp_path / "missing"), str(tmp_path / "first"), str(tmp_path / "second")]
    monkeypatch.setattr(sys, "path", paths)
    packages._installed.cache_clear()
    try:
        found = [packages.version(name) for name in ("some-package", "linked", "gone", "absent")]
    finally:
        monkeypatch.undo()
        packages._installed.cache_clear()
    assert found == ["1.2", "3.4", None, None]


@pytest.mark.parametrize("note", [None, "numba.egg-info", "numba-1.0.dist-info"])
def test_edits_of_a_checkout_count(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, note: str | None
) -> None:
    """Its version stays the same; what an installer has put beside a version is not looked at."""
    place = tmp_path / "place"
    (place / "numba").mkdir(parents=True)
    for name in filter(None, ["../numba-1.0.dist-info", note]):
        (place / name).mkdir()
        (place / name / "PKG-INFO").write_text("Version: 1.0\nName: numba")
    found = SimpleNamespace(submodule_search_locations=[str(place / "numba")])
    monkeypatch.setattr(packages, "find_spec", lambda name: found if name == "numba" else None)
    monkeypatch.setattr(sys, "path", [str(place), str(tmp_path)])
    monkeypatch.setattr(imported, "start", lambda: sys.maxsize)  # as in a process that comes later
    packages._installed.cache_clear()
    try:
        before = packages.versions.__wrapped__()
        (place / "numba" / "edited.py").write_text("")
        after = packages.versions.__wrapped__()
    finally:
        monkeypatch.undo()
        packages._installed.cache_clear()
    assert (before == after) == (note == "numba-1.0.dist-info")


@pytest.mark.parametrize(
    ("changed", "is_loaded", "is_before", "is_release", "is_refused"),
    [
        (0, True, True, False, False),
        (1, True, True, False, True),
        (1, True, True, True, False),  # a notebook that installs it first, and then imports it
        (1, True, False, False, False),
        (2, True, False, True, True),
        (2, False, False, False, False),
    ],
)
def test_packages_that_were_changed_after_their_import_have_no_key(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    changed: int,
    is_loaded: bool,
    is_before: bool,
    is_release: bool,
    is_refused: bool,
) -> None:
    """Changed before the process started (0), before the import of this package (1), or later."""
    (tmp_path / "edited").mkdir()
    file = tmp_path / "edited" / "module.py"
    file.write_text("")
    os.utime(file, ns=(0, 0))  # as what copies files with their times does
    at = file.stat().st_ctime_ns
    monkeypatch.setattr(imported, "start", lambda: at + (changed < 1))
    monkeypatch.setattr(imported, "AT", at + (changed < 2))
    monkeypatch.setattr(imported, "BEFORE", {"edited"} if is_before else set())
    if is_loaded:
        monkeypatch.setitem(sys.modules, "edited", ModuleType("edited"))
    place = os.path.realpath(tmp_path) if is_release else ""
    monkeypatch.setattr(packages, "_installed", lambda: {"edited": ("1.0", place)})
    with pytest.raises(Unkeyed, match="after its import") if is_refused else nullcontext():
        packages.sources_in(str(tmp_path / "edited"))


def test_a_package_that_was_upgraded_after_its_import_has_no_key(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(np, "__version__", "0.1")
    packages._refuse_upgraded()  # the folder is older, so it is the same version in other words
    monkeypatch.setattr(imported, "start", lambda: 0)
    with pytest.raises(Unkeyed, match=f"numpy {metadata.version('numpy')} .* import of 0.1"):
        packages._refuse_upgraded()


def test_the_start_of_a_process_is_that_of_its_memory() -> None:
    """A process that was forked has the modules of the one that it was forked from."""
    code = "\n".join(
        [
            "import os, time",
            "from synkhronos._libraries import imported",
            "time.sleep(0.05)",
            "if os.fork() == 0:",
            "    print(imported.start(), imported.AT)",
            "else:",
            "    os.wait()",
        ]
    )
    before = time.time_ns()
    told = subprocess.run([sys.executable, "-P", "-c", code], check=True, capture_output=True)
    start, at = map(int, told.stdout.split())
    assert before - 20_000_000 < start < at < time.time_ns()  # in ticks of a hundredth
    assert before < at - 5_000_000


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Any]:
    """Writes modules of the user, imports them anew, and returns the last one."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def write(**texts: str) -> Any:
        for name, text in texts.items():
            (tmp_path / f"{name}.py").write_text(text)
        found = None
        for name in ("of_user_factor", "of_user"):
            monkeypatch.delitem(sys.modules, name, raising=False)
            if (tmp_path / f"{name}.py").exists():
                importlib.invalidate_caches()
                found = importlib.import_module(name)
                monkeypatch.setitem(sys.modules, name, found)
        return found

    return write


def _scaling(module: Any) -> Any:
    return lambda x: module.scale(x)


def _asking(module: Any) -> Any:
    return lambda x: getattr(module, "sc" + "ale")(x)


SCALE = "from of_user_factor import FACTOR\ndef scale(x):\n    return FACTOR * x\n"


@pytest.mark.parametrize("reader", [_scaling, _asking, lambda module: {"module": module}])
def test_modules_of_the_user_count_as_they_are_in_memory(
    written: Callable[..., Any], tmp_path: Path, reader: Callable[[Any], object]
) -> None:
    """With what they take from other modules; their files may be newer than their code."""
    first = written(of_user=SCALE, of_user_factor="FACTOR = 2.0")
    before = key(X, reader(first))
    second = written(of_user_factor="FACTOR = 3.0")
    after = key(X, reader(second))
    assert after != before
    assert key(X, reader(first)) == before
    second.FACTOR = 2.0
    assert key(X, reader(second)) == before
    third = written(of_user=SCALE.replace("*", "-"), of_user_factor="FACTOR = 2.0")
    assert key(X, reader(third)) not in (before, after)
    again = written(of_user=f"import of_user\n{SCALE}", of_user_factor="FACTOR = 2.0")
    again.of_user = again  # it leads back to itself
    assert key(X, reader(again)) == key(X, reader(again)) not in (after, key(X, reader(third)))


LATE = """
def scale(x):
    import json, xml.etree
    if json is None:
        from not_there import factor
    return [(lambda y: {0} * y)(x) for _ in "1"]
"""


@pytest.mark.parametrize("factor", ["of_user_factor.FACTOR", "FACTOR"])
def test_modules_that_a_function_imports_when_it_runs(
    written: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, factor: str
) -> None:
    statement = "import of_user_factor" if "." in factor else "from of_user_factor import FACTOR"
    text = LATE.format(factor).replace("import json", f"{statement}\n    import json")
    first = key(X, _scaling(written(of_user_factor="FACTOR = 2.0", of_user=text)))
    assert key(X, _scaling(written(of_user_factor="FACTOR = 3.0"))) != first
    found = written(of_user_factor="FACTOR = 2.0")
    assert key(X, _scaling(found)) == first
    monkeypatch.delitem(sys.modules, "of_user_factor")
    with pytest.raises(Unkeyed, match="scale imports of_user_factor when it is called"):
        key(X, _scaling(found))


EDITED = """
import sys
from pathlib import Path
sys.path.append(sys.argv[1])
import of_user
for text in sys.argv[2:]:
    Path(of_user.__file__).write_text(text)
from synkhronos._compiling.kept.keys import graph_key
print(graph_key([], [], lambda x: of_user.scale(x)))
"""


def test_a_module_that_was_edited_after_its_import_has_not_the_key_of_its_file(
    tmp_path: Path,
) -> None:
    """Else a later process would take code for its own that was made of the older module."""
    (tmp_path / "of_user.py").write_text("def scale(x):\n    return 2.0 * x\n")
    given = [sys.executable, "-P", "-B", "-c", EDITED, str(tmp_path)]
    edits = (["def scale(x):\n    return 3.0 * x\n"], [])
    runs = [subprocess.run([*given, *e], check=True, capture_output=True) for e in edits]
    assert runs[0].stdout != runs[1].stdout


def test_names_that_code_does_not_read_are_no_part_of_it(written: Callable[..., Any]) -> None:
    one = written(of_user=f"{SCALE}OTHER = (n for n in ())", of_user_factor="FACTOR = 2.0")
    other = written(of_user=SCALE)
    assert key(X, _scaling(one)) == key(X, _scaling(other))
    with pytest.raises(Unkeyed, match=r"generator'> has no key"):
        key(X, _asking(one))


def test_numba_s_code_by_the_user_is_a_part_of_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also for an operation of PyTensor's, whose class counts by its name."""
    operation = type((X + Y).owner.op)
    before, registry = key(X + Y), PYTENSOR.get("numba_funcify")
    own = registry.dispatch(operation)

    def by_the_user(*_: object, **__: object) -> None: ...

    registry.register(operation, by_the_user)
    try:
        assert key(X + Y) != before
    finally:
        registry.register(operation, own)
    assert key(X + Y) == before


def _of_equilibrium(rewriter: Any) -> GraphRewriter:
    return EquilibriumGraphRewriter([rewriter], max_use_ratio=2)


@pytest.mark.parametrize(
    ("inner", "given", "made"),
    [
        ("", {"position": 1}, dfs_rewriter),
        ("", {"position": 1}, _of_equilibrium),
        ("canonicalize", {}, dfs_rewriter),
    ],
)
def test_rewrites_of_the_user_are_a_part_of_a_mode(
    monkeypatch: pytest.MonkeyPatch,
    inner: str,
    given: dict[str, int],
    made: Callable[[Any], GraphRewriter],
) -> None:
    """Those of packages are registered when these are imported, for their own operations."""
    before = first = key(X, lean("NUMBA"))
    database = next(iter(optdb.__db__[inner])) if inner else optdb
    known = {tag: OrderedSet(those) for tag, those in database.__db__.items()}
    monkeypatch.setattr(database, "__db__", defaultdict(OrderedSet, known))
    monkeypatch.setattr(database, "_names", copy.copy(database._names))
    for factor in (2.0, 3.0):
        rewriter = made(node_rewriter(None)(_with_global(factor)))
        database.register("of_the_user", rewriter, "numba", overwrite_existing=factor > 2, **given)
        after = key(X, lean("NUMBA"))
        assert after != before
        before = after
    monkeypatch.undo()
    assert key(X, lean("NUMBA")) == first


def test_a_rewrite_that_leads_back_to_itself_is_looked_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rewriter = dfs_rewriter(node_rewriter(None)(_with_global(2.0)))
    monkeypatch.setattr(rewriter.node_rewriter, "node_rewriter", rewriter, raising=False)
    assert len(_made_of(rewriter)) == 2


def test_the_key_of_a_graph_has_that_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    before = key(X)
    monkeypatch.setattr(keys, "machine", lambda: "another")
    assert key(X) != before


def test_what_has_no_key_is_named() -> None:
    with pytest.raises(Unkeyed, match=r"TextIOWrapper'> has no key"), open(__file__) as file:
        key(X, file)
    with pytest.raises(Unkeyed, match="without a name"):
        key(X, pt.vector())
    module = ModuleType("of_user")
    vars(module)["__getattr__"] = lambda name: name
    with pytest.raises(Unkeyed, match="module of_user makes its names"):
        key(X, _scaling(module))
