"""The chains of this user that are sampled into folders on this machine, seen from outside."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass

from synkhronos.cli._top.watched_groups import pids_of_this_user
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
    for pid in pids_of_this_user() if only is None else [only]:
        with contextlib.suppress(OSError):  # it has ended, or is another user's
            for name in os.listdir(f"/proc/{pid}/fd"):
                path = f"/proc/{pid}/fd/{name}"
                with contextlib.suppress(OSError):
                    memory = os.readlink(path)
                    if memory.startswith(_MEMORY):
                        count = memory.removeprefix(_MEMORY).removesuffix(_DELETED)
                        seen = shown_chains(path, int(count)) if count.isdigit() else None
                        if seen is not None:
                            folder, before, chains = seen
                            # forks hold it too; the first process is the one that samples
                            place = os.stat(path).st_ino
                            said = line_of(chains, before)
                            found.setdefault(place, WatchedChains(pid, folder, said))
    return list(found.values())
