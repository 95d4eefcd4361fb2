"""`sample_posterior_predictive` and `sample_prior_predictive`."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pymc as pm
from pymc.backends.base import MultiTrace
from pymc.model import modelcontext
from pymc.sampling import sample_posterior_predictive as pm_sample_posterior_predictive
from pymc.sampling import sample_prior_predictive as pm_sample_prior_predictive
from xarray import Dataset, DataTree

from synkhronos._checks import check_integer, shown
from synkhronos._errors import InputError, InputTypeError
from synkhronos.pymc._after.calculation import Calculation, RandomSeed, seed_of
from synkhronos.pymc._after.division import How
from synkhronos.pymc._after.points import Points, names_of
from synkhronos.pymc._after.store import seed_in
from synkhronos.pymc._density import functions
from synkhronos.pymc._reading.models import twin_of


class _Compiled:
    """The function that PyMC compiles for one draw: its decisions about every variable."""

    def __init__(self) -> None:
        self.function: Any = None
        # the variables that are its inputs and its outputs
        self.inputs: list[str] = []
        self.names: list[str] = []


def _compiling(model: pm.Model) -> tuple[pm.Model, _Compiled]:
    """A twin of the model, and the function that it will have compiled, for speed."""
    kept = _Compiled()

    def compiled(outs: Any, *, inputs: Any = None, mode: Any = None, **given: Any) -> Any:
        kept.function = functions.compiled(model.compile_fn, outs, mode, inputs=inputs, **given)
        kept.inputs = [variable.name for variable in inputs]
        kept.names = [variable.name for variable in outs]
        return kept.function

    return twin_of(model, compile_fn=compiled), kept


def sample_posterior_predictive(
    trace: Any,
    model: pm.Model | None = None,
    *,
    var_names: str | list[str] | None = None,
    sample_vars: str | list[str] | None = None,
    freeze_vars: str | list[str] | None = None,
    sample_dims: list[str] | None = None,
    random_seed: RandomSeed = None,
    progressbar: bool = True,
    progressbar_theme: object = None,
    return_inferencedata: bool = True,
    extend_inferencedata: bool = False,
    predictions: bool = False,
    idata_kwargs: dict[str, object] | None = None,
    backend: str | None = None,
    compile_kwargs: dict[str, object] | None = None,
    cores: int | None = None,
    store: str | os.PathLike[str] | None = None,
    on: object = None,
) -> Any:
    """Draw from the posterior predictive distribution with all cores.

    The arguments and the result are those of `pm.sample_posterior_predictive`. PyMC decides which
    variables are drawn, computed again or copied. The draws are then divided over processes.

    Parameters
    ----------
    trace : DataTree, Dataset, MultiTrace or list of dict
        The draws of the posterior, as PyMC takes them.
    model : pymc.Model, optional
        Default: the model of the current context.
    var_names, sample_vars, freeze_vars, sample_dims, return_inferencedata
        As in PyMC.
    extend_inferencedata, predictions, idata_kwargs, backend, compile_kwargs
        As in PyMC.
    random_seed : int, sequence of int, RandomState or Generator, optional
        The draws follow from it, whatever the number of cores. They are not those that PyMC makes
        with this seed: each draw has a stream of its own, of the seed and its chain and number.
    progressbar : bool
        Whether to tell how far it is, by one line, once it has taken two seconds.
    progressbar_theme
        Accepted, and ignored.
    cores : int, optional
        The number of processes at most. Default: one for each core that this process may use.
        This process alone computes if that takes less time than to start others.
    store : path, optional
        Write the draws into this zarr store as they come, and return a tree that reads them when
        they are used. The same call with the same store goes on where an earlier one has ended,
        with the same bits; `random_seed` may be left out.
    on : Client, "ray", MPIPoolExecutor or Executor, optional
        Where draws are computed, in place of processes of this machine, as for `map`: by the
        workers of Dask, Ray, mpi4py, or an executor. The same bits on equal processors.

    Returns
    -------
    DataTree or dict
        As PyMC's. The memory of the draws is shared memory.

    Raises
    ------
    InputError, InputTypeError
        An argument is not possible, or the store has the group of another call.
    WorkerError, WorkerDied, OSError
        A process has failed or died, or the disk is full. With `store`, what was written stays: the
        attribute ``draws_done`` of its group tells how many draws are.
    SynkhronosError
        With `on`: draws have failed, or the workers are gone or have other versions.
    MemoryError
        The draws do not fit in memory: use `store`.

    Notes
    -----
    Cost: PyMC compiles the function and makes one draw. Memory: the result; with `store` some
    chunks of 8 MB, or of one draw, in each process. Ctrl-C ends all processes and raises
    KeyboardInterrupt, whereas PyMC returns what it has.

    Examples
    --------
    >>> import numpy as np, pymc as pm
    >>> import synkhronos as synk, synkhronos.pymc
    >>> with pm.Model() as model:
    ...     mu = pm.Normal("mu")
    ...     y = pm.Normal("y", mu, observed=np.zeros(3))
    >>> points = [{"mu": np.array(m)} for m in (0.0, 5.0)]
    >>> tree = synk.pymc.sample_posterior_predictive(points, model, random_seed=1)
    >>> tree["posterior_predictive"]["y"].shape
    (1, 2, 3)
    """
    what = "sample_posterior_predictive"
    groups = ["predictions" if predictions else "posterior_predictive"]
    how = How.of(what, groups, cores, progressbar, store, on, compile_kwargs)
    seed = _seed(how, random_seed, return_inferencedata)
    model = modelcontext(model)
    if isinstance(trace, MultiTrace):
        trace = pm.to_inference_data(trace, model=model)
    dims = ["chain", "draw"] if sample_dims is None else names_of(sample_dims)
    points, first = _points(trace, model, dims)
    asked = {
        "var_names": var_names,
        "sample_vars": sample_vars,
        "freeze_vars": freeze_vars,
        "sample_dims": dims,
        "backend": backend,
        "compile_kwargs": compile_kwargs,
    }
    twin, compiled = _compiling(model)
    one: dict[str, np.ndarray] = pm_sample_posterior_predictive(
        first, model=twin, random_seed=0, progressbar=False, return_inferencedata=False, **asked
    )
    copied = {name: points.shaped(name) for name in one if name not in compiled.names}

    def tree_of(drawn: Mapping[str, np.ndarray]) -> DataTree:
        found = {name: copied[name] if name in copied else drawn[name] for name in one}
        if not found:
            return DataTree()
        given: dict[str, Any] = {"model": model, "sample_dims": dims, **(idata_kwargs or {})}
        given["coords"] = {**points.coords, **given.get("coords", {})}
        if predictions:
            return pm.predictions_to_inference_data(found, **given)
        return pm.to_inference_data(posterior_predictive=found, **given)

    own = None
    if compiled.function is not None:
        own = Calculation(
            compiled.function,
            compiled.names,
            points.inputs_of(compiled.function, compiled.inputs),
            points.sample_shape,
            seed,
        )
    if how.store is not None and own is None:
        raise InputError(f"{what}: store=: no variable is drawn, all are copied from the trace")
    if not return_inferencedata:
        arrays = _arrays_of(own, how)
        return {name: copied[name] if name in copied else arrays[name] for name in one}
    tree = tree_of({}) if own is None else how.results(own, tree_of)
    if extend_inferencedata:
        return _extended(trace, tree)
    return tree


def _points(trace: object, model: pm.Model, sample_dims: Sequence[str]) -> tuple[Points, object]:
    """The draws of a trace, and the same trace with its first draw only."""
    if isinstance(trace, DataTree):
        own = trace["posterior"] if "posterior" in trace.children else trace
        dataset = own.to_dataset()
        points, first = _points(dataset, model, sample_dims)
        if own is trace:
            return points, DataTree(first)
        kept = {name: trace[name] for name in ("constant_data", "observed_data") if name in trace}
        return points, DataTree.from_dict({"posterior": first, **kept})
    if isinstance(trace, Dataset):
        points = Points.of_dataset(trace, model, sample_dims)
        return points, trace.isel({dim: [0] for dim in sample_dims})
    if isinstance(trace, list) and trace and all(isinstance(point, Mapping) for point in trace):
        return Points.of_list(trace), trace[:1]
    raise InputTypeError(
        f"sample_posterior_predictive: trace={shown(trace)}: give a DataTree, a Dataset, a "
        "MultiTrace, or a list of at least one dict"
    )


def _seed(how: How, given: RandomSeed, as_tree: bool) -> Any:
    """The seed of a call, which may be that of its store."""
    if how.store is not None and not as_tree:
        raise InputError(f"{how.what}: store= needs return_inferencedata=True")
    return seed_of(seed_in(how.store, how.groups) if given is None else given)


def _arrays_of(own: Calculation | None, how: How) -> dict[str, np.ndarray]:
    """The results as arrays."""
    found: dict[str, np.ndarray] = {}

    def keep(arrays: Mapping[str, np.ndarray]) -> DataTree:
        found.update(arrays)
        return DataTree()

    if own is not None:
        how.results(own, keep)
    return found


def _extended(trace: object, tree: DataTree) -> DataTree:
    """The trace with the groups of the tree, if it is a tree."""
    if not isinstance(trace, DataTree):
        return tree
    conflicting = set(trace.children) & set(tree.children) - {"observed_data", "constant_data"}
    if conflicting:
        warnings.warn(
            f"groups {conflicting} already exist in the DataTree and will be overwritten. "
            "To avoid this, set extend_inferencedata=False.",
            UserWarning,
            stacklevel=3,
        )
    trace.update(tree)
    return trace


def sample_prior_predictive(
    draws: int = 500,
    model: pm.Model | None = None,
    var_names: Iterable[str] | None = None,
    random_seed: RandomSeed = None,
    return_inferencedata: bool = True,
    idata_kwargs: dict[str, object] | None = None,
    backend: str | None = None,
    compile_kwargs: dict[str, object] | None = None,
    *,
    progressbar: bool = True,
    cores: int | None = None,
    store: str | os.PathLike[str] | None = None,
    on: object = None,
) -> Any:
    """Draw from the prior and the prior predictive distribution with all cores.

    The arguments and the result are those of `pm.sample_prior_predictive`.

    Parameters
    ----------
    draws : int
        Their number.
    model : pymc.Model, optional
        Default: the model of the current context.
    var_names, return_inferencedata, idata_kwargs, backend, compile_kwargs
        As in PyMC.
    random_seed, progressbar, cores, store, on
        As for `sample_posterior_predictive`. The groups in the store are ``prior`` and
        ``prior_predictive``.

    Returns
    -------
    DataTree or dict
        As PyMC's.

    Raises
    ------
    InputError, InputTypeError, WorkerError, WorkerDied, MemoryError
        As `sample_posterior_predictive`.

    Notes
    -----
    Cost: as for `sample_posterior_predictive`.

    Examples
    --------
    >>> import pymc as pm
    >>> import synkhronos as synk, synkhronos.pymc
    >>> with pm.Model() as model:
    ...     mu = pm.Normal("mu")
    >>> tree = synk.pymc.sample_prior_predictive(100, model, random_seed=1)
    >>> tree["prior"]["mu"].shape
    (1, 100)
    """
    what = "sample_prior_predictive"
    draws = check_integer(f"{what}: draws", draws, 1)
    groups = ["prior", "prior_predictive"]
    how = How.of(what, groups, cores, progressbar, store, on, compile_kwargs)
    seed = _seed(how, random_seed, return_inferencedata)
    model = modelcontext(model)
    twin, compiled = _compiling(model)
    one = pm_sample_prior_predictive(
        1,
        twin,
        var_names=None if var_names is None else names_of(var_names),
        random_seed=0,
        return_inferencedata=False,
        backend=backend,
        compile_kwargs=compile_kwargs,
    )
    own = Calculation(compiled.function, compiled.names, [], (1, draws), seed)

    def tree_of(drawn: Mapping[str, np.ndarray]) -> DataTree:
        given = {"model": model, **(idata_kwargs or {})}
        return pm.to_inference_data(prior={name: drawn[name][0] for name in one}, **given)

    if not return_inferencedata:
        arrays = _arrays_of(own, how)
        return {name: arrays[name][0] for name in one}
    return how.results(own, tree_of)
