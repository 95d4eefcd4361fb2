"""The group of `fit` where none is open: one process, or members, whichever trains faster.

These rules hold here:

* The choice is a function of measured times (`chosen_size`), so that it can be tested on recorded
  ones.
* Nothing is measured where the answer is known: on one core, under a launcher, and where a rule, an
  exchange or slices are about several members. JAX computes on all cores only in parts.
* The measured function belongs to a group of one. It is what trains if one process is chosen, so
  only the other choice costs a second compilation.
* A group that an exception leaves behind is closed: the user has no trainer that could use it.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from synkhronos._api.advice import Timing, seconds_of
from synkhronos._api.request import Request
from synkhronos._backends.jax import runs_jax
from synkhronos._compiling.graph_types import ModeLike
from synkhronos._engine.group import close, current, current_or_none, fork
from synkhronos._engine.startup import launched
from synkhronos._errors import NotForked
from synkhronos._host import cores as _cores
from synkhronos._host.launch_settings import launch_settings
from synkhronos._host.thread_pools import ThreadLimits
from synkhronos._libraries.fork_safe_lock import ForkSafeLock
from synkhronos._warnings import log
from synkhronos.extensions._rows.source import Source
from synkhronos.extensions._step.function import TrainFunction
from synkhronos.training._run.augmentation import augmentation_words
from synkhronos.training._run.events import Event

# Seconds that members have to save: to start them and to make the training function again takes 3
# to 6, and without that time one process is as good.
START_SECONDS = 5.0
_SIDE = 768  # of the matrices of `slowdown`: 0.9 GFLOP
_SURELY = 0.95  # of the time of a step: less differs by more than the noise of a measurement


@dataclass(frozen=True)
class Choice:
    """The number of members, and the line that tells it."""

    members: int
    why: str

    def on_start(self, event: Event) -> None:
        """Show the line when the run begins."""
        event.trainer.say(f"fit: {self.why}")


def chosen_size(timing: Timing, slowdown: float, cores: int, steps: int) -> Choice:
    """Choose one process with all threads, or a member for each core.

    Parameters
    ----------
    timing : Timing
        Of a step, measured while the other cores rest.
    slowdown : float
        The result of `slowdown`.
    cores : int
        Of this process, one for each member.
    steps : int
        Of the run.
    """
    alone = timing.plain_threads
    together = slowdown * (timing.seconds(cores) - timing.round) + timing.round
    saved = steps * (alone - together)
    one = f"one process with all threads, {1e3 * alone:.3g} ms for a step"
    several = f"{cores} members, {1e3 * together:.3g} ms for a step"
    if together >= _SURELY * alone:
        return Choice(1, f"{one}; {several}")
    if saved < START_SECONDS:
        return Choice(1, f"{one}; {several}, which saves {saved:.2g} s, less than their start")
    return Choice(cores, f"{several}; {one}")


def slowdown(cores: int) -> float:
    """How much longer a core takes while all work, which is 1 if cores share nothing.

    A large product of BLAS has nothing to wait for, so its time with all threads says it. Two
    hyper-threads of one core take 1.5 to 2 times as long.
    """
    matrix = np.ones((_SIDE, _SIDE), np.float32)
    product = functools.partial(np.matmul, matrix, matrix, out=np.empty_like(matrix))
    together = seconds_of(product)
    with ThreadLimits(1):
        alone = seconds_of(product)
    return min(max(1.0, cores * together / alone), float(cores))


@dataclass
class StepRows:
    """The rows of one step, to be measured, and how many steps there will be."""

    given: Sequence[Any]  # arrays and sources, one for each input but that of the words
    size: int
    rows: int
    epochs: int
    words: int | None = None  # the seed of the words of augmentation, if there are any

    @property
    def steps(self) -> int:
        """Of the whole run, if it is not stopped."""
        return self.epochs * -(-self.rows // self.size)

    def first(self) -> list[Any]:
        """The arguments of the first step without shuffling."""
        n = min(self.size, self.rows)
        found = [self._first(i, value, n) for i, value in enumerate(self.given)]
        return found if self.words is None else [*found, augmentation_words(n, self.words, 0)]

    def _first(self, number: int, given: Any, n: int) -> np.ndarray:
        if isinstance(given, np.ndarray):
            return given[:n]
        source = Source(given, number, self.rows)
        with source.reading():
            return np.asarray(source.read(np.arange(n), None))


def closing_its_group[**P, R](train: Callable[P, R]) -> Callable[P, R]:
    """Let a function close the group that it has opened, if it raises."""

    @functools.wraps(train)
    def trained(*args: P.args, **kwargs: P.kwargs) -> R:
        before = current_or_none()
        try:
            return train(*args, **kwargs)
        except BaseException:
            if before is None:
                close()
            raise

    return trained


def function_in_group(
    make: Callable[[], TrainFunction], mode: ModeLike, rows: Callable[[], StepRows] | None
) -> tuple[TrainFunction, Choice | None]:
    """Make the training function in the current group, or in one that is opened.

    Parameters
    ----------
    make : callable
        Makes the function in the current group; it may be called twice.
    mode
        Of the function.
    rows : callable, optional
        The rows to measure with. None: members are wanted, whatever they cost.

    Returns
    -------
    tuple
        The function; and the choice, if something was measured.
    """
    with _choosing.held():
        if not _has_group():
            return _in_new_group(make, mode, rows)
    return make(), None


# Threads that begin at once have one group: else one would close the group of one member that
# another one has found.
_choosing = ForkSafeLock()


def _has_group() -> bool:
    with contextlib.suppress(NotForked):
        current("fit")
        return True
    return False


def _in_new_group(
    make: Callable[[], TrainFunction], mode: ModeLike, rows: Callable[[], StepRows] | None
) -> tuple[TrainFunction, Choice | None]:
    cores, settings = _cores.physical(), launch_settings()
    asked = settings.members or settings.devices or launched(None) is not None
    if rows is None or asked or runs_jax(mode) or cores == 1:
        fork()
        return make(), None
    measured = rows()
    fork(1)
    train = make()
    choice = _measured(train, measured, cores)
    log.info("fit: %s", choice.why)
    if choice.members > 1:
        del train
        close()
        fork(choice.members)
        train = make()
    return train, choice


def _measured(train: TrainFunction, rows: StepRows, cores: int) -> Choice:
    """Measure a step, and choose."""
    asked = Request(tuple(rows.first()), {})
    alone = train.seconds_alone(asked)
    if rows.steps * alone < START_SECONDS:
        return Choice(
            1,
            f"one process with all threads: {rows.steps:,} steps of {1e3 * alone:.3g} ms take "
            "less time than the start of members",
        )
    return chosen_size(train.timed(asked)[2], slowdown(cores), cores, rows.steps)
