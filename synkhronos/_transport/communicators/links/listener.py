"""Where a node can be called: a port, and the addresses of its machine."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Self

_SIOCGIFADDR = 0x8915  # <linux/sockios.h>
_BACKLOG = 1024  # calls that the kernel takes while the process that will answer them starts


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

    def accept(self) -> tuple[socket.socket, str] | None:
        """The next connection and the address that is called; None if nobody calls now."""
        self._socket.setblocking(False)
        try:
            made = self._socket.accept()[0]
        except BlockingIOError:
            return None
        return made, str(made.getsockname()[0]).removeprefix("::ffff:")


def _listening() -> socket.socket:
    if socket.has_dualstack_ipv6():
        with contextlib.suppress(OSError):
            return socket.create_server(
                ("", 0), family=socket.AF_INET6, backlog=_BACKLOG, dualstack_ipv6=True
            )
    return socket.create_server(("", 0), backlog=_BACKLOG)


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
