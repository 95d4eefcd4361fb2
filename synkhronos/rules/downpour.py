"""Downpour: each member adds to a centre what it has learned since it last read it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, override

import numpy as np

from synkhronos._checks import check_integer, check_word, or_none, shown
from synkhronos._compiling.loops import elementwise
from synkhronos._errors import InputError, InputTypeError
from synkhronos.rules._base import Turn, TurnRule, Vector, Vectors

_VERSION, _VOTES, _ROWS = range(3)


@dataclass(frozen=True)
class Downpour(TurnRule):
    """Asynchronous SGD: in its turn a member adds its displacement to the centre, and reads it.

    With D = read - w, where `read` is the centre as the member last read it: centre' = centre -
    lambda D; w' = read' = centre'.

    Parameters
    ----------
    period : int, at least 1
    centre : callable, optional
        An optimizer at the centre, which gets lambda D as its gradient and has states there: an
        update rule that takes gradients and parameters, such as
        ``functools.partial(updates.momentum, learning_rate=0.5)``. It works element by element, and
        treats all parameters alike. Its learning rate may be a shared scalar, which members read at
        each exchange. Default: D is subtracted.
    scale : {"inverse", "none"}
        "inverse": lambda = 1 / max(1, k), where k is the staleness: the versions that others have
        committed since the member read the centre. "none": lambda = 1, which diverges for long
        periods from 3 members on.
    quorum : int, optional
        A member waits until one version has this number of contributions. The last one applies
        their mean, weighted by rows. Contributions to an earlier version are refused; their rows
        are used again.
    bound : int, optional
        A member waits before a step while it is more steps ahead of the slowest one than this.
        0: all members make equally many steps.

    Notes
    -----
    Dean et al., "Large scale distributed deep networks" (2012). Scaling: Zhang et al.,
    `arXiv:1511.05950 <https://arxiv.org/abs/1511.05950>`_. Quorum: Chen et al.,
    `arXiv:1604.00981 <https://arxiv.org/abs/1604.00981>`_. Bound: Ho et al., "More effective
    distributed ML via a stale synchronous parallel parameter server" (2013).

    Cost of an exchange: the parameters of the member and the centre are read and written once, and
    the member's copy of the centre too; so are the states of an optimizer at the centre, which has
    a few more passes over blocks in a core's cache.

    Momentum at the centre adds to that which stale displacements have already
    (`arXiv:2401.09135 <https://arxiv.org/abs/2401.09135>`_).

    Examples
    --------
    >>> import functools
    >>> from synkhronos import rules
    >>> from synkhronos.extensions import updates
    >>> str(rules.Downpour(period=5, bound=3))
    'Downpour(period=5, bound=3)'
    >>> str(rules.Downpour(centre=functools.partial(updates.adam, learning_rate=0.001)))
    'Downpour(centre=adam(learning_rate=0.001))'
    """

    own: ClassVar[tuple[str, ...]] = ("read",)
    period: int = 1
    centre: Callable[..., object] | None = None
    scale: str = "inverse"
    quorum: int | None = None
    bound: int | None = None

    def _check(self) -> None:
        check_integer(*self._given("period"), 1)
        if self.centre is not None and not callable(self.centre):
            raise InputTypeError(
                f"rules.Downpour: centre={shown(self.centre)} is not an update rule, such as "
                "functools.partial(updates.momentum, learning_rate=0.5)"
            )
        check_word(*self._given("scale"), ("inverse", "none"))
        or_none(check_integer, *self._given("quorum"), 1)
        or_none(check_integer, *self._given("bound"), 0)
        if self.quorum is not None and self.bound is not None:
            raise InputError("rules.Downpour: use quorum= or bound=, not both")

    @property
    @override
    def beside(self) -> tuple[str, ...]:
        return ("sum",) if self.quorum else ()

    @property
    @override
    def counts(self) -> tuple[str, ...]:
        return ("version", "contributions", "rows") if self.quorum else ()

    @override
    def plan(self, turn: Turn) -> None:
        if self.quorum is None:
            return
        counts = turn.counts
        if counts[_VERSION] > turn.read:
            turn.does, turn.refused = "read", not turn.waiting
            return
        if not turn.waiting:
            counts[_VOTES] += 1
            counts[_ROWS] += turn.rows
        if counts[_VOTES] >= min(self.quorum, turn.present):
            turn.does = "close" if turn.waiting else "contribute and close"
            turn.closes = counts[_ROWS] or 1.0  # steps without rows: their sum is zero or noise
            counts[:] = [counts[_VERSION] + 1, 0.0, 0.0]
        else:
            turn.does, turn.waits = "wait" if turn.waiting else "contribute", True

    @override
    def ready(self, turn: Turn) -> bool:
        assert self.quorum is not None, "members wait for a quorum only"
        version, votes, _ = turn.counts
        return version > turn.read or votes >= min(self.quorum, turn.present)

    @override
    def exchange(self, turn: Turn, w: Vector, own: Vectors, centre: Vectors, new: Vectors) -> None:
        [read] = own
        scale = 1 / max(1, turn.staleness) if self.scale == "inverse" else 1.0
        if turn.does == "exchange" and turn.optimizer is None:
            _add_displacement(w, read, centre[0], new[0], scale)
            return
        if turn.does == "exchange":
            _move(turn, scale * (read - w), centre, new)
        elif turn.does != "read":
            self._vote(turn, w, read, centre, new)
        if not turn.waits:
            w[...] = new[0]
            read[...] = new[0]

    def _vote(self, turn: Turn, w: Vector, read: Vector, centre: Vectors, new: Vectors) -> None:
        c, total, *states = centre
        changed, summed, *made = new
        if "contribute" in turn.does:
            np.add(total, turn.rows * (read - w), out=summed)
        else:
            summed[...] = total
        if turn.closes:
            _move(turn, summed / turn.closes, [c, *states], [changed, *made])
            summed[...] = 0
        else:
            for vector, value in zip([changed, *made], [c, *states], strict=True):
                vector[...] = value


def _move(turn: Turn, displacement: Vector, centre: Vectors, new: Vectors) -> None:
    """Write the new parameters and states of the centre."""
    if turn.optimizer is None:
        np.subtract(centre[0], displacement, out=new[0])
    else:
        turn.optimizer(displacement, centre, new)


@elementwise
def _add_displacement(w: Vector, read: Vector, c: Vector, new: Vector, scale: float) -> None:
    for i in range(w.size):
        changed = c[i] - scale * (read[i] - w[i])
        new[i] = changed
        w[i] = changed
        read[i] = changed
