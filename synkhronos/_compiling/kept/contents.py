"""Contents of objects, as digests that are the same in every process.

Pickles have sets in the order of hashes, and tell whether two equal objects are one. Here each
object is a digest of its own contents. Functions and classes of packages whose version is a part of
the key count by their names, all others by their code. Modules of the user count by what they hold
in memory: a file may be newer than the code that this process has of it.
"""

from __future__ import annotations

import dis
import sys
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from enum import Enum
from importlib.util import resolve_name
from typing import Any, Protocol

import numpy as np
from pytensor.compile.mode import Mode, optdb
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.fg import AbstractFunctionGraph
from pytensor.graph.op import HasInnerGraph, Op
from pytensor.graph.rewriting.db import RewriteDatabase
from pytensor.graph.traversal import toposort
from pytensor.graph.type import Type
from pytensor.tensor.type import TensorType

from synkhronos._compiling.kept.digests import Unkeyed, digested, plain
from synkhronos._compiling.kept.packages import file_of, is_by_name, is_of_package, is_of_user
from synkhronos._libraries.library import optional_gain
from synkhronos._libraries.pytensor import PYTENSOR

_PLAIN = frozenset({type(None), bool, int, float, complex, str, bytes})
# what a class has, whoever wrote it, and what changes no code
_OF_ANY_CLASS = {"__module__", "__qualname__", "__doc__", "__dict__", "__weakref__"}
_OF_ANY_CLASS |= {"__firstlineno__", "__static_attributes__", "_abc_impl", "__annotations__"}
_OF_TYPES = ("name", "numpy_dtype")  # what follows from the rest
_OF_OPERATIONS = (
    *("output_types_preference", "nfunc_spec", "view_map", "destroy_map", "is_inline"),
    *("pullback_overrides", "pushforward_overrides"),
)
_TOLD = ("lower_triangular", "upper_triangular")  # tags by which rewrites drop operations
# by one of these, code may read any name of a module
_ANY_NAME = {"getattr", "vars", "__dict__", "attrgetter", "eval", "exec"}
_IMPORT = dis.opmap["IMPORT_NAME"]
_OF_EQUILIBRIA = ("global_rewriters", "final_rewriters", "cleanup_rewriters")
type Names = frozenset[str] | None  # those that code reads; all if None


class Registry(Protocol):
    """A function of `functools.singledispatch`."""

    @property
    def registry(self) -> Mapping[type, object]: ...

    def dispatch(self, kind: type) -> object: ...


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
        self._rewrites_of_packages: dict[int, object] = {}  # that were looked at, by their ids

    def of(self, value: Any) -> bytes:
        """The digest of an object."""
        kind = type(value)
        if kind in _PLAIN:
            return plain(kind.__name__, value)
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
            made = self.of([(v.type, v.name, *_told(v)) for v in node.outputs])
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
        return digested(kind, map(self.of, [variable.type, variable.name, *_told(variable)]))

    def _inside(self, value: Any) -> bytes:
        kind = type(value)
        if kind in (tuple, list):
            if _PLAIN.issuperset(map(type, value)):
                return plain(kind.__name__, value)
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
        tags = database.__db__
        every: dict[Any, None] = {}  # of several tags
        for those in tags.values():
            has = getattr(those, "values", None)  # of an OrderedSet, which Python would iterate
            every.update(has if isinstance(has, dict) else dict.fromkeys(those))
        others = {id(each) for each in every if not self._is_rewrite_of_packages(each)}
        found: list[object] = []
        for tag, those in tags.items() if others else ():
            for each in those:
                if isinstance(each, RewriteDatabase):
                    found += self._rewrites(each) if each.name == tag else []
                elif id(each) in others:
                    found.append((tag, each))
        return found

    def _is_rewrite_of_packages(self, rewriter: Any) -> bool:
        """Whether all functions and classes of a rewrite are of packages; never of a database."""
        if isinstance(rewriter, RewriteDatabase):
            return False
        if id(rewriter) not in self._rewrites_of_packages:  # several databases have some
            if not all(map(is_of_package, _made_of(rewriter))):
                return False
            self._rewrites_of_packages[id(rewriter)] = rewriter
        return True

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
        if (file := file_of(module)) is not None:
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

    def _object(self, value: Any) -> bytes:
        """Any other object, by what a pickle would make it of again."""
        match _container(value):
            case "mapping":  # not by the hash that it may have noted
                return digested("mapping", [self.of(type(value)), self._mapping(value)])
            case "set":  # not by the order of hashes
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


def _told(variable: Variable) -> list[str]:
    return [name for name in _TOLD if getattr(variable.tag, name, False)]


def is_a(value: object, kind: type) -> bool:
    """As `isinstance`, which asks all operations for their subclasses where a class is new."""
    return kind in type(value).__mro__


def _container(value: Any) -> str:
    """Whether an object is a "mapping" or a "set"; empty if it is neither.

    `isinstance` compares a new class with all mappings of the process.
    """
    tests = (is_a, isinstance) if hasattr(type(value), "__iter__") else ()
    kinds = {"mapping": Mapping, "set": Set}
    return next((name for test in tests for name, k in kinds.items() if test(value, k)), "")


def _made_of(rewriter: Any) -> list[object]:
    """The functions, or classes, of a rewriter and of those in it."""
    every, seen = [rewriter], {id(rewriter)}  # one may lead back to itself
    for each in every:  # which grows
        inner = [*getattr(each, "data", ()), *getattr(each, "rewrites", ())]
        inner.append(getattr(each, "node_rewriter", None))
        if (tracker := getattr(each, "node_tracker", None)) is not None:  # of an equilibrium
            inner += tracker.get_rewriters()
            inner += (one for name in _OF_EQUILIBRIA for one in getattr(each, name, ()))
        new = [one for one in inner if one is not None and id(one) not in seen]
        seen.update(map(id, new))
        every += new
    return [getattr(each, "fn", each) for each in every]


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
            if name not in sys.modules and is_of_user(name):
                raise Unkeyed(f"{code.co_qualname} imports {name} when it is called")
            tops = dict.fromkeys([name.partition(".")[0], name])  # `import a.b` names a
            yield from (sys.modules[n] for n in tops if n in sys.modules)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _imported(constant, known)


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
