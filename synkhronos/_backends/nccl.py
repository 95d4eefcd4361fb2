"""NCCL: the only file that imports it. One link of a member to the other members' GPUs.

What is posted runs on a stream of the link's own, so the memory that it reads must be ready by
then, and is ready again when `finish` returns. Nothing here waits without a limit: the
communicator is a non-blocking one, waits look at the other members, and the abort of a link runs
in a thread that may be left behind (NCCL 2.32, "Fault Tolerance" and "Creating a communicator
with options" of its user guide; nccl4py 0.6).
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

OPEN_SECONDS = 60.0  # for all members to connect
ABORT_SECONDS = 1.5
SHARED_FROM = 23000  # the first version that takes several members on one GPU, 2.30
ID_BYTES = 128

# An operation by NCCL's own name for it, and its arguments before the communicator and the stream.
Operation = tuple[str, tuple[int, ...]]

# NCCL's names of what its kernels compute with.
ELEMENTS = {
    "int8": "Int8",
    "uint8": "Uint8",
    "int32": "Int32",
    "uint32": "Uint32",
    "int64": "Int64",
    "uint64": "Uint64",
    "float16": "Float16",
    "bfloat16": "Bfloat16",
    "float32": "Float32",
    "float64": "Float64",
}


class NotServed(Exception):
    """NCCL is missing or cannot serve these members; the message says why."""


def is_installed() -> bool:
    """Whether nccl4py is; asked without importing it."""
    return importlib.util.find_spec("nccl") is not None


def _library() -> Any:
    try:
        from nccl.bindings import nccl
    except ImportError as exc:
        raise NotServed(
            f'nccl4py cannot be imported ({exc}): pip install "synkhronos[cuda12]" or '
            '"synkhronos[cuda13]"'
        ) from None
    return nccl


def version() -> int:
    """Of libnccl: 23203 is 2.32.3.

    Raises
    ------
    NotServed
    """
    library = _library()
    with _served("the loading of libnccl"):
        return int(library.get_version())


def new_id() -> np.ndarray:
    """What the members of one communicator know each other by.

    Raises
    ------
    NotServed
    """
    library = _library()
    with _served("ncclGetUniqueId"):
        return np.frombuffer(bytes(library.get_unique_id()), np.uint8)


def element(name: str) -> int:
    """NCCL's number of a dtype."""
    return int(_library().DataType[ELEMENTS[name]])


def operator(name: str) -> int:
    """NCCL's number of "Sum", "Prod", "Max" or "Min"."""
    return int(_library().RedOp[name])


class Link:
    """One member's NCCL communicator.

    Parameters
    ----------
    name : array of bytes
        From `new_id`, the same in all members, which make their links at the same time.
    rank, size : int
    shared : bool
        Whether several of the members are on one GPU.
    gpu : int
        CUDA's number of this member's, in this process.
    watch : callable
        ``watch(done)`` returns once done() is true; it raises if the other members will not come.

    Raises
    ------
    NotServed
    """

    def __init__(
        self,
        name: np.ndarray,
        rank: int,
        size: int,
        shared: bool,
        gpu: int,
        watch: Callable[[Callable[[], bool]], None],
    ) -> None:
        self._nccl = _library()
        self._watch = watch
        self._comm: Any = None
        self._stream: Any = None
        # it exists beforehand, since none can be started when the interpreter ends
        self._last: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._open = False
        self._thread = threading.Thread(
            target=_abort, args=(self._nccl, self._last), name="synkhronos-nccl-abort", daemon=True
        )
        if shared and version() < SHARED_FROM:
            raise NotServed(
                f"NCCL {version()} takes one member on a GPU, 2.30 and later several: pip install "
                "--upgrade nvidia-nccl-cu12 (or -cu13), or give each member a GPU of its own"
            )
        try:
            with _served("the connection to the other members"):
                from cuda.core import Device

                self._device = functools.partial(Device, gpu)  # a thread has its own
                device = self._device()
                device.set_current()
                self._stream = device.create_stream()
                self._handle = int(self._stream.handle)
                self._thread.start()
                self._open = True
                config = self._nccl.Config()
                config.blocking = 0
                self._comm = self._nccl.comm_init_rank_scalable(
                    size, rank, 1, bytearray(name.tobytes()), config.ptr
                )
                until = time.monotonic() + OPEN_SECONDS
                self._watch(lambda: self._settled(until))
        except BaseException:
            self.close()
            raise

    def post(self, operations: Sequence[Operation]) -> Any:
        """Hand operations to the GPU, as one; returns what `finish` waits for.

        Raises
        ------
        RuntimeError
            NCCL reports an error. After it, and after what `watch` raises, only `close` is left.
        """
        nccl = self._nccl
        self._device().set_current()  # this thread may be another than the last
        nccl.group_start()
        try:
            for name, arguments in operations:
                getattr(nccl, name)(*arguments, self._comm, self._handle)
        finally:
            nccl.group_end()
        if not self._settled():
            self._watch(self._settled)
        return self._stream.record()

    def finish(self, event: Any) -> None:
        """Wait until the GPU has done what was posted before the event; errors as `post`."""

        def done() -> bool:
            if event.is_done:
                return True
            self._settled()  # for the errors it raises
            return False

        self._watch(done)

    def _settled(self, until: float | None = None) -> bool:
        """Whether NCCL has taken what it was given; an error of it is raised."""
        state = self._nccl.comm_get_async_error(self._comm)
        results = self._nccl.Result
        if state == results.Success:
            return True
        if state != results.InProgress:
            text = self._nccl.get_error_string(int(state))
            raise RuntimeError(f"NCCL: {text} ({self._nccl.get_last_error(self._comm)})")
        if until is not None and time.monotonic() > until:
            raise NotServed(f"the members have not connected within {OPEN_SECONDS:.0f} s")
        return False

    def close(self) -> None:
        """Abort what runs and let go, in bounded time."""
        comm, self._comm = self._comm, None
        if not self._open:
            return
        self._open = False
        self._last.put(comm)
        self._thread.join(ABORT_SECONDS)
        self._stream = None


def _abort(nccl: Any, last: queue.SimpleQueue[Any]) -> None:
    """Wait for a communicator, and abort it, which may take for ever."""
    comm = last.get()
    if comm is not None:
        with contextlib.suppress(Exception):
            nccl.comm_abort(comm)


@contextlib.contextmanager
def _served(what: str) -> Any:
    """Errors of the libraries, whose classes are their own, mean that NCCL cannot serve."""
    try:
        yield
    except NotServed:
        raise
    except Exception as exc:
        if type(exc).__module__.startswith("synkhronos."):  # of the other members
            raise
        raise NotServed(f"{what} failed: {type(exc).__name__}: {exc}") from None
