"""Keys of graphs: equal in every process for graphs that compile to the same code.

Pickles have sets in the order of hashes, and tell whether two equal objects are one. Here each
object is a digest of its own contents. Functions and classes of packages whose version is a part of
the key count by their names, all others by their code.

A file may be newer than the code that this process has of it. So modules of the user count by what
they hold in memory, and there is no key with a package that was changed after its import.
"""

from __future__ import annotations

import contextlib
import ctypes
import dis
import functools
import itertools
import os
import platform
import re
import sys
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from enum import Enum
from hashlib import blake2b
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec, resolve_name
from typing import Any, Protocol

import numpy as np
import pytensor
from pytensor.compile.mode import Mode, optdb
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.fg import AbstractFunctionGraph
from pytensor.graph.op import HasInnerGraph, Op
from pytensor.graph.rewriting.db import RewriteDatabase
from pytensor.graph.traversal import toposort
from pytensor.graph.type import Type
from pytensor.tensor.type import TensorType

from synkhronos._libraries import imported
from synkhronos._libraries.library import optional_gain
from synkhronos._libraries.numpy import NUMPY
from synkhronos._libraries.pytensor import PYTENSOR

_BYTES = 20  # of a digest
_PLAIN = frozenset({type(None), bool, int, float, complex, str, bytes})
PACKAGE = "synkhronos"
_VERSIONS = (*("numpy", "scipy", "pytensor", "pymc", "numba", "llvmlite", "nutpie"), "pytensor-ml")
# packages whose versions are a part of keys
VERSIONED = frozenset({PACKAGE, *(n.replace("-", "_") for n in _VERSIONS)})
_BY_NAME = VERSIONED | {"builtins"} | (sys.stdlib_module_names - {"__main__"})
# what a class has, whoever wrote it, and what changes no code
_OF_ANY_CLASS = {"__module__", "__qualname__", "__doc__", "__dict__", "__weakref__"}
_OF_ANY_CLASS |= {"__firstlineno__", "__static_attributes__", "_abc_impl", "__annotations__"}
_OF_TYPES = ("name", "numpy_dtype")  # what follows from the rest
_OF_OPERATIONS = (
    *("output_types_preference", "nfunc_spec", "view_map", "destroy_map", "is_inline"),
    *("pullback_overrides", "pushforward_overrides"),
)
# PyTensor's flags that change what graphs become; `cxx`, which `without_c` sets, is a part of keys
# of functions alone
_FLAGS = (
    *("floatX", "cast_policy", "linker", "optimizer", "on_opt_error", "on_shape_error"),
    *("optimizer_excluding", "optimizer_including", "optimizer_requiring", "check_input"),
    *("optdb__max_use_ratio", "optdb__position_cutoff", "cycle_detection", "allow_gc"),
    *("scan__allow_gc", "scan__allow_output_prealloc", "tensor__cmp_sloppy", "numba__fastmath"),
)

# by one of these, code may read any name of a module
_ANY_NAME = {"getattr", "vars", "__dict__", "attrgetter", "eval", "exec"}
_IMPORT = dis.opmap["IMPORT_NAME"]
_INSTALLED = {"site-packages", "dist-packages"}  # folders of installers
type Names = frozenset[str] | None  # those that code reads; all if None

_OF_PROCESSES = ("NUMBA_NUM_THREADS", "NUMBA_CACHE_DIR")  # settings of numba that change no code
_OF_ARM = ("implementer", "architecture", "variant", "part", "revision")
# lines of Linux: of processors as those of Intel and AMD, and as those of ARM
_OF_FEATURES = {"flags", "Features"}
_OF_PROCESSORS = {"vendor_id", "cpu family", "model", "model name", "stepping", *_OF_FEATURES}
_OF_PROCESSORS |= {f"CPU {each}" for each in _OF_ARM}


class Registry(Protocol):
    """A function of `functools.singledispatch`."""

    @property
    def registry(self) -> Mapping[type, object]: ...

    def dispatch(self, kind: type) -> object: ...


