"""The house: who may import whom, no cycles, no leftovers, the public list, the docstrings."""

from __future__ import annotations

import ast
import doctest
import importlib
import inspect
import pkgutil
import re
from pathlib import Path

import pytest

import synkhronos as synk

PACKAGE = Path(synk.__file__).parent

# Floors, from the ground up. A module imports from lower floors, or from its own floor without a
# cycle. A new module is put on its floor here, with a reason in the commit that does it.
FLOORS: tuple[tuple[str, ...], ...] = (
    ("_errors",),
    (
        "_reductions",
        "_batches",
        "_arena",
        "_memory",
        "_cores",
        "_devices",
        "_parcels",
        "_inference",
        "_lengths",
        "_ranges",
        "_mpi",
    ),
    ("_channels.words", "_channels.interrupts", "_jax", "_caching"),
    ("_channels.waiting", "_relay", "_kernels", "_variables", "_replicas"),
    ("_channels", "_communicators", "_meetings"),
    ("_calls", "_commands", "_member", "_reports"),
    (
        "_nodes",
        "_opening",
        "_group",
        "_task",
        "_compile",
        "_slicing",
        "_serial",
        "_shipping",
        "_outputs",
    ),
    (
        "_data",
        "_scattered",
        "_making",
        "_latest",
        "_compilations",
        "_functions",
        "_collectives",
        "_consistency",
    ),
    ("testing",),
    ("extensions", "_doctor", "pymc", "nn"),
    ("__init__",),
    ("__main__",),
)

# Where libraries may be imported at all, and nowhere else.
ONLY_IN = {
    "pytensor": (
        *("_inference", "_variables", "_replicas", "_compile", "_slicing", "_serial", "_caching"),
        *("_data", "_making", "_functions", "_collectives", "_group", "_nodes", "_shipping"),
        *("_kernels", "_jax", "_devices", "_doctor", "_compilations", "_meetings"),
        *("extensions", "pymc", "nn"),
    ),
    "safetensors": ("extensions.checkpoints",),
    "pymc": ("pymc",),
    "pytensor_ml": ("nn.layers",),
    "jax": ("_jax", "pymc._jax", "nn._jax"),
    "numba": ("_kernels", "pymc._numba", "pymc._kernels", "nn._numba"),
    "llvmlite": ("pymc._kernels",),
    "cloudpickle": ("_parcels",),
    "pickle": ("_parcels",),
    "pytest": ("testing.plugin",),
    "mpi4py": ("_mpi",),
    "rich": ("pymc._advice",),
    "multiprocessing": (),
    "nccl": ("_communicators.nccl",),
    "cuda": ("_communicators.nccl",),
    "socket": (),
}


