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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Self

import numpy as np

from synkhronos._compiling.kept.image import Image, NotLoadable, missing
from synkhronos._compiling.kept.pickles import pickled, unpickled
from synkhronos._compiling.special_entries import entry_address
from synkhronos._libraries.fork_safe_lock import ForkSafeLock
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
ANOTHER_LENGTH = -1  # what a C function returns that was made for other lengths
_GUARD = "synkhronos_guard"
# what the guard names: the classes that it looks for, and the callable for other arguments
_ARRAY, _GENERATOR, _OTHER = (f"{_GUARD}_{name}" for name in ("array", "generator", "other"))

type Argument = tuple[int, int, int, int] | None


@dataclass(frozen=True)
class Code:
    """Machine code of a function.

    Attributes
    ----------
    image : Image or None
        None: for this processor there is none, and LLVM places the objects.
    objects : tuple of bytes
        Object files, which call each other. Empty if there is an image.
    name : str
        The function.
    environments : tuple
        Of code that calls Python: names, and the objects that it reads.
    symbols : tuple of str
        Functions of other libraries.
    """

    image: Image | None
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
        if not _fits():
            raise NotLoadable("numpy has another format")
        if None in environments.values():
            raise NotLoadable("it needs environments of other functions")
        known = {name: tuple(each.consts) for name, each in environments.items()}
        if not all(isinstance(each, np.dtype) for those in known.values() for each in those):
            raise NotLoadable("it names objects of Python")
        needed = tuple(sorted(missing(objects)))
        try:
            image, left = Image.of(objects, [name, *known]), list[bytes]()
        except NotLoadable:
            image, left = None, [*objects]
        return cls(image, tuple(left), name, tuple(sorted(known.items())), needed)

    def placed(self, named: Mapping[str, int]) -> tuple[int, list[object]]:
        """The address of the function, what holds its memory, and then its environments.

        Raises
        ------
        NotLoadable
        """
        addresses = {name: _address_of(name, named) for name in self.symbols}
        if any(name.startswith(("numba_xxgem", "numba_xxdot")) for name in self.symbols):
            _find_blas()
        names = [self.name, *(name for name, _ in self.environments)]
        if self.image is None:
            places, owner = _placed_by_llvm(self.objects, addresses, names)
        else:
            start, owner = self.image.placed(addresses.__getitem__)
            places = {name: start + self.image.places[name] for name in names}
        held = [owner]
        for name, consts in self.environments:
            made = _helpers()[1].Environment({})
            made.consts.extend(consts)
            ctypes.c_void_p.from_address(places[name]).value = id(made)
            held.append(made)
        return places[self.name], held


def _address_of(name: str, named: Mapping[str, int]) -> int:
    """The address of something that code names."""
    if name in named:
        return named[name]
    if name in (known := _helpers()[0]):
        return known[name]
    if (found := entry_address(name)) is not None:
        return found
    try:
        return ctypes.addressof(ctypes.c_char.in_dll(ctypes.pythonapi, name))
    except ValueError:
        raise NotLoadable(f"there is no {name}") from None


_placing = ForkSafeLock()  # names of LLVM are those of the process


def _placed_by_llvm(
    objects: Sequence[bytes], addresses: Mapping[str, int], names: Sequence[str]
) -> tuple[dict[str, int], object]:
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    with _placing.held():
        try:
            target = llvm.Target.from_default_triple().create_target_machine(opt=2)
            engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), target)
            for name, address in addresses.items():
                llvm.add_symbol(name, address)
            for data in objects:
                engine.add_object_file(llvm.ObjectFileRef.from_data(data))
            engine.finalize_object()
        except RuntimeError as exc:
            raise NotLoadable(str(exc)) from None
        return {name: engine.get_global_value_address(name) for name in names}, engine


def needed_environments(object_code: bytes) -> set[str]:
    """The names of the environments of functions that call Python."""
    return {found.decode() for found in _NEEDED.findall(object_code)}


