"""Keys of graphs from which Python makes other graphs, by code of known packages alone.

The log-density of a PyMC model is not in the model's graph. Functions that are registered for the
classes of its operations make it, and methods of its transforms. So a key of the model's graph
stands for its log-density only where all of these are of packages whose files a key has. Code of
anybody else is refused: what it reads from elsewhere, such as a file, is in no key.
"""

from __future__ import annotations

import functools
import os
import sys
import types
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Variable
from pytensor.graph.op import Op
from pytensor.graph.rewriting.db import RewriteDatabase
from pytensor.tensor.random.op import RNGConsumerOp
from pytensor.tensor.random.type import RandomType

from synkhronos._compiling.kept.contents import Contents, Names, Registry, is_a, numba_code
from synkhronos._compiling.kept.digests import Unkeyed, digested
from synkhronos._compiling.kept.keys import key_by, machine
from synkhronos._compiling.kept.packages import VERSIONED, is_by_name, sources_in
from synkhronos._libraries.pytensor import PYTENSOR

# They make graphs of graphs. Keys of other graphs have what these make, and not their files.
_MAKERS = ("pymc", "pytensor")
# other packages whose functions these import; they make no part of graphs
_IMPORTED = {"arviz_base", "cachetools", "pandas", "rich", "threadpoolctl", "xarray"}
_PYTHON = os.path.dirname(os.__file__)
# what an operation with an inner graph finds when it is asked, and then has
_FOUND = {"fgraph", "_fn", "_connection_pattern", "_inner_shape_template", "_inner_shape_frozen"}
_FOUND |= {"_lop_op_cache", "_rop_op_cache", "_frozen_lop", "_frozen_rop"}
_METHODS = (staticmethod, classmethod, types.MethodType)
_ABSENT = object()
MOST_BYTES = 1 << 25  # of data; the digest of more takes about as long as the log-density


class KnownCode(Contents):
    """The contents of graphs with the values of their data, and with code of known packages alone.

    Attributes
    ----------
    shared : list of SharedVariable
        Those that were found, in an order that follows from the key. Generators are not in it.
    arrays : dict of bytes to numpy.ndarray
        The constants and values that were found, by their digests.
    """

    def __init__(self) -> None:
        super().__init__()
        self.shared: list[SharedVariable] = []
        self.arrays: dict[bytes, np.ndarray] = {}
        self._places_of_data: dict[int, int] = {}
        self._bytes = 0
        self._operations: set[type] = set()
        self._own: set[type] = set()  # classes of whose functions none was replaced

    def key(
        self,
        inputs: Sequence[Variable],
        outputs: Sequence[Variable],
        more: Sequence[object],
        registries: Sequence[Registry],
        databases: Sequence[RewriteDatabase],
    ) -> str:
        """The key of a graph, for all that code of packages makes of it.

        Parameters
        ----------
        inputs, outputs : sequence of Variable
        more : sequence
            What else this code reads.
        registries : sequence of singledispatch functions
            Where it looks for functions by the classes of operations.
        databases : sequence of RewriteDatabase
            The rewrites that it takes.

        Raises
        ------
        Unkeyed
            It has, or may call, code of others, or its data have more than `MOST_BYTES`.
        """
        others = [self._rewrites(each) for each in databases]
        found = key_by(self, [machine(), _files(), others], inputs, outputs, more)
        self._refuse_registered(registries)
        return found

    def place(self, shared: SharedVariable) -> int:
        """The place of a shared variable among those that were found; -1 if it is not one."""
        return self._places_of_data.get(id(shared.container), -1)

    def digest_of(self, array: np.ndarray) -> bytes | None:
        """The digest of an array that was found; None of another one."""
        found = super()._array(array)
        return found if found in self.arrays else None

    def _leaf(self, variable: Variable, kind: str, number: int) -> bytes:
        found = super()._leaf(variable, kind, number)
        if not is_a(variable, SharedVariable) or isinstance(variable.type, RandomType):
            return found
        shared: Any = variable
        place = self._places_of_data.setdefault(id(shared.container), len(self.shared))
        if place == len(self.shared):
            self.shared.append(shared)
        value = self.of(shared.get_value(borrow=True))
        return digested("shared", [found, str(place).encode(), value])

    def _array(self, value: np.ndarray) -> bytes:
        self._bytes += value.nbytes
        if self._bytes > MOST_BYTES:
            raise Unkeyed(f"its data have more than {MOST_BYTES} bytes")
        found = super()._array(value)
        self.arrays.setdefault(found, value)
        return found

    def _operation(self, op: Op) -> bytes:
        found = super()._operation(op)
        self._operations.add(type(op))
        # others read these by their properties and inner graphs alone, as keys do
        if not is_a(op, RNGConsumerOp) and not type(op).__module__.startswith("pymc."):
            return found
        has = {name: value for name, value in vars(op).items() if name not in _FOUND}
        return digested("whole", [found, self.of(has)])

    def _class(self, value: type) -> bytes:
        if not is_by_name(value) or not is_known(value):
            raise Unkeyed(f"{value.__module__}.{value.__qualname__} is a class of others")
        bases = set(value.__mro__) - self._own
        refuse_replaced([each for each in bases if each.__module__.partition(".")[0] in _MAKERS])
        self._own |= bases
        return super()._class(value)

    def _callable(self, value: Any) -> bytes | None:
        function = getattr(value, "py_func", value)  # of numba's functions
        if isinstance(function, types.FunctionType | np.ufunc) and not is_known(function):
            raise Unkeyed(f"{function} is code of others")
        return super()._callable(value)

    def _module(self, module: types.ModuleType, names: Names) -> bytes:
        if not is_known(module):
            raise Unkeyed(f"{module} is code of others")
        return super()._module(module, names)

    def _refuse_registered(self, registries: Sequence[Registry]) -> None:
        """Raise if others have registered code for a class of the graph, or of a known package."""
        code = numba_code() if PYTENSOR.is_imported("numba_funcify") else ()
        seen = set[int]()
        for registry in (*registries, *code):
            registered = registry.registry
            if all(_is_known(function, seen) for function in registered.values()):
                continue
            seen = set()  # what was found not to be known is in the other one
            others = [kind for kind, function in registered.items() if not is_known(function)]
            theirs = [kind for kind in registered if is_by_name(kind) and is_known(kind)]
            for other in others:
                if any(issubclass(kind, other) for kind in (*self._operations, *theirs)):
                    raise Unkeyed(f"others have registered code for {other.__qualname__}")