def modules() -> dict[str, ast.Module]:
    """Every module of the package by its name below it."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        name = ".".join(p for p in parts if p != "__init__" or len(parts) == 1)
        found[name] = ast.parse(path.read_text())
    return found


def imports(tree: ast.Module, at_run_time: bool = True) -> set[str]:
    """Dotted names that a module imports; blocks under TYPE_CHECKING are left out."""
    skip = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        for inner in ast.walk(node)
    }
    found = set()
    for node in ast.walk(tree):
        if at_run_time and id(node) in skip:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def floor_of(name: str) -> int:
    """The highest floor that lists the module or a package of it."""
    for number, names in enumerate(FLOORS):
        if name in names:
            return number
    for number, names in enumerate(FLOORS):
        if any(name.startswith(f"{n}.") for n in names):
            return number
    raise AssertionError(f"{name} is on no floor: put it into FLOORS")


def test_imports_point_down() -> None:
    known = modules()
    for name, tree in known.items():
        for wanted in imports(tree):
            target = wanted.removeprefix("synkhronos.")
            if wanted.startswith("synkhronos") and target in known and target != name:
                assert floor_of(target) <= floor_of(name), f"{name} imports {target} above it"


def test_no_cycles() -> None:
    known = modules()
    edges = {
        name: {
            t.removeprefix("synkhronos.")
            for t in imports(tree)
            if t.startswith("synkhronos.") and t.removeprefix("synkhronos.") in known
        }
        - {name}
        for name, tree in known.items()
    }
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, " -> ".join([*path, name])
        if name not in done:
            for target in edges[name]:
                visit(target, (*path, name))
            done.add(name)

    for name in edges:
        visit(name, ())


@pytest.mark.parametrize("library", ONLY_IN)
def test_libraries_are_imported_only_where_named(library: str) -> None:
    for name, tree in modules().items():
        if any(t.split(".")[0] == library for t in imports(tree)):
            allowed = ONLY_IN[library]
            assert any(name == a or name.startswith(f"{a}.") for a in allowed), name


# What makes code of data, and the one module that may, since it reads only what the group wrote.
RUNS_DATA = re.compile(
    r"(eval|exec|(pickle|cloudpickle|marshal|dill|joblib)\.(loads?|Unpickler)|(np|numpy)\.load"
    r"|shelve\.open)$"
)


def test_data_is_run_as_code_in_one_module() -> None:
    """T5: what comes from a file never becomes code."""
    found = set()
    for name, tree in modules().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and RUNS_DATA.match(ast.unparse(node.func)):
                found.add(name)
            elif isinstance(node, ast.ClassDef):
                found |= {name for base in node.bases if RUNS_DATA.match(ast.unparse(base))}
            elif isinstance(node, ast.keyword):
                assert node.arg != "allow_pickle", name
    assert found == {"_parcels"}


def test_module_variables() -> None:
    """`global` is used for the current group alone."""
    for name, tree in modules().items():
        names = {n for node in ast.walk(tree) if isinstance(node, ast.Global) for n in node.names}
        assert names <= ({"_current"} if name == "_group" else set()), (name, names)


def test_sizes() -> None:
    """Functions and modules stay small enough to be read."""
    for path in PACKAGE.rglob("*.py"):
        lines = path.read_text().count("\n")
        assert lines <= 640, f"{path.name} has {lines} lines"
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                text = ast.get_docstring(node) or ""
                body = node.end_lineno - node.body[0].lineno + 1 - text.count("\n")  # type: ignore[operator]
                assert body <= 75, f"{path.name}: {node.name} has {body} lines"


def test_no_leftovers() -> None:
    for path in PACKAGE.rglob("*.py"):
        for word in ("TODO", "FIXME", "XXX", "breakpoint(", "print("):
            assert word not in path.read_text(), f"{word} in {path.name}"


def test_the_public_list() -> None:
    """`__all__` is sorted, complete, and every name of it documented in full."""
    assert synk.__all__ == sorted(synk.__all__)
    public = {n for n, v in vars(synk).items() if not n.startswith("_") and not inspect.ismodule(v)}
    assert public == set(synk.__all__)


@pytest.mark.parametrize("name", synk.__all__)
def test_public_names_are_documented(name: str) -> None:
    thing = getattr(synk, name)
    text = inspect.getdoc(thing)
    assert text
    if inspect.isfunction(thing) and name not in ("close", "get_n_gpu"):
        assert ">>>" in text, "an example that runs"
        assert "Cost" in text or "cost" in text or name == "fork", "bytes moved, meetings"
    if inspect.isclass(thing):
        for method, value in vars(thing).items():
            if not method.startswith("_") and (callable(value) or isinstance(value, property)):
                assert inspect.getdoc(value), f"{name}.{method}"


@pytest.mark.parametrize(
    "name",
    ["synkhronos"] + [m.name for m in pkgutil.walk_packages(synk.__path__, "synkhronos.")],
)
def test_docstring_examples_run(name: str) -> None:
    if name.startswith("synkhronos.pymc."):
        pytest.importorskip("pymc", reason="PyMC is not installed (the extra: synkhronos[pymc])")
    if name.startswith("synkhronos.nn.layers"):
        pytest.importorskip("pytensor_ml", reason="pytensor-ml is not installed (synkhronos[nn])")
    if name == "synkhronos.nn._jax":
        pytest.importorskip("jax", reason="JAX is not installed (the extra: synkhronos[jax])")
    result = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)
    synk.close()
    assert result.failed == 0


def test_links_of_the_readme_lead_somewhere() -> None:
    root = Path(__file__).parent.parent
    links = re.findall(r"<([\w./]+)>`_", (root / "README.rst").read_text())
    assert len(links) > 5
    assert not [link for link in links if not (root / link).exists()]
