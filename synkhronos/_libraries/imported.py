"""The modules that were there before this package, and when: files may have changed since."""

from __future__ import annotations

import functools
import os
import sys
import time

AT = time.time_ns()
BEFORE = frozenset(sys.modules) - {__package__.partition(".")[0]}

# Fields of Linux's /proc/PID/stat behind the name, and the flag of those that have run no program
# since they were forked
_PARENT, _FLAGS, _START = 1, 6, 19
_FORKED = 0x40


def last_change(found: os.stat_result) -> int:
    """When a file was last changed, or put where it is, in nanoseconds since 1970."""
    return max(found.st_mtime_ns, found.st_ctime_ns)


@functools.cache
def start() -> int:
    """When this process started, or the one whose memory it was forked with; 0 if not known."""
    try:
        fields = _fields("self")
        while int(fields[_FLAGS]) & _FORKED and fields[_PARENT] != "0":
            fields = _fields(fields[_PARENT])
    except (OSError, IndexError, ValueError):
        return 0
    ticks = int(fields[_START]) * 1_000_000_000 // os.sysconf("SC_CLK_TCK")
    return time.time_ns() - time.clock_gettime_ns(time.CLOCK_BOOTTIME) + ticks


def _fields(process: str) -> list[str]:
    with open(f"/proc/{process}/stat", encoding="utf-8", errors="replace") as file:
        return file.read().rpartition(")")[2].split()
