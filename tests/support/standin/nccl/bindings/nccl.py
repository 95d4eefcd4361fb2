"""What the package calls of `nccl.bindings.nccl`: the same names, arguments and rules.

Nothing is done before a group ends and the communicator, in progress since, has taken it, and then
by the stream's thread: members send what they post to a hub, a thread of the member that made the
id, which does it in numpy and sends back what each gets. A hub that has lost a member never answers
again, as NCCL's kernels never end. Rules that a caller breaks are errors: a call outside a group,
one while the communicator is in progress, one in a thread where another device is current, members
that post different things.
"""

from __future__ import annotations

import contextlib
import ctypes
import enum
import functools
import math
import os
import pickle
import socket
import struct
import threading
import time
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
from cuda.core import Stream, check_current, streams

from synkhronos._host.polling import readable

VERSION = int(os.environ.get("STANDIN_NCCL_VERSION", "23203"))
LAUNCH = 0.001  # seconds: what does not wait for it comes too early
PATIENCE = float(os.environ.get("STANDIN_NCCL_PATIENCE", "1"))  # seconds between two members

calls: list[tuple[Any, ...]] = []  # (name, arguments) of every call, in order
accepting = threading.Event()  # while it is cleared communicators stay in progress
accepting.set()


class Result(enum.IntEnum):
    Success = 0
    UnhandledCudaError = 1
    SystemError = 2
    InternalError = 3
    InvalidArgument = 4
    InvalidUsage = 5
    RemoteError = 6
    InProgress = 7


class DataType(enum.IntEnum):
    Int8 = 0
    Uint8 = 1
    Int32 = 2
    Uint32 = 3
    Int64 = 4
    Uint64 = 5
    Float16 = 6
    Float32 = 7
    Float64 = 8
    Bfloat16 = 9


class RedOp(enum.IntEnum):
    Sum = 0
    Prod = 1
    Max = 2
    Min = 3


class NCCLError(Exception):
    pass


_NUMPY = {
    t: np.dtype(ml_dtypes.bfloat16 if t is DataType.Bfloat16 else t.name.lower()) for t in DataType
}
_UFUNCS = {
    RedOp.Sum: np.add,
    RedOp.Prod: np.multiply,
    RedOp.Max: np.maximum,
    RedOp.Min: np.minimum,
}
# by operation: the places of the pointers, of the count and of the element's type in its arguments
_SENDS = {"all_reduce": 0, "reduce": 0, "broadcast": 0, "send": 0}
_RECEIVES = {"all_reduce": 1, "reduce": 1, "broadcast": 1, "recv": 0}
_COUNT = {"all_reduce": 2, "reduce": 2, "broadcast": 2, "send": 1, "recv": 1}


class Config:
    """An ncclConfig_t; `ptr` finds it again."""

    made: dict[int, Config] = {}  # noqa: RUF012

    def __init__(self) -> None:
        self.blocking = 1
        Config.made[id(self)] = self

    @property
    def ptr(self) -> int:
        return id(self)


class UniqueId:
    """128 bytes: the hub's address."""

    def __init__(self, data: bytes) -> None:
        self._data = data.ljust(128, b"\0")

    def __bytes__(self) -> bytes:
        return self._data


class Comm:
    """A member's end: a socket to the hub."""

    def __init__(self, size: int, rank: int, address: bytes) -> None:
        self.size, self.rank = size, rank
        self.state = Result.InProgress
        self.error = ""
        self.aborted = threading.Event()
        self.posted: list[tuple[str, tuple[int, ...]]] = []
        self._socket = socket.socket(socket.AF_UNIX)
        threading.Thread(target=self._connect, args=(address,), daemon=True).start()

    def _connect(self, address: bytes) -> None:
        try:
            self._socket.connect(address)
            _send(self._socket, (self.rank, self.size))
            if _receive(self._socket) == "go":
                self.state = Result.Success
        except OSError as exc:
            if not self.aborted.is_set():
                self.state, self.error = Result.SystemError, str(exc)

    def exchange(self, posted: list[tuple[str, tuple[int, ...]]]) -> None:
        """In the stream's thread: send what others need, write what comes."""
        try:
            _send(self._socket, [(name, a, self._payload(name, a)) for name, a in posted])
            answer = _receive(self._socket)
            if isinstance(answer, str):
                self.state, self.error = Result.InvalidUsage, answer
                self.aborted.wait()
                return
            for (name, arguments), data in zip(posted, answer, strict=True):
                if data is not None:
                    ctypes.memmove(arguments[_RECEIVES[name]], data, len(data))
        except OSError:
            self.aborted.wait()  # the kernel turns until somebody ends it

    def _payload(self, name: str, arguments: tuple[int, ...]) -> bytes | None:
        if name not in _SENDS or (name == "broadcast" and arguments[4] != self.rank):
            return None
        at, count = arguments[_SENDS[name]], arguments[_COUNT[name]]
        nbytes = count * _NUMPY[DataType(arguments[_COUNT[name] + 1])].itemsize
        return ctypes.string_at(at, nbytes)

    def abort(self) -> None:
        self.aborted.set()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def _recorded(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*arguments: Any) -> Any:
        calls.append((function.__name__, *arguments))
        return function(*arguments)

    return wrapper


