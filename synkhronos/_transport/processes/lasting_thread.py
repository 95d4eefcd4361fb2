"""Starts processes in a thread that lives as long as they do.

The kernel sends the signal of PR_SET_PDEATHSIG when the thread ends that has started the process,
not the process of that thread. The main thread lives as long as its process. For other threads one
of our own starts the processes, and rests until they have ended.
"""

from __future__ import annotations

import errno
import math
import threading
from collections.abc import Callable, Iterable

from synkhronos._host.descriptors import Descriptor
from synkhronos._host.polling import readable


class _Lasting(threading.Thread):
    """A thread that ends after the processes that it has started."""


class LastingThread:
    """Calls one function, in the main thread or in a thread that ends after all processes."""

    def __init__(self, pidfds: Callable[[], Iterable[int]]) -> None:
        # returns descriptors of the processes that the function has started; they are closed here
        self._pidfds = pidfds
        self._thread: threading.Thread | None = None

    def call[T](self, start: Callable[[], T]) -> T:
        """Call the function; returns or raises what it does.

        Raises
        ------
        OSError
            No thread can be started.
        """
        here = threading.current_thread()
        if here is threading.main_thread() or isinstance(here, _Lasting):
            return start()
        found: list[T] = []
        raised: list[BaseException] = []
        started = threading.Event()

        def keep() -> None:
            held: list[Descriptor] = []
            try:
                found.append(start())
                held.extend(map(Descriptor, self._pidfds()))
            except BaseException as exc:
                raised.append(exc)
            started.set()
            for pidfd in held:
                readable(pidfd, seconds=math.inf)
                pidfd.close()

        thread = _Lasting(target=keep, name="synkhronos: starts processes", daemon=True)
        try:
            thread.start()
        except RuntimeError as exc:
            raise OSError(errno.EAGAIN, str(exc)) from exc
        self._thread = thread
        started.wait()
        if raised:
            raise raised[0]
        return found[0]

    def join(self) -> None:
        """Wait for the thread, once the processes have ended."""
        thread, self._thread = self._thread, None
        if thread is not None and thread is not threading.current_thread():
            thread.join()
