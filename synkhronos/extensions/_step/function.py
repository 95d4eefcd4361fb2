"""The training function of members that train together: a call is one step of all."""

from __future__ import annotations

import functools
from collections.abc import Generator
from typing import Any

import numpy as np
import pytensor
from pytensor.compile.sharedvalue import SharedVariable

from synkhronos._api.advice import Advised
from synkhronos._api.request import Request
from synkhronos._engine.commands.call import Call
from synkhronos._engine.group import Group
from synkhronos._engine.process_bound import ProcessBound
from synkhronos._engine.runner import retried
from synkhronos.extensions._step.commands import CollectResiduals, InstallUpdate, LinkNodes
from synkhronos.extensions._step.exchanges import HalfPrecision, TopK
from synkhronos.extensions._step.flat import lay_out, shapes_of
from synkhronos.extensions._step.installed_step import InstalledStep, TrainPlan
from synkhronos.extensions._step.plan_methods import PlanMethods
from synkhronos.extensions._step.resident import InstallResidentUpdate, ResidentStep
from synkhronos.extensions._step.sparse import residuals_of
from synkhronos.extensions._step.step_report import Rows, StepReport, steps_of
from synkhronos.extensions._step.training_function import TrainingFunction
from synkhronos.extensions._step.update import Step


class TrainFunction(PlanMethods, TrainingFunction, ProcessBound, Advised):
    """A training step of all members; made by `make_train_function`.

    Attributes
    ----------
    inputs : list of Variable
        Those with rows: x and y.
    params : list of SharedVariable
        The parameters that are trained.
    state : list of SharedVariable
        The update rule's states.
    streams : list of SharedVariable
        The random generators that the loss draws from.
    settings : list of SharedVariable
        What else a step reads or updates: shared scalars of the rule, such as a learning rate, and
        other shared variables of the loss, the outputs and `updates`.

    Examples
    --------
    >>> import numpy as np, pytensor, pytensor.tensor as pt, synkhronos as synk
    >>> from synkhronos.extensions import make_train_function, updates
    >>> x, w = pt.vector("x", dtype="float64"), pytensor.shared(np.zeros(()), name="w")
    >>> with synk.Group(1):
    ...     train = make_train_function(
    ...         ((w - x) ** 2).mean(), [w], x, None, updates.sgd, 0.5, mode="FAST_COMPILE"
    ...     )
    ...     train.gradients([1.0, 3.0]), train([1.0, 3.0]), train.params
    ([array(-4.)], array(5.), [w])
    """

    def __init__(self, group: Group, plan: TrainPlan) -> None:
        jax, average = plan.function.recipe.jax, plan.goal.average
        command_of = functools.partial(_step_of, group, jax, average, plan.partials)
        self._planned = made = InstalledStep(group, plan, command_of)
        self._exchange_states = _states_of(plan, group)
        self._linked = False  # the nodes' summing processes are connected
        self._of(made, [*made.states, *self._exchange_states], made.settings)

    def __repr__(self) -> str:
        what = self._planned.function.what
        return f"<synkhronos.extensions.TrainFunction of {what} in {self.group!r}>"

    @property
    def on_gpus(self) -> bool:
        """Whether members compute on GPUs."""
        return self._planned.resident

    @property
    def by_node(self) -> list[SharedVariable]:
        """The states that have a row for each node: residuals of `TopK`."""
        sparse = isinstance(self._planned.plan.exchange, TopK)
        return list(self._exchange_states) if sparse else []

    def collect(self) -> None:
        """Bring the rows of `by_node` from the other nodes to the master's variables.

        `Checkpoints` call it before they save. Without `TopK`, and on one node, nothing moves.

        Notes
        -----
        Cost: on several nodes one round; each node receives the residuals of all others.
        """
        group, made = self.group, self._planned
        if self.by_node and group.member.communicator.nodes > 1 and made.installed:
            group.run(CollectResiduals(made.number), "train.collect")

    @retried
    def __call__(
        self,
        *args: object,
        batch: object = None,
        num_slices: int | str = 1,
        timeout: float | None = None,
        **kwargs: object,
    ) -> Any:
        """Make one step.

        Parameters
        ----------
        *args, **kwargs
            The inputs, as for a function: Data, numpy arrays or scalars, in order or by name.
            ``x_data`` and ``y_data`` name x and y, too.
        batch : optional
            Rows to use, as for a function; also by position, after all inputs. An integer means
            the first rows; ten such calls in a row on the same inputs raise a BatchWarning.
        num_slices : int or "auto"
            Micro-batches: each member computes its gradient in this many slices.
        timeout : float, optional
            Seconds that the master waits for other members; compiling does not count. Default:
            the group's.

        Returns
        -------
        object
            The loss over all rows, before the update; with outputs, a list of the loss and these.

        Raises
        ------
        InputError
            An argument is wrong, or a parameter's values differ between members. No value has
            changed.
        WorkerError
            A member raised. If it did so while it computed, no value has changed.
        GroupError
            With ``overlap=True``: a process that adds up between nodes has ended. No value has
            changed, and the next step starts another one.
        StateTorn
            An earlier step failed in the middle of its update.

        Notes
        -----
        Cost: one round. Each member writes its gradients once, reads its chunk of all members'
        gradients, and writes its chunk of parameters and states. Between nodes, leaders send what
        `exchange` says: by default each element once, and its sum.
        """
        asked = self._planned.request(args, kwargs, batch, num_slices)
        with self.group.runner.reserved("train", timeout):
            return self.step_reserved(asked)

    def step_reserved(self, asked: Request) -> object:
        """As a call, while the runner is reserved."""
        group, made = self.group, self._planned
        group.runner.wake()
        group.runner.check_idle("train")
        if not made.installed:
            self._linked = False
            self._install()
        # in each step: the user may have set a parameter, or a command have parted the members
        made.settle()
        # beside the command, so that this stays the same object and travels as a number
        made.post_leaves(asked.args, asked.kwargs)
        if not made.plan.order:
            return made.call(asked)
        if not self._linked:
            group.runner.run(LinkNodes(made.number), "train")
            self._linked = True
        before = group.channel.number
        try:
            return made.call(asked)
        except BaseException:  # after a command, what is under way belongs to no step
            self._linked = group.channel.number == before
            raise

    def reports(self, feed: Rows, slices: int | str) -> Generator[StepReport]:
        """Make a step of each batch of the rest of an epoch."""
        return steps_of(functools.partial(self, num_slices=slices), feed)

    def _install(self) -> None:
        """Make the parameters, states and update known to all members."""
        made = self._planned
        plan, recipe = made.plan, made.plan.function.recipe
        if made.resident:
            variables = [v for v, _ in plan.rule.updates]
            in_place = functools.partial(plan.rule.recipe, recipe.mode, recipe.config)
            made.install(variables, in_place, InstallResidentUpdate)
            return
        units = plan.partition.units
        shared = [*(v for unit in units for v in unit.everything), *self._exchange_states]
        members = self.group.member.communicator.home.size
        how = recipe.mode, recipe.config, plan.exchange, self._exchange_states, plan.order
        shapes = shapes_of(plan.partition)
        shapes |= {v: v.get_value(borrow=True).shape for v in self._exchange_states}
        flat = functools.partial(lay_out, plan.partition, shapes, members, *how)
        made.install(shared, flat, InstallUpdate)


def _states_of(plan: TrainPlan, group: Group) -> tuple[SharedVariable, ...]:
    """The variables of what an exchange keeps from step to step."""
    if isinstance(plan.exchange, TopK):
        return residuals_of(plan.params, plan.partition, group.member.communicator.nodes)
    if isinstance(plan.exchange, HalfPrecision) and plan.exchange.stochastic:
        return (pytensor.shared(np.zeros((), np.int64), name="steps of the exchange"),)
    return ()


def _step_of(
    group: Group, jax: bool, average: bool, partials: tuple[tuple[int, bool], ...], call: Call
) -> Step:
    """The command of a step, from that of its outputs and gradients."""
    kind = ResidentStep if jax and group.member.resident else Step
    return kind(call, call.function, average, partials)
