"""The words of two ends of a connection, by which each proves to the other that it has the key.

The listener sends a challenge, the caller answers with one of its own and a code, the listener
with a code, and the caller with one more byte. A code is made of the key and of both challenges,
so one that a stranger has seen is good for no other connection. It is also made of the address
that is called, so a stranger at one address cannot pass on what was meant for another.

The functions know no socket. They are generators: each yields what to send and how many bytes
shall come, and gets these bytes.
"""

from __future__ import annotations

import hmac
import secrets
import struct
from collections.abc import Generator

KEY_BYTES = 32
_CHALLENGE_BYTES = 32
_CODE_BYTES = 32
_HELLO = struct.Struct(f"<q{_CHALLENGE_BYTES}s{_CODE_BYTES}s")  # a node's number, challenge, code
_LINKED = b"\1"

type Script = Generator[tuple[bytes, int], bytes, int]
"""Yields bytes to send and how many shall come then; returns the other node's number."""


class Stranger(ConnectionError):
    """The other end does not have the key."""


def calling(key: bytes, mine: int, node: int, address: str) -> Script:
    """The end of node `mine`, which has called `node` at an address."""
    theirs = yield b"", _CHALLENGE_BYTES
    own = secrets.token_bytes(_CHALLENGE_BYTES)
    about = f"{mine} calls {node} at {address}", theirs + own
    hello = _HELLO.pack(mine, own, _code(key, "caller", *about))
    _check((yield hello, _CODE_BYTES), _code(key, "listener", *about))
    yield _LINKED, 0
    return node


def answering(key: bytes, mine: int, address: str) -> Script:
    """The end of node `mine`, which has been called at an address."""
    own = secrets.token_bytes(_CHALLENGE_BYTES)
    number, theirs, code = _HELLO.unpack((yield own, _HELLO.size))
    about = f"{number} calls {mine} at {address}", own + theirs
    _check(code, _code(key, "caller", *about))
    yield _code(key, "listener", *about), len(_LINKED)
    return int(number)


def _code(key: bytes, speaker: str, about: str, challenges: bytes) -> bytes:
    return hmac.digest(key, f"{speaker}: {about}: ".encode() + challenges, "sha256")


def _check(found: bytes, expected: bytes) -> None:
    if not hmac.compare_digest(found, expected):
        raise Stranger("another program")
