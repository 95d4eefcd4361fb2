"""The reading thread of the master.

Only the consumer's thread uses the group and the arena; the reading thread only fills numpy arrays.
Two queues connect them::

    consumer                                     thread
    todo: a batch, and arrays to write it to     reads and writes it
    takes it, or raises the source's exception   done: the batch
    todo: None                                   ends

Both threads sleep while they wait, and check twice a second that the other still runs. The queues
are `queue.SimpleQueue`, written in C: an interrupt cannot leave a lock of theirs taken.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import queue
import threading
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from synkhronos._engine.group import Group
from synkhronos._errors import GroupError, InputError, SourceError
from synkhronos._warnings import log
from synkhronos.extensions._rows.batches import EpochWalk
from synkhronos.extensions._rows.source import Source, fits

LOOK_SECONDS = 0.5  # between two checks that the other thread still runs
JOIN_SECONDS = 5.0  # to wait for the end of a read before the thread is abandoned


@dataclass
class Read:
    """A batch read by the thread."""

    # one for each Data; None where it has been written to its place
    arrays: list[np.ndarray | None]
    several: bool  # whether a source has returned a tuple
    rows: np.ndarray  # the rows that were read
    lost: int  # rows that were left out, since a source could not read them


class BatchReader:
    """The reading thread of one loop, and the queues between it and the consumer."""

    def __init__(
        self, sources: Sequence[Source], shuffled: bool, walk: EpochWalk, sort: bool, group: Group
    ) -> None:
        self.todo: queue.SimpleQueue[tuple[int, list[np.ndarray]] | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[Read | BaseException] = queue.SimpleQueue()
        self._sources = sources
        self._shuffled = shuffled
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
        try:
            files = opened(self._sources)
        except BaseException as exc:
            self._done.put(exc)
            return
        with files:
            self._answer()

    def _answer(self) -> None:
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
        where = f"batch {number + 1} of epoch {self._walk.epoch + 1}"
        return read_batch(self._sources, self._walk.rows(number), self._sort, targets, where)


def opened(sources: Sequence[Source]) -> contextlib.ExitStack:
    """Enter the contexts in which sources are read; leaving the returned one leaves all."""
    with contextlib.ExitStack() as files:
        for source in sources:
            try:
                files.enter_context(source.reading())
            except BaseException as exc:
                exc.add_note(f"synkhronos: raised when {source.label} was opened")
                raise
        return files.pop_all()


def read_batch(
    sources: Sequence[Source], rows: np.ndarray, sort: bool, targets: list[np.ndarray], where: str
) -> Read:
    """Read rows of all sources, without those that a source leaves out."""
    asked = len(rows)
    while True:
        try:
            arrays, several = _read_all(sources, rows, sort, targets, where)
        except SourceError as exc:
            left = rows[~np.isin(rows, exc.lost)]
            if len(left) == len(rows):
                raise
            rows = left
            if len(rows):
                continue
            arrays, several = [], False
        return Read(arrays, several, rows, asked - len(rows))


def _read_all(
    sources: Sequence[Source], rows: np.ndarray, sort: bool, targets: list[np.ndarray], where: str
) -> tuple[list[np.ndarray | None], bool]:
    rising = np.argsort(rows, kind="stable") if sort or any(s.ascending for s in sources) else None
    arrays: list[np.ndarray | None] = []
    several = False
    for source in sources:
        order = rising if sort or source.ascending else None
        asked = rows if order is None else rows[order]
        target = targets[len(arrays)] if len(arrays) < len(targets) else None
        try:
            # a sorted read cannot write to its place: the batch keeps its order
            found = source.read(asked, target if order is None else None)
            several = several or isinstance(found, tuple)
            for array in found if isinstance(found, tuple) else (found,):
                target = targets[len(arrays)] if len(arrays) < len(targets) else None
                arrays.append(_placed(array, len(rows), target, order))
        except BaseException as exc:
            exc.add_note(f"synkhronos: raised when {source.label} was read for {where}")
            raise
    return arrays, several


def _placed(
    found: object, rows: int, target: np.ndarray | None, order: np.ndarray | None
) -> np.ndarray | None:
    """Copy rows to their target, or return them if the consumer has to copy them."""
    array = np.asarray(found)
    if array.ndim == 0 or len(array) != rows:
        raise InputError(
            f"Loader: the source returned an array of shape {array.shape} for {rows} rows"
        )
    if found is target:
        return None
    suits = target is not None and fits(target, rows, array)
    if not suits and order is None:
        return array
    place = target if target is not None and suits else np.empty_like(array)
    place[... if order is None else order] = array
    return None if suits else place
