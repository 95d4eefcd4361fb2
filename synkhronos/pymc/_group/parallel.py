"""`parallel`: lets all members evaluate a model's likelihood, until it is closed.

These rules hold:

* The model is read before a group starts, so that a model which is refused costs no process.
* The new density is in the model before it is proved. Whatever fails from there on closes all, and
  the model has its own density again. `close` ends only a group that was started here.
* Where times are compared, the plain model is this one with its own density, for that time.
* A sampler may raise an error of its own in place of that of an evaluation. Then the latter is
  raised, with the other as its cause.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pymc import Model
from pytensor.tensor import TensorVariable

import synkhronos.pymc._density.numba  # noqa: F401 (registers the operation)
from synkhronos._api.advice import seconds_of
from synkhronos._checks import check_counts, options_checked
from synkhronos._compiling.compile_cache import fills_cache_of_numba
from synkhronos._compiling.graph_types import ModeLike
from synkhronos._compiling.progress import tell, telling
from synkhronos._compiling.traces import untraced
from synkhronos._engine.group import Group, current
from synkhronos._engine.process_bound import ProcessBound
from synkhronos._errors import GroupClosed, InputError, NotForked
from synkhronos._host import cores as _cores
from synkhronos._host.thread_pools import ThreadLimits
from synkhronos._libraries.library import optional_gain
from synkhronos._warnings import log
from synkhronos.pymc._density.divided import Divided, Replaced
from synkhronos.pymc._density.likelihood import Likelihood, tell_forms
from synkhronos.pymc._density.nutpie import expected_metric
from synkhronos.pymc._density.nutpie import sample as pm_sample
from synkhronos.pymc._density.op import DividedLogp
from synkhronos.pymc._density.proof import leaves_memory, prove
from synkhronos.pymc._group.advice import (
    Advice,
    ChainPlan,
    Gradient,
    ModeAdvice,
    gradient_of,
    measure_mode,
    modes_to_measure,
    somewhere,
)
from synkhronos.pymc._group.evaluator import Evaluator
from synkhronos.pymc._group.likelihood import ReturnMemory
from synkhronos.pymc._group.rest_terms import tell_what_stays
from synkhronos.pymc._kept.estimate import Estimate
from synkhronos.pymc._reading.declared import Declared
from synkhronos.pymc._reading.models import copied, model_of, refuse_divided
from synkhronos.pymc._reading.reading import Reading, read

_SECONDS = 30.0  # of `advise`: it begins no further mode that might take longer
_REPLACING = ("jax", "jaxlib", "pyo3_runtime")  # of JAX, and of nutpie while it runs JAX


class Parallel(ProcessBound, Replaced):
    """A divided model; made by `parallel`. `close`, or the end of ``with``, restores the model.

    Attributes
    ----------
    model : pymc.Model
    names : list of str
        The observed variables that are divided; empty if the model was not changed.
    group : Group, or None
        The members that evaluate; None after `close`.
    plan : ChainPlan, or None
        How the chains share the cores.
    """

    _instead = "call parallel(model) in the other process"

    def __init__(
        self,
        model: Model | None = None,
        dim: str | None = None,
        *,
        members: int | None = None,
        members_per_chain: int | None = None,
        chains: int | None = None,
        mode: ModeLike = None,
        min_speedup: float | None = None,
        row_wise: Sequence[object] = (),
        repeated: bool = True,
    ) -> None:
        model = model_of(model)
        super().__init__(model)
        refuse_divided(model)
        check_counts(members=members, members_per_chain=members_per_chain, chains=chains)
        self._repeated = repeated
        reading = self._read(dim, row_wise)
        self.names: list[str] = []
        self.plan: ChainPlan | None = None
        self.group: Group | None
        self._evaluator: Evaluator | None = None  # of everything that is divided
        self._more: list[Evaluator] = []  # all evaluators
        self.group, self._own_group = group_for(members_per_chain if members is None else members)
        try:  # the group has been forked, so something may be told from a thread
            with telling(f"compiling and proving {', '.join(reading.names)}"), untraced():
                plain = None if min_speedup is None else gradient_of(model, mode)
                self._divide(reading, mode, members_per_chain or 1)
                tell_what_stays(reading)
                if plain is not None and min_speedup is not None:
                    self._stay_if(plain, mode, min_speedup)
            if chains is not None and self.names:
                with telling("measuring the model, to plan its chains"):
                    self._plan_chains(chains, members_per_chain, mode)
        except BaseException:
            self.close()
            raise

    def __repr__(self) -> str:
        names = ", ".join(self.names) or "nothing"
        return f"<synkhronos.pymc.Parallel of {names} by {self.group or 'no group: closed'}>"

    def _read(self, dim: str | None, row_wise: Sequence[object]) -> Reading:
        with telling("reading the model"), untraced():
            return read(self.model, dim, Declared.of(self.model, row_wise))

    def _divide(self, reading: Reading, mode: ModeLike, members_per_chain: int) -> None:
        assert self.group is not None
        # the mode and the group of later divisions, of the observed terms without Potentials
        self._made_for = mode, self.group, members_per_chain
        value, evaluator = self._value_of(reading)
        self.replace(Divided(self.model, reading, value, self._proved_value_of))
        self.names = reading.names
        self._prove(reading, evaluator, meanwhile=self._compile_gradient)

    def _proved_value_of(self, reading: Reading) -> TensorVariable:
        value, evaluator = self._value_of(reading)
        self._prove(reading, evaluator)
        return value

    def _value_of(self, reading: Reading) -> tuple[TensorVariable, Evaluator]:
        """The log-density of these terms' variables, divided, and what evaluates it."""
        likelihood = Likelihood(reading, self._repeated)
        tell_forms(likelihood)
        return self._evaluated(likelihood, reading)

    def _evaluated(
        self, likelihood: Likelihood, reading: Reading
    ) -> tuple[TensorVariable, Evaluator]:
        mode, group, members_per_chain = self._made_for
        evaluator = Evaluator(likelihood, mode, group, members_per_chain)
        self._more.append(evaluator)
        if self._evaluator is None:
            self._evaluator = evaluator
        value = DividedLogp(evaluator)(likelihood.theta, *likelihood.latents)[0]
        rests = list(reading.rests.values())
        return pt.add(value, *rests) if rests else value, evaluator

    def _compile_gradient(self) -> None:
        """Compile the model's gradient, as samplers do next: its machine code is cached then."""
        if self.model.continuous_value_vars and fills_cache_of_numba(None):
            try:
                with optional_gain():
                    gradient_of(self.model, None)
            except Exception as exc:  # the caller may never want it, or gets the same
                log.debug("the model's gradient is not compiled ahead: %s", exc)

    def _prove(
        self, reading: Reading, evaluator: Evaluator, meanwhile: Callable[[], object] | None = None
    ) -> None:
        found = prove(reading, evaluator, meanwhile)
        if found is None:
            if leaves_memory(reading) and self.group is not None:
                self.group.run(ReturnMemory())
            return
        names = reading.names
        culprits = [n for n in names if len(names) == 1 or self._alone_wrong(reading.only([n]))]
        raise InputError(
            f"the parts of {', '.join(culprits or names)} do not add up: {found}. The model has "
            "not been changed; please report this"
        )

    def _alone_wrong(self, alone: Reading) -> bool:
        """Whether a variable is wrong if only it is divided."""
        likelihood = Likelihood(alone, self._repeated)
        assert self.group is not None
        assert self._evaluator is not None
        evaluator = Evaluator(likelihood, self._evaluator.mode, self.group, 1)
        try:
            return prove(alone, evaluator) is not None
        finally:
            evaluator.leave()

    def _stay_if(self, plain: Gradient, mode: ModeLike, wanted: float) -> None:
        """Restore the model if the measured speed-up is below `wanted`."""
        alone = plain.amid_sampling()
        together = gradient_of(self.model, mode).amid_sampling()
        ratios = [seconds_of(alone) / seconds_of(together) for _ in range(3)]
        found = sorted(ratios)[1]
        if found >= wanted:
            log.info("%s divided: %.2f times as fast", ", ".join(self.names), found)
            return
        log.warning(
            "the model is not divided: with %d members sampling would be %.2f times as fast, and "
            "min_speedup is %s",
            0 if self.group is None else self.group.size,
            found,
            wanted,
        )
        self.close()
        self.names = []

    def _plan_chains(self, chains: int, members: int | None, mode: ModeLike) -> None:
        """Choose how the chains share the cores: as the user asked, else the fastest predicted."""
        cores = len(_cores.available())
        assert self._evaluator is not None
        assert self.group is not None
        if members is not None:
            at_once = max(1, min(chains, cores // members))
            together = self.group.size if at_once == 1 else members
            self.plan = ChainPlan(chains, together, at_once, float("nan"))
        else:
            advice = self._measured(mode, cores)
            self.plan = advice.chains(chains, together=self.group.size)
            self._evaluator.give_each_chain(self.plan.members)
        tell(str(self.plan))

    def _measured(self, mode: ModeLike, cores: int) -> Advice:
        """The advice for this model, measured with its group."""
        timing = self._timing(mode, self._plain_gradient(mode))
        return Advice(tuple(self.names), (), cores, (timing,))

    def _timing(self, mode: ModeLike, plain: Gradient) -> ModeAdvice:
        assert self._evaluator is not None
        assert self.group is not None
        return measure_mode(self.model, self._evaluator, self.group.size, mode, plain)

    def _plain_gradient(self, mode: ModeLike) -> Gradient:
        """The gradient of the model as it was before it was divided."""
        divided = self.model.logp
        self.restore()
        try:
            return gradient_of(self.model, mode)
        finally:
            self.replace(divided)

    @property
    def sampling(self) -> dict[str, Any]:
        """Arguments for `pm.sample` that carry out the plan for the chains."""
        if self.plan is None:
            return {}
        found: dict[str, Any] = {"chains": self.plan.chains, "cores": self.plan.at_once}
        if self.plan.at_once > 1:  # only PyMC's own sampler starts a process for each chain
            found["nuts_sampler"] = "pymc"
        return found

    def sample(self, *args: Any, **kwargs: Any) -> Any:
        """Call `pm.sample` with this model and its plan for chains; arguments override the plan."""
        try:
            return pm_sample(*args, **{"model": self.model, **self.sampling, **kwargs})
        except BaseException as exc:
            if (raised := self._replaced_by(exc)) is None:
                raise
            raise raised from exc

    def _replaced_by(self, error: BaseException | None) -> BaseException | None:
        """The error of an evaluation, if a sampler raises one of its own in its place."""
        if type(error).__module__.partition(".")[0] not in _REPLACING:
            return None
        return next((e.raised for e in self._more if e.raised is not None), None)

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        raised = self._replaced_by(error)
        super().__exit__(kind, error, trace)
        if raised is not None:
            raise raised from error

    def close(self) -> None:
        """Restore the model, and end the group if `parallel` started it. Safe to call again."""
        super().close()
        while self._more:
            self._more.pop().leave()
        if self._own_group and self.group is not None:
            self.group.close()
        self.group = None


class _Measured(Parallel):
    """A division that is measured, in one mode after another.

    Its graphs are read and proved once. The plain gradient of the first mode is compiled while a
    worker compiles the divided likelihood.
    """

    _plain: Gradient | None = None

    def _compile_gradient(self) -> None:
        self._plain = self._plain_gradient(self._made_for[0])

    def timing(self) -> ModeAdvice:
        """The times in the mode that it is divided for."""
        mode = self._made_for[0]
        return self._timing(mode, self._plain or self._plain_gradient(mode))

    def change_mode(self, mode: ModeLike) -> None:
        """Divide the same terms for another mode; raises what compiling in it raises."""
        divided, before = self.model.logp, self._evaluator
        assert before is not None
        assert self.group is not None
        self._made_for = mode, self.group, 1
        value, evaluator = self._evaluated(before.likelihood, divided.reading)
        with np.errstate(all="ignore"):
            evaluator(*somewhere(before.likelihood))
        before.leave()
        self._plain, self._evaluator = None, evaluator
        self.replace(Divided(self.model, divided.reading, value, self._proved_value_of))

    @property
    def rows(self) -> tuple[int, ...]:
        """The number of rows of each part."""
        assert self._evaluator is not None
        return tuple(p.rows for p in self._evaluator.likelihood.parts)


def group_for(members: int | None) -> tuple[Group, bool]:
    """The current group if it is alive and has this size, else a new one; whether it is new."""
    try:
        found = current("synk.pymc.parallel")
    except (NotForked, GroupClosed):
        return Group(members), True
    if members in (None, found.size):
        return found, False
    return Group(members), True


@options_checked
def parallel(
    model: Model | None = None,
    dim: str | None = None,
    *,
    members: int | None = None,
    members_per_chain: int | None = None,
    chains: int | None = None,
    mode: ModeLike = None,
    min_speedup: float | None = None,
    row_wise: Sequence[object] = (),
    repeated: bool = True,
) -> Parallel:
    """Divide a model: each member evaluates the likelihood of its rows.

    The likelihood is that of observed variables, and of Potentials that are sums over rows of data.
    Terms that cannot be divided stay in the master; a line of the log says why.

    Use it as a context manager. Inside, `pm.sample` (PyMC's NUTS, nutpie, numpyro), `pm.find_MAP`,
    `pm.fit`, `pm.sample_smc`, `model.compile_logp` and similar functions get value and gradient
    from one command to all members. The log-density is the same up to rounding, which is checked at
    the initial point and near it first.

    Parameters
    ----------
    model : pymc.Model, optional
        Default: the model of the current context.
    dim : str, optional
        The model's dimension whose entries are divided, such as "obs". Default: the longest axis of
        each observed variable and Potential.
    members : int, optional
        Default: the current group (`synk.fork`), else a new group with one member per core.
    members_per_chain : int, optional
        The size of the group that each chain's process starts, if `pm.sample(cores=...)` starts
        processes. Default: 1.
    chains : int, optional
        Plan how this many chains share the cores: with `members_per_chain` if given, else as is
        predicted to be fastest. The plan is logged and kept as `plan`; `sample` follows it.
    mode : str or Mode, optional
        The mode that members compile for. Default: PyTensor's mode.
    min_speedup : float, optional
        Measure the speed-up, and do not divide the model if it is smaller; a warning is logged.
    row_wise : sequence, optional
        Your declaration that operations compute each row from this row alone: classes of operations
        (`pytensor.graph.op.Op`), or names of observed variables and Potentials whose log-density
        has such ones. It is believed after a check of some parts of the rows.
    repeated : bool, optional
        Whether equal rows are computed once, where that takes at most half the time: as distinct
        rows with weights, as sums by group, or as a quadratic form. A line of the log says which.

    Returns
    -------
    Parallel
        A context manager; outside of ``with``, call its `close` to restore the model.

    Raises
    ------
    InputError
        Nothing can be divided, or an observed variable with the dimension `dim` cannot be, with
        the reasons; or the parts do not add up.

    Notes
    -----
    Cost: reading and checking the model take some seconds. The rows are copied into shared memory
    once, and again after `pm.set_data`. An evaluation takes about 20 us more than the compute.

    In mode NUMBA a worker compiles the likelihood, and the master at the same time the gradient
    that samplers ask for; so `pm.sample` finds both in PyTensor's cache.

    Examples
    --------
    >>> import numpy as np, pymc as pm, synkhronos as synk
    >>> with pm.Model() as model:
    ...     mu = pm.Normal("mu")
    ...     y = pm.Normal("y", mu, 1, observed=np.arange(5.0))
    >>> plain = model.compile_logp(mode="FAST_COMPILE")({"mu": 1.0})
    >>> with synk.pymc.parallel(model, members=2, mode="FAST_COMPILE") as divided:
    ...     value = model.compile_logp(mode="FAST_COMPILE")({"mu": 1.0})
    >>> divided.names, bool(abs(value - plain) < 1e-9)
    (['y'], True)
    """
    return Parallel(
        model,
        dim,
        members=members,
        members_per_chain=members_per_chain,
        chains=chains,
        mode=mode,
        min_speedup=min_speedup,
        row_wise=row_wise,
        repeated=repeated,
    )


@options_checked
def divide(
    model: Model | None = None,
    dim: str | None = None,
    *,
    members: int | None = None,
    members_per_chain: int | None = None,
    mode: ModeLike = None,
    row_wise: Sequence[object] = (),
    repeated: bool = True,
) -> Model:
    """A copy of a model that stays divided: `parallel` without a ``with``, as PyMC's ``pm.do``.

    Parameters
    ----------
    model, dim, members, members_per_chain, mode, row_wise, repeated
        As for `parallel`.

    Returns
    -------
    pymc.Model
        A new model, with the same variables, dims, coords, data and initial values. Its attribute
        ``division`` is the `Parallel`, which ends by its `close`, or with the program.

    Raises
    ------
    InputError
        As for `parallel`; or the model has symbolic initial values, so that PyMC cannot copy it.

    Notes
    -----
    Cost: that of `parallel`. The data of the copy are those of the model, as in PyMC's copies.

    Examples
    --------
    >>> import numpy as np, pymc as pm, synkhronos as synk
    >>> with pm.Model() as model:
    ...     mu = pm.Normal("mu")
    ...     y = pm.Normal("y", mu, 1, observed=np.arange(5.0))
    >>> divided = synk.pymc.divide(model, members=1, mode="FAST_COMPILE")
    >>> at, mode = {"mu": 1.0}, "FAST_COMPILE"
    >>> gap = divided.compile_logp(mode=mode)(at) - model.compile_logp(mode=mode)(at)
    >>> bool(abs(gap) < 1e-9)
    True
    >>> divided.division.close()
    """
    model = model_of(model, "divide")
    refuse_divided(model)
    copy = copied(model)
    copy.division = Parallel(
        copy,
        dim,
        members=members,
        members_per_chain=members_per_chain,
        mode=mode,
        row_wise=row_wise,
        repeated=repeated,
    )
    return copy


@options_checked
def advise(
    model: Model | None = None,
    dim: str | None = None,
    *,
    members: int | None = None,
    modes: str | Sequence[str] | None = None,
    row_wise: Sequence[object] = (),
    repeated: bool = True,
    metric: bool = False,
) -> Advice:
    """Measure a model and predict the speed-up of dividing it, before it is sampled.

    Parameters
    ----------
    model : pymc.Model, optional
        Default: the model of the current context.
    dim : str, optional
        As for `parallel`.
    members : int, optional
        The size of the group that measures. Default: the current group, else one per core.
    modes : str or sequence of str, optional
        PyTensor's modes to try, out of NUMBA, C and JAX. Default: NUMBA, then JAX if it is
        installed and 30 seconds suffice. Trying JAX starts it in this process.
    row_wise : sequence, optional
        As for `parallel`.
    repeated : bool, optional
        As for `parallel`.
    metric : bool, optional
        Also warm nutpie up for a moment, and say which metric `sample` takes for 1,000 draws after
        1,000 that tune, and what is expected of it. nutpie compiles the model for it.

    Returns
    -------
    Advice
        Times, divisible share, predictions; `show` prints them. Speed-ups compare with the plain
        model in its best mode.

    Raises
    ------
    InputError
        Nothing can be divided, with the reasons.

    Notes
    -----
    Cost: the model is read and proved once. For each mode the plain gradient and the members'
    likelihood are compiled, at the same time where there are two cores, and run for two seconds.
    Predictions assume an idle machine whose cores do not slow one another down: cores that share
    memory bandwidth or a turbo clock reach less.

    Examples
    --------
    >>> import numpy as np, pymc as pm, synkhronos as synk
    >>> with pm.Model() as model:
    ...     mu = pm.Normal("mu")
    ...     y = pm.Normal("y", mu, 1, observed=np.arange(1000.0))
    >>> advice = synk.pymc.advise(model, members=1, modes=["FAST_COMPILE"])
    >>> advice.names, advice.rows, advice.mode
    (('y',), (1000,), 'FAST_COMPILE')
    >>> 0 < advice.best.share < 1
    True
    """
    asked = [modes] if isinstance(modes, str) else list(modes or ())
    tried, left_out = (asked, []) if asked else modes_to_measure()
    target, found, load = model_of(model, "advise"), [], os.getloadavg()[0]
    began, dearest = time.monotonic(), 0.0  # seconds of a mode
    with contextlib.ExitStack() as stack:
        group, ours = group_for(members)
        if ours:
            stack.callback(group.close)
        stack.enter_context(group.active())
        stack.enter_context(telling("measuring the model"))
        divided = stack.enter_context(
            _Measured(target, dim, mode=tried[0], row_wise=row_wise, repeated=repeated)
        )
        for number, mode in enumerate(tried):
            since = time.monotonic()
            if number and not modes and since - began + dearest > _SECONDS:
                left_out = [*tried[number:], *left_out]
                break
            try:
                with telling(f"measuring the model in mode {mode}"):
                    if number:
                        divided.change_mode(mode)
                    found.append(divided.timing())
            except Exception as exc:
                if modes or not number:
                    raise
                left_out = [mode, *left_out]
                log.info("advise: mode %s cannot compute the model: %s", mode, exc)
            dearest = max(dearest, time.monotonic() - (since if number else began))
        names, rows = tuple(divided.names), divided.rows
    expected = ""
    if metric:
        declared = Declared.of(target, row_wise)
        with ThreadLimits(1):  # as in `sample`
            expected = expected_metric(target, Estimate(target, dim, declared).seconds)
    there = len(_cores.available())
    return Advice(names, rows, there, tuple(found), load, tuple(left_out), expected)
