"""The sums of several nodes, each with several members, in one process."""

from __future__ import annotations

import functools
import os
import socket
from typing import Any

import numpy as np
import pytest
from selection import thorough

from synkhronos._backends.reduction_loops import reduce_block, weighted_sum
from synkhronos._host.arena import Arena
from synkhronos._plan.chunks import Range, chunks
from synkhronos._proofs.reductions import Reduction
from synkhronos._transport.communicators.board import Board, counted, progress
from synkhronos._transport.communicators.half_precision import compressed, decompressed
from synkhronos._transport.communicators.links import Link, Place
from synkhronos._transport.communicators.summing import Summing

LENGTHS = (5000, 130)


class OneNode:
    """Members' vectors, the board and the summing process of a node."""

    def __init__(
        self, node: int, nodes: int, members: int, dtype: str, rounded: dict[str, Any]
    ) -> None:
        self.arena = Arena(1)
        dtypes = [np.dtype(dtype), np.dtype("float64")]

        def vectors() -> list[np.ndarray]:
            made = [self.arena.empty((n,), d) for n, d in zip(LENGTHS, dtypes, strict=True)]
            for each in made:
                each[:] = 0
            return made

        self.published = [vectors() for _ in range(members)]
        self.totals = vectors()
        self.words = [self.arena.empty((1,), "int64") for _ in range(members)]
        board = self.arena.empty((Board.words(members),), "int64")
        for each in (board, *self.words):
            each[:] = 0
        at = self.arena.offset(board)
        self.board = Board(self.arena.buffer, at, members)
        self._kept = board
        self.values = [[Range(0, 3000, 5000)], [Range(1, 0, 130)], [Range(0, 0, 3000)]]
        self.pipe = os.pipe()
        self.bell = os.eventfd(0, os.EFD_NONBLOCK)
        given = {
            "node": node,
            "nodes": nodes,
            "chunks": chunks(self.values, [d.itemsize for d in dtypes], 1000, 4000),
            "dtypes": [d.str for d in dtypes],
            "lengths": LENGTHS,
            "published": [[self.arena.offset(v) for v in vs] for vs in self.published],
            "totals": [self.arena.offset(v) for v in self.totals],
            "progress": [self.arena.offset(w) for w in self.words],
            **rounded,
        }
        self.summing = Summing(self.arena, given, self.board, self.pipe[0], self.bell)

    def publish(self, step: int, member: int, values: list[np.ndarray], upto: int) -> None:
        """The member's values, so many of which it tells of; the others stay what they were."""
        for number in range(upto):
            for r in self.values[number]:
                self.published[member][r.vector][r.lo : r.hi] = values[r.vector][r.lo : r.hi]
        self.words[member][0] = progress(step, upto)

    def close(self) -> None:
        for fd in (*self.pipe, self.bell):
            os.close(fd)
        self.arena.close_fd()


def joined(nodes: list[OneNode]) -> list[socket.socket]:
    """Connect them; the sockets, to close."""
    made = []
    for a, first in enumerate(nodes):
        for b in range(a + 1, len(nodes)):
            for (here, there), end in zip(((a, b), (b, a)), socket.socketpair(), strict=True):
                end.setblocking(False)
                made.append(end)
                target = functools.partial(nodes[here].summing.target, there)
                nodes[here].summing.links[there] = Link(there, Place("", (), 0), end, target)
        del first
    for node in nodes:
        node.summing.wait_for(node.pipe[0])
    return made


PLAIN: dict[str, Any] = {"format": None, "seed": None}


@pytest.mark.parametrize(
    ("size", "members", "dtype", "rounded"),
    [
        (2, 2, "float32", PLAIN),
        (3, 1, "float32", {"format": "bf16", "seed": None}),
        *thorough(
            (2, 1, "float64", PLAIN),
            (3, 2, "float16", PLAIN),
            (4, 3, "float32", PLAIN),
            (2, 2, "float64", {"format": "fp16", "seed": None}),
        ),
    ],
)
def test_sums_in_the_order_of_nodes(
    size: int, members: int, dtype: str, rounded: dict[str, Any]
) -> None:
    """Equal bits in all nodes, and those of the exchange after the computation."""
    nodes = [OneNode(n, size, members, dtype, rounded) for n in range(size)]
    sockets = joined(nodes)
    rng = np.random.default_rng(4)
    weights = [0.25, 0.0, 0.75][:members]
    for step in (7, 8, 12):
        values = [
            [
                [
                    rng.normal(size=n).astype(v.dtype)
                    for n, v in zip(LENGTHS, node.totals, strict=True)
                ]
                for _ in range(members)
            ]
            for node in nodes
        ]
        for upto in (0, 1, 2, 3):
            for n, node in enumerate(nodes):
                if n == 0 and upto == 1:
                    continue  # this node is late
                if upto == (2 if n == 0 else 0):
                    node.board.begin(step, weights, 0)
                for member in range(members):
                    node.publish(step, member, values[n][member], upto)
            for _ in range(20):
                for node in nodes:
                    node.summing.turn(0)
            if upto < 3:
                assert not any(node.board.finished(step) for node in nodes)
        turns = 0
        while not all(node.board.finished(step) for node in nodes):
            for node in nodes:
                node.summing.turn(10)
            turns += 1
            assert turns < 1000
        for v, total in enumerate(nodes[0].totals):
            parts = [np.empty_like(total) for _ in nodes]
            for part, own in zip(parts, values, strict=True):
                weighted_sum(part, [each[v] for each in own], weights)
            for node in nodes:
                np.testing.assert_array_equal(node.totals[v], _expected(parts, rounded["format"]))
    for each in (*sockets, *nodes):
        each.close()


def _expected(parts: list[np.ndarray], how: str | None) -> np.ndarray:
    """As `BetweenNodes.add` adds them up."""
    if how is None:
        return reduce_block(parts, Reduction.SUM, None, out=None)
    total = np.zeros_like(parts[0])
    for part in parts:
        total += decompressed(compressed(part, how), how, part.dtype)
    return decompressed(compressed(total, how), how, total.dtype)


def test_words_of_another_step_do_not_count() -> None:
    """What a member has published of an abandoned step is nothing of the next one."""
    assert counted(progress(5, 9), 6) == 0
    assert counted(progress(6, 9), 6) == 9


def test_a_failure_is_said_as_far_as_it_fits() -> None:
    """Its end, which has the reason."""
    node = OneNode(0, 2, 1, "float32", PLAIN)
    assert node.board.failure is None
    node.board.fail("ä" * 5000 + "the reason", 1)
    found = node.board.failure
    assert found is not None
    assert found[0] == 1
    assert found[1].endswith("the reason")
    node.close()
