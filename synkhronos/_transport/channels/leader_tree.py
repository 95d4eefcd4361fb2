"""Between nodes: orders travel down a tree of leaders, outcomes up, agreements both ways.

Each node has a leader; that of the master's node, number 0, is the root. Messages are small, go
between neighbours in the tree only, and carry the number of the command they belong to, so what an
abandoned command has left on the way is told from the rest.

Members on several nodes must not enter a transfer that one of them will never come to. So before
any transfer the leaders *agree*: each says it has come when its whole branch has; the root lets
all go on. A leader that fails instead says so at once, and nobody goes on. As in
`Node.enter`, either all pass or nobody.
"""

from __future__ import annotations

import contextlib
import struct
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

from synkhronos._errors import GroupError
from synkhronos._transport.channels.waiting import GroupEnded, PeerDied, PeerFailed

ARITY = 4  # of the tree: a leader sends so many messages, one after the other

# down the tree
COMMAND, VERDICT, STOP, QUIT, GO, LEAVE = range(6)
# up
ENTER, FAIL, REPORT, PROGRESS = range(6, 10)
# both ways
EXCHANGE_FAILED = 10

_HEADER = struct.Struct("<qqqq")  # kind, command's number, meeting, word
_PART = struct.Struct("<qq")  # a leader's number, length of what it says
_NO_WORD = -(1 << 63)  # leaders that agree have said different words

DIFFERENT = _NO_WORD


class Wire(Protocol):
    """What carries messages between leaders, in order between any two."""

    rank: int
    size: int

    def send(self, to: int, message: bytes) -> None:
        """Send without waiting."""

    def offer(self, to: int, message: bytes) -> None:
        """Send what nobody misses, unless the last that was offered is still on its way."""

    def receive(self) -> tuple[int, bytes] | None:
        """The next message, with its sender; None: there is none yet."""


@dataclass
class _Branch:
    """What has come up from a child, and of which command."""

    entered: tuple[int, int] = (0, 0)  # the command, the meeting
    word: int = 0
    says: bytes = b""
    failed: int = 0
    reported: int = 0
    report: bytes = b""
    sent_away: int = 0  # the last command it was told to leave


@dataclass
class _Orders:
    """What has come down from the parent."""

    commands: deque[tuple[int, bytes]] = field(default_factory=deque)
    go: tuple[int, int] = (0, 0)
    word: int = 0
    says: bytes = b""
    left: int = 0
    judged: int = 0  # the last command that has had its verdict
    stands: bool = False
    stopping: int = 0
    quit: bool = False


