"""The words by which a node's leader and its summing process speak to each other.

The leader writes the number of a step, and before it the weights of the members' gradients. The
summing process writes the latest step that it has finished, or why it has failed. Each member
counts, in a word of its own, the values of a step that it has published.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from ctypes import Array

import numpy as np

from synkhronos._host.descriptors import Descriptor
from synkhronos._transport.shared_state.ordered_words import ordered

# Words of the leader, and from _DONE on those of the summing process, which has a cache line.
_STEP, _COUNT, _PIPE, _PID = range(4)
_DONE, _LINKED, _FAILED, _LENGTH = range(8, 12)
_WEIGHTS = 16
_TEXT_BYTES = 4096
_COUNT_BITS = 20


def progress(step: int, values: int) -> int:
    """The word of a member that has published this number of values of a step."""
    return step << _COUNT_BITS | values


def counted(word: int, step: int) -> int:
    """How many values of a step a member has published.

    >>> counted(progress(7, 3), 7), counted(progress(7, 3), 8)
    (3, 0)
    """
    return word & (1 << _COUNT_BITS) - 1 if word >> _COUNT_BITS == step else 0


class Board:
    """The words in the arena.

    Parameters
    ----------
    memory : buffer
    offset : int
    members : int
        Of the node.
    """

    def __init__(self, memory: Array, offset: int, members: int) -> None:
        words = np.ndarray((_WEIGHTS + members,), np.int64, memory, offset)
        self._words = ordered(memoryview(words))
        self._weights = words[_WEIGHTS:].view(np.float64)
        at = offset + words.nbytes
        self._text = memoryview(np.ndarray((_TEXT_BYTES,), np.uint8, memory, at))

    @staticmethod
    def words(members: int) -> int:
        """The number of words that it takes."""
        return _WEIGHTS + members + _TEXT_BYTES // 8

    # the leader writes

    def open(self, pid: int, pipe: int) -> None:
        """Say where members wake the process, which has not begun."""
        self._words[_PID], self._words[_PIPE] = pid, pipe
        self._words[_LINKED] = self._words[_FAILED] = 0

    def begin(self, step: int, weights: Sequence[float], count: int) -> None:
        """Begin a step; `count`: of the steps that chance follows from."""
        self._weights[:] = weights
        self._words[_COUNT] = count
        # the last store: the process reads the others when it sees the step
        self._words[_STEP] = step

    @property
    def step(self) -> int:
        """The step under way."""
        return int(self._words[_STEP])

    @property
    def weights(self) -> list[float]:
        """Of the members of the node."""
        return self._weights.tolist()

    @property
    def count(self) -> int:
        return int(self._words[_COUNT])

    def open_pipe(self) -> Descriptor:
        """In a member: the pipe that wakes the process, which the leader has made."""
        path = f"/proc/{self._words[_PID]}/fd/{self._words[_PIPE]}"
        return Descriptor(os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC))

    # the summing process writes

    def link(self) -> None:
        """It is connected with all nodes."""
        self._words[_LINKED] = 1

    def finish(self, step: int) -> None:
        """The sums of a step are there."""
        self._words[_DONE] = step

    def fail(self, text: str, node: int) -> None:
        """It ends, since something of a node has failed."""
        said = text.encode()[-_TEXT_BYTES:]
        self._text[: len(said)] = said
        self._words[_LENGTH] = len(said)
        # the last store, as in `begin`
        self._words[_FAILED] = node + 1

    @property
    def linked(self) -> bool:
        return bool(self._words[_LINKED])

    def finished(self, step: int) -> bool:
        """Whether the sums of a step are there."""
        return bool(self._words[_DONE] == step)

    @property
    def failure(self) -> tuple[int, str] | None:
        """The node of which something has failed, and what."""
        if not self._words[_FAILED]:
            return None
        said = bytes(self._text[: self._words[_LENGTH]])
        return self._words[_FAILED] - 1, said.decode(errors="replace")
