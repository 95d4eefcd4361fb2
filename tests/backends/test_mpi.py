"""What launchers tell their processes, read from environments as they make them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from synkhronos._backends import mpi as mpi_backend
from synkhronos._host import cores, system
from synkhronos._host.polling import readable

OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "8",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}
MPICH = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
SLURM = {
    "PMIX_RANK": "5",
    "SLURM_NTASKS": "7",
    "SLURM_LOCALID": "1",
    "SLURM_TASKS_PER_NODE": "2(x3),1",
}
PMI_2 = {  # srun --mpi=pmi2
    **{"PMI_RANK": "3", "PMI_SIZE": "8", "SLURM_NTASKS": "8"},
    **{"SLURM_LOCALID": "3", "SLURM_TASKS_PER_NODE": "8"},
}


@pytest.mark.parametrize(
    ("environ", "wanted"),
    [
        (OPEN_MPI, mpi_backend.Launch("Open MPI", 3, 8, 1, 2)),
        (MPICH, mpi_backend.Launch("MPICH", 1, 2, 1, 2)),
        (SLURM, mpi_backend.Launch("Slurm", 5, 7, 1, 2)),
        (SLURM | {"SLURM_NODEID": "3"}, mpi_backend.Launch("Slurm", 5, 7, 1, 1)),
        (SLURM | {"SLURM_STEP_NUM_TASKS": "6"}, mpi_backend.Launch("Slurm", 5, 6, 1, 2)),
        (SLURM | {"SLURM_STEP_TASKS_PER_NODE": "3"}, mpi_backend.Launch("Slurm", 5, 7, 1, 3)),
        (PMI_2, mpi_backend.Launch("MPICH", 3, 8, 3, 8)),
        (PMI_2 | MPICH, mpi_backend.Launch("MPICH", 1, 2, 1, 2)),  # Hydra's, in a job of Slurm's
        ({"PMI_RANK": "0", "PMI_SIZE": "4"}, mpi_backend.Launch("MPICH", 0, 4, 0, 1)),
        ({"PMI_RANK": "0", "PMI_SIZE": "1"}, None),
        ({"SLURM_NTASKS": "4"}, None),  # a job's own shell, or a process that srun did not start
        ({}, None),
    ],
)
def test_launches_are_recognised(
    environ: dict[str, str], wanted: mpi_backend.Launch | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = dict(environ)
    assert mpi_backend.launch(given) == wanted
    assert mpi_backend.launch(given) == wanted, "again, in the same process"
    # the package imports this module at once where a rank is set, and else when a group needs it
    monkeypatch.setattr(os, "environ", given)
    ranks = {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK"}
    assert system.has_mpi_rank() == bool(environ.keys() & ranks)


def test_what_a_launched_process_starts_is_no_part_of_the_launch() -> None:
    """A chain of PyMC, a worker of a pool: they inherit the environment."""
    given = dict(OPEN_MPI)
    assert mpi_backend.launch(given) is not None
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        os.write(write, repr(mpi_backend.launch(given)).encode())
        os._exit(0)
    os.waitpid(pid, 0)
    os.close(write)
    assert os.read(read, 100) == b"None"
    os.close(read)


def test_a_launch_inside_of_a_launch_is_another() -> None:
    """A script that is under mpirun starts mpirun."""
    inside = OPEN_MPI | {"PMIX_NAMESPACE": "outer@1"}
    assert mpi_backend.launch(inside) is not None
    mark = {mpi_backend._LAUNCHED: inside[mpi_backend._LAUNCHED].replace(str(os.getpid()), "1")}
    assert mpi_backend.launch(inside | mark) is None
    assert mpi_backend.launch(inside | mark | {"PMIX_NAMESPACE": "inner@1"}) is not None


def test_a_process_without_its_launcher_s_connection_was_not_launched() -> None:
    """What a launched process has started, with its environment but not its descriptors."""
    assert mpi_backend.launch(MPICH | {"PMI_FD": "999"}) is None
    read, write = os.pipe()
    assert mpi_backend.launch(MPICH | {"PMI_FD": str(read)}) is None
    os.close(read)
    os.close(write)


@pytest.mark.parametrize(
    ("masks", "place", "wanted"),
    [
        ([range(8), range(8)], 1, [4, 5, 6, 7]),
        ([range(4), range(4, 8)], 1, [4, 5, 6, 7]),  # each bound to its own
        ([range(4), range(4, 8), range(4), range(4, 8)], 3, [6, 7]),  # two on each socket
        ([range(8)], 1, [4, 5, 6, 7]),  # each has a shell of its own between
        ([range(4, 8)], 1, [4, 5, 6, 7]),
    ],
)
def test_processes_divide_the_cores_that_they_share(
    monkeypatch: pytest.MonkeyPatch, masks: list[range], place: int, wanted: list[int]
) -> None:
    """A machine of 8 cores; how the launcher has bound its processes there."""
    pids = [os.getpid() - place + i for i in range(len(masks))] if len(masks) > 1 else [os.getpid()]
    bound = {pid: set(mask) for pid, mask in zip(pids, masks, strict=True)}
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: bound[pid or os.getpid()])
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setattr(cores, "_quota", lambda: 0)
    monkeypatch.setattr(cores, "_place", lambda core: (0, core))
    assert cores.slice_of_launch(place, max(len(masks), 2), pids) == wanted


LAUNCHED = """
import os, sys, time
from synkhronos._backends import mpi as _mpi
from synkhronos._engine import nodes as _nodes

def world():
    print("spoke MPI")
    sys.exit()

_mpi.World = world
launcher = os.getppid()
print("imported", file=sys.stderr, flush=True)
while os.getppid() == launcher:
    time.sleep(0.01)
print("left alone", flush=True)
_nodes._join()
"""
LAUNCHER = """
import subprocess, sys
command = [sys.executable, "-c", sys.argv[1]]
subprocess.Popen(command, stderr=subprocess.PIPE).stderr.readline()
"""


def test_a_launcher_that_has_died_before_is_noticed() -> None:
    """The kernel ends a process with its launcher only where that lived when it was asked."""
    command = [sys.executable, "-c", LAUNCHER, LAUNCHED]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout == "left alone\n"


ABORTED = """
import os, sys
from types import SimpleNamespace
from synkhronos._backends import mpi as _mpi
print("last words", file=sys.stderr)
comm = SimpleNamespace(Abort=lambda code: os._exit(2 if _mpi._is_unread(2) else 0))
_mpi.World.abort(SimpleNamespace(_mpi=SimpleNamespace(COMM_WORLD=comm)))
"""


def test_what_was_printed_is_read_before_the_end() -> None:
    """MPICH's launcher loses what it has not read when a process ends the job."""
    command = [sys.executable, "-c", ABORTED]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as ending:
        assert ending.stderr is not None
        readable(ending.stderr.fileno(), seconds=60)
        time.sleep(0.1)
        assert ending.stderr.read() == b"last words\n"
        assert ending.wait(60) == 0


def test_nobody_waits_for_a_reader_that_does_not_come(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Nor for files, nor for what is closed."""
    monkeypatch.setattr(mpi_backend, "_READ_SECONDS", 0.05)
    reading, writing = os.pipe()
    os.write(writing, b"unheard")
    mpi_backend._let_out((writing,))
    assert mpi_backend._is_unread(writing)
    os.close(reading)
    os.close(writing)
    assert not mpi_backend._is_unread(writing)
    with (tmp_path / "out").open("wb") as file:
        file.write(b"text")
        file.flush()
        file.seek(0)
        assert not mpi_backend._is_unread(file.fileno())
