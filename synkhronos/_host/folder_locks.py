"""Locks of folders, which the kernel releases with the process, however it ends."""

from __future__ import annotations

import contextlib
import os
import weakref
from importlib import import_module
from typing import Any

from synkhronos._host.descriptors import Descriptor


class FolderLock:
    """The lock of a folder (flock), which one object at a time has; also one of this process.

    Forks of this process do not hold it: one that lives on would keep it from the next process.

    Parameters
    ----------
    folder : path

    Raises
    ------
    OSError
        The folder cannot be opened; links are followed.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     first, second = FolderLock(folder), FolderLock(folder)
    ...     found = [first.take(), second.take()]
    ...     first.close()
    ...     found.append(second.take())
    ...     second.close()
    >>> found
    [True, False, True]
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        self._descriptor = Descriptor(os.open(folder, flags))
        _open.add(self)

    def take(self) -> bool:
        """Whether this object has the lock now.

        Raises
        ------
        OSError
            The file system has no locks of folders.
        """
        fcntl: Any = import_module("fcntl")  # Windows has none
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def close(self) -> None:
        """Release the lock; again, and in a fork, it does nothing."""
        if self._descriptor.is_ours:
            fcntl: Any = import_module("fcntl")
            with contextlib.suppress(OSError):  # a fork made by C code may still hold it
                fcntl.flock(self._descriptor, fcntl.LOCK_UN)
            self._descriptor.close()

    def part(self) -> None:
        """In a fork: close the descriptor, and leave the lock to the parent."""
        self._descriptor.close()


_open: weakref.WeakSet[FolderLock] = weakref.WeakSet()


def _part() -> None:
    for lock in list(_open):
        lock.part()


if hasattr(os, "register_at_fork"):  # Windows has no forks
    os.register_at_fork(after_in_child=_part)
