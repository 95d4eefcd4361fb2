"""The training function of a round rule: members train apart, and all meet after each period."""

# These rules hold here:
#
# * Between meetings the variables show the centre of the last one. Members' own values reach the
#   user only by a meeting.
# * `_since` counts the steps since the last meeting, and only those that all members have made. So
#   does `_progress`, which checkpoints hold. A step that was undone counts in neither.
# * `_astray` says that the members' own values are void, and `_without_states` that their states
#   are. They are set at the start, after a step of the warm-up, after a failure among steps, and
#   when the user sets a variable. Only `Begin`, which the next step sends first, unsets them.
# * A meeting that is due is held at the end of a step. If it fails before it has changed the
#   centre, it is held before the next step.
# * A meeting without steps before it does not apply the rule: it would move the centre on twice.
# * A number that the user sets holds from the next meeting on, for all members alike.

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import pytensor
from pytensor.compile.sharedvalue import SharedVariable

from synkhronos._api.advice import Advised
from synkhronos._api.request import Request
from synkhronos._checks import check_integer, shown
from synkhronos._engine.commands.call import Call
from synkhronos._engine.group import Group
from synkhronos._engine.process_bound import ProcessBound
from synkhronos._engine.runner import retried
from synkhronos._engine.variables import watch
from synkhronos._errors import InputTypeError
from synkhronos._warnings import log
from synkhronos.extensions._apart.recipe import LocalRecipe
from synkhronos.extensions._apart.rounds.commands import (
    Begin,
    InstallLocal,
    LocalStep,
    LocalSteps,
    Meet,
)
from synkhronos.extensions._apart.variables import OwnVariables
from synkhronos.extensions._step.function import TrainFunction
from synkhronos.extensions._step.installed_step import InstalledStep, TrainPlan
from synkhronos.extensions._step.plan_methods import PlanMethods
from synkhronos.extensions._step.step_report import Rows, StepReport, steps_of
from synkhronos.extensions._step.training_function import TrainingFunction
from synkhronos.rules._base import RoundRule

_STEPS, _MEETINGS = 0, 1


