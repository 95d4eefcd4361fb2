"""Copies of the master's shared memory on the other nodes.

The arena of every other node has one more region, a mirror of the master's region: an array lies
at the same offset in both. With each command travel the ranges written since the previous command,
and the ranges freed.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator

import numpy as np

from synkhronos._host.arena import Arena

_INLINE = 1 << 16  # bytes; more than that is broadcast after the message
_CHUNK = 1 << 26  # bytes of a broadcast
_COUNTS = struct.Struct("=qqq")  # ranges written, ranges freed, whether a broadcast follows
_RANGE = struct.Struct("=qq")
_NOTHING = _COUNTS.pack(0, 0, 0)

Broadcast = Callable[[np.ndarray], None]


def pack_changes(arena: Arena) -> tuple[bytes, list[np.ndarray]]:
    """The changes of an arena: a message, and arrays to broadcast after it."""
    written, freed = arena.changes()
    if not written and not freed:
        return _NOTHING, []
    beside = sum([n for _, n in written]) > _INLINE
    head = [_COUNTS.pack(len(written), len(freed), beside)]
    head += [_RANGE.pack(*r) for r in written + freed]
    found = [arena.bytes_at(*r) for r in written]
    if beside:
        return b"".join(head), [chunk for m in found for chunk in _chunks(m)]
    return b"".join([*head, *found]), []


def _chunks(memory: memoryview) -> list[np.ndarray]:
    array = np.frombuffer(memory, np.uint8)
    return [array[at : at + _CHUNK] for at in range(0, array.size, _CHUNK)]


def _scrap(length: int) -> Iterator[np.ndarray]:
    """Chunks of the same lengths, to receive bytes that are dropped."""
    return (np.empty(min(_CHUNK, length - at), np.uint8) for at in range(0, length, _CHUNK))


def apply_changes(
    message: bytes, arena: Arena, broadcast: Broadcast
) -> tuple[bytes, MemoryError | None]:
    """Write the changes at the start of a message into the mirror.

    Returns the rest of the message, and an error where this node has no memory for a change. Even
    then all that is broadcast is received.
    """
    n_written, n_freed, beside = _COUNTS.unpack_from(message)
    at = _COUNTS.size
    ranges = []
    for _ in range(n_written + n_freed):
        ranges.append(_RANGE.unpack_from(message, at))
        at += _RANGE.size
    for offset, length in ranges[n_written:]:
        arena.free_mirrored(offset, length)
    trouble: MemoryError | None = None
    for offset, length in ranges[:n_written]:
        try:
            target = arena.mirrored(offset, length)
        except MemoryError as exc:
            trouble, target = exc, None
        if beside:
            for chunk in _scrap(length) if target is None else _chunks(target):
                broadcast(chunk)
            continue
        if target is not None:
            target[:] = message[at : at + length]
        at += length
    return message[at:], trouble
