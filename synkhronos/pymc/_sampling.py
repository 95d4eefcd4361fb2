"""`sample`: one call divides the cores into chains and members, and samples."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from typing import Any

from pymc import sample as pm_sample
from pymc.sampling.mcmc import NUTPIE_INSTALLED
from pytensor.link.jax.linker import JAXLinker
from pytensor.link.numba.linker import NumbaLinker

from synkhronos._backends.mpi import launch
from synkhronos._engine.progress import tell
from synkhronos._errors import InputError
from synkhronos._host import cores as _cores
from synkhronos.pymc._advice import ChainPlan, ModeAdvice
from synkhronos.pymc._chain_processes import sample_in_processes
from synkhronos.pymc._divided import model_of, refuse_divided
from synkhronos.pymc._estimate import gradient_seconds, gradients_in_turn
from synkhronos.pymc._fast import Faster
from synkhronos.pymc._likelihood import mode_of
from synkhronos.pymc._node_chains import can_divide_chains, sample_over_nodes
from synkhronos.pymc._parallel import Parallel, check_counts, group_for
from synkhronos.pymc._rewrites import untraced
from synkhronos.pymc._terms import Terms, read_model

_JAX = ("numpyro", "blackjax")
_MOST_CHAINS = 4  # that `pm.sample` takes by itself
_CHEAP_SECONDS = 4.0  # of all gradients: to prove and to compile a density takes about as long


class Sampling(Parallel):
    """A divided model with a plan for its chains; not divided if that would not be faster.

    Attributes
    ----------
    slower : str
        Why the model was not divided after its measurement; else empty.
    """

    def __init__(self, model: Any, dim: str | None, cores: int, sampler: str, **given: Any) -> None:
        self._cores = cores
        self._sampler = sampler
        self._given = {"dim": dim, "mode": given["mode"], "row_wise": given["row_wise"]}
        self.slower = ""
        self._several_nodes = launch() is not None
        self._asked: int | None = given["members_per_chain"]
        together = cores
        if self._asked is not None and self._chains_at_once(given["chains"]) == 1:
            together = self._asked
        super().__init__(model, dim, members=None if self._several_nodes else together, **given)

    @property
    def _in_turn(self) -> bool:
        """Whether chains share one group: JAX samples them in one process, and so do nodes."""
        return self._several_nodes or self._sampler not in ("pymc", "nutpie")

    def _chains_at_once(self, chains: int) -> int:
        """The number of chains at a time, with the members that the user asked for."""
        return 1 if self._in_turn else max(1, min(chains, self._cores // (self._asked or 1)))

    def _plan_chains(self, chains: int, members: int | None, mode: Any) -> None:
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
            self.plan = ChainPlan(chains, size, 1, chains * self._each(timing, size))
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

    def _each(self, timing: ModeAdvice, members: int) -> float:
        """Seconds of a divided gradient, with those of PyMC's NUTS if that samples."""
        return timing.seconds(members) + (timing.around if self._sampler == "pymc" else 0.0)

    def _alone(self, timing: ModeAdvice) -> float:
        """Seconds of a gradient on one core, without a command; for JAX, of the plain model."""
        if self._in_turn:
            return timing.plain
        alone = timing.rest + timing.parts.get(1, math.inf)
        return min(timing.plain, alone) + (timing.around if self._sampler == "pymc" else 0.0)

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


class OnOneCore(Faster):
    """A model with a faster log-density, for each chain on one core.

    Attributes
    ----------
    plan : str
        The line that tells it.
    """

    def __init__(self, model: Any, terms: Terms, sampler: str, chains: int, at_once: int) -> None:
        super().__init__(model, terms)
        self._given = {"model": model, "chains": chains, "cores": at_once, "nuts_sampler": sampler}
        count = "1 chain" if chains == 1 else f"{chains} chains, {at_once} at once"
        self.plan = f"{count} with a faster density on one core each, by {sampler}"

    def sample(self, **kwargs: Any) -> Any:
        """Call `pm.sample` with the model."""
        return pm_sample(**{**self._given, **kwargs})


def sampler_of(model: Any, given: Mapping[str, Any]) -> str:
    """The sampler that `pm.sample` takes with these arguments."""
    if given.get("nuts_sampler") is not None:
        return str(given["nuts_sampler"])
    initvals = given.get("initvals")
    compile_kwargs = given.get("compile_kwargs") or {}
    mode = given.get("backend") or compile_kwargs.get("mode")
    takes_nutpie = (
        NUTPIE_INSTALLED
        and not set(model.value_vars) - set(model.continuous_value_vars)
        and all(given.get(name) is None for name in ("step", "trace", "callback"))
        and given.get("init", "auto") == "auto"
        and given.get("return_inferencedata", True)
        and (initvals is None or isinstance(initvals, dict))
        and isinstance(mode_of(mode).linker, NumbaLinker | JAXLinker)
    )
    return "nutpie" if takes_nutpie else "pymc"


def refuse_cheap(terms: Terms, gradients: int) -> None:
    """Raise if a model is sampled sooner than it is prepared."""
    each = gradient_seconds([t.variable for t in terms.all], terms.shapes)
    if each * gradients < _CHEAP_SECONDS:
        raise InputError(
            f"the gradients of its {sum(t.rows for t in terms.all):,} rows take about "
            f"{each * gradients:.1g} s in all, less than to prepare it"
        )


