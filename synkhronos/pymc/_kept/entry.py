"""A compiled model of nutpie as bytes, and back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
from pymc import Model
from pytensor.graph.basic import Apply, Variable
from pytensor.tensor.type import TensorType

from synkhronos._compiling.compile_cache import uncacheable
from synkhronos._compiling.data.lifted import Data, digest
from synkhronos._compiling.kept.digests import Unkeyed
from synkhronos._compiling.kept.machine_code import ANOTHER_LENGTH, CFunction
from synkhronos._compiling.kept.pickles import pickled, unpickled
from synkhronos._libraries.nutpie import NUTPIE
from synkhronos.pymc._density.nutpie import recorded
from synkhronos.pymc._kept.graphs import Graphs
from synkhronos.pymc._kept.lengths import functions_for, packed_functions
from synkhronos.pymc._kept.start import Start, packed_graph, packed_start, unpacked_graph
from synkhronos.pymc._reading.models import length_of

_PLAIN = ("_n_dim", "n_expanded", "shape_info", "reparameterized_names")


def packed(compiled: Any, graphs: Graphs) -> bytes:
    """A model that nutpie has compiled, without its data, dims and coordinates.

    Raises
    ------
    Unkeyed
        Its code holds addresses of this process or calls Python, or it reads data that are not of
        the graphs.
    """
    codes = [made.code for made, _ in _functions(compiled)]
    for made, function in _functions(compiled):
        for reason in () if made.fixed else uncacheable(function):
            raise Unkeyed(reason)
    if None in codes:
        raise Unkeyed("its machine code holds addresses of this process")
    record, once = _record(compiled, graphs)
    return pickled(
        {
            "plain": {name: getattr(compiled, name) for name in _PLAIN},
            "record": record,
            "shapes": [compiled.shared_data[key].shape for key, _ in record],
            "fixed": is_fixed(compiled),
            "graphs": packed_functions(compiled) if is_fixed(compiled) else [],
            "once": once,
            "codes": codes,
            "start": packed_start(compiled.initial_point_func, graphs.shared),
        }
    )


def is_fixed(compiled: Any) -> bool:
    """Whether functions of a compiled model fit data of the same lengths alone."""
    return any(made.fixed for made, _ in _functions(compiled))


def _functions(compiled: Any) -> list[tuple[CFunction, Any]]:
    """The C functions, and PyTensor's functions that they were made of."""
    return [
        (compiled.compiled_logp_func, compiled.logp_func),
        (compiled.compiled_expand_func, compiled.expand_func),
    ]


def unpacked(entry: bytes, graphs: Graphs) -> Any:
    """The compiled model, with the data, dims and coordinates of the model of these graphs.

    Raises
    ------
    Unkeyed
        Its code is for data of other lengths.
    """
    found = unpickled(entry)
    keys, values = _read(found["record"], found["once"], graphs)
    if found["fixed"] and _shapes(values) != found["shapes"]:
        raise Unkeyed("its code is for data of other lengths")
    data, record = recorded(keys, values)
    functions = [replace(CFunction.of(code), fixed=found["fixed"]) for code in found["codes"]]
    if found["fixed"]:
        size, expanded = _numbers(found)
        _refuse_other_lengths(functions[0], size, [*size, *size, 1], record)
        _refuse_other_lengths(functions[1], expanded, expanded, record)
    return _model(found, graphs, functions, keys, data, record)


def with_lengths(entry: bytes, graphs: Graphs) -> tuple[Any, bytes | None]:
    """The compiled model with code for the lengths of other data, and its entry if it has one.

    Raises
    ------
    UnfitError
        There is no such code, such as for no rows.
    IndexError
        An index that is data chooses no element.
    Unkeyed
        Its code is for data of all lengths.
    """
    found = unpickled(entry)
    if not found["graphs"]:
        raise Unkeyed("it has no graphs for data of other lengths")
    keys, values = _read(found["record"], found["once"], graphs)
    data, record = recorded(keys, values)
    functions = functions_for(found["graphs"], _numbers(found), list(keys.values()), data, record)
    codes = [made.code for made in functions]
    now = {**found, "shapes": _shapes(values), "codes": codes, "graphs": []}
    made = _model(now, graphs, functions, keys, data, record)
    return made, None if None in codes else pickled(now)


def _shapes(values: Sequence[np.ndarray]) -> list[tuple[int, ...]]:
    return [np.shape(value) for value in values]


