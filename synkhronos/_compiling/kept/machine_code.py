"""Machine code of numba that is called without numba: an import of it takes longer than a graph's.

numba's code of a function takes the arguments of Python, and unpacks them without a look at their
types: its dispatcher has looked. Here a few instructions before it look. Other arguments go to
another callable.
"""

from __future__ import annotations

import ctypes
import functools
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

from synkhronos._compiling.kept.pickles import pickled, unpickled
from synkhronos._libraries.library import extension
from synkhronos._libraries.numba import NUMBA

NEEDED = re.compile(rb"missing Environment: ([\w$.]+)")  # numba's error, in code that calls Python
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


class NotLoadable(Exception):
    """The machine code needs more than a fresh process has."""


@dataclass(frozen=True)
class Code:
    """Machine code for some types of arguments.

    Attributes
    ----------
    arguments : tuple
        Of an array the number of its dtype, of axes, bits of its flags, and the value of these.
    """

    object_code: bytes
    name: str
    environments: tuple[tuple[str, tuple[np.dtype, ...]], ...]
    symbols: tuple[str, ...]
    arguments: tuple[tuple[int, int, int, int], ...]


def code_of(payload: Any) -> Code:
    """The code in what numba writes to its cache: library, description, environment, signature.

    Raises
    ------
    NotLoadable
    """
    (_, kind, data), described, environment, signature, _, lifted, _, run_first, others = payload
    if kind != "object" or lifted or run_first or sys.byteorder != "little" or not _fits():
        raise NotLoadable("it needs more of numba")
    import llvmlite.binding as llvm

    object_code, bitcode = data
    if not object_code.startswith(b"\x7fELF"):
        raise NotLoadable("it has another format")
    functions = llvm.parse_bitcode(bitcode).functions
    needed = [f.name for f in functions if f.is_declaration and not f.name.startswith("llvm.")]
    known = {each.env_name: each for each in (*others, environment)}
    names = {m.decode() for m in NEEDED.findall(object_code)} | {environment.env_name}
    if not names <= known.keys():
        raise NotLoadable("it needs environments of other functions")
    consts = tuple((name, tuple(known[name].consts)) for name in sorted(names))
    if not all(isinstance(each, np.dtype) for _, those in consts for each in those):
        raise NotLoadable("it names objects of Python")
    arguments = tuple(_argument(each) for each in signature.args)
    name = described.llvm_cpython_wrapper_name
    return Code(object_code, name, consts, tuple(sorted(needed)), arguments)


def _argument(kind: Any) -> tuple[int, int, int, int]:
    if type(kind).__name__ != "Array" or kind.layout not in _LAYOUTS or not kind.aligned:
        raise NotLoadable(f"it takes {kind}, which is no array")
    mask, value = _LAYOUTS[kind.layout]
    value |= _ALIGNED | (_WRITEABLE if kind.mutable else 0)
    return np.dtype(str(kind.dtype)).num, kind.ndim, mask | _ALIGNED | _WRITEABLE, value


def function_of(code: Code, other: Callable[..., object]) -> Callable[..., object]:
    """The function of machine code; it calls `other` with arguments of other types.

    Raises
    ------
    NotLoadable
    """
    import llvmlite.binding as llvm

    dynamic = _libraries()
    for name in code.symbols:
        if llvm.address_of_symbol(name) is None and not hasattr(ctypes.pythonapi, name):
            raise NotLoadable(f"there is no {name}")
    if any(name.startswith(("numba_xxgem", "numba_xxdot")) for name in code.symbols):
        _find_blas()
    try:
        guard = llvm.parse_assembly(_guard(code, id(other)))
        target = llvm.Target.from_default_triple().create_target_machine(opt=2)
        engine = llvm.create_mcjit_compiler(guard, target)
        engine.add_object_file(llvm.ObjectFileRef.from_data(code.object_code))
        engine.finalize_object()
    except RuntimeError as exc:
        raise NotLoadable(str(exc)) from None
    environments = []
    for name, consts in code.environments:
        made = dynamic.Environment({})
        made.consts.extend(consts)
        place = engine.get_global_value_address(name)
        ctypes.c_void_p.from_address(place).value = id(made)
        environments.append(made)
    address = engine.get_function_address("synkhronos_guard")
    held = (engine, other, *environments)
    module = sys.modules[__name__]
    found: Callable[..., object] = dynamic.make_function(
        module, "kept", "", address, environments[0], held
    )
    return found


def _guard(code: Code, other: int) -> str:
    """A function in LLVM's language: looks at the arguments, then calls one of two functions."""
    lines = [
        f"declare ptr @{_quoted(code.name)}(ptr, ptr, ptr)",
        "declare ptr @PyObject_Call(ptr, ptr, ptr)",
        "define ptr @synkhronos_guard(ptr %self, ptr %args, ptr %named) {",
        *_read("count", "args", _SIZE, "i64"),
        f"%fits = icmp eq i64 %count, {len(code.arguments)}",
        "br i1 %fits, label %look0, label %other",
    ]
    for at, (number, ndim, mask, value) in enumerate(code.arguments):
        tests = []
        lines += [f"look{at}:", *_read(f"a{at}", "args", _ITEMS + 8 * at, "ptr")]
        lines += [*_read(f"t{at}", f"a{at}", _TYPE, "i64")]
        lines += [f"%array{at} = icmp eq i64 %t{at}, {id(np.ndarray)}"]
        lines += [f"br i1 %array{at}, label %in{at}, label %other", f"in{at}:"]
        lines += _read(f"d{at}", f"a{at}", _DTYPE, "ptr")
        for what, of, place, kind, bits, wanted in (
            ("n", "a", _NDIM, "i32", -1, ndim),
            ("f", "a", _FLAGS, "i32", mask, value),
            ("k", "d", _NUMBER, "i32", -1, number),
        ):
            lines += _read(f"{what}{at}", f"{of}{at}", place, kind)
            lines += [f"%{what}{at}m = and {kind} %{what}{at}, {bits}"]
            lines += [f"%{what}{at}e = icmp eq {kind} %{what}{at}m, {wanted}"]
            tests.append(f"%{what}{at}e")
        lines += _read(f"o{at}", f"d{at}", _ORDER, "i8")
        lines += [f"%o{at}e = icmp ne i8 %o{at}, {ord('>')}"]
        all_of = f"%o{at}e"
        for step, test in enumerate(tests):
            lines += [f"%all{at}s{step} = and i1 {all_of}, {test}"]
            all_of = f"%all{at}s{step}"
        following = f"look{at + 1}" if at + 1 < len(code.arguments) else "own"
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
    nothing, lent = pickled(None), {name: lender, name.partition(".")[0]: lender}
    sys.modules |= lent
    try:
        call(address)(nothing, len(nothing), bytes(_DIGEST))
    finally:
        for each in lent:
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


def first_of(codes: Sequence[Code], other: Callable[..., object]) -> Callable[..., object]:
    """The functions of several codes as one: each looks whether it fits, and then asks the next.

    Raises
    ------
    NotLoadable
    """
    return functools.reduce(lambda found, code: function_of(code, found), codes, other)