class Unkeyed(NotImplementedError):
    """A part of a graph has no key that is the same in every process; the message says which."""


def graph_key(
    inputs: Sequence[Variable],
    outputs: Sequence[Variable],
    *more: object,
    registries: Sequence[Registry] = (),
) -> str:
    """The key of a graph, and of more that its compiled form depends on: letters and digits.

    Shared variables count by their types, names and places, not by their values.

    Parameters
    ----------
    inputs, outputs : sequence of Variable
    *more : object
        Such as options, a mode, or further graphs.
    registries : sequence of singledispatch functions
        What these have for classes that are not of the packages in `machine` is a part of the key;
        so is the code that others have registered with numba for classes of these packages.

    Raises
    ------
    Unkeyed
    """
    return key_by(Contents(registries), [machine()], inputs, outputs, more)


def portable_key(inputs: Sequence[Variable], outputs: Sequence[Variable], *more: object) -> str:
    """As `graph_key`, and the same on another machine.

    Raises
    ------
    Unkeyed
    """
    return key_by(Contents(), [], inputs, outputs, more)


def key_by(
    contents: Contents,
    before: Sequence[object],
    inputs: Sequence[Variable],
    outputs: Sequence[Variable],
    more: Sequence[object],
) -> str:
    """The key of a graph, and of more, by the digests that `contents` makes.

    Raises
    ------
    Unkeyed
    """
    try:
        return contents.of((*before, contents.graph(inputs, outputs, True), *more)).hex()
    except RecursionError:
        raise Unkeyed("the graph has objects that are nested too deeply") from None


def machine() -> str:
    """Versions, the processor and flags of PyTensor, on which compiled code depends too."""
    flags = [str(getattr(pytensor.config, name, None)) for name in _FLAGS]
    return digested("machine", [_lasting(), repr(flags).encode()]).hex()


@functools.cache
def _lasting() -> bytes:
    """The part that stays in a process: each call of `sample` makes several keys."""
    return repr((_versions(), _processor())).encode()


def version(name: str) -> str | None:
    """The version of a package; None if it is not installed.

    Installers write it into the name of a folder. To read it there takes a tenth of the time.
    """
    found = _installed().get(name.replace("-", "_"), (None, ""))[0]
    if found == "":
        with contextlib.suppress(PackageNotFoundError):  # such as a link to a folder that is gone
            return distribution(name).version
        return None
    return found


@functools.cache
def _installed() -> dict[str, tuple[str, str]]:
    """The versions of packages by their names, and the folders that packages were put into.

    A version is empty if the name of its note has none, a folder if the note is of a checkout.
    """
    found: dict[str, tuple[str, str]] = {}
    for place in (os.path.realpath(each) for each in sys.path):
        with contextlib.suppress(OSError):  # such as a zip file, or a folder that is not there
            for entry in os.listdir(place):
                if ".dist-info" not in entry and ".egg-" not in entry:
                    continue
                stem, dot, _ = entry.partition(".dist-info")
                project, _, number = stem.rpartition("-") if dot else (stem, "", "")
                if not dot:
                    project = re.split(r"-|\.egg-", entry)[0]
                own = entry == f"{project}.egg-info"  # beside the sources
                found.setdefault(project.replace("-", "_").lower(), (number, "" if own else place))
    return found


@functools.cache
def _versions() -> tuple[object, ...]:
    _refuse_upgraded()
    found: list[object] = [sys.version, sys.implementation.cache_tag, sys.platform]
    found += [platform.machine(), _of_c()]
    found += [(name, version(name)) for name in _VERSIONS]
    return (*found, *map(sources_in, [sys.modules[PACKAGE].__path__[0], *_checkouts()]))


def _of_c() -> str | None:
    """The version of the C library, which computes constants; None where it has another name."""
    with contextlib.suppress(AttributeError, ValueError, OSError):
        return os.confstr("CS_GNU_LIBC_VERSION")
    return None


def _checkouts() -> Iterator[str]:
    """The folders of packages that were not put beside the note of their version."""
    for package in (name.replace("-", "_") for name in _VERSIONS):
        with contextlib.suppress(ImportError, ValueError):
            found = find_spec(package)
            for folder in (found and found.submodule_search_locations) or ():
                if not _is_installed(package, folder):
                    yield folder


