"""Failures of a divided likelihood, in libraries that would take them for bad points and go on.

nutpie evaluates in threads of its own and treats an exception there as a divergence: it would
return meaningless draws. So the thread that waits for nutpie looks at the evaluators.
better_optimize, by which `pm.find_MAP` optimises, returns the last point instead of an exception.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from synkhronos._libraries.better_optimize import BETTER_OPTIMIZE
from synkhronos._libraries.fork_safe_lock import ForkSafeLock
from synkhronos._libraries.library import optional_gain
from synkhronos._libraries.nutpie import NUTPIE
from synkhronos._warnings import log
from synkhronos.pymc._density.op import DividedLogp, evaluators

_LOOK_SECONDS = 0.05

_lock = ForkSafeLock()


def let_failures_pass() -> None:
    """Let nutpie and better_optimize raise failures of evaluators, if this process has them."""
    for library, name, wrapped in (
        (NUTPIE, "wait", _watching),
        (NUTPIE, "_extract", _checked),
        (BETTER_OPTIMIZE, "optimizer_early_stopping_wrapper", _passing),
    ):
        with _lock.held(), optional_gain():
            if library.is_imported(name):
                function = library.get(name)
                if not hasattr(function, "__wrapped__"):
                    library.replace({name: wrapped(function)})


def _watching(wait: Callable[..., Any]) -> Callable[..., Any]:
    """`wait` of a sampler, which looks at the evaluators meanwhile."""

    @functools.wraps(wait)
    def wait_watching(sampler: Any, *, timeout: float | None = None) -> Any:
        error, watched = None, _evaluators_of(sampler)
        try:
            _wait(sampler, watched, timeout)
        except Exception as exc:  # nutpie's own, if no initial point has a value
            error = exc
        failure = _failure_of(watched)
        if failure is not None:
            log.error(
                "sampling stops, and the draws of nutpie are lost: %s. PyMC's own sampler "
                '(nuts_sampler="pymc") keeps draws by trace= or callback=',
                failure,
            )
            sampler.cancel()
            raise failure from error
        if error is not None:
            raise error
        return wait(sampler, timeout=timeout)

    return wait_watching


def _wait(sampler: Any, watched: Sequence[Any], timeout: float | None) -> None:
    """Wait until a sampler has ended, or an evaluator has failed.

    Raises
    ------
    TimeoutError
    """
    until = time.monotonic() + (math.inf if timeout is None else timeout)
    while watched and _failure_of(watched) is None:
        left = until - time.monotonic()
        try:
            with optional_gain():
                NUTPIE.of(sampler, "_sampler").wait(max(0.0, min(_LOOK_SECONDS, left)))
            return
        except TimeoutError:
            if left <= 0:
                raise


def _checked(extract: Callable[..., Any]) -> Callable[..., Any]:
    """`_extract` of a sampler: its draws, unless an evaluation has failed."""

    @functools.wraps(extract)
    def extract_checked(sampler: Any, *args: Any, **kwargs: Any) -> Any:
        if (failure := _failure_of(_evaluators_of(sampler))) is not None:
            raise failure
        return extract(sampler, *args, **kwargs)

    return extract_checked


def _evaluators_of(sampler: Any) -> Sequence[Any]:
    """The evaluators of a model that nutpie has compiled by numba.

    Of a model compiled by JAX there are none: an exception ends nutpie.
    """
    function = None
    with optional_gain():
        function = getattr(NUTPIE.of(sampler, "_compiled_model"), "logp_func", None)
    nodes = function.maker.fgraph.apply_nodes if function is not None else ()
    return [node.op.evaluator for node in nodes if isinstance(node.op, DividedLogp)]


def _failure_of(watched: Iterable[Any]) -> BaseException | None:
    return next((e.failure for e in watched if e.failure is not None), None)


def _passing(optimize: Callable[..., Any]) -> Callable[..., Any]:
    """`optimize` of better_optimize, whose result has the text of an exception in its message."""

    @functools.wraps(optimize)
    def optimize_passing(*args: Any, **kwargs: Any) -> Any:
        found = optimize(*args, **kwargs)
        failures = [e.failure for e in evaluators() if e.failure is not None]
        for failure in failures if not found.success else ():
            if str(failure) in str(found.message):
                raise failure
        return found

    return optimize_passing
