"""A source whose rows are in files: which file has which row, what is open, what is decoded."""

# These rules hold here:
#
# * A source describes its files once, when it is made: rows, shapes, dtypes. It then is a few
#   numbers for each file, which any process can use. A file that differs later is an error.
# * No file is open outside of `reading`. So none is open when a group forks its members. A fork
#   opens its own: the parent's are kept, and never closed by it.
# * A block is decoded at most once for each read. At most `keep` blocks stay in memory; of a mapped
#   file none, since a view would keep the file open.
# * One read at a time, under the lock of `_Opened`. Threads of a read have files of their own, and
#   end before it returns.
# * Files may come from strangers. What a file says of its size is checked before memory is taken
#   for it, and addresses lose their secrets before they reach a message.
# * An error names file and rows. `skip` turns that of a block into a warning and a list of lost
#   rows, and such a block is not read again; a missing library, or too little memory or too few
#   descriptors, is never skipped.

from __future__ import annotations

import contextlib
import os
import threading
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, ClassVar, override

import numpy as np

from synkhronos._checks import Checked, check_integer, or_none, shown
from synkhronos._errors import BackendMissing, BatchError, InputError, InputTypeError, SourceError
from synkhronos._host.files import is_shortage
from synkhronos._host.secrets import without_secrets
from synkhronos._warnings import log
from synkhronos.training.sources._copies import is_remote, on_this_machine
from synkhronos.training.sources._paths import few, listed

SMALL_BLOCK = 1 << 18  # bytes; stored chunks that are smaller are read together
MAPPED_BLOCK = 1 << 24  # bytes that a disk reads about as fast per byte as more
_MOST_ROWS = 1 << 48  # of a file; the rows of many files fit into an int64
_OPEN_FILES = 16  # of one source at a time
_KINDS = "biufc"  # of dtypes that Data can hold


@dataclass(frozen=True)
class Described:
    """The contents of a file: rows in each block, the shape of a row, the dtype."""

    blocks: tuple[int, ...]
    row: tuple[int, ...]
    dtype: np.dtype


class NotNumbers(TypeError):
    """A file holds something else than numbers; the message says what, and what to do."""


class Format(ABC):
    """A kind of file. It is small and can be pickled."""

    name: str  # of the reader, for messages
    kept = True  # whether decoded blocks are worth keeping. Views of mapped files never are
    # of the files that a folder stands for; without them a folder is a path as any other
    endings: ClassVar[tuple[str, ...]] = ()
    # whether files may differ in their dtype: rows then have the common one, by `cast`
    mixed = False

    def place(self, path: str, cache: str | None, described: str = "") -> str:
        """The path of the file to open: itself, or that of a copy, which is made if there is none.

        `described` is what this method has returned when the file was described, perhaps on another
        machine: then it returns the copy of the same version.
        """
        return on_this_machine(path, cache, described)

    @abstractmethod
    def describe(self, path: str) -> Described:
        """The contents of a file; nothing stays open."""

    def open(self, path: str) -> Any:
        """Open a file: the argument of `read`."""
        return path

    def close(self, handle: Any) -> None:
        """Close it."""
        del handle

    def cast(self, rows: np.ndarray, dtype: np.dtype, start: int) -> np.ndarray:
        """Rows from `start` of a file on, in the common dtype of all files."""
        raise NotImplementedError

    @abstractmethod
    def read(self, handle: Any, block: int, start: int, stop: int) -> np.ndarray:
        """The rows of a block: those from `start` to `stop` of the file."""


@dataclass(frozen=True)
class Options(Checked):
    """The arguments of all readers of files; `sources` explains them."""

    cache: str | os.PathLike[str] | None = None
    skip: bool = False
    check: bool = False
    classes: int | None = None
    keep: int = 10
    threads: int = 1

    @override
    def _check(self) -> None:
        check_integer("keep", self.keep, 1)
        or_none(check_integer, "classes", self.classes, 1)
        check_integer("threads", self.threads, 1)


