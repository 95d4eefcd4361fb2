"""The cgroups of a process: its own of a controller, and all above it, whose limits bind it too.

/proc/PID/cgroup names the process's own. Its folder follows from where the hierarchies are mounted:
that of version 2, one for each controller of version 1, or both (systemd's hybrid). A container may
see its own cgroup as the root, by a cgroup namespace or by its mounts.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from pathlib import Path

_PROC = Path("/proc")


def folders(controller: str, text: str | None = None) -> Iterator[tuple[int, Path]]:
    """The version and the folder of a process's own cgroup, then of all above that can be seen.

    Parameters
    ----------
    controller : str
        Such as "cpu". In version 2 its files are there only where the controller is enabled.
    text : str, optional
        /proc/PID/cgroup of the process; this process's by default.
    """
    for line in _lines(of("self") if text is None else text):
        _, controllers, path = line.split(":", 2)
        version, name = (1, controller) if controllers else (2, "")
        if name in controllers.split(","):
            with contextlib.suppress(OSError):
                for folder in _upwards(path, _mounts(_PROC).get(name, [])):
                    yield version, folder


def of(pid: int | str) -> str:
    """The text of /proc/PID/cgroup; empty if the process has ended, or cannot be seen."""
    with contextlib.suppress(OSError):
        return _text(_PROC / str(pid) / "cgroup")
    return ""


@functools.cache
def _mounts(proc: Path) -> dict[str, list[tuple[str, str]]]:
    """By controller, "" for version 2: the cgroups that are mounted, and where.

    See proc_pid_mountinfo(5).
    """
    found: dict[str, list[tuple[str, str]]] = {}
    for line in _lines(_text(proc / "self" / "mountinfo")):
        before, _, after = line.partition(" - ")
        mounted, point = before.split(" ")[3:5]
        kind, *_, options = after.split()
        for name in {"cgroup": options.split(","), "cgroup2": [""]}.get(kind, ()):
            found.setdefault(name, []).append((mounted, point))
    return found


def _text(file: Path) -> str:
    return file.read_text(errors="surrogateescape")  # names may be any bytes


def _lines(text: str) -> list[str]:
    return [line for line in text.split("\n") if line]  # names may have other ends of lines


def _upwards(path: str, places: list[tuple[str, str]]) -> Iterator[Path]:
    """A cgroup's folder and all above it; only the highest one where its own cannot be seen."""
    names = _names(path)
    for mounted, point in places:
        above = _names(mounted)
        if names[: len(above)] == above and ".." not in names:
            for end in range(len(names), len(above) - 1, -1):
                yield Path(point, *names[len(above) : end])
            return
    yield from (Path(point) for _, point in places[:1])


def _names(path: str) -> list[str]:
    return [name for name in path.split("/") if name]
