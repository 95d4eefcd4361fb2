"""Who evaluates: the group of this process, or in a chain's own process a group of its own."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import threading
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from synkhronos._engine.group import Group
from synkhronos._errors import GroupClosed
from synkhronos._host import cores as _cores
from synkhronos.pymc._alarm import Alarm
from synkhronos.pymc._round import Round
from synkhronos.pymc._rows import is_smooth

if TYPE_CHECKING:
    from synkhronos.pymc._likelihood import Likelihood

log = logging.getLogger("synkhronos")


class Slots:
    """The cores, dealt out to processes that come and go: a slot is free again when its owner ends.

    A slot is a byte of a nameless file under a record lock, which the kernel gives back whatever
    the process dies of.
    """

    def __init__(self, cores: Sequence[int], width: int) -> None:
        self._cores = list(cores)
        self._width = min(max(1, width), len(self._cores))
        self._fd = os.memfd_create("synkhronos-slots", os.MFD_CLOEXEC)

    def take(self) -> list[int]:
        """The cores of a free slot; those of slot 0 where none is free."""
        for slot in range(len(self._cores) // self._width):
            try:
                fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, slot)
            except OSError:
                continue
            return self._cores[slot * self._width : (slot + 1) * self._width]
        return self._cores[: self._width]

    def __del__(self) -> None:
        """A model that nobody leaves leaves nothing behind."""
        self.close()

    def close(self) -> None:
        """Let go of the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class _Stub:
    """In place of a round."""

    def __init__(self, likelihood: Likelihood) -> None:
        self._flat = np.zeros(likelihood.size + 1)
        self._latents = [
            np.zeros(shape, v.type.dtype)
            for v, shape in zip(likelihood.latents, likelihood.latent_shapes, strict=True)
            if is_smooth(v)
        ]

    def __call__(self, theta: Any, latents: Any) -> tuple[np.ndarray, list[np.ndarray]]:
        return self._flat.copy(), self._latents


class Evaluator:
    """The divided likelihood in whatever process it is called.

    In the process that divided the model it is the group's. A chain's process (`pm.sample` with
    `cores` forks one for each chain, or starts it anew) starts a group of its own at its first
    evaluation.

    Parameters
    ----------
    likelihood : Likelihood
    mode : object
        What the members compile for.
    group : Group
    members : int
        Of each chain's own group.
    """

    def __init__(self, likelihood: Likelihood, mode: Any, group: Group, members: int) -> None:
        self.likelihood = likelihood
        self.mode = mode
        self.members = members
        self.alarm: Alarm | None = Alarm()
        self.failure: BaseException | None = None
        self._slots: Slots | None = Slots(_cores.available(), members)
        self._left = False
        self._pid = os.getpid()
        self._moving = threading.Lock()
        self._round: Any = Round(group, likelihood, mode)

    def __call__(
        self, theta: np.ndarray, latents: Sequence[np.ndarray]
    ) -> tuple[np.ndarray, list[np.ndarray]]:
        """[log-density, gradient by theta], and the gradients by latents."""
        if self.failure is not None:
            raise self.failure
        if self._pid != os.getpid() or self._round is None:
            self._move_in()
        assert self._round is not None
        try:
            return self._round(theta, latents)
        except BaseException as exc:
            self._note(exc, self._round.group.alive)
            raise

    @contextlib.contextmanager
    def stubbed(self) -> Iterator[None]:
        """Evaluate to zeros in no time: what is left is what the rest of the model takes."""
        kept, self._round = self._round, _Stub(self.likelihood)
        try:
            yield
        finally:
            self._round = kept

    def _note(self, exc: BaseException, goes_on: bool) -> None:
        """See to it that the sampler stops."""
        if self.failure is not None:  # another thread was first
            return
        raised = self.alarm is not None and self.alarm.raise_in_main(exc)
        if raised or not goes_on:
            self.failure = exc  # a sampler that goes on must not take it for a bad point
        if raised:
            log.error("sampling stops: %s", exc)

    def _move_in(self) -> None:
        """Start a group of this process's own."""
        if self._left:
            raise GroupClosed(
                f"the likelihood of {', '.join(self.likelihood.names)} is divided no longer: the "
                "model was left (synk.pymc.parallel)"
            )
        if self._pid != os.getpid():  # a fork: its locks may have been held by other threads
            self._moving = threading.Lock()
            self.alarm = None
        with self._moving:
            if self._round is not None and self._pid == os.getpid():
                return
            slots = self._slots or Slots(_cores.available(), self.members)
            cores = slots.take()
            self._slots = slots
            members = min(self.members, len(cores))
            self._round = Round(Group(members, cores=cores), self.likelihood, self.mode)
            self._pid = os.getpid()
        log.info("chain process %d evaluates with %d members of its own", self._pid, members)

    def give_each_chain(self, members: int) -> None:
        """Change the size of the chains' own groups, before there are any."""
        self.members = members
        if self._slots is not None:
            self._slots.close()
        self._slots = Slots(_cores.available(), members)

    def leave(self) -> None:
        """The model is whole again."""
        if self._pid == os.getpid() and not self._left:
            self._left = True
            self._round = None
            if self._slots is not None:
                self._slots.close()
            if self.alarm is not None:
                self.alarm.close()

    def __getstate__(self) -> dict[str, Any]:
        """For a process that was not forked: it has no group, and no part in the slots."""
        return {"likelihood": self.likelihood, "mode": self.mode, "members": self.members}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.failure = self.alarm = self._round = self._slots = None
        self._left = False
        self._pid = os.getpid()
        self._moving = threading.Lock()
