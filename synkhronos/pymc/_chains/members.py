"""Chains with members: a plan that is measured, or as the user asked."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from typing import Any

from pymc import Model

from synkhronos._backends.mpi import launch
from synkhronos._compiling.graph_types import ModeLike
from synkhronos._errors import InputError
from synkhronos.pymc._chains.nodes import can_divide_chains, sample_over_nodes
from synkhronos.pymc._chains.processes import sample_in_processes
from synkhronos.pymc._group.advice import ChainPlan, ModeAdvice
from synkhronos.pymc._group.parallel import Parallel, group_for
from synkhronos.pymc._reading.reading import Reading


def sampled_over_nodes(model: Model, given: Mapping[str, Any]) -> Any:
    """The draws of all nodes of a launch, each of which samples some chains; None if none does so.

    Raises
    ------
    InputError
        Members were asked for, and there are fewer chains than nodes.
    """
    nodes, chains = launch(), given["chains"]
    if nodes is None:
        return None
    if can_divide_chains(chains, nodes.size, given):
        group, ours = group_for(None)
        with group if ours else contextlib.nullcontext():
            if group.member.communicator.nodes > 1:
                return sample_over_nodes(group, model, given)
    if given["members_per_chain"] is not None:
        raise InputError(
            f"members_per_chain={given['members_per_chain']}: {chains} chains cannot be sampled on "
            f"{nodes.size} nodes apart, so the members of all nodes work on each chain. Leave it "
            "out, or sample at least one chain for each node"
        )
    return None


class Sampling(Parallel):
    """A divided model with a plan for its chains; not divided if that would not be faster."""

    def __init__(
        self, model: Model, reading: Reading, cores: int, sampler: str, **given: Any
    ) -> None:
        self._reading = reading  # of this model, as `sample` has read them
        self._cores = cores
        self._sampler = sampler
        own = ("dim", "mode", "row_wise", "repeated", "adaptation")
        self._given = {name: given[name] for name in own}
        del given["adaptation"]  # it is of sampling, not of the division
        self.slower = ""  # why the model was not divided after its measurement; else empty
        self._several_nodes = launch() is not None
        self._asked: int | None = given["members_per_chain"]
        together = cores
        if self._asked is not None and self._chains_at_once(given["chains"]) == 1:
            together = self._asked
        super().__init__(model, members=None if self._several_nodes else together, **given)

    def _read(self, dim: str | None, row_wise: Sequence[object]) -> Reading:
        return self._reading

    @property
    def _in_turn(self) -> bool:
        """Whether chains share one group: JAX samples them in one process, and so do nodes."""
        return self._several_nodes or self._sampler not in ("pymc", "nutpie")

    def _chains_at_once(self, chains: int) -> int:
        """The number of chains at a time, with the members that the user asked for."""
        return 1 if self._in_turn else max(1, min(chains, self._cores // (self._asked or 1)))

    def _plan_chains(self, chains: int, members: int | None, mode: ModeLike) -> None:
        """As the user asked, else as is fastest by the advice; restore the model if that is one."""
        assert self.group is not None
        assert self._evaluator is not None
        size = self.group.size
        if members is not None:
            at_once = self._chains_at_once(chains)
            self.plan = ChainPlan(chains, size if at_once == 1 else members, at_once, math.nan)
            return
        advice = self._measured(mode, self._cores)
        timing = advice.best
        if self._in_turn:
            self.plan = ChainPlan(chains, size, 1, chains * timing.seconds(size))
        else:
            self.plan = advice.chains(chains, together=size)
        self._evaluator.give_each_chain(self.plan.members)
        one_core = "plain" if self._in_turn else "on one core"
        seconds = math.ceil(chains / min(chains, self._cores)) * self._alone(timing)
        if self.plan.seconds >= seconds:
            self.slower = (
                f"divided ({self.plan}) a gradient of every chain would take "
                f"{1e3 * self.plan.seconds:.3f} ms, and {one_core} {1e3 * seconds:.3f} ms; "
                f"{100 * timing.share:.0f} % of a gradient can be divided"
            )
            self.close()

    def _alone(self, timing: ModeAdvice) -> float:
        """Seconds of a gradient on one core, without a command; for JAX, of the plain model."""
        if self._in_turn:
            return timing.plain
        return timing.on_one_core + timing.around

    @property
    def sampling(self) -> dict[str, Any]:
        """Arguments for `pm.sample`; the sampler does not depend on the number of members."""
        return {**super().sampling, "nuts_sampler": self._sampler}

    def sample(self, *args: Any, **kwargs: Any) -> Any:
        """Sample by the plan: chains of nutpie that run at once have a process each."""
        assert self.plan is not None
        if self._sampler == "nutpie" and self.plan.at_once > 1:
            self.close()  # each process has a group of its own
            return sample_in_processes(self.model, self.plan, self._given | kwargs)
        return super().sample(*args, **kwargs)
