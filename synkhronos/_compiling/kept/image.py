"""Machine code as one piece of memory, laid out once: a process that loads it needs no LLVM.

numba asks for code that may lie anywhere in memory. On x86-64 the addresses in it are whole
numbers, so the code moves to another place if one number is added to them. Object files are those
of the System V ABI (ELF, 64 bits, little endian).
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

_X86_64, _ADDRESS = 62, 1  # the processor; the kind of relocation that is a whole address
_BITS, _ZEROS, _RELOCATIONS, _SYMBOLS, _UNWIND = 1, 8, 4, 2, 0x70000001  # kinds of sections
_WRITE, _ALLOCATED, _OF_THREADS = 1, 2, 0x400  # flags of sections
_ELSEWHERE, _COMMON, _LARGE_COMMON = 0, 0xFFF2, 0xFF02  # sections of symbols
_LOCAL, _WEAK = 0, 2
_PAGE = 4096
_LISTED = struct.Struct("<Q10xHH")  # of the file's head: where sections are listed, sizes, count
_AT = 40
_SECTION = np.dtype(
    [
        *(("name", "u4"), ("kind", "u4"), ("flags", "u8"), ("address", "u8"), ("at", "u8")),
        *(("size", "u8"), ("link", "u4"), ("of", "u4"), ("align", "u8"), ("each", "u8")),
    ]
)
_SYMBOL = np.dtype(
    [("name", "u4"), ("info", "u1"), ("other", "u1"), ("section", "u2"), ("at", "u8"), ("n", "u8")]
)
_RELOCATION = np.dtype([("at", "u8"), ("kind", "u4"), ("symbol", "u4"), ("plus", "i8")])


class NotLoadable(Exception):
    """The machine code needs more than a fresh process has."""


@dataclass(frozen=True, eq=False)
class Image:
    """Code and its data, as they lie in memory.

    Attributes
    ----------
    data : bytes
        Where addresses belong it has what is added to them.
    fixed : int
        Bytes that are not written, in whole pages; then come those that are.
    size : int
        Bytes in all: the rest is zeros.
    inside : array
        Places to which the address of the image is added.
    outside : dict of str to array
        Places to which the address of a function of the process is added.
    places : dict of str to int
        Of the functions and variables that are asked for.
    """

    data: bytes
    fixed: int
    size: int
    inside: np.ndarray
    outside: dict[str, np.ndarray]
    places: dict[str, int]

    @classmethod
    def of(cls, objects: Sequence[bytes], names: Iterable[str]) -> Self:
        """The image of object files, which call each other.

        Raises
        ------
        NotLoadable
            They are for another processor, or have more than addresses.
        """
        files = [_File(each) for each in objects]
        if any(file.machine != _X86_64 for file in files):
            raise NotLoadable("it is for another processor")
        layout = _Layout(files)
        data, inside, outside = bytearray(layout.filled), [], dict[str, list[int]]()
        for file in files:
            file.copy(data, layout.sections[file])
            for at, name, value in file.addresses(layout):
                data[at : at + 8] = value.to_bytes(8, "little", signed=True)
                if name is None:
                    inside.append(at)
                else:
                    outside.setdefault(name, []).append(at)
        return cls(
            bytes(data),
            layout.fixed,
            layout.size,
            np.array(inside, np.uint32),
            {name: np.array(places, np.uint32) for name, places in sorted(outside.items())},
            {name: layout.places[name] for name in names},
        )

    def placed(self, address_of: Callable[[str], int]) -> tuple[int, object]:
        """Place it in memory, as long as the second object lives; returns its address.

        Raises
        ------
        NotLoadable
            The system gives no memory for code.
        """
        given = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        try:
            memory = mmap.mmap(-1, self.size, given, mmap.PROT_READ | mmap.PROT_WRITE)
        except OSError as exc:
            raise NotLoadable(f"no memory for code: {exc}") from None
        memory[: len(self.data)] = self.data
        held = np.frombuffer(memory, np.uint8)
        address = held.ctypes.data
        _add(held, self.inside, address)
        for name, places in self.outside.items():
            _add(held, places, address_of(name))
        if _protect()(address, self.fixed, mmap.PROT_READ | mmap.PROT_EXEC):
            raise NotLoadable("the system runs no code that a program loads")
        return address, held


def _add(memory: np.ndarray, places: np.ndarray, number: int) -> None:
    """Add a number to the words at some places."""
    of_words = places[:, None] + np.arange(8)
    words = memory[of_words].view("<i8")
    memory[of_words] = (words + number).view(np.uint8)


@functools.cache
def _protect() -> Any:
    found = ctypes.CDLL(None).mprotect
    found.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    return found


def missing(objects: Sequence[bytes]) -> set[str]:
    """The names that object files need and do not have.

    Raises
    ------
    NotLoadable
        They have another format.
    """
    named = {each for data in objects for each in _File(data).names()}
    return {name for name, is_here in named if not is_here and (name, True) not in named}


class _File:
    """An object file."""

    def __init__(self, data: bytes) -> None:
        if data[:7] != b"\x7fELF\x02\x01\x01":
            raise NotLoadable("it has another format")
        self.data = data
        self.machine = int.from_bytes(data[18:20], "little")
        at, _, count = _LISTED.unpack_from(data, _AT)
        self.sections = np.frombuffer(data, _SECTION, count, at)
        tables = self.sections[self.sections["kind"] == _SYMBOLS]
        if len(tables) != 1:  # a file of 65,280 sections counts them elsewhere
            raise NotLoadable("it has no table of symbols")
        [table] = tables
        self.symbols = self.array(table, _SYMBOL).tolist()
        strings = self.sections[table["link"]]
        self._texts = data[strings["at"] : strings["at"] + strings["size"]]

    def array(self, section: Any, kind: np.dtype) -> np.ndarray:
        """The contents of a section."""
        return np.frombuffer(self.data, kind, int(section["size"]) // kind.itemsize, section["at"])

    def text(self, at: int) -> str:
        """The name of a symbol."""
        return self._texts[at : self._texts.index(b"\0", at)].decode()

    def names(self) -> Iterable[tuple[str, bool]]:
        """The names of symbols, and whether they are here."""
        for name, _, _, section, _, _ in self.symbols:
            if name:
                yield self.text(name), section != _ELSEWHERE

    def copy(self, data: bytearray, places: dict[int, int]) -> None:
        """Copy its sections to their places."""
        for number, place in places.items():
            section = self.sections[number]
            if section["kind"] == _BITS:
                bits = self.array(section, np.dtype("u1"))
                data[place : place + len(bits)] = bits.tobytes()

    def addresses(self, layout: _Layout) -> Iterable[tuple[int, str | None, int]]:
        """Where addresses belong, what they are of (None: of the image), and what is added."""
        places = layout.sections[self]
        for section in self.sections[self.sections["kind"] == _RELOCATIONS]:
            if (start := places.get(int(section["of"]))) is None:
                continue
            for at, kind, symbol, plus in self.array(section, _RELOCATION).tolist():
                if kind != _ADDRESS:
                    raise NotLoadable(f"it has a relocation of kind {kind}")
                found = layout.place(self, self.symbols[symbol])
                name = self.text(self.symbols[symbol][0]) if found is None else None
                yield start + at, name, plus + (found or 0)


class _Layout:
    """Where sections and symbols lie: what is not written, then what is, then zeros.

    Attributes
    ----------
    sections : dict of _File to dict of int to int
    places : dict of str to int
        Of symbols that files have for each other.
    fixed, filled, size : int
        Where what is written begins, where zeros begin, and where the image ends.
    """

    def __init__(self, files: Sequence[_File]) -> None:
        self.sections: dict[_File, dict[int, int]] = {file: {} for file in files}
        self.size = 0
        wanted = [
            (file, number, section)
            for file in files
            for number, section in enumerate(file.sections)
            if section["flags"] & _ALLOCATED and section["kind"] != _UNWIND
        ]
        for _, _, section in wanted:
            if section["kind"] not in (_BITS, _ZEROS) or section["flags"] & _OF_THREADS:
                raise NotLoadable(f"it has a section of kind {section['kind']}")
        self._add(each for each in wanted if not each[2]["flags"] & _WRITE)
        self.fixed = self._aligned(_PAGE)
        written = [each for each in wanted if each[2]["flags"] & _WRITE]
        self._add(each for each in written if each[2]["kind"] == _BITS)
        self.filled = self.size
        self._add(each for each in written if each[2]["kind"] == _ZEROS)
        self.places: dict[str, int] = {}
        for is_weak in (False, True):  # a weak symbol is used where there is no other
            for file, symbol, name in _shared(files):
                place = self._own(file, symbol)
                if place is not None and is_weak == (symbol[1] >> 4 == _WEAK):
                    self.places.setdefault(name, place)
        for _, (_, _, _, section, align, size), name in _shared(files):
            if section in (_COMMON, _LARGE_COMMON) and name not in self.places:
                self.places[name] = self._aligned(align)
                self.size += size

    def _aligned(self, by: int) -> int:
        self.size = -(-self.size // max(1, by)) * max(1, by)
        return self.size

    def _add(self, sections: Iterable[tuple[_File, int, Any]]) -> None:
        for file, number, section in sections:
            self.sections[file][number] = self._aligned(int(section["align"]))
            self.size += int(section["size"])

    def _own(self, file: _File, symbol: Any) -> int | None:
        _, _, _, section, at, _ = symbol
        start = self.sections[file].get(section)
        return None if start is None else start + at

    def place(self, file: _File, symbol: Any) -> int | None:
        """Where a symbol lies; None if it is none of these files.

        Raises
        ------
        NotLoadable
        """
        name, info, _, section, _, _ = symbol
        is_shared = info >> 4 != _LOCAL
        found = self.places.get(file.text(name)) if is_shared else self._own(file, symbol)
        if found is None and (section != _ELSEWHERE or not is_shared):
            raise NotLoadable(f"it names something of section {section}")
        return found


def _shared(files: Sequence[_File]) -> Iterable[tuple[_File, Any, str]]:
    """The symbols that files have for each other, with their names."""
    for file in files:
        for symbol in file.symbols:
            if symbol[1] >> 4 != _LOCAL:
                yield file, symbol, file.text(symbol[0])
