"""MPI: the only file that imports mpi4py, and only in a group of several nodes.

These rules hold:

* A process forks its node's members first and initialises MPI after: an MPI process must not be
  forked. A fork that an operation makes gets `_Nothing` in place of the communicators.
* Only leaders speak MPI. Their messages and their transfers of arrays have a communicator each, so
  a transfer that is left cannot take a message.
* No call blocks. Sends, receives and transfers are requests that are tested beside the group's
  abort and deaths. An exception anywhere leaves the group usable, except after a transfer was left:
  its memory is then kept, and MPI is not used again.
* Transfers are collective, and allocate nothing: what could fail in one process would leave the
  others waiting. Leaders agree before that all will enter.
* MPI progresses only while a process calls it. So a message is pushed for a short time before the
  process goes on to compute.
* A job must not hang: a process that fails before it has initialised MPI ends the launch, since
  MPICH's launcher would wait for it. `leave` calls C's exit, or exit codes are lost.
* Whether this process is one of a launch is read from the environment, and noted there, since
  processes that it starts inherit the variables but are not of the launch. Each of them imports
  this module at once, also one that only starts others. So it imports no PyTensor, and reductions
  are known by their names.
"""

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
import threading
import time
from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from synkhronos._errors import BackendMissing, GroupClosed
from synkhronos._host.system import MPI_RANKS

if TYPE_CHECKING:
    from mpi4py import MPI

    from synkhronos._proofs.reductions import Reduction

_LAUNCHED = "SYNKHRONOS_LAUNCHED"
# Tags of leaders' messages: small ones fit into the buffer of the receive that is always posted; a
# large one follows a small one with its length.
_SMALL, _LARGE = 7, 8
_BUFFER_BYTES = 1 << 16
_LENGTH = struct.Struct("<q")  # of a large message; the shortest message of leaders is longer
_SEND_SECONDS = 0.0005  # that a send may take before it goes on in the background
# Of `Mover`: messages that it moves, the least that it moves in a second, and its calls of MPI
# between two looks at whether it is still needed
_MOVED_BYTES, _MOVED_A_SECOND, _CALLS = 1 << 16, 20e6, 50
_LOOK_SECONDS = 0.001  # between two looks at whether a message is sent now
_NO_TAG = 32_767  # the largest that each MPI has; a probe for it finds nothing
_READ_SECONDS = 1.0  # for a launcher to read the output of a process before it ends the others
# The algorithm of Open MPI's reductions; its own choice takes up to three times as long.
_ALGORITHM, _RABENSEIFNER = "OMPI_MCA_coll_libnbc_iallreduce_algorithm", "3"
# PMI's message to the launcher, from a process that has not initialised MPI
_ABORT = b"cmd=init pmi_version=1 pmi_subversion=1\ncmd=abort exitcode=1\n"
# The variables that launchers set beside `MPI_RANKS`: size, then local rank and local size. The
# first name that is set counts: Slurm's PMI-2 sets some of those of MPICH's launcher.
_TASKS = ("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE")
_LAUNCHERS = {
    "Open MPI": (
        ("OMPI_COMM_WORLD_SIZE",),
        *(("OMPI_COMM_WORLD_LOCAL_RANK",), ("OMPI_COMM_WORLD_LOCAL_SIZE",)),
    ),
    "MPICH": (("PMI_SIZE",), *(("MPI_LOCALRANKID", "SLURM_LOCALID"), ("MPI_LOCALNRANKS", *_TASKS))),
    "Slurm": (("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"), *(("SLURM_LOCALID",), _TASKS)),
}
_JOBS = ("PMIX_NAMESPACE", "PMI_PORT", "PMI_JOBID", "SLURM_JOB_ID", "SLURM_STEP_ID")


@dataclass(frozen=True)
class Launch:
    """How this process was started by an MPI launcher."""

    launcher: str
    # this process's number, and the number of processes
    rank: int
    size: int
    # the same for the processes on this machine
    local_rank: int
    local_size: int


def launch(environ: MutableMapping[str, str] = os.environ) -> Launch | None:
    """The MPI launch of several processes that the environment describes; None without one."""
    for launcher, names in _LAUNCHERS.items():
        rank = environ.get(MPI_RANKS[launcher])
        size, local_rank, local_size = (_first(environ, wanted) for wanted in names)
        if rank and size:
            machine = int(environ.get("SLURM_NODEID", "0"))
            local = int(local_rank or "0"), _tasks(local_size or "1", machine)
            found = Launch(launcher, int(rank), int(size), *local)
            return found if found.size > 1 and _is_launched(environ) else None
    return None


