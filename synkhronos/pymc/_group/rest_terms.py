"""The part of a model's log-density that stays in the master, and its share of the time."""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Callable, Collection, Sequence

import numpy as np
import pytensor
from pymc.pytensorf import rewrite_pregrad
from pytensor.gradient import NullTypeGradError

from synkhronos._warnings import log
from synkhronos.pymc._density.proof import function_of
from synkhronos.pymc._reading.facts import is_smooth
from synkhronos.pymc._reading.reading import Reading

_LARGE = 0.05  # share of a gradient's time from which on a serial term is worth a warning
_ROUNDS = 5  # of measuring that share


def tell_what_stays(reading: Reading) -> None:
    """Log a line for each variable that has rows and is not divided."""
    if not reading.stays:
        return
    shares = shares_of(reading, list(reading.stays))
    for name, reason in reading.stays.items():
        level = logging.WARNING if shares[name] >= _LARGE else logging.INFO
        log.log(
            level,
            "%s stays in the master: %s (about %.0f %% of a gradient)",
            name,
            reason,
            100 * shares[name],
        )


def shares_of(reading: Reading, names: Sequence[str]) -> dict[str, float]:
    """The share of each variable in the time of the model's gradient, with numpy, uncompiled.

    It is the median over some rounds, in each of which the whole and the terms take turns: other
    work on the machine slows down all of them.
    """
    whole = _timed(reading, reading.factors)
    terms = [_timed(reading, [name]) for name in names]
    rounds = []
    for _ in range(_ROUNDS):
        total = whole()
        rounds.append([term() / total for term in terms])
    return {
        name: min(1.0, statistics.median(found))
        for name, found in zip(names, zip(*rounds, strict=True), strict=True)
    }


def _timed(reading: Reading, names: Collection[str]) -> Callable[[], float]:
    """A function: the processor time of a value and its gradient at the initial point.

    Without the gradient if there is none: the log-density may be used for its value only.
    """
    facts, total = reading.facts, rewrite_pregrad(reading.sum_of(names))
    smooth = [v for v in facts.inputs if is_smooth(v)]
    try:
        gradients = pytensor.grad(total, smooth, disconnected_inputs="ignore") if smooth else []
    except (NotImplementedError, NullTypeGradError):
        gradients = []
    evaluate = function_of(facts, [total, *gradients])
    given = list(facts.start().values())

    def seconds() -> float:
        with np.errstate(all="ignore"):
            began = time.thread_time()
            evaluate(*given)
            return max(time.thread_time() - began, 1e-9)

    seconds()  # the first time takes longer
    return seconds
