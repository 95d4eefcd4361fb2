"""Objects as bytes: commands and outcomes between processes of one group.

This is the only module that unpickles. It reads only what the group's own processes have written
into memory that they inherited. Large arrays travel beside the pickle (protocol 5): they are copied
once into the arena and read there in place. cloudpickle handles graphs, since it sends by value
what `__main__` or a notebook cell defines. Shared variables travel as numbers, so that one variable
stays one variable in all messages.
"""

from __future__ import annotations

import io
import pickle
import struct
import sys
import types
from collections.abc import Callable, Mapping
from typing import Any

import cloudpickle

from synkhronos._errors import InputError

_ALIGN = 64
_BY_VALUE = 6  # parts of what cloudpickle makes of a class that cannot be imported
_COUNT = struct.Struct("=q")

type Reducers = Mapping[type, Callable[[Any], object]]  # of the objects of a class


class Serialized:
    """A pickled object, ready to be written to shared memory.

    >>> box = bytearray(1000)
    >>> packed = Serialized(("a", 1)); _ = packed.write(box)
    >>> read(memoryview(box))
    ('a', 1)
    """

    def __init__(self, value: object) -> None:
        self._buffers: list[memoryview] = []
        main = self._dumps(value)
        sizes = [len(main), *(b.nbytes for b in self._buffers)]
        self._head = struct.pack(f"={len(sizes) + 1}q", len(sizes), *sizes)
        self._main = main
        self.nbytes = len(self._head) + len(main)
        for buffer in self._buffers:
            self.nbytes = _aligned(self.nbytes) + buffer.nbytes

    def _dumps(self, value: object) -> bytes:
        if not getattr(value, "foreign", False):
            try:
                return pickle.dumps(value, 5, buffer_callback=self._beside)
            except (pickle.PicklingError, AttributeError, TypeError):
                self._buffers.clear()  # classes that cannot be imported travel by value
        file = io.BytesIO()
        _ValuePickler(file, 5, self._beside).dump(value)
        return file.getvalue()

    def _beside(self, buffer: pickle.PickleBuffer) -> bool:
        raw = buffer.raw()
        if raw.nbytes < 1024:
            return True  # small buffers stay in the pickle
        self._buffers.append(raw)
        return False

    def write(self, target: Any) -> int:
        """Write to a buffer; returns the length in bytes."""
        at = len(self._head)
        target[:at] = self._head
        target[at : at + len(self._main)] = self._main
        at += len(self._main)
        for buffer in self._buffers:
            at = _aligned(at)
            target[at : at + buffer.nbytes] = buffer
            at += buffer.nbytes
        return at


def read(source: memoryview) -> object:
    """The inverse of `Serialized`; large arrays are views of `source`."""
    (count,) = _COUNT.unpack_from(source)
    sizes = struct.unpack_from(f"={count}q", source, _COUNT.size)
    at = _COUNT.size * (count + 1)
    main = source[at : at + sizes[0]]
    at += sizes[0]
    buffers = []
    for size in sizes[1:]:
        at = _aligned(at)
        buffers.append(source[at : at + size])
        at += size
    return pickle.loads(main, buffers=buffers)


