"""The chains of this user that are sampled into folders on this machine, seen from outside."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from synkhronos.cli._top.watched_groups import memory_files
from synkhronos.pymc._chains.progress import SHOWN, line_of, shown_chains

_MEMORY, _DELETED = f"/memfd:{SHOWN}", " (deleted)"


@dataclass(frozen=True)
class WatchedChains:
    """The chains that one process samples into a folder."""

    pid: int
    folder: str
    said: str  # how far they are


def look_at_chains(only: int | None = None) -> list[WatchedChains]:
    """The chains that are sampled now; with `only`, by this process."""
    found: dict[int, WatchedChains] = {}
    for pid, path, name, inode in memory_files(_MEMORY, only):
        count = name.removeprefix(_MEMORY).removesuffix(_DELETED)
        with contextlib.suppress(OSError):  # it has been closed
            if count.isdigit() and (seen := shown_chains(path, int(count))) is not None:
                folder, before, chains = seen
                # forks hold it too; the first process is the one that samples
                found.setdefault(inode, WatchedChains(pid, folder, line_of(chains, before)))
    return list(found.values())
