"""MPI: the only file that imports mpi4py, and only in a group of several nodes."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import fcntl
import functools
import gc
import io
import os
import re
import stat
import struct
import sys
import termios
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from synkhronos._errors import BackendMissing
from synkhronos._plan.reductions import Reduction

_LAUNCHED = "SYNKHRONOS_LAUNCHED"
# tags of leaders' messages: of those that fit into the buffer that always waits for the next one,
# and of those that do not, each announced by one that does
_ORDERS, _LARGE = 7, 8
_SLOT_BYTES = 1 << 16
_ANNOUNCED = struct.Struct("<q")  # its length; the shortest message of leaders is longer
_PATIENCE_SECONDS = 0.0005  # with a message that does not leave at once
_READ_SECONDS = 1.0  # for a launcher to read what a process has printed, before it ends the others
# of Open MPI's reductions; what it chooses itself takes up to three times as long
_ALGORITHM, _RABENSEIFNER = "OMPI_MCA_coll_libnbc_iallreduce_algorithm", "3"
# to the launcher, in PMI's own words: for a process that has not begun to speak MPI
_ABORT = b"cmd=init pmi_version=1 pmi_subversion=1\ncmd=abort exitcode=1\n"
# What launchers tell their processes: number, how many; and the same on this machine. The first
# name that is set counts: Slurm's PMI-2 has those of MPICH's launcher, but not all.
_TASKS = ("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE")
_LAUNCHERS = {
    "Open MPI": (
        *(("OMPI_COMM_WORLD_RANK",), ("OMPI_COMM_WORLD_SIZE",)),
        *(("OMPI_COMM_WORLD_LOCAL_RANK",), ("OMPI_COMM_WORLD_LOCAL_SIZE",)),
    ),
    "MPICH": (
        *(("PMI_RANK",), ("PMI_SIZE",)),
        *(("MPI_LOCALRANKID", "SLURM_LOCALID"), ("MPI_LOCALNRANKS", *_TASKS)),
    ),
    "Slurm": (
        *(("PMIX_RANK",), ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")),
        *(("SLURM_LOCALID",), _TASKS),
    ),
}
_JOBS = ("PMIX_NAMESPACE", "PMI_PORT", "PMI_JOBID", "SLURM_JOB_ID", "SLURM_STEP_ID")


@dataclass(frozen=True)
class Launch:
    """How this process was started by an MPI launcher.

    Attributes
    ----------
    launcher : str
    rank, size : int
        This process's number, and how many there are.
    local_rank, local_size : int
        The same among those on this machine.
    """

    launcher: str
    rank: int
    size: int
    local_rank: int
    local_size: int


def launch(environ: Any = os.environ) -> Launch | None:
    """What the environment says of an MPI launch of several processes; None without one."""
    for launcher, names in _LAUNCHERS.items():
        rank, size, local_rank, local_size = (_first(environ, wanted) for wanted in names)
        if rank and size:
            machine = int(environ.get("SLURM_NODEID", "0"))
            local = int(local_rank or "0"), _tasks(local_size or "1", machine)
            found = Launch(launcher, int(rank), int(size), *local)
            return found if found.size > 1 and _is_launched(environ) else None
    return None


def _first(environ: Any, names: Sequence[str]) -> str | None:
    return next((environ[name] for name in names if name in environ), None)


def _tasks(counts: str, machine: int) -> int:
    """How many on a machine; Slurm's "2(x3),1" is two on each of three machines, one on a fourth.

    >>> [_tasks("2(x3),1", machine) for machine in range(4)], _tasks("8", 0)
    ([2, 2, 2, 1], 8)
    """
    found = re.findall(r"(\d+)(?:\(x(\d+)\))?", counts)
    each = [int(count) for count, times in found for _ in range(int(times or 1))]
    return each[min(machine, len(each) - 1)]


def _is_launched(environ: Any) -> bool:
    """Whether the launcher has started this process, and not another that it was started by.

    That would be no part of the launch, but inherits its environment: so the first process that
    looks puts its number there, and of which launch it is, since it may itself start a launcher.
    """
    job = _job(environ)
    if job is None:
        return False
    mark = environ.get(_LAUNCHED)
    if mark is None or mark.partition(" ")[2] != job:
        mark = environ[_LAUNCHED] = f"{os.getpid()} {job}"
    return mark.partition(" ")[0] == str(os.getpid())


def _job(environ: Any) -> str | None:
    """What two launches differ in; None where this process has no connection to its launcher."""
    given = [environ.get(name, "") for name in _JOBS]
    if "PMI_FD" in environ:  # of MPICH's launcher, which gives its jobs no names
        try:
            given.append(os.readlink(f"/proc/self/fd/{environ['PMI_FD']}"))
        except OSError:
            return None
        if not given[-1].startswith("socket:"):
            return None
    return "/".join(given)


def siblings() -> list[int]:
    """What this process's parent has started, in order: a launcher, its processes on a machine."""
    found: list[int] = []
    for children in Path(f"/proc/{os.getppid()}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += map(int, children.read_text().split())
    return sorted(found)


def is_initialised() -> bool:
    """Whether this process has begun to speak MPI, by this module or the user's own use of it."""
    loaded = sys.modules.get("mpi4py.MPI")
    return loaded is not None and bool(loaded.Is_initialized())


@dataclass
class _Ending:
    """Whether sys.exit was called with a code that is not 0, and whether nobody waits for us."""

    failed: bool = False
    alone: bool = False


_ending = _Ending()


def stay_alone() -> None:
    """The launch's other processes do not wait for this one, which has a group of its own."""
    _ending.alone = True


def _note_exits() -> None:
    """Note with what this process calls `sys.exit`, of which nothing is known at exit."""
    leave = sys.exit

    @functools.wraps(leave)
    def noted(status: Any = None, /) -> NoReturn:
        _ending.failed = status not in (None, 0)
        leave(status)

    sys.exit = noted


def _end_launch() -> None:
    """Where this process ends badly and never spoke MPI: end the others, which may wait for it.

    Open MPI's launcher does so by itself, MPICH's only where a process has spoken MPI.
    """
    failed = _ending.failed or getattr(sys, "last_exc", None) is not None
    if failed and not _ending.alone and launch() is not None and not is_initialised():
        _let_out()
        for pid in siblings():  # they may wait in the middle of MPI's initialisation
            with contextlib.suppress(OSError):
                _unlink_segments(pid)
        with contextlib.suppress(OSError):
            os.write(int(os.environ["PMI_FD"]), _ABORT)


# at the import, before this process can have started another
if launch() is not None and "PMI_FD" in os.environ:
    _note_exits()
    atexit.register(_end_launch)


Wait = Callable[[Callable[[], bool]], None]


def poll(done: Callable[[], bool]) -> None:
    """Return once `done()` is true, which MPI comes to only while it is asked."""
    while not done():
        os.sched_yield()


class World:
    """All processes of an MPI launch: a wire between leaders, and transfers of arrays.

    Transfers are collective: all processes must come to them, so they take no memory, which might
    not be there. None of them blocks, so that one that will not end, since another process stands
    still, can be left. MPI is of no more use then.
    """

    def __init__(self) -> None:
        try:
            import mpi4py

            os.environ.setdefault(_ALGORITHM, _RABENSEIFNER)
            mpi4py.rc.finalize = False  # a fork of this process would, at its end, and hang
            from mpi4py import MPI
        except ImportError as exc:
            raise BackendMissing("mpi4py", "mpi") from exc
        self._mpi = MPI
        self._control = MPI.COMM_WORLD.Dup()
        self._data = MPI.COMM_WORLD.Dup()
        self.rank: int = self._control.rank
        self.size: int = self._control.size
        self._byte, self._status = MPI.BYTE, MPI.Status()
        # a receive that is always under way takes half the time of probing for each message
        self._slot = bytearray(_SLOT_BYTES)
        self._next = self._control.Recv_init([self._slot, MPI.BYTE], MPI.ANY_SOURCE, _ORDERS)
        self._next.Start()
        self._coming: tuple[Any, int, bytearray] | None = None  # a large message, others after it
        self._sending: list[tuple[Any, bytes]] = []
        self._offered: list[tuple[Any, bytes]] = []  # one at most
        self._wait: Wait = poll
        self._left: list[Any] = []  # transfers, and with them the memory that they read and write
        self._ops = {
            Reduction.SUM: MPI.SUM,
            Reduction.PROD: MPI.PROD,
            Reduction.MIN: MPI.MIN,
            Reduction.MAX: MPI.MAX,
        }
        # Open MPI attaches a neighbour's segment, by its name, when it first speaks to it
        neighbours = MPI.COMM_WORLD.Split_type(MPI.COMM_TYPE_SHARED)
        neighbours.alltoall([0] * neighbours.size)
        neighbours.Barrier()
        neighbours.Free()
        _unlink_segments(os.getpid())

    @property
    def library(self) -> str:
        """The MPI library, by name and version."""
        return str(self._mpi.Get_library_version()).splitlines()[0].strip("\0 ")

    def send(self, to: int, message: bytes) -> None:
        """Send without waiting for long; see MessageTransport."""
        if len(message) <= _SLOT_BYTES:
            self._send(to, message, _ORDERS)
        else:
            self._send(to, _ANNOUNCED.pack(len(message)), _ORDERS)
            self._send(to, message, _LARGE)

    def _send(self, to: int, message: bytes, tag: int) -> None:
        request = self._control.Isend([message, self._byte], to, tag)
        if request.Test():
            return
        # what MPI cannot send at once goes only while this process speaks to MPI, and it may be
        # about to compute; who is to receive it is, most often, waiting for it
        until = time.perf_counter() + _PATIENCE_SECONDS
        while not request.Test():
            if time.perf_counter() > until:
                self._sending.append((request, message))
                return

    def offer(self, to: int, message: bytes) -> None:
        """Send unless the previous offer is still under way; see MessageTransport."""
        self._offered = _unsent(self._offered)
        if self._offered:
            return
        tag = _ORDERS
        if len(message) > _SLOT_BYTES:
            self._send(to, _ANNOUNCED.pack(len(message)), _ORDERS)
            tag = _LARGE
        # synchronous: others count as sent while MPI keeps them, without an end
        self._offered = [(self._control.Issend([message, self._byte], to, tag), message)]

    def receive(self) -> tuple[int, bytes] | None:
        """The next message; see MessageTransport."""
        if self._sending:
            self._sending = _unsent(self._sending)
        if self._coming is not None:
            request, source, whole = self._coming
            if not request.Test():
                return None
            self._coming = None
            return source, bytes(whole)
        status = self._status
        if not self._next.Test(status):
            return None
        source, length = status.source, status.Get_count(self._byte)
        message = bytes(memoryview(self._slot)[:length])
        self._next.Start()
        if length == _ANNOUNCED.size:
            (length,) = _ANNOUNCED.unpack(message)
            whole = bytearray(length)
            request = self._control.Irecv([whole, self._byte], source, _LARGE)
            self._coming = request, source, whole
            return self.receive()
        return source, message

    def broadcast(self, buffer: np.ndarray, root: int) -> None:
        """The root's bytes into everybody's buffer."""
        self._finish(self._data.Ibcast([buffer, self._byte], root))

    def gather(
        self, mine: np.ndarray, into: np.ndarray | None, sizes: Sequence[int], root: int
    ) -> None:
        """Everybody's bytes, one after the other, into the root's buffer."""
        found = None if into is None else [into, (sizes, _starts(sizes)), self._byte]
        self._finish(self._data.Igatherv([mine, self._byte], found, root))

    def all_gather(self, mine: np.ndarray, into: np.ndarray, sizes: Sequence[int]) -> None:
        """Everybody's bytes, one after the other, into everybody's buffer."""
        found = [into, (sizes, _starts(sizes)), self._byte]
        self._finish(self._data.Iallgatherv([mine, self._byte], found))

    def all_to_all(self, parts: np.ndarray, into: np.ndarray) -> None:
        """Row i of everybody's parts into process i's buffer; rows are of one size."""
        count = parts[0].nbytes
        sent, found = [parts, count, self._byte], [into, count, self._byte]
        self._finish(self._data.Ialltoall(sent, found))

    def scatter(
        self, parts: np.ndarray | None, sizes: Sequence[int], mine: np.ndarray, root: int
    ) -> None:
        """This process's part of the root's bytes into its buffer."""
        sent = None if parts is None else [parts, (sizes, _starts(sizes)), self._byte]
        self._finish(self._data.Iscatterv(sent, [mine, self._byte], root))

    def reduces(self, dtype: np.dtype, op: Reduction) -> bool:
        """Whether MPI has this reduction, and as numpy does it."""
        if dtype.kind == "c":
            return op in (Reduction.SUM, Reduction.PROD)
        return op in self._ops and dtype.kind in "iuf" and dtype != np.float16

    def all_reduce(self, array: np.ndarray, op: Reduction) -> None:
        """Reduce in place, in all processes."""
        self._finish(self._data.Iallreduce(self._mpi.IN_PLACE, array, self._ops[op]))

    def wait_with(self, wait: Wait) -> None:
        """Wait for the end of transfers by this from now on; it may raise to leave one."""
        self._wait = wait

    def _finish(self, request: Any) -> None:
        try:
            self._wait(request.Test)
        except BaseException:
            self._left.append(request)
            raise

    def finalize(self) -> None:
        """Leave MPI once all that was sent has left; all processes must come."""
        for request, _ in self._sending + self._offered:
            request.Wait()
        if not self._mpi.Is_finalized():
            self._next.Cancel()
            self._next.Wait()
            self._next.Free()
            self._mpi.Finalize()

    def abort(self) -> NoReturn:
        """End all processes of the launch, by force."""
        _let_out()
        self._mpi.COMM_WORLD.Abort(1)
        os._exit(1)  # MPICH's may return before the launcher has ended this process

    def leave(self) -> NoReturn:
        """Leave MPI, as all processes must, and end this process, which has no more to do.

        As Python would, but for what may wait for the script, which goes no further: its threads.
        By C's own exit, since MPICH's launcher loses the exit codes of the others where a process
        ends without its C libraries' handlers.
        """
        atexit._run_exitfuncs()
        self.finalize()
        _flush_files()
        ctypes.CDLL(None).exit(0)
        raise AssertionError("exit does not return")


def _unsent(messages: list[tuple[Any, bytes]]) -> list[tuple[Any, bytes]]:
    return [m for m in messages if not m[0].Test()]


def _let_out(descriptors: Sequence[int] = (1, 2)) -> None:
    """Wait a while until the launcher has read what was printed; MPICH's loses it at an abort."""
    sys.stdout.flush()
    sys.stderr.flush()
    until = time.monotonic() + _READ_SECONDS
    while any(map(_is_unread, descriptors)) and time.monotonic() < until:
        time.sleep(0.001)


def _is_unread(descriptor: int) -> bool:
    """Whether a pipe holds something."""
    try:
        if not stat.S_ISFIFO(os.fstat(descriptor).st_mode):
            return False
        return any(fcntl.ioctl(descriptor, termios.FIONREAD, bytes(4)))
    except OSError:  # it is closed
        return False


def _flush_files() -> None:
    """Write what is still in the buffers of the script's open files."""
    written = (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)
    for found in gc.get_objects():
        if issubclass(type(found), written):  # not isinstance, which asks the object
            with contextlib.suppress(OSError, ValueError):
                found.flush()
    sys.stdout.flush()
    sys.stderr.flush()


def _starts(sizes: Sequence[int]) -> list[int]:
    return [0, *np.cumsum(sizes)[:-1].tolist()]


def _unlink_segments(pid: int) -> None:
    """Take their names from MPICH's and Open MPI's shared memory, which would outlive a killed job.

    From that which a process has mapped, also where the script had initialised MPI before.
    """
    maps = Path(f"/proc/{pid}/maps").read_text()
    for path in set(re.findall(r"/dev/shm/(?:mpich_shm_|sm_segment\.)\S+", maps)):
        Path(path).unlink(missing_ok=True)