class Leaders:
    """One leader's end.

    Parameters
    ----------
    wire : Wire
    wait : callable
        Returns once what it is given is true, and watches the node meanwhile, as `Waiter.wait`.

    Attributes
    ----------
    void : list of bytes
        Commands that the end of the group has overtaken.
    torn : bool
        A transfer that all had agreed to come to has failed somewhere, or was left: what leaders
        send in transfers cannot be told apart any more.
    """

    def __init__(self, wire: Wire, wait: Callable[[Callable[[], bool]], None]) -> None:
        self.rank = wire.rank
        self.size = wire.size
        self._wire = wire
        self._wait = wait
        self._parent = (wire.rank - 1) // ARITY if wire.rank else None
        first = ARITY * wire.rank + 1
        self._children = [r for r in range(first, first + ARITY) if r < wire.size]
        self._branches = {r: _Branch() for r in self._children}
        self._orders = _Orders()
        self._counts: dict[int, tuple[int, bytes]] = {}  # progress: by child, of which command
        self.void: list[bytes] = []
        self.torn = False
        self.number = 0
        self._meeting = 0
        self._failed = 0  # the last command that this leader has left
        self._exchange_failed = 0  # the last command in which an exchange of GPUs failed
        self._exchange = (0, 0)  # the last one that this leader waits for: after which meeting
        self._collects = False  # it has come to all meetings of the command
        self._taken = 0  # messages so far: without another, nothing has changed
        self._root_comes = True

    def watch(self, wait: Callable[[Callable[[], bool]], None]) -> None:
        """Wait by this from now on."""
        self._wait = wait

    def renew(self) -> None:
        """The group has ended; what comes next is of another."""
        self._orders.quit = False
        self.void.clear()

    def pump(self) -> None:
        """Take in what has arrived; orders are handed on at once."""
        while self._take():
            pass

    def _take(self) -> bool:
        """Take in one message; whether there was any."""
        found = self._wire.receive()
        if found is None:
            return False
        self._taken += 1
        source, message = found
        kind, number, meeting, word = _HEADER.unpack_from(message)
        says = message[_HEADER.size :]
        if kind == EXCHANGE_FAILED:
            self._spread(number, bool(word), source)
        elif kind <= LEAVE:
            for child in self._children:
                self._wire.send(child, message)
            self._take_order(kind, number, meeting, word, says)
        else:
            self._take_answer(self._branches[source], source, kind, number, meeting, word, says)
        return True

    def _take_order(self, kind: int, number: int, meeting: int, word: int, says: bytes) -> None:
        orders = self._orders
        if kind == COMMAND:
            orders.commands.append((number, says))
        elif kind == GO:
            orders.go, orders.word, orders.says = (number, meeting), word, says
        elif kind == LEAVE:
            orders.left = max(orders.left, number)
        elif kind == VERDICT:
            orders.judged, orders.stands = number, bool(word)
            if not word:
                orders.left = max(orders.left, number)
        elif kind == STOP:
            orders.stopping = number
        else:
            self.void += [message for _, message in orders.commands]
            orders.commands.clear()
            orders.quit = True

    def _take_answer(
        self,
        branch: _Branch,
        source: int,
        kind: int,
        number: int,
        meeting: int,
        word: int,
        says: bytes,
    ) -> None:
        if kind == ENTER:
            branch.entered, branch.word, branch.says = (number, meeting), word, says
        elif kind == FAIL:
            branch.failed = number
        elif kind == REPORT:
            branch.reported, branch.report = number, says
        else:
            self._counts[source] = number, says

    def _send(self, to: int, kind: int, meeting: int = 0, word: int = 0, says: bytes = b"") -> None:
        self._wire.send(to, _HEADER.pack(kind, self.number, meeting, word) + says)

    def _order(self, kind: int, meeting: int = 0, word: int = 0, says: bytes = b"") -> None:
        for child in self._children:
            self._send(child, kind, meeting, word, says)

    def begin(self, number: int) -> None:
        """A command: meetings count anew."""
        self.number = number
        self._meeting = 0
        self._collects = False

    # -- the root's orders

    def post(self, number: int, command: bytes) -> None:
        """Send a command down."""
        self.begin(number)
        self._order(COMMAND, says=command)

    def judge(self, stands: bool) -> None:
        """Send the verdict on the command down."""
        self._order(VERDICT, word=int(stands))

    def stop(self) -> None:
        """Ask for the end of a long command."""
        self._order(STOP)

    def quit(self) -> None:
        """End the group."""
        self._order(QUIT)

    # -- what other leaders wait for

    def next(self) -> tuple[int, bytes] | None:
        """The next command; None: the group has ended."""
        orders = self._orders

        def posted() -> bool:
            self.pump()  # an end that follows a command on its heels overtakes it
            return bool(orders.commands) or orders.quit

        self._wait(posted)
        if orders.quit:  # what has come after it is another group's
            return None
        number, command = orders.commands.popleft()
        self.begin(number)
        return number, command

    def verdict(self) -> bool:
        """The root's word on the command: whether it stands."""
        orders = self._orders

        def spoken() -> bool:
            self._take()
            if orders.judged >= self.number:
                return True
            if orders.quit:
                raise GroupEnded
            return False

        self._wait(spoken)
        return orders.stands

    @property
    def stopping(self) -> bool:
        """Whether a long command shall return."""
        self.pump()
        return self.number in (self._orders.stopping, self._orders.left)

    # -- agreements

    @contextlib.contextmanager
    def without_root(self) -> Iterator[None]:
        """Run a command that the root takes no part in: an agreement raises GroupError."""
        self._root_comes = False
        try:
            yield
        finally:
            self._root_comes = True

    def agree(self, word: int = 0, says: bytes = b"") -> tuple[int, dict[int, bytes]]:
        """Wait for all leaders to come here too; hear what each of them says.

        Parameters
        ----------
        word : int
            Something that should be the same for all.
        says : bytes

        Returns
        -------
        tuple
            The word, or DIFFERENT where leaders have said different ones; and by leader what they
            have said, without those that have said nothing.

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
        heard = _part(self.rank, says) if says else b""
        if self._children:
            branches = self._branches.values()
            self._await(lambda: all([b.entered == here for b in branches]))
            for branch in branches:
                heard += branch.says
                if branch.word != word:
                    word = DIFFERENT
        if self._parent is None:
            self._order(GO, self._meeting, word, heard)
        else:
            orders = self._orders
            self._send(self._parent, ENTER, self._meeting, word, heard)
            self._await(lambda: orders.go == here, whoever_dies=True)
            word, heard = orders.word, orders.says
        return word, _parts(heard)

    def _await(self, come: Callable[[], bool], whoever_dies: bool = False) -> None:
        """Wait; once this leader has said that it has come, a death in its node changes nothing."""
        seen = -1

        def ready() -> bool:
            nonlocal seen
            self._take()
            if self._taken == seen:
                return False
            seen = self._taken
            if come():
                return True
            if self._orders.quit:
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
        """Whether somebody will never come to a meeting of this command."""
        number = self.number
        gone = [b for b in self._branches.values() if number in (b.failed, b.reported)]
        return bool(gone) or self._orders.left >= number

    def leave(self) -> None:
        """Say that this leader comes to no further meeting of the command; again: nothing."""
        if self._failed == self.number:
            return
        self._failed = self.number
        self._order(LEAVE)
        if self._parent is not None:
            self._send(self._parent, FAIL)

    # -- exchanges of GPUs and transfers, which all have entered and some do not end

    def fail_exchange(self) -> None:
        """Tell all leaders, once, that the exchange under way failed on this node."""
        self._spread(self.number, False, None)

    def tear(self) -> None:
        """Tell all leaders, once, that this one has failed in a transfer."""
        self._spread(self.number, True, None)

    def _spread(self, number: int, torn: bool, source: int | None) -> None:
        if number <= self._exchange_failed and torn <= self.torn:
            return
        self._exchange_failed, self.torn = max(self._exchange_failed, number), self.torn or torn
        above = [] if self._parent is None else [self._parent]
        for other in (*above, *self._children):
            if other != source:
                self._wire.send(other, _HEADER.pack(EXCHANGE_FAILED, number, 0, int(torn)))

    def check_transfer(self) -> None:
        """Look for news that end a wait for a transfer: all have come to it, so nothing else does.

        Raises
        ------
        PeerFailed
            It failed on another node.
        """
        self._exchange = self.number, self._meeting
        self.pump()
        if self.torn:
            raise PeerFailed

    def check(self) -> None:
        """Look for news that end a wait for an exchange of GPUs.

        Raises
        ------
        PeerFailed
            It failed on another node, or the command is over.
        """
        self._exchange = self.number, self._meeting
        self.pump()
        if self._orders.quit:
            raise GroupEnded
        if self.number in (self._exchange_failed, self._orders.left):
            raise PeerFailed

    # -- outcomes

    def report(self, says: bytes) -> None:
        """Send the node's outcomes up, with those of the branch below."""
        heard = _part(self.rank, says)
        if self._children:
            self._await_reports()
            heard += b"".join([b.report for b in self._branches.values()])
        assert self._parent is not None
        self._send(self._parent, REPORT, says=heard)

    def collect(self, ready: Callable[[], bool] = lambda: True) -> dict[int, bytes]:
        """At the root: wait for the other nodes' outcomes (and until `ready`), by leader."""
        self._await_reports(ready)
        return _parts(b"".join([b.report for b in self._branches.values()]))

    def _await_reports(self, ready: Callable[[], bool] = lambda: True) -> None:
        seen = -1
        missing: list[int] = []

        def reported() -> bool:
            nonlocal seen, missing
            self._take()
            if self._taken != seen:
                seen = self._taken
                missing = [c for c, b in self._branches.items() if b.reported != self.number]
                if missing and self._orders.quit:
                    raise GroupEnded
                self._send_away(missing)
            return not missing and ready()

        self._collects = True
        self._wait(reported)

    def _send_away(self, children: list[int]) -> None:
        """Those at a meeting that this leader has not come to, and will not."""
        for child in children:
            branch = self._branches[child]
            if branch.entered[0] == self.number != branch.sent_away and self._over(branch):
                branch.sent_away = self.number
                self._send(child, LEAVE)

    def missing(self) -> list[int]:
        """The leaders of whole branches from which something is awaited."""
        late = [c for c, b in self._branches.items() if self._awaits(b)]
        return sorted(r for child in late for r in range(self.size) if self._below(r, child))

    def _awaits(self, branch: _Branch) -> bool:
        here = self.number, self._meeting
        beyond = self._collects or self._exchange == here
        come = branch.entered > here if beyond else branch.entered >= here
        return branch.reported != self.number and not come

    def _below(self, rank: int, child: int) -> bool:
        while rank > child:
            rank = (rank - 1) // ARITY
        return rank == child

    def _over(self, branch: _Branch) -> bool:
        """Whether the branch waits at a meeting beyond this leader's last one."""
        return branch.entered[1] > self._meeting or self._failed == self.number

    def count(self, says: bytes) -> None:
        """Send up what a long command has counted so far in this branch."""
        if self._parent is not None:
            header = _HEADER.pack(PROGRESS, self.number, 0, 0)
            self._wire.offer(self._parent, header + _part(self.rank, says) + self._counted())

    def counted(self) -> dict[int, bytes]:
        """At the root: what has been counted elsewhere, by leader."""
        self.pump()
        return _parts(self._counted())

    def _counted(self) -> bytes:
        return b"".join(says for number, says in self._counts.values() if number == self.number)


def _part(rank: int, says: bytes) -> bytes:
    return _PART.pack(rank, len(says)) + says


def _parts(heard: bytes) -> dict[int, bytes]:
    found, at = {}, 0
    while at < len(heard):
        rank, length = _PART.unpack_from(heard, at)
        at += _PART.size
        found[rank] = heard[at : at + length]
        at += length
    return found
