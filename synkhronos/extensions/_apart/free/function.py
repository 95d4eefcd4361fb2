"""The training function of a free rule: members train apart, and never meet."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Generator, Sequence
from dataclasses import replace
from typing import Any, NoReturn

import numpy as np
import pytensor
from pytensor.compile.sharedvalue import SharedVariable

from synkhronos._api.advice import Advised
from synkhronos._checks import check_flag, check_integer, check_seconds, check_word
from synkhronos._engine.group import Group
from synkhronos._engine.process_bound import ProcessBound
from synkhronos._engine.runner import retried
from synkhronos._errors import UnusedWarning
from synkhronos._warnings import log, warn
from synkhronos.extensions._apart.centre_optimizer import ElementwiseRecipe
from synkhronos.extensions._apart.free.commands import BeginRun, InstallFree, TakePart
from synkhronos.extensions._apart.free.run import Run
from synkhronos.extensions._apart.free.start import assignment_of, check_start, refuse_call
from synkhronos.extensions._apart.points import RunEpochs
from synkhronos.extensions._apart.recipe import LocalRecipe
from synkhronos.extensions._apart.variables import OwnVariables
from synkhronos.extensions._step.installed_step import InstalledStep, TrainPlan, set_scalar
from synkhronos.extensions._step.plan_methods import PlanMethods
from synkhronos.extensions._step.step_report import Rows, StepReport
from synkhronos.extensions._step.training_function import TrainingFunction
from synkhronos.rules._base import FreeRule

_NESTEROV = ("nesterov_momentum", "nadam")


class FreeFunction(PlanMethods, TrainingFunction, ProcessBound, Advised):
    """A training function whose members train apart, and exchange by themselves.

    `make_train_function` makes it, with ``rule=`` a free rule of `synkhronos.rules`. `start` begins
    a run.

    Attributes
    ----------
    rule : FreeRule
        With the numbers for this group.
    state : list of SharedVariable
        Also a count of rows and exchanges over all runs.

    Examples
    --------
    >>> import numpy as np, pytensor, pytensor.tensor as pt, synkhronos as synk
    >>> from synkhronos import rules
    >>> from synkhronos.extensions import Batches, make_train_function, updates
    >>> x, w = pt.vector("x", dtype="float64"), pytensor.shared(np.zeros(()), name="w")
    >>> with synk.Group(2):
    ...     train = make_train_function(
    ...         ((w - x) ** 2).mean(), [w], x, None, updates.sgd, 0.1, rule=rules.EASGD(period=4)
    ...     )
    ...     data = train.build_inputs(np.full(100, 2.0))
    ...     with train.start(data, Batches(100, 10), epochs=20) as run:
    ...         points = [point.rows for point in run.every(rows=1000)]
    >>> points[-1], bool(abs(w.get_value() - 2) < 1)  # a member far behind pulls at the end
    (2000, True)
    """

    rule: FreeRule
    repeatable = False

    def __init__(
        self, group: Group, plan: TrainPlan, rule: FreeRule, statistics: Sequence[SharedVariable]
    ) -> None:
        self._planned = made = InstalledStep(group, plan)
        self._own = own = OwnVariables(made, statistics)
        self._at_centre: ElementwiseRecipe | None = None
        self._warned = False
        self._running = RunEpochs()
        name = f"rows and exchanges ({type(rule).__name__})"
        self._counts = pytensor.shared(np.zeros(2, np.int64), name=name)
        self.rule = rule.for_members(group.size)
        self._members_rule = self.rule  # with the recipe of an optimizer, not its callable
        self._of(made, list(made.states), own.settings)
        if rule.centre is not None:
            self._add_optimizer(rule.centre)
        self.state.append(self._counts)

    def _add_optimizer(self, centre: Any) -> None:
        """Make the optimizer at the centre, and its states, which are saved with the centre."""
        what = f"make_train_function: the optimizer at the centre of {self.rule}"
        made = ElementwiseRecipe.of(centre, self._own.moved, what)
        self._at_centre, self._own.outer = made, made.states
        rule: Any = self.rule
        self._members_rule = replace(rule, centre=None)
        states = [*itertools.chain(*made.states), *made.scalars]
        for v in states:
            v.name = f"{v.name} at the centre"
        self.state += states
        self.settings += [v for v in made.settings if v not in self.settings]

    def __repr__(self) -> str:
        what = self._planned.function.what
        return f"<synkhronos.extensions.FreeFunction of {what}, {self.rule}>"

    def __call__(self, *args: object, **kwargs: object) -> NoReturn:
        """Raise: no step is one of all members. Use `start`.

        Raises
        ------
        InputTypeError
        """
        refuse_call(self._planned, self.rule)

    @retried
    def start(
        self,
        *args: Any,
        epochs: int = 1,
        share: str = "claimed",
        least: int = 1,
        stall_warning: float | None = 60.0,
        record: bool = False,
        **kwargs: Any,
    ) -> Run:
        """Let all members train: the workers at once, the master inside of `Run.wait`.

        Parameters
        ----------
        *args, **kwargs
            The inputs, where those with rows are Data; then the `Batches`.
        epochs : int, at least 1
            Of the batches. The first one may have begun.
        share : {"claimed", "fixed"}
            "claimed": a member that is ready takes the next batch, so that each row is used once in
            an epoch at any speeds. "fixed": member r takes every p-th batch. Then the place of a
            stopped run, or of a point, in the Batches is that of the member furthest behind: a run
            that goes on from it uses some rows of the others again.
        least : int
            Members that must be left. If fewer are, the run ends with WorkerDied.
        stall_warning : float, optional
            Seconds without a step, after which a warning names a member.
        record : bool
            Keep a log of all exchanges.

        Returns
        -------
        Run

        Raises
        ------
        InputError, InputTypeError
            An argument is wrong. Nothing has changed.

        Notes
        -----
        Cost: a copy of parameters and states in each member. The first run compiles.
        """
        *given, batches = args or (None,)
        group, made = self.group, self._planned
        check_start(made, given, kwargs, batches)
        what = made.function.what
        epochs = check_integer(f"{what}: epochs", epochs, 1)
        check_word(f"{what}: share", share, ("claimed", "fixed"))
        least = check_integer(f"{what}: least", least, 1, group.size, rest=", of the members")
        stall_warning = check_seconds(f"{what}: stall_warning", stall_warning)
        record = check_flag(f"{what}: record", record)
        with group.runner.reserved("train.start"):
            group.runner.wake()
            group.runner.check_idle("train.start")
            if not made.installed:
                install = functools.partial(InstallFree, rule=self._members_rule)
                made.install(self._own.shared, self._recipe, install)
            self._post_settings()
            fixed = share == "fixed"
            assignment = assignment_of(made, given, kwargs, batches, epochs, fixed, record)
            self._warn_of_the_rule(assignment.order.total)
            free = made.kept
            free.clear()
            for variable, place in free.first.items():
                place[...] = variable.get_value(borrow=True)
            group.runner.run(BeginRun(made.number), "train.start")
            what = f"{what}, {self.rule}"
            started = group.runner.start(TakePart(made.number, assignment), what)
            mine = free.participant(group.member, assignment)

        def post() -> None:
            made.post_leaves(given, kwargs)
            self._post_settings()

        counts = self._counts
        return Run(group, started, free, mine, batches.restore, counts, stall_warning, least, post)

    def _post_settings(self) -> None:
        """Write the scalars of the optimizer at the centre where all members read them."""
        if self._at_centre is not None:
            places = self._planned.kept.settings
            for place, v in zip(places, self._at_centre.settings, strict=True):
                set_scalar(place, v.container.storage[0], self.group.arena)

    def _warn_of_the_rule(self, batches: int) -> None:
        """Warn if members hardly exchange, or may lose their cores in their turns."""
        what, rule, size = self._planned.function.what, self.rule, self.group.size
        if math.isinf(rule.interval):
            warn(f"{what}: with {rule} members never exchange: leave alpha out", UnusedWarning)
        elif size > 1 and rule.interval * size > batches:
            warn(
                f"{what}: {batches} batches are fewer than {rule.interval} for each of {size} "
                "members, so members exchange at their end only: use a shorter period",
                UnusedWarning,
            )
        centre = rule.centre
        while isinstance(centre, functools.partial):
            centre = centre.func
        if self._warned:
            return
        self._warned = True  # else each epoch of a run would tell it again
        if size > 1 and getattr(centre, "__name__", "") in _NESTEROV:
            log.warning(
                "%s: Nesterov's momentum at the centre looks ahead by displacements that are stale "
                "there, and may diverge: use updates.sgd or updates.momentum at the centre",
                what,
            )
        if size > len({core for cores in self.group.cores for core in cores}):
            log.warning(
                "%s: there are more members (%d) than cores, so a member may lose its core in its "
                "turn, and others wait for it",
                *(what, size),
            )

    def _recipe(self) -> LocalRecipe:
        return self._own.recipe(at_centre=self._at_centre)

    def reports(self, feed: Rows, slices: int | str) -> Generator[StepReport]:
        """Let members train to the end of the epoch, or until `stop`."""
        del slices
        return self._running.reports(self.start, feed)

    def stop(self) -> None:
        """Ask the members to stop."""
        self._running.stop()
