"""The channel between machines: to the members of this node, and to the leaders of all others.

A message to the leaders holds the master's writes to shared memory since the previous message, of
which every node has a copy. It also holds the number of the command, and the command itself, unless
the leaders have it under that number.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from synkhronos._errors import GroupClosed, WorkerDied, member_named
from synkhronos._host.arena import Arena
from synkhronos._host.devices import Device
from synkhronos._transport import serialization
from synkhronos._transport.channels.channel import WORKER_DIED, Channel, Failure, Gone
from synkhronos._transport.channels.leader_tree import Leaders
from synkhronos._transport.channels.one_node import OneNodeChannel
from synkhronos._transport.channels.placement import Placement
from synkhronos._transport.channels.repeated_commands import (
    ReceivedCommands,
    Repeatable,
    SentCommands,
)
from synkhronos._transport.processes.child_process import END_SECONDS
from synkhronos._transport.shared_state.waiting import GroupEnded, PeerDied

_NUMBER = struct.Struct("=q")  # under which a command is sent again
_MESSAGE, _FLOATS = b"\0", b"\1"  # the first byte of reports


class MultiNodeChannel(Channel):
    """The master's end."""

    def __init__(
        self,
        here: OneNodeChannel,
        leaders: Leaders,
        placement: Placement,
        pids: list[int],
        labels: list[str],
        broadcast: Broadcast,
        closed: Callable[[], None],
        devices: tuple[Device, ...],
    ) -> None:
        self._closed = closed  # called at the end
        self._here = here  # the channel to the members of this node
        self._leaders = leaders
        self._placement = placement
        # by rank: the process id, and the device and node
        self._pids = pids
        self._labels = labels
        self.devices = devices  # by rank
        # sends an array of bytes to all leaders, which must call it, too
        self._broadcast = broadcast
        self._sent = SentCommands()
        self._all_reported = True
        self._broken = ""
        self.node = here.node
        self.node.arena.track_changes()
        self.interrupts = here.interrupts
        self.inspector = here.inspector
        here.inspector.elsewhere = self._elsewhere
        self.workers = here.workers
        self.started = f"{here.started} on {len(placement.sizes)} nodes"

    @property
    def broken(self) -> str:
        failed = "a transfer between nodes did not end" if self._leaders.transfer_failed else ""
        return self._here.broken or self._broken or failed

    @property
    def number(self) -> int:
        return self._here.number

    def wake(self) -> None:
        self._here.wake()

    def post(self, command: Repeatable, what: str = "a command") -> int:
        if not self._all_reported:
            self._here.inspector.start_again()
            self._await_reports(self._here.number, self._here.what)
        sent = self._sent.get(id(command))
        if sent is not None:
            message = _NUMBER.pack(sent[0])
        else:
            serialized = serialization.Serialized(command)
            packed = bytearray(_NUMBER.size + serialized.nbytes)
            packed[: _NUMBER.size] = _NUMBER.pack(self._sent.add(command))
            serialized.write(memoryview(packed)[_NUMBER.size :])
            message = bytes(packed)
        with self.interrupts:  # after the message all leaders enter the broadcasts
            changes, beside = pack_changes(self.node.arena)
            number = self._here.post(command, what, lambda: self._send(changes + message))
            try:
                for array in beside:
                    self._broadcast(array)
            except BaseException:
                self._leaders.fail_transfer()
                raise
            return number

    def _send(self, message: bytes) -> None:
        self._all_reported = False
        self._leaders.post(self._leaders.number + 1, message)

    def _await_reports(self, number: int, during: str) -> dict[int, bytes]:
        self._here.end_exchanges(number)
        try:
            return self._leaders.collect(lambda: self._here.reported(number))
        except (PeerDied, GroupEnded):
            raise self.loss(during) from None

    def collect(self, number: int, lent: bool = False) -> dict[int, object]:
        payloads = self._await_reports(number, self._here.what)
        self._all_reported = True
        found = self._here.collect(number, lent)
        objects: list[tuple[int, object]] = []  # reports that are not only floats
        for payload in payloads.values():
            outcomes = read_reports(payload)
            found.update(outcomes)
            if payload[:1] == _MESSAGE:
                objects += outcomes.items()
        if not any([type(o) is Failure for _, o in objects]):  # it may lack memory for the changes
            self.node.arena.acknowledge_changes()
        gone = {r: o for r, o in objects if isinstance(o, Gone)}
        if gone:
            raise self._died(gone)
        return found

    def _elsewhere(self) -> tuple[tuple[int, ...], str]:
        """The members of nodes that are late, and their names for messages."""
        nodes = self._leaders.missing()
        ranks = [rank for node in nodes for rank in self._placement.ranks(node)]
        named = [member_named(r, self.pid(r), self.device(r)) for r in ranks]
        return tuple(ranks), ", ".join(named)

    def _died(self, gone: dict[int, Gone]) -> WorkerDied:
        self._broken = WORKER_DIED
        error = WorkerDied.of(
            {r: (g.pid, self.device(r), g.how) for r, g in gone.items()}, self._here.what
        )
        for g in gone.values():
            for note in g.notes:
                error.add_note(note)
        return error

    def loss(self, during: str) -> WorkerDied | GroupClosed:
        return self._here.loss(during)

    def commit(self, number: int) -> None:
        self._leaders.send_verdict(True)
        self._here.commit(number)

    def committed(self) -> bool:
        return self._here.committed()

    def abandon(self) -> None:
        self._leaders.send_verdict(self.committed())
        self._leaders.leave()
        self._here.abandon()
        self._sent.clear()

    def stop(self, number: int) -> None:
        self._leaders.stop()
        self._here.stop(number)

    def progress(self, number: int) -> list[int]:
        found = self._here.progress(number) + [0] * (self._placement.size - self._here.node.size)
        for node, counts in self._leaders.counted().items():
            ranks = self._placement.ranks(node)
            found[ranks.start : ranks.stop] = np.frombuffer(counts, np.int64).tolist()
        return found

    def compiling(self) -> list[int]:
        return self._here.compiling()

    def pid(self, rank: int) -> int:
        return self._pids[rank]

    def device(self, rank: int) -> str:
        return self._labels[rank]

    def quit(self, grace: float, patience: float = END_SECONDS) -> None:
        self._leaders.quit()
        self._here.quit(grace, patience)

    def close(self) -> None:
        self._here.close()
        # breaks a cycle, as in OneNodeChannel.close
        self._here.inspector.elsewhere = self._here.inspector.compiling = None
        self._closed()


