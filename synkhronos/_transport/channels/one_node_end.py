"""A worker's end of the channel between processes of one machine, whose rules `one_node` has."""

from __future__ import annotations

import os
import sys
from typing import Any

import numpy as np

from synkhronos._transport import serialization
from synkhronos._transport.channels.channel import Failure, ReceivingEnd
from synkhronos._transport.channels.repeated_commands import ReceivedCommands
from synkhronos._transport.shared_state.control_words import (
    ABANDONED,
    COMMITTED,
    LENGTH,
    MAILBOX,
    MAILBOX_BYTES,
    N_RESULTS,
    NUMBER,
    OFFSET,
    PID,
    POSTED,
    QUIT,
    READY,
    REPORTED,
    RESULTS,
)
from synkhronos._transport.shared_state.node import Node
from synkhronos._transport.shared_state.waiting import GroupEnded, PeerDied


class OneNodeEnd(ReceivingEnd):
    """A worker's end."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self._master_words = node.words.of[node.master]
        self._mine = node.words.of[node.rank]
        self._results = node.words.reals[node.rank][RESULTS:]
        self._received = ReceivedCommands()
        self._master = (node.master,)
        self._others = tuple([r for r in range(node.size) if r != node.rank])
        self._large: np.ndarray | None = None  # the latest large outcome

    def ready(self) -> None:
        """Tell the master that this worker waits for commands."""
        self._mine[PID] = os.getpid()
        self._mine[READY] = 1
        self.node.waiter.ring([self.node.master])

    def next(self) -> tuple[int, Any] | None:
        """Wait for the next command; returns its number and a function that reads it.

        None: the group has ended.
        """
        last, words = self.node.number, self._master_words
        for _ in range(self.node.waiter.looks):
            if words[POSTED] > last:
                break
        else:
            self._await_post(last)
        if words[QUIT]:
            return None
        number = words[POSTED]
        self.node.begin(number)
        return number, self._read

    def _await_post(self, last: int) -> None:
        """Wait for a command after this one, or for the end of the group."""
        words = self._master_words

        def posted() -> bool:
            return bool(words[POSTED] > last or words[QUIT])

        while True:
            try:
                self.node.waiter.wait(posted, idle=True)
            except GroupEnded:
                return
            except PeerDied:  # the master notices it and ends the group
                self.node.waiter.rest()
                continue
            return

    def _read(self) -> object:
        """Read the command; an error counts as one of the command."""
        words = self._master_words
        number, length, offset = words[NUMBER], words[LENGTH], words[OFFSET]
        if not length:
            return self._received[number]
        # a copy, since arrays of a kept command, or values set by it, are used after the next one
        data = np.ndarray((length,), np.uint8, self.node.arena.buffer, offset).copy()
        command = serialization.read(memoryview(data))
        self._received.add(number, command)
        return command

    def report(
        self, number: int, outcome: object = None, below: dict[int, object] | None = None
    ) -> None:
        """Report a value, a Failure, a list of floats (written as words), or None."""
        sys.stdout.flush()  # what the worker has printed precedes its report
        sys.stderr.flush()
        length = 0
        if type(outcome) is list and 0 < len(outcome) <= N_RESULTS:
            length = -len(outcome)
            for i, value in enumerate(outcome):
                if type(value) is not float:
                    length = 0
                    break
                self._results[i] = value
        # numbers travel as words, without a pickle
        if length or outcome is None:
            self._mine[LENGTH] = length
        else:
            self._write(serialization.Serialized(outcome))
        self._mine[REPORTED] = number
        failed = type(outcome) is Failure
        self.node.waiter.ring(self._others if failed else self._master)

    def _write(self, packed: serialization.Serialized) -> None:
        arena, rank = self.node.arena, self.node.rank
        if packed.nbytes <= MAILBOX_BYTES:
            target = self.node.words.bytes[rank][MAILBOX : MAILBOX + MAILBOX_BYTES]
            offset = rank * arena.region_bytes + MAILBOX
        else:
            self._large = arena.empty((packed.nbytes,), np.uint8)
            target, offset = memoryview(self._large), arena.offset(self._large)
        self._mine[LENGTH] = packed.write(target)
        self._mine[OFFSET] = offset

    def verdict(self, number: int) -> bool:
        """Wait for the master's decision: True to keep what the command has changed."""
        words = self._master_words

        def decided() -> bool:
            return bool(words[COMMITTED] == number or words[ABANDONED] >= number)

        while True:
            try:
                self.node.waiter.wait(decided)
            except PeerDied:
                self.node.waiter.rest()
                continue
            return bool(words[COMMITTED] == number)
