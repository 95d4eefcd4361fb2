"""The training function of `Nodes`: nodes train apart, each by a free rule, and meet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from pytensor.compile.sharedvalue import SharedVariable

from synkhronos._checks import check_integer
from synkhronos._engine.commands.base import Command
from synkhronos._engine.group import Group
from synkhronos.extensions._apart.free.claims import BatchOrder
from synkhronos.extensions._apart.free.function import FreeFunction
from synkhronos.extensions._apart.nodes.commands import InstallNodes, NodeRound
from synkhronos.extensions._apart.nodes.run import NodesRun
from synkhronos.extensions._rows.batches import Batches
from synkhronos.extensions._step.function import TrainPlan
from synkhronos.rules.nodes import Nodes


class NodesFunction(FreeFunction):
    """A training function whose nodes train apart, each by a free rule, and meet.

    `make_train_function` makes it, with ``rule=`` a `synkhronos.rules.Nodes`. `start` begins a run.
    The variables hold the centre between the nodes.

    Attributes
    ----------
    nodes : Nodes
        The rules, with their numbers for this group.

    Examples
    --------
    >>> import numpy as np, pytensor, pytensor.tensor as pt, synkhronos as synk
    >>> from synkhronos import rules
    >>> from synkhronos.extensions import Batches, make_train_function, updates
    >>> x, w = pt.vector("x", dtype="float64"), pytensor.shared(np.zeros(()), name="w")
    >>> rule = rules.Nodes(inside=rules.Downpour(), between=rules.Average(period=5))
    >>> with synk.Group(2):
    ...     loss = ((w - x) ** 2).mean()
    ...     train = make_train_function(loss, [w], x, None, updates.sgd, 0.1, rule=rule)
    ...     data = train.build_inputs(np.full(100, 2.0))
    ...     with train.start(data, Batches(100, 10), epochs=10) as run:
    ...         rounds = [point.version for point in run.every(rows=500)]
    >>> rounds, bool(abs(w.get_value() - 2) < 0.01)
    ([5, 10], True)
    """

    def __init__(
        self, group: Group, plan: TrainPlan, rule: Nodes, statistics: Sequence[SharedVariable]
    ) -> None:
        comm = group.member.communicator
        self.nodes = rule.for_nodes(comm.home.size, comm.nodes)
        super().__init__(group, plan, self.nodes.inside, statistics)
        self._add_outer(self.nodes.between)
        self._astray = True  # the nodes' centres are to be replaced by the one between them

    def start(self, *args: Any, epochs: int = 1, **kwargs: Any) -> NodesRun:  # type: ignore[override]
        """Let the nodes train, round by round, inside of `NodesRun.wait`.

        Parameters
        ----------
        *args, **kwargs
            The inputs, where those with rows are Data; then the `Batches`.
        epochs : int, at least 1
            Of the batches. The first one may have begun.

        Returns
        -------
        NodesRun

        Raises
        ------
        InputError, InputTypeError
            An argument is wrong. Nothing has changed.
        """
        *given, batches = args or (None,)
        self._check_start(given, kwargs, batches)
        epochs = check_integer(f"{self._function.what}: epochs", epochs, 1)
        order = BatchOrder.of(batches, epochs)

        def round_of(start: int, stop: int) -> tuple[int, float]:
            return self._round(given, kwargs, batches, order, start, stop)

        self._group.check_idle("train.start")
        return NodesRun(
            order,
            self.nodes.between.period * self._group.size,
            round_of,
            batches.restore,
            [*self._moved, *self._statistics],
            self._counts,
        )

    def _round(
        self,
        given: Sequence[Any],
        kwargs: dict[str, Any],
        batches: Batches,
        order: BatchOrder,
        start: int,
        stop: int,
    ) -> tuple[int, float]:
        """Train with these batches, and meet; returns the rows, and the loss over them."""
        group = self._group
        with group.turn("train.start"):
            group.wake()
            group.check_idle("train.start")
            if self._member is not group.member:
                self._install()
                self._astray = True
            self._astray = self._settle() or self._astray
            work = replace(self._assignment(given, kwargs, batches, 1), order=order)
            rules = self.rule, self.nodes.between
            command = NodeRound(self._number, *rules, work, start, stop, self._astray)
            self._astray = True  # if it fails
            found: tuple[int, float] = group.run_in_turn(command, "train.start")
            self._astray = False
        return found

    def _installer(self) -> Callable[[bytes, int], Command]:
        rule = self.nodes.inside
        return lambda packed, number: InstallNodes(packed, number, rule)