def _is_installed(package: str, folder: str) -> bool:
    """Whether a package was put beside the note of its version."""
    return os.path.dirname(os.path.realpath(folder)) == _installed().get(package, ("", ""))[1]


def _refuse_upgraded() -> None:
    """Raise if this process has another version of a package than the one that is installed."""
    for name in _VERSIONS:
        package = name.replace("-", "_")
        loaded = getattr(sys.modules.get(package), "__version__", None)
        _, place = _installed().get(package, ("", ""))
        if loaded is None or not place or loaded == version(name):
            continue
        if imported.last_change(os.stat(place)) >= imported.start():  # else it is written otherwise
            raise Unkeyed(f"{name} {version(name)} was installed after the import of {loaded}")


def sources_in(top: str) -> str:
    """A digest of a package's files: a checkout that is edited has other code."""
    folders, length = [top], len(top)
    found, changes = [], [0]
    for folder in folders:
        try:
            with os.scandir(folder) as entries:
                for each in entries:
                    if each.name.endswith((".py", ".so", ".pyd")):
                        at = each.stat()
                        found.append(f"{at.st_size} {at.st_mtime_ns} {each.path[length:]}")
                        changes += (at.st_mtime_ns, at.st_ctime_ns)
                    elif each.name != "__pycache__" and each.is_dir(follow_symlinks=False):
                        folders.append(each.path)
        except OSError as exc:
            raise Unkeyed(f"{folder} cannot be read: {exc.strerror}") from None
    package = os.path.basename(top)
    _refuse_changed(top, package, max(changes), _is_installed(package, top))
    return digested("sources", [repr(sorted(found)).encode()]).hex()


def _refuse_changed(path: str, package: str, changed: int, is_release: bool = False) -> None:
    """Raise if files were changed when this process may have had older code of their package.

    A release, whose version is that of the code, may have been installed before its import.
    """
    if package not in sys.modules or changed < imported.start():
        return
    if changed >= imported.AT or (package in imported.BEFORE and not is_release):
        raise Unkeyed(f"{path} was changed after its import")


@functools.cache
def _processor() -> tuple[object, ...]:
    """The processor, numba's settings, and whether numba takes functions from Intel's SVML."""
    given = {n: v for n, v in os.environ.items() if n.startswith("NUMBA_")}
    settings = sorted(given.items() - {(n, given.get(n)) for n in _OF_PROCESSES})
    return (_told_by_linux() or _told_by_llvm(), settings, _uses_svml())


def _told_by_linux() -> tuple[str, ...]:
    """The first processor, by Linux and by itself; empty if that is not known.

    An import of LLVM, which would ask it too, takes longer. Linux does not know the features that
    an emulator leaves out.
    """
    try:
        with open("/proc/cpuinfo", encoding="ascii", errors="replace") as file:
            lines = list(itertools.takewhile(str.strip, file))
    except OSError:
        return ()
    found = {each.partition(":")[0].strip(): each for each in lines}
    if not found.keys() & _OF_FEATURES:  # as for processors of other makers
        return ()
    with optional_gain():
        features = NUMPY.get("__cpu_features__")
        has = sorted(name for name, is_there in features.items() if is_there)
        return (*(found[name] for name in sorted(found.keys() & _OF_PROCESSORS)), *has)
    return ()


def _told_by_llvm() -> tuple[object, ...]:
    try:
        import llvmlite.binding as llvm
    except ImportError:
        return ()
    return llvm.get_host_cpu_name(), sorted(llvm.get_host_cpu_features().items())


def _uses_svml() -> bool:
    """Whether Intel's SVML is there, and LLVM is built for it: numba takes functions from it."""
    name = {"linux": "libsvml.so", "darwin": "libsvml.dylib"}.get(sys.platform, "svml_dispmd")
    try:
        ctypes.CDLL(name)
        import llvmlite.binding as llvm
    except (OSError, ImportError):
        return False
    return bool(llvm.targets.has_svml())


