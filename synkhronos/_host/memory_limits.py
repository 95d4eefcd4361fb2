"""How much memory may still be taken: the limits of the machine and of this process's cgroups."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_V2, _V1 = Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/memory")


@dataclass(frozen=True)
class Limit:
    """A memory limit.

    Attributes
    ----------
    free : int
        Bytes that may still be taken.
    most : int
        Bytes that it allows.
    text : str
        Its name and value.
    """

    free: int
    most: int
    text: str


def limits() -> list[Limit]:
    """All limits that apply to this process.

    Notes
    -----
    Cost: about ten small files of /proc and /sys, 0.1 ms.
    """
    found = [_machine()]
    with contextlib.suppress(OSError):
        found.extend(_of_cgroups(Path("/proc/self/cgroup").read_text()))
    return found


def available() -> Limit:
    """The limit with the least free memory."""
    return min(limits(), key=lambda limit: limit.free)


def smallest() -> Limit:
    """The lowest limit, whatever is in use now."""
    return min(limits(), key=lambda limit: limit.most)


def cgroups_of(pid: int) -> str:
    """The cgroups of a process, for `oom_kills`; read them while it runs (cgroups version 1)."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cgroup").read_text()
    return ""


def oom_kills(cgroups: str) -> int:
    """The number of OOM kills in these cgroups."""
    for version, folder in _cgroups(cgroups):
        file = "memory.events" if version == 2 else "memory.oom_control"
        for place in _upwards(folder, _V2 if version == 2 else _V1):
            with contextlib.suppress(OSError):
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


def _of_cgroups(text: str) -> Iterator[Limit]:
    for version, folder in _cgroups(text):
        if version == 2:
            root, names = _V2, ("memory.max", "memory.current", "inactive_file")
        else:
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            root = _V1
        for place in _upwards(folder, root):
            with contextlib.suppress(OSError, ValueError):
                most = int((place / names[0]).read_text())  # "max", no limit, raises ValueError
                # the kernel drops this part of the file cache when it needs memory
                used = int((place / names[1]).read_text()) - _entry(place / "memory.stat", names[2])
                free = max(0, most - used)
                yield Limit(free, most, f"the limit of cgroup {place} is {most:,}")


def _cgroups(text: str) -> Iterator[tuple[int, Path]]:
    """The version and folder of each cgroup that limits memory, from /proc/PID/cgroup."""
    for line in text.splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            yield 2, Path(f"{_V2}{path}")
        elif "memory" in controllers.split(","):
            yield 1, Path(f"{_V1}{path}")


def _upwards(folder: Path, root: Path) -> Iterator[Path]:
    """A cgroup and all above it; some may be hidden, since a container sees its own as the root."""
    for place in (folder, *folder.parents):
        if not place.is_relative_to(root):
            return
        yield place


def _entry(path: Path, name: str) -> int:
    """The number of an entry in a file of lines "name number"."""
    for line in path.read_text().splitlines():
        if line.startswith(f"{name} "):
            return int(line.split()[1])
    return 0
