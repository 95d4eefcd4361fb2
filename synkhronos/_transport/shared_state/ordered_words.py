"""Words of shared memory that all cores see in the order of the program.

Whoever sees a word relies on what was written before it. x86 shows stores, and makes loads, in the
order of the program: there the words are plain memory. Other processors may show a word before the
data that precede it, or read data before the word. There each access has a fence on both sides.
"""

from __future__ import annotations

import platform
import threading
from typing import Any

IS_ORDERED = platform.machine() in ("x86_64", "AMD64")


def ordered(words: memoryview) -> Any:
    """The words themselves, or with fences where the processor needs them."""
    return words if IS_ORDERED else FencedWords(words)


def fence() -> None:
    """Let all accesses to memory before this call precede all that follow it; about 0.4 us.

    A lock that is acquired keeps what follows behind it, and one that is released keeps what
    precedes in front of it. Accesses on both sides of one such pair may still meet between them.
    They cannot pass a release that an acquisition follows: see "barrier-ordered-before" in the
    memory model of the Arm Architecture Reference Manual (DDI 0487, B2.3).
    """
    # of this call, so nobody else holds it, not even before a fork; `with` takes twice as long
    lock = threading.Lock()
    lock.acquire()
    lock.release()
    lock.acquire()
    lock.release()


class FencedWords:
    """Words with a fence before and after each access.

    Parameters
    ----------
    words : memoryview
    """

    def __init__(self, words: memoryview) -> None:
        self._words = words

    def __getitem__(self, at: int) -> int:
        fence()
        found: int = self._words[at]
        fence()
        return found

    def __setitem__(self, at: int, word: int) -> None:
        fence()
        self._words[at] = word
        fence()