class FileSource:
    """Rows in files, to be read by a `Loader`, or by an index.

    The functions of this package make it. It opens files only while it reads: a loop of a Loader
    keeps them open until its end, any other access closes them again. So no file is open when a
    group forks its members. It can be pickled, and is then a few numbers for each file: another
    process opens the files by their paths.

    Attributes
    ----------
    shape, dtype
        Of all rows together.
    blocks : tuple of int
        The rows of each chunk, row group or file, for ``Batches(blocks=)``.
    paths : tuple of str
        The files, in the order of the rows.
    skipped : tuple of str
        Files that could not be described, and are left out (``skip=True``).
    """

    def __init__(self, kind: Format, paths: object, options: Options) -> None:
        self._format = kind
        self._options = options
        names = listed(kind.name, paths, kind.endings)
        described, self._copies, left_out = _described(kind, names, options)
        first = next(iter(described.values()))
        self.dtype = np.result_type(*{d.dtype.newbyteorder("=") for d in described.values()})
        self.paths, self.skipped = tuple(described), left_out
        self.blocks = tuple([rows for d in described.values() for rows in d.blocks])
        self._file_of = np.repeat(
            np.arange(len(described)), [len(d.blocks) for d in described.values()]
        )
        self._starts = np.concatenate([[0], np.cumsum(self.blocks, dtype=np.int64)])
        file_rows = [sum(d.blocks) for d in described.values()]
        self._file_starts = np.concatenate([[0], np.cumsum(file_rows, dtype=np.int64)])
        self.shape = (int(self._starts[-1]), *first.row)
        if not self.shape[0]:
            raise InputError(f"{kind.name}: {shown(paths)} has no rows")
        self._open = _Opened()

    @property
    def skips(self) -> bool:
        """Whether rows that cannot be read are to be left out of their batch."""
        return self._options.skip

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        one = without_secrets(self.paths[0])
        files = f"{len(self.paths)} files" if len(self.paths) > 1 else one
        return f"<{self._format.name} {self.dtype} {self.shape} of {files}>"

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_open": None}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._open = _Opened()

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """Keep files open from one access to the next.

        >>> import tempfile, numpy as np
        >>> from synkhronos.training import sources
        >>> with tempfile.NamedTemporaryFile(suffix=".npy") as file:
        ...     np.save(file.name, np.arange(6.0).reshape(3, 2))
        ...     rows = sources.npy(file.name)
        ...     with rows.reading():
        ...         rows[[2, 0]]
        array([[4., 5.],
               [0., 1.]])
        """
        opened = self._opened()
        with opened.lock:
            opened.users += 1
        try:
            yield
        finally:
            with opened.lock:
                opened.users -= 1
                if not opened.users:
                    opened.close(self._format)

    def __getitem__(self, rows: object) -> np.ndarray:
        """The rows of an index array, a slice or a number, as a new array."""
        if isinstance(rows, slice):
            return self[np.arange(*rows.indices(len(self)))]
        if isinstance(rows, int | np.integer):
            return self[np.array([rows])][0]
        wanted = np.asarray(rows)
        if wanted.size and (wanted.dtype.kind not in "iu" or wanted.ndim != 1):
            raise InputTypeError(f"{self!r} takes an array of row numbers, found {shown(rows)}")
        out = np.empty((len(wanted), *self.shape[1:]), self.dtype)
        self.read_into(wanted.astype(np.int64), out)
        return out

    def read_into(self, rows: np.ndarray, out: np.ndarray) -> None:
        """Write these rows to `out`, an array of their shape and dtype."""
        low, high = (rows.min(), rows.max()) if len(rows) else (0, 0)
        if low < 0 or high >= len(self):
            raise BatchError(f"{self!r} has no row {low if low < 0 else high}")
        with self.reading():
            opened = self._opened()
            with opened.lock:
                if self._options.threads > 1 < len(rows):
                    self._gather_in_threads(opened, rows, out)
                else:
                    self._gather(opened, rows, out)
        self._check(rows, out)

    def _gather_in_threads(self, opened: _Opened, rows: np.ndarray, out: np.ndarray) -> None:
        """A part of the rows in each thread, which has files of its own; the threads end here."""
        parts = np.array_split(np.arange(len(rows)), min(self._options.threads, len(rows)))
        lost: list[int] = []
        error = None
        with ThreadPoolExecutor(len(parts)) as pool:
            tasks = [
                pool.submit(self._gather, _Opened(opened.damaged), rows[p], out[p[0] : p[-1] + 1])
                for p in parts
            ]
            for task in tasks:
                try:
                    task.result()
                except SourceError as exc:
                    if not exc.lost:
                        raise
                    error, lost = exc, [*lost, *exc.lost]
        if error is not None:
            error.lost = tuple(lost)
            raise error

    def _gather(self, opened: _Opened, rows: np.ndarray, out: np.ndarray) -> None:
        """Block by block: each that is asked for is decoded at most once."""
        block_of = np.searchsorted(self._starts, rows, "right") - 1
        order = np.argsort(block_of, kind="stable")  # and by position inside of a block
        blocks, begins = np.unique(block_of[order], return_index=True)
        groups = np.split(order, begins[1:])
        # what is decoded already comes first, and what is needed longest comes last: so the blocks
        # that are dropped are those of which an order by blocks needs no more rows
        turns = sorted(
            range(len(blocks)), key=lambda i: (int(blocks[i]) not in opened.decoded, groups[i][-1])
        )
        lost, error = [], None
        for i in turns:
            block, places = int(blocks[i]), groups[i]
            try:
                array = self._decoded(opened, block)
            except SourceError as exc:
                if not exc.lost:
                    raise
                error = exc
                lost += rows[places].tolist()
                continue
            out[places] = array[rows[places] - self._starts[block]]
        if error is not None:
            error.lost = tuple(lost)
            raise error

    def _decoded(self, opened: _Opened, block: int) -> np.ndarray:
        found = opened.decoded.get(block)
        if found is not None:
            opened.decoded.move_to_end(block)
            return found
        if block in opened.damaged:
            raise self._error(block, opened.damaged[block])
        file = int(self._file_of[block])
        start, stop = self._starts[block : block + 2] - self._file_starts[file]
        path = self.paths[file]
        first = int(np.searchsorted(self._file_of, file))
        try:
            cache, described = _text(self._options.cache), self._copies.get(path, "")
            handle = opened.handle(self._format, path, cache, described)
            found = self._format.read(handle, block - first, int(start), int(stop))
            if self._format.mixed and found.dtype != self.dtype:
                found = self._format.cast(found, self.dtype, int(start))
        except (BackendMissing, MemoryError):
            raise
        except Exception as exc:
            why = f"cannot be read: {_said(exc)}"
            if not self._options.skip or is_shortage(exc):  # the next read tries again
                raise SourceError(f"{self._rows_of(block)} {why}") from _cause(path, exc)
            opened.damaged[block] = why
            error = self._error(block, why)
            log.warning("%s; they are left out", error)
            raise error from _cause(path, exc)
        wanted = (int(stop - start), *self.shape[1:])
        if found.shape != wanted or found.dtype.newbyteorder("=") != self.dtype:
            raise SourceError(
                f"{self._rows_of(block)} are {found.dtype} of shape {found.shape}; the file had "
                f"{self.dtype} of shape {wanted} when the source was made. Make the source anew"
            )
        if self._format.kept and not isinstance(found, np.memmap):  # else a file would stay open
            while len(opened.decoded) >= self._options.keep:
                opened.decoded.popitem(last=False)
            opened.decoded[block] = found
        return found

    def _rows_of(self, block: int) -> str:
        file = self._file_of[block]
        start, stop = self._starts[block : block + 2]
        inside = start - self._file_starts[file]
        name = f"{self._format.name}: {without_secrets(self.paths[file])}"
        if len(self.blocks) == len(self.paths) and stop - start == 1:  # as for images
            return f"{name}: row {start} of the source"
        return (
            f"{name}: rows {inside} to {inside + stop - start - 1} of the file (rows {start} to "
            f"{stop - 1} of the source)"
        )

    def _error(self, block: int, why: str) -> SourceError:
        error = SourceError(f"{self._rows_of(block)} {why}")
        error.lost = (int(self._starts[block]),)  # `_gather` lists all that were asked for
        return error

    def _check(self, rows: np.ndarray, out: np.ndarray) -> None:
        if self._options.check and self.dtype.kind in "fc":
            self._refuse(rows, np.isnan(out), out, "NaN", "")
        if self._options.classes is not None:
            wrong = not_labels(out, 0, self._options.classes)
            self._refuse(
                rows, wrong, out, "a label out of range", f" (classes={self._options.classes})"
            )

    def _refuse(
        self, rows: np.ndarray, wrong: np.ndarray, out: np.ndarray, what: str, more: str
    ) -> None:
        if not wrong.any():
            return
        place = tuple(np.argwhere(wrong)[0])
        row = int(rows[place[0]])
        file = int(np.searchsorted(self._file_starts, row, "right")) - 1
        raise SourceError(
            f"{self._format.name}: {without_secrets(self.paths[file])}: row "
            f"{row - self._file_starts[file]} of the file (row {row} of the source) has {what}: "
            f"{out[place]!r}{more}"
        )

    def _opened(self) -> _Opened:
        if self._open.pid != os.getpid():
            # closing the files of the parent could wait for a lock that a thread of it held
            _of_parents.append(self._open)
            self._open = _Opened()
        return self._open


