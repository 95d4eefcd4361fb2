"""The process of a node that adds gradients up between nodes while the members compute them.

It sleeps in `poll` until a member has published a value, or bytes come from another node. TCP goes
on in the kernel meanwhile, so nothing is asked again and again.

A chunk is cut into a share for each node. Each node sends its values of a share to the node that
adds it up, in the order of nodes, and that node sends the sum to all: each byte travels twice, for
any number of nodes. Chunks travel one after the other, so both directions are used at once.
"""

from __future__ import annotations

import functools
import json
import os
import select
import traceback
from collections.abc import Mapping
from typing import Any

import numpy as np

from synkhronos._backends.reduction_loops import reduce_block, weighted_sum
from synkhronos._host.arena import Arena
from synkhronos._plan.chunks import Chunk
from synkhronos._proofs.reductions import Reduction
from synkhronos._transport.communicators.board import Board, counted
from synkhronos._transport.communicators.half_precision import Rounding, compressed, decompressed
from synkhronos._transport.communicators.links import (
    PART,
    SUM,
    Link,
    LinkFailed,
    Listener,
    Place,
    connect_all,
)
from synkhronos._transport.shared_state.ordered_words import ordered

_NAP_MS = 1000  # each wake-up comes by a descriptor; this is a net below that


def main(task: Mapping[str, Any]) -> None:
    """Serve until the member that has started this process ends it."""
    arena = Arena(task["regions"], 0, task["arena"], task["region_bytes"], task["mirror"])
    given = json.loads(bytes(arena.bytes_at(*task["given"])))
    arena.close_fd()
    board = Board(arena.buffer, given["board"], given["members"])
    try:
        places = [Place(host, tuple(a), port) for host, a, port in given["places"]]
        with Listener(task["listener"]) as listener:
            made = connect_all(listener, given["node"], places, bytes.fromhex(given["key"]))
        summing = Summing(arena, given, board, task["pipe"], task["bell"])
        summing.links = {
            node: Link(node, places[node], each, functools.partial(summing.target, node))
            for node, each in made.items()
        }
        board.link()
        os.eventfd_write(task["bell"], 1)
        summing.serve()
    except LinkFailed as exc:
        board.fail(str(exc), exc.node)
    except BaseException:
        board.fail(traceback.format_exc(limit=-3).strip(), given["node"])
    os.eventfd_write(task["bell"], 1)
    os._exit(1)


