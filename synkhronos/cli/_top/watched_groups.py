"""The running groups of this user on this machine, seen from outside.

No group is asked for anything. Figures follow from two looks at the same words, so the first look
shows states only.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from synkhronos._engine.commands.base import (
    AT,
    BETWEEN,
    CALLS,
    CELLS,
    COMPUTE,
    COPY,
    LAST,
    PHASES,
    ROWS,
    SCATTER,
    SIGN,
    SIGNED,
)
from synkhronos._errors import printable
from synkhronos._transport.shared_state.control_words import progress_of
from synkhronos._transport.shared_state.status import GroupStatus, MemberStatus, read_status

WINDOW_SECONDS = 5.0  # over which rates and shares are taken
LATE_SECONDS = 5.0  # that a member computes while all others wait, from which on it is "late"
_MEMORY = "/memfd:synkhronos (deleted)"
_DOING = {-1: "scatter", SCATTER: "compute", COMPUTE: "copy", COPY: "wait"}
# The name of a share, and its phases
SHARES = {
    "compute": ("scatter", "compute"),
    "exchange": ("copy", "reduce", "update"),
    "wait": ("wait",),
    "between": ("between",),
}


@dataclass(frozen=True)
class Member:
    """One member, as a reader sees it."""

    rank: int
    pid: int
    state: str
    seconds: float  # since when it has been in this state, at least
    late: bool  # all others wait for it
    share: dict[str, float]  # fractions of its time, by `SHARES`; empty where nothing is measured
    memory: int  # bytes that it uses, shared ones included


@dataclass(frozen=True)
class WatchedGroup:
    """One group, as a reader sees it; attributes that are None cannot be told."""

    pid: int  # of the node's first process
    command: str  # its command line
    # the latest command, and what the program says
    what: str
    note: str
    rates: dict[str, float]  # commands, steps and rows in a second
    steps: int | None  # made so far by the training function that runs now
    members: list[Member]


@dataclass
class _EarlierLooks:
    """The findings of earlier looks at a group."""

    looks: deque[tuple[float, GroupStatus]] = field(default_factory=deque)
    states: dict[int, tuple[object, float]] = field(default_factory=dict)  # and since when


class Watch:
    """Looks at the groups of this user again and again."""

    def __init__(self) -> None:
        self._earlier: dict[int, _EarlierLooks] = {}

    def look(self, only: int | None = None) -> list[WatchedGroup]:
        """The groups that are alive now.

        Parameters
        ----------
        only : int, optional
            The pid of a member: only its group.
        """
        found, alive = [], set()
        for inode, pids, path in memories():
            if only is not None and only not in pids:
                continue
            status = _status(path)
            if status is None:
                continue
            alive.add(inode)
            earlier = self._earlier.setdefault(inode, _EarlierLooks())
            found.append(_watched(status, earlier))
        self._earlier = {
            inode: earlier for inode, earlier in self._earlier.items() if inode in alive
        }
        return sorted(found, key=lambda group: group.pid)


def memories() -> Iterator[tuple[int, list[int], str]]:
    """Of each memory of groups: its number, the processes of this user that hold it, and a path."""
    found: dict[int, tuple[str, list[int]]] = {}
    for pid, path, _, inode in memory_files(_MEMORY):
        found.setdefault(inode, (path, []))[1].append(pid)
    for inode, (path, pids) in found.items():
        yield inode, pids, path


def memory_files(beginning: str, only: int | None = None) -> Iterator[tuple[int, str, str, int]]:
    """Descriptors of files in memory whose names begin so: process, path, name, number of the file.

    They are of the processes of this user; with `only`, of this process.
    """
    for pid in _pids_of_this_user() if only is None else [only]:
        for path in _descriptors(pid):
            with contextlib.suppress(OSError):  # it has been closed
                if (name := os.readlink(path)).startswith(beginning):
                    yield pid, path, name, os.stat(path).st_ino


def _descriptors(pid: int) -> list[str]:
    """Paths of what a process holds open; none if it has ended, or is another user's."""
    with contextlib.suppress(OSError):
        return [f"/proc/{pid}/fd/{number}" for number in os.listdir(f"/proc/{pid}/fd")]
    return []


def _pids_of_this_user() -> list[int]:
    """The processes that this user owns."""
    user, found = os.geteuid(), []
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError):
                if os.stat(f"/proc/{name}").st_uid == user:
                    found.append(int(name))
    return sorted(found)


def _status(path: str) -> GroupStatus | None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return read_status(fd)
    finally:
        os.close(fd)


