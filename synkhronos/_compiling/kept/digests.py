"""Digests: bytes that stand for contents, and the error of an object that has none."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

_BYTES = 20  # of a digest


class Unkeyed(NotImplementedError):
    """A part of a graph has no key that is the same in every process; the message says which."""


def plain(kind: str, value: object) -> bytes:
    return blake2b(
        f"{kind} {value!r}".encode("utf-8", "surrogatepass"), digest_size=_BYTES
    ).digest()


def digested(kind: str, parts: Iterable[bytes]) -> bytes:
    found = blake2b(kind.encode(), digest_size=_BYTES)
    for part in parts:
        found.update(len(part).to_bytes(8))
        found.update(part)
    return found.digest()