def _stamp(path: str, package: str) -> tuple[int, int]:
    try:
        found = os.stat(path)
    except OSError as exc:
        raise Unkeyed(f"{path} cannot be read: {exc.strerror}") from None
    _refuse_changed(path, package, imported.last_change(found))
    return found.st_size, found.st_mtime_ns


class Contents:
    """The contents of objects, as digests."""

    def __init__(self, registries: Sequence[Registry] = ()) -> None:
        self._registries = registries
        self._known: dict[int, tuple[object, bytes]] = {}  # with the object, whose id then stays
        # by themselves: each variable has a type of its own, and most of them are equal
        self._types: dict[TensorType, bytes] = {}
        self._open: list[int] = []  # ids of objects that are being looked at
        self._modules: list[tuple[types.ModuleType, Names]] = []  # those too
        self._places: dict[Variable, bytes] = {}  # of the outer graph, which functions may name

    def of(self, value: Any) -> bytes:
        """The digest of an object."""
        kind = type(value)
        if kind in _PLAIN:
            return _plain(kind.__name__, value)
        if kind is TensorType:
            if value not in self._types:
                self._types[value] = self._inside(value)
            return self._types[value]
        if id(value) in self._known:
            return self._known[id(value)][1]
        if id(value) in self._open:
            return f"back {len(self._open) - self._open.index(id(value))}".encode()
        self._open.append(id(value))
        try:
            found = self._inside(value)
        finally:
            self._open.pop()
        self._known[id(value)] = value, found
        return found

    def graph(
        self, inputs: Sequence[Variable], outputs: Sequence[Variable], outer: bool = False
    ) -> bytes:
        """The digest of a graph: the operations, what each of them takes, types and names."""
        places = self._places if outer else {}
        for number, variable in enumerate(inputs):
            places[variable] = self._leaf(variable, "input", number)
        parts = [places[v] for v in inputs]
        number = 0
        for node in toposort(outputs, blockers=inputs):
            if all(v in places for v in node.outputs):
                continue
            for v in node.inputs:
                if v not in places:
                    places[v] = self._leaf(v, "leaf", len(places))
            number += 1
            given = b"".join(places[v] for v in node.inputs)
            made = self.of([(v.type, v.name) for v in node.outputs])
            parts.append(digested("node", [self.of(node.op), given, made]))
            for at, v in enumerate(node.outputs):
                places.setdefault(v, digested("made", [f"{number} {at}".encode()]))
        for v in outputs:
            if v not in places:
                places[v] = self._leaf(v, "leaf", len(places))
        return digested("graph", [*parts, b"outputs", *(places[v] for v in outputs)])

    def _leaf(self, variable: Variable, kind: str, number: int) -> bytes:
        if is_a(variable, Constant):
            return self.of(variable)
        kind = f"{kind} {number} {is_a(variable, SharedVariable)}"
        return digested(kind, [self.of(variable.type), self.of(variable.name)])

    def _inside(self, value: Any) -> bytes:
        kind = type(value)
        if kind in (tuple, list):
            if _PLAIN.issuperset(map(type, value)):
                return _plain(kind.__name__, value)
            return digested(kind.__name__, map(self.of, value))
        if isinstance(value, tuple | list):
            return digested("sequence", [self.of(kind), *map(self.of, value)])
        if isinstance(value, dict):
            return self._mapping(value)
        if isinstance(value, np.ndarray | np.generic):
            return self._array(np.asarray(value))
        if is_a(value, Variable):
            return self._variable(value)
        if is_a(value, AbstractFunctionGraph):
            return self.graph(value.inputs, value.outputs)
        if isinstance(value, type):
            return self._class(value)
        if isinstance(value, Enum):
            return digested("enum", [self.of(kind), self.of(value.name)])
        if is_a(value, Op):
            return self._operation(value)
        if is_a(value, Type):
            parts = [vars(value)[k] for k in sorted(vars(value)) if k not in _OF_TYPES]
            return digested("type", [self.of(kind), self.of(parts)])
        if isinstance(value, Mode):
            linker, found = type(value.linker), self._rewrites(optdb)
            return self.of((kind, linker, value.provided_optimizer, found))
        return self._callable(value) or self._object(value)

    def _mapping(self, value: Mapping[Any, object]) -> bytes:
        pairs = sorted((self.of(k), self.of(v)) for k, v in value.items())
        return digested("dict", [part for pair in pairs for part in pair])

    def _array(self, value: np.ndarray) -> bytes:
        shape = self.of((value.dtype.str, value.dtype.names, value.shape))
        if value.dtype.hasobject:
            return digested("objects", [shape, *map(self.of, value.ravel().tolist())])
        return digested("array", [shape, np.ascontiguousarray(value).tobytes()])

    def _variable(self, value: Variable) -> bytes:
        """A variable outside of the graph, such as one that a function names."""
        if value in self._places:
            return self._places[value]
        if isinstance(value, Constant):
            return digested("constant", [self.of(value.type), self.of(value.data)])
        if value.owner is not None:
            return self.graph([], [value])
        if value.name is None:
            raise Unkeyed(f"a variable without a name, {value}, is no part of the graph")
        return self._leaf(value, "named", 0)

    def _operation(self, op: Any) -> bytes:
        """An operation by what it is compared by, or else by all that it has."""
        if getattr(op, "is_of_process", False):
            raise Unkeyed(f"{type(op).__name__} stands for something of this process")
        has: dict[str, object] = {}
        if (props := getattr(type(op), "__props__", None)) is not None:
            has = {name: getattr(op, name) for name in props}
        elif not is_a(op, HasInnerGraph):
            has = dict(vars(op))
        if is_a(op, HasInnerGraph):
            has["fgraph"] = op.fgraph
            for name in ("info", "truncate_gradient", "name", "allow_gc"):  # of loops
                has[name] = getattr(op, name, None)
        more = {name: getattr(op, name, None) for name in _OF_OPERATIONS}
        return digested("operation", [self.of(type(op)), self.of(has), self.of(more)])

    def _rewrites(self, database: Any) -> list[object]:
        """Rewrites that others have registered, with their tags.

        Those of the packages in `machine` come with the operations that they are for.
        """
        found: list[object] = []
        ours: dict[int, bool] = {}  # by the rewrite, which has several tags
        for tag, those in database.__db__.items():
            for each in those:
                if ours.get(id(each)):
                    continue
                if isinstance(each, RewriteDatabase):
                    found += self._rewrites(each) if each.name == tag else []
                    continue
                if id(each) not in ours:
                    ours[id(each)] = all(map(is_of_package, _made_of(each)))
                if not ours[id(each)]:
                    found.append((tag, each))
        return found

    def _class(self, value: type) -> bytes:
        name = f"{value.__module__}.{value.__qualname__}"
        if is_by_name(value):
            return digested("class", [name.encode(), *map(self.of, _code_of_others(value))])
        registered = [_registered(each, value) for each in (*numba_code(), *self._registries)]
        own = {k: v for k, v in vars(value).items() if k not in _OF_ANY_CLASS}
        own = {k: v for k, v in own.items() if not isinstance(v, types.GetSetDescriptorType)}
        own = {k: v for k, v in own.items() if not isinstance(v, types.MemberDescriptorType)}
        own = {k: v for k, v in own.items() if not k.startswith("_abc_")}
        return digested("class", [name.encode(), *map(self.of, (value.__bases__, own, registered))])

    def _callable(self, value: Any) -> bytes | None:
        """A function by its code and all that this names; None if it is no function."""
        if isinstance(value, types.CodeType):
            return self._code(value)
        if isinstance(value, staticmethod | classmethod | types.MethodType):
            owner = getattr(value, "__self__", None)
            return self.of((type(value), value.__func__, owner))
        if isinstance(value, property):
            return digested("property", [self.of((value.fget, value.fset, value.fdel))])
        if isinstance(value, types.ModuleType):
            return self._module(value, None)
        if isinstance(value, types.BuiltinMethodType) and not _is_of_module(value):
            return digested("method", [value.__name__.encode(), self.of(value.__self__)])
        if is_by_name(value):
            return digested("named", [f"{value.__module__}.{value.__qualname__}".encode()])
        if isinstance(value, np.ufunc):
            return digested("ufunc", [value.__name__.encode()])
        value = getattr(value, "py_func", value)  # of numba's functions
        if not isinstance(value, types.FunctionType):
            return None
        code, known = value.__code__, value.__globals__
        names = frozenset(_names(code))
        read: Names = None if names & _ANY_NAME else names
        cells = [self._read(_contents_of(cell), read) for cell in value.__closure__ or ()]
        named = {n: self._read(known[n], read) for n in dict.fromkeys(_names(code)) if n in known}
        inside = [self._module(each, read) for each in _imported(code, known)]
        parts = (code, cells, value.__defaults__, value.__kwdefaults__, named, inside, vars(value))
        return digested("function", map(self.of, parts))

    def _read(self, value: Any, names: Names) -> object:
        """The value that code reads: of a module only what the code names there."""
        return self._module(value, names) if isinstance(value, types.ModuleType) else value

    def _module(self, module: types.ModuleType, names: Names) -> bytes:
        """A module of the user by what it holds, any other by its name and its file."""
        name = module.__name__.encode()
        if (file := _file_of(module)) is not None:
            return digested("module", [name, *file])
        if (module, names) in self._modules:  # it leads back to itself
            return digested("module", [name])
        if "__getattr__" in vars(module):
            raise Unkeyed(f"module {module.__name__} makes its names when they are read")
        has = {k: v for k, v in vars(module).items() if names is None or k in names}
        self._modules.append((module, names))
        try:
            read = {k: self._read(v, names) for k, v in has.items() if names or k[:2] != "__"}
            return digested("module", [name, self._mapping(read)])
        finally:
            self._modules.pop()

    def _code(self, code: types.CodeType) -> bytes:
        parts = (code.co_code, code.co_consts, code.co_names, code.co_varnames, code.co_freevars)
        numbers = (code.co_flags, code.co_argcount, code.co_kwonlyargcount, code.co_exceptiontable)
        return digested("code", map(self.of, (*parts, *numbers)))

    def _object(self, value: object) -> bytes:
        """Any other object, by what a pickle would make it of again."""
        if isinstance(value, Mapping):  # not by the hash that it may have noted
            return digested("mapping", [self.of(type(value)), self._mapping(value)])
        if isinstance(value, Set):  # not by the order of hashes
            return digested("set", [self.of(type(value)), *sorted(map(self.of, value))])
        try:
            made: object = value.__reduce_ex__(4)
        except Exception as exc:
            raise Unkeyed(f"an object of {type(value)} has no key: {exc}") from None
        if isinstance(made, str):
            return digested("named", [self.of(type(value)), made.encode()])
        assert isinstance(made, tuple)
        listed = [None if each is None else list(each) for each in made[3:]]
        return digested("object", map(self.of, (*made[:3], *listed)))