_of_parents: list[_Opened] = []


class _Opened:
    """The files of a source that one process has open, and the blocks that it has decoded."""

    def __init__(self, damaged: dict[int, str] | None = None) -> None:
        self.pid = os.getpid()
        self.lock = threading.RLock()
        self.users = 0
        self.decoded: OrderedDict[int, np.ndarray] = OrderedDict()
        self.damaged = {} if damaged is None else damaged  # blocks that are skipped, and why
        self._handles: OrderedDict[str, object] = OrderedDict()

    def handle(self, kind: Format, path: str, cache: str | None, described: str) -> object:
        """An open file; `described` is the place of the copy that the source was made from."""
        if path in self._handles:
            self._handles.move_to_end(path)
            return self._handles[path]
        if len(self._handles) >= _OPEN_FILES:
            kind.close(self._handles.popitem(last=False)[1])
        self._handles[path] = kind.open(kind.place(path, cache, described))
        return self._handles[path]

    def close(self, kind: Format) -> None:
        """Close all files; decoded rows are kept."""
        while self._handles:
            kind.close(self._handles.popitem()[1])


def _text(cache: Any) -> str | None:
    return None if cache is None else os.fspath(cache)


def _described(
    kind: Format, paths: Sequence[str], options: Options
) -> tuple[dict[str, Described], dict[str, str], tuple[str, ...]]:
    """Contents of each file, places of copies of remote ones, and the files that are left out."""
    found: dict[str, Described] = {}
    copies: dict[str, str] = {}
    left_out: list[str] = []
    for path in paths:
        if path in found:
            raise InputError(f"{kind.name}: {path} is listed twice")
        try:
            place = kind.place(path, _text(options.cache))
            found[path] = _possible(kind.describe(place))
            if place != path:
                copies[path] = place
        except (BackendMissing, MemoryError, InputError):
            raise
        except NotNumbers as exc:
            raise InputTypeError(f"{kind.name}: {without_secrets(path)}: {exc}") from None
        except Exception as exc:
            name = without_secrets(path)
            error = SourceError(f"{kind.name}: {name} cannot be read: {_said(exc)}")
            if not options.skip or is_shortage(exc):
                raise error from _cause(path, exc)
            log.warning("%s; it is left out", error)
            left_out.append(path)
            continue
        first, it = next(iter(found.values())), found[path]
        if it.row != first.row or (it.dtype != first.dtype and not kind.mixed):
            names = [without_secrets(p) for p in (path, next(iter(found)))]
            raise SourceError(
                f"{kind.name}: the rows of {names[0]} are {it.dtype} of shape {it.row}, and those "
                f"of {names[1]} are {first.dtype} of shape {first.row}"
            )
    if not found:
        names = [without_secrets(path) for path in paths]
        raise SourceError(f"{kind.name}: no file of {shown(names)} can be read")
    return found, copies, tuple(left_out)


