"""Connects a node with all others: it calls those before it, and answers those after it.

All goes on at once, in one `poll`: a stranger that is slow or silent delays nobody. The kernel
takes calls for a process that has not started, so a caller waits for its answer, and a node is out
of reach only if no call is taken.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import socket
import time
from collections.abc import Iterator, Sequence

from synkhronos._host.polling import readable
from synkhronos._transport.communicators.links.handshake import Script, answering, calling
from synkhronos._transport.communicators.links.link import LinkFailed
from synkhronos._transport.communicators.links.listener import Listener, Place

SECONDS = 300.0  # for all nodes to come: on a busy machine a process may take long to start
_REACH_SECONDS = 30.0  # for a call to be taken
_TALK_SECONDS = 10.0  # for all that one end says
_NEXT_SECONDS = 0.3  # before the next address is called as well
_AGAIN_SECONDS = 0.5  # before an address that has failed is called again
_CALLERS = 64  # who are heard at once
_LOOK_SECONDS = 0.05  # between two looks at the clock


def connect_all(
    listener: Listener, mine: int, places: Sequence[Place], key: bytes
) -> dict[int, socket.socket]:
    """Connect with all other nodes, by number.

    Raises
    ------
    LinkFailed
        A node could not be reached, or did not come in time.
    """
    until = time.monotonic() + SECONDS
    answers = _Answers(listener, mine, key)
    calls = {node: _Calls(mine, node, places[node], key) for node in range(mine)}
    found: dict[int, socket.socket] = {}
    try:
        while True:
            for node in calls.keys() - found.keys():
                made = calls[node].turn()
                if made is not None:
                    found[node] = made
            for node, made in answers.turn():
                if node in found:  # it has called again, so the earlier one is of no use to it
                    found[node].close()
                found[node] = made
            missing = set(range(len(places))) - {mine, *found}
            if not missing:
                break
            if time.monotonic() > until:
                node = min(missing)
                raise LinkFailed(node, calls.get(node, answers).complaint(node, places[node]))
            talks = [*answers.talks, *(t for each in calls.values() for t in each.talks.values())]
            awaited = [listener.fileno(), *(talk.socket.fileno() for talk in talks)]
            readable(*awaited, seconds=_LOOK_SECONDS)
        for made in found.values():
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except BaseException:
        for made in found.values():
            made.close()
        raise
    finally:
        for talk in answers.talks:
            talk.socket.close()
        for each in calls.values():
            each.close()
    return found


class _Talk:
    """A connection whose ends prove to each other that they have the key."""

    def __init__(self, made: socket.socket, script: Script) -> None:
        made.setblocking(False)
        self.socket = made
        self.node = -1
        self._script = script
        self._heard = b""
        self._next, self._wanted = next(script)
        self._until = math.inf

    def over(self) -> bool:
        """Say and hear what can be said and heard now; True once both ends have the key.

        Raises
        ------
        OSError
            It has failed: the other end is a stranger, has left, or is slow.
        """
        while True:
            if self._next:
                self.socket.sendall(self._next)
                self._until = min(self._until, time.monotonic() + _TALK_SECONDS)
                self._next = b""
            while len(self._heard) < self._wanted:
                try:
                    more = self.socket.recv(self._wanted - len(self._heard))
                except BlockingIOError:
                    if time.monotonic() > self._until:
                        raise TimeoutError("another program, or a slow one") from None
                    return False
                if not more:
                    raise ConnectionError("closed by another program")
                self._heard += more
            try:
                self._next, self._wanted = self._script.send(self._heard)
            except StopIteration as end:
                self.node = end.value
                return True
            self._heard = b""

    def taken(self) -> bool:
        """Whether the other machine has taken the call."""
        try:
            self.socket.getpeername()
        except OSError:
            return False
        return True


class _Calls:
    """This node's calls of another one: of each of its addresses, until one is answered."""

    def __init__(self, mine: int, node: int, place: Place, key: bytes) -> None:
        now = time.monotonic()
        self._mine, self._node, self._place, self._key = mine, node, place, key
        self._due = {a: now + n * _NEXT_SECONDS for n, a in enumerate(place.addresses)}
        self.talks: dict[str, _Talk] = {}
        self._tried: dict[str, str] = {}
        self._taken = now

    def turn(self) -> socket.socket | None:
        """Do what there is to do; the connection, once there is one."""
        now = time.monotonic()
        for address in [a for a, due in self._due.items() if a not in self.talks and now >= due]:
            with self._failing(address):
                self.talks[address] = self._called(address)
        for address, talk in [*self.talks.items()]:
            with self._failing(address):
                if talk.over():
                    del self.talks[address]
                    self.close()
                    return talk.socket
        if any(talk.taken() for talk in self.talks.values()):
            self._taken = now
        elif now > self._taken + _REACH_SECONDS:
            raise LinkFailed(self._node, self.complaint(self._node, self._place))
        return None

    def _called(self, address: str) -> _Talk:
        made = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
        made.setblocking(False)
        failed = made.connect_ex((address, self._place.port))
        if failed not in (0, errno.EINPROGRESS):
            made.close()
            raise OSError(failed, os.strerror(failed))
        return _Talk(made, calling(self._key, self._mine, self._node, address))

    @contextlib.contextmanager
    def _failing(self, address: str) -> Iterator[None]:
        """A context whose error is noted, and the address is called again later."""
        try:
            yield
        except OSError as exc:
            self._tried[address] = exc.strerror or str(exc)
            self._due[address] = time.monotonic() + _AGAIN_SECONDS
            talk = self.talks.pop(address, None)
            if talk is not None:
                talk.socket.close()

    def complaint(self, node: int, place: Place) -> str:
        """Say that it does not come, and what is known of it."""
        name = f"node {node} ({place.host})"
        taken = [address for address, talk in self.talks.items() if talk.taken()]
        if taken:
            return (
                f"{name} has not answered within {SECONDS:.0f} s: its machine has taken the call "
                f"at {', '.join(taken)}, port {place.port}, but its summing process has not started"
            )
        tried = [f"{a} ({self._tried.get(a, 'no answer')})" for a in place.addresses]
        return (
            f"{name} cannot be reached by TCP, port {place.port}, at "
            f"{', '.join(tried) or 'any address'}"
        )

    def close(self) -> None:
        while self.talks:
            self.talks.popitem()[1].socket.close()


