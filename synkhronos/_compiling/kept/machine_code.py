"""Machine code of numba that is called without numba: an import of it takes longer than a graph's.

numba's code of a function takes the arguments of Python, and unpacks them without a look at their
types: its dispatcher has looked. Here a few instructions before it look. Other arguments go to
another callable.
"""

from __future__ import annotations

import ctypes
import functools
import re
import struct
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Self

import numpy as np

from synkhronos._compiling.kept.pickles import pickled, unpickled
from synkhronos._libraries.library import extension
from synkhronos._libraries.numba import NUMBA

_NEEDED = re.compile(rb"missing Environment: ([\w$.]+)")  # numba's error, in code that calls Python
# a name of each module in C that has the functions which numba's code calls, and their prefix
_PREFIXES = {"c_helpers": "numba_", "meminfo_new": "NRT_"}
# bits of numpy's flags: which of them a layout needs, and their value
_LAYOUTS = {"C": (1, 1), "F": (3, 2), "A": (3, 0)}
_ALIGNED, _WRITEABLE = 0x100, 0x400
# places in numpy's array and dtype, and in objects and tuples of CPython
_TYPE, _SIZE, _ITEMS = 8, 16, 24
_NDIM, _DTYPE, _FLAGS = 24, 56, 64
_ORDER, _NUMBER = 26, 28
_DIGEST = 20  # bytes of numba's digests of pickles
_SYMBOL = struct.Struct("<IBBHQQ")  # of ELF: its name, and where it is defined (0: elsewhere)

type Argument = tuple[int, int, int, int] | None


class NotLoadable(Exception):
    """The machine code needs more than a fresh process has."""


@dataclass(frozen=True)
class Code:
    """Machine code of a function.

    Attributes
    ----------
    objects : tuple of bytes
        Object files, which call each other.
    name : str
        The function.
    environments : tuple
        Of code that calls Python: names, and the objects that it reads.
    symbols : tuple of str
        Functions of other libraries.
    """

    objects: tuple[bytes, ...]
    name: str
    environments: tuple[tuple[str, tuple[object, ...]], ...]
    symbols: tuple[str, ...]

    @classmethod
    def of(cls, objects: Sequence[bytes], name: str, environments: Mapping[str, Any]) -> Self:
        """The code in these objects, with environments of numba by their names.

        Raises
        ------
        NotLoadable
        """
        if not _fits() or not all(each.startswith(b"\x7fELF") for each in objects):
            raise NotLoadable("it has another format")
        if None in environments.values():
            raise NotLoadable("it needs environments of other functions")
        known = {name: tuple(each.consts) for name, each in environments.items()}
        if not all(isinstance(each, np.dtype) for those in known.values() for each in those):
            raise NotLoadable("it names objects of Python")
        symbols = {each for data in objects for each in _symbols(data)}
        needed = {name for name, is_here in symbols if not is_here and (name, True) not in symbols}
        return cls(tuple(objects), name, tuple(sorted(known.items())), tuple(sorted(needed)))

    def engine(self, assembly: str = "") -> tuple[Any, list[object]]:
        """An engine of LLVM with this code and another module, and its environments.

        Raises
        ------
        NotLoadable
        """
        import llvmlite.binding as llvm

        dynamic = _libraries()
        for name in self.symbols:
            if llvm.address_of_symbol(name) is None and not hasattr(ctypes.pythonapi, name):
                raise NotLoadable(f"there is no {name}")
        if any(name.startswith(("numba_xxgem", "numba_xxdot")) for name in self.symbols):
            _find_blas()
        try:
            target = llvm.Target.from_default_triple().create_target_machine(opt=2)
            engine = llvm.create_mcjit_compiler(llvm.parse_assembly(assembly), target)
            for data in self.objects:
                engine.add_object_file(llvm.ObjectFileRef.from_data(data))
            engine.finalize_object()
        except RuntimeError as exc:
            raise NotLoadable(str(exc)) from None
        environments = []
        for name, consts in self.environments:
            made = dynamic.Environment({})
            made.consts.extend(consts)
            place = engine.get_global_value_address(name)
            ctypes.c_void_p.from_address(place).value = id(made)
            environments.append(made)
        return engine, environments


def needed_environments(object_code: bytes) -> set[str]:
    """The names of the environments of functions that call Python."""
    return {found.decode() for found in _NEEDED.findall(object_code)}


def _symbols(object_code: bytes) -> Iterable[tuple[str, bool]]:
    """The names of machine code, and whether they are defined there."""
    import llvmlite.binding as llvm

    sections = {s.name(): s.data() for s in llvm.ObjectFileRef.from_data(object_code).sections()}
    names = sections[b".strtab"]
    for start, _, _, section, _, _ in _SYMBOL.iter_unpack(sections[b".symtab"]):
        if start:
            yield names[start : names.index(b"\0", start)].decode(), section != 0