def _numbers(found: dict[str, Any]) -> tuple[list[int], list[int]]:
    """The numbers that both functions get: lengths of the point, and of all variables."""
    size, expanded = found["plain"]["_n_dim"], found["plain"]["n_expanded"]
    return [size], [size, expanded]


def _model(
    found: dict[str, Any],
    graphs: Graphs,
    functions: Sequence[CFunction],
    keys: dict[Variable, str],
    data: dict[str, np.ndarray],
    record: np.ndarray,
) -> Any:
    """The compiled model of an entry's contents and of these functions."""
    plain = found["plain"]
    names, _, shapes = plain["shape_info"]
    lengths = {name: tuple(map(int, shape)) for name, shape in zip(names, shapes, strict=True)}
    free = {name: lengths[name] for name in names[: len(graphs.model.free_RVs)]}
    dims, coords = NUTPIE.get("_prepare_dims_and_coords")(
        _named(graphs.model), plain["shape_info"], plain["reparameterized_names"]
    )
    log_density, expansion = functions
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
        user_data=record,
        logp_func=None,
        expand_func=None,
    )


def _refuse_other_lengths(
    function: CFunction, numbers: Sequence[int], lengths: Sequence[int], record: np.ndarray
) -> None:
    """Raise if code is for other numbers of data that are lengths: only the code knows them.

    Raises
    ------
    Unkeyed
    """
    if function(numbers, [*map(np.zeros, lengths), record]) == ANOTHER_LENGTH:
        raise Unkeyed("its code is for other lengths")


# an array of the record: its number among the data; or the numbers of a computation of data and of
# its output; or the array itself
type Source = int | tuple[int, int] | np.ndarray


def _record(compiled: Any, graphs: Graphs) -> tuple[list[tuple[str, Source]], list[bytes]]:
    """The keys of the record that functions read, with their sources; and graphs of data.

    Raises
    ------
    Unkeyed
        Some data are not of the graphs. Only the key of another form has all values: there they may
        be arrays of the log-density.
    """
    numbers = {_identity(v): number for number, v in enumerate(graphs.shared)}
    numbers |= {id(v.container): number for number, v in enumerate(graphs.shared)}
    record: list[tuple[str, Source]] = []
    once: dict[Apply, bytes] = {}
    for v, key in compiled.shared_var_keys.items():
        node = v.owner
        given = [v] if node is None else node.inputs
        places = [numbers.get(id(v.container), numbers.get(_identity(v))) for v in given]
        if None in places:
            if graphs.is_current or not all(isinstance(each, Data) for each in given):
                raise Unkeyed("its log-density reads data that are not of the model")
            record.append((key, compiled.shared_data[key]))
        elif node is None:
            record.append((key, places[0]))
        else:
            if node not in once:
                once[node] = packed_graph(node.op.inputs, places, node.op.outputs)
            record.append((key, (list(once).index(node), v.index)))
    return record, list(once.values())


def _identity(variable: Any) -> object:
    """The facts that tell data from others, also where the graph of a model was made again."""
    if not isinstance(variable, Data):
        return id(variable.container)
    value = variable.get_value(borrow=True)
    return variable.name, value.dtype.str, value.shape, digest(value)


def _read(
    record: Sequence[tuple[str, Source]], once: Sequence[bytes], graphs: Graphs
) -> tuple[dict[Variable, str], list[np.ndarray]]:
    """The variables of a record with their keys, and their values."""
    values = graphs.values()
    made = []
    for each in once:
        places, computed = unpacked_graph(each)
        made.append(computed(*(values[place] for place in places)))
    keys, found = {}, []
    for key, source in record:
        if isinstance(source, int):
            keys[graphs.shared[source]] = key
            found.append(values[source])
        else:
            value = made[source[0]][source[1]] if isinstance(source, tuple) else source
            keys[Data(TensorType(value.dtype.name, value.shape), value, strict=True)] = key
            found.append(value)
    return keys, found


def _named(model: Model) -> object:
    """The names of a model, with coordinates for each dimension: nutpie compiles their lengths."""
    coords = {
        name: range(length_of(model, name)) if values is None else values
        for name, values in model.coords.items()
    }
    parts = ("value_vars", "values_to_rvs", "named_vars_to_dims")
    return SimpleNamespace(coords=coords, **{name: getattr(model, name) for name in parts})
