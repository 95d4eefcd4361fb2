"""`sample`: one call divides the cores into chains and members, and samples.

A way is chosen by an estimate, and by a measurement only where it can pay. Each way calls
`pm.sample` with the user's arguments: its errors, trees and lines stay PyMC's. A way that would not
be faster is no error: the model is sampled as it is, and one line says why. The user's model is
whole again at the end, whatever happens.

Modules that read a model, make it faster or go on with a run are imported where they are used. A
model that this machine has sampled before needs none of them, and their import takes longer.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, cast

from pymc.model import Model, modelcontext
from pymc.sampling.mcmc import NUTPIE_INSTALLED
from pymc.step_methods import NUTS
from pytensor.compile.mode import Mode
from pytensor.gradient import NullTypeGradError
from pytensor.link.jax.linker import JAXLinker
from pytensor.link.numba.linker import NumbaLinker

from synkhronos._checks import check_counts, check_flag, is_integer, plain, shown
from synkhronos._compiling.graph_types import ModeLike
from synkhronos._compiling.kept.folder import keeping
from synkhronos._compiling.lean.mode import mode_of, without_c
from synkhronos._compiling.memory import rarely_collected
from synkhronos._compiling.progress import silent, tell
from synkhronos._errors import InputError, InputTypeError
from synkhronos._host import cores as _cores
from synkhronos._host.system import has_mpi_rank, trouble
from synkhronos._libraries.fork_safe_lock import ForkSafeLock
from synkhronos._libraries.library import optional_gain, usable
from synkhronos._libraries.pymc import PYMC
from synkhronos.pymc._chains.metric import check_sampler, choice_of
from synkhronos.pymc._density.adaptation import AUTO, adapted, check_adaptation, name_of_nuts
from synkhronos.pymc._density.draws import gradients_in_turn
from synkhronos.pymc._density.faults import finding_faults
from synkhronos.pymc._density.late_arviz import import_nutpie
from synkhronos.pymc._density.nutpie import sample as pm_sample
from synkhronos.pymc._density.step_methods import chosen_by
from synkhronos.pymc._diverged.count import count_of
from synkhronos.pymc._kept.estimate import Estimate
from synkhronos.pymc._kept.models import KeptModel, kept_model, leading
from synkhronos.pymc._reading.bambi import tell_of_own_fit
from synkhronos.pymc._reading.declared import Declared
from synkhronos.pymc._reading.models import copied, model_of, refuse_divided, undivided

if TYPE_CHECKING:
    from synkhronos.pymc._chains.stored_chains import StoredChains

usable("synkhronos.pymc._kept.written")  # imported now: the first call needs it
JAX_SAMPLERS = ("numpyro", "blackjax")
_MOST_CHAINS = 4  # that `pm.sample` takes by itself
# Of all gradients, plain: to prove and compile a density takes 0 to 3 s more in a model's first
# call, and no time in later ones. To divide it, to compile for members and to measure takes longer
# than sampling with a density on one core.
_CHEAP_SECONDS, _LONG_SECONDS = 1.0, 60.0


class Way(Protocol):
    """A model that is prepared to be sampled; the end of ``with`` restores it."""

    @property
    def plan(self) -> object:
        """Its text is the line that tells the way."""

    def sample(self, **kwargs: Any) -> Any:
        """Sample, with arguments of `pm.sample`."""

    def __enter__(self) -> object: ...

    def __exit__(self, *exc: object) -> None: ...


class OnOneCore:
    """A model with a faster log-density, for each chain on one core."""

    def __init__(
        self,
        model: Model,
        estimate: Estimate,
        repeated: bool,
        given: Mapping[str, Any],
        kept: KeptModel | None,
    ) -> None:
        self._faster = functools.partial(self._make, model, estimate, repeated)
        self._given = given  # arguments of `pm.sample`
        self._made = ExitStack()
        chains, at_once = given["chains"], given["cores"]
        count = "1 chain" if chains == 1 else f"{chains} chains, {at_once} at once"
        self.plan = f"{count} with a faster density on one core each, by {given['nuts_sampler']}"
        form = kept.form_of(*estimate.options, repeated) if kept else ""
        if kept and kept.has(form):
            kept.prepare = self._faster
        else:
            self._faster()
        if kept:
            kept.form = form

    def _make(self, model: Model, estimate: Estimate, repeated: bool) -> None:
        faster: Any = import_module("synkhronos.pymc._density.faster")
        self._made.enter_context(faster.Faster(model, estimate.reading, repeated=repeated))

    def sample(self, **kwargs: Any) -> Any:
        """Call `pm.sample` with the model."""
        return pm_sample(**{**self._given, **kwargs})

    def __enter__(self) -> object:
        return self

    def __exit__(self, *_: object) -> None:
        self._made.close()


def sampler_of(
    model: Model, given: Mapping[str, object], by_nuts: Callable[[], bool] | None = None
) -> str:
    """The sampler that `pm.sample` takes with these arguments."""
    if given.get("nuts_sampler") is not None:
        return str(given["nuts_sampler"])
    initvals = given.get("initvals")
    takes_nutpie = (
        not set(model.value_vars) - set(model.continuous_value_vars)
        and all(given.get(name) is None for name in ("step", "trace", "callback"))
        and given.get("init", "auto") == "auto"
        and given.get("return_inferencedata", True)
        and (initvals is None or isinstance(initvals, dict))
        and isinstance(_mode_of(given).linker, NumbaLinker | JAXLinker)
        and _has_nutpie()
        # last, since it takes the time of a gradient's graph
        and (by_nuts or functools.partial(_all_by_nuts, model))()
    )
    return "nutpie" if takes_nutpie else "pymc"


def _has_nutpie() -> bool:
    """Whether nutpie is there, in a version that `pm.sample` takes."""
    if not NUTPIE_INSTALLED:
        return False
    with contextlib.suppress(ImportError):  # `pm.sample` says so
        import_nutpie()
    with optional_gain():
        if not PYMC.get("_nutpie_meets_min_version")():
            tell("this nutpie is too old for PyMC, whose own NUTS samples: pip install -U nutpie")
            return False
    return True


def _mode_of(given: Mapping[str, Any]) -> Mode:
    """The mode that these arguments of `pm.sample` ask for."""
    return mode_of(given.get("backend") or (given.get("compile_kwargs") or {}).get("mode"))


def _all_by_nuts(model: Model, estimate: Estimate | None = None) -> bool:
    """Whether `pm.sample` gives all parameters to NUTS: one without a gradient gets Slice."""
    try:
        reading = None if estimate is None else estimate.reading
        density = model.logp() if reading is None else reading.sum_of(reading.factors)
        return chosen_by(density, model, disconnected_inputs="ignore").keys() == {NUTS}
    except (NotImplementedError, NullTypeGradError):
        return False


def sample(
    first: Any = None,
    /,
    *,
    model: Model | None = None,
    chains: int | None = None,
    cores: int | None = None,
    dim: str | None = None,
    members_per_chain: int | None = None,
    mode: ModeLike = None,
    row_wise: Sequence[object] = (),
    repeated: bool = True,
    folder: str | os.PathLike[str] | StoredChains | None = None,
    adaptation: str | None = None,
    keep: bool = True,
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
    cheap to sample, or not divisible,      `pm.sample` as it is
    or `step` for all its parameters
    ======================================  ======================================================

    Parameters
    ----------
    first : pymc.Model or int, optional
        The model; or the number of draws, as for `pm.sample`.
    model : pymc.Model, optional
        Default: `first`, or the model of the current context.
    chains : int, optional
        The number of chains. Default: that of `pm.sample`, the number of cores, and at least 2;
        without `cores` at most 4.
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
    repeated : bool, optional
        As for `parallel`.
    folder : path, optional
        Where draws are written while they are made, so that memory does not grow with them, and the
        same call goes on after a kill, Ctrl-C or a full disk. With more `draws`, or more `chains`,
        it adds to what is there. See the notes.
    adaptation : {"auto", "diag", "draw_diag", "low_rank"}, optional
        The metric that nutpie learns; ``nuts={"adaptation": ...}`` names it too. "auto" chooses
        "diag" or "low_rank" by a short warm-up, and a line says which and why. Other samplers have
        metrics of their own, which "auto" leaves. Default: "auto".
    keep : bool
        Whether what is compiled is kept for later runs, and taken from earlier ones. Draws are the
        same.
    **kwargs
        Any other argument of `pm.sample`: draws, tune, random_seed, idata_kwargs, progressbar,
        quiet (also without our lines), nuts_sampler, nuts (settings of the sampler) and so on.

    Returns
    -------
    xarray.DataTree
        What `pm.sample` returns.

    Raises
    ------
    InputError
        A number is below 1, an entry of `row_wise` is not known, or the model is divided already.
    WorkerError, WorkerDied
        A member failed in the process that samples. Where chains have processes of their own, PyMC
        raises an error of its own with this one as text.

    Notes
    -----
    Cost: the model is read in about 0.1 s; if it is cheap to sample, that is all. Else it is
    proved, and measured where there are more cores than chains, which takes some seconds. A model
    that nutpie sampled on this machine before is not compiled again, in any process, and draws are
    the same. With other data it is compiled again if its log-density was made faster, since that is
    proved for its data. For other lengths only machine code is made. To switch this off, give
    `keep`, or set SYNKHRONOS_KEEP=0.

    With the same random_seed and the same way, draws are bit-identical. In another way or with
    another number of members, they differ by rounding, which grows along a chain. A measurement may
    choose another way in another run: name `members_per_chain` where draws must be the same.

    On several nodes (mpirun) each node samples its share of the chains, by a plan of its own. If
    there are fewer chains than nodes, the members of all nodes divide each chain's likelihood, and
    chains run one after another.

    With `folder`, nutpie samples. Each chain is tuned, and then drawn in blocks of 100 draws, which
    are written while the next one is drawn. The seed of a block follows from `random_seed`, the
    chain and the number of the block. So a run that was interrupted has the same draws, bit by bit,
    as one that was not. A kill loses at most the tuning, or the block, that a chain was in, and two
    blocks that wait for a slow disk. The draws of the result are read from the folder when they are
    used.

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
    if is_integer(draws := plain(first)):
        if "draws" in kwargs:
            raise InputError(f"sample({draws}, draws={kwargs['draws']}): give draws once")
        kwargs["draws"] = draws
    elif first is not None:
        if model is not None:
            raise InputError(
                f"sample({shown(first)}, model=...): give the number of draws first, or the model "
                "once"
            )
        model = first
    if kwargs.get("sampler") is not None:
        raise InputError("sample(sampler=...): pm.sample takes a sampler; sample is one itself")
    if kwargs.get("draws", 0) is None:
        raise InputTypeError("sample(draws=None): give a number of draws, or leave it out")
    check_counts(chains=chains, cores=cores, members_per_chain=members_per_chain)
    of_nuts = name_of_nuts(kwargs)
    if isinstance(nuts := kwargs.get(of_nuts), Mapping):  # `pm.sample` writes into it
        kwargs[of_nuts] = dict(nuts)
    if (adaptation := check_adaptation(adaptation, kwargs)) not in (None, AUTO):
        kwargs[of_nuts] = {**(kwargs.get(of_nuts) or {}), "adaptation": adaptation}
    chains = chains or max(2, cores or min(_MOST_CHAINS, len(_cores.available())))
    asked = {"members_per_chain": members_per_chain, "mode": mode}
    asked |= {"row_wise": row_wise, "repeated": repeated, "adaptation": adaptation}
    quiet, wanted = bool(kwargs.get("quiet")), check_flag("sample: keep", keep)
    with _of_call(_model_of(model)) as own:
        refuse_divided(own)
        tell_of_own_fit(own)
        with silent(quiet), keeping(wanted), _sampling_into(folder, own, kwargs, adaptation):
            found = _sample(own, dim, chains, cores, asked, kwargs)
            if kwargs.get("compute_convergence_checks", True) and (count := count_of(found)):
                explanation: Any = import_module("synkhronos.pymc._diverged.explanation")
                explanation.tell_of_divergences(found, own, count, on_disk=folder is not None)
            return found


def _sampling_into(folder: object, *of_call: object) -> contextlib.AbstractContextManager[None]:
    """A context in which `pm.sample` samples into a folder, if there is one."""
    if folder is None:
        return contextlib.nullcontext()
    stored_chains: Any = import_module("synkhronos.pymc._chains.stored_chains")
    found: contextlib.AbstractContextManager[None] = stored_chains.sampling_into(folder, *of_call)
    return found


_lock = ForkSafeLock()
_sampled: list[Model] = []  # by calls that have not returned


@contextlib.contextmanager
def _of_call(model: Model) -> Iterator[Model]:
    """The model for one call at a time, which gives it another log-density meanwhile.

    Each further one, such as in another thread, gets a twin.
    """
    with _lock.held():
        own = undivided(model) if any(each is model for each in _sampled) else model
        _sampled.append(own)
    try:
        yield own
    finally:
        with _lock.held():
            _sampled[:] = [each for each in _sampled if each is not own]


def _model_of(model: object) -> Model:
    """The model that `pm.sample` samples: an inner one alone, if it is given or entered."""
    model_of(model, "sample")  # with its errors
    return modelcontext(model)


def _sample(
    model: Model,
    dim: str | None,
    chains: int,
    cores: int | None,
    asked: Mapping[str, Any],
    given: Mapping[str, Any],
) -> Any:
    """Choose a way and sample by it, with arguments that are checked."""
    Declared.of(model, asked["row_wise"])  # a wrong entry is no reason to sample plainly
    mode_of(asked["mode"])
    if _is_launched():
        members: Any = import_module("synkhronos.pymc._chains.members")
        all_given = {"chains": chains, "cores": cores, "dim": dim, **asked, **given}
        if (found := members.sampled_over_nodes(model, all_given)) is not None:
            return found
    kept = kept_model(model) if given.get("nuts_sampler") in (None, "nutpie") else None
    with leading(kept):
        return _by_a_way(model, dim, chains, cores, asked, given, kept)


def _by_a_way(
    model: Model,
    dim: str | None,
    chains: int,
    cores: int | None,
    asked: Mapping[str, Any],
    given: Mapping[str, Any],
    kept: KeptModel | None,
) -> Any:
    there = len(_cores.available())
    few = f" ({cores} cores were asked for, {there} are there)" if there < (cores or 0) else ""
    cores = min(cores or there, there)
    metric, seconds = asked["adaptation"], 0.0
    if metric not in (None, AUTO):
        by_nuts = functools.partial(kept.by_nuts, lambda: _all_by_nuts(model)) if kept else None
        check_sampler(metric, sampler_of(model, given, by_nuts))
    try:
        with rarely_collected(), without_c(None, _mode_of(given)), finding_faults(model):
            estimate = _estimate(model, dim, asked, given, kept)
            seconds = estimate.seconds
            way, of_way = way_of(model, estimate, dim, chains, cores, asked, given, kept)
    except InputError as exc:
        if dim is not None:
            raise
        tell(f"the model is sampled plainly{few}: {' '.join(str(exc).split())}")
        as_it_is = {"model": model, "chains": chains, "cores": min(chains, cores)}
        with adapted(choice_of(metric, seconds, kept)):
            return pm_sample(**{**as_it_is, **given})
    with way, adapted(choice_of(metric, seconds, kept)):
        tell(f"{way.plan}{few}")
        return way.sample(**of_way)


def _is_launched() -> bool:
    """Whether MPI has launched this process beside others; the module that knows needs Linux.

    Its import takes longer than what is kept of a small model.
    """
    if trouble() or not has_mpi_rank():
        return False
    mpi: Any = import_module("synkhronos._backends.mpi")
    return mpi.launch() is not None


def frozen_first(
    model: Model, sampler: str, given: Mapping[str, Any]
) -> tuple[Model, dict[str, Any]]:
    """A copy with constants for data, if nutpie is to sample one, and arguments that ask for none.

    nutpie's own copy would have PyMC's log-density.
    """
    options = dict(given.get("compile_kwargs") or {})
    if sampler != "nutpie":
        return model, dict(given)
    asked, options["freeze_model"] = options.get("freeze_model"), False
    if asked is None:
        asked = isinstance(_mode_of(given).linker, JAXLinker)
    found = {**given, "compile_kwargs": options}
    if not asked:
        return model, found
    if isinstance(starts := given.get("initvals"), Mapping):
        found["initvals"] = {getattr(key, "name", key): value for key, value in starts.items()}
    return copied(model, frozen=True), found


def _estimate(
    model: Model,
    dim: str | None,
    asked: Mapping[str, Any],
    given: Mapping[str, Any],
    kept: KeptModel | None,
) -> Estimate:
    """The rows of the model, and the seconds of its gradient.

    Raises
    ------
    InputError
        Only `pm.sample` as it is can sample the model, with the reason.
    """
    if model.parent is not None:
        raise InputError("it is nested in another model, and `pm.sample` samples it alone")
    if _made_for_all(model, given.get("step")):
        raise InputError(
            "its step methods have compiled its log-density already; make the model faster first "
            "(synk.pymc.fast), and the step methods of that one"
        )
    return Estimate(model, dim, Declared.of(model, asked["row_wise"]), kept)


def way_of(
    model: Model,
    estimate: Estimate,
    dim: str | None,
    chains: int,
    cores: int,
    asked: Mapping[str, Any],
    given: Mapping[str, Any],
    kept: KeptModel | None,
) -> tuple[Way, Mapping[str, Any]]:
    """The model with the density that it is sampled by, until the end of ``with``; the arguments.

    Raises
    ------
    InputError
        `pm.sample` as it is takes no longer, with the reason.
    """
    seconds = gradients_in_turn(chains, cores, given) * estimate.seconds
    named = asked["members_per_chain"] is not None
    if not named and seconds < _CHEAP_SECONDS:
        raise InputError(
            f"the gradients of its {estimate.rows:,} rows take about "
            f"{seconds:.1g} s in all, less than to prepare it"
        )
    by_nuts = functools.partial(_all_by_nuts, model, estimate)
    sampler = sampler_of(
        model, given, functools.partial(kept.by_nuts, by_nuts) if kept else by_nuts
    )
    sampled, given = frozen_first(model, sampler, given)
    if sampled is not model:
        kept, estimate = None, Estimate(sampled, dim, Declared.of(model, asked["row_wise"]))
    if (why := trouble()) and named:
        tell(f"members_per_chain={asked['members_per_chain']} is left out: {why}")
    if not why:
        long = chains < cores and seconds >= _LONG_SECONDS
        if named or long or sampler in JAX_SAMPLERS or _is_launched():
            members: Any = import_module("synkhronos.pymc._chains.members")
            way = members.Sampling(
                sampled, estimate.reading, cores, sampler, dim=dim, chains=chains, **asked
            )
            if not way.slower:
                return cast(Way, way), given
            if sampler in JAX_SAMPLERS:
                raise InputError(way.slower)
    own = {"model": sampled, "chains": chains, "cores": min(chains, cores), "nuts_sampler": sampler}
    of_nutpie = kept if sampler == "nutpie" else None  # no form is kept for other samplers
    return OnOneCore(sampled, estimate, asked["repeated"], own, of_nutpie), given


def _made_for_all(model: Model, step: object) -> bool:
    """Whether the user has made step methods for all variables: they compile when they are made."""
    steps = step if isinstance(step, list | tuple) else [step]
    assigned = {v for each in steps for v in getattr(each, "vars", ())}
    return bool(assigned) and assigned.issuperset(model.value_vars)