@dataclass(frozen=True, eq=False)
class CFunction:
    """A C function, for as long as this object lives.

    Attributes
    ----------
    address : int
    code : Code or None
        Its machine code, for each process on the same processor. As with any machine code, who can
        write it can do all that the process can. None: it needs more than a fresh process has.
    """

    address: int
    code: Code | None
    _owner: object  # holds the memory of the code

    @classmethod
    def of(cls, code: Code) -> Self:
        """The function of machine code: nothing is compiled, and numba is not imported.

        Raises
        ------
        NotLoadable
        """
        held = code.engine()
        return cls(held[0].get_function_address(code.name), code, held)


@dataclass(frozen=True)
class PythonCode(Code):
    """Machine code of a function that Python calls, for some types of arguments.

    Attributes
    ----------
    arguments : tuple
        Of an array the number of its dtype, of axes, bits of its flags, and the value of these; of
        a generator of random numbers None.
    """

    arguments: tuple[Argument, ...] = ()


def code_of(payload: Any) -> PythonCode:
    """The code in what numba writes to its cache: library, description, environment, signature.

    Raises
    ------
    NotLoadable
    """
    (_, kind, data), described, environment, signature, _, lifted, _, run_first, others = payload
    if kind != "object" or lifted or run_first or sys.byteorder != "little":
        raise NotLoadable("it needs more of numba")
    arguments = tuple(_argument(each) for each in signature.args)
    name = described.llvm_cpython_wrapper_name
    known = {each.env_name: each for each in (*others, environment)}
    needed = {environment.env_name, *needed_environments(data[0])}
    found = Code.of([data[0]], name, {name: known.get(name) for name in needed})
    return PythonCode(**vars(found), arguments=arguments)


def _argument(kind: Any) -> Argument:
    if type(kind).__name__ == "NumPyRandomGeneratorType":
        return None
    if type(kind).__name__ != "Array" or kind.layout not in _LAYOUTS or not kind.aligned:
        raise NotLoadable(f"it takes {kind}, which is no array or generator")
    mask, value = _LAYOUTS[kind.layout]
    value |= _ALIGNED | (_WRITEABLE if kind.mutable else 0)
    return np.dtype(str(kind.dtype)).num, kind.ndim, mask | _ALIGNED | _WRITEABLE, value


def function_of(code: PythonCode, other: Callable[..., object]) -> Callable[..., object]:
    """The function of machine code; it calls `other` with arguments of other types.

    Raises
    ------
    NotLoadable
    """
    engine, environments = code.engine(_guard(code, id(other)))
    address = engine.get_function_address("synkhronos_guard")
    held = (engine, other, *environments)
    module = sys.modules[__name__]
    found: Callable[..., object] = _libraries().make_function(
        module, "kept", "", address, environments[0], held
    )
    return found


def _guard(code: PythonCode, other: int) -> str:
    """A function in LLVM's language: looks at the arguments, then calls one of two functions."""
    lines = [
        f"declare ptr @{_quoted(code.name)}(ptr, ptr, ptr)",
        "declare ptr @PyObject_Call(ptr, ptr, ptr)",
        "define ptr @synkhronos_guard(ptr %self, ptr %args, ptr %named) {",
        *_read("count", "args", _SIZE, "i64"),
        f"%fits = icmp eq i64 %count, {len(code.arguments)}",
        "br i1 %fits, label %look0, label %other",
    ]
    for at, argument in enumerate(code.arguments):
        following = f"look{at + 1}" if at + 1 < len(code.arguments) else "own"
        wanted = id(np.random.Generator if argument is None else np.ndarray)
        inside = following if argument is None else f"in{at}"
        lines += [f"look{at}:", *_read(f"a{at}", "args", _ITEMS + 8 * at, "ptr")]
        lines += [*_read(f"t{at}", f"a{at}", _TYPE, "i64")]
        lines += [f"%is{at} = icmp eq i64 %t{at}, {wanted}"]
        lines += [f"br i1 %is{at}, label %{inside}, label %other"]
        if argument is None:
            continue
        number, ndim, mask, value = argument
        tests = []
        lines.append(f"in{at}:")
        lines += _read(f"d{at}", f"a{at}", _DTYPE, "ptr")
        for what, of, place, kind, bits, needed in (
            ("n", "a", _NDIM, "i32", -1, ndim),
            ("f", "a", _FLAGS, "i32", mask, value),
            ("k", "d", _NUMBER, "i32", -1, number),
        ):
            lines += _read(f"{what}{at}", f"{of}{at}", place, kind)
            lines += [f"%{what}{at}m = and {kind} %{what}{at}, {bits}"]
            lines += [f"%{what}{at}e = icmp eq {kind} %{what}{at}m, {needed}"]
            tests.append(f"%{what}{at}e")
        lines += _read(f"o{at}", f"d{at}", _ORDER, "i8")
        lines += [f"%o{at}e = icmp ne i8 %o{at}, {ord('>')}"]
        all_of = f"%o{at}e"
        for step, test in enumerate(tests):
            lines += [f"%all{at}s{step} = and i1 {all_of}, {test}"]
            all_of = f"%all{at}s{step}"
        lines += [f"br i1 {all_of}, label %{following}, label %other"]
    if not code.arguments:
        lines += ["look0:", "br label %own"]
    lines += [
        "own:",
        f"%made = call ptr @{_quoted(code.name)}(ptr %self, ptr %args, ptr %named)",
        "ret ptr %made",
        "other:",
        f"%callable = inttoptr i64 {other} to ptr",
        "%called = call ptr @PyObject_Call(ptr %callable, ptr %args, ptr %named)",
        "ret ptr %called",
        "}",
    ]
    return "\n".join(lines)


