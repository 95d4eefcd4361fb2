"""A training function as a Trainer, Checkpoints, and those who show a run know it.

A class for each way of training is derived from `TrainingFunction`, and none from another one. They
compute by `InstalledStep` functions, which are composed and not inherited.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Generator, Sequence
from typing import ClassVar

from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Variable

from synkhronos._api.report import Report
from synkhronos._compiling.graph_types import ModeLike
from synkhronos._engine.group import Group
from synkhronos.extensions._step.installed_step import InstalledStep
from synkhronos.extensions._step.same_rows import SameRows
from synkhronos.extensions._step.step_report import Rows, StepReport, report_of
from synkhronos.rules._base import By, Rule


class TrainingFunction(ABC):
    """The base of what trains."""

    group: Group
    name: str  # its name, or where it was made
    mode: ModeLike  # the compilation mode that it was made with; None: PyTensor's default
    inputs: list[Variable]  # those with rows
    # parameters; states of the update rule; random generators; what else a step reads or changes
    params: list[SharedVariable]
    state: list[SharedVariable]
    streams: list[SharedVariable]
    settings: list[SharedVariable]
    same_rows: SameRows  # looks at the batches of calls
    rule: Rule | None = None  # by which members train apart
    repeatable: ClassVar[bool] = True  # of the class: whether the same calls make the same steps
    # of the class: whether the variables hold what all members train. If not, each member trains
    # values of its own, and `Alternate` brings them together
    one_model: ClassVar[bool] = True
    _measured: Sequence[InstalledStep] = ()  # the functions whose steps have clocks

    def _of(
        self, made: InstalledStep, state: list[SharedVariable], settings: list[SharedVariable]
    ) -> None:
        """Be the training function of one plan."""
        self._measured = (made,)
        self.group = made.group
        self.name = made.function.label
        self.mode = made.plan.function.recipe.mode
        self.inputs = list(made.plan.inputs)
        self.params = list(made.plan.params)
        self.state = state
        self.streams = made.streams
        self.settings = settings
        self.same_rows = made.same_rows

    @abstractmethod
    def reports(self, feed: Rows, slices: int | str) -> Generator[StepReport]:
        """Train on the rest of an epoch, and report what has been done."""

    def take_back(self) -> None:
        """Let the latest step, which its rule has left out, not count: it will be made again."""

    def settle(self) -> None:
        """Give the variables the values to validate and to save."""

    def stop(self) -> None:
        """Ask members that train between two reports to stop."""

    @property
    def on_gpus(self) -> bool:
        """Whether members compute on GPUs, with the variables' values there."""
        return False

    @property
    def compiled(self) -> bool:
        """Whether a step has been made, so that the next one need not compile."""
        return all(made.function.shipped for made in self._measured)

    @property
    def size(self) -> int:
        """The number of members."""
        return self.group.size

    @property
    def counts_batches_by(self) -> By:
        """Whether a batch is of all members together ("group"), or of one ("member")."""
        return "group" if self.rule is None else self.rule.counts_batches_by

    @property
    def graphs(self) -> list[tuple[list[Variable], list[Variable]]]:
        """Of each function of all rows: its inputs, and the loss and the outputs."""
        return [made.graph for made in self._measured]

    @property
    def by_node(self) -> list[SharedVariable]:
        """The states that have a row for each node."""
        return []

    def collect(self) -> None:
        """Bring the rows of `by_node` from the other nodes to the master's variables."""

    def seconds(self) -> dict[str, list[float]]:
        """The seconds that each member has spent in each phase of all steps so far.

        Phases: scatter (rows of the inputs), compute (outputs and gradients), copy (gradients that
        other members read), wait (for others), reduce (norms and other totals), update (reduce the
        gradients and update). The first step is not counted, since it compiles. `report` shows
        them as a table, for the latest steps.
        """
        found: dict[str, list[float]] = {}
        for made in self._measured:
            for phase, times in made.seconds().items():
                # workers have no clocks yet of a function that has made no step
                pairs = itertools.zip_longest(found.get(phase, ()), times, fillvalue=0.0)
                found[phase] = [a + b for a, b in pairs]
        return found

    def report(self) -> Report:
        """Where the time of the steps since the previous report went, and what binds.

        Steps are always measured. The first one is not counted, since it compiles.

        Returns
        -------
        Report
            A table and a sentence; ``show()`` prints them, ``as_dict()`` gives plain numbers.

        Raises
        ------
        InputError
            No step has been counted yet.

        Examples
        --------
        >>> import numpy as np, pytensor, pytensor.tensor as pt, synkhronos as synk
        >>> from synkhronos.extensions import make_train_function, updates
        >>> x, w = pt.vector("x", dtype="float64"), pytensor.shared(np.zeros(()), name="w")
        >>> with synk.Group(1):
        ...     train = make_train_function(
        ...         ((w - x) ** 2).mean(), [w], x, None, updates.sgd, 0.5, name="train"
        ...     )
        ...     for _ in range(11):
        ...         loss = train([1.0, 3.0])
        >>> train.report()
        function train: 10 calls of 2 rows in 1 member; milliseconds of a call
        ...
        """
        return report_of(self._measured, self.name)