def get_version() -> int:
    return VERSION


@_recorded
def get_unique_id() -> UniqueId:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind("")  # a name of the kernel's choice, in no folder
    listener.listen()
    listener.settimeout(PATIENCE)  # a member that cannot be linked never comes
    threading.Thread(target=_hub, args=(listener,), daemon=True).start()
    return UniqueId(listener.getsockname())


@_recorded
def comm_init_rank_scalable(
    nranks: int, myrank: int, n_id: int, comm_ids: bytearray, config: int
) -> Comm:
    assert (n_id, len(comm_ids)) == (1, 128)
    assert not Config.made[config].blocking, "a blocking communicator may wait for ever"
    if os.environ.get("STANDIN_NCCL_FAILS") == str(myrank):
        raise NCCLError("UnhandledCudaError (1): unhandled cuda error")
    return Comm(nranks, myrank, bytes(comm_ids).rstrip(b"\0"))


def comm_get_async_error(comm: Comm) -> int:
    return int(comm.state)


def get_error_string(result: int) -> str:
    return Result(result).name


def get_last_error(comm: Comm) -> str:
    return comm.error


@_recorded
def comm_abort(comm: Comm) -> None:
    comm.abort()


_group: list[tuple[Comm, int]] | None = None


@_recorded
def group_start() -> None:
    global _group
    assert _group is None
    check_current()
    _group = []


@_recorded
def group_end() -> None:
    global _group
    posted, _group = _group, None
    assert posted is not None
    for comm, handle in dict.fromkeys(posted):
        batch, comm.posted = comm.posted, []
        comm.state = Result.InProgress
        launch = functools.partial(_launch, comm, streams[handle], batch)
        threading.Thread(target=launch, daemon=True).start()


def _launch(comm: Comm, stream: Stream, batch: list[tuple[str, tuple[int, ...]]]) -> None:
    """Hand a group to the GPU: a communicator that does not block lets that take its time."""
    time.sleep(LAUNCH)
    accepting.wait()
    stream.put(functools.partial(comm.exchange, batch))
    if comm.state == Result.InProgress:
        comm.state = Result.Success


def _posts(name: str, comm: Comm, stream: int, *arguments: int) -> None:
    assert _group is not None, f"{name} outside a group"
    assert comm.state == Result.Success, f"{name} while the communicator is in progress"
    assert all(type(a) is int for a in arguments), arguments
    comm.posted.append((name, arguments))
    _group.append((comm, stream))


@_recorded
def all_reduce(
    sendbuff: int, recvbuff: int, count: int, datatype: int, op: int, comm: Comm, stream: int
) -> None:
    _posts("all_reduce", comm, stream, sendbuff, recvbuff, count, datatype, op)


@_recorded
def reduce(
    sendbuff: int,
    recvbuff: int,
    count: int,
    datatype: int,
    op: int,
    root: int,
    comm: Comm,
    stream: int,
) -> None:
    _posts("reduce", comm, stream, sendbuff, recvbuff, count, datatype, op, root)


@_recorded
def broadcast(
    sendbuff: int, recvbuff: int, count: int, datatype: int, root: int, comm: Comm, stream: int
) -> None:
    _posts("broadcast", comm, stream, sendbuff, recvbuff, count, datatype, root)


@_recorded
def send(sendbuff: int, count: int, datatype: int, peer: int, comm: Comm, stream: int) -> None:
    _posts("send", comm, stream, sendbuff, count, datatype, peer)


@_recorded
def recv(recvbuff: int, count: int, datatype: int, peer: int, comm: Comm, stream: int) -> None:
    _posts("recv", comm, stream, recvbuff, count, datatype, peer)


# the hub