def _plain(kind: str, value: object) -> bytes:
    return blake2b(
        f"{kind} {value!r}".encode("utf-8", "surrogatepass"), digest_size=_BYTES
    ).digest()


def is_a(value: object, kind: type) -> bool:
    """As `isinstance`, which asks all operations for their subclasses where a class is new."""
    return kind in type(value).__mro__


def digested(kind: str, parts: Iterable[bytes]) -> bytes:
    found = blake2b(kind.encode(), digest_size=_BYTES)
    for part in parts:
        found.update(len(part).to_bytes(8))
        found.update(part)
    return found.digest()


def _made_of(rewriter: Any) -> Iterable[object]:
    """The functions, or classes, of a rewriter and of those in it."""
    yield getattr(rewriter, "fn", rewriter)
    inner = [*getattr(rewriter, "data", ()), *getattr(rewriter, "rewrites", ())]
    for each in [*inner, getattr(rewriter, "node_rewriter", None)]:
        if each is not None:
            yield from _made_of(each)


def is_of_package(value: object) -> bool:
    module = getattr(value, "__module__", None)
    return isinstance(module, str) and module.partition(".")[0] in _BY_NAME


def is_by_name(value: object) -> bool:
    """Whether a class or a function is importable from a package whose version is known."""
    name = getattr(value, "__qualname__", None)
    if not isinstance(name, str) or not is_of_package(value):
        return False
    found: object = sys.modules.get(value.__module__)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found is value


