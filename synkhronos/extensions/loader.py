"""A loader: a thread reads the next batch into shared memory while the members use this one.

Two sets of Data alternate. Only the consumer's thread uses the group and the arena; the reading
thread only fills numpy arrays. Two queues connect them::

    consumer                                     thread
    todo: a batch, and arrays to write it to     reads and writes it
    takes it, or raises the source's exception   done: the batch
    todo: None                                   ends

Both threads sleep while they wait, and check twice a second that the other still runs. The queues
are `queue.SimpleQueue`, written in C: an interrupt cannot leave a lock of theirs taken.
"""

from __future__ import annotations

import atexit
import logging
import mmap
import os
import queue
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import numpy as np

from synkhronos._api.data import Data
from synkhronos._api.make_data import data
from synkhronos._engine.group import Group, current
from synkhronos._errors import GroupError, InputError, InputTypeError, options_checked, shown
from synkhronos.extensions.batches import Batches, EpochWalk

log = logging.getLogger("synkhronos")

LOOK_SECONDS = 0.5  # between two checks that the other thread still runs
JOIN_SECONDS = 5.0  # to wait for the end of a read before the thread is abandoned
_NO_SOURCES = (list, tuple, str, bytes, dict)
_LONG_ROW_BYTES = 1 << 16  # one row of this size is worth reading ahead


