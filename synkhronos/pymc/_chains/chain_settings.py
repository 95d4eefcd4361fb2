"""The settings that the draws of a run depend on, in one form for all ways to give them.

It is one that JSON holds, so that it is equal to what a folder says of an earlier call.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any

import numpy as np
from pymc import Model

from synkhronos._checks import check_integer, plain
from synkhronos._compiling.kept.digests import Unkeyed
from synkhronos._compiling.kept.keys import portable_key
from synkhronos._libraries.nutpie import NUTPIE
from synkhronos.pymc._density.adaptation import AUTO, name_of_nuts
from synkhronos.pymc._density.metric import DIAG, LOW_RANK

_TUNE = 1000  # by default of `pm.sample`
_OF_STARTS = ("jitter_rvs", "default_initialization_strategy")  # in `compile_kwargs`, of nutpie
_MOST_SHOWN = 20  # numbers of an array; of more, a digest


def settings_of(model: Model, given: Mapping[str, Any], adaptation: str | None) -> dict[str, Any]:
    """Those of a call of `sample` with these arguments of `pm.sample`, as PyMC merges them.

    Raises
    ------
    InputError
        The tuning has no draw, so nothing tells with which metric a run goes on.
    InputTypeError
    """
    tune = given.get("tune")
    nuts = dict(given.get(name_of_nuts(given)) or {})
    if "target_accept" in given:
        nuts["target_accept"] = given["target_accept"]
    if "max_treedepth" in nuts:
        nuts["maxdepth"] = nuts.pop("max_treedepth")
    metric = nuts.pop("adaptation", DIAG)
    metric = AUTO if adaptation == AUTO else metric
    nuts = {k: v for k, v in nuts.items() if not _is_default(metric, k, v)}
    options = given.get("compile_kwargs") or {}
    starts = dict(model.rvs_to_initial_values)
    starts |= options.get("initial_points", given.get("initvals")) or {}
    names = given.get("var_names")
    return {
        "tune": _TUNE if tune is None else check_integer("sample(folder=...): tune", tune, 1),
        "adaptation": metric,
        "nuts": _noted(nuts),
        "var_names": None if names is None else _noted(list(names)),
        "include_transformed": bool((given.get("idata_kwargs") or {}).get("include_transformed")),
        "initvals": _noted({name: value for name, value in starts.items() if value is not None}),
        **{name: _noted(options.get(name)) for name in _OF_STARTS},
    }


def _is_default(metric: object, name: str, value: object) -> bool:
    """Whether nutpie samples as without this setting."""
    if name.startswith("store_"):  # some are none of the sampler itself
        return value is False
    kinds = NUTPIE.get("PyNutsSettings")
    of_metric = {LOW_RANK: [kinds.LowRank], AUTO: [kinds.LowRank, kinds.Diag]}
    for kind in of_metric.get(str(metric), [kinds.Diag]):
        plain, found = kind(0), kind(0)  # of a seed
        try:
            found.update({name: value})
        except (AttributeError, TypeError, ValueError):  # which `pm.sample` then raises
            return False
        if found.as_dict() != plain.as_dict():
            return False
    return True


def digest(value: object) -> str:
    """A digest of a value: that of its type where it has none that is the same in each process."""
    try:
        return portable_key([], [], value)
    except Unkeyed:
        return portable_key([], [], f"{type(value).__module__}.{type(value).__qualname__}")


def _noted(value: object) -> Any:
    value = plain(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return {_name(key): _noted(each) for key, each in sorted(value.items(), key=_first_name)}
    if isinstance(value, Set):
        return sorted(map(_name, value))
    if isinstance(value, list | tuple):
        return [_noted(each) for each in value]
    if isinstance(value, np.ndarray) and value.size <= _MOST_SHOWN and not value.dtype.hasobject:
        return value.tolist()
    return digest(value)


def _name(thing: object) -> str:
    return str(getattr(thing, "name", thing))


def _first_name(pair: tuple[object, object]) -> str:
    return _name(pair[0])
