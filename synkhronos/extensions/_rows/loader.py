"""A loader: a thread reads the next batches into shared memory while the members use this one."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Literal

import numpy as np

from synkhronos._checks import check_integer, check_word, options_checked, shown
from synkhronos._engine.group import current
from synkhronos._engine.process_bound import ProcessBound
from synkhronos._errors import InputError, InputTypeError
from synkhronos.extensions._rows.batches import Batches
from synkhronos.extensions._rows.by_master import MasterLoop, MasterSets
from synkhronos.extensions._rows.by_nodes import NodeLoop, NodeSets
from synkhronos.extensions._rows.source import Source


class Loader(ProcessBound):
    """Reads batches ahead, of data that are too large for memory or slow to read.

    Each `for` loop is one epoch of the batches. It yields Data, one for each source, that hold
    exactly the rows of the batch. A Data is valid until the next iteration; then the thread
    overwrites it. All loops over one loader use the same Data.

    Parameters
    ----------
    sources : source, or list or tuple of them
        Arrays, `numpy.memmap`, tables of pandas, tensors, objects with a length that take an int64
        array as index (h5py, zarr), or functions of such an array that return an array, or a tuple
        of several. A single source of one array yields a Data, not a tuple.
    batches : Batches
    sort : bool
        Ask the sources for rows in ascending order, which disks read faster. The rows of the batch
        keep their order. Data sets of h5py, which take no other order, are always asked so.
    prefetch : int, at least 2
        Batches in shared memory: one in use, the others read ahead. More than 2 help where some
        batches take longer to read than others, as those that need new blocks.
    read : {"master", "node"}
        "node": on several nodes, the leader of each reads the rows of its own members, so that none
        travel. The sources then need a `shape` and a `dtype`, and are pickled to the leaders: those
        of `synkhronos.training.sources` open their files there by the same paths. The Data are as
        if made with ``scatter=True``. On one machine it has no effect.

    Attributes
    ----------
    batches : Batches
    sources : list
        As they were given.
    waited : float
        Seconds that loops have waited for the sources.
    rows : numpy.ndarray of int64
        The numbers of the rows of the batch at hand, in its order.
    skipped : int
        Rows that were left out, since sources made with ``skip=True`` could not read them. Their
        batch is shorter; a batch without rows is not handed out.

    Raises
    ------
    NotForked
    InputError, InputTypeError
        An object is not a source, or sources and batches have different lengths.
    MemoryError
        The batches do not fit into shared memory.

    Notes
    -----
    Cost: shared memory for `prefetch` batches; a thread while a loop runs, which sleeps when all
    batches are read; one copy of each row, by the thread. The master can compute during copies by
    numpy, but not while a source runs Python code. Only the master reads; workers take no part.
    With ``read="node"`` one command a batch tells the leaders to read, and each has such a thread,
    which ends half a second after its last read.

    A source may have a method ``reading()``: a context that the thread enters for the whole loop,
    in which the source may keep files open.

    An exception of a source is raised in the loop, with its traceback; that of another node as a
    `WorkerError`. The end of the loop ends the
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

    _instead = "pickle its batches, which keep their position, and make the Loader again"

    @options_checked
    def __init__(
        self,
        sources: object,
        batches: Batches,
        sort: bool = False,
        prefetch: int = 2,
        read: Literal["master", "node"] = "master",
    ) -> None:
        self._group = current("Loader")
        if not isinstance(batches, Batches):
            raise InputTypeError(f"Loader: {shown(batches)} is not a Batches object")
        listed = isinstance(sources, list | tuple)
        given = sources if isinstance(sources, list | tuple) else [sources]
        found = [Source(s, i, batches.n) for i, s in enumerate(given)]
        if not found:
            raise InputError("Loader: no source is given")
        prefetch = check_integer("Loader: prefetch", prefetch, 2)
        check_word("Loader: read", read, ("master", "node"))
        self.batches = batches
        self.sources = list(given)
        self.sort = bool(sort)
        self.waited = 0.0
        self.rows = np.zeros(0, np.int64)
        self._loop: MasterLoop | NodeLoop | None = None
        by_nodes = read == "node" and self._group.member.communicator.nodes > 1
        sets = NodeSets if by_nodes else MasterSets
        self._sets = sets(self._group, found, batches, self.sort, prefetch, listed)

    @property
    def skipped(self) -> int:
        """Rows that were left out so far."""
        return self._sets.skipped

    def __len__(self) -> int:
        """The number of batches in an epoch."""
        return len(self.batches)

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """End the current loop, if there is one; the loader can be used again."""
        loop, self._loop = self._loop, None
        if loop is not None and not loop.stop():
            self._sets.drop()

    def __iter__(self) -> Iterator[object]:
        self._group.check("Loader")
        self.close()
        walk = self.batches.walk()
        loop = self._loop = self._sets.loop(walk)
        try:
            loop.start()
            for number in range(len(walk)):
                begun = time.perf_counter()
                try:
                    with self._group.span("read"):
                        found = loop.take(number)
                finally:
                    self.waited += time.perf_counter() - begun
                if not walk.step(number):
                    return
                if found is not None:
                    self.rows = loop.rows
                    yield found if self._sets.several else found[0]
                loop.check()  # while the Data are intact
            walk.finish()
        finally:
            loop.stop()
