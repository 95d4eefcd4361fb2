"""Who evaluates: the group of this process, or in a chain's own process a group of its own."""

from __future__ import annotations

import fcntl
import logging
import os
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from synkhronos import _cores
from synkhronos._errors import GroupClosed
from synkhronos._group import Group
from synkhronos.pymc._likelihood import Likelihood
from synkhronos.pymc._round import Round

log = logging.getLogger("synkhronos")


class Slots:
    """The cores, dealt out to processes that come and go: a slot is free again when its owner ends.

    A slot is a byte of a nameless file under a record lock, which the kernel gives back whatever
    the process dies of.
    """

    def __init__(self, cores: Sequence[int], width: int) -> None:
        self._cores = list(cores)
        self._width = max(1, width)
        self.count = max(1, len(self._cores) // self._width)
        self._fd = os.memfd_create("synkhronos-slots", os.MFD_CLOEXEC)

    def take(self) -> list[int]:
        """The cores of a free slot; those of slot 0 where none is free."""
        for slot in range(self.count):
            try:
                fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, slot)
            except OSError:
                continue
            return self._of(slot)
        return self._of(0)

    def _of(self, slot: int) -> list[int]:
        return self._cores[slot * self._width : (slot + 1) * self._width]

    def close(self) -> None:
        """Let go of the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_fd": -1}  # a process that was not forked has no such file

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._fd = os.memfd_create("synkhronos-slots", os.MFD_CLOEXEC)


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
        self.failure: BaseException | None = None
        self.slots = Slots(_cores.available(), members)
        self._left = False
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._round: Round | None = Round(group, likelihood, mode)

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
            if not self._round.group.alive:
                self.failure = exc  # a sampler that goes on must not take silence for an answer
            raise

    def _move_in(self) -> None:
        """Start a group of this process's own."""
        if self._left:
            raise GroupClosed(
                f"the likelihood of {', '.join(self.likelihood.names)} is divided no longer: the "
                "model was left (synk.pymc.parallel)"
            )
        cores = self.slots.take()
        members = min(self.members, len(cores))
        group = Group(members, cores=cores)
        self._lock = threading.Lock()
        self._round = Round(group, self.likelihood, self.mode)
        self._pid = os.getpid()
        log.info("chain process %d evaluates with %d members of its own", self._pid, members)

    def leave(self) -> None:
        """The model is whole again."""
        if self._pid == os.getpid():
            self._left = True
            self._round = None
            self.slots.close()

    def __getstate__(self) -> dict[str, Any]:
        return {
            **{k: getattr(self, k) for k in ("likelihood", "mode", "members", "slots")},
            "failure": None,
            "_left": self._left,
            "_pid": -1,
            "_round": None,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = threading.Lock()
