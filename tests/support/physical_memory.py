"""The physical memory that an arena has taken."""

from __future__ import annotations

import os
import re
from pathlib import Path

from synkhronos._host.arena import Arena

_MAPPING = re.compile(r"([0-9a-f]+)-([0-9a-f]+) ")


def physical_memory(arena: Arena) -> int:
    """In bytes: of its file, or where it is private of its mapping."""
    if arena.fd is not None:
        return os.fstat(arena.fd).st_blocks * 512
    start, stop = arena.address, arena.address + arena.buffer._length_
    total, inside = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if found := _MAPPING.match(line):
            # a neighbour of the same kind may be one with it, and count too
            inside = int(found[1], 16) < stop and start < int(found[2], 16)
        elif inside and line.startswith("Rss:"):
            total += int(line.split()[1]) << 10
    return total
