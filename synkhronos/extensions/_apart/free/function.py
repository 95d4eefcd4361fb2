"""The training function of a free rule: members train apart, and never meet."""

from __future__ import annotations

import functools
import itertools
import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytensor
from pytensor.compile.sharedvalue import SharedVariable

from synkhronos._checks import check_flag, check_integer, check_seconds, check_word, shown
from synkhronos._engine.commands.base import Command
from synkhronos._engine.group import Group, retried
from synkhronos._errors import InputError, InputTypeError, UnusedWarning
from synkhronos._warnings import warn
from synkhronos.extensions._apart.centre_optimizer import ElementwiseRecipe
from synkhronos.extensions._apart.free.claims import BatchOrder
from synkhronos.extensions._apart.free.commands import BeginRun, InstallFree, Rehearse, TakePart
from synkhronos.extensions._apart.free.participant import Assignment
from synkhronos.extensions._apart.free.run import Run
from synkhronos.extensions._apart.function import ApartFunction
from synkhronos.extensions._rows.batches import Batches
from synkhronos.extensions._step.function import TrainPlan
from synkhronos.extensions._step.install import set_scalar
from synkhronos.rules._base import FreeRule

log = logging.getLogger("synkhronos")

_NESTEROV = ("nesterov_momentum", "nadam")


class FreeFunction(ApartFunction):
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

    def __init__(
        self,
        group: Group,
        plan: TrainPlan,
        rule: FreeRule | None,
        statistics: Sequence[SharedVariable],
    ) -> None:
        super().__init__(group, plan, statistics)
        self.rule: Any = rule and rule.for_members(group.size)
        self._members_rule: Any = self.rule  # with the recipe of an optimizer, not its callable
        self._at_centre: ElementwiseRecipe | None = None
        self._warned = False
        if rule is not None and rule.centre is not None:
            self._add_optimizer()
        name = f"rows and exchanges ({type(rule).__name__})"
        self._counts = pytensor.shared(np.zeros(2, np.int64), name=name)
        self.state.append(self._counts)

    def _add_optimizer(self) -> None:
        """Make the optimizer at the centre, and its states, which are saved with the centre."""
        what = f"make_train_function: the optimizer at the centre of {self.rule}"
        made = ElementwiseRecipe.of(self.rule.centre, self._moved, what)
        self._at_centre, self._outer = made, made.states
        self._members_rule = replace(self.rule, centre=None)
        states = [*itertools.chain(*made.states), *made.scalars]
        for v in states:
            v.name = f"{v.name} at the centre"
        self.state += states
        self.settings += [v for v in made.settings if v not in self.settings]

    def __repr__(self) -> str:
        return f"<synkhronos.extensions.FreeFunction of {self._function.what}, {self.rule}>"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Raise: members step by themselves."""
        raise InputError(
            f"train: {self.rule} has no step of all members: call "
            "train.start(x_data, y_data, batches, epochs=...)"
        )

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
            an epoch at any speeds. "fixed": member r takes every p-th batch.
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
        group = self._group
        self._check_start(given, kwargs, batches)
        what = self._function.what
        epochs = check_integer(f"{what}: epochs", epochs, 1)
        check_word(f"{what}: share", share, ("claimed", "fixed"))
        least = check_integer(f"{what}: least", least, 1, group.size, rest=", of the members")
        stall_warning = check_seconds(f"{what}: stall_warning", stall_warning)
        record = check_flag(f"{what}: record", record)
        with group.turn("train.start"):
            group.wake()
            group.check_idle("train.start")
            if self._member is not group.member:
                self._install()
            assignment = self._assignment(given, kwargs, batches, epochs, share == "fixed", record)
            self._warn_of_the_rule(assignment.order.total)
            free = self._update
            free.clear()
            for variable, place in free.first.items():
                place[...] = variable.get_value(borrow=True)
            group.run_in_turn(BeginRun(self._number), "train.start")
            rule = self._members_rule
            what = f"{self._function.what}, {self.rule}"
            started = group.start_in_turn(TakePart(self._number, rule, assignment), what)
            mine = free.participant(group.member, rule, assignment)
        post = functools.partial(self._post_leaves, given, kwargs)
        counts = self._counts
        return Run(group, started, free, mine, batches.restore, counts, stall_warning, least, post)

    def _assignment(
        self,
        given: Sequence[Any],
        kwargs: dict[str, Any],
        batches: Batches,
        epochs: int,
        fixed: bool = False,
        record: bool = False,
    ) -> Assignment:
        """What members do in a run; they have compiled it, and have all values that it needs."""
        group = self._group
        rows = np.arange(min(batches.n, batches.size * group.size))
        call = self._function.make(given, kwargs, batch=rows)
        if call.first or call.new is not None:
            with self._function.telling():
                group.run_in_turn(Rehearse(call), "train.start")
            self._function.compiled(call)
            call = self._function.make(given, kwargs, batch=rows)
        self._post_leaves(given, kwargs)
        average, order = self._plan.goal.average, BatchOrder.of(batches, epochs)
        return Assignment(call, average, self._partials, order, fixed, record)

    def _post_leaves(self, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        super()._post_leaves(args, kwargs)
        if self._at_centre is not None:
            places = self._update.settings
            for place, v in zip(places, self._at_centre.settings, strict=True):
                set_scalar(place, v.container.storage[0], self._group.arena)

    def _check_start(self, args: Sequence[Any], kwargs: dict[str, Any], batches: Any) -> None:
        what = self._function.what
        self._group.check("train.start")
        if not isinstance(batches, Batches):
            raise InputTypeError(
                f"{what}: start() takes the inputs, then the Batches, found {shown(batches)}"
            )
        given = self._function.arguments.bind(args, kwargs)
        for variable, value in self._check_data(given, "start()"):
            if len(value) < batches.n:
                raise InputError(
                    f"{what}: {variable} has {len(value)} rows, the batches are of {batches.n}"
                )

    def _warn_of_the_rule(self, batches: int) -> None:
        """Warn if members hardly exchange, or may lose their cores in their turns."""
        what, rule, size = self._function.what, self.rule, self._group.size
        if math.isinf(rule.interval):
            warn(f"{what}: with {rule} members never exchange: leave alpha out", UnusedWarning)
        elif size > 1 and rule.interval * size > batches:
            warn(
                f"{what}: {batches} batches are fewer than {rule.interval} for each of {size} "
                "members, so "
                "members exchange at their end only: use a shorter period",
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
        if size > len({core for cores in self._group.cores for core in cores}):
            log.warning(
                "%s: there are more members (%d) than cores, so a member may lose its core in its "
                "turn, and others wait for it",
                *(what, size),
            )

    def _installation(self) -> tuple[Any, Callable[[bytes, int], Command]]:
        recipe = replace(self._local_recipe({}), at_centre=self._at_centre)
        return recipe, self._installer()

    def _installer(self) -> Callable[[bytes, int], Command]:
        rule = self._members_rule
        return lambda packed, number: InstallFree(packed, number, rule)
