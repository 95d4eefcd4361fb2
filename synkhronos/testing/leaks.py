"""Leak checks: the children, descriptors, threads and shared memory of this process.

Only the kinds of descriptors that groups and subprocesses use are counted: memfd, eventfd, pidfd,
pipes. The whole machine shares /dev/shm. A file there is left out if it belongs to another user, or
if another process has it open or mapped. One that another program makes and forsakes during a check
counts: nothing says who has made it.
"""

from __future__ import annotations

import contextlib
import gc
import os
import re
import threading
import time
from collections.abc import Collection, Iterator, Set
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Snapshot:
    """The children, descriptors, threads and named shared memory of a process at one moment."""

    children: frozenset[int]
    descriptors: frozenset[str]
    threads: int
    shm: frozenset[str]


NAMED = Path("/dev/shm")  # named shared memory of the whole machine


def snapshot() -> Snapshot:
    """Record what this process holds now.

    >>> check(snapshot())
    """
    return Snapshot(
        frozenset(_children()),
        frozenset(_descriptors()),
        threading.active_count(),
        frozenset(named()),
    )


def check(before: Snapshot, patience: float = 10.0) -> None:
    """Raise AssertionError if this process holds more than before.

    Parameters
    ----------
    before : Snapshot
    patience : float
        Seconds to wait for processes, threads and files that are about to end; on a loaded machine
        that takes seconds.

    Examples
    --------
    >>> import synkhronos as synk
    >>> before = snapshot()
    >>> synk.fork(2), synk.close()
    (2, None)
    >>> check(before)
    """
    until = time.monotonic() + patience
    while (found := _more(before, snapshot())) and time.monotonic() < until:
        began = time.monotonic()
        gc.collect()  # it holds the interpreter's lock, which threads need to end
        time.sleep(max(0.01, time.monotonic() - began))
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
        found["shared memory"] = left
    return found


def named() -> set[str]:
    """Named shared memory of this user."""
    found = set()
    for file in NAMED.iterdir():
        with contextlib.suppress(FileNotFoundError):
            if file.lstat().st_uid == os.geteuid():
                found.add(str(file))
    return found


def forsaken(paths: Collection[str]) -> list[str]:
    """The paths that exist and that no process, other than this one and its children, uses."""
    ours = {os.getpid(), *_children()}
    used: set[tuple[int, int]] = set()
    for folder in Path("/proc").iterdir() if paths else ():
        if folder.name.isdigit() and int(folder.name) not in ours:
            used.update(_in_use(folder))
    left = []
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            found = os.lstat(path)
            if (found.st_dev, found.st_ino) not in used:
                left.append(path)
    return sorted(left)


def left_since(before: Set[str], patience: float = 5.0) -> list[str]:
    """The new named shared memory that no process uses, also some seconds later.

    A program that ends has its semaphores mapped until it is gone; its tracker removes them then.
    """
    until = time.monotonic() + patience
    while (found := forsaken(named() - before)) and time.monotonic() < until:
        time.sleep(0.01)
    return found


def _in_use(process: Path) -> Iterator[tuple[int, int]]:
    """The device and the inode of each file that a process has mapped or open.

    Not the name: glibc maps a new semaphore before it renames it, and maps show the first name.
    """
    with contextlib.suppress(OSError):  # the process has ended, or belongs to another user
        for line in (process / "maps").read_text().splitlines():
            _, _, _, device, inode, *_ = line.split(maxsplit=5)  # proc_pid_maps(5)
            if inode != "0":
                major, _, minor = device.partition(":")
                yield os.makedev(int(major, 16), int(minor, 16)), int(inode)
        for link in (process / "fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # it has been closed meanwhile
                found = os.stat(link)
                yield found.st_dev, found.st_ino


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
        if any(word in target for word in ("synkhronos", "eventfd", "pidfd", "pipe:")):
            found.append(f"{link.name} -> {re.split(r'[ 0-9]', target)[0]}")
    return found
