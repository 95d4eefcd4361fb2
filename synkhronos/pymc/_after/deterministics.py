"""`compute_deterministics`."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pymc as pm
from pymc.model import modelcontext
from pymc.pytensorf import resolve_backend_compile_kwargs
from pytensor.graph.replace import clone_replace
from xarray import Dataset, DataTree, merge

from synkhronos._errors import InputError
from synkhronos.pymc._after.calculation import Calculation
from synkhronos.pymc._after.division import How
from synkhronos.pymc._after.points import Points, names_of
from synkhronos.pymc._density import functions

_GROUP = "deterministics"


def compute_deterministics(
    dataset: Dataset | DataTree,
    *,
    group: str | None = None,
    var_names: Sequence[str] | None = None,
    model: pm.Model | None = None,
    sample_dims: Sequence[str] = ("chain", "draw"),
    merge_dataset: bool = False,
    extend_dataset: bool = False,
    progressbar: bool = True,
    backend: str | None = None,
    compile_kwargs: dict[str, object] | None = None,
    cores: int | None = None,
    store: str | os.PathLike[str] | None = None,
    on: object = None,
) -> Any:
    """Compute deterministic variables for each draw, with all cores.

    The arguments and the result are those of `pm.compute_deterministics`, up to rounding. One that
    depends on an observed variable, as with missing values, has the observed values, as in
    `pm.sample`; PyMC draws others here.

    Parameters
    ----------
    dataset : Dataset or DataTree
        A group such as the posterior, or a tree that has it.
    group, var_names, model, sample_dims, merge_dataset, extend_dataset, backend, compile_kwargs
        As in PyMC.
    progressbar, cores, store, on
        As for `sample_posterior_predictive`. The group in the store is ``deterministics``.

    Returns
    -------
    Dataset or DataTree
        As PyMC's.

    Raises
    ------
    InputError, InputTypeError, WorkerError, WorkerDied, MemoryError
        As `sample_posterior_predictive`.

    Notes
    -----
    Cost: one compilation, then each draw once. Memory: the result; with `store` some chunks in each
    process.

    Examples
    --------
    >>> import numpy as np, pymc as pm, xarray as xr
    >>> import synkhronos as synk, synkhronos.pymc
    >>> with pm.Model() as model:
    ...     mu = pm.Normal("mu")
    ...     double = pm.Deterministic("double", 2 * mu)
    >>> posterior = xr.Dataset({"mu": (("chain", "draw"), np.ones((1, 2)))})
    >>> synk.pymc.compute_deterministics(posterior, model=model)["double"].values
    array([[2., 2.]])
    """
    what = "compute_deterministics"
    how = How.of(what, [_GROUP], cores, progressbar, store, on, compile_kwargs)
    sample_dims = names_of(sample_dims)
    if merge_dataset and extend_dataset:
        raise InputError(f"{what}: give either merge_dataset or extend_dataset, not both")
    if merge_dataset:
        warnings.warn(
            "`merge_dataset` is deprecated in PyMC: use `extend_dataset=True`",
            FutureWarning,
            stacklevel=2,
        )
    node = _selected(dataset, group)
    model = modelcontext(model)
    known = {v.name: v for v in model.deterministics}
    names = list(known) if var_names is None else names_of(var_names)
    if unknown := [name for name in names if name not in known]:
        raise InputError(
            f"{what}: var_names={names}: {unknown[0]!r} is no deterministic variable of the model; "
            f"these are {sorted(known)}"
        )
    of_group = node.to_dataset() if isinstance(node, DataTree) else node
    inputs = [v.name for v in model.free_RVs]
    points = Points.of_dataset(of_group, model, sample_dims)
    given = resolve_backend_compile_kwargs(backend, compile_kwargs)
    places = {v: v.type(name=v.name) for v in model.free_RVs}
    observed = {v: model.rvs_to_values[v] for v in model.observed_RVs}
    function = functions.compiled(
        model.compile_fn,
        clone_replace([known[n] for n in names], replace=places | observed, rebuild_strict=False),
        inputs=list(places.values()),
        **{"on_unused_input": "ignore", "mode": None, "point_fn": False, **given},
    )

    def tree_of(found: Mapping[str, np.ndarray]) -> DataTree:
        return DataTree.from_dict({_GROUP: points.dataset(found, model, sample_dims)})

    own = Calculation(function, names, points.inputs_of(function, inputs), points.sample_shape)
    new = how.results(own, tree_of)[_GROUP].to_dataset()
    if extend_dataset:
        node.update(new)
        return dataset
    return merge([of_group, new], compat="override") if merge_dataset else new


def _selected(dataset: Dataset | DataTree, group: str | None) -> Dataset | DataTree:
    """The group of a tree, as PyMC chooses it."""
    whole = isinstance(dataset, DataTree) and dataset.children
    if not whole:
        if group is not None:
            raise InputError(f"group={group!r}: a single group is given, not a tree of groups")
        return dataset
    for name in ("posterior", "prior") if group is None else (group,):
        if name in dataset.children:
            return dataset.children[name]
    raise InputError(
        f"compute_deterministics: there is no group {group or 'posterior or prior'}; groups are "
        f"{sorted(dataset.children)}"
    )
