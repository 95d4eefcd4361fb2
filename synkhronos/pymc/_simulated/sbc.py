"""`sbc`: simulation-based calibration of a model and its sampler."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pymc as pm
from xarray import DataArray, Dataset, DataTree

from synkhronos._checks import check_integer, shown
from synkhronos._compiling.kept.keys import portable_key
from synkhronos._errors import InputError, InputTypeError, SynkhronosError
from synkhronos._libraries.pymc import fgraph_from_model
from synkhronos.pymc._after.points import names_of
from synkhronos.pymc._after.predictive import sample_prior_predictive
from synkhronos.pymc._map.digests import digest_of
from synkhronos.pymc._map.mapped import map as map_items
from synkhronos.pymc._reading.models import model_of, without_initial_values
from synkhronos.pymc._refits.fits import options_of, refuse_parts, warn_of_divergences
from synkhronos.pymc._simulated.simulation import Simulation, Simulator, Transform, simulated

_LEAST_EFFICIENCY = 0.5  # effective draws for each draw that is compared


def sbc(
    model: pm.Model | None = None,
    num_simulations: int = 1000,
    *,
    simulator: Simulator | None = None,
    transform: Transform | None = None,
    var_names: str | Sequence[str] | None = None,
    thin: int = 4,
    random_seed: int | None = None,
    **kwargs: Any,
) -> DataTree:
    """Check a model and its sampler by simulation-based calibration.

    Parameters are drawn from the prior, and data from these. Fits to the data are items of `map`,
    with one compilation for all of them. If all is right, the rank of each parameter among the
    draws of its fit is uniform. The result has the layout of `simuk.SBC`'s, for ArviZ's plots.

    Parameters
    ----------
    model : pymc.Model, optional
        Default: the model of the current context. Its data say the shapes alone.
    num_simulations : int
        The number of data sets, and of fits.
    simulator : callable, optional
        Makes the data in place of the model, as in simuk: it gets the parameters and
        Deterministics by name, and ``seed``, and returns a dict of arrays for observed variables.
    transform : callable, optional
        As in simuk: gets a name and a value, of a parameter or of a draw; its result is ranked.
    var_names : str or sequence of str, optional
        Parameters or Deterministics that are ranked. Default: all parameters.
    thin : int
        Every draw of this number is compared: ranks among draws that correlate are not uniform.
    random_seed : int, optional
        All follows from it: parameters, data, and draws. Needed with `folder`.
    **kwargs
        Arguments of `map`, such as on, cores, members, folder and limit; and of `pm.sample`,
        such as draws, tune and target_accept. Default: ``chains=2``.

    Returns
    -------
    DataTree
        Group ``prior_sbc``: for each variable the ranks, integers from 0 to ``compared``, of
        dims chain (one), draw (a simulation each) and those of the variable. ``compared`` is an
        attribute: the number of draws of a fit that are compared. Group ``prior``: the parameters
        that the data come from. Simulations whose fit has failed are left out.

    Raises
    ------
    InputError, InputTypeError
        An argument is not possible, the folder is of another seed, the model has a Potential, which
        the prior has not, or it observes nothing. Nothing was started. Or the folder has results of
        another model: nothing was fitted.
    SynkhronosError
        All fits have failed; or as for `map`.

    Warns
    -----
    UserWarning
        Fits have failed, draws diverged, or draws that are compared correlate.

    Notes
    -----
    Cost: prior draws in all cores, a copy of the model for each fit, and the fits. All simulated
    data are in memory, as arrays and as items. Ranks do not depend on the number of processes, or
    on `on`; those of the first simulations do not depend on `num_simulations`.

    Of draws that equal a parameter, as discrete ones may, a random number counts as below it.

    S. Talts, M. Betancourt, D. Simpson, A. Vehtari, A. Gelman, "Validating Bayesian Inference
    Algorithms with Simulation-Based Calibration", arXiv:1804.06788.

    Examples
    --------
    ::

        ranks = synk.pymc.sbc(model, 500, folder="calibration", random_seed=1, draws=200)
        az.plot_ecdf_pit(ranks)
    """
    model = model_of(model, "sbc")
    count = check_integer("sbc: num_simulations", num_simulations, 1)
    thin = check_integer("sbc: thin", thin, 1)
    for name, given in (("simulator", simulator), ("transform", transform)):
        if given is not None and not callable(given):
            raise InputTypeError(f"sbc: {name}={shown(given)}: give a function")
    names = _names(model, var_names, simulator)
    refuse_parts("sbc")
    if random_seed is None:
        if kwargs.get("folder") is not None:
            raise InputError("sbc: folder= needs random_seed=, from which the data follow")
        random_seed = int(np.random.SeedSequence().generate_state(1, np.uint64)[0])
    seed = check_integer("sbc: random_seed", random_seed, 0)
    options = {"chains": 2, **kwargs, "random_seed": seed}
    of_map, own = options_of("sbc", options, "fits to simulated data")
    of = _digest(model, names, own, (thin, transform, simulator))
    truths, data = _drawn(model, names, count, seed, simulator, of_map.get("cores"))
    if simulator is not None:
        first = simulated(simulator, {name: v[0] for name, v in truths.items()}, seed % 2**30)
        names = _not_simulated(model, names, first)
    items = {
        i: {
            "truth": {name: values[i] for name, values in truths.items()},
            "data": {name: values[i] for name, values in data.items()},
            "of": of,
        }
        for i in range(count)
    }
    fit = Simulation(model, names, own, of_map.get("members", 1), thin, transform, simulator)
    found = map_items(fit, items, **of_map)
    results: dict[Any, dict[str, Any]] = dict(found)
    if not results:
        why = next(iter(found.failed.values()))
        raise SynkhronosError(f"sbc: all {count} fits have failed. The first of them: {why}")
    _warn(results, count)
    return _tree(model, results, {name: truths[name] for name in names})


def _names(model: pm.Model, given: Any, simulator: object) -> list[str]:
    """The names of the variables that are ranked."""
    if model.potentials:
        raise InputError(
            f"sbc: the model has a Potential, {model.potentials[0].name}, which draws from the "
            "prior do not follow: ranks would not be uniform. Write it as a distribution"
        )
    if simulator is None and not model.observed_RVs:
        raise InputError("sbc: the model observes nothing: give data, or simulator=")
    if not model.free_RVs:
        raise InputError("sbc: the model has no parameters")
    there = [v.name for v in (*model.free_RVs, *model.deterministics)]
    names = [v.name for v in model.free_RVs] if given is None else list(names_of(given))
    if unknown := [name for name in names if name not in there]:
        raise InputError(f"sbc: var_names: there is no {unknown[0]!r}; there are {there}")
    return names


def _not_simulated(model: pm.Model, names: Sequence[str], data: Mapping[str, object]) -> list[str]:
    """The names without those of variables that a simulator makes."""
    there = [v.name for v in model.basic_RVs]
    if unknown := [name for name in data if name not in there]:
        raise InputError(
            f"sbc: simulator has made {unknown[0]!r}, which is no random variable of the model: "
            f"these are {there}"
        )
    left = [v.name for v in model.observed_RVs if v.name not in data]
    if left:
        raise InputError(f"sbc: simulator has not made {left[0]!r}, which the model observes")
    return [name for name in names if name not in data]


def _digest(
    model: pm.Model, names: Sequence[str], arguments: Mapping[str, object], more: tuple[Any, ...]
) -> str:
    """Tells whether results in a folder are of this model and these arguments."""
    try:
        graph, _ = fgraph_from_model(without_initial_values(model))
        key = portable_key([], graph.outputs, *more)
    except NotImplementedError:  # it has a part without a key; the data still tell much
        key = ""
    values = [v.get_value(borrow=True) for v in model.data_vars if hasattr(v, "get_value")]
    return digest_of((key, list(names), values, sorted(map(str, arguments.items()))))


def _drawn(
    model: pm.Model,
    names: Sequence[str],
    count: int,
    seed: int,
    simulator: object,
    cores: int | None,
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Parameters of each simulation, and its data unless a simulator makes them."""
    observed = [] if simulator is not None else [v.name for v in model.observed_RVs]
    wanted = list(names)
    if simulator is not None:
        wanted = [v.name for v in (*model.free_RVs, *model.deterministics)]
    drawn: dict[str, np.ndarray] = sample_prior_predictive(
        count,
        model,
        [*wanted, *observed],
        [int(word) for word in np.random.SeedSequence(seed).generate_state(4)],
        return_inferencedata=False,
        progressbar=False,
        cores=cores,
    )
    return {n: drawn[n] for n in wanted}, {n: drawn[n] for n in observed}


