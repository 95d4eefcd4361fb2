"""The channel between machines: to the members of this node, and to the leaders of all others.

What a message to the leaders holds: the number under which they remember the command, then the
command itself, unless they do; before it what the master has written into shared memory since the
last one, which every node has a copy of.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import numpy as np

from synkhronos._errors import GroupClosed, WorkerDied, member_named
from synkhronos._host.arena import Arena
from synkhronos._host.devices import Device
from synkhronos._transport import serialization
from synkhronos._transport.channels.channel import WORKER_DIED, Channel, Failure, Gone
from synkhronos._transport.channels.leader_tree import Leaders
from synkhronos._transport.channels.local import LocalChannel
from synkhronos._transport.channels.placement import Placement
from synkhronos._transport.channels.repeated_commands import ReceivedCommands, SentCommands
from synkhronos._transport.channels.replication import Broadcast, news, take
from synkhronos._transport.channels.waiting import GroupEnded, PeerDied

_NUMBER = struct.Struct("=q")  # under which a command is sent again
_MESSAGE, _FLOATS = b"\0", b"\1"  # how reports begin


class MpiChannel(Channel):
    """The master's end.

    Parameters
    ----------
    local : LocalChannel
        To the members of this node.
    leaders : Leaders
    placement : Placement
    pids, labels : list of int, list of str
        Of all members; where each is, and on what device.
    broadcast : callable
        Sends an array of bytes to all leaders, which come to receive it.
    closed : callable
        Is called at the end.
    devices : tuple of Device
        Of all members.
    """

    def __init__(
        self,
        local: LocalChannel,
        leaders: Leaders,
        placement: Placement,
        pids: list[int],
        labels: list[str],
        broadcast: Broadcast,
        closed: Callable[[], None],
        devices: tuple[Device, ...],
    ) -> None:
        self._closed = closed
        self._local = local
        self._leaders = leaders
        self._placement = placement
        self._pids = pids
        self._labels = labels
        self.devices = devices
        self._broadcast = broadcast
        self._sent = SentCommands()
        self._all_reported = True
        self._broken = ""
        self.node = local.node
        self.node.arena.tell_news()
        self.interrupts = local.interrupts
        self.inspector = local.inspector
        local.inspector.elsewhere = self._elsewhere
        self.workers = local.workers
        self.started = f"{local.started} on {len(placement.sizes)} nodes"

    @property
    def broken(self) -> str:
        """Why the group cannot go on."""
        torn = "a transfer between nodes did not end" if self._leaders.torn else ""
        return self._local.broken or self._broken or torn

    @property
    def number(self) -> int:
        return self._local.number

    def wake(self) -> None:
        """Wake the workers of this node."""
        self._local.wake()

    def post(self, command: Any, what: str = "a command") -> int:
        """Hand a command to all workers; returns its number."""
        if not self._all_reported:
            self._await_reports(self._local.number, self._local.what)
        sent = self._sent.get(id(command))
        if sent is not None:
            message = _NUMBER.pack(sent[0])
        else:
            parcel = serialization.Parcel(command)
            packed = bytearray(_NUMBER.size + parcel.nbytes)
            packed[: _NUMBER.size] = _NUMBER.pack(self._sent.add(command))
            parcel.write(memoryview(packed)[_NUMBER.size :])
            message = bytes(packed)
        with self.interrupts:  # once the message is out, all come to the broadcasts
            told, beside = news(self.node.arena)
            number = self._local.post(command, what, lambda: self._send(told + message))
            try:
                for array in beside:
                    self._broadcast(array)
            except BaseException:
                self._leaders.tear()
                raise
            return number

    def _send(self, message: bytes) -> None:
        self._all_reported = False
        self._leaders.post(self._leaders.number + 1, message)

    def _await_reports(self, number: int, during: str) -> dict[int, bytes]:
        try:
            return self._leaders.collect(lambda: self._local.reported(number))
        except (PeerDied, GroupEnded):
            raise self.loss(during) from None

    def collect(self, number: int, lent: bool = False) -> dict[int, Any]:
        """Wait for every worker's report: {rank: outcome, None, or Failure}."""
        heard = self._await_reports(number, self._local.what)
        self._all_reported = True
        found = self._local.collect(number, lent)
        told: list[tuple[int, Any]] = []  # what is more than floats
        for says in heard.values():
            outcomes = read_reports(says)
            found.update(outcomes)
            if says[:1] == _MESSAGE:
                told += outcomes.items()
        if not any([type(o) is Failure for _, o in told]):  # maybe for want of memory for the news
            self.node.arena.heard()
        gone = {r: o for r, o in told if isinstance(o, Gone)}
        if gone:
            raise self._died(gone)
        return found

    def _elsewhere(self) -> tuple[tuple[int, ...], str]:
        """Members of nodes from which something is awaited, and how messages name them."""
        nodes = self._leaders.missing()
        ranks = [rank for node in nodes for rank in self._placement.ranks(node)]
        named = [member_named(r, self.pid(r), self.device(r)) for r in ranks]
        return tuple(ranks), ", ".join(named)

    def _died(self, gone: dict[int, Gone]) -> WorkerDied:
        self._broken = WORKER_DIED
        error = WorkerDied.of(
            {r: (g.pid, self.device(r), g.how) for r, g in gone.items()}, self._local.what
        )
        for g in gone.values():
            for note in g.notes:
                error.add_note(note)
        return error

    def loss(self, during: str) -> WorkerDied | GroupClosed:
        """Why nobody answers any more; see LocalChannel."""
        return self._local.loss(during)

    def commit(self, number: int) -> None:
        """Tell the workers that what the command changed stands."""
        self._leaders.judge(True)
        self._local.commit(number)

    def committed(self) -> bool:
        """Whether the last command's changes stand."""
        return self._local.committed()

    def abandon(self) -> None:
        """Tell the workers to leave the last command, and to undo its changes if none stand."""
        self._leaders.judge(self.committed())
        self._leaders.leave()
        self._local.abandon()
        self._sent.clear()

    def stop(self, number: int) -> None:
        """Ask a long command to return."""
        self._leaders.stop()
        self._local.stop(number)

    def progress(self, number: int) -> list[int]:
        """What each rank has counted in a long command."""
        found = self._local.progress(number) + [0] * (self._placement.size - self._local.node.size)
        for node, says in self._leaders.counted().items():
            ranks = self._placement.ranks(node)
            found[ranks.start : ranks.stop] = np.frombuffer(says, np.int64).tolist()
        return found

    def pid(self, rank: int) -> int:
        """A member's process id, on its machine."""
        return self._pids[rank]

    def device(self, rank: int) -> str:
        """Where a member is, and what it computes on."""
        return self._labels[rank]

    def quit(self, grace: float) -> None:
        """End the workers within `grace` seconds, or kill them; waits of the master end, too."""
        self._leaders.quit()
        self._local.quit(grace)

    def close(self) -> None:
        """Let go of all that is left after `quit`."""
        self._local.close()
        self._local.inspector.elsewhere = None  # no cycle; see LocalChannel.close
        self._closed()