class Summing:
    """The sums of one training function, step after step."""

    def __init__(
        self, arena: Arena, given: Mapping[str, Any], board: Board, pipe: int, bell: int
    ) -> None:
        self._node, self._nodes = given["node"], given["nodes"]
        self.links: dict[int, Link] = {}  # by node
        self._board = board
        self._pipe, self._bell = pipe, bell
        self._chunks = [Chunk(*c) for c in given["chunks"]]
        dtypes = [np.dtype(d) for d in given["dtypes"]]
        lengths = given["lengths"]

        def vectors(offsets: list[int]) -> list[np.ndarray]:
            return [
                np.ndarray((n,), d, arena.buffer, at)
                for n, d, at in zip(lengths, dtypes, offsets, strict=True)
            ]

        self._published = [vectors(offsets) for offsets in given["published"]]
        self._totals = vectors(given["totals"])
        self._progress = [
            ordered(memoryview(np.ndarray((1,), np.int64, arena.buffer, at)))
            for at in given["progress"]
        ]
        self._format: str | None = given["format"]
        self._seed: int | None = given["seed"]
        self._halves = [self._format is not None and d.char in "fd" for d in dtypes]
        self._parts = self._memory()
        self._done = board.step
        self._begin()

    def _memory(self) -> list[dict[int, np.ndarray]]:
        """For each chunk: what other nodes send of this node's share, by node."""
        found = []
        for chunk in self._chunks:
            lo, hi = chunk.share(self._node, self._nodes)
            dtype = self._sent_dtype(chunk)
            found.append(
                {n: np.empty(hi - lo, dtype) for n in range(self._nodes) if n != self._node}
            )
        return found

    def _sent_dtype(self, chunk: Chunk) -> np.dtype:
        return np.dtype(np.uint16) if self._halves[chunk.vector] else self._dtype(chunk)

    def _dtype(self, chunk: Chunk) -> np.dtype:
        return self._totals[chunk.vector].dtype

    def _begin(self) -> None:
        """Expect the next step: parts of it may come before this node's members have begun."""
        self._step: int | None = None
        self._next = 0  # the first chunk that this node has not sent
        self._awaited = [self._nodes - 1 for _ in self._chunks]  # parts of this node's share
        self._own: dict[int, np.ndarray] = {}  # its own part, where it is rounded
        self._sums: dict[tuple[int, int], np.ndarray] = {}  # that come rounded, by chunk and node
        self._left = 0
        for chunk in self._chunks:
            for node in range(self._nodes):
                lo, hi = chunk.share(node, self._nodes)
                self._left += hi > lo

    def serve(self) -> None:
        """Add up until the process is ended."""
        self.wait_for(self._pipe)
        while True:
            self.turn(_NAP_MS)

    def wait_for(self, pipe: int) -> None:
        """Let bytes in a pipe, and what comes from other nodes, end a wait."""
        self._poll = select.poll()
        self._poll.register(pipe, select.POLLIN)
        self._by_descriptor = {link.fileno(): link for link in self.links.values()}

    def turn(self, nap_ms: int) -> None:
        """Do what there is to do, after at most this long."""
        for descriptor, each in self._by_descriptor.items():
            self._poll.register(descriptor, each.events)
        for descriptor, events in self._poll.poll(nap_ms):
            link = self._by_descriptor.get(descriptor)
            if link is None:
                os.read(descriptor, 1 << 16)
                continue
            if events & select.POLLOUT:
                link.flush()
            if events & ~select.POLLOUT:
                for what, number in link.receive():
                    self._take(link.node, what, number)
        self._advance()

    def target(self, node: int, what: int, number: int) -> memoryview:
        """The memory for what a node sends of a chunk."""
        return memoryview(self._target(node, what, number)).cast("B")

    def _target(self, node: int, what: int, number: int) -> np.ndarray:
        chunk = self._chunks[number]
        if what == PART:
            return self._parts[number][node]
        lo, hi = chunk.share(node, self._nodes)
        if self._halves[chunk.vector]:
            self._sums[number, node] = found = np.empty(hi - lo, np.uint16)
            return found
        return self._totals[chunk.vector][lo:hi]

    def _take(self, node: int, what: int, number: int) -> None:
        """Something of another node is whole."""
        if what == PART:
            self._awaited[number] -= 1
            self._add_up(number)
            return
        bits = self._sums.pop((number, node), None)
        if bits is not None:
            chunk = self._chunks[number]
            lo, hi = chunk.share(node, self._nodes)
            self._totals[chunk.vector][lo:hi] = self._whole(bits, chunk)
        self._left -= 1

    def _whole(self, bits: np.ndarray, chunk: Chunk) -> np.ndarray:
        assert self._format is not None
        return decompressed(bits, self._format, self._dtype(chunk))

    def _advance(self) -> None:
        """Send the chunks that all members have published; note the end of the step."""
        if self._step is None:
            step = self._board.step
            if step == self._done:
                return
            self._step, self._weights, self._count = step, self._board.weights, self._board.count
        published = min(counted(word[0], self._step) for word in self._progress)
        while self._next < len(self._chunks) and self._chunks[self._next].after <= published:
            self._send(self._next)
            self._next += 1
        if not self._left and all(link.idle for link in self.links.values()):
            self._done = self._step
            self._begin()
            self._board.finish(self._done)
            os.eventfd_write(self._bell, 1)

    def _send(self, number: int) -> None:
        """Add up the node's values of a chunk, and send the others their shares."""
        chunk = self._chunks[number]
        v, lo, hi = chunk.vector, chunk.lo, chunk.hi
        whole = self._totals[v][lo:hi]
        weighted_sum(whole, [vectors[v][lo:hi] for vectors in self._published], self._weights)
        sent = whole
        if self._halves[v]:
            sent = self._rounded(whole, number, 0)
        # each node begins with another one, so that not all send to the first at once
        for node in (*range(self._node + 1, self._nodes), *range(self._node + 1)):
            a, b = chunk.share(node, self._nodes)
            if a == b:
                continue
            if node == self._node:
                self._own[number] = sent[a - lo : b - lo]
                self._add_up(number)
            else:
                self.links[node].send(PART, number, memoryview(sent[a - lo : b - lo]).cast("B"))

    def _rounded(self, values: np.ndarray, number: int, which: int) -> np.ndarray:
        """In 16 bits; the chance follows from the seed, the step, the chunk and the node."""
        assert self._format is not None
        seeds = None if self._seed is None else (self._seed, self._count)
        how = Rounding(self._format, seeds).part(number).part(self._node).part(which)
        return compressed(values, how.format, how.generator())

    def _add_up(self, number: int) -> None:
        """Add up this node's share of a chunk, once all parts are there, and send the sum."""
        if self._awaited[number] or number not in self._own:
            return
        chunk, own = self._chunks[number], self._own.pop(number)
        lo, hi = chunk.share(self._node, self._nodes)
        target = self._totals[chunk.vector][lo:hi]
        parts = [self._parts[number].get(node, own) for node in range(self._nodes)]
        with np.errstate(all="ignore"):
            if self._halves[chunk.vector]:
                total = np.zeros(hi - lo, target.dtype)
                for part in parts:
                    total += self._whole(part, chunk)
                sent = self._rounded(total, number, 1)
                target[...] = self._whole(sent, chunk)
            else:
                target[...] = reduce_block(parts, Reduction.SUM, None, out=None)
                sent = target
        for link in self.links.values():
            link.send(SUM, number, memoryview(sent).cast("B"))
        self._left -= 1