def _aligned(at: int) -> int:
    return -(-at // _ALIGN) * _ALIGN


def _no_id(value: object) -> None:
    del value


def _no_number(number: object) -> object:
    raise LookupError(number)


def pack_graph(
    value: object,
    persistent_id: Callable[[object], int | None] = _no_id,
    reducers: Reducers | None = None,
) -> bytes:
    """Pickle graphs; objects that `persistent_id` numbers (shared variables) travel as numbers.

    Without `persistent_id` none does: for a process that has no variables yet.
    `reducers`: functions that pickle the objects of a class and of its subclasses.
    """
    file = io.BytesIO()
    _GraphPickler(file, persistent_id, reducers or {}).dump(value)
    return file.getvalue()


def pack_or_refuse(value: object, what: str, then: str) -> bytes:
    """As `pack_graph` without numbers, for another process.

    Parameters
    ----------
    value : object
    what : str
        Names the call and the value in a message, as in "map: item a".
    then : str
        The sentence that says what to do.

    Raises
    ------
    InputError
        It cannot be pickled.
    """
    try:
        return pack_graph(value)
    except Exception as exc:  # of any object that it refers to
        raise InputError(
            f"{what} refers to what cannot be sent to a process: {exc}. {then}"
        ) from exc


def proxy_reducers() -> Reducers:
    """Reducers of proxies of multiprocessing's managers, for a process that this one has started.

    A proxy speaks to its manager by a key, which fresh interpreters have not inherited.
    """
    managers = sys.modules.get("multiprocessing.managers")
    return {} if managers is None else {managers.BaseProxy: _with_key}


def _with_key(proxy: Any) -> object:
    return _proxy, (bytes(proxy._authkey), *proxy.__reduce__())


def _proxy(key: bytes, make: Callable[..., object], parts: tuple[object, ...]) -> object:
    """A proxy in a process that gets the key, also for the proxies that managers send later."""
    sys.modules["multiprocessing.process"].current_process().authkey = key
    return make(*parts)


def pack_level(value: object, nested: Callable[[object], int | None]) -> bytes:
    """Pickle an object, with a number in the place of each object in it; for digests.

    `nested` gives the numbers; None: this one is pickled as it is.
    """
    file = io.BytesIO()
    pickle.Pickler.dump(_LevelPickler(file, nested), value)  # cloudpickle's changes RecursionError
    return file.getvalue()


def unpack_graph(data: bytes, persistent_load: Callable[[int], object] = _no_number) -> Any:
    """The inverse of pack_graph."""
    return _Unpickler(io.BytesIO(data), persistent_load).load()


class _ValuePickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Sends by value what cannot be imported; code keeps the name of its file.

    cloudpickle 3.1.3 leaves that name out. A traceback of a worker would not show the user's lines.
    """

    def reducer_override(self, obj: object) -> object:
        if type(obj) is types.CodeType:
            make, parts = self.dispatch_table[types.CodeType](obj)
            return _code, (obj.co_filename, make, parts)
        return super().reducer_override(obj)


def _code(filename: str, make: Callable[..., types.CodeType], parts: tuple[object, ...]) -> object:
    return make(*parts).replace(co_filename=filename)


class _GraphPickler(_ValuePickler):
    def __init__(
        self, file: io.BytesIO, persistent_id: Callable[[object], int | None], reducers: Reducers
    ) -> None:
        super().__init__(file, protocol=5)
        self._persistent_id = persistent_id
        self._reducers = reducers

    def persistent_id(self, obj: object) -> int | None:
        return self._persistent_id(obj)

    def reducer_override(self, obj: object) -> object:
        for kind in type(obj).__mro__[:-1]:
            if kind in self._reducers:
                return self._reducers[kind](obj)
        return super().reducer_override(obj)


class _LevelPickler(_GraphPickler):
    def __init__(self, file: io.BytesIO, nested: Callable[[object], int | None]) -> None:
        super().__init__(file, nested, {})
        self._first = True

    def persistent_id(self, obj: object) -> int | None:
        if self._first:  # the object itself, which may come again
            self._first = False
            return None
        return super().persistent_id(obj)

    def reducer_override(self, obj: object) -> object:
        found = super().reducer_override(obj)
        if isinstance(obj, type) and isinstance(found, tuple) and len(found) == _BY_VALUE:
            make, (*given, _, extra), *rest = found
            return make, (*given, None, extra), *rest  # without the number that cloudpickle draws
        return found


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, persistent_load: Callable[[int], object]) -> None:
        super().__init__(file)
        self._persistent_load = persistent_load

    def persistent_load(self, pid: int) -> object:
        return self._persistent_load(pid)