class Loader:
    """Reads batches ahead, of data that are too large for memory or slow to read.

    Each `for` loop is one epoch of the batches. It yields Data, one for each source, that hold
    exactly the rows of the batch. A Data is valid until the next iteration; then the thread
    overwrites it. All loops over one loader use the same Data.

    Parameters
    ----------
    sources : source, or list or tuple of them
        Arrays, `numpy.memmap`, objects with a length that take an int64 array as index (h5py,
        zarr), or functions of such an array that return an array, or a tuple of several. A single
        source of one array yields a Data, not a tuple.
    batches : Batches
    sort : bool
        Ask the sources for rows in ascending order (h5py requires it, disks read it faster). The
        rows of the batch keep their order.

    Attributes
    ----------
    waited : float
        Seconds that loops have waited for the sources.

    Raises
    ------
    NotForked
    InputError, InputTypeError
        An object is not a source, or sources and batches have different lengths.
    MemoryError
        Two batches do not fit into shared memory.

    Notes
    -----
    Cost: shared memory for two batches; a thread while a loop runs, which sleeps when both batches
    are read; one copy of each row, by the thread. The master can compute during copies by numpy,
    but not while a source runs Python code. Only the master reads; workers take no part.

    An exception of a source is raised in the loop, with its traceback. The end of the loop ends the
    thread, as do `close` and the end of the group. If a read does not end within 5 seconds, the
    thread is abandoned and a log line says so. The batches' `state` names the next batch of the
    loop, independent of how far the thread has read.

    Examples
    --------
    >>> import numpy as np, synkhronos as synk
    >>> from synkhronos.extensions.batches import Batches
    >>> from synkhronos.extensions.loader import Loader
    >>> _ = synk.fork(2)
    >>> with Loader([np.arange(6.0).reshape(3, 2), np.arange(3)], Batches(3, 2)) as loader:
    ...     [(x.shape, y.shape) for x, y in loader]
    [((2, 2), (2,)), ((1, 2), (1,))]
    >>> synk.close()
    """

    @options_checked
    def __init__(self, sources: Any, batches: Batches, sort: bool = False) -> None:
        self._group = current("Loader")
        if not isinstance(batches, Batches):
            raise InputTypeError(f"Loader: {shown(batches)} is not a Batches object")
        self._listed = isinstance(sources, list | tuple)
        given = sources if isinstance(sources, list | tuple) else [sources]
        self._sources = [Source(s, i, batches.n) for i, s in enumerate(given)]
        if not self._sources:
            raise InputError("Loader: no source is given")
        self.batches = batches
        self.sort = bool(sort)
        self.waited = 0.0
        self._tuples = self._listed
        self._sets: list[tuple[Data, ...]] = []
        self._reader: BatchReader | None = None
        kinds = [s.kind for s in self._sources if s.kind is not None]
        if len(kinds) == len(self._sources):
            self._allocate(kinds)

    def __len__(self) -> int:
        """The number of batches in an epoch."""
        return len(self.batches)

    def __enter__(self) -> Loader:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the current loop, if there is one; the loader can be used again."""
        reader, self._reader = self._reader, None
        if reader is not None and not reader.stop():
            self._sets = []  # its thread may still write there

    def __iter__(self) -> Iterator[Any]:
        self._group.check("Loader")
        self.close()
        walk = self.batches.walk()
        self._reader = reader = BatchReader(
            self._sources, self.batches, walk, self.sort, self._group
        )
        try:
            reader.start()
            for number in range(min(2, len(walk))):
                self._give(reader, walk, number)
            for number in range(len(walk)):
                found = self._take(reader, walk, number)
                if not walk.step(number):
                    return
                yield found
                reader.check()  # while the Data are intact
                if number + 2 < len(walk):
                    self._give(reader, walk, number + 2)
            walk.finish()
        finally:
            reader.stop()

    def _give(self, reader: BatchReader, walk: EpochWalk, number: int) -> None:
        """Ask for a batch, into the next set of Data."""
        start, stop = walk.span(number)
        turn = self._sets[number % 2] if self._sets else ()
        for d in turn:
            d.set_length(stop - start)
        reader.todo.put((number, [d.writable for d in turn]))

    def _take(self, reader: BatchReader, walk: EpochWalk, number: int) -> Any:
        """Wait for a batch; returns the Data that hold it."""
        begun = time.perf_counter()
        try:
            read = reader.take()
        finally:
            self.waited += time.perf_counter() - begun
        if not self._sets:
            self._tuples = self._listed or read.several
            self._allocate([(a.shape[1:], a.dtype) for a in read.arrays if a is not None])
        turn = self._sets[number % 2]
        if len(turn) != len(read.arrays):
            raise InputError(
                f"Loader: the sources gave {len(read.arrays)} arrays for batch {number} of epoch "
                f"{walk.epoch}, and {len(turn)} before"
            )
        for d, array in zip(turn, read.arrays, strict=True):
            if array is not None:
                d.set_value(array)
            else:  # it is there already
                d.wrote()
        return turn if self._tuples else turn[0]

    def _allocate(self, kinds: Sequence[tuple[tuple[int, ...], np.dtype]]) -> None:
        rows = min(self.batches.size, self.batches.n)
        with self._group.active():
            self._sets = [
                tuple([data(shape=(rows, *shape), dtype=dtype) for shape, dtype in kinds])
                for _ in range(2)
            ]


class Source:
    """A source of rows: an object to index, or a function of an index.

    Attributes
    ----------
    kind : tuple, or None
        The shape of a row and the dtype, where they can be told before anything is read.
    """

    def __init__(self, given: Any, number: int, rows: int) -> None:
        self._given: Any = given
        self.label = f"source {number} ({type(given).__name__})"
        self.kind: tuple[tuple[int, ...], np.dtype] | None = None
        self._file: mmap.mmap | None = None
        self._plain = False  # take() reads only these rows; of other types it copies all rows first
        indexed = hasattr(given, "__getitem__") and hasattr(given, "__len__")
        self._function = callable(given) and not indexed
        if self._function:
            return
        if not indexed or isinstance(given, _NO_SOURCES) or getattr(given, "shape", None) == ():
            raise InputTypeError(
                f"Loader: {self.label} does not take an array as index, and is not a function: "
                "give an array, numpy.memmap, an h5py dataset, or a function from rows to arrays"
            )
        if len(given) != rows:
            raise InputError(f"Loader: {self.label} has {len(given)} rows, the batches {rows}")
        shape, dtype = getattr(given, "shape", None), getattr(given, "dtype", None)
        if isinstance(shape, tuple) and isinstance(dtype, np.dtype):
            self.kind = shape[1:], dtype
        if type(given) in (np.ndarray, np.memmap):
            flags = given.flags
            self._plain = flags.c_contiguous and flags.aligned and given.dtype.isnative
            self._file = _mapping(given) if given[:1].nbytes < _LONG_ROW_BYTES else None

    def expect(self, random: bool) -> None:
        """Tell the kernel whether rows of a mapped file are read here and there.

        It reads (and for holes in the file, makes) many pages around each that is touched: for
        random rows of 8 kB that took 400 times as long as the rows alone.
        """
        if self._file is not None and not self._file.closed:
            self._file.madvise(mmap.MADV_RANDOM if random else mmap.MADV_NORMAL)

    def read(self, rows: np.ndarray, out: np.ndarray | None) -> Any:
        """Read these rows, into `out` if that is possible."""
        if self._function:
            return self._given(rows)
        if self._plain and out is not None and _fits(out, len(rows), self._given):
            # the batches have no other rows than the source, so "clip" never clips; it spares
            # numpy a second pass
            return np.take(self._given, rows, axis=0, out=out, mode="clip")
        return self._given[rows]


@dataclass
class Read:
    """A batch read by the thread.

    Attributes
    ----------
    arrays : list
        One for each Data; None where it has been written to its place.
    several : bool
        Whether a source has returned a tuple.
    """

    arrays: list[np.ndarray | None]
    several: bool = False


class BatchReader:
    """The reading thread of one loop, and the queues between it and the consumer."""

    def __init__(
        self, sources: Sequence[Source], batches: Batches, walk: EpochWalk, sort: bool, group: Group
    ) -> None:
        self.todo: queue.SimpleQueue[tuple[int, list[np.ndarray]] | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[Read | BaseException] = queue.SimpleQueue()
        self._sources = sources
        self._shuffled = batches.shuffle
        self._walk = walk
        self._sort = sort
        self._group = group
        self._consumer = threading.current_thread()
        self._stopped = False
        self._owner = os.getpid()
        # a daemon, since Python joins other threads before it runs what is registered for its exit
        self._thread = threading.Thread(target=self._serve, name="synkhronos-loader", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        atexit.register(self.stop)
        for source in self._sources:
            source.expect(random=self._shuffled)
        self._thread.start()

    def stop(self) -> bool:
        """End the thread; returns whether it has ended. Safe to call again, from any thread."""
        if self._owner != os.getpid():  # a fork has no such thread
            return True
        self._stopped = True
        self.todo.put(None)
        atexit.unregister(self.stop)
        if threading.current_thread() is self._thread or self._thread.ident is None:
            return self._thread.ident is None
        self._thread.join(JOIN_SECONDS)
        if self._thread.is_alive():
            log.warning(
                "Loader: a read has not ended within %g s; its thread ends with the read",
                JOIN_SECONDS,
            )
            return False
        for source in self._sources:
            source.expect(random=False)
        return True

    def take(self) -> Read:
        """Wait for the next batch; raises the exception of the source, if any."""
        self._consumer = threading.current_thread()
        while True:
            self.check()
            serving = self._owner == os.getpid() and self._thread.is_alive()
            try:
                found = self._done.get(timeout=LOOK_SECONDS)
            except queue.Empty:
                if not serving:
                    raise GroupError("Loader: the reading thread is gone: begin anew") from None
                continue
            if isinstance(found, Read):
                return found
            try:
                raise found
            finally:
                del found  # its traceback holds this frame

    def check(self) -> None:
        """Raise if the loop cannot continue."""
        self._group.check("Loader")
        if self._stopped:
            raise InputError("Loader: close() or another loop over the loader has ended this loop")

    def _serve(self) -> None:
        while not self._stopped:
            try:
                job = self.todo.get(timeout=LOOK_SECONDS)
            except queue.Empty:
                if self._consumer.is_alive() and self._group.alive:
                    continue
                return
            if job is None:
                return
            try:
                self._done.put(self._read(*job))
            except BaseException as exc:
                self._done.put(exc)

    def _read(self, number: int, targets: list[np.ndarray]) -> Read:
        rows = self._walk.rows(number)
        order = np.argsort(rows, kind="stable") if self._sort else None
        asked = rows if order is None else rows[order]
        arrays: list[np.ndarray | None] = []
        several = False
        for source in self._sources:
            target = targets[len(arrays)] if len(arrays) < len(targets) else None
            try:
                found = source.read(asked, target if order is None else None)
                several = several or isinstance(found, tuple)
                for array in found if isinstance(found, tuple) else (found,):
                    target = targets[len(arrays)] if len(arrays) < len(targets) else None
                    arrays.append(_placed(array, len(rows), target, order))
            except BaseException as exc:
                exc.add_note(
                    f"synkhronos: raised when {source.label} was read for batch {number} of "
                    f"epoch {self._walk.epoch}"
                )
                raise
        return Read(arrays, several)


def _mapping(array: Any) -> mmap.mmap | None:
    """The mapped file that an array is a view of; None if it is not."""
    while isinstance(array, np.ndarray):
        array = array.base
    return array if isinstance(array, mmap.mmap) else None


def _placed(
    found: Any, rows: int, target: np.ndarray | None, order: np.ndarray | None
) -> np.ndarray | None:
    """Copy rows to their target, or return them if the consumer has to copy them."""
    array = np.asarray(found)
    if array.ndim == 0 or len(array) != rows:
        raise InputError(
            f"Loader: the source returned an array of shape {array.shape} for {rows} rows"
        )
    if found is target:
        return None
    fits = target is not None and _fits(target, rows, array)
    if not fits and order is None:
        return array
    place = target if target is not None and fits else np.empty_like(array)
    place[... if order is None else order] = array
    return None if fits else place


def _fits(target: np.ndarray, rows: int, source: np.ndarray) -> bool:
    """Whether this many rows of the source can be written to the target without a cast."""
    return target.shape == (rows, *source.shape[1:]) and np.can_cast(
        source.dtype, target.dtype, "equiv"
    )
