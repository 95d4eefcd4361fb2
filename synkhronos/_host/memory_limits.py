"""How much memory may still be taken: the limits of the machine and of this process's cgroups."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from synkhronos._host import cgroups

_FILES = {  # of a cgroup: what it allows, what it uses, and an entry of memory.stat
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    2: ("memory.max", "memory.current", "inactive_file"),
}


@dataclass(frozen=True)
class Limit:
    """A memory limit."""

    free: int  # bytes that may still be taken
    most: int  # bytes that it allows
    text: str  # its name and value


def limits() -> list[Limit]:
    """All limits that apply to this process.

    Notes
    -----
    Cost: about ten small files of /proc and /sys, 0.1 ms.
    """
    return [_machine(), *_of_cgroups()]


def available() -> Limit:
    """The limit with the least free memory."""
    return min(limits(), key=lambda limit: limit.free)


def smallest() -> Limit:
    """The lowest limit, whatever is in use now."""
    return min(limits(), key=lambda limit: limit.most)


def oom_kills(text: str) -> int:
    """The number of OOM kills in the cgroups of `cgroups.of`."""
    for version, place in cgroups.folders("memory", text):
        with contextlib.suppress(OSError):
            file = "memory.events" if version == 2 else "memory.oom_control"
            return _entry(place / file, "oom_kill")
    return 0


def _machine() -> Limit:
    kilobytes = {}
    try:
        text = Path("/proc/meminfo").read_text()
    except OSError as exc:
        if exc.errno not in (errno.EMFILE, errno.ENFILE):
            raise
        raise MemoryError(
            f"no descriptor is left to look how much memory is free ({exc.strerror}): close files, "
            "or raise the limit (ulimit -n)"
        ) from exc
    for line in text.splitlines():
        name, _, value = line.partition(":")
        kilobytes[name] = int(value.split()[0])
    free = 1024 * (kilobytes.get("MemAvailable", 0) + kilobytes.get("SwapFree", 0))
    most = 1024 * (kilobytes.get("MemTotal", 0) + kilobytes.get("SwapTotal", 0))
    return Limit(free, most, f"the machine has {most:,}")


def _of_cgroups() -> Iterator[Limit]:
    for version, place in cgroups.folders("memory"):
        with contextlib.suppress(OSError, ValueError):
            most = int((place / _FILES[version][0]).read_text())  # "max", no limit: ValueError
            used = int((place / _FILES[version][1]).read_text())
            # the kernel drops this part of the file cache when it needs memory
            used -= _entry(place / "memory.stat", _FILES[version][2])
            free = max(0, most - used)
            yield Limit(free, most, f"the limit of cgroup {place} is {most:,}")


def _entry(path: Path, name: str) -> int:
    """The number of an entry in a file of lines "name number"."""
    for line in path.read_text().splitlines():
        if line.startswith(f"{name} "):
            return int(line.split()[1])
    return 0
