"""The end of a slot's process: requests that its parent answers, and messages."""

from __future__ import annotations

import json
import os
import threading
from typing import IO, Any

from synkhronos._checks import shown
from synkhronos._errors import InputTypeError, SynkhronosError


class Pipe:
    """The end of the process in a slot: requests in lines of JSON, and one reply to each.

    Attributes
    ----------
    is_ours : bool
        Whether this is the process in the slot, and not a fork that the user's code has made.
    """

    def __init__(self, requests: int, replies: int) -> None:
        self._requests: IO[bytes] = os.fdopen(requests, "wb", buffering=0)
        self._replies: IO[bytes] = os.fdopen(replies, "rb")
        self._lock = threading.Lock()  # threads of the process may ask at once
        self._owner = os.getpid()

    @property
    def is_ours(self) -> bool:
        return self._owner == os.getpid()

    def close(self) -> None:
        """Close both ends."""
        self._requests.close()
        self._replies.close()

    def ask(self, request: dict[str, Any]) -> dict[str, object]:
        """Send a request, and wait for its reply.

        Raises
        ------
        InputTypeError
            JSON has no such value.
        SynkhronosError
            The process that has started this one has ended; or this one is a fork.
        """
        data = self._data(request)
        with self._lock:
            self._write(data)
            line = self._replies.readline()
        if not line.endswith(b"\n"):
            raise SynkhronosError("the parent of the search has ended")
        return dict(json.loads(line))

    def send(self, message: dict[str, object]) -> None:
        """Send a message that has no reply; raises a SynkhronosError in a fork."""
        data = self._data(message)
        with self._lock:
            self._write(data)

    def _data(self, message: dict[str, Any]) -> bytes:
        if not self.is_ours:  # it would read what the other one asks for
            raise SynkhronosError(
                f"this process (pid {os.getpid()}) is a fork of the one that has the work (pid "
                f"{self._owner}), and cannot report: report there, and end the fork by os._exit"
            )
        return _line(message)

    def _write(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            rest = rest[self._requests.write(rest) :]


def _line(message: dict[str, object]) -> bytes:
    try:
        text = json.dumps(message, default=_number)
    except (TypeError, ValueError) as exc:
        raise InputTypeError(f"{shown(message)} cannot be sent to the study: {exc}") from None
    return text.encode() + b"\n"


def _number(value: object) -> object:
    """A number of numpy, or an array of one, as Python's."""
    if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):
        return value.item()
    raise TypeError(f"{type(value).__name__} is not a number, a text, a list or a dict")
