"""Connections between the summing processes of nodes: TCP, opened for one another only.

This is the only file that opens sockets. A key that is new for each group of connections travels by
MPI; each end proves by a message authentication code that it has the key, before it is heard.
Bytes of gradients travel, with the number of their chunk. Both ends know its size and its place.
"""

from __future__ import annotations

import contextlib
import fcntl
import hmac
import os
import select
import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

KEY_BYTES = 32
SECONDS = 30.0  # to connect with all nodes
_PATIENCE = 2.0  # seconds for one address, or for a stranger to say who it is
_REPLY_SECONDS = 10.0  # for the process at an address, which may still import its modules
_SIOCGIFADDR = 0x8915  # <linux/sockios.h>
_HELLO = struct.Struct("<q32s")  # a node's number, its code
_HEADER = struct.Struct("<qq")  # what comes, and of which chunk
_RECEIVES = 16  # calls to receive between two looks at other connections

PART, SUM = 0, 1


class LinkFailed(Exception):
    """No connection with another node, or no longer."""

    def __init__(self, node: int, text: str) -> None:
        super().__init__(text)
        self.node = node


@dataclass(frozen=True)
class Place:
    """Where a node can be reached: its host's name for messages, addresses and a port."""

    host: str
    addresses: tuple[str, ...]
    port: int


class Listener:
    """Where other nodes can call.

    Parameters
    ----------
    descriptor : int, optional
        Of one that another process has made. Default: a new one, at a port that is free.
    """

    def __init__(self, descriptor: int | None = None) -> None:
        self._socket = _listening() if descriptor is None else socket.socket(fileno=descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._socket.close()

    def fileno(self) -> int:
        return self._socket.fileno()

    def place(self) -> Place:
        """How to reach it."""
        return Place(os.uname().nodename, addresses(), int(self._socket.getsockname()[1]))

    def next(self, seconds: float) -> socket.socket | None:
        """The next connection; None if nobody calls in this time."""
        self._socket.settimeout(max(1e-3, seconds))
        try:
            return self._socket.accept()[0]
        except TimeoutError:
            return None


def _listening() -> socket.socket:
    if socket.has_dualstack_ipv6():
        with contextlib.suppress(OSError):
            return socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", 0))


def addresses() -> tuple[str, ...]:
    """The addresses of this machine, those of its fastest networks first and its own last."""
    found: list[tuple[bool, int, str]] = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):
                packed = fcntl.ioctl(asked, _SIOCGIFADDR, struct.pack("256s", name[:15].encode()))
                found.append((name == "lo", -_speed(name), socket.inet_ntoa(packed[20:24])))
    with contextlib.suppress(OSError):
        for line in Path("/proc/net/if_inet6").read_text().splitlines():
            digits, _, _, scope, _, name = line.split()
            if scope == "00":  # of the whole network, and not of a link
                address = socket.inet_ntop(socket.AF_INET6, bytes.fromhex(digits))
                found.append((False, -_speed(name), address))
    return tuple(address for _, _, address in sorted(found, key=lambda f: f[:2]))


def _speed(name: str) -> int:
    """Of a network device, in Mbit/s; 0 if it does not say."""
    try:
        return max(0, int(Path(f"/sys/class/net/{name}/speed").read_text()))
    except (OSError, ValueError):
        return 0


def _code(key: bytes, source: int, target: int) -> bytes:
    return hmac.digest(key, f"{source} speaks to {target}".encode(), "sha256")


def connect_all(
    listener: Listener, mine: int, places: Sequence[Place], key: bytes
) -> dict[int, socket.socket]:
    """Connect with all other nodes, by number; each calls those before it.

    Raises
    ------
    LinkFailed
        A node could not be reached in time.
    """
    until = time.monotonic() + SECONDS
    found: dict[int, socket.socket] = {}
    try:
        for node in range(mine):
            found[node] = _called(mine, node, places[node], key, until)
        while missing := set(range(len(places))) - {mine, *found}:
            node, made = _answered(listener, mine, min(missing), places, key, until)
            if node in missing:
                found[node] = made
            else:  # a stranger
                made.close()
        for made in found.values():
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            made.setblocking(False)
    except BaseException:
        for made in found.values():
            made.close()
        raise
    return found


def _answered(
    listener: Listener,
    mine: int,
    awaited: int,
    places: Sequence[Place],
    key: bytes,
    until: float,
) -> tuple[int, socket.socket]:
    """The next node that calls, and the connection."""
    while (left := until - time.monotonic()) > 0:
        made = listener.next(left)
        if made is not None:
            return _greeted(made, mine, key), made
    name = f"node {awaited} ({places[awaited].host})"
    raise LinkFailed(awaited, f"{name} has not connected within {SECONDS:.0f} s")


def _called(mine: int, node: int, place: Place, key: bytes, until: float) -> socket.socket:
    """Connect with a node that listens, by whichever address answers."""
    tried: list[str] = []
    for address in place.addresses:
        patience = min(_PATIENCE, until - time.monotonic())
        if patience <= 0:
            break
        try:
            made = socket.create_connection((address, place.port), patience)
        except OSError as exc:
            tried.append(f"{address} ({exc.strerror or exc})")
            continue
        try:
            made.settimeout(max(patience, min(_REPLY_SECONDS, until - time.monotonic())))
            made.sendall(_HELLO.pack(mine, _code(key, mine, node)))
            number, code = _HELLO.unpack(_received(made, _HELLO.size))
            if number == node and hmac.compare_digest(code, _code(key, node, mine)):
                return made
            tried.append(f"{address} (another program)")
        except OSError as exc:
            tried.append(f"{address} ({exc.strerror or exc})")
        made.close()
    raise LinkFailed(
        node,
        f"node {node} ({place.host}) cannot be reached by TCP, port {place.port}, at "
        f"{', '.join(tried) or 'any address'}",
    )


def _greeted(made: socket.socket, mine: int, key: bytes) -> int:
    """The number of the node that has connected; -1 if it is none."""
    made.settimeout(_PATIENCE)
    try:
        number, code = _HELLO.unpack(_received(made, _HELLO.size))
        if not hmac.compare_digest(code, _code(key, number, mine)):
            return -1
        made.sendall(_HELLO.pack(mine, _code(key, mine, number)))
    except OSError:
        return -1
    return int(number)


def _received(made: socket.socket, nbytes: int) -> bytes:
    found = b""
    while len(found) < nbytes:
        more = made.recv(nbytes - len(found))
        if not more:
            raise ConnectionError("closed")
        found += more
    return found


class Link:
    """One end of a connection with another node.

    Parameters
    ----------
    node : int
        The other one.
    place : Place
    made : socket
    target : callable
        ``target(what, chunk)``: the memory for what comes of a chunk.
    """

    def __init__(
        self,
        node: int,
        place: Place,
        made: socket.socket,
        target: Callable[[int, int], memoryview],
    ) -> None:
        self.node = node
        self._place = place
        self._socket = made
        self._target = target
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
