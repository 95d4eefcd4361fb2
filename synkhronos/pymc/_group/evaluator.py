"""The group that evaluates: that of this process, or in a chain's process one of its own."""

from __future__ import annotations

import contextlib
import fcntl
import inspect
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from synkhronos._compiling.graph_types import ModeLike
from synkhronos._compiling.progress import tell
from synkhronos._engine.group import Group
from synkhronos._engine.replicas import Answer
from synkhronos._errors import GroupClosed
from synkhronos._host import cores as _cores
from synkhronos._host.descriptors import Descriptor
from synkhronos._warnings import log
from synkhronos.pymc._group.likelihood import GroupLikelihood
from synkhronos.pymc._reading.facts import is_smooth

if TYPE_CHECKING:
    from synkhronos.pymc._density.likelihood import Likelihood


_FILE = "synkhronos-slots"


class CoreSlots:
    """Divides the cores into slots, one for each process; the end of a process frees its slot.

    A slot is a byte of a nameless file under a record lock. The kernel releases the lock however
    the process ends. A process that unpickles the slots opens the file of the process that made
    them.
    """

    def __init__(self, cores: Sequence[int], width: int, path: str = "") -> None:
        self._cores = list(cores)
        self._width = min(max(1, width), len(self._cores))
        self._fd = Descriptor(_opened(path))

    def __reduce__(self) -> tuple[object, ...]:
        path = f"/proc/{os.getpid()}/fd/{self._fd}" if self._fd.is_ours else ""
        return CoreSlots, (self._cores, self._width, path)

    def take(self) -> list[int]:
        """Take a free slot and return its cores; those of slot 0 if none is free."""
        for slot in range(len(self._cores) // self._width):
            try:
                fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, slot)
            except OSError:
                continue
            return self._cores[slot * self._width : (slot + 1) * self._width]
        return self._cores[: self._width]

    def __del__(self) -> None:
        """Close the file of a model that was not closed."""
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._fd.close()


def _opened(path: str) -> int:
    """The file of slots at this path, or a new one if that process has ended."""
    with contextlib.suppress(OSError):
        if path and os.readlink(path).startswith(f"/memfd:{_FILE} "):
            return os.open(path, os.O_RDWR | os.O_CLOEXEC)
    return os.memfd_create(_FILE, os.MFD_CLOEXEC)


class _Stub:
    """Replaces a round; evaluates to zeros."""

    def __init__(self, likelihood: Likelihood) -> None:
        self._flat = np.zeros(likelihood.size + 1)
        self._latents = [
            np.zeros(shape, v.type.dtype)
            for v, shape in zip(likelihood.latents, likelihood.latent_shapes, strict=True)
            if is_smooth(v)
        ]

    def __call__(
        self, theta: np.ndarray, latents: Sequence[np.ndarray], gradient: bool = True
    ) -> tuple[np.ndarray, list[np.ndarray]]:
        return self._flat.copy(), self._latents