def _warn(results: Mapping[Any, Mapping[str, Any]], count: int) -> None:
    if len(results) < count:
        warnings.warn(
            f"sbc: {count - len(results)} of {count} fits have failed, and are left out. Ranks of "
            "the others may not be uniform: the log says why they failed",
            UserWarning,
            stacklevel=3,
        )
    warn_of_divergences("sbc", {name: found["diverged"] for name, found in results.items()}, 4)
    known = [e for found in results.values() if np.isfinite(e := found["efficiency"])]
    least = float(np.median(known)) if known else 1.0  # none: of draws that are all alike
    if least < _LEAST_EFFICIENCY:
        warnings.warn(
            f"sbc: the draws that are compared correlate: each is worth {least:.2g} draws, so "
            f"ranks may be uneven. Multiply thin= by {math.ceil(1 / least)}, and give more draws",
            UserWarning,
            stacklevel=3,
        )


def _tree(
    model: pm.Model, results: Mapping[Any, Mapping[str, Any]], truths: Mapping[str, np.ndarray]
) -> DataTree:
    """Ranks and parameters, in the groups and dims of simuk."""
    numbers = list(results)
    first = results[numbers[0]]
    ranks = {
        name: _stacked(one, np.stack([results[i]["ranks"][name].values for i in numbers]))
        for name, one in first["ranks"].items()
    }
    prior = {
        name: DataArray(
            values[numbers][None], dims=("chain", "draw", *_dims_of(model, name, values.ndim - 1))
        )
        for name, values in truths.items()
    }
    where = {"chain": [0], "draw": numbers}
    known = {dim: list(values) for dim, values in model.coords.items() if values is not None}
    dims = {dim for each in prior.values() for dim in each.dims}
    return DataTree.from_dict(
        {
            "prior_sbc": Dataset(ranks, coords=where, attrs={"compared": first["compared"]}),
            "prior": Dataset(
                prior, coords={**where, **{dim: known[dim] for dim in dims & known.keys()}}
            ),
        }
    )


def _stacked(one: DataArray, values: np.ndarray) -> DataArray:
    """An array like `one` for each simulation, in one chain."""
    coords = {dim: one.coords[dim] for dim in one.dims if dim in one.coords}
    return DataArray(values[None], dims=("chain", "draw", *one.dims), coords=coords)


def _dims_of(model: pm.Model, name: str, ndim: int) -> list[str]:
    given = model.named_vars_to_dims.get(name) or (None,) * ndim
    return [dim or f"{name}_dim_{i}" for i, dim in enumerate(given)]