def _watched(status: GroupStatus, earlier: _EarlierLooks) -> WatchedGroup:
    now = time.perf_counter()  # as the members' clocks: CLOCK_MONOTONIC
    looks = earlier.looks
    looks.append((now, status))
    while len(looks) > 2 and looks[1][0] <= now - WINDOW_SECONDS:
        looks.popleft()
    then, before = looks[0]
    seconds = now - then
    deltas = _deltas(before, status) if seconds else []
    rates, steps = {}, None
    if seconds:
        rates["commands"] = (status.posted - before.posted) / seconds
        if deltas:
            rates["steps"] = max(d[CALLS] for d in deltas) / seconds
            rates["rows"] = sum(d[ROWS] for d in deltas) / seconds
    if current := _current(status):
        steps = int(max(cells[CALLS] for cells in current))
    members = []
    waits = [_reported(status, m) for m in status.members]
    states = [_state(status, m, waits, now) for m in status.members]
    master_waits = states[status.master][0] == "wait"
    for i, m in enumerate(status.members):
        state, since = states[i]
        key, first = earlier.states.get(m.rank, (None, now))
        if key != (state, status.posted if state != "idle" else 0):
            first = now
            earlier.states[m.rank] = (state, status.posted if state != "idle" else 0), now
        lasting = now - (first if since is None else min(first, since))
        others = [done for k, done in enumerate(waits) if k not in (i, status.master)]
        works = i != status.master and not waits[i] and state not in ("idle", "wait")
        late = works and master_waits and all(others) and lasting > LATE_SECONDS
        share = _share(deltas[i]) if deltas else {}
        members.append(Member(m.rank, m.pid, state, lasting, late, share, _memory(m.pid)))
    pid = status.members[status.master].pid
    return WatchedGroup(pid, _command(pid), status.what, status.note, rates, steps, members)


def _reported(status: GroupStatus, m: MemberStatus) -> bool:
    """Whether a member has nothing to do; of the node's first process: whether no worker has."""
    if m is status.members[status.master]:
        others = [o for o in status.members if o is not m]
        return all(o.reported >= status.posted for o in others)
    return m.reported >= status.posted


def _state(
    status: GroupStatus, m: MemberStatus, waits: list[bool], now: float
) -> tuple[str, float | None]:
    """The work of a member, and since when, if that is known."""
    if _has_ended(m.pid):
        return "ended", None
    if m.compiling:
        return "compile", None
    latest = max(_valid(m), key=lambda c: c[AT], default=None)
    index = status.members.index(m)
    if waits[index]:
        since = None if latest is None or latest[LAST] != BETWEEN else latest[AT]
        return ("script" if index == status.master else "idle"), since
    # the first call of a function has no laps, and an earlier call may have failed within one
    if latest is not None and latest[LAST] != BETWEEN and now > latest[AT] > (status.began or 0):
        return _DOING.get(int(latest[LAST]), "exchange"), latest[AT]
    if status.posted and progress_of(status.posted, m.progress):
        return "train apart", None
    return ("wait" if m.asleep else "compute"), status.began


def _valid(m: MemberStatus) -> list[tuple[float, ...]]:
    """Clocks that are still there, not the memory of something else by now."""
    return [cells for cells in m.clocks if _is_clock(cells)]


def _is_clock(cells: tuple[float, ...]) -> bool:
    return len(cells) == CELLS and cells[SIGN] == SIGNED and all(map(math.isfinite, cells))


def _current(status: GroupStatus) -> list[tuple[float, ...]]:
    """The clocks, of each member, of the function that was called last; empty if there is none."""
    found = []
    for m in status.members:
        latest = max(_valid(m), key=lambda c: c[AT], default=None)
        if latest is None:
            return []
        found.append(latest)
    return found


def _deltas(before: GroupStatus, after: GroupStatus) -> list[list[float]]:
    """By member, what the clocks of all functions have counted meanwhile; empty if nothing."""
    if len(before.members) != len(after.members):  # the memory is of another group by now
        return []
    found = []
    for old, new in zip(before.members, after.members, strict=True):
        total = [0.0] * (ROWS + 1)
        for a, b in zip(old.clocks, new.clocks, strict=False):
            if _is_clock(a) and _is_clock(b) and b[CALLS] >= a[CALLS]:
                total = [t + b[i] - a[i] for i, t in enumerate(total)]
        found.append(total)
    return found if any(sum(d) for d in found) else []


def _share(delta: list[float]) -> dict[str, float]:
    """Fractions of the time that was measured."""
    whole = sum(delta[: len(PHASES)])
    if whole <= 0:
        return {}
    return {
        name: sum(delta[PHASES.index(p)] for p in phases) / whole for name, phases in SHARES.items()
    }


def _has_ended(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return True
    return state in ("Z", "X")  # a zombie, whose parent has not taken its exit code yet


def _memory(pid: int) -> int:
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError, ValueError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def _command(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return ""
    first, *others = [w.decode(errors="replace") for w in words if w] or [""]
    return printable(" ".join([os.path.basename(first), *others]))
