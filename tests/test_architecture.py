"""The house: who may import whom, no cycles, no leftovers, the public list and its docstrings."""

from __future__ import annotations

import ast
import builtins
import functools
import inspect
import itertools
import re
import sys
import tomllib
import traceback
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from house import House
from public_names import check_public_names

import synkhronos as synk

pytestmark = pytest.mark.together  # the modules are parsed once
PACKAGE = Path(synk.__file__).parent
STARTERS = PACKAGE / "cli" / "_new" / "starters"  # scripts to copy; nothing imports them

ROOT = Path(__file__).parents[1]


def section(page: str, heading: str) -> str:
    """The text of a page below a heading, up to the next heading of that kind."""
    text = (ROOT / page).read_text()
    begin = re.search(rf"(?m)^{re.escape(heading)}\n(.)\1+\n", text)
    assert begin, f"{page} has no heading {heading}"
    rest = text[begin.end() :]
    end = re.search(rf"(?m)^.+\n\{begin[1]}{{4,}}$", rest)
    return rest[: end.start()] if end else rest


def rows_of(text: str) -> dict[str, str]:
    """The rows of tables whose first column is a quoted name."""
    return dict(re.findall(r"(?m)^``(\w+)`` +(.*)$", text))


# From the ground up: a module imports from its own layer and from lower ones.
LAYERS = (*rows_of(section("docs/architecture.rst", "Layers")), "__init__", "__main__")

# Where libraries may be imported at all, and nowhere else.
ONLY_IN = {
    "pytensor": (
        *("_proofs", "_compiling", "_host.devices", "_host.environment", "_backends", "_engine"),
        *("_api", "extensions", "training", "sklearn", "pymc", "nn", "zoo", "ops", "interop"),
        "cli._doctor.examination",
    ),
    "safetensors": ("extensions._saving.checkpoints",),
    "msgspec": ("training.config",),
    "pymc": ("pymc",),
    "pytensor_ml": ("nn.layers", "training._from_config.optimizer", "zoo"),
    "jax": (
        *("_backends.jax", "pymc._density.jax", "nn._jax", "ops._jax"),
        *("interop._jax", "interop._keras", "interop._onnx"),
    ),
    "numba": (
        *("_backends.small_sums", "_compiling.loops", "_compiling.lean"),
        *("_compiling.vectorised.code", "pymc._density.numba", "nn._numba", "ops._numba"),
    ),
    "llvmlite": (
        *("_backends.small_sums", "_compiling.direct", "_compiling.kept", "_compiling.lean"),
        "_compiling.vectorised.real",
    ),
    "cloudpickle": ("_transport.serialization",),
    "pickle": ("_compiling.kept.pickles", "_transport.serialization"),
    "pytest": ("testing.plugin",),
    "mpi4py": ("_backends.mpi",),
    "rich": ("_api.tables", "cli._top.live_view"),
    "multiprocessing": (),
    "nccl": ("_backends.nccl",),
    "cuda": ("_backends.nccl",),
    "pandas": ("training._record.history",),
    "pyarrow": ("training._record.history", "training.sources._columns"),
    "h5py": ("training.sources._hdf5",),
    "zarr": ("training.sources._zarr", "pymc._after.store"),
    "PIL": ("training.sources._pixels",),
    "fsspec": ("pymc._map.remote", "training.sources._copies"),
    "pooch": ("training.sources._known",),
    "sklearn": ("training.sources._known", "sklearn._estimators"),
    "optuna": ("search._by_number", "search._studies"),
    "distributed": ("_transport.pools._dask",),
    "ray": ("_transport.pools._ray",),
    "sqlalchemy": ("search._studies",),
    "tensorboardX": ("training._record.exporters._tensorboard",),
    "mlflow": ("training._record.exporters._mlflow",),
    "jinja2": ("cli._report.page",),
    "matplotlib": ("cli._plots",),
    "keras": ("interop._keras",),
    "jax2onnx": ("interop._onnx",),
    "arviz_base": ("pymc._after", "pymc._chains.stored_chains"),
    "arviz_stats": ("pymc._after.elpd", "pymc._after.moments"),
    "socket": ("_transport.communicators.links",),
}


def sources() -> list[Path]:
    return [p for p in sorted(PACKAGE.rglob("*.py")) if STARTERS not in p.parents]


@functools.cache
def whole() -> House:
    """The package that is imported."""
    return House(PACKAGE)


@functools.cache
def modules() -> dict[str, ast.Module]:
    """Every module of the package by its name below it."""
    return {name.removesuffix(".__init__"): tree for name, tree in whole().trees.items()}


@functools.cache
def nodes(tree: ast.Module) -> list[ast.AST]:
    """All of a module; most tests ask, and a walk of the package takes a third of a second."""
    return list(ast.walk(tree))


@functools.cache
def calls(tree: ast.Module) -> list[str]:
    """What a module calls, as it is written there."""
    return [ast.unparse(node.func) for node in nodes(tree) if isinstance(node, ast.Call)]