def sample(
    model: Any = None,
    *,
    chains: int | None = None,
    cores: int | None = None,
    dim: str | None = None,
    members_per_chain: int | None = None,
    mode: Any = None,
    row_wise: Sequence[Any] = (),
    **kwargs: Any,
) -> Any:
    """`pm.sample` in less time: a faster gradient on each core, and several cores for a chain.

    The arguments and the result are those of `pm.sample`. One line tells which way is taken:

    ======================================  ======================================================
    the model, and the machine              way
    ======================================  ======================================================
    at least as many chains as cores        the log-density of `fast`, in the threads of nutpie or
                                            the processes of PyMC's samplers
    more cores than chains                  members of each chain (`parallel`), if that is measured
                                            to be faster than `fast`; chains of nutpie that run at
                                            once have a process each
    JAX samples (numpyro, blackjax)         all members for each chain, one chain after another, if
                                            that is measured to be faster than the plain model
    cheap to sample, or not divisible       `pm.sample` as it is
    ======================================  ======================================================

    Parameters
    ----------
    model : pymc.Model or int, optional
        Default: the model of the current context. An int is the number of draws, as for
        `pm.sample`.
    chains : int, optional
        The number of chains. Default: that of `pm.sample`, 2 to 4.
    cores : int, optional
        The number of cores for chains and members together. Default, and at most: all that this
        process may use.
    dim : str, optional
        The model's dimension whose entries are divided, as for `parallel`. If it is named and the
        model cannot be divided, the error is raised.
    members_per_chain : int, optional
        The number of members of each chain; the model is then divided without a measurement.
    mode : str or Mode, optional
        The mode that members compile for. Default: PyTensor's mode.
    row_wise : sequence, optional
        As for `parallel`.
    **kwargs
        Any other argument of `pm.sample`: draws, tune, random_seed, idata_kwargs, progressbar,
        nuts_sampler, nuts (settings of the sampler) and so on.

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
    Cost: the model is read in about 0.1 s; if it is cheap to sample, that is all. Else it is
    proved, and measured where there are more cores than chains, which takes some seconds.

    With the same random_seed and the same way, draws are bit-identical. In another way or with
    another number of members, they differ by rounding, which grows along a chain. A measurement may
    choose another way in another run: name `members_per_chain` where draws must be the same.

    On several nodes (mpirun) each node samples its share of the chains, by a plan of its own. If
    there are fewer chains than nodes, the members of all nodes divide each chain's likelihood, and
    chains run one after another.

    Examples
    --------
    >>> import numpy as np, pymc as pm, synkhronos as synk
    >>> with pm.Model() as model:
    ...     y = pm.Normal("y", pm.Normal("mu"), 1, observed=np.arange(5.0))
    >>> given = dict(tune=5, random_seed=1, progressbar=False, quiet=True)
    >>> given |= dict(compute_convergence_checks=False)
    >>> with model:
    ...     idata = synk.pymc.sample(5, chains=2, cores=1, nuts_sampler="pymc", **given)
    >>> idata.posterior["mu"].shape
    (2, 5)
    """
    if isinstance(model, int) and not isinstance(model, bool):
        if "draws" in kwargs:
            raise InputError(f"sample({model}, draws={kwargs['draws']}): give draws once")
        model, kwargs["draws"] = None, model
    check_counts(chains=chains, cores=cores, members_per_chain=members_per_chain)
    model = model_of(model, "sample")
    refuse_divided(model)
    nodes, there = launch(), len(_cores.available())
    chains = chains or max(2, min(_MOST_CHAINS, cores or there))
    if nodes is not None and can_divide_chains(chains, nodes.size, kwargs):
        group, ours = group_for(None)
        with group if ours else contextlib.nullcontext():
            if group.member.communicator.nodes > 1:
                asked = {"members_per_chain": members_per_chain, "mode": mode, "dim": dim}
                asked |= {"chains": chains, "cores": cores, "row_wise": row_wise}
                return sample_over_nodes(group, model, asked | kwargs)
    if members_per_chain is not None and nodes is not None:
        raise InputError(
            f"members_per_chain={members_per_chain}: {chains} chains cannot be sampled on "
            f"{nodes.size} nodes apart, so the members of all nodes work on each chain. Leave it "
            "out, or sample at least one chain for each node"
        )
    few = f" ({cores} cores were asked for, {there} are there)" if there < (cores or 0) else ""
    cores = min(cores or there, there)
    sampler = sampler_of(model, kwargs)
    at_once = min(chains, cores)
    plainly = {"model": model, "chains": chains, "cores": at_once}
    try:
        with untraced():
            terms = read_model(model, dim, row_wise)
        if members_per_chain is None:
            refuse_cheap(terms, gradients_in_turn(chains, cores, kwargs))
        way: Sampling | OnOneCore | None = None
        if members_per_chain or nodes or sampler in _JAX or chains < cores:
            given = {"members_per_chain": members_per_chain, "chains": chains, "mode": mode}
            way = Sampling(model, dim, cores, sampler, row_wise=row_wise, **given)
            if way.slower and sampler in _JAX:
                raise InputError(way.slower)
        if way is None or way.slower:
            way = OnOneCore(model, terms, sampler, chains, at_once)
    except InputError as exc:
        if dim is not None:
            raise
        tell(f"the model is sampled plainly{few}: {' '.join(str(exc).split())}")
        return pm_sample(**{**plainly, **kwargs})
    with way:
        tell(f"{way.plan}{few}")
        return way.sample(**kwargs)
