"""What this process holds: children, descriptors, threads, shared memory."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Snapshot:
    """What a process holds at a moment."""

    children: frozenset[int]
    descriptors: frozenset[str]
    threads: int
    shm: frozenset[str]


def snapshot() -> Snapshot:
    """Take stock.

    >>> check(snapshot())
    """
    return Snapshot(
        frozenset(_children()),
        frozenset(_descriptors()),
        threading.active_count(),
        frozenset(os.listdir("/dev/shm")),
    )


def check(before: Snapshot, patience: float = 2.0) -> None:
    """Raise AssertionError if this process holds more than before.

    Parameters
    ----------
    before : Snapshot
    patience : float
        Seconds to wait for what is about to go.
    """
    until = time.monotonic() + patience
    while (found := _more(before, snapshot())) and time.monotonic() < until:
        gc.collect()
        time.sleep(0.01)
    assert not found, f"left behind: {found}"


def _more(before: Snapshot, after: Snapshot) -> dict[str, object]:
    found: dict[str, object] = {}
    if after.children - before.children:
        found["children"] = sorted(after.children - before.children)
    if after.descriptors - before.descriptors:
        found["descriptors"] = sorted(after.descriptors - before.descriptors)
    if after.threads > before.threads:
        found["threads"] = after.threads - before.threads
    if left := forsaken(after.shm - before.shm):
        found["/dev/shm"] = left
    return found


def forsaken(names: Collection[str]) -> list[str]:
    """Which of these files of /dev/shm are this process's, or nobody's; others' programs go on."""
    ours = {os.getpid(), *_children()}
    left = set(names)
    for folder in Path("/proc").iterdir() if left else ():
        if folder.name.isdigit() and int(folder.name) not in ours:
            left -= {path.removeprefix("/dev/shm/") for path in _in_use(folder)}
    return sorted(name for name in left if os.path.lexists(f"/dev/shm/{name}"))


def _in_use(process: Path) -> Iterator[str]:
    """The files of /dev/shm that a process has mapped or open."""
    try:
        for line in (process / "maps").read_text().splitlines():
            if "/dev/shm/" in line:
                yield line[line.index("/dev/shm/") :]
        for link in (process / "fd").iterdir():
            yield os.readlink(link)
    except OSError:  # it ends, or is not ours to look into
        return


def _children() -> list[int]:
    """Child processes, zombies included."""
    found = []
    for task in Path("/proc/self/task").iterdir():
        try:
            found += [int(pid) for pid in (task / "children").read_text().split()]
        except OSError:  # the thread has ended meanwhile
            continue
    return found


def _descriptors() -> list[str]:
    found = []
    for link in Path("/proc/self/fd").iterdir():
        try:
            target = os.readlink(link)
        except OSError:
            continue
        kind = target.split(" ")[0]
        if "synkhronos" in target or "eventfd" in target or "pidfd" in target:
            found.append(f"{link.name} -> {kind}")
    return found
