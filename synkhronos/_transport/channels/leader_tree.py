"""Messages between nodes: commands go down a tree of leaders, reports up, agreements both ways.

Each node has a leader. The leader of the master's node, number 0, is the root. Messages are small
and go only between neighbours in the tree. Each carries the number of its command, so that the
messages of an abandoned command are recognised.

Members on several nodes must not enter a transfer that one of them never enters. So before any
transfer the leaders *agree*: each reports that it has come when its whole branch has come, and the
root lets all continue. A leader that fails instead reports that at once, and no leader continues.
As in `Node.enter`, either all members pass or none.
"""

from __future__ import annotations

import contextlib
import struct
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from synkhronos._errors import GroupError
from synkhronos._transport.shared_state.waiting import GroupEnded, PeerDied, PeerFailed

ARITY = 4  # children of a leader, which sends to them one after the other

# kinds of messages that go down the tree
COMMAND, VERDICT, STOP, QUIT, GO, LEAVE = range(6)
# that go up
ENTER, FAIL, REPORT, PROGRESS, COMPILES = range(6, 11)
# that go both ways
EXCHANGE_FAILED = 11

_HEADER = struct.Struct("<qqqq")  # kind, command's number, exchange, value
_RECORD = struct.Struct("<qq")  # a leader's number, the length of its payload
DIFFERENT = -(1 << 63)  # the value agreed on, where leaders brought different ones


class MessageTransport(Protocol):
    """Carries messages between leaders, in order between any two; see `_backends.mpi.World`."""

    rank: int
    size: int

    def listen(self, sources: Sequence[int]) -> None:
        """Receive messages of these leaders from now on, beside those of earlier calls."""

    def send(self, to: int, message: bytes) -> None:
        """Send without waiting."""

    def offer(self, to: int, message: bytes) -> None:
        """Send a message that may be lost, unless the previous one is still under way."""

    def receive(self) -> tuple[int, bytes] | None:
        """The next message and its sender; None if there is none yet."""


@dataclass
class _FromChild:
    """The latest messages of a child, each with the number of its command."""

    entered: tuple[int, int] = (0, 0)  # the command and the exchange
    value: int = 0
    payload: bytes = b""
    failed: int = 0
    reported: int = 0
    report: bytes = b""
    dismissed: int = 0  # the latest command that this leader has told it to leave
    compiles: int = -1  # the command in which a member of the branch compiles


@dataclass
class _FromRoot:
    """The latest messages of the root."""

    commands: deque[tuple[int, bytes]] = field(default_factory=deque)
    go: tuple[int, int] = (0, 0)
    value: int = 0
    payload: bytes = b""
    left: int = 0
    judged: int = 0  # the latest command with a verdict
    kept: int = 0  # the latest committed command: a later one may be judged, too, by now
    stopping: int = 0
    quit: bool = False