def _first(environ: MutableMapping[str, str], names: Sequence[str]) -> str | None:
    return next((environ[name] for name in names if name in environ), None)


def _tasks(counts: str, machine: int) -> int:
    """The number of tasks on a machine, from Slurm's list.

    "2(x3),1" means two on each of three machines, and one on a fourth.

    >>> [_tasks("2(x3),1", machine) for machine in range(4)], _tasks("8", 0)
    ([2, 2, 2, 1], 8)
    """
    found = re.findall(r"(\d+)(?:\(x(\d+)\))?", counts)
    each = [int(count) for count, times in found for _ in range(int(times or 1))]
    return each[min(machine, len(each) - 1)]


def _is_launched(environ: MutableMapping[str, str]) -> bool:
    """Whether the launcher has started this very process.

    A process that a launched process starts inherits its environment, but is not a part of the
    launch. So the first process that calls this writes its pid and the launch there. It writes the
    launch, too, since it may itself start a launcher.
    """
    job = _job(environ)
    if job is None:
        return False
    mark = environ.get(_LAUNCHED)
    if mark is None or mark.partition(" ")[2] != job:
        mark = environ[_LAUNCHED] = f"{os.getpid()} {job}"
    return mark.partition(" ")[0] == str(os.getpid())


def _job(environ: MutableMapping[str, str]) -> str | None:
    """A text that identifies the launch; None if this process has no connection to a launcher."""
    given = [environ.get(name, "") for name in _JOBS]
    if "PMI_FD" in environ:  # set by MPICH's launcher, whose jobs have no names
        try:
            given.append(os.readlink(f"/proc/self/fd/{environ['PMI_FD']}"))
        except OSError:
            return None
        if not given[-1].startswith("socket:"):
            return None
    return "/".join(given)