def message_of(value: object) -> bytes:
    """A value as bytes, for leaders to send."""
    serialized = serialization.Serialized(value)
    packed = bytearray(serialized.nbytes)
    serialized.write(memoryview(packed))
    return bytes(packed)


def read_message(message: bytes) -> Any:
    """The inverse of `message_of`; the arrays own their memory."""
    return serialization.read(memoryview(bytearray(message)))


def reports_of(outcomes: dict[int, object]) -> bytes:
    """The outcomes of a node's members as bytes: none, only floats, or a pickled message."""
    if not outcomes:
        return b""
    floats = [_FLOATS]
    for rank, outcome in outcomes.items():
        if type(outcome) is not list or any([type(v) is not float for v in outcome]):
            return _MESSAGE + message_of(outcomes)
        floats.append(struct.pack(f"=qq{len(outcome)}d", rank, len(outcome), *outcome))
    return b"".join(floats)


def read_reports(payload: bytes) -> dict[int, Any]:
    """The inverse of `reports_of`.

    >>> read_reports(reports_of({2: [0.5, 1.0], 3: []})), read_reports(reports_of({1: (1,)}))
    ({2: [0.5, 1.0], 3: []}, {1: (1,)})
    """
    if not payload:
        return {}
    if payload[:1] == _MESSAGE:
        return dict(read_message(payload[1:]))
    found, at = {}, 1
    while at < len(payload):
        rank, count = struct.unpack_from("=qq", payload, at)
        at += 16
        found[rank] = list(struct.unpack_from(f"={count}d", payload, at))
        at += 8 * count
    return found