class Leaders:
    """One leader's end."""

    def __init__(
        self, transport: MessageTransport, wait: Callable[[Callable[[], bool]], None]
    ) -> None:
        self.rank = transport.rank
        self.size = transport.size
        self._transport = transport
        # `wait(ready)` returns once ready() is true and watches the node meanwhile; see
        # `Waiter.wait`
        self._wait = wait
        self._parent = (transport.rank - 1) // ARITY if transport.rank else None
        first = ARITY * transport.rank + 1
        self._children = [r for r in range(first, first + ARITY) if r < transport.size]
        transport.listen([*([] if self._parent is None else [self._parent]), *self._children])
        self._from_children = {r: _FromChild() for r in self._children}
        self._from_root = _FromRoot()
        self._counts: dict[int, tuple[int, bytes]] = {}  # progress by child, with its command
        self._compiles = -1  # the command in which the parent knows that this branch compiles
        self.overtaken: list[bytes] = []  # commands that were not run since the group ended before
        # a leader failed in a transfer, or left it, after all had agreed. Later transfers could not
        # be told from it, so there are none
        self.transfer_failed = False
        self.number = 0
        self._meeting = 0
        self._failed = 0  # the latest command that this leader has left
        self._exchange_failed = 0  # the latest command in which one failed
        self._exchange = (0, 0)  # of GPUs, or a transfer: the one waited for, by its number
        self._collects = False  # this leader has come to all exchanges of the command
        self._received = 0  # messages so far; the state changes only with another one
        self._root_comes = True

    def wait_with(self, wait: Callable[[Callable[[], bool]], None]) -> None:
        """Use another function for waits."""
        self._wait = wait

    def reset(self) -> None:
        """Forget a group that has ended."""
        self._from_root.quit = False
        self.overtaken.clear()

    def receive_all(self) -> None:
        """Receive all that has arrived, and pass the root's messages down."""
        while self._receive_one():
            pass

    def _receive_one(self) -> bool:
        """Receive one message; False if there was none."""
        found = self._transport.receive()
        if found is None:
            return False
        self._received += 1
        source, message = found
        kind, number, exchange, value = _HEADER.unpack_from(message)
        payload = message[_HEADER.size :]
        if kind == EXCHANGE_FAILED:
            self._spread(number, bool(value), source)
        elif kind <= LEAVE:
            for child in self._children:
                self._transport.send(child, message)
            self._take_from_root(kind, number, exchange, value, payload)
        else:
            self._take_from_child(
                self._from_children[source], source, kind, number, exchange, value, payload
            )
        return True

    def _take_from_root(
        self, kind: int, number: int, exchange: int, value: int, payload: bytes
    ) -> None:
        root = self._from_root
        if kind == COMMAND:
            root.commands.append((number, payload))
        elif kind == GO:
            root.go, root.value, root.payload = (number, exchange), value, payload
        elif kind == LEAVE:
            root.left = max(root.left, number)
        elif kind == VERDICT:
            root.judged = number
            if value:
                root.kept = number
            else:
                root.left = max(root.left, number)
        elif kind == STOP:
            root.stopping = number
        else:
            self.overtaken += [message for _, message in root.commands]
            root.commands.clear()
            root.quit = True

    def _take_from_child(
        self,
        branch: _FromChild,
        source: int,
        kind: int,
        number: int,
        exchange: int,
        value: int,
        payload: bytes,
    ) -> None:
        if kind == ENTER:
            branch.entered, branch.value, branch.payload = (number, exchange), value, payload
        elif kind == FAIL:
            branch.failed = number
        elif kind == REPORT:
            branch.reported, branch.report = number, payload
        elif kind == COMPILES:
            branch.compiles = number if value else -1
        else:
            self._counts[source] = number, payload

    def _send(
        self, to: int, kind: int, exchange: int = 0, value: int = 0, payload: bytes = b""
    ) -> None:
        self._transport.send(to, _HEADER.pack(kind, self.number, exchange, value) + payload)

    def _send_down(
        self, kind: int, exchange: int = 0, value: int = 0, payload: bytes = b""
    ) -> None:
        for child in self._children:
            self._send(child, kind, exchange, value, payload)

    def begin(self, number: int) -> None:
        """Start counting the exchanges of a new command."""
        self.number = number
        self._meeting = 0
        self._collects = False

    # the root sends

    def post(self, number: int, command: bytes) -> None:
        """Send a command to all leaders."""
        self.begin(number)
        self._send_down(COMMAND, payload=command)

    def send_verdict(self, stands: bool) -> None:
        """Tell all leaders whether the command is committed."""
        self._send_down(VERDICT, value=int(stands))

    def stop(self) -> None:
        """Ask all leaders to end a long command."""
        self._send_down(STOP)

    def quit(self) -> None:
        """Tell all leaders that the group ends."""
        self._send_down(QUIT)

    # the other leaders wait for the root

    def next(self) -> tuple[int, bytes] | None:
        """The next command; None: the group has ended."""
        root = self._from_root

        def posted() -> bool:
            self.receive_all()  # the group may have ended right after the command
            return bool(root.commands) or root.quit

        self._wait(posted)
        if root.quit:  # later messages belong to another group
            return None
        number, command = root.commands.popleft()
        self.begin(number)
        return number, command

    def verdict(self) -> bool:
        """Wait for the root's decision: whether the command is committed."""
        root = self._from_root

        def decided() -> bool:
            self._receive_one()
            if root.judged >= self.number:
                return True
            if root.quit:
                raise GroupEnded
            return False

        self._wait(decided)
        return root.kept == self.number

    @property
    def stopping(self) -> bool:
        """Whether a long command shall return."""
        self.receive_all()
        return self.number in (self._from_root.stopping, self._from_root.left)

    # all leaders agree

    @contextlib.contextmanager
    def without_root(self) -> Iterator[None]:
        """Run a command that the root takes no part in: an agreement raises GroupError."""
        self._root_comes = False
        try:
            yield
        finally:
            self._root_comes = True

    def agree(self, value: int = 0, payload: bytes = b"") -> tuple[int, dict[int, bytes]]:
        """Wait for all leaders to come here, and exchange small payloads.

        Parameters
        ----------
        value : int
            A value that should be the same in all leaders.
        payload : bytes

        Returns
        -------
        tuple
            The value, or DIFFERENT where it was not the same; and by leader the payloads that are
            not empty.

        Raises
        ------
        PeerFailed
            A leader has failed in this command, or has left it.
        GroupError
            The root takes no part in the command.
        """
        if not self._root_comes:
            raise GroupError(
                "members on several nodes cannot meet in a command that Group.start has posted, "
                "since the master takes no part in it: use Group.run"
            )
        self._meeting += 1
        here = self.number, self._meeting
        # small payloads travel with the agreement, and need no transfer
        payloads = _record(self.rank, payload) if payload else b""
        if self._children:
            branches = self._from_children.values()
            self._await(lambda: all([b.entered == here for b in branches]))
            for branch in branches:
                payloads += branch.payload
                if branch.value != value:
                    value = DIFFERENT
        if self._parent is None:
            self._send_down(GO, self._meeting, value, payloads)
        else:
            root = self._from_root
            self._send(self._parent, ENTER, self._meeting, value, payloads)
            self._await(lambda: root.go == here, whoever_dies=True)
            value, payloads = root.value, root.payload
        return value, _records(payloads)

    def _await(self, come: Callable[[], bool], whoever_dies: bool = False) -> None:
        """Wait for other leaders.

        `whoever_dies`: this leader has reported that it has come, so a death in its node must not
        end the wait.
        """
        seen = -1

        def ready() -> bool:
            nonlocal seen
            self._receive_one()
            if self._received == seen:
                return False
            seen = self._received
            if come():
                return True
            if self._from_root.quit:
                raise GroupEnded
            if self._broken():
                raise PeerFailed
            return False

        while True:
            try:
                self._wait(ready)
            except PeerDied:
                if not whoever_dies:
                    self.leave()
                    raise
                time.sleep(0.001)
            except PeerFailed:
                self.leave()
                raise
            else:
                return

    def _broken(self) -> bool:
        """Whether a leader will not come to further exchanges of this command."""
        number = self.number
        gone = [b for b in self._from_children.values() if number in (b.failed, b.reported)]
        return bool(gone) or self._from_root.left >= number

    def leave(self) -> None:
        """Tell all leaders, once, that this one comes to no further exchange of the command."""
        if self._failed == self.number:
            return
        self._failed = self.number
        self._send_down(LEAVE)
        if self._parent is not None:
            self._send(self._parent, FAIL)

    # a leader fails in an exchange of GPUs or a transfer that all have entered

    def fail_exchange(self) -> None:
        """Tell all leaders, once, that the exchange under way failed on this node."""
        self._spread(self.number, False, None)

    def fail_transfer(self) -> None:
        """Tell all leaders, once, that this one has failed in a transfer."""
        self._spread(self.number, True, None)

    def _spread(self, number: int, transfer_failed: bool, source: int | None) -> None:
        if number <= self._exchange_failed and transfer_failed <= self.transfer_failed:
            return
        self._exchange_failed, self.transfer_failed = (
            max(self._exchange_failed, number),
            self.transfer_failed or transfer_failed,
        )
        above = [] if self._parent is None else [self._parent]
        for other in (*above, *self._children):
            if other != source:
                self._transport.send(
                    other, _HEADER.pack(EXCHANGE_FAILED, number, 0, int(transfer_failed))
                )

    def check_transfer(self) -> None:
        """Raise if the transfer under way has failed; nothing else ends it, since all have come.

        Raises
        ------
        PeerFailed
            It failed on another node.
        """
        self._exchange = self.number, self._meeting
        self.receive_all()
        if self.transfer_failed:
            raise PeerFailed

    def check(self) -> None:
        """Raise if the exchange of GPUs under way cannot end.

        Raises
        ------
        PeerFailed
            It failed on another node, or the command is over.
        """
        self._exchange = self.number, self._meeting
        self.receive_all()
        if self._from_root.quit:
            raise GroupEnded
        if self.number in (self._exchange_failed, self._from_root.left):
            raise PeerFailed

    # reports

    def report(self, payload: bytes) -> None:
        """Send the node's outcomes to the parent, with those of the branch below."""
        payloads = _record(self.rank, payload)
        if self._children:
            self._await_reports()
            payloads += b"".join([b.report for b in self._from_children.values()])
        assert self._parent is not None
        self._send(self._parent, REPORT, payload=payloads)

    def collect(self, ready: Callable[[], bool] = lambda: True) -> dict[int, bytes]:
        """At the root: wait for the outcomes of all other nodes, by leader, and until `ready`."""
        self._await_reports(ready)
        return _records(b"".join([b.report for b in self._from_children.values()]))

    def _await_reports(self, ready: Callable[[], bool] = lambda: True) -> None:
        seen = -1
        missing: list[int] = []

        def reported() -> bool:
            nonlocal seen, missing
            self._receive_one()
            if self._received != seen:
                seen = self._received
                missing = [c for c, b in self._from_children.items() if b.reported != self.number]
                if missing and self._from_root.quit:
                    raise GroupEnded
                self._dismiss(missing)
            return not missing and ready()

        self._collects = True
        self._wait(reported)

    def _dismiss(self, children: list[int]) -> None:
        """Free the children that wait at an exchange to which this leader will not come."""
        for child in children:
            branch = self._from_children[child]
            if branch.entered[0] == self.number != branch.dismissed and self._over(branch):
                branch.dismissed = self.number
                self._send(child, LEAVE)

    def missing(self) -> list[int]:
        """The leaders of the branches from which a message is missing."""
        late = [c for c, b in self._from_children.items() if self._awaits(b)]
        return sorted(r for child in late for r in range(self.size) if self._below(r, child))

    def _awaits(self, branch: _FromChild) -> bool:
        here = self.number, self._meeting
        beyond = self._collects or self._exchange == here
        come = branch.entered > here if beyond else branch.entered >= here
        return branch.reported != self.number and not come

    def _below(self, rank: int, child: int) -> bool:
        while rank > child:
            rank = (rank - 1) // ARITY
        return rank == child

    def _over(self, branch: _FromChild) -> bool:
        """Whether the branch waits at an exchange that this leader does not reach."""
        return branch.entered[1] > self._meeting or self._failed == self.number

    def count(self, payload: bytes) -> None:
        """Send the progress of a long command in this branch to the parent."""
        if self._parent is not None:
            header = _HEADER.pack(PROGRESS, self.number, 0, 0)
            self._transport.offer(
                self._parent, header + _record(self.rank, payload) + self._counted()
            )

    def compiling(self, here: bool) -> bool:
        """Tell the parent, if it has changed, whether a member of this branch compiles.

        `here`: whether one of this node does. Returns what is told.
        """
        self.receive_all()
        found = here or any(b.compiles == self.number for b in self._from_children.values())
        if self._parent is not None and found != (self._compiles == self.number):
            self._send(self._parent, COMPILES, value=int(found))
            self._compiles = self.number if found else -1
        return found

    def counted(self) -> dict[int, bytes]:
        """At the root: the progress on the other nodes, by leader."""
        self.receive_all()
        return _records(self._counted())

    def _counted(self) -> bytes:
        return b"".join(
            payload for number, payload in self._counts.values() if number == self.number
        )


def _record(rank: int, payload: bytes) -> bytes:
    return _RECORD.pack(rank, len(payload)) + payload


def _records(payloads: bytes) -> dict[int, bytes]:
    found, at = {}, 0
    while at < len(payloads):
        rank, length = _RECORD.unpack_from(payloads, at)
        at += _RECORD.size
        found[rank] = payloads[at : at + length]
        at += length
    return found