def message_of(value: Any) -> bytes:
    """A value as leaders send it."""
    parcel = serialization.Parcel(value)
    packed = bytearray(parcel.nbytes)
    parcel.write(memoryview(packed))
    return bytes(packed)


def read_message(message: bytes) -> Any:
    """The value back; its arrays are its own."""
    return serialization.read(memoryview(bytearray(message)))


def reports_of(outcomes: dict[int, Any]) -> bytes:
    """The outcomes of a node's members: nothing, floats as they are, or all as a message."""
    if not outcomes:
        return b""
    floats = [_FLOATS]
    for rank, outcome in outcomes.items():
        if type(outcome) is not list or any([type(v) is not float for v in outcome]):
            return _MESSAGE + message_of(outcomes)
        floats.append(struct.pack(f"=qq{len(outcome)}d", rank, len(outcome), *outcome))
    return b"".join(floats)


def read_reports(says: bytes) -> dict[int, Any]:
    """The outcomes back, by rank.

    >>> read_reports(reports_of({2: [0.5, 1.0], 3: []})), read_reports(reports_of({1: (1,)}))
    ({2: [0.5, 1.0], 3: []}, {1: (1,)})
    """
    if not says:
        return {}
    if says[:1] == _MESSAGE:
        return dict(read_message(says[1:]))
    found, at = {}, 1
    while at < len(says):
        rank, count = struct.unpack_from("=qq", says, at)
        at += 16
        found[rank] = list(struct.unpack_from(f"={count}d", says, at))
        at += 8 * count
    return found


class Received:
    """Commands as a leader receives them; repeated ones are the very same objects."""

    def __init__(self, arena: Arena, broadcast: Broadcast, tear: Callable[[], None]) -> None:
        self._arena = arena
        self._broadcast = broadcast
        self._tear = tear
        self._received = ReceivedCommands()

    def skip(self, message: bytes) -> None:
        """Receive what is sent with a command that is not to be run."""
        self._take(message)

    def _take(self, message: bytes) -> tuple[bytes, MemoryError | None]:
        try:
            return take(message, self._arena, self._broadcast)
        except BaseException:  # the others are in a broadcast that this node does not come to
            self._tear()
            raise

    def command(self, message: bytes) -> Any:
        """The command of a message, after the news in it.

        Raises
        ------
        MemoryError
            The node has no room for the news.
        """
        rest, trouble = self._take(message)
        if trouble is not None:
            raise trouble
        (number,) = _NUMBER.unpack_from(rest)
        if len(rest) == _NUMBER.size:
            return self._received[number]
        command = read_message(rest[_NUMBER.size :])
        self._received.add(number, command)
        return command