@functools.cache
def imports(tree: ast.Module, by_string: bool = True) -> set[str]:
    """Dotted names that a module imports, also for types only; and those it imports by a string."""
    found = set()
    for node in nodes(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
        elif by_string and isinstance(node, ast.Call) and "import_module" in _called(node):
            found |= {ast.literal_eval(a) for a in node.args if isinstance(a, ast.Constant)}
    return found


def _called(node: ast.Call) -> str:
    """The last name of what is called."""
    return str(getattr(node.func, "attr", getattr(node.func, "id", "")))


@functools.cache
def edges() -> dict[str, set[str]]:
    """Which modules of the package each imports."""
    known = modules()
    return {
        name: {
            target
            for wanted in imports(tree)
            if (target := wanted.removeprefix("synkhronos.")) in known
            and wanted.startswith("synkhronos.")
            and target != name
        }
        for name, tree in known.items()
    }


def layer_of(name: str) -> int:
    """The layer of a module, by its folder."""
    folder = name.split(".")[0]
    assert folder in LAYERS, f"{name}: put its folder into the table of docs/architecture.rst"
    return LAYERS.index(folder)


def test_imports_point_down() -> None:
    for name, targets in edges().items():
        for target in targets:
            assert layer_of(target) <= layer_of(name), f"{name} imports {target} above it"


def test_each_layer_has_an_addition_that_is_explained() -> None:
    """The tables of layers name the same folders; each example has an entry below."""
    assert {name.split(".")[0] for name in modules()} == set(LAYERS)
    examples = rows_of(section("CONTRIBUTING.rst", "Where things are"))
    assert (*examples, "__init__", "__main__") == LAYERS
    entries = re.findall(
        r"(?m)^(\S.*)\n {4}\S", section("CONTRIBUTING.rst", "Additions: which files")
    )
    assert {f"A{example[1:]}" for example in examples.values()} <= set(entries)


def test_files_that_contributors_look_for_are_there() -> None:
    named = set(re.findall(r"``(\w+/[\w./]*\w)``", (ROOT / "CONTRIBUTING.rst").read_text()))
    places = [ROOT, ROOT / "tests", PACKAGE]
    there = {
        n for n in named for place in places for end in ("", ".py") if (place / (n + end)).exists()
    }
    assert len(named) > 50
    assert not named - there


def test_names_that_contributors_look_for_are_there() -> None:
    page = (ROOT / "CONTRIBUTING.rst").read_text()
    named = set(re.findall(r"``(_?[A-Z][A-Za-z_]+)(?:\.\w+)?``", page))
    folders = (PACKAGE, ROOT / "tests", ROOT / "benchmarks", ROOT / "scripts")
    files = [p for folder in folders for p in folder.rglob("*") if p.suffix in (".py", "")]
    said = {word for p in files if p.is_file() for word in re.findall(r"\w+", p.read_text())}
    assert len(named) > 50
    assert not named - said


def test_messages_that_contributors_look_up() -> None:
    """Of models that are refused: what the page quotes is said by the files that it names."""
    entry = section("CONTRIBUTING.rst", "Additions: which files")
    entry = entry[entry.index("A PyMC model that is refused") :].partition("\n\nA ")[0]
    rows = re.findall(r"(?m)^    (``.+?``)  +(.+)$", entry)
    assert len(rows) > 7
    for words, decides in rows:
        named = [PACKAGE / place for place in re.findall(r"``(pymc/\S+\.py)``", decides)]
        files = named or (PACKAGE / "pymc").rglob("*.py")
        said = re.sub(r'"\s+f?"', "", " ".join(p.read_text() for p in files))
        alike = re.findall(r"as ``(.+?)`` and ``(.+?)``", decides)
        for text in (words.split("``")[-2], *(quoted for pair in alike for quoted in pair)):
            assert text in said, (text, decides)


# Words of the glossary, and the rooms in which classes and modules may have them in their names.
TRAINING = ("_errors", "rules", "extensions", "training", "testing.simulation")
MEANINGS = {
    "turn": TRAINING,
    "part": ("_engine.commands.call", "_api.timed_parts", "extensions"),
    "meeting": TRAINING,
    "round": (*TRAINING, "cli._doctor.mpi_round_trip"),
    "local": TRAINING,
    "apart": TRAINING,
    "run": (*TRAINING, "cli.run", "cli._run", "cli._report"),
    "rule": (*TRAINING, "nn._inference_rules"),
    "worker": ("_errors", "_transport", "_engine"),
    "exchange": ("_engine.graph_exchanges", *TRAINING),
    "slice": ("_plan", "_engine", "_api", "pymc._density.likelihood"),
    "command": ("_engine", "_transport", "extensions", "cli._command_line"),
    "channel": ("_transport.channels",),
    "communicator": ("_transport.communicators",),
    "verdict": ("_engine", "_transport"),
    "centre": TRAINING,
    "arena": ("_host",),
    "replica": ("_errors", "_engine"),
}


def test_words_of_the_glossary_have_one_meaning() -> None:
    """A name with one of these words is in a room where the word means what the glossary says."""
    terms = section("docs/architecture.rst", "Terms")
    for name, tree in modules().items():
        classes = [n.name for n in nodes(tree) if isinstance(n, ast.ClassDef)]
        named = [(name, name.split(".")[-1]), *((f"{name}.{c}", c) for c in classes)]
        for place, last in named:
            parts = re.findall(r"[A-Z]+(?![a-z])|[A-Z][a-z]+|[a-z]+", last)
            for word in {p.lower().removesuffix("s") for p in parts} & MEANINGS.keys():
                assert re.search(rf"(?m)^{word}  ", terms), f"{word} is not in the glossary"
                rooms = [r for r in MEANINGS[word] if f"{place}.".startswith(f"{r}.")]
                assert rooms, f"{place}: {word} has another meaning in the glossary"


ROOMS = "Each room imports only itself and the rooms before it."


def test_rooms_of_a_folder_point_down() -> None:
    """The table in a folder's docstring has its rooms, the ground first."""
    found = 0
    for name, tree in modules().items():
        text = ast.get_docstring(tree) or ""
        if ROOMS not in text:
            continue
        found += 1
        rooms = re.findall(r"(?m)^``(\w+)`` ", text)
        inside = {m: m.removeprefix(f"{name}.").split(".")[0] for m in edges() if name + "." in m}
        assert set(rooms) == set(inside.values()), name
        for module, room in inside.items():
            for target in edges()[module] & inside.keys():
                below = rooms.index(inside[target]) <= rooms.index(room)
                assert below, f"{module} imports {target} above it"
    assert found


def test_tables_of_private_folders_are_whole() -> None:
    """The docstring of a folder that lists its modules names all of them."""
    found = 0
    for name, tree in modules().items():
        inside = {m.split(".")[-1] for m in modules() if m.rpartition(".")[0] == name}
        text = ast.get_docstring(tree) or ""
        listed = set(re.findall(r"``(\w+)", text))
        if "._" in f".{name}" and len(inside & listed) > 1:
            found += 1
            assert not inside - listed, name
    assert found > 10


def test_what_one_verb_needs_lies_in_its_folder() -> None:
    """`cli/_verb/` serves only that verb, and another file of `cli` several."""
    names = {name.split(".")[1] for name in modules() if name.startswith("cli.")}
    verbs = {name for name in names if not name.startswith("_")}

    def owner(module: str) -> str:
        folder, _, rest = module.partition(".")
        name = rest.split(".")[0].removeprefix("_")
        return name if folder == "cli" and name in verbs else module

    users: dict[str, set[str]] = {}
    for name, targets in edges().items():
        for target in targets:
            users.setdefault(target, set()).add(owner(name))
    for target, found in users.items():
        if not target.startswith("cli._"):
            continue
        if owner(target) in verbs:
            assert found == {owner(target)}, f"{target} also serves {found - {owner(target)}}"
        else:
            assert len(found) > 1 or not found <= verbs, f"{target} serves {found}: move it there"
    assert len(verbs) > 10


def test_no_circles() -> None:
    """None at run time, none for types, none by a string."""
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, " -> ".join([*path, name])
        if name not in done:
            for target in edges()[name]:
                visit(target, (*path, name))
            done.add(name)

    for name in edges():
        visit(name, ())


def test_rooms_of_folders_have_no_circles() -> None:
    assert len(modules()) > 350
    for folder in ("extensions", "training._run", "training._record", "training._config_text"):
        assert not whole().shape(folder).circles, folder


def test_two_towers_have_only_the_ground_in_common() -> None:
    """The way from a model to its density imports nothing of the group."""
    ground = LAYERS[: LAYERS.index("_plan")]
    rooms = ("pymc._reading.", "pymc._repeated.", "pymc._density.", "pymc._kept.")
    density = [name for name in edges() if f"{name}.".startswith(rooms)]
    assert len(density) > 30
    for name in density:
        for target in edges()[name]:
            fits = target.split(".")[0] in ground or f"{target}.".startswith(rooms)
            assert fits, f"{name} imports {target}"


def imported_at_once(name: str) -> set[str]:
    """All modules of the package that the import of one imports, and what these import."""
    found, todo = set[str](), [f"synkhronos.{name}"]
    while todo:
        wanted = todo.pop().removeprefix("synkhronos.")
        above = {".".join(wanted.split(".")[:depth]) for depth in range(1, wanted.count(".") + 2)}
        for each in above & modules().keys() - found:
            found.add(each)
            body = [*modules()[each].body]
            while body:
                node = body.pop()
                if isinstance(node, ast.Import | ast.ImportFrom):
                    todo += imports(ast.Module([node], []))
                elif not isinstance(node, ast.FunctionDef) and not _is_for_types(node):
                    body += [n for n in ast.iter_child_nodes(node) if isinstance(n, ast.stmt)]
    return found


def _is_for_types(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and _is_named(node.test, "TYPE_CHECKING", "_TYPES")


# What a model that this machine has sampled before needs none of. The import of these takes longer
# than to load what is kept of it.
OF_NEW_MODELS = (
    *("_proofs", "_plan", "_transport", "pymc._repeated.", "pymc._group", "pymc._reading.reading"),
    *("pymc._density.estimate", "pymc._density.faster", "pymc._density.likelihood"),
    *("pymc._chains.stored_chains", "pymc._diverged.explanation", "_compiling.lean.c_functions"),
    *("_compiling.lean.closed", "_compiling.lean.rewrite", "_compiling.vectorised"),
)


def test_sample_imports_what_reads_a_model_only_where_one_is_read() -> None:
    found = imported_at_once("pymc._chains.sampling") | imported_at_once("pymc._kept.written")
    assert {"pymc._kept.models", "pymc._reading.models", "_compiling.lean.mode"} < found
    assert not [name for name in found if name.startswith(OF_NEW_MODELS)]


def test_what_follows_a_reading_takes_no_model() -> None:
    """A model is read once. Those that give it another log-density, or sample it, have it."""
    density, group = ("estimate", "likelihood", "proof", "serial"), ("likelihood", "rest_terms")
    rooms = [f"pymc._density.{room}." for room in density] + [f"pymc._group.{r}." for r in group]
    behind = [n for n in modules() if f"{n}.".startswith(("pymc._repeated.", *rooms))]
    assert len(behind) > 15
    for name, tree in modules().items():
        for node in nodes(tree) if name.startswith("pymc.") else ():
            if isinstance(node, ast.arg) and node.arg == "model":
                assert name not in behind, f"{name}:{node.lineno} takes a model, not its reading"
                of_any = node.annotation is None or ast.unparse(node.annotation) == "Any"
                assert not of_any, f"{name}:{node.lineno}: of which type is the model?"


def test_no_protocol_hides_a_circle() -> None:
    """None has just one class that fits it, in a module that imports the Protocol's own."""
    known = modules()
    classes = [(m, n) for m, t in known.items() for n in nodes(t) if isinstance(n, ast.ClassDef)]
    has = {n.name: {name for part in n.body for name in _members_of(part)} for _, n in classes}
    home = {n.name: m for m, n in classes}
    protocols = {n.name for _, n in classes if "Protocol" in map(ast.unparse, n.bases)}
    for protocol in protocols:
        fitting = [n for n in has if has[protocol] <= has[n] and n not in protocols]
        if len(fitting) == 1:
            above = _reached(home[fitting[0]], edges())
            assert home[protocol] not in above, f"{protocol} stands for {fitting[0]}: import that"


def _reached(start: str, graph: dict[str, set[str]]) -> set[str]:
    """All that a module imports, directly or not."""
    found: set[str] = set()
    todo = [start]
    while todo:
        new = graph[todo.pop()] - found
        found |= new
        todo += new
    return found


def _is_named(node: ast.expr, *names: str) -> bool:
    return isinstance(node, ast.Name) and node.id in names


def _members_of(node: ast.stmt) -> set[str]:
    if isinstance(node, ast.FunctionDef):
        own = {
            target.attr
            for inner in ast.walk(node)
            if isinstance(inner, ast.Assign | ast.AnnAssign)
            for target in (inner.targets if isinstance(inner, ast.Assign) else [inner.target])
            if isinstance(target, ast.Attribute) and _is_named(target.value, "self")
        }
        return own | {node.name}
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        return {node.target.id}
    return set()


# What fits a class of a higher layer by its names only: (module, the expression), and what it is.
NOT_FROM_ABOVE = {
    ("_backends.nccl", "self._stream"): "a stream of cuda.core",
}


def test_no_layer_knows_a_higher_one_through_any() -> None:
    """What is typed `Any` has no names that only classes of higher layers have together.

    An interface in the lower layer says instead what it asks; the higher class derives from it.
    """
    classes = [
        (layer_of(module), {name for part in node.body for name in _members_of(part)})
        for module, tree in modules().items()
        for node in nodes(tree)
        if isinstance(node, ast.ClassDef)
    ]
    libraries = {name for thing in OF_LIBRARIES for name in dir(thing)}
    found = set()
    for module, tree in modules().items():
        for what, names in _asked_of_any(tree):
            layers = [layer for layer, has in classes if names - libraries <= has]
            if names - libraries and layers and min(layers) > layer_of(module):
                found.add((module, what))
    assert found == NOT_FROM_ABOVE.keys()


_COMPUTED = pt.exp(pt.vector())
OF_LIBRARIES = (
    *(np.zeros(0), np.dtype(float), np.random.default_rng(0), {}, [], "", b"", Path(), Exception()),
    *(_COMPUTED, _COMPUTED.type, _COMPUTED.owner, _COMPUTED.owner.op, pytensor.shared(0)),
    *(pytensor.In(pt.vector()), test_no_circles),
)


def _asked_of_any(tree: ast.Module) -> Iterator[tuple[str, set[str]]]:
    """Expressions of a module that are typed `Any`, or hold it, and the names they are asked for.

    Attributes and parameters are typed. What is assigned from them, or iterates over them, is so.
    """
    typed = [node for node in nodes(tree) if isinstance(node, ast.AnnAssign)]
    fields = {
        getattr(node.target, "attr", getattr(node.target, "id", ""))
        for node in typed
        if _is_any(node.annotation)
    }
    for function in nodes(tree):
        if not isinstance(function, ast.FunctionDef):
            continue
        given = function.args
        every = [*given.posonlyargs, *given.args, *given.kwonlyargs]
        names = {a.arg for a in every if a.annotation is not None and _is_any(a.annotation)}
        if not names and not fields:
            continue
        inside = list(ast.walk(function))
        bound = [pair for node in inside for pair in _bound(node)]
        for _ in range(3):  # a name may come from a name
            names |= {
                part.id
                for source, targets in bound
                if _holds(source, names, fields)
                for target in targets
                for part in ast.walk(target)
                if isinstance(part, ast.Name)
            }
        asked: dict[str, set[str]] = {}
        for node in inside:
            if isinstance(node, ast.Attribute) and _holds(node.value, names, fields):
                asked.setdefault(ast.unparse(node.value), set()).add(node.attr)
        yield from asked.items()


def _is_any(annotation: ast.expr) -> bool:
    return any(isinstance(part, ast.Name) and part.id == "Any" for part in ast.walk(annotation))


def _bound(node: ast.AST) -> list[tuple[ast.expr, list[ast.expr]]]:
    """What a node assigns or iterates over, and to which targets."""
    if isinstance(node, ast.Assign) and all(isinstance(t, ast.Name) for t in node.targets):
        return [(node.value, node.targets)]
    return [(node.iter, [node.target])] if isinstance(node, ast.For | ast.comprehension) else []


def _holds(node: ast.expr, names: set[str], fields: set[str]) -> bool:
    """Whether an expression is one of these, or takes something out of one of them."""
    match node:
        case ast.Name():
            return node.id in names
        case ast.Attribute():
            return node.attr in fields
        case ast.Subscript() | ast.Starred():
            return _holds(node.value, names, fields)
        case ast.ListComp() | ast.GeneratorExp():
            return _holds(node.elt, names, fields)
        case ast.Call(func=ast.Attribute(value=inner, attr="values" | "items" | "get" | "pop")):
            return _holds(inner, names, fields)
        case ast.Call(func=ast.Name(id="list" | "tuple" | "reversed" | "sorted" | "zip")):
            return any(_holds(argument, names, fields) for argument in node.args)
    return False


# Names of libraries that begin with an underscore, have no public twin, and are used nevertheless.
PRIVATE_OF_LIBRARIES = {
    "_compiled_model": "nutpie: the model of a sampler that has started",
    "_sampler": "nutpie: waits for a while without taking the draws",
    "_coords": "pymc: the coordinates of its graph of a model",
    "_dim_lengths": "pymc: the lengths of dims of its graph of a model",
    "_flatten_layers": "keras: the only list of all layers inside of a model",
    "_actions": "argparse: the only list of a parser's arguments",
    "_shared_module": "numba: what other code links in place of a function's own",
    "_is_owned": "threading.RLock: whether this thread has it, as threading.Condition asks",
    "_getvalue": "numba: the only way to return an array that LLVM code has made",
    "_FromFunctionOp__fn": "wrap_py keeps the user's function nowhere else",
    "_FromFunctionOp__infer_shape": "the same for its shape",
    "_args_from_interpreter_flags": "subprocess: a worker gets the master's -X and -W",
    "_run_after_forkers": "multiprocessing.util: what its own forks begin with",
    "_authkey": "multiprocessing's proxies: the key by which one speaks to its manager",
    "_exit": "os: end a fork without its parent's handlers",
    "_pytensor_function": "PyMC's PointFunc: the compiled function, to time it",
    "_raveled_inputs": "PyMC's logp_dlogp_function: the function of one vector",
    "_compile_mode": "PyTensor's FunctionGraph: the mode that rewrites of inner graphs look up",
    "_read": "jax.config: a value that JAX offers no attribute for",
    "_run_exitfuncs": "atexit: run the handlers before MPI ends the process",
    "_competence": "PyMC's step methods: how well one suits a parameter, whatever it asks for",
    "_stop_flag": "Optuna's Study: whether stop() was called, which has no other effect",
    "_thread_local": "Optuna's Study: outside of its own loop, only this lets stop() be called",
}


def test_no_reach_into_private_names() -> None:
    """A name with one underscore is used in the module that defines it, and nowhere else."""
    known = modules()
    for name, tree in known.items():
        own = {n for node in nodes(tree) for n in _defined(node)}
        for node in nodes(tree):
            if isinstance(node, ast.Attribute) and re.match(r"_[a-zA-Z]", node.attr):
                mine = node.attr in own or _is_named(node.value, "self", "cls")
                assert mine or node.attr in PRIVATE_OF_LIBRARIES, f"{name}: {ast.unparse(node)}"
            elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("synkhronos"):
                home = (node.module or "").removeprefix("synkhronos").removeprefix(".")
                for alias in node.names:
                    is_module = f"{home}.{alias.name}".strip(".") in known
                    assert is_module or not alias.name.startswith("_"), f"{name}: {alias.name}"


def _defined(node: ast.AST) -> set[str]:
    """The names that a statement gives to a class or an object of this module."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return {node.name}
    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
        return {node.attr} if _is_named(node.value, "self", "cls") else set()
    if isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        return {t.id for t in targets if isinstance(t, ast.Name)}
    return set()


@pytest.mark.parametrize("library", ONLY_IN)
def test_libraries_are_imported_only_where_named(library: str) -> None:
    """T14: beside MPI's channel one folder connects nodes: `test_links.py`."""
    for name, tree in modules().items():
        if any(t.split(".")[0] == library for t in imports(tree, by_string=False)):
            allowed = ONLY_IN[library]
            assert any(name == a or name.startswith(f"{a}.") for a in allowed), name


# Parts of libraries that these do not document; only `_libraries` names them.
PRIVATE = re.compile(
    r"numba\.(core|np)\b|pytensor\.(link\.numba\.(cache|dispatch)|compile\.rewriting|tensor\.symbolic"
    r"|tensor\.rewriting\.(math|fused_elemwise|scalarize))\b|nutpie\.\w|better_optimize\.\w|keras\.src\b"
    r"|pymc\.(model\.fgraph|sampling\.mcmc|step_methods\.hmc)\b|(\w+\.)+_[a-z]"
)
LIBRARIES = re.compile(r"(pytensor|numba|llvmlite|pymc|nutpie|better_optimize|jax|optuna|keras)\b")
# Documented, or, of the last one, missed aloud: an import fails without it
DOCUMENTED = (
    *("numba_njit", "register_funcify_default_op_cache_key", "_getvalue"),
    "NUTPIE_INSTALLED",
)
OF_MESSAGES = ("_print_name",)  # without it a message names the class
# Of Python's own modules
OF_PYTHON = (
    *("_actions", "_args_from_interpreter_flags", "_authkey", "_exit", "_is_owned"),
    *("_run_after_forkers", "_run_exitfuncs"),
)


def test_private_names_of_libraries_are_listed() -> None:
    """A new version of a library is then a matter of one file, and nothing is lost in silence."""
    listed = "".join(p.read_text() for p in (PACKAGE / "_libraries").glob("*.py"))
    for name, tree in modules().items():
        if name.startswith("_libraries."):
            continue
        own, asked = {*DOCUMENTED, *OF_MESSAGES, *OF_PYTHON}, set()
        for node in nodes(tree):
            match node:
                case ast.FunctionDef(name=defined) | ast.ClassDef(name=defined):
                    own.add(defined)
                case ast.AnnAssign(target=ast.Name(id=defined)) | ast.arg(arg=defined):
                    own.add(defined)
                case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=defined):
                    own.add(defined)
                case ast.Attribute(attr=used):
                    asked.add(used)
                case ast.keyword(arg=str(used)) if not re.search(rf"\(\)\.{used}\b", listed):
                    asked.add(used)
                case ast.Call(func=ast.Name(id="getattr" | "hasattr"), args=[_, given, *_]):
                    asked.add(str(getattr(given, "value", "")))
                case ast.ImportFrom(module=str(module), level=0):
                    assert LIBRARIES.match(module) is None or not [
                        each.name
                        for each in node.names
                        if PRIVATE.match(f"{module}.{each.name}") and each.name not in DOCUMENTED
                    ], f"{name} imports from {module}"
                case ast.alias(name=used) | ast.Constant(value=str(used)):
                    private = LIBRARIES.match(used) and PRIVATE.match(used)
                    assert not private or " " in used, f"{name} names {used}"
        foreign = {each for each in asked - own if re.match("_[a-zA-Z]", each)}
        assert not foreign, f"{name} asks for {foreign}: list them in _libraries"


def test_types_are_checked_without_optional_libraries() -> None:
    """mypy would stop at the import of one that `pip install synkhronos[check]` leaves out."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project, skipped = settings["project"], settings["tool"]["mypy"]["overrides"][-1]
    assert skipped["ignore_missing_imports"]
    installed = [*project["dependencies"], *project["optional-dependencies"]["check"]]
    known = {BOUNDED.match(name)[1].replace("-", "_") for name in installed}
    known |= {module.removesuffix(".*") for module in skipped["module"]}
    found = {t.split(".")[0] for tree in modules().values() for t in imports(tree, by_string=False)}
    assert len(found) > 60
    assert not found - known - {"synkhronos"} - sys.stdlib_module_names


# of those who work on the project
TOOLS = ("test", "test-all", "bench", "docs", "check", "release", "dev")
BOUNDED = re.compile(r"(\w[\w-]*)(?:\[[\w,]+\])?(?:(?:>=|~=)([\d.]+))?")
LOWEST = Path(sys.prefix) / "lowest.txt"  # of the environment of `scripts/test --lowest`


def test_libraries_have_lower_bounds() -> None:
    """Without one any old version is allowed. `scripts/test --lowest` tries just these."""
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    named = [n for extra, names in extras.items() if extra not in TOOLS for n in names]
    assert len(named) > 20
    installed = dict(
        re.findall(r"(?m)^([\w-]+)==([\d.]+)", LOWEST.read_text() if LOWEST.exists() else "")
    )
    for each in (*project["dependencies"], *named):
        name, bound = BOUNDED.match(each).groups()
        assert bound or name == "synkhronos", each
        found = installed.get(name.lower(), bound)
        assert found == bound or re.fullmatch(rf"{re.escape(bound)}(\.0)+", found), (each, found)


# What makes code of data, and the modules that may: one reads only what the group wrote, the other
# what this user's folder holds.
RUNS_DATA = re.compile(
    r"(eval|exec|(pickle|cloudpickle|marshal|dill|joblib)\.(loads?|Unpickler)|(np|numpy)\.load"
    r"|shelve\.open)$"
)


def test_data_is_run_as_code_in_two_modules() -> None:
    """T5: what comes from a file never becomes code."""
    found = set()
    for name, tree in modules().items():
        if any(RUNS_DATA.match(called) for called in calls(tree)):
            found.add(name)
        for node in nodes(tree):
            if isinstance(node, ast.ClassDef):
                found |= {name for base in node.bases if RUNS_DATA.match(ast.unparse(base))}
            elif isinstance(node, ast.keyword):
                assert node.arg != "allow_pickle", name
    assert found == {"_transport.serialization", "_compiling.kept.pickles"}


UNPICKLES = re.compile(r"(^unpickled|unpack_graph|serialization\.read|deserialize_keras_object)$")
CACHES = {
    "CACHE_DIR",
    "jax_compilation_cache_dir",
}  # settings of libraries that unpickle from there
LISTED = re.compile(r"(?m)^   \* - ``([\w.]+)``$")


def test_places_that_unpickle_are_listed() -> None:
    """T5: the page on trust says of each whose bytes become objects."""
    page = (Path(__file__).parents[1] / "docs" / "explanation" / "trust.rst").read_text()
    listed = LISTED.findall(page)
    assert len(listed) == len(set(listed))
    found = set()
    for name, tree in modules().items():
        words = {n.attr for n in nodes(tree) if isinstance(n, ast.Attribute)}
        words |= {n.value for n in nodes(tree) if isinstance(n, ast.Constant)}
        if words & CACHES or any(UNPICKLES.search(c) for c in calls(tree)):
            found.add(name)
    assert found == set(listed)


# What opens a file by its name, and the modules that may: `_host.files`, and others with a reason.
OPENS = re.compile(
    r"((^|os\.|Path\(.*\)\.)open|\.((read|write)_(text|bytes)|touch|open_memmap|tofile|dump_stats)"
    r"|(np|numpy)\.(save|savez\w*|memmap|fromfile)|shutil\.(copy\w*|move))$"
)
OF_THE_KERNEL = "files of the kernel"
OF_THE_PACKAGE = "files of the package"
CHECKED = "a file that `_host.files` has opened or checked"
ONLY_OURS = "names in a folder that only the user enters, by its descriptor"
OPEN_FILES = {
    "_backends.mpi": OF_THE_KERNEL,
    "_compiling.kept.folder": ONLY_OURS,
    "_compiling.kept.processor": OF_THE_KERNEL,
    "_engine.worker": OF_THE_KERNEL,
    "_host.addresses": OF_THE_KERNEL,
    "_host.arena": "a mapped file of the user; its inode is compared",
    "_host.cgroups": OF_THE_KERNEL,
    "_host.cores": OF_THE_KERNEL,
    "_host.environment": OF_THE_KERNEL,
    "_host.files": "",
    "_host.folder_locks": "a folder, for its lock",
    "_host.memory_limits": OF_THE_KERNEL,
    "_libraries.imported": OF_THE_KERNEL,
    "_transport.communicators.board": OF_THE_KERNEL,
    "_transport.communicators.links.listener": OF_THE_KERNEL,
    "_transport.processes.fork_safety": OF_THE_KERNEL,
    "_transport.processes.guards": OF_THE_KERNEL,
    "_transport.processes.slot_process": CHECKED,
    "_transport.processes.stopped": OF_THE_KERNEL,
    "_transport.shared_state.waiting": OF_THE_KERNEL,
    "cli._bench.bench_process": OF_THE_KERNEL,
    "cli._command_line": OF_THE_KERNEL,
    "cli._parser": OF_THE_PACKAGE,
    "cli._report.page": OF_THE_PACKAGE,
    "cli._top.watched_groups": OF_THE_KERNEL,
    "cli.new": OF_THE_PACKAGE,
    "pymc._chains.blocks": CHECKED,
    "pymc._chains.progress": OF_THE_KERNEL,
    "pymc._group.evaluator": OF_THE_KERNEL,
    "search._ownership": OF_THE_KERNEL,
    "testing.killing": "folders that it makes",
    "testing.leaks": OF_THE_KERNEL,
    "training._record.exporters._csv": CHECKED,
    "training._record.exporters.process": CHECKED,
    "training._run.nonfinite": "a file in memory",
    "training.sources._hdf5": CHECKED,
    "training.sources._idx": CHECKED,
    "training.sources._npy": CHECKED,
}


def test_files_are_opened_in_one_module() -> None:
    """T7: it follows no link where it writes, and opens no pipe or device where it reads."""
    found = set()
    for name, tree in modules().items():
        if any(OPENS.search(c) and not c.startswith("files.") for c in calls(tree)):
            found.add(name)
    assert found == OPEN_FILES.keys()


# What changes files by names, which a stranger may have given to others meanwhile.
PERMITS = re.compile(r"(^|\.)(l?chmod|l?chown|utime|copy(2|stat|mode|tree))$")
RENAMES = re.compile(
    r"(^|\.)(rmtree|removedirs|unlink|rmdir|mkdir|makedirs|mkdtemp|mkstemp|mkfifo|renames?|symlink(_to)?"
    r"|hardlink_to|touch)$|^os\.(replace|remove|link)$|^shutil\.move$|(^|\.)(new|draft|path)\.replace$"
)
NO_LINK = "a name in a folder, where a link is changed and not followed"
RENAMING = {
    "_backends.mpi": "what this process has mapped in /dev/shm, whose names only owners change",
    "_compiling.kept.folder": ONLY_OURS,
    "_host.files": "",
    "_host.own_key": NO_LINK,
    "cli._doctor.examination": "the folder of compiled code, whose writers can run code",
    "cli.new": "a folder that the user names",
    "extensions._saving.checkpoints": NO_LINK,
    "pymc._after.store": NO_LINK,
    "pymc._chains.chain_folder": NO_LINK,
    "pymc._map.remote": "a temporary folder of its own, and an address",
    "pymc._map.stores": NO_LINK,
    "testing.killing": "folders that it makes",
    "training._record.exporters.process": NO_LINK,
}


def test_names_are_changed_in_few_modules() -> None:
    """T7: permissions are changed by descriptors; other changes follow no link."""
    found = set()
    for name, tree in modules().items():
        permitted = {"os.utime"} if RENAMING.get(name) == ONLY_OURS else set()
        assert not {c for c in calls(tree) if PERMITS.search(c)} - permitted, name
        if any(RENAMES.search(c) and not c.startswith("files.") for c in calls(tree)):
            found.add(name)
    assert found == RENAMING.keys()


# Who starts an interpreter with code or a module; all others ask `start_interpreter`.
INTERPRETERS = {
    "_transport.processes.interpreter": "",
    "cli._doctor.examination": "a master that is killed",
    "cli._doctor.mpi_round_trip": "a launcher starts it",
    "testing.killing": "a master that is killed",
    "training.sources._known": "an answer of a server; it ends by a limit of time",
}


def test_interpreters_start_in_one_module() -> None:
    """With -P, as those that others start: they do not import from the working folder."""
    found = set()
    for name, tree in modules().items():
        for node in nodes(tree):
            if not isinstance(node, ast.List | ast.Tuple):
                continue
            if not any(isinstance(word, ast.Attribute) for word in node.elts):
                continue
            words = [ast.unparse(word) for word in node.elts]
            if "sys.executable" in words and {"'-c'", "'-m'"} & set(words):
                found.add(name)
                assert "'-P'" in words, (name, words)
    assert found == INTERPRETERS.keys()


def test_module_variables() -> None:
    """`global` is used for the current group alone."""
    for name, tree in modules().items():
        names = {n for node in nodes(tree) if isinstance(node, ast.Global) for n in node.names}
        assert names <= ({"_current"} if name == "_engine.group" else set()), (name, names)


def test_terminals_are_steered_in_one_module() -> None:
    """Names in messages cannot do it, and lines that are drawn over and over do it in one way."""
    found = set()
    for name, tree in modules().items():
        documented = ast.Module | ast.ClassDef | ast.FunctionDef
        texts = {
            id(n.body[0].value)
            for n in nodes(tree)
            if isinstance(n, documented) and ast.get_docstring(n, clean=False)
        }
        for node in nodes(tree):
            if (
                isinstance(node, ast.Constant)
                and "\x1b" in str(node.value)
                and id(node) not in texts
            ):
                found.add(name)
    assert found == {"_compiling.terminal"}


def test_sizes() -> None:
    """Functions stay small enough to be read."""
    for name, tree in modules().items():
        for node in nodes(tree):
            if isinstance(node, ast.FunctionDef):
                text = ast.get_docstring(node) or ""
                body = node.end_lineno - node.body[0].lineno + 1 - text.count("\n")  # type: ignore[operator]
                assert body <= 75, f"{name}: {node.name} has {body} lines"


# Of all modules, classes and functions; then those that exceed it, each with its own bound.
MOST_LINES, LONG = (
    750,
    {
        "_api.collectives": 800,  # twelve public functions, each with its documents
    },
)
MOST_ARGUMENTS, WIDE = (
    15,
    {
        "training.fit.fit": 45,
        "training.trainer.__init__": 16,
        "extensions.train.make_train_function": 17,
        "pymc._after.loo.loo": 16,  # of `arviz.loo` and of its moment matching
        "pymc._after.predictive.sample_posterior_predictive": 18,  # PyMC has 15 of them
        "pymc._chains.sampler.sample_from_init": 16,  # PyMC has all of them
    },
)
MOST_METHODS = 25  # and properties, without an underscore
MOST_ATTRIBUTES = {"Member": 15, "Group": 15}


def test_modules_are_short() -> None:
    lines = {name: (tree.body[-1].end_lineno or 0) for name, tree in modules().items() if tree.body}
    assert {name for name, n in lines.items() if n > MOST_LINES} == LONG.keys()
    assert not [name for name, most in LONG.items() if lines[name] > most]


def test_long_modules_open_with_their_rules() -> None:
    """Before its imports a long module says what holds in it, as docstring or as comments."""
    for path in sources():
        lines = path.read_text().splitlines()
        if len(lines) > 400:
            before = itertools.takewhile(lambda line: "import annotations" not in line, lines)
            assert sum(map(len, before)) > 300, path


def test_functions_take_few_arguments() -> None:
    wide: dict[str, int] = {}
    for name, tree in modules().items():
        for node in nodes(tree):
            if isinstance(node, ast.FunctionDef):
                given = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
                count = len([a for a in given if a.arg not in ("self", "cls")])
                if count > MOST_ARGUMENTS:
                    wide[f"{name}.{node.name}"] = count
    assert wide.keys() == WIDE.keys()
    assert not [name for name, count in wide.items() if count > WIDE[name]]


def test_classes_are_small() -> None:
    found = set()
    for name, tree in modules().items():
        for node in nodes(tree):
            if not isinstance(node, ast.ClassDef):
                continue
            methods = {f.name for f in node.body if isinstance(f, ast.FunctionDef)}
            public = [m for m in methods if not m.startswith("_")]
            assert len(public) <= MOST_METHODS, (name, node.name, len(public))
            if name in ("_engine.member", "_engine.group") and node.name in MOST_ATTRIBUTES:
                found.add(node.name)
                own = {name for part in ast.walk(node) for name in _assigned_to_self(part)}
                assert len(own) <= MOST_ATTRIBUTES[node.name], sorted(own)
    assert found == MOST_ATTRIBUTES.keys()


def _assigned_to_self(node: ast.AST) -> set[str]:
    stored = isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
    return {node.attr} if stored and _is_named(node.value, "self") else set()


MOST_ANY = 20  # lines that say Any, in 100 functions; it may only shrink


def test_types_say_what_values_are() -> None:
    """`Any` turns the checks of types off: `object`, a class or a Protocol says what is asked."""
    functions = lines = 0
    for tree in modules().values():
        functions += sum(isinstance(node, ast.FunctionDef) for node in nodes(tree))
        names = [node for node in nodes(tree) if isinstance(node, ast.Name) and node.id == "Any"]
        lines += len({node.lineno for node in names})
    assert lines * 100 <= MOST_ANY * functions, (lines, functions)


# Words that a translation leaves: "as of" means "from that date", and "so many" needs a number
# that the reader knows.
TRANSLATED = re.compile(r"\b([Aa]s of (?!the latest)|so many\b|some percent)")


def test_words_that_translations_leave() -> None:
    docs = Path(__file__).parents[1] / "docs"
    for path in [*sources(), *sorted(docs.rglob("*.rst"))]:
        for number, line in enumerate(path.read_text().splitlines(), 1):
            assert not TRANSLATED.search(line), f"{path}, line {number}: {line.strip()}"


def sentences(text: str) -> Iterator[str]:
    for paragraph in re.split(r"\n\s*\n", text):
        yield from re.split(r"(?<=[.!?])\s+", " ".join(paragraph.split()))


def test_no_sentence_begins_with_a_clause() -> None:
    """A question may, and a heading, which has no full stop."""
    texts = {p.name: p.read_text() for p in sorted((ROOT / "docs").rglob("*.rst"))}
    texts |= {name: (ROOT / name).read_text() for name in ("CONTRIBUTING.rst", "CHANGELOG.rst")}
    for name, tree in modules().items():
        documented = ast.Module | ast.ClassDef | ast.FunctionDef
        found = [ast.get_docstring(n) for n in nodes(tree) if isinstance(n, documented)]
        texts[name] = "\n\n".join(filter(None, found))
    for name, text in texts.items():
        for sentence in sentences(text):
            clause = re.match(r"(?:[*-] )*(What|Who|That) \w.*[.:]$", sentence)
            assert not clause, f"{name}: {sentence}"


def test_no_leftovers() -> None:
    for path in sources():
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


PUBLIC_PACKAGES = (
    *("synkhronos", "synkhronos.extensions", "synkhronos.nn", "synkhronos.ops"),
    *("synkhronos.training", "synkhronos.training.sources", "synkhronos.zoo"),
    *("synkhronos.search", "synkhronos.interop"),
)


@pytest.mark.parametrize("package", PUBLIC_PACKAGES)
def test_public_names_say_the_package_that_users_import(package: str) -> None:
    if package in ("synkhronos.nn", "synkhronos.zoo"):
        pytest.importorskip("pytensor_ml", reason="pytensor-ml is not installed (synkhronos[nn])")
    check_public_names(package)


def test_tracebacks_show_public_names() -> None:
    with pytest.raises(synk.NotForked) as raised:
        synk.data([1.0])
    last = traceback.format_exception_only(raised.value)[0]
    assert last.startswith("synkhronos.NotForked: ")
    assert repr(synk.Data) == "<class 'synkhronos.Data'>"


def test_links_of_the_readme_lead_somewhere() -> None:
    root = Path(__file__).parent.parent
    links = re.findall(r"<([\w./]+)>`_", (root / "README.rst").read_text())
    assert len(links) > 5
    assert not [link for link in links if not (root / link).exists()]


def _attributes(node: ast.ClassDef) -> set[str]:
    """Methods and fields of a class, and what its methods assign to `self`."""
    found = {name for part in node.body for name in _members_of(part)}
    for part in ast.walk(node):
        if isinstance(part, ast.Attribute) and isinstance(part.ctx, ast.Store):
            found.add(part.attr)
    return found


def test_names_on_the_page_about_architecture_exist() -> None:
    """``_folder.module``, ``_folder.module.name``, ``Class``, ``Class.method`` and ``WORD``."""
    known = modules()
    packages = {name.rpartition(".")[0] for name in known} | {n.split(".")[0] for n in known}
    classes: dict[str, list[ast.ClassDef]] = {}
    constants: set[str] = set()
    for tree in known.values():
        for node in nodes(tree):
            if isinstance(node, ast.ClassDef):
                classes.setdefault(node.name, []).append(node)
            elif isinstance(node, ast.Assign):
                constants |= {t.id for t in node.targets if isinstance(t, ast.Name)}

    def has(kind: str, name: str) -> bool:
        return any(
            name in _attributes(node) or any(has(ast.unparse(base), name) for base in node.bases)
            for node in classes.get(kind, ())
        )

    def exists(name: str) -> bool:
        if name in known or name in packages:
            return True
        first, _, last = name.rpartition(".")
        if first in known:
            tree = known[first]
            defined = {n for part in tree.body for n in _members_of(part)}
            return last in defined or any(
                isinstance(n, ast.ClassDef | ast.FunctionDef) and n.name == last for n in tree.body
            )
        return has(first, last)

    page = Path(__file__).parent.parent / "docs" / "architecture.rst"
    quoted = set(re.findall(r"``([^`\n]+)``", page.read_text()))
    tops = {name.split(".")[0] for name in known} - {"__init__", "__main__"}
    paths = {q for q in quoted if re.fullmatch(r"\w+(\.\w+)*", q) and q.split(".")[0] in tops}
    methods = {q for q in quoted if re.fullmatch(r"[A-Z]\w*[a-z]\w*\.\w+", q)}
    kinds = {q for q in quoted if re.fullmatch(r"([A-Z][a-z]+)+", q)}
    words = {q for q in quoted if re.fullmatch(r"[A-Z]+(_[A-Z]+)*", q) and "MPI" not in q}
    assert len(paths) > 20
    assert len(methods) > 8
    assert not [q for q in paths | methods if not exists(q)]
    outside = {"None", "Data"} | set(dir(builtins))
    assert not kinds - classes.keys() - outside
    assert not words - constants
