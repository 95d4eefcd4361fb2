"""Device, Stream and Event, as far as the package uses them."""

from __future__ import annotations

import itertools
import queue
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

streams: weakref.WeakValueDictionary[int, Stream] = weakref.WeakValueDictionary()
DELAY = 0.002  # seconds: what nobody waits for comes too late
_handles = itertools.count(1000)


class Device:
    """The one device of a member, which is current in the threads that have said so."""

    current = threading.local()

    def __init__(self, number: int) -> None:
        assert number == 0, "a member sees its own GPU first"

    def set_current(self) -> None:
        Device.current.is_set = True

    def create_stream(self) -> Stream:
        check_current()
        return Stream()


def check_current() -> None:
    """What is asked of CUDA is meant for the device that is current in the calling thread."""
    assert getattr(Device.current, "is_set", False), "the device is not current in this thread"


class Stream:
    """Work in order, done by a thread of its own."""

    def __init__(self) -> None:
        self.handle = next(_handles)
        self._work: queue.SimpleQueue[Any] = queue.SimpleQueue()
        streams[self.handle] = self
        threading.Thread(target=_serve, args=(self._work,), daemon=True).start()
        weakref.finalize(self, self._work.put, None)

    def put(self, work: Callable[[], None]) -> None:
        self._work.put(work)

    def record(self) -> Event:
        check_current()
        event = Event()
        self._work.put(event.happened.set)
        return event


class Event:
    """What a stream has come to."""

    def __init__(self) -> None:
        self.happened = threading.Event()

    @property
    def is_done(self) -> bool:
        return self.happened.is_set()


def _serve(work: queue.SimpleQueue[Any]) -> None:
    while (item := work.get()) is not None:
        time.sleep(DELAY)
        item()
        del item  # an event must not outlive its user here
