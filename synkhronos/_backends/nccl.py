"""NCCL: the only file that imports it. A Link connects one member to the other members' GPUs.

Operations run on a stream of the link. The memory that they read must be ready before `post`, and
what they write is ready when `finish` returns. Each wait has a limit. The communicator is a
non-blocking one, and waits check the other members; the abort of a link runs in a thread that may
be left behind. See "Fault Tolerance" and "Creating a communicator with options" of the user guide
of NCCL 2.32; nccl4py 0.6.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from cuda.core import Event

OPEN_SECONDS = 60.0  # until all members must have connected
ABORT_SECONDS = 1.5
SHARED_FROM = 23000  # NCCL 2.30, the first version that allows several members on one GPU
ID_BYTES = 128

# The name of a function of NCCL, and its arguments before the communicator and the stream.
Operation = tuple[str, tuple[int, ...]]

# NCCL's names of its element types.
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
    """NCCL is missing, or cannot connect these members; the message says why."""


def is_installed() -> bool:
    """Whether nccl4py is installed; does not import it."""
    return importlib.util.find_spec("nccl") is not None


def _library() -> ModuleType:
    try:
        from nccl.bindings import nccl
    except ImportError as exc:
        raise NotServed(
            f'nccl4py cannot be imported ({exc}): pip install "synkhronos[cuda12]" or '
            '"synkhronos[cuda13]"'
        ) from None
    return nccl


def version() -> int:
    """The version of libnccl: 23203 is 2.32.3.

    Raises
    ------
    NotServed
    """
    library = _library()
    with _served("the loading of libnccl"):
        return int(library.get_version())


def new_id() -> np.ndarray:
    """A fresh identifier of a communicator.

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

    Raises
    ------
    NotServed
    """

    def __init__(
        self,
        # the identifier from `new_id`, the same in all members, which connect at the same time
        name: np.ndarray,
        rank: int,
        size: int,
        shared: bool,  # whether several of the members are on one GPU
        gpu: int,  # CUDA's number of this member's GPU, in this process
        watch: Callable[[Callable[[], bool]], None],
    ) -> None:
        self._nccl = _library()
        # `watch(done)` returns once done() is true; it raises if another member fails
        self._watch = watch
        self._comm: int | None = None
        self._stream: Any = None
        # started early, since no thread can start while the interpreter ends
        self._last: queue.SimpleQueue[int | None] = queue.SimpleQueue()
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

                self._device = functools.partial(Device, gpu)  # each thread needs its own
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

    def post(self, operations: Sequence[Operation]) -> Event:
        """Start operations on the GPU, as one group; returns the event that `finish` waits for.

        Raises
        ------
        RuntimeError
            NCCL reports an error. After it, or an error of `watch`, only `close` may be called.
        """
        nccl = self._nccl
        self._device().set_current()  # this thread may differ from the last one
        nccl.group_start()
        try:
            for name, arguments in operations:
                getattr(nccl, name)(*arguments, self._comm, self._handle)
        finally:
            nccl.group_end()
        if not self._settled():
            self._watch(self._settled)
        return self._stream.record()

    def finish(self, event: Event) -> None:
        """Wait until the GPU has reached the event; raises as `post` does."""

        def done() -> bool:
            if event.is_done:
                return True
            self._settled()  # raises errors of NCCL
            return False

        self._watch(done)

    def _settled(self, until: float | None = None) -> bool:
        """Whether NCCL has accepted the operations; raises its errors."""
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
        """Abort running operations, and disconnect in bounded time."""
        comm, self._comm = self._comm, None
        if not self._open:
            return
        self._open = False
        self._last.put(comm)
        self._thread.join(ABORT_SECONDS)
        self._stream = None


def _abort(nccl: ModuleType, last: queue.SimpleQueue[int | None]) -> None:
    """Wait for a communicator, and abort it; the abort may never return."""
    comm = last.get()
    if comm is not None:
        with contextlib.suppress(Exception):
            nccl.comm_abort(comm)


@contextlib.contextmanager
def _served(what: str) -> Iterator[None]:
    """Turn errors of the libraries into NotServed."""
    try:
        yield
    except NotServed:
        raise
    except Exception as exc:
        if type(exc).__module__.partition(".")[0] == "synkhronos":  # from another member
            raise
        raise NotServed(f"{what} failed: {type(exc).__name__}: {exc}") from None
