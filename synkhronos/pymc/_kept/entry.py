"""A compiled model of nutpie as bytes, and back."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
from pymc import Model
from pytensor.graph.basic import Constant, Variable

from synkhronos._compiling.compile_cache import uncacheable
from synkhronos._compiling.kept.keys import Unkeyed
from synkhronos._compiling.kept.machine_code import CFunction
from synkhronos._compiling.kept.pickles import pickled, unpickled
from synkhronos._libraries.nutpie import NUTPIE
from synkhronos.pymc._kept.graphs import Graphs
from synkhronos.pymc._kept.start import Start, packed_start

_PLAIN = ("_n_dim", "n_expanded", "shape_info", "reparameterized_names")


def packed(compiled: Any, graphs: Graphs) -> bytes:
    """A model that nutpie has compiled, without its data, dims and coordinates.

    Raises
    ------
    Unkeyed
        Its code holds addresses of this process or calls Python, or it reads data that are not of
        the graphs.
    """
    codes = [compiled.compiled_logp_func.code, compiled.compiled_expand_func.code]
    for function in (compiled.logp_func, compiled.expand_func):
        for reason in uncacheable(function):
            raise Unkeyed(reason)
    if None in codes:
        raise Unkeyed("its machine code holds addresses of this process")
    numbers = {id(v.container): number for number, v in enumerate(graphs.shared)}
    record = [(key, numbers.get(id(v.container))) for v, key in compiled.shared_var_keys.items()]
    if any(number is None for _, number in record):
        raise Unkeyed("its log-density reads data that are not of the model")
    return pickled(
        {
            "plain": {name: getattr(compiled, name) for name in _PLAIN},
            "record": record,
            "codes": codes,
            "start": packed_start(compiled.initial_point_func, graphs.shared),
        }
    )


def unpacked(entry: bytes, graphs: Graphs) -> Any:
    """The compiled model, with the data, dims and coordinates of the model of these graphs."""
    found = unpickled(entry)
    plain = found["plain"]
    names, _, shapes = plain["shape_info"]
    lengths = {name: tuple(map(int, shape)) for name, shape in zip(names, shapes, strict=True)}
    keys = {graphs.shared[number]: key for key, number in found["record"]}
    data = {key: np.array(v.get_value(), order="C", copy=True) for v, key in keys.items()}
    for value in data.values():
        value.flags.writeable = False
    log_density, expansion = map(CFunction.of, found["codes"])
    free = {name: lengths[name] for name in names[: len(graphs.model.free_RVs)]}
    dims, coords = NUTPIE.get("_prepare_dims_and_coords")(
        _named(graphs.model), plain["shape_info"], plain["reparameterized_names"]
    )
    return NUTPIE.get("CompiledPyMCModel")(
        **plain,
        dims=dims,
        _coords=coords,
        _shapes=lengths,
        compiled_logp_func=log_density,
        compiled_expand_func=expansion,
        initial_point_func=Start(found["start"], graphs.shared, free),
        shared_data=data,
        shared_var_keys=keys,
        user_data=NUTPIE.get("make_user_data")(keys, data),
        logp_func=None,
        expand_func=None,
    )


def _named(model: Model) -> object:
    """The names of a model, with coordinates for each dimension: nutpie compiles their lengths."""
    coords = {
        name: range(_length(model.dim_lengths[name])) if values is None else values
        for name, values in model.coords.items()
    }
    parts = ("value_vars", "values_to_rvs", "named_vars_to_dims")
    return SimpleNamespace(coords=coords, **{name: getattr(model, name) for name in parts})


def _length(length: Variable) -> int:
    if isinstance(length, Constant):
        return int(length.data)
    value = getattr(length, "get_value", length.eval)
    return int(value())