def _hub(listener: socket.socket) -> None:
    with contextlib.ExitStack() as accepted:
        members: dict[int, socket.socket] = {}
        try:
            with listener:
                size = 1
                while len(members) < size:
                    member = accepted.enter_context(listener.accept()[0])
                    member.setblocking(True)
                    rank, size = _receive(member)  # fails if that member has given up meanwhile
                    members[rank] = member
            order = [members[r] for r in range(size)]
            for member in order:
                _send(member, "go")
            desk = _Desk(order)
            numbers = [member.fileno() for member in order]
            while True:
                for ready in readable(*numbers, seconds=math.inf):
                    rank = numbers.index(ready)
                    desk.take(rank, _receive(order[rank]))
        except OSError:  # a member is gone: the others wait until they give up
            for member in members.values():
                with contextlib.suppress(OSError):
                    while member.recv(1 << 16):
                        pass


Batch = list[tuple[str, tuple[int, ...], bytes | None]]


class _Desk:
    """What members have posted and others have not answered yet."""

    def __init__(self, members: list[socket.socket]) -> None:
        self._members = members
        self._waiting: list[Batch | None] = [None] * len(members)
        self._mail: dict[tuple[int, int], list[bytes | None]] = {}

    def take(self, rank: int, batch: Batch) -> None:
        """A member's batch; it gets the answer when all that it waits for is there."""
        assert self._waiting[rank] is None
        self._waiting[rank] = batch
        for name, arguments, data in batch:
            if name == "send":
                self._mail.setdefault((rank, arguments[3]), []).append(data)
        self._answer_all()
        for other, waiting in enumerate(self._waiting):
            if waiting is not None and all(name in ("send", "recv") for name, _, _ in waiting):
                self._answer_messages(other, waiting)

    def _answer_messages(self, rank: int, batch: Batch) -> None:
        found = self._received(rank, batch)
        if found is not None:
            self._give(rank, found)

    def _received(self, rank: int, batch: Batch) -> list[bytes | None] | None:
        """What a member receives, for each operation; None as long as something is missing."""
        wanted = [arguments[3] for name, arguments, _ in batch if name == "recv"]
        mail = self._mail
        if any(len(mail.get((r, rank), ())) < wanted.count(r) for r in wanted):
            return None
        found: list[bytes | None] = []
        for name, arguments, _ in batch:
            data = mail[arguments[3], rank].pop(0) if name == "recv" else None
            if name == "recv" and (data is None or len(data) != arguments[1]):
                raise AssertionError(f"rank {rank} receives another number of bytes than is sent")
            found.append(data)
        return found

    def _answer_all(self) -> None:
        """What all members post together."""
        batches = [b for b in self._waiting if b and any(x[0] not in ("send", "recv") for x in b)]
        if len(batches) < len(self._members):
            return
        answers = [self._received(rank, b) for rank, b in enumerate(batches)]
        wrong = "" if None not in answers else "what is received is not sent"
        places = [[i for i, x in enumerate(b) if x[0] not in ("send", "recv")] for b in batches]
        if len({len(p) for p in places}) > 1:
            wrong = "members post different numbers of operations"
        for at in () if wrong else zip(*places, strict=True):
            column = [b[i] for b, i in zip(batches, at, strict=True)]
            alike = {(name, *arguments[2:]) for name, arguments, _ in column}
            if len(alike) > 1:
                wrong = f"members post different operations: {sorted(alike)}"
                break
            [(name, _, kind, *how)] = alike
            result = column[how[0]][2] if name == "broadcast" else _combined(column, kind, how[0])
            for rank, i in enumerate(at):
                answer = answers[rank]
                if answer is not None and (name != "reduce" or rank == how[1]):
                    answer[i] = result
        for rank, answer in enumerate(answers):
            self._give(rank, wrong or answer)

    def _give(self, rank: int, answer: Any) -> None:
        self._waiting[rank] = None
        _send(self._members[rank], answer)


def _combined(column: Batch, kind: int, op: int) -> bytes:
    parts = [np.frombuffer(data or b"", _NUMPY[DataType(kind)]) for _, _, data in column]
    return functools.reduce(_UFUNCS[RedOp(op)], parts).tobytes()


def _send(to: socket.socket, value: Any) -> None:
    data = pickle.dumps(value)
    to.sendall(struct.pack("q", len(data)) + data)


def _receive(source: socket.socket) -> Any:
    return pickle.loads(_exactly(source, struct.unpack("q", _exactly(source, 8))[0]))


def _exactly(source: socket.socket, count: int) -> bytes:
    found = bytearray()
    while len(found) < count:
        piece = source.recv(min(1 << 20, count - len(found)))
        if not piece:
            raise OSError("closed")
        found += piece
    return bytes(found)
