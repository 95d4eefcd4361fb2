"""The summing process of a node, as the node's leader sees it: its start, its steps, its end."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict

import numpy as np

from synkhronos._errors import GroupError
from synkhronos._host.arena import Arena
from synkhronos._host.descriptors import Descriptor
from synkhronos._transport.communicators import links
from synkhronos._transport.communicators.between_nodes import BetweenNodes
from synkhronos._transport.communicators.board import Board
from synkhronos._transport.communicators.sums import BackgroundSums, Sums
from synkhronos._transport.processes.child_process import ChildProcess, end
from synkhronos._transport.processes.interpreter import start_interpreter
from synkhronos._transport.shared_state.node import Node

_SPOKEN_SECONDS = 1.0  # for another node to say what has failed there, before this one does
_END_SECONDS = 10.0
_MODULE = "synkhronos._transport.communicators.summing"


class SummingProcess(BackgroundSums):
    """Adds gradients up between nodes, while the members compute; it ends with its leader."""

    def __init__(
        self,
        node: Node,
        between: BetweenNodes,
        rank: int,
        sums: Sums,
        arena: Arena,
        cores: Sequence[int],
    ) -> None:
        self._node = node
        self._between = between
        self._rank = rank  # of the leader, for messages
        self._sums = sums
        self._arena = arena  # what `sums` is about lies there
        self._cores = cores  # where it may run
        self._board = Board(arena.buffer, sums.board, sums.members)
        self._given: np.ndarray | None = None
        self._child: ChildProcess | None = None
        self._opened: list[Descriptor] = []
        _alive.add(self)

    def start(self) -> None:
        """Start it, and wait until it is connected with those of all other nodes.

        Raises
        ------
        GroupError
            A node cannot be reached.
        """
        with links.Listener() as listener:
            mine = listener.place(), secrets.token_hex(links.KEY_BYTES)
            found = self._between.all_gather(mine)
            with self._failing():
                self._start(listener, [place for place, _ in found], found[0][1])
        self._await(lambda: self._board.linked)

    def _start(self, listener: links.Listener, places: list[links.Place], key: str) -> None:
        arena = self._arena
        about = {"node": self._between.node, "nodes": self._between.nodes, "key": key}
        about |= {"places": [(p.host, p.addresses, p.port) for p in places]}
        packed = np.frombuffer(json.dumps({**asdict(self._sums), **about}).encode(), np.uint8)
        self._given = arena.empty(packed.shape, np.dtype(np.uint8))
        self._given[:] = packed
        flags = os.O_CLOEXEC | os.O_NONBLOCK
        self._opened += map(Descriptor, (*os.pipe2(flags), *os.pipe2(os.O_CLOEXEC)))
        # both ends of the pipe stay open here: members may write to it when the process is dead
        pipe, end_of_pipe, lifeline, _ = self._opened
        self._board.open(os.getpid(), end_of_pipe)
        bell = self._node.waiter.bell
        task = {
            "arena": arena.own_fd(),
            "regions": arena.regions,
            "region_bytes": arena.region_bytes,
            "mirror": arena.mirrors,
            "given": (arena.offset(self._given), packed.size),
            "listener": listener.fileno(),
            "pipe": pipe,
            "bell": bell,
        }
        popen = start_interpreter(
            _MODULE,
            task,
            lifeline=lifeline,
            descriptors=[arena.own_fd(), listener.fileno(), pipe, bell],
            cores=self._cores,
            interruptible=False,
        )
        self._child = ChildProcess(popen.pid, popen)
        self._opened.remove(lifeline)
        lifeline.close()

    @contextlib.contextmanager
    def _failing(self) -> Iterator[None]:
        """A context whose failure is told to the other nodes, which wait for this one."""
        try:
            yield
        except BaseException:
            self._between.fail_exchange()
            raise

    def begin(self, step: int, weights: Sequence[float], count: int) -> None:
        self._board.begin(step, weights, count)

    def finish(self, step: int) -> None:
        self._await(lambda: self._board.finished(step))

    def _await(self, ready: Callable[[], bool]) -> None:
        child, seen = self._child, 0.0
        assert child is not None

        def come() -> bool:
            nonlocal seen
            if ready():
                return True
            self._between.check()
            failure = self._board.failure
            if failure is None and not child.dead():
                return False
            seen = seen or time.monotonic()
            elsewhere = failure is not None and failure[0] != self._between.node
            if elsewhere and time.monotonic() < seen + _SPOKEN_SECONDS:
                return False
            raise self._error(failure)

        with self._failing():
            self._node.waiter.wait(come)

    def _error(self, failure: tuple[int, str] | None) -> GroupError:
        where = f"node {self._between.node} ({os.uname().nodename}), of rank {self._rank},"
        if failure is None:
            assert self._child is not None
            self._child.reap()
            said = self._child.ended
        else:
            said = failure[1]
        return GroupError(
            f"overlap=True: the summing process of {where} has ended: {said}. No value has "
            "changed, and the next step starts it again"
        )

    def close(self) -> None:
        if self._child is not None:
            end([self._child], 0.0, _END_SECONDS)
            self._child.leave()
        self.part()
        self._given = None

    def part(self) -> None:
        """Also in a fork: close what keeps it alive."""
        self._child = None
        while self._opened:
            self._opened.pop().close()


_alive: weakref.WeakSet[SummingProcess] = weakref.WeakSet()


def _part() -> None:
    for process in list(_alive):
        process.part()


os.register_at_fork(after_in_child=_part)
