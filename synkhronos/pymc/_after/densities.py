"""`compute_log_likelihood` and `compute_log_prior`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pymc as pm
from pymc.model import modelcontext
from pymc.model.transform.conditioning import remove_value_transforms
from pymc.pytensorf import resolve_backend_compile_kwargs
from xarray import Dataset, DataTree

from synkhronos._errors import InputError
from synkhronos.pymc._after.calculation import Calculation
from synkhronos.pymc._after.division import How
from synkhronos.pymc._after.points import Points, names_of
from synkhronos.pymc._density import functions
from synkhronos.pymc._reading.models import without_initial_values


def compute_log_likelihood(
    idata: DataTree,
    *,
    var_names: Sequence[str] | None = None,
    extend_inferencedata: bool = True,
    model: pm.Model | None = None,
    sample_dims: Sequence[str] = ("chain", "draw"),
    progressbar: bool = True,
    backend: str | None = None,
    compile_kwargs: dict[str, object] | None = None,
    cores: int | None = None,
    store: str | os.PathLike[str] | None = None,
    on: object = None,
) -> Any:
    """Compute the log-likelihood of each observation and draw, with all cores.

    The arguments and the result are those of `pm.compute_log_likelihood`; numbers are equal up to
    rounding. For PSIS-LOO only, `loo` needs no such array.

    Parameters
    ----------
    idata : DataTree
        Has the group ``posterior``.
    var_names, extend_inferencedata, model, sample_dims, backend, compile_kwargs
        As in PyMC.
    progressbar, cores, store, on
        As for `sample_posterior_predictive`. The group in the store is ``log_likelihood``.

    Returns
    -------
    DataTree or Dataset
        As PyMC's.

    Raises
    ------
    InputError, InputTypeError, WorkerError, WorkerDied, MemoryError
        As `sample_posterior_predictive`.

    Notes
    -----
    Cost: one compilation, then each draw once. Memory: the result, of 8 bytes for each observation
    and draw; with `store` some chunks in each process.

    Examples
    --------
    >>> import numpy as np, pymc as pm, xarray as xr
    >>> import synkhronos as synk, synkhronos.pymc
    >>> with pm.Model() as model:
    ...     mu = pm.Normal("mu")
    ...     y = pm.Normal("y", mu, observed=np.zeros(3))
    >>> posterior = xr.Dataset({"mu": (("chain", "draw"), np.zeros((2, 5)))})
    >>> idata = xr.DataTree.from_dict({"posterior": posterior})
    >>> idata = synk.pymc.compute_log_likelihood(idata, model=model)
    >>> idata["log_likelihood"]["y"].shape
    (2, 5, 3)
    """
    what, groups = "compute_log_likelihood", ["log_likelihood"]
    how = How.of(what, groups, cores, progressbar, store, on, compile_kwargs)
    given = resolve_backend_compile_kwargs(backend, compile_kwargs)
    own = var_names, extend_inferencedata, model, sample_dims, given
    return _compute_log_density(how, idata, "likelihood", *own)


def compute_log_prior(
    idata: DataTree,
    *,
    var_names: Sequence[str] | None = None,
    extend_inferencedata: bool = True,
    model: pm.Model | None = None,
    sample_dims: Sequence[str] = ("chain", "draw"),
    progressbar: bool = True,
    backend: str | None = None,
    compile_kwargs: dict[str, object] | None = None,
    cores: int | None = None,
    store: str | os.PathLike[str] | None = None,
    on: object = None,
) -> Any:
    """Compute the log-density of each free variable's prior for each draw, with all cores.

    The arguments and the result are those of `pm.compute_log_prior`, up to rounding.

    Parameters
    ----------
    idata : DataTree
        Has the group ``posterior``.
    var_names, extend_inferencedata, model, sample_dims, backend, compile_kwargs
        As in PyMC.
    progressbar, cores, store, on
        As for `sample_posterior_predictive`. The group in the store is ``log_prior``.

    Returns
    -------
    DataTree or Dataset
        As PyMC's.

    Raises
    ------
    InputError, InputTypeError, WorkerError, WorkerDied, MemoryError
        As `sample_posterior_predictive`.

    Notes
    -----
    Cost: as for `compute_log_likelihood`.

    Examples
    --------
    >>> import numpy as np, pymc as pm, xarray as xr
    >>> import synkhronos as synk, synkhronos.pymc
    >>> with pm.Model() as model:
    ...     mu = pm.Normal("mu")
    >>> posterior = xr.Dataset({"mu": (("chain", "draw"), np.zeros((2, 5)))})
    >>> idata = xr.DataTree.from_dict({"posterior": posterior})
    >>> synk.pymc.compute_log_prior(idata, model=model)["log_prior"]["mu"].shape
    (2, 5)
    """
    what, groups = "compute_log_prior", ["log_prior"]
    how = How.of(what, groups, cores, progressbar, store, on, compile_kwargs)
    given = resolve_backend_compile_kwargs(backend, compile_kwargs)
    own = var_names, extend_inferencedata, model, sample_dims, given
    return _compute_log_density(how, idata, "prior", *own)


def _compute_log_density(
    how: How,
    idata: DataTree,
    kind: str,
    var_names: Sequence[str] | None,
    extend: bool,
    model: pm.Model | None,
    sample_dims: Sequence[str],
    given: dict[str, Any],  # arguments of `Model.compile_fn`
) -> Any:
    [group] = how.groups
    sample_dims = names_of(sample_dims)
    model = modelcontext(model)
    points = Points.of_dataset(posterior_of(idata, how.what), model, sample_dims)
    density = Density(model, kind, var_names)
    function = density.compiled(given)
    inputs = points.inputs_of(function, density.inputs)
    own = Calculation(function, density.names, inputs, points.sample_shape)

    def tree_of(found: Mapping[str, np.ndarray]) -> DataTree:
        dataset = points.dataset(found, density.model, sample_dims)
        return DataTree.from_dict({group: dataset})

    dataset = how.results(own, tree_of)[group].to_dataset()
    if not extend:
        return dataset
    idata[group] = DataTree(dataset)
    return idata


class Density:
    """The log-densities of variables of a model, element by element, at untransformed values."""

    def __init__(self, model: pm.Model, kind: str, var_names: Sequence[str] | None) -> None:
        # draws have no transformed values
        self.model = remove_value_transforms(without_initial_values(model))
        observed = kind == "likelihood"
        target = self.model.observed_RVs if observed else self.model.free_RVs
        self.names = [v.name for v in target] if var_names is None else names_of(var_names)
        known = {v.name for v in target}
        if unknown := [name for name in self.names if name not in known]:
            raise InputError(
                f"var_names={list(self.names)}: {unknown[0]!r} is no "
                f"{'observed' if observed else 'free'} variable of the model; these are "
                f"{sorted(known)}"
            )
        self.inputs = [v.name for v in self.model.free_RVs]

    @property
    def values(self) -> list[Any]:
        """The input variables of the log-densities."""
        return [self.model.rvs_to_values[v] for v in self.model.free_RVs]

    @property
    def graphs(self) -> list[Any]:
        """The log-densities, one for each name."""
        variables = [self.model.named_vars[name] for name in self.names]
        found: list[Any] = self.model.logp(vars=variables, sum=False)
        return found

    def compiled(self, given: Mapping[str, Any]) -> Any:
        """The compiled function; `given` are arguments of `Model.compile_fn`."""
        return self.compiled_from(self.graphs, self.values, given)

    def compiled_from(self, graphs: Any, inputs: Any, given: Mapping[str, Any]) -> Any:
        """The same of other graphs."""
        return compiled_from(self.model, graphs, inputs, given)


def compiled_from(model: pm.Model, graphs: Any, inputs: Any, given: Mapping[str, Any]) -> Any:
    """A function of variables of a model; `given` are arguments of `Model.compile_fn`."""
    options = {"on_unused_input": "ignore", "mode": None, "point_fn": False, **given}
    return functions.compiled(model.compile_fn, graphs, inputs=inputs, **options)


def posterior_of(idata: DataTree, what: str) -> Dataset:
    """The posterior of a tree, as a dataset."""
    try:
        found = idata["posterior"]
    except (KeyError, TypeError):
        raise InputError(f"{what}: idata has no group posterior, as pm.sample returns it") from None
    return found.to_dataset() if hasattr(found, "to_dataset") else found