class RoundFunction(PlanMethods, TrainingFunction, ProcessBound, Advised):
    """A training function whose members train apart and meet after each period of the rule.

    `make_train_function` makes it, with ``rule=`` a round rule of `synkhronos.rules`. Between
    meetings, the variables hold the values of the last meeting: the centre. `state` also contains
    the rule's own vectors, and a count of steps and meetings.

    Attributes
    ----------
    rule : RoundRule
        With the numbers for this group.

    Examples
    --------
    >>> import numpy as np, pytensor, pytensor.tensor as pt, synkhronos as synk
    >>> from synkhronos import rules
    >>> from synkhronos.extensions import make_train_function, updates
    >>> x, w = pt.vector("x", dtype="float64"), pytensor.shared(np.zeros(()), name="w")
    >>> with synk.Group(2):
    ...     train = make_train_function(
    ...         ((w - x) ** 2).mean(), [w], x, None, updates.sgd, 0.25, rule=rules.Average(2)
    ...     )
    ...     for _ in range(3):
    ...         loss = train(np.array([1.0, 3.0]))
    ...     w.get_value()
    array(1.5)
    """

    rule: RoundRule

    def __init__(
        self,
        group: Group,
        plan: TrainPlan,
        rule: RoundRule,
        statistics: Sequence[SharedVariable],
        warm: TrainFunction | None,
    ) -> None:
        command_of = functools.partial(_local_step, plan.goal.average, plan.partials)
        self._planned = made = InstalledStep(group, plan, command_of)
        self._own = own = OwnVariables(made, statistics)
        self._warm = warm
        kind = type(rule).__name__
        self._progress = pytensor.shared(np.zeros(2, np.int64), name=f"steps and meetings ({kind})")
        self.rule = rule.for_members(group.size)
        self._of(made, [*made.states, *own.add_outer(rule), self._progress], own.settings)
        counts = [v for v, _ in plan.partition.states]
        held = [v for v in (*own.everything, *counts) if v not in own.moved]
        self._first = (
            {v: np.array(v.get_value(borrow=True)) for v in held} if rule.policy == "reset" else {}
        )
        self._held = held
        self._kept = rule.policy == "keep" and bool(held)
        self._counts = [watch(v) for v in counts]
        self._since = 0  # steps since the last meeting
        self._astray = True  # the members' own values are to be replaced by the centre's
        self._without_states = True  # so are their states, even if the rule keeps them

    def __repr__(self) -> str:
        what = self._planned.function.what
        return f"<synkhronos.extensions.RoundFunction of {what}, {self.rule}>"

    @retried
    def __call__(
        self,
        *args: object,
        batch: object = None,
        num_slices: int | str = 1,
        timeout: float | None = None,
        **kwargs: object,
    ) -> Any:
        """Make one step in each member, on its own values; after a period, all meet.

        Parameters and result are those of `TrainFunction`. The loss is that of the members' own
        values, over all rows. A member whose part of the batch is empty makes no step.

        Raises
        ------
        InputError
            An argument is wrong. No value has changed.
        WorkerError
            A member raised. If it did so while it computed, no value has changed.
        WorkerDied
            The members' steps since the last meeting are lost. With `max_restarts`, training goes
            on from there.
        StateTorn
            An earlier meeting failed while it changed the centre.

        Notes
        -----
        Cost: one round. No parameter and no gradient leaves a member. A meeting is one more round.
        On GPUs, a meeting copies the member's parameters to the host's memory and back; the states
        too, unless members keep them.
        """
        asked = self._planned.request(args, kwargs, batch, num_slices)
        with self.group.runner.reserved("train", timeout):
            return self._step(asked)

    def _step(self, asked: Request) -> object:
        if self._warming():
            assert self._warm is not None
            value = self._warm.step_reserved(asked)
            self._count(1, 0)
            self._astray = self._without_states = True
            return value
        self._prepare(asked.args, asked.kwargs)
        with self._stepping():
            found = self._planned.call(asked)
        self._meet_if_due()
        return found

    def steps(self, *args: Any, n: int | None = None, timeout: float | None = None) -> Any:
        """Make many steps, a period in one command, so that members wait once in a period.

        Parameters
        ----------
        *args
            The inputs, where those with rows are Data; then the batches: a list, or an iterator
            such as ``iter(Batches(...))``, which goes on where it is; then `n`.
        n : int, optional
            How many steps; fewer if the batches end. Default: up to the next meeting.
        timeout : float, optional
            As for a call, for all these steps.

        Returns
        -------
        numpy.ndarray, or list of lists
            The loss of each step. With outputs, for each step a list of the loss and these.

        Raises
        ------
        InputError, InputTypeError
            An argument is wrong. Batches that were taken from an iterator are not put back.
        WorkerError
            A member raised. If it did so while it computed, the steps since the last meeting in
            this call are undone.
        WorkerDied, StateTorn
            As for a call. After a restart, the steps of the current period in this call are made
            again, with the same batches.

        Notes
        -----
        Cost: for each period one round, one copy of each member's values, and a meeting. The lists
        of rows of a period travel in one message. On GPUs, only what lies there is copied, there.

        Examples
        --------
        >>> import numpy as np, pytensor, pytensor.tensor as pt, synkhronos as synk
        >>> from synkhronos import rules
        >>> from synkhronos.extensions import Batches, make_train_function, updates
        >>> x, w = pt.vector("x", dtype="float64"), pytensor.shared(np.zeros(()), name="w")
        >>> with synk.Group(2):
        ...     train = make_train_function(
        ...         ((w - x) ** 2).mean(), [w], x, None, updates.sgd, 0.25, rule=rules.Average(2)
        ...     )
        ...     data = train.build_inputs(np.arange(8.0))
        ...     train.steps(data, iter(Batches(8, 4)), 2).shape
        (2,)
        """
        if len(args) == self._planned.n_inputs + 2 and n is None:
            *args_, n = args
            args = tuple(args_)
        if len(args) != self._planned.n_inputs + 1:
            raise InputTypeError(
                f"{self._planned.function.what}: steps() takes {self._planned.n_inputs} inputs, "
                f"the batches and the number of steps, found {len(args)} arguments"
            )
        *given, batches = args
        rows = _iterated(batches)
        left = self._to_meeting() if n is None else check_integer("steps: n", n, 1)
        found: list[object] = []
        with self.group.runner.reserved("train.steps", timeout):
            self._planned.data_of(given, "steps()")
            while left:
                taken = list(itertools.islice(rows, min(left, self._room())))
                if not taken:
                    break
                found += self._steps(given, taken)
                left -= len(taken)
        return np.array(found) if self._planned.plan.n_outputs == 1 else found

    @retried
    def meet(self, timeout: float | None = None) -> None:
        """Meet now: the variables get the centre that follows from all steps so far.

        Variables of the optimizer's states get the mean of the members' states, weighted by rows.
        Call it before values are saved or used. If the user has set one of the variables since the
        last step, there is no meeting: all members go on from the values of the variables. Right
        after a meeting, only the states are averaged.

        Raises
        ------
        StateTorn
            A meeting failed while it changed the centre.

        Notes
        -----
        Cost: one round. Parameters and states of every member are read once.
        """
        group = self.group
        with group.runner.reserved("train.meet", timeout):
            group.runner.wake()
            group.runner.check_idle("train.meet")
            if not self._planned.installed or self._warming():
                return
            self._adopt_settings()
            if not self._astray and (self._since or self._kept):
                self._meet(publish=True)

    def set(self, **numbers: object) -> None:
        """Change numbers of the rule, such as ``lr=0.5``, from the next meeting on.

        Raises
        ------
        InputError, InputTypeError
            The rule has no such number, or the value is out of range.
        """
        self.rule = self.rule.with_numbers(numbers).for_members(self.group.size)

    def _to_meeting(self) -> int:
        """Steps until the next meeting, or, if one is due before the next step, in a period."""
        left = self.rule.period - self._since
        return left if left > 0 else self.rule.period

    def _room(self) -> int:
        """Steps that one command can make: until the next meeting."""
        return 1 if self._warming() else self._to_meeting()

    @retried
    def _steps(self, given: Sequence[object], batches: list[object]) -> list[object]:
        """Make these steps; they do not go beyond the next meeting."""
        if self._warming() or not self.compiled or not self._planned.installed:
            first, *rest = batches  # a call of its own compiles
            made = self._step(Request(given, batch=first))
            return [made, *(self._steps(given, rest) if rest else ())]
        self._prepare(given, {})
        calls = self._calls(given, batches)
        made = self._planned
        average = made.plan.goal.average
        command = LocalSteps(calls, made.number, average, made.partials)
        telling = self._planned.function.telling() if any(c.first for c in calls) else nullcontext()
        with self._stepping(), telling:
            answers = self.group.runner.run(command, "train.steps")
        found = []
        for call, values in zip(calls, answers, strict=True):
            self._planned.function.compiled(call)
            found.append(self._planned.function.returned(call, values))
        self._meet_if_due()
        return [values[0] if len(values) == 1 else values for values in found]

    def _calls(self, given: Sequence[object], batches: list[object]) -> tuple[Call, ...]:
        """The calls of several steps; the first one carries what the user has set."""
        first, *rest = [self._planned.function.make(Request(given, batch=rows)) for rows in batches]
        if first.new is not None:
            rest = [replace(c, new=None, pure=self._planned.function.plan.pure) for c in rest]
        return (first, *rest)

    def _warming(self) -> bool:
        warmup = self.rule.warmup
        return bool(warmup and self._progress.container.storage[0][_STEPS] < warmup)

    def _prepare(self, args: Sequence[object], kwargs: Mapping[str, object]) -> None:
        """See to it that all members have the function, and values to go on from."""
        group = self.group
        group.runner.wake()
        group.runner.check_idle("train")
        made = self._planned
        if not made.installed:
            self._forget()
            made.install(self._own.shared, self._recipe, InstallLocal)
            self._states = [entry for entry, _ in made.entries if entry.variable in self._held]
        self._adopt_settings()
        made.post_leaves(args, kwargs)
        if self._astray:
            states = self._without_states or not self._kept
            group.runner.run(Begin(self._planned.number, states), "train")
            self._astray = self._without_states = False
            if self._kept:
                group.member.held.own_values[self._planned.number] = (
                    f"the members' own optimizer states of {self._planned.function.what}"
                )
        self._meet_if_due()

    def _adopt_settings(self) -> None:
        """Note if the user has set variables: the members go on from the values of all."""
        counted = any([entry.is_set for entry in self._counts])
        states = counted or any([entry.is_set for entry in self._states])
        if self._planned.settle() or counted:
            self._astray, self._since = True, 0
            self._without_states = self._without_states or states
            self._note_counts()

    def _note_counts(self) -> None:
        for entry in self._counts:
            entry.seen = entry.storage[0]

    def _forget(self) -> None:
        """Note that the members begin at the last meeting again."""
        if self._since:
            log.warning(
                "%s: the steps since the last meeting (%d) are lost; training goes on from that "
                "meeting",
                self._planned.function.what,
                self._since,
            )
        self._astray, self._without_states, self._since = True, True, 0

    @contextlib.contextmanager
    def _stepping(self) -> Iterator[None]:
        """A context for steps: it counts those that all members have made, also before Ctrl-C."""
        before = self._planned.kept.steps
        try:
            yield
        except BaseException as exc:
            self._planned.kept.hide()
            if self._planned.kept.steps != before and not isinstance(exc, KeyboardInterrupt):
                self._forget()  # some member may have failed while it changed its values
                before = self._planned.kept.steps
            raise
        finally:
            made = self._planned.kept.steps - before
            if made:
                self._since += made
                self._count(made, 0)

    def _meet_if_due(self) -> None:
        """Meet after a period; also if an earlier attempt has failed before it changed values."""
        if self._since >= self.rule.period:
            self._meet()

    def _meet(self, publish: bool = False) -> None:
        meetings = int(self._progress.container.storage[0][_MEETINGS])
        rule = self.rule if self._since else None  # a second meeting would move the centre on
        before = self._planned.kept.meetings
        try:
            self.group.runner.run(Meet(self._planned.number, rule, meetings, publish), "train.meet")
        finally:
            if self._planned.kept.meetings != before:
                self._since = 0
                self._count(0, int(rule is not None))
                self._note_counts()

    def _count(self, steps: int, meetings: int) -> None:
        done = self._progress.container.storage[0]
        done[_STEPS] += steps
        done[_MEETINGS] += meetings

    def _recipe(self) -> LocalRecipe:
        return self._own.recipe(self._first)

    def reports(self, feed: Rows, slices: int | str) -> Generator[StepReport]:
        """Make a step of each batch of the rest of an epoch."""
        return steps_of(functools.partial(self, num_slices=slices), feed)

    def settle(self) -> None:
        """Meet, so that the variables have the centre's values."""
        self.meet()


def _local_step(average: bool, partials: tuple[tuple[int, bool], ...], call: Call) -> LocalStep:
    return LocalStep(call, call.function, average, partials)


def _iterated(batches: object) -> Iterator[object]:
    if not isinstance(batches, Iterable):
        raise InputTypeError(
            f"steps: the batches are a list or an iterator, found {shown(batches)}"
        )
    if not isinstance(batches, Iterator) and not isinstance(batches, Sequence | np.ndarray):
        raise InputTypeError(
            f"steps: {shown(batches)} begins anew with each call: pass an iterator, as in "
            "rows = iter(batches)"
        )
    return iter(batches)