def siblings() -> list[int]:
    """The children of this process's parent, by pid: if that is a launcher, its processes."""
    found: list[int] = []
    for children in Path(f"/proc/{os.getppid()}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += map(int, children.read_text().split())
    return sorted(found)


def is_initialised() -> bool:
    """Whether MPI is initialised in this process, by this module or by the user."""
    loaded = sys.modules.get("mpi4py.MPI")
    return loaded is not None and bool(loaded.Is_initialized())


@dataclass
class _Ending:
    """How this process ends: `failed` with a code other than 0; `alone` if no process waits."""

    failed: bool = False
    alone: bool = False


_ending = _Ending()


def stay_alone() -> None:
    """Note that the launch's other processes do not wait for this one."""
    _ending.alone = True


def _note_exits() -> None:
    """Note the code of `sys.exit`, which exit handlers cannot read."""
    leave = sys.exit

    @functools.wraps(leave)
    def noted(status: str | int | None = None, /) -> NoReturn:
        _ending.failed = status not in (None, 0)
        leave(status)

    sys.exit = noted


def _end_launch() -> None:
    """If this process fails before it initialises MPI, end the others, which may wait for it.

    Open MPI's launcher does that itself; MPICH's only after MPI is initialised.
    """
    failed = _ending.failed or getattr(sys, "last_exc", None) is not None
    if failed and not _ending.alone and launch() is not None and not is_initialised():
        _let_out()
        for pid in siblings():  # they may wait inside MPI's initialisation
            with contextlib.suppress(OSError):
                _unlink_segments(pid)
        with contextlib.suppress(OSError):
            os.write(int(os.environ["PMI_FD"]), _ABORT)


# at the import, before this process can start another
if launch() is not None and "PMI_FD" in os.environ:
    _note_exits()
    atexit.register(_end_launch)


class Mover:
    """Moves large messages of mpi4py's futures while this process sends them.

    A message moves only while its sender calls MPI, and futures call it once a millisecond. If MPI
    copies 8 KB at a time, as MPICH over UCX does, 3 MB take 0.4 s. So a thread calls it as well.
    Nobody says when a message has been sent: the thread goes on as long as a slow one would take.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._coming: list[tuple[int, Callable[[], bool]]] = []  # bytes; whether they are sent now
        self._until = 0.0  # by time.monotonic
        self._moves = False  # whether there is a thread

    def sends(self, nbytes: int, begun: Callable[[], bool] = lambda: True) -> None:
        """Take note of a message, which is sent from when `begun` says so."""
        if nbytes < _MOVED_BYTES or not _takes_threads():
            return
        with self._lock:
            self._coming.append((nbytes, begun))
            if self._moves:
                return
            self._moves = True
        # the end of the program waits for it, since it must not call MPI later
        threading.Thread(target=self._move, name="synk-mpi").start()

    def rest(self) -> None:
        """Take note that all messages have been sent."""
        with self._lock:
            self._coming.clear()
            self._until = 0.0

    def _move(self) -> None:
        from mpi4py import MPI

        while self._is_needed():
            if time.monotonic() > self._until:
                time.sleep(_LOOK_SECONDS)
                continue
            for _ in range(_CALLS):
                MPI.COMM_WORLD.Iprobe(MPI.ANY_SOURCE, _NO_TAG)
            os.sched_yield()

    def _is_needed(self) -> bool:
        now = time.monotonic()
        with self._lock:
            sent = [nbytes for nbytes, begun in self._coming if begun()]
            self._coming = [each for each in self._coming if not each[1]()]
            if sent:
                self._until = max(now, self._until) + sum(sent) / _MOVED_A_SECOND
            needed = bool(self._coming) or now < self._until
            self._moves = needed and threading.main_thread().is_alive()
            return self._moves


def _takes_threads() -> bool:
    """Whether MPI is initialised, and lets several threads call it at the same time."""
    if not is_initialised():
        return False
    from mpi4py import MPI

    return MPI.Query_thread() == MPI.THREAD_MULTIPLE


Wait = Callable[[Callable[[], bool]], None]


def poll(done: Callable[[], bool]) -> None:
    """Return once `done()` is true; MPI makes progress only while it is called."""
    while not done():
        os.sched_yield()


class _Inbox:
    """The messages of one process, in order.

    A receive that is always posted takes half the time of a probe for each message. There is one
    for each process: one for any source loses messages in MPICH 5.0 over UCX and TCP, where memory
    that processes of one machine share is another way for them.
    """

    def __init__(self, mpi: Any, control: MPI.Intracomm, source: int) -> None:
        self.source = source
        self._control = control
        self._byte, self._status = mpi.BYTE, mpi.Status()
        self._buffer = bytearray(_BUFFER_BYTES)
        self._next = control.Recv_init([self._buffer, self._byte], source, _SMALL)
        self._next.Start()
        self._large: tuple[MPI.Request, bytearray] | None = None  # a message that is being received

    def take(self) -> bytes | None:
        """The next message, if it has arrived."""
        if self._large is not None:
            request, whole = self._large
            if not request.Test():
                return None
            self._large = None
            return bytes(whole)
        if not self._next.Test(self._status):
            return None
        length = self._status.Get_count(self._byte)
        message = bytes(memoryview(self._buffer)[:length])
        self._next.Start()
        if length != _LENGTH.size:
            return message
        whole = bytearray(_LENGTH.unpack(message)[0])
        self._large = self._control.Irecv([whole, self._byte], self.source, _LARGE), whole
        return self.take()

    def close(self) -> None:
        """Take the receive back."""
        self._next.Cancel()
        self._next.Wait()
        self._next.Free()


class World:
    """All processes of an MPI launch: messages between leaders, and transfers of arrays.

    Transfers are collective, so all processes must enter them. They allocate no memory, since that
    could fail in one process. They do not block: a process can leave one that does not end since
    another process is stopped. MPI cannot be used after that.
    """

    def __init__(self) -> None:
        try:
            import mpi4py

            os.environ.setdefault(_ALGORITHM, _RABENSEIFNER)
            mpi4py.rc.finalize = False  # a fork of this process would finalize at its end, and hang
            from mpi4py import MPI
        except ImportError as exc:
            raise BackendMissing("mpi4py", "mpi") from exc
        self._mpi = MPI
        self._control = MPI.COMM_WORLD.Dup()
        self._data = MPI.COMM_WORLD.Dup()
        self.rank: int = self._control.rank
        self.size: int = self._control.size
        self._byte = MPI.BYTE
        self._inboxes: list[_Inbox] = []
        self._sending: list[tuple[MPI.Request, bytes]] = []
        self._offered: list[tuple[MPI.Request, bytes]] = []  # at most one
        self._wait: Wait = poll
        self._left: list[MPI.Request] = []  # transfers, which keep the memory that they use
        self._ops = {"sum": MPI.SUM, "prod": MPI.PROD, "min": MPI.MIN, "max": MPI.MAX}
        # Open MPI opens a neighbour's segment by its name at the first message to it
        neighbours = MPI.COMM_WORLD.Split_type(MPI.COMM_TYPE_SHARED)
        neighbours.alltoall([0] * neighbours.size)
        neighbours.Barrier()
        neighbours.Free()
        _unlink_segments(os.getpid())

    @property
    def library(self) -> str:
        """The MPI library, by name and version."""
        return str(self._mpi.Get_library_version()).splitlines()[0].strip("\0 ")

    def listen(self, sources: Sequence[int]) -> None:
        """Receive the messages of these processes; see MessageTransport."""
        known = [inbox.source for inbox in self._inboxes]
        self._inboxes += [
            _Inbox(self._mpi, self._control, source) for source in sources if source not in known
        ]

    def send(self, to: int, message: bytes) -> None:
        """Send, and wait only for a short time; see MessageTransport."""
        if len(message) <= _BUFFER_BYTES:
            self._send(to, message, _SMALL)
        else:
            self._send(to, _LENGTH.pack(len(message)), _SMALL)
            self._send(to, message, _LARGE)

    def _send(self, to: int, message: bytes, tag: int) -> None:
        request = self._control.Isend([message, self._byte], to, tag)
        if request.Test():
            return
        # MPI continues a send only while this process calls it, and this process may compute next;
        # the receiver, most often, waits for the message
        until = time.perf_counter() + _SEND_SECONDS
        while not request.Test():
            if time.perf_counter() > until:
                self._sending.append((request, message))
                return

    def offer(self, to: int, message: bytes) -> None:
        """Send unless the previous offer is still under way; see MessageTransport."""
        self._offered = _unsent(self._offered)
        if self._offered:
            return
        tag = _SMALL
        if len(message) > _BUFFER_BYTES:
            self._send(to, _LENGTH.pack(len(message)), _SMALL)
            tag = _LARGE
        # a synchronous send: other sends count as done while MPI buffers them, without a limit
        self._offered = [(self._control.Issend([message, self._byte], to, tag), message)]

    def receive(self) -> tuple[int, bytes] | None:
        """The next message; see MessageTransport."""
        if self._sending:
            self._sending = _unsent(self._sending)
        for inbox in self._inboxes:
            if (message := inbox.take()) is not None:
                return inbox.source, message
        return None

    def broadcast(self, buffer: np.ndarray, root: int) -> None:
        """Copy the root's buffer to the buffers of all processes."""
        self._finish(self._data.Ibcast([buffer, self._byte], root))

    def gather(
        self, mine: np.ndarray, into: np.ndarray | None, sizes: Sequence[int], root: int
    ) -> None:
        """Copy all processes' bytes, in the order of ranks, to the root's buffer."""
        found = None if into is None else [into, (sizes, _starts(sizes)), self._byte]
        self._finish(self._data.Igatherv([mine, self._byte], found, root))

    def all_gather(self, mine: np.ndarray, into: np.ndarray, sizes: Sequence[int]) -> None:
        """Copy all processes' bytes, in the order of ranks, to the buffers of all."""
        found = [into, (sizes, _starts(sizes)), self._byte]
        self._finish(self._data.Iallgatherv([mine, self._byte], found))

    def all_to_all(self, parts: np.ndarray, into: np.ndarray) -> None:
        """Copy row i of all processes' parts to process i; rows have equal sizes."""
        count = parts[0].nbytes
        sent, found = [parts, count, self._byte], [into, count, self._byte]
        self._finish(self._data.Ialltoall(sent, found))

    def all_to_all_v(
        self, parts: np.ndarray, sent: Sequence[int], into: np.ndarray, found: Sequence[int]
    ) -> None:
        """Copy part i of all processes' bytes to process i; sizes are in bytes."""
        out = [parts, (sent, _starts(sent)), self._byte]
        self._finish(self._data.Ialltoallv(out, [into, (found, _starts(found)), self._byte]))

    def scatter(
        self, parts: np.ndarray | None, sizes: Sequence[int], mine: np.ndarray, root: int
    ) -> None:
        """Copy to each process its part of the root's bytes."""
        sent = None if parts is None else [parts, (sizes, _starts(sizes)), self._byte]
        self._finish(self._data.Iscatterv(sent, [mine, self._byte], root))

    def reduces(self, dtype: np.dtype, op: Reduction) -> bool:
        """Whether MPI has this reduction, with the same result as numpy."""
        if dtype.kind == "c":
            return op in ("sum", "prod")
        return op in self._ops and dtype.kind in "iuf" and dtype != np.float16

    def all_reduce(self, array: np.ndarray, op: Reduction) -> None:
        """Reduce in place, in all processes."""
        self._finish(self._data.Iallreduce(self._mpi.IN_PLACE, array, self._ops[op]))

    def wait_with(self, wait: Wait) -> None:
        """Use another function to wait for transfers; it may raise to leave one."""
        self._wait = wait

    def _finish(self, request: MPI.Request) -> None:
        try:
            self._wait(request.Test)
        except BaseException:
            self._left.append(request)
            raise

    def part(self) -> None:
        """In a fork of this process, which is not of the launch: send and receive nothing."""
        self._inboxes, self._sending, self._offered = [], [], []
        nothing: Any = _Nothing()
        self._control = self._data = nothing

    def finalize(self) -> None:
        """Finalize MPI once all messages are sent; all processes must call this."""
        for request, _ in self._sending + self._offered:
            request.Wait()
        if not self._mpi.Is_finalized():
            for inbox in self._inboxes:
                inbox.close()
            self._mpi.Finalize()

    def abort(self) -> NoReturn:
        """End all processes of the launch, by force."""
        _let_out()
        self._mpi.COMM_WORLD.Abort(1)
        os._exit(1)  # MPICH's Abort may return before the launcher ends this process

    def leave(self) -> NoReturn:
        """Finalize MPI, as all processes must, and end this process.

        It ends as Python does, but does not wait for threads, which may wait for the script. It
        calls C's exit: without the handlers of C libraries, MPICH's launcher loses the exit codes
        of the other processes.
        """
        atexit._run_exitfuncs()
        self.finalize()
        _flush_files()
        ctypes.CDLL(None).exit(0)
        raise AssertionError("exit does not return")


class _Nothing:
    """The communicators of a fork."""

    def __getattr__(self, name: str) -> NoReturn:
        raise GroupClosed(
            f"this process (pid {os.getpid()}) is a fork of a process of the MPI launch, and "
            "cannot use MPI"
        )


def _unsent(messages: list[tuple[MPI.Request, bytes]]) -> list[tuple[MPI.Request, bytes]]:
    return [m for m in messages if not m[0].Test()]


def _let_out(descriptors: Sequence[int] = (1, 2)) -> None:
    """Wait a while until the launcher has read the output, which MPICH's loses at an abort."""
    sys.stdout.flush()
    sys.stderr.flush()
    until = time.monotonic() + _READ_SECONDS
    while any(map(_is_unread, descriptors)) and time.monotonic() < until:
        time.sleep(0.001)


def _is_unread(descriptor: int) -> bool:
    """Whether a pipe holds unread bytes."""
    try:
        if not stat.S_ISFIFO(os.fstat(descriptor).st_mode):
            return False
        return any(fcntl.ioctl(descriptor, termios.FIONREAD, bytes(4)))
    except OSError:  # it is closed
        return False


def _flush_files() -> None:
    """Flush the open files of the script."""
    written = (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)
    for found in gc.get_objects():
        if issubclass(type(found), written):  # isinstance would run code of the object
            with contextlib.suppress(OSError, ValueError):
                found.flush()
    sys.stdout.flush()
    sys.stderr.flush()


def _starts(sizes: Sequence[int]) -> list[int]:
    return [0, *np.cumsum(sizes)[:-1].tolist()]


def _unlink_segments(pid: int) -> None:
    """Unlink the shared memory of MPICH and Open MPI, which would outlive a job that is killed.

    These are the files that a process has mapped, also if the script initialised MPI before.
    """
    maps = Path(f"/proc/{pid}/maps").read_text()
    for path in set(re.findall(r"/dev/shm/(?:mpich_shm_|sm_segment\.)\S+", maps)):
        Path(path).unlink(missing_ok=True)