def _quoted(name: str) -> str:
    return f'"{name}"'


def _read(name: str, of: str, place: int, kind: str) -> list[str]:
    at = f"%{name}p = getelementptr i8, ptr %{of}, i64 {place}"
    return [at, f"%{name} = load {kind}, ptr %{name}p"]


@functools.cache
def _fits() -> bool:
    """Whether arrays and dtypes of numpy are laid out as the guard reads them."""
    array = np.zeros((2, 3))[:, ::2]
    dtype = array.dtype

    def word(of: object, place: int, kind: Any) -> int:
        return int(kind.from_address(id(of) + place).value)

    return (
        ctypes.sizeof(ctypes.c_void_p) == 8
        and word(array, _TYPE, ctypes.c_int64) == id(np.ndarray)
        and word(array, _NDIM, ctypes.c_int32) == array.ndim
        and word(array, _DTYPE, ctypes.c_int64) == id(dtype)
        and word(array, _FLAGS, ctypes.c_int32) == array.flags.num
        and word(dtype, _NUMBER, ctypes.c_int32) == dtype.num
        and word(dtype, _ORDER, ctypes.c_uint8) == ord(dtype.byteorder)
        and word(np.dtype(">f8"), _ORDER, ctypes.c_uint8) == ord(">")
        and word((1, 2), _SIZE, ctypes.c_int64) == 2
        and word((array, 2), _ITEMS, ctypes.c_int64) == id(array)
    )


@functools.cache
def _libraries() -> Any:
    """Tell LLVM where the functions are that numba's code calls; returns the module of closures.

    Raises
    ------
    NotLoadable
    """
    import llvmlite.binding as llvm

    try:
        for name, prefix in _PREFIXES.items():
            for symbol, address in NUMBA.alone(name).c_helpers.items():
                named = symbol if symbol.startswith(("_", prefix)) else prefix + symbol
                llvm.add_symbol(named, address)
        if NUMBA.module("_numba_unpickle").partition(".")[0] not in sys.modules:
            _lend_unpickling(NUMBA.alone("c_helpers").c_helpers["unpickle"])
        dynamic = NUMBA.alone("make_function")
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
    except (ImportError, AttributeError) as exc:
        raise NotLoadable(f"numba has another form: {exc}") from None
    return dynamic


def _lend_unpickling(address: int) -> None:
    """Give numba's code a function that makes objects of its bytes, as numba is not imported.

    The code asks for the function once in a process, by an import.
    """
    name = NUMBA.module("_numba_unpickle")
    lender = ModuleType(name)
    vars(lender)["_numba_unpickle"] = _object_of
    call = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p)
    nothing, names = pickled(None), (name.partition(".")[0], name)
    for each in names:  # another thread may import numba at any time: what it imports stays
        sys.modules.setdefault(each, lender)
    try:
        call(address)(nothing, len(nothing), bytes(_DIGEST))
    finally:
        for each in names:
            if sys.modules.get(each) is lender:
                del sys.modules[each]


@functools.cache
def _object_of(address: int, data: bytes, digest: bytes) -> object:
    """The object of bytes of machine code, the same one each time."""
    del address, digest
    return unpickled(data)


def _find_blas() -> None:
    """Let numba's functions find BLAS without the import of SciPy that they make."""
    if "scipy.linalg" not in sys.modules:
        name = "scipy.linalg.cython_blas"
        sys.modules.setdefault(name, extension(name))


def first_of(codes: Sequence[PythonCode], other: Callable[..., object]) -> Callable[..., object]:
    """The functions of several codes as one: each looks whether it fits, and then asks the next.

    Raises
    ------
    NotLoadable
    """
    return functools.reduce(lambda found, code: function_of(code, found), codes, other)
