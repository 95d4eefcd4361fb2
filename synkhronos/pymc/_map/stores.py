"""Where results are kept: files that only this user writes, or that this user has signed."""

from __future__ import annotations

import contextlib
import glob
import os
import platform
import shutil
import stat
import tempfile
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO

from synkhronos._errors import InputError
from synkhronos._host import files
from synkhronos._host.folder_locks import FolderLock


class Store(ABC):
    """Files with names, each of which is written as a whole.

    Attributes
    ----------
    at : pathlib.Path or str
        Where it is.
    shown : str
        The same, in messages.
    path : pathlib.Path
        The folder of this machine in which processes leave results, see `came`.
    """

    at: Path | str
    shown: str
    path: Path

    @abstractmethod
    def note(self, name: str, text: str) -> None:
        """Write a text, which is no code."""

    @abstractmethod
    def noted(self, name: str) -> str:
        """A text; raises FileNotFoundError if there is none, and other OSErrors."""

    @abstractmethod
    def opened(self, name: str) -> contextlib.AbstractContextManager[IO[bytes]]:
        """A context with a result, that this user has written.

        Raises
        ------
        OSError
            It is not there, or cannot be read.
        InputError
            Another user may have written it.
        """

    def came(self, name: str) -> None:
        """A process has left a result in `path`: it is kept from now on, or soon."""
        del name

    @abstractmethod
    def remove(self, name: str) -> None:
        """Remove a result that is kept.

        Raises
        ------
        OSError, SynkhronosError
            It cannot be removed.
        """

    def finish(self) -> None:  # noqa: B027 - most keep at once
        """Wait until all that came is kept."""

    def each[T, R](self, function: Callable[[T], R], values: Iterable[T]) -> list[R]:
        """Results of a function that looks at files, in order."""
        return [function(value) for value in values]


class OwnFolder(Store):
    """A folder of this machine, which only this user writes to, since results are pickles.

    Raises
    ------
    InputError
        It cannot be made, or another user may write to it.
    """

    def __init__(self, given: str | os.PathLike[str] | None) -> None:
        self.path = self.at = Path(
            temporary(self) if given is None else os.fspath(given)
        ).absolute()
        self.shown = str(self.path)
        try:
            files.make_folder(self.path, files.OWN)
            _check_own(self.path, self.path.stat())
        except OSError as exc:
            raise InputError(f"map: folder={self.shown!r}: {exc.strerror}") from None

    def note(self, name: str, text: str) -> None:
        """See `Store`."""
        files.replace(self.path / name, text, mode=files.OWN_FILE)

    def noted(self, name: str) -> str:
        """See `Store`."""
        return files.read_text(self.path / name)

    @contextlib.contextmanager
    def opened(self, name: str) -> Iterator[IO[bytes]]:
        """See `Store`."""
        with files.reading(self.path / name) as file:
            _check_own(self.path / name, os.fstat(file.fileno()))
            yield file

    def remove(self, name: str) -> None:
        """See `Store`."""
        (self.path / name).unlink(missing_ok=True)


_PREFIX = f"synk-map-{platform.node()}-"  # of temporary folders; other machines may share /tmp
_NEW_SECONDS = 60.0  # in which a folder may not be locked yet


def temporary(owner: object) -> str:
    """A new folder, which lasts as long as its owner in this process.

    Those that killed processes have left go first: the kernel has released their locks.
    """
    for left in Path(tempfile.gettempdir()).glob(f"{glob.escape(_PREFIX)}*"):
        with contextlib.suppress(OSError):  # another process has removed it
            _remove_left(left)
    made = tempfile.mkdtemp(prefix=_PREFIX)
    lock = FolderLock(made)
    with contextlib.suppress(OSError):  # there are no locks: it is never removed by others
        lock.take()
    weakref.finalize(owner, _remove, made, lock, os.getpid())
    return made


def _remove_left(folder: Path) -> None:
    """Remove a folder of this user that no process has locked."""
    found = folder.lstat()
    is_new = time.time() < found.st_mtime + _NEW_SECONDS
    if found.st_uid != os.geteuid() or not stat.S_ISDIR(found.st_mode) or is_new:
        return
    with contextlib.closing(FolderLock(folder)) as lock:
        if lock.take():  # raises where there are no locks, so that nobody knows
            shutil.rmtree(folder, ignore_errors=True)


def _remove(folder: str, lock: FolderLock, owner: int) -> None:
    """Remove a temporary folder, unless this process is a fork of the one that made it."""
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)
        lock.close()


def _check_own(path: Path, found: os.stat_result) -> None:
    if not files.is_own(found):
        raise InputError(
            f"map: another user may write to {str(path)!r}, and results are pickles, which can run "
            "any code: give a folder of your own, or take the permission away (chmod go-w)"
        )