def _possible(described: Described) -> Described:
    """The same; raises if there are more rows than numbers for them, or numpy has no such row."""
    check_numbers(described.dtype)
    least = min((*described.blocks, *described.row), default=0)
    if least < 0 or sum(described.blocks) > _MOST_ROWS:
        raise ValueError(f"it says that it has {sum(described.blocks):,} rows of {described.row}")
    np.broadcast_to(np.empty((), described.dtype), (1, *described.row))  # too long; 64 dimensions
    return described


def check_numbers(dtype: np.dtype) -> None:
    """Refuse a dtype that is not one of numbers; the message says what to write.

    Raises
    ------
    NotNumbers
    """
    if dtype.kind in _KINDS:
        return
    if dtype.names is not None:
        what, cure = f"records with the fields {few(dtype.names)}", "each field as an array"
    elif dtype.kind in "mM":
        what, cure = str(dtype), "them as int64, by .astype('int64')"
    elif dtype.kind in "UST":
        what, cure = f"text ({dtype})", "the number of each value, such as that of its class"
    else:
        what, cure = f"{dtype}", "numbers, such as float64"
    raise NotNumbers(f"it holds {what}, and Data hold numbers: write {cure}")


def _said(exc: Exception) -> str:
    return without_secrets(f"{type(exc).__name__}: {exc}")