def _file_of(module: types.ModuleType) -> list[bytes] | None:
    """The stamp of a module's file, if it was installed or is no Python; None of one of the user.

    Modules of packages in keys need none.
    """
    top = module.__name__.partition(".")[0]
    if top in _BY_NAME:
        return []
    file = vars(module).get("__file__")
    if file is None or (file.endswith(".py") and not _INSTALLED.intersection(file.split(os.sep))):
        return None
    return [repr((_stamp(file, top), version(top))).encode()]


def _is_of_module(function: types.BuiltinMethodType) -> bool:
    return isinstance(function.__self__, types.ModuleType | None)


def _contents_of(cell: types.CellType) -> object:
    try:
        contents: object = cell.cell_contents
    except ValueError:  # it is empty
        return "empty"
    return contents


def _names(code: types.CodeType) -> Iterable[str]:
    """The names of globals that code, and functions inside of it, may use."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


def _imported(code: types.CodeType, known: Mapping[str, Any]) -> Iterator[types.ModuleType]:
    """The modules that code with these globals imports when it runs, and functions inside of it.

    Raises
    ------
    Unkeyed
        Nobody has imported one of the user yet: it may hold anything.
    """
    if _IMPORT in code.co_code[::2]:
        shown = [each for each in dis.get_instructions(code) if each.opname != "EXTENDED_ARG"]
        for at, each in enumerate(shown):
            if each.opcode != _IMPORT:
                continue
            dots = "." * int(shown[at - 2].argval)  # the constants before: level, names
            try:
                name = resolve_name(dots + each.argval, known.get("__package__"))
            except ImportError:
                continue  # the code fails there
            if name not in sys.modules and _is_of_user(name):
                raise Unkeyed(f"{code.co_qualname} imports {name} when it is called")
            tops = dict.fromkeys([name.partition(".")[0], name])  # `import a.b` names a
            yield from (sys.modules[n] for n in tops if n in sys.modules)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _imported(constant, known)


def _is_of_user(name: str) -> bool:
    """Whether a module can be imported, and no installer has put it there."""
    top = name.partition(".")[0]
    if top in _BY_NAME:
        return False
    try:
        found = find_spec(top)
    except (ImportError, ValueError):
        return False
    places = [*(found.submodule_search_locations or ()), found.origin or ""] if found else []
    return any(p and not _INSTALLED.intersection(p.split(os.sep)) for p in places)


def _registered(registry: Registry, kind: type) -> object:
    """The function for a class, unless it is that of all classes."""
    found = registry.dispatch(kind)
    return None if found is registry.dispatch(object) else found


def _code_of_others(kind: type) -> list[object]:
    """The functions by others that numba's code of an operation of these packages comes from.

    Where numba's code is not imported nobody has registered any, and to import it takes long. To
    dispatch takes longer than the rest of a small graph's key: it asks all abstract classes whether
    this one counts as theirs, and there are none for operations.
    """
    if Op not in kind.__mro__ or not PYTENSOR.is_imported("numba_funcify"):
        return []
    known = [each.registry for each in numba_code()]
    of_bases = [[those[base] for base in kind.__mro__[:-1] if base in those] for those in known]
    return [found[0] for found in of_bases if found and not is_of_package(found[0])]


def numba_code() -> tuple[Any, ...]:
    """Where numba's code of operations is registered."""
    names = ("numba_funcify_and_cache_key", "numba_funcify_default_op_cache_key", "numba_funcify")
    with optional_gain():
        return tuple(PYTENSOR.get(name) for name in names)
    raise Unkeyed("it is not known where numba's code of operations is registered")
