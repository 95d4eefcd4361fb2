"""The training function of `Nodes`: nodes train apart, each by a free rule, and meet."""

from __future__ import annotations

import functools
from collections.abc import Generator, Sequence
from dataclasses import replace
from typing import Any, NoReturn

import numpy as np
import pytensor
from pytensor.compile.sharedvalue import SharedVariable

from synkhronos._api.advice import Advised
from synkhronos._checks import check_integer
from synkhronos._engine.group import Group
from synkhronos._engine.process_bound import ProcessBound
from synkhronos.extensions._apart.free.claims import BatchOrder
from synkhronos.extensions._apart.free.start import assignment_of, check_start, refuse_call
from synkhronos.extensions._apart.nodes.commands import InstallNodes, NodeRound
from synkhronos.extensions._apart.nodes.run import NodesRun
from synkhronos.extensions._apart.points import RunEpochs
from synkhronos.extensions._apart.variables import OwnVariables
from synkhronos.extensions._rows.batches import Batches
from synkhronos.extensions._step.installed_step import InstalledStep, TrainPlan
from synkhronos.extensions._step.plan_methods import PlanMethods
from synkhronos.extensions._step.step_report import Rows, StepReport
from synkhronos.extensions._step.training_function import TrainingFunction
from synkhronos.rules.nodes import Nodes


class NodesFunction(PlanMethods, TrainingFunction, ProcessBound, Advised):
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

    rule: Nodes
    repeatable = False

    def __init__(
        self, group: Group, plan: TrainPlan, rule: Nodes, statistics: Sequence[SharedVariable]
    ) -> None:
        comm = group.member.communicator
        self._planned = made = InstalledStep(group, plan)
        self._own = own = OwnVariables(made, statistics)
        self._running = RunEpochs()
        self._astray = True  # the nodes' centres are to be replaced by the one between them
        self.nodes = self.rule = rule.for_nodes(comm.home.size, comm.nodes)
        name = f"rows and exchanges ({type(self.nodes.inside).__name__})"
        self._counts = pytensor.shared(np.zeros(2, np.int64), name=name)
        state = [*made.states, self._counts, *own.add_outer(self.nodes.between)]
        self._of(made, state, own.settings)

    def __repr__(self) -> str:
        what = self._planned.function.what
        return f"<synkhronos.extensions.NodesFunction of {what}, {self.nodes}>"

    def __call__(self, *args: object, **kwargs: object) -> NoReturn:
        """Raise: no step is one of all members. Use `start`.

        Raises
        ------
        InputTypeError
        """
        refuse_call(self._planned, self.nodes)

    def start(self, *args: Any, epochs: int = 1, **kwargs: Any) -> NodesRun:
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
        made = self._planned
        check_start(made, given, kwargs, batches)
        epochs = check_integer(f"{made.function.what}: epochs", epochs, 1)
        order = BatchOrder.of(batches, epochs)

        def round_of(start: int, stop: int) -> tuple[int, float]:
            return self._round(given, kwargs, batches, order, start, stop)

        self.group.runner.check_idle("train.start")
        together = self.nodes.inside is None  # a step is one of all members of the node
        each = self.group.member.communicator.nodes if together else self.group.size
        return NodesRun(
            order,
            self.nodes.between.period * each,
            round_of,
            batches.restore,
            [*self._own.moved, *self._own.statistics],
            self._counts,
        )

    def _round(
        self,
        given: Sequence[object],
        kwargs: dict[str, object],
        batches: Batches,
        order: BatchOrder,
        start: int,
        stop: int,
    ) -> tuple[int, float]:
        """Train with these batches, and meet; returns the rows, and the loss over them."""
        group, made, nodes = self.group, self._planned, self.nodes
        with group.runner.reserved("train.start"):
            group.runner.wake()
            group.runner.check_idle("train.start")
            if not made.installed:
                install = functools.partial(InstallNodes, inside=nodes.inside)
                made.install(self._own.shared, self._own.recipe, install)
                self._astray = True
            self._astray = made.settle() or self._astray
            work = replace(assignment_of(made, given, kwargs, batches, 1), order=order)
            command = NodeRound(made.number, nodes.between, work, start, stop, self._astray)
            self._astray = True  # if it fails
            found: tuple[int, float] = group.runner.run(command, "train.start")
            self._astray = False
        return found

    def reports(self, feed: Rows, slices: int | str) -> Generator[StepReport]:
        """Let nodes train to the end of the epoch, or until `stop`."""
        del slices
        return self._running.reports(self.start, feed)

    def stop(self) -> None:
        """Ask the nodes to stop."""
        self._running.stop()
