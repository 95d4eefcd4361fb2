"""Which rows are left out together. For one seed, folds of `k` are those of ArviZ's `loo_kfold`."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from functools import partial
from itertools import combinations
from typing import Any

import numpy as np
import pymc as pm
from xarray import DataArray

from synkhronos._checks import check_integer, or_none, shown
from synkhronos._errors import InputError
from synkhronos.pymc._after.labels import in_order

_WHAT = "cross_validate"
_K = 10  # folds


def folds_of(
    model: pm.Model,
    rows: DataArray,
    k: int | None,
    given: Mapping[str, Any],  # by, folds, stratify_by and group_by; all but one are None
    seed: int | None,
) -> dict[str, np.ndarray]:
    """The numbers of the rows in each fold, by the names of folds."""
    count = rows.size
    numbers = {name: value for name, value in given.items() if value is not None}
    if "by" in numbers:
        by = numbers["by"]
        values = _named(model, rows, by) if isinstance(by, str) else _of_rows(rows, "by", by)
        return _of_values("by", values)
    if "folds" in numbers:
        _, places = _levels("folds", _of_rows(rows, "folds", numbers["folds"]))
        return _of_values("folds", places + 1)
    k = _K if k is None else k
    _check_folds(k, count, "rows")
    rng = np.random.default_rng(seed)
    if "stratify_by" in numbers:
        found = _stratified(_of_rows(rows, "stratify_by", numbers["stratify_by"]), k, rng)
    elif "group_by" in numbers:
        levels, place = _levels("group_by", _of_rows(rows, "group_by", numbers["group_by"]))
        _check_folds(k, len(levels), "groups of group_by")
        of_level = np.arange(k) if len(levels) == k else _random(len(levels), k, rng)
        found = of_level[place]
    else:
        found = _random(count, k, rng)
    return _of_values("k", found + 1)


def check_folds(k: object, given: Mapping[str, Any], seed: object) -> None:
    """Check the arguments of `cross_validate` that need no rows.

    Raises
    ------
    InputError
    """
    or_none(check_integer, f"{_WHAT}: k", k, 2)
    or_none(check_integer, f"{_WHAT}: seed", seed, 0)
    named = [name for name, value in given.items() if value is not None]
    if len(named) > 1:
        raise InputError(f"{_WHAT}: {named[0]}= with {named[1]}=: give one of them")
    if k is not None and named and named[0] in ("by", "folds"):
        raise InputError(
            f"{_WHAT}: k={k} with {named[0]}=, whose values are the folds: leave k out, or give "
            "group_by= for k folds of whole groups"
        )


def _check_folds(k: int, count: int, what: str) -> None:
    if k > count:
        raise InputError(f"{_WHAT}: k={k} folds of {count} {what}: give at most {count}")


def _named(model: pm.Model, rows: DataArray, by: str) -> np.ndarray:
    """The values of a dim of the rows, or of data of the model."""
    if by in rows.dims:
        values = rows[by] if by in rows.coords else DataArray(np.arange(rows.sizes[by]), dims=by)
        return _flat(rows, values)
    data = {v.name: v for v in model.data_vars}
    if by not in data:
        raise InputError(
            f"{_WHAT}: by={by!r}: {rows.name} has the dims {[str(dim) for dim in rows.dims]}, and "
            f"the model has the data {sorted(data)}: name one of these, or give an array with the "
            "group of each row"
        )
    found = np.asarray(data[by].eval())
    dims = model.named_vars_to_dims.get(by) or (None,) * found.ndim
    named = set(dims) <= set(rows.dims)
    ways = [
        way
        for way in ([dims] if named else combinations(rows.dims, found.ndim))
        if found.shape == tuple(rows.sizes[dim] for dim in way)
        and all(map(partial(_may_be, model), dims, way))
    ]
    if len(ways) == 1:
        return _flat(rows, DataArray(found, dims=ways[0]))
    own = f"the dims {list(dims)}" if any(dims) else "no dims"
    several = "several dims are as long; " if ways else ""
    raise InputError(
        f"{_WHAT}: by={by!r} has the shape {found.shape} and {own}, and {rows.name} has "
        f"{dict(rows.sizes)}: {several}name the dims of these rows in pm.Data(dims=), or give an "
        "array with the group of each row"
    )


def _may_be(model: pm.Model, dim: str | None, of_rows: Hashable) -> bool:
    """Whether a dim of data may be one of the rows: the same, or one of both has no name."""
    return dim is None or dim == of_rows or of_rows not in model.dim_lengths


def _of_rows(rows: DataArray, name: str, given: Any) -> np.ndarray:
    """A value for each row, flat."""
    if isinstance(given, DataArray) and given.dims and set(given.dims) <= set(rows.dims):
        return _flat(rows, in_order(f"{_WHAT}: {name}", given, rows))
    values = np.asarray(given)
    if values.shape in ((rows.size,), rows.shape):
        return values.ravel()
    has = f"{values.size} values" if values.size != rows.size else f"the shape {values.shape}"
    raise InputError(
        f"{_WHAT}: {name}={shown(given)} has {has}, and {rows.name} has {rows.size} rows of the "
        f"shape {rows.shape}: give one for each, in a list or in this shape"
    )


def _flat(rows: DataArray, values: DataArray) -> np.ndarray:
    bare = DataArray(values.values, dims=values.dims)
    like = DataArray(np.empty(rows.shape, np.int8), dims=rows.dims)
    return bare.broadcast_like(like).transpose(*rows.dims).values.ravel()


def _of_values(name: str, values: np.ndarray) -> dict[str, np.ndarray]:
    """A fold for each value."""
    levels, place = _levels(name, values)
    if len(levels) < 2:
        raise InputError(f"{_WHAT}: {name} has one value, and a fit without all rows knows nothing")
    order = np.argsort(place, kind="stable")
    ends = np.cumsum(np.bincount(place))[:-1]
    return {str(v): own for v, own in zip(levels, np.split(order, ends), strict=True)}


def _levels(name: str, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The different values, and the place among them of the value of each row."""
    number = values.dtype.kind in "fc"
    if (~np.isfinite(values) if number else DataArray(values).isnull().values).any():
        raise InputError(
            f"{_WHAT}: {name} has values that are not finite, or None: give a group to each row"
        )
    try:
        levels, place = np.unique(values, return_inverse=True)
    except TypeError:
        raise InputError(
            f"{_WHAT}: {name} has values of several kinds, such as texts and numbers, which have "
            "no order: give values of one kind"
        ) from None
    return levels, place


def _random(count: int, k: int, rng: np.random.Generator) -> np.ndarray:
    """Folds of about equal size; the first ones have one row more."""
    sizes = np.full(k, count // k) + (np.arange(k) < count % k)
    return np.repeat(np.arange(k), sizes)[rng.permutation(count)]


def _stratified(values: np.ndarray, k: int, rng: np.random.Generator) -> np.ndarray:
    """The rows of each value are dealt out to the folds in turn."""
    levels, place = _levels("stratify_by", values)
    each = [np.flatnonzero(place == level) for level in range(len(levels))]
    order = np.concatenate([rng.permutation(own) if len(own) > 1 else own for own in each])
    found = np.empty(len(values), int)
    found[order] = np.arange(len(values)) % k
    return found