class _Answers:
    """This node's answers to those who call it."""

    def __init__(self, listener: Listener, mine: int, key: bytes) -> None:
        self._listener, self._mine, self._key = listener, mine, key
        self.talks: list[_Talk] = []
        self._strangers = 0

    def turn(self) -> Iterator[tuple[int, socket.socket]]:
        """Do what there is to do; yields nodes that have proved themselves."""
        self._accept()
        for talk in [*self.talks]:
            try:
                if not talk.over():
                    continue
            except OSError:
                self._dismiss(talk)
            else:
                self.talks.remove(talk)
                yield talk.node, talk.socket

    def _accept(self) -> None:
        """Take calls; a new one is worth more than the one that has been silent for longest."""
        for _ in range(_CALLERS):
            try:
                called = self._listener.accept()
            except OSError:  # no more descriptors
                if not self.talks:
                    raise
                self._dismiss(self.talks[0])
                return
            if called is None:
                return
            made, address = called
            self.talks.append(_Talk(made, answering(self._key, self._mine, address)))
            if len(self.talks) > _CALLERS:
                self._dismiss(self.talks[0])

    def _dismiss(self, talk: _Talk) -> None:
        talk.socket.close()
        self.talks.remove(talk)
        self._strangers += 1

    def complaint(self, node: int, place: Place) -> str:
        """Say that a node does not come, and who has."""
        left = f"; {self._strangers} other calls had no key" if self._strangers else ""
        return (
            f"node {node} ({place.host}) has not connected within {SECONDS:.0f} s{left}: its "
            "summing process has not started, or its calls do not reach this node"
        )