@dataclass(frozen=True, eq=False)
class CFunction:
    """A C function, for as long as this object lives.

    Attributes
    ----------
    address : int
    code : Code or None
        Its machine code, for each process on the same processor. As with any machine code, who can
        write it can do all that the process can. None: it needs more than a fresh process has.
    fixed : bool
        Whether it fits data of the lengths alone that it was made for.
    """

    address: int
    code: Code | None
    _owner: object  # holds the memory of the code
    fixed: bool = False

    @classmethod
    def of(cls, code: Code) -> Self:
        """The function of machine code: nothing is compiled, and numba is not imported.

        Raises
        ------
        NotLoadable
        """
        address, held = code.placed({})
        return cls(address, code, held)

    def __call__(self, numbers: Sequence[int], arrays: Sequence[np.ndarray]) -> int:
        """Call the function with numbers and the addresses of arrays."""
        kinds = [*[ctypes.c_int64] * len(numbers), *[ctypes.c_void_p] * len(arrays)]
        function = ctypes.CFUNCTYPE(ctypes.c_int64, *kinds)(self.address)
        return int(function(*numbers, *(array.ctypes.data for array in arrays)))


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
    objects = [data[0], _assembled(_guard(name, arguments))]
    found = Code.of(objects, _GUARD, {name: known.get(name) for name in needed})
    return PythonCode(**vars(found), arguments=arguments)


def _assembled(text: str) -> bytes:
    """The object file of a program in LLVM's language, whose code may lie anywhere in memory."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    given: dict[str, Any] = {"opt": 2, "codemodel": "large", "reloc": "static"}
    target = llvm.Target.from_default_triple().create_target_machine(**given)
    made: bytes = target.emit_object(llvm.parse_assembly(text))
    return made


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
    named = {_ARRAY: id(np.ndarray), _GENERATOR: id(np.random.Generator), _OTHER: id(other)}
    address, held = code.placed(named)
    module = sys.modules[__name__]
    _, first, *_ = held
    found: Callable[..., object] = _helpers()[1].make_function(
        module, "kept", "", address, first, (other, *held)
    )
    return found


def _guard(name: str, arguments: Sequence[Argument]) -> str:
    """A function in LLVM's language: looks at the arguments, then calls one of two functions."""
    lines = [
        *(f"@{each} = external global i8" for each in (_ARRAY, _GENERATOR, _OTHER)),
        f"declare ptr @{_quoted(name)}(ptr, ptr, ptr)",
        "declare ptr @PyObject_Call(ptr, ptr, ptr)",
        f"define ptr @{_GUARD}(ptr %self, ptr %args, ptr %named) {{",
        *_read("count", "args", _SIZE, "i64"),
        f"%fits = icmp eq i64 %count, {len(arguments)}",
        "br i1 %fits, label %look0, label %other",
    ]
    for at, argument in enumerate(arguments):
        following = f"look{at + 1}" if at + 1 < len(arguments) else "own"
        wanted = _GENERATOR if argument is None else _ARRAY
        inside = following if argument is None else f"in{at}"
        lines += [f"look{at}:", *_read(f"a{at}", "args", _ITEMS + 8 * at, "ptr")]
        lines += [*_read(f"t{at}", f"a{at}", _TYPE, "ptr")]
        lines += [f"%is{at} = icmp eq ptr %t{at}, @{wanted}"]
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
    if not arguments:
        lines += ["look0:", "br label %own"]
    lines += [
        "own:",
        f"%made = call ptr @{_quoted(name)}(ptr %self, ptr %args, ptr %named)",
        "ret ptr %made",
        "other:",
        f"%called = call ptr @PyObject_Call(ptr @{_OTHER}, ptr %args, ptr %named)",
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
def _helpers() -> tuple[dict[str, int], Any]:
    """The functions of numba that its code calls, and the module of closures.

    Raises
    ------
    NotLoadable
    """
    known = {}
    try:
        for name, prefix in _PREFIXES.items():
            for symbol, address in NUMBA.alone(name).c_helpers.items():
                is_whole = symbol.startswith(("_", prefix))
                known[symbol if is_whole else prefix + symbol] = address
        if NUMBA.module("_numba_unpickle").partition(".")[0] not in sys.modules:
            _lend_unpickling(NUMBA.alone("c_helpers").c_helpers["unpickle"])
        return known, NUMBA.alone("make_function")
    except (ImportError, AttributeError) as exc:
        raise NotLoadable(f"numba has another form: {exc}") from None


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
