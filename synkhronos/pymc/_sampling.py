"""`sample`: one call divides the cores into chains and members, and samples."""

from __future__ import annotations

import contextlib
import importlib.util
import math
from collections.abc import Sequence
from typing import Any

from pymc import sample as pm_sample

from synkhronos._backends.mpi import launch
from synkhronos._engine.progress import tell
from synkhronos._errors import InputError
from synkhronos._host import cores as _cores
from synkhronos.pymc._advice import Advice, ChainPlan
from synkhronos.pymc._divided import model_of, refuse_divided
from synkhronos.pymc._node_chains import can_divide_chains, sample_over_nodes
from synkhronos.pymc._parallel import Parallel, check_counts, group_for


class Sampling(Parallel):
    """A divided model with a plan for its chains; not divided if that would not be faster.

    Attributes
    ----------
    slower : str
        Why the model was not divided after its measurement; else empty.
    """

    def __init__(
        self, model: Any, dim: str | None, cores: int, sampler: str | None, **given: Any
    ) -> None:
        self._cores = cores
        self._sampler = sampler
        self.slower = ""
        self._several_nodes = launch() is not None
        self._asked: int | None = given["members_per_chain"]
        together = cores
        if self._asked is not None and self._chains_at_once(given["chains"]) == 1:
            together = self._asked
        super().__init__(model, dim, members=None if self._several_nodes else together, **given)

    @property
    def _in_turn(self) -> bool:
        """Whether chains must share one group: only PyMC's sampler has processes for chains."""
        return self._several_nodes or self._sampler not in (None, "pymc")

    def _chains_at_once(self, chains: int) -> int:
        """The number of chains at a time, with the members that the user asked for."""
        return 1 if self._in_turn else max(1, min(chains, self._cores // (self._asked or 1)))

    def _plan_chains(self, chains: int, members: int | None, mode: Any) -> None:
        """As the user asked, else as is fastest by the advice; restore the model if plain is."""
        assert self.group is not None
        assert self._evaluator is not None
        size = self.group.size
        if members is not None:
            at_once = self._chains_at_once(chains)
            self.plan = ChainPlan(chains, size if at_once == 1 else members, at_once, math.nan)
            return
        advice = self._measured(mode, self._cores)
        timing = advice.best
        seconds = self._plain_seconds(advice, chains)
        if self._in_turn:
            self.plan = ChainPlan(chains, size, 1, chains * self._each(advice, size))
        else:
            self.plan = advice.chains(chains, together=size)
        self._evaluator.give_each_chain(self.plan.members)
        if self.plan.seconds >= seconds:
            self.slower = (
                f"divided ({self.plan}) a gradient of every chain would take "
                f"{1e3 * self.plan.seconds:.3f} ms, and plain {1e3 * seconds:.3f} ms; "
                f"{100 * timing.share:.0f} % of a gradient can be divided"
            )
            self.close()

    def _each(self, advice: Advice, members: int) -> float:
        """Seconds of a divided gradient, with those of PyMC's NUTS if that samples."""
        timing = advice.best
        ours = self._sampler in (None, "pymc")
        return timing.seconds(members) + (timing.around if ours else 0.0)

    def _plain_seconds(self, advice: Advice, chains: int) -> float:
        """Seconds of a gradient of every chain, of the plain model with the cores that it uses.

        `pm.sample` takes nutpie, which is compiled, if it is installed and no sampler is named.
        """
        timing = advice.best
        ours = self._sampler == "pymc" or (
            self._sampler is None and importlib.util.find_spec("nutpie") is None
        )
        each = timing.plain + (timing.around if ours else 0.0)
        return math.ceil(chains / min(chains, self._cores)) * each

    @property
    def sampling(self) -> dict[str, Any]:
        """Arguments for `pm.sample`; the sampler does not depend on the number of members."""
        return {"nuts_sampler": self._sampler or "pymc", **super().sampling}


def sample(
    model: Any = None,
    *,
    chains: int = 4,
    cores: int | None = None,
    dim: str | None = None,
    members_per_chain: int | None = None,
    mode: Any = None,
    row_wise: Sequence[Any] = (),
    repeated: bool = True,
    **kwargs: Any,
) -> Any:
    """Sample a model with all cores: several chains at once, and several members in each chain.

    The model is measured, and the fastest plan is chosen: cores go to chains first, and to members
    of chains as far as that is predicted to be faster. One line tells the plan. If the model cannot
    be divided, or would not be sampled faster, `pm.sample` gets it as it is, and the line says why.

    Parameters
    ----------
    model : pymc.Model, optional
        Default: the model of the current context.
    chains : int, optional
        The number of chains.
    cores : int, optional
        The number of cores for chains and members together. Default, and at most: all that this
        process may use.
    dim : str, optional
        The model's dimension whose entries are divided, as for `parallel`. If it is named and the
        model cannot be divided, the error is raised.
    members_per_chain : int, optional
        The number of members of each chain; the model is then divided without a measurement.
        Default: as is predicted to be fastest.
    mode : str or Mode, optional
        The mode that members compile for. Default: PyTensor's mode.
    row_wise : sequence, optional
        As for `parallel`.
    repeated : bool, optional
        As for `parallel`.
    **kwargs
        Any other argument of `pm.sample`: draws, tune, random_seed, idata_kwargs, progressbar,
        nuts_sampler and so on. `nuts_sampler` is "pymc" unless said, since only PyMC's own NUTS
        starts a process for each chain. Chains of the other samplers use all members in turn.

    Returns
    -------
    xarray.DataTree
        What `pm.sample` returns.

    Raises
    ------
    InputError
        A number is below 1, or the model is divided already.
    WorkerError, WorkerDied
        A member failed in the process that samples. Where chains have processes of their own, PyMC
        raises an error of its own with this one as text.

    Notes
    -----
    Cost: before sampling, the model is read, proved and measured, which takes some seconds.

    With the same random_seed and the same plan, draws are bit-identical. With another number of
    members, they differ by rounding, which grows along a chain. The measurement may choose another
    plan in another run: name `members_per_chain` where draws must be the same.

    On several nodes (mpirun) each node samples its share of the chains, by a plan of its own. If
    there are fewer chains than nodes, the members of all nodes divide each chain's likelihood, and
    chains run one after another.

    Examples
    --------
    >>> import numpy as np, pymc as pm, synkhronos as synk
    >>> with pm.Model() as model:
    ...     y = pm.Normal("y", pm.Normal("mu"), 1, observed=np.arange(5.0))
    >>> given = dict(draws=5, tune=5, random_seed=1, progressbar=False, quiet=True)
    >>> given |= dict(compute_convergence_checks=False)
    >>> idata = synk.pymc.sample(
    ...     model, chains=2, cores=1, members_per_chain=1, mode="FAST_COMPILE", **given
    ... )
    >>> idata.posterior["mu"].shape
    (2, 5)
    """
    check_counts(chains=chains, cores=cores, members_per_chain=members_per_chain)
    model = model_of(model, "sample")
    refuse_divided(model)
    nodes = launch()
    if nodes is not None and can_divide_chains(chains, nodes.size, kwargs):
        group, ours = group_for(None)
        with group if ours else contextlib.nullcontext():
            if group.member.communicator.nodes > 1:
                asked = {"members_per_chain": members_per_chain, "mode": mode, "dim": dim}
                asked |= {"chains": chains, "cores": cores, "row_wise": row_wise}
                asked |= {"repeated": repeated}
                return sample_over_nodes(group, model, asked | kwargs)
    if members_per_chain is not None and nodes is not None:
        raise InputError(
            f"members_per_chain={members_per_chain}: {chains} chains cannot be sampled on "
            f"{nodes.size} nodes apart, so the members of all nodes work on each chain. Leave it "
            "out, or sample at least one chain for each node"
        )
    there = len(_cores.available())
    few = f" ({cores} cores were asked for, {there} are there)" if there < (cores or 0) else ""
    cores = min(cores or there, there)
    given = {"members_per_chain": members_per_chain, "chains": chains, "mode": mode}
    given |= {"row_wise": row_wise, "repeated": repeated}
    try:
        divided = Sampling(model, dim, cores, kwargs.get("nuts_sampler"), **given)
    except InputError as exc:
        if dim is not None:
            raise
        why = " ".join(str(exc).split())
    else:
        with divided:
            why = divided.slower
            if not why:
                tell(f"{divided.plan}{few}")
                return divided.sample(**kwargs)
    tell(f"the model is sampled plainly{few}: {why}")
    return pm_sample(**{"model": model, "chains": chains, "cores": min(chains, cores), **kwargs})
