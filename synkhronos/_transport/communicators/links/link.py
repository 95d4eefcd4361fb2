"""One end of a connection between two nodes: sends and receives chunks, and waits for nothing."""

from __future__ import annotations

import select
import socket
import struct
from collections import deque
from collections.abc import Callable, Iterator

from synkhronos._transport.communicators.links.listener import Place

_HEADER = struct.Struct("<qq")  # what comes, and of which chunk
_RECEIVES = 16  # calls to receive between two looks at other connections

PART, SUM = 0, 1


class LinkFailed(Exception):
    """No connection with another node, or no longer."""

    def __init__(self, node: int, text: str) -> None:
        super().__init__(text)
        self.node = node


class Link:
    """One end of a connection with another node."""

    def __init__(
        self, node: int, place: Place, made: socket.socket, target: Callable[[int, int], memoryview]
    ) -> None:
        self.node = node  # the other one
        self._place = place
        self._socket = made
        self._target = target  # `target(what, chunk)`: the memory for what comes of a chunk
        self._waiting: deque[memoryview] = deque()
        self._header = bytearray(_HEADER.size)
        self._rest = memoryview(self._header)  # of what is being received
        self._coming: tuple[int, int] | None = None

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def events(self) -> int:
        """The events to poll for."""
        return select.POLLIN | (select.POLLOUT if self._waiting else 0)

    @property
    def idle(self) -> bool:
        """Whether all has been sent."""
        return not self._waiting

    def send(self, what: int, chunk: int, content: memoryview) -> None:
        """Send now what the kernel takes, and the rest by `flush`; the memory must stay."""
        self._waiting.append(memoryview(_HEADER.pack(what, chunk)))
        self._waiting.append(content)
        self.flush()

    def flush(self) -> None:
        """Send what the kernel takes."""
        waiting = self._waiting
        try:
            while waiting:
                sent = self._socket.sendmsg(list(waiting)[:16])
                while sent and sent >= len(waiting[0]):
                    sent -= len(waiting.popleft())
                if sent:
                    waiting[0] = waiting[0][sent:]
        except BlockingIOError:
            return
        except OSError as exc:
            raise self._lost(exc.strerror) from None

    def receive(self) -> Iterator[tuple[int, int]]:
        """Receive what has come; yields what is whole, and of which chunk."""
        for _ in range(_RECEIVES):
            try:
                count = self._socket.recv_into(self._rest)
            except BlockingIOError:
                return
            except OSError as exc:
                raise self._lost(exc.strerror) from None
            if not count:
                raise self._lost("the process there has ended")
            self._rest = self._rest[count:]
            if self._rest:
                continue
            if self._coming is None:
                self._coming = _HEADER.unpack(self._header)
                self._rest = self._target(*self._coming)
            else:
                yield self._coming
                self._coming, self._rest = None, memoryview(self._header)

    def _lost(self, why: str | None) -> LinkFailed:
        name = f"node {self.node} ({self._place.host})"
        return LinkFailed(self.node, f"the connection with {name} is lost: {why}")
