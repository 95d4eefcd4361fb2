"""Waits for descriptors of any number; `select.select` raises from descriptor 1,024 on."""

from __future__ import annotations

import math
import select


def readable(*descriptors: int, seconds: float = 0.0) -> list[int]:
    """Wait at most so long; returns which can be read, or are pidfds of processes that have ended.

    >>> import os
    >>> ours, theirs = os.pipe()
    >>> readable(ours), os.write(theirs, b"x"), readable(ours) == [ours]
    ([], 1, True)
    >>> os.close(ours); os.close(theirs)
    """
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    limit = None if math.isinf(seconds) else math.ceil(1000 * seconds)
    return [descriptor for descriptor, _ in poll.poll(limit)]
