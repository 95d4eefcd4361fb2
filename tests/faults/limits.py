"""Running a script where something is short: memory, /dev/shm, what a user may have."""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from user_scripts import LIMIT, ended, script_command

_SYSTEM = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class Ended:
    """A script's end."""

    code: int
    printed: str


def run_after(
    prelude: str, tmp_path: Path, text: str, *args: str, below: str = "", limit: float = LIMIT
) -> Ended:
    """Run a script from a shell that has done something first, by a program that runs programs."""
    command = shlex.join(script_command(tmp_path, text, *args))
    done = ended(tmp_path, ["sh", "-c", f"{prelude}\nexec {below} {command}"], limit)
    return Ended(done.returncode, done.stdout)


def enter(folder: Path) -> str:
    """What a shell does to be in a control group, with all that it starts."""
    return f"echo $$ > {folder}/cgroup.procs || exit 99"


@dataclass(frozen=True)
class MemoryGroup:
    """A control group with a limit of memory."""

    folder: Path
    version: int
    most: int

    @property
    def enter(self) -> str:
        return enter(self.folder)

    def oom_kills(self) -> int:
        file = "memory.oom_control" if self.version == 1 else "memory.events"
        for line in (self.folder / file).read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
        raise AssertionError(f"{file} does not count")


def _parents(controller: str) -> Iterator[tuple[int, Path]]:
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            yield 1, Path(f"{_SYSTEM}/{controller}{path}")
        elif controllers == "":
            yield 2, Path(f"{_SYSTEM}{path}")


@contextlib.contextmanager
def control_group(
    controller: str, settings: Mapping[int, Mapping[str, str]]
) -> Iterator[tuple[int, Path] | str]:
    """A control group below our own, its version and folder, or why there can be none.

    Parameters
    ----------
    controller : str
    settings : mapping of mapping
        The contents of its files, by version.
    """
    why = f"no control group of {controller}"
    for version, parent in _parents(controller):
        try:
            folder = Path(tempfile.mkdtemp(prefix="synk-test-", dir=parent))
        except OSError as exc:
            why = f"{parent}: {exc.strerror}"
            continue
        try:
            try:
                for name, text in settings[version].items():
                    (folder / name).write_text(text)
            except OSError as exc:
                why = f"{folder / name}: {exc.strerror}"
                continue
            yield version, folder
            return
        finally:
            _remove(folder)
    yield why


@contextlib.contextmanager
def memory_group(most: int) -> Iterator[MemoryGroup | str]:
    """A control group with a limit of memory, or why there can be none."""
    limits = {1: {"memory.limit_in_bytes": str(most)}, 2: {"memory.max": str(most)}}
    with control_group("memory", limits) as made:
        yield made if isinstance(made, str) else MemoryGroup(made[1], made[0], most)


def _remove(folder: Path) -> None:
    until = time.monotonic() + 10
    while True:
        try:
            folder.rmdir()
        except OSError:  # its last process is still on its way out
            if time.monotonic() > until:
                raise
            time.sleep(0.01)
        else:
            return


def cannot_mount() -> str:
    """Why this process can have no mounts of its own; empty if it can."""
    if os.getuid():
        return "it takes root to mount"
    try:
        done = subprocess.run(
            ["unshare", "-m", "true"], capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        return "unshare is not installed"
    return done.stderr.strip() if done.returncode else ""


def in_a_namespace(tmp_path: Path, mounts: str, text: str, *args: str) -> Ended:
    """Run a script that alone sees some mounts."""
    path = tmp_path / "mounts.sh"
    path.write_text(f'set -e\n{mounts}\nexec "$@"\n')
    return run_after("", tmp_path, text, *args, below=f"unshare -m sh {path}")