def _cause(path: str, exc: Exception) -> Exception | None:
    """The cause to show; that of a remote file repeats its address, which may be signed."""
    return None if is_remote(path) else exc


_UNCHECKED_BYTES = 1 << 30  # of a file
UNCHECKED_BLOCK = 1 << 26  # of a block, which is decoded for any of its rows
_MOST_PACKED = 4096  # bytes of rows for a byte in the file; of zeros deflate makes 1,032


def check_stored(
    declared: int, stored: int, cure: str = "", unchecked: int = _UNCHECKED_BYTES
) -> None:
    """Refuse rows that would take all memory, and of which the file has next to nothing.

    Parameters
    ----------
    declared, stored : int
        Bytes that the file says it has, and bytes of it.
    cure : str
        The end of the message.
    unchecked : int
        Bytes for which nothing need be stored, as for rows of a fill value.
    """
    if declared > unchecked + _MOST_PACKED * stored:
        raise ValueError(
            f"it says that it has {declared:,} bytes of rows, and stores {stored:,}: it is damaged "
            f"or made to take all memory{cure}"
        )


_LISTED_BYTES = 400  # of memory for a row of a list of files, beside its texts


def check_listed(rows: int, texts: int, stored: int) -> None:
    """Refuse a list of files whose rows and texts would take far more memory than it explains."""
    check_stored(rows * _LISTED_BYTES + texts, stored, unchecked=UNCHECKED_BLOCK)


_MOST_BLOCKS = 1 << 22  # 1 TB in blocks of 256 KB; a list of them takes some 150 MB


def not_labels(values: np.ndarray, first: int, stop: float) -> np.ndarray:
    """Which values are not integers from `first` up to `stop`; NaN is none."""
    wrong = ~((values >= first) & (values < stop))
    return wrong | (values != np.floor(values)) if values.dtype.kind == "f" else wrong


def even_blocks(
    rows: int, row_bytes: int, unit: int = 1, least: int = SMALL_BLOCK
) -> tuple[int, ...]:
    """Blocks of whole `unit` rows, of at least this many bytes each; the last may be shorter."""
    size = unit * max(1, -(-least // max(1, unit * row_bytes)))
    if rows > size * _MOST_BLOCKS:
        raise ValueError(
            f"it says that it has {rows:,} rows of {row_bytes:,} bytes, which are more than "
            f"{_MOST_BLOCKS:,} blocks: it is damaged, or write larger chunks or several files"
        )
    return tuple([min(size, rows - start) for start in range(0, rows, size)])