class Evaluator:
    """The divided likelihood, in any process.

    In the process that divided the model, its group evaluates. `pm.sample` with `cores` forks or
    starts one process for each chain; each starts its own group at its first evaluation.
    """

    def __init__(self, likelihood: Likelihood, mode: ModeLike, group: Group, members: int) -> None:
        self.likelihood = likelihood
        self.mode = mode  # the mode in which the members compile
        self.members = members  # the size of each chain's own group
        self.failure: BaseException | None = None  # the error that all later evaluations raise
        self.raised: BaseException | None = None  # the error of the last evaluation
        self._inside: list[None] = []
        self._told_turns = False
        self._left = False
        self._pid = os.getpid()
        self._moving = threading.Lock()
        self._group_likelihood: GroupLikelihood | _Stub | None = GroupLikelihood(
            group, likelihood, mode
        )
        # last, since `leave` is not called for an evaluator that could not be made
        self._slots: CoreSlots | None = CoreSlots(_cores.available(), members)

    def __call__(
        self, theta: np.ndarray, latents: Sequence[np.ndarray], gradient: bool = True
    ) -> tuple[np.ndarray, list[np.ndarray]]:
        """[log-density, gradient by theta], and the gradients by latents; see `GroupLikelihood`."""
        if self.failure is not None:
            raise self.failure
        if self._pid != os.getpid() or self._group_likelihood is None:
            self._move_in()
        assert self._group_likelihood is not None
        self._inside.append(None)  # by each thread, without a lock
        if len(self._inside) > 1 and not self._told_turns:
            self._tell_turns()
        try:
            found = self._group_likelihood(theta, latents, gradient)
            self.raised = None
            return found
        except BaseException as exc:
            self.raised = exc
            if self.failure is None and not (self._group_likelihood.group.alive and _is_heard()):
                self.failure = exc
            raise
        finally:
            self._inside.pop()

    def _tell_turns(self) -> None:
        """Say that chains of several threads do not run at once."""
        self._told_turns = True
        tell(
            "chains in threads take turns, since each evaluation uses all "
            f"{self._group_likelihood.group.size} members: synk.pymc.sample gives each chain a "
            "process, and synk.pymc.fast needs no members"
        )

    def compile_beside(
        self, theta: np.ndarray, latents: Sequence[np.ndarray], work: Callable[[], object]
    ) -> None:
        """Let a worker compile while this process does `work`, in which evaluations are zeros."""
        self._group_likelihood.compile_beside(theta, latents, self.stubbed()(work))

    def alone(self) -> list[Callable[[Sequence[object]], Answer]]:
        """The function of each part, as this process has compiled it as a member."""
        assert isinstance(self._group_likelihood, GroupLikelihood)
        return self._group_likelihood.alone()

    @contextlib.contextmanager
    def stubbed(self) -> Iterator[None]:
        """Evaluate to zeros, to measure the time of the rest of the model."""
        kept, self._group_likelihood = self._group_likelihood, _Stub(self.likelihood)
        try:
            yield
        finally:
            self._group_likelihood = kept

    def _move_in(self) -> None:
        """Start this process's own group."""
        if self._left:
            raise GroupClosed(
                f"the likelihood of {', '.join(self.likelihood.names)} is not divided any more: "
                "the model was closed (synk.pymc.parallel)"
            )
        if self._pid != os.getpid():  # a fork: other threads of the parent may have held the lock
            self._moving = threading.Lock()
        with self._moving:
            if self._group_likelihood is not None and self._pid == os.getpid():
                return
            slots = self._slots or CoreSlots(_cores.available(), self.members)
            cores = slots.take()
            self._slots = slots
            members = min(self.members, len(cores))
            group = Group(members, cores=cores)
            try:
                self._group_likelihood = GroupLikelihood(group, self.likelihood, self.mode)
            except BaseException:
                group.close()
                raise
            self._pid = os.getpid()
        log.info("chain process %d evaluates with %d members of its own", self._pid, members)

    def give_each_chain(self, members: int) -> None:
        """Set the size of the chains' own groups, before the first starts."""
        self.members = members
        if self._slots is not None:
            self._slots.close()
        self._slots = CoreSlots(_cores.available(), members)

    def leave(self) -> None:
        """End: the model is not divided any more."""
        if self._pid == os.getpid() and not self._left:
            self._left = True
            self._group_likelihood = None
            if self._slots is not None:
                self._slots.close()

    def __getstate__(self) -> dict[str, object]:
        """For a process that was not forked: without group."""
        names = ("likelihood", "mode", "members", "_slots")
        return {name: getattr(self, name) for name in names}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.failure = self.raised = self._group_likelihood = None
        self._inside, self._told_turns = [], False
        self._left = False
        self._pid = os.getpid()
        self._moving = threading.Lock()


def _is_heard() -> bool:
    """Whether Python code gets the exception of an evaluation.

    A caller in C, such as nutpie's threads, may take it for a bad point and go on.
    """
    frame = inspect.currentframe()
    while frame is not None and frame.f_back is not None:
        frame = frame.f_back
    outermost = "" if frame is None else frame.f_globals.get("__name__", "")
    return not outermost.startswith("synkhronos.")