def is_known(value: Any) -> bool:
    """Whether a function, with all that it encloses, or a class, is of a known package."""
    return _is_known(value, set())


def _is_known(value: Any, seen: set[int]) -> bool:
    """As `is_known`; what was seen before is known."""
    if id(value) in seen:  # such as a function that encloses itself
        return True
    seen.add(id(value))
    if type(value) is types.FunctionType:  # most are
        return _is_function_known(value, seen)
    if isinstance(value, _METHODS):
        return _is_known(value.__func__, seen)
    if isinstance(value, property):
        parts = (value.fget, value.fset, value.fdel)
        return all(each is None or _is_known(each, seen) for each in parts)
    if isinstance(value, functools.partial):
        return all(_is_known(v, seen) for v in (value.func, *value.args, *value.keywords.values()))
    if isinstance(value, np.ufunc):
        return getattr(np, value.__name__, None) is value
    wrapped = getattr(value, "__dict__", {}).get("__wrapped__")  # it may be a cache
    if wrapped is not None and not _is_known(wrapped, seen):
        return False
    if isinstance(value, types.ModuleType):
        return _is_name_known(value.__name__)
    if isinstance(value, tuple | list):
        return all(_is_known(each, seen) for each in value)
    kind = value if isinstance(value, type) else type(value)
    return _is_name_known(kind.__module__)


def _is_function_known(function: types.FunctionType, seen: set[int]) -> bool:
    if not _is_name_known(function.__module__):
        return False
    if not _is_name_known(function.__globals__.get("__name__")):
        return False
    inside = [_enclosed(cell) for cell in function.__closure__ or ()]
    # its ``__dict__`` would be made by a look at it
    if (wrapped := getattr(function, "__wrapped__", _ABSENT)) is not _ABSENT:
        inside.append(wrapped)
    return not inside or all(_is_known(each, seen) for each in inside)


@functools.cache
def _is_name_known(module: object) -> bool:
    """Whether a module with this name is of a known package."""
    top = module.partition(".")[0] if isinstance(module, str) else ""
    if top in VERSIONED or top in _IMPORTED:
        return True
    if top not in sys.stdlib_module_names or top == "__main__":
        return False
    file = getattr(sys.modules.get(top), "__file__", None)  # the user's may have the same name
    return file is None or (file.startswith(_PYTHON) and "site-packages" not in file)


# what holds a function that is looked at; the last one is that of `functools.cache`
_HOLDERS = {functools.partial, types.MethodType, type(_is_name_known)}


def _enclosed(cell: types.CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # it is empty
        return None


def refuse_replaced(places: Iterable[type | types.ModuleType]) -> None:
    """Raise if a function of classes, or of modules and their own classes, is of another package.

    Raises
    ------
    Unkeyed
    """
    seen = set[int]()
    every = list(places)
    for each in every:  # which grows
        is_module = isinstance(each, types.ModuleType)
        module = each.__name__ if is_module else each.__module__
        own = vars(sys.modules[module])
        for value in list(vars(each).values()):
            kind = type(value)
            if kind is types.FunctionType:
                is_own = value.__globals__ is own
            elif kind is staticmethod or kind is classmethod:
                is_own = getattr(value.__func__, "__globals__", None) is own
            elif kind is property:
                is_own = False
            elif not is_module:
                continue
            elif isinstance(value, type):
                if value.__module__ == module:
                    every.append(value)
                is_own = _is_name_known(value.__module__)
            elif kind in _HOLDERS:
                is_own = False
            else:
                is_own = _is_name_known(kind.__module__) or not callable(value)
            if not is_own and not _is_known(value, seen):
                raise Unkeyed(f"{value} of others is in {each}")


@functools.cache
def _files() -> list[str]:
    """A digest of the files of packages that make graphs."""
    found: list[str] = []
    for package in _MAKERS:
        spec = find_spec(package)
        found += map(sources_in, (spec and spec.submodule_search_locations) or ())
    return found