class CommandReceiver:
    """Reads the commands that a leader receives; a repeated one is the same object again."""

    def __init__(self, arena: Arena, broadcast: Broadcast, failed: Callable[[], None]) -> None:
        self._arena = arena
        self._broadcast = broadcast
        self._failed = failed
        self._received = ReceivedCommands()

    def skip(self, message: bytes) -> None:
        """Receive the changes that come with a command which is not run."""
        self._apply_changes(message)

    def _apply_changes(self, message: bytes) -> tuple[bytes, MemoryError | None]:
        try:
            return apply_changes(message, self._arena, self._broadcast)
        except BaseException:  # the other nodes are in a broadcast that this one has left
            self._failed()
            raise

    def command(self, message: bytes) -> Any:
        """Apply the changes in a message, and return its command.

        Raises
        ------
        MemoryError
            The node has no memory for the changes.
        """
        rest, shortage = self._apply_changes(message)
        if shortage is not None:
            raise shortage
        (number,) = _NUMBER.unpack_from(rest)
        if len(rest) == _NUMBER.size:
            return self._received[number]
        command = read_message(rest[_NUMBER.size :])
        self._received.add(number, command)
        return command


_INLINE = 1 << 16  # bytes; more than that is broadcast after the message
_CHUNK = 1 << 26  # bytes of a broadcast
_COUNTS = struct.Struct("=qqq")  # ranges written, ranges freed, whether a broadcast follows
_RANGE = struct.Struct("=qq")
_NOTHING = _COUNTS.pack(0, 0, 0)

Broadcast = Callable[[np.ndarray], None]


def pack_changes(arena: Arena) -> tuple[bytes, list[np.ndarray]]:
    """The changes of an arena: a message, and arrays to broadcast after it."""
    written, freed = arena.changes()
    if not written and not freed:
        return _NOTHING, []
    beside = sum([n for _, n in written]) > _INLINE
    head = [_COUNTS.pack(len(written), len(freed), beside)]
    head += [_RANGE.pack(*r) for r in written + freed]
    found = [arena.bytes_at(*r) for r in written]
    if beside:
        return b"".join(head), [chunk for m in found for chunk in _chunks(m)]
    return b"".join([*head, *found]), []


def _chunks(memory: memoryview) -> list[np.ndarray]:
    array = np.frombuffer(memory, np.uint8)
    return [array[at : at + _CHUNK] for at in range(0, array.size, _CHUNK)]


def _scrap(length: int) -> Iterator[np.ndarray]:
    """Chunks of the same lengths, to receive bytes that are dropped."""
    return (np.empty(min(_CHUNK, length - at), np.uint8) for at in range(0, length, _CHUNK))


def apply_changes(
    message: bytes, arena: Arena, broadcast: Broadcast
) -> tuple[bytes, MemoryError | None]:
    """Write the changes at the start of a message into the mirror.

    Returns the rest of the message, and an error where this node has no memory for a change. Even
    then all that is broadcast is received.
    """
    n_written, n_freed, beside = _COUNTS.unpack_from(message)
    at = _COUNTS.size
    ranges = []
    for _ in range(n_written + n_freed):
        ranges.append(_RANGE.unpack_from(message, at))
        at += _RANGE.size
    for offset, length in ranges[n_written:]:
        arena.free_mirrored(offset, length)
    trouble: MemoryError | None = None
    for offset, length in ranges[:n_written]:
        try:
            target = arena.mirrored(offset, length)
        except MemoryError as exc:
            trouble, target = exc, None
        if beside:
            for chunk in _scrap(length) if target is None else _chunks(target):
                broadcast(chunk)
            continue
        if target is not None:
            target[:] = message[at : at + length]
        at += length
    return message[at:], trouble
