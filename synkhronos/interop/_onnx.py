"""Networks as ONNX files, by jax2onnx from the program that mode JAX compiles."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytensor
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Variable
from pytensor.graph.replace import clone_replace
from pytensor.graph.traversal import ancestors
from pytensor.tensor.random.type import RandomType

from synkhronos._backends.jax import declared_dtypes
from synkhronos._checks import check_integer, or_none, shown
from synkhronos._engine.function_arguments import roots
from synkhronos._engine.graph_collectives import has_collectives
from synkhronos._errors import InputError, InputTypeError, needing
from synkhronos._host import files

_KINDS = ("float32", "int32", "int64", "bool")


def to_onnx(
    net: object,
    file: str | os.PathLike[str],
    *,
    rows: int | None = None,
    inputs: Sequence[object] | None = None,
) -> Path:
    """Write a network, with its weights, as an ONNX file.

    Parameters
    ----------
    net : Net, variable, or list of variables
        Of a `Net`, its `outputs`, which are those of prediction.
    file : path
        Its folder must exist. A file of this name is replaced.
    rows : int, optional
        The number of rows of each call of the file's model. Default: any number, which jax2onnx
        cannot convert for each network, such as for one with convolutions and a reshape.
    inputs : list of variable, optional
        The model's inputs, in order, float32 or integers. Default: those inputs of the Net that its
        outputs depend on.

    Returns
    -------
    Path
        The file.

    Raises
    ------
    BackendMissing
        jax2onnx is not installed.
    InputError, InputTypeError
        The graph has collectives, random draws or float64, needs another input, has axes of unknown
        length beside the rows, or an operation that JAX or jax2onnx cannot convert. No file is
        written.

    Notes
    -----
    Weights are those of the master at this time. Names of inputs and outputs are those of the
    variables. No group is needed.

    Cost: one compilation in mode JAX, and one copy of the weights in memory and in the file.

    Examples
    --------
    >>> from synkhronos import zoo  # doctest: +SKIP
    >>> from synkhronos.interop import to_onnx  # doctest: +SKIP
    >>> to_onnx(zoo.mlp(784), "mlp.onnx")  # doctest: +SKIP
    PosixPath('mlp.onnx')
    """
    with needing("jax2onnx", "onnx"):
        import jax
        import jax2onnx
        from jax.extend.core import jaxpr_as_fun
    outputs, given = _graph(net, inputs)
    _check(outputs, given, rows)
    function = pytensor.function(given, outputs, mode=declared_dtypes("JAX"))
    shapes = [("rows" if rows is None else rows, *v.type.shape[1:]) for v in given]
    structs = [
        jax.ShapeDtypeStruct(shape if rows else (1, *shape[1:]), v.type.dtype)
        for shape, v in zip(shapes, given, strict=True)
    ]
    try:
        called = _program(function, len(given))
        if rows is not None:
            with jax.disable_jit():  # jax2onnx 0.17 cannot read jitted functions of JAX 0.12
                called = jaxpr_as_fun(jax.make_jaxpr(called)(*structs))
            specs: list[object] = structs
        else:
            specs = [_open(v, shape) for v, shape in zip(given, shapes, strict=True)]
        made = jax2onnx.to_onnx(
            called,
            specs,
            model_name="synkhronos",
            input_names=_names(given, "input"),
            output_names=_names(outputs, "output"),
        )
    except Exception as exc:  # each operation has errors of its own
        advice = "" if rows else ". A fixed number of rows may help: rows=1"
        raise InputError(
            f"to_onnx: jax2onnx cannot convert this network ({type(exc).__name__}: {exc}){advice}"
        ) from exc
    place = Path(file)
    files.write(place, made.SerializeToString())
    return place


def _graph(net: Any, inputs: Sequence[Any] | None) -> tuple[list[Any], list[Any]]:
    """The outputs, and the inputs that they depend on, at which the graph ends."""
    outputs = getattr(net, "outputs", net)
    found = list(outputs) if isinstance(outputs, list | tuple) else [outputs]
    if not found or not all(isinstance(v, Variable) for v in found):
        raise InputTypeError(
            f"to_onnx: {shown(net)} has no outputs: give a Net with outputs, or a variable"
        )
    if inputs is not None:
        places = roots(inputs)
        cut = [(v, place) for v, place in zip(inputs, places, strict=True) if v is not place]
        return (clone_replace(found, cut) if cut else found), places
    used = set(ancestors(found))
    if hasattr(net, "inputs"):
        return found, [v for v in net.inputs if v in used]
    raise InputTypeError("to_onnx: give inputs=, the variables that the model is called with")


def _check(outputs: Sequence[Any], given: Sequence[Any], rows: int | None) -> None:
    or_none(check_integer, "to_onnx: rows", rows, 1)
    if has_collectives(list(outputs)):
        raise InputError(
            "to_onnx: the outputs contain collectives over members, such as synchronised batch "
            "normalisation: export those of prediction"
        )
    used = list(ancestors(list(outputs)))
    if any(isinstance(v.type, RandomType) for v in used):
        raise InputError(
            "to_onnx: the outputs draw random numbers, such as by dropout: export those of "
            "prediction"
        )
    held = [v for v in used if isinstance(v, SharedVariable)]
    wide = [v for v in [*given, *held, *outputs] if getattr(v.type, "dtype", None) == "float64"]
    if wide:
        raise InputError(
            f"to_onnx: {wide[0]} is float64, which few programs run: build the network with "
            'pytensor.config.floatX="float32"'
        )
    for v in given:
        if v.type.ndim == 0 or None in v.type.shape[1:] or v.type.dtype not in _KINDS:
            raise InputError(
                f"to_onnx: input {v} is {v.type}: give an input of float32 or integers, whose "
                'lengths beside the rows are known, as pt.tensor("x", shape=(None, 64))'
            )


def _program(function: Any, n: int) -> Callable[..., object]:
    """The compiled graph as a function of its rows; weights are constants."""
    values = [np.array(c.storage[0]) for c in function.input_storage[n:]]
    compiled = function.vm.jit_fn
    compiled = getattr(compiled, "__wrapped__", compiled)

    def called(*given: object) -> object:
        found = compiled(*given, *values)
        return found[0] if len(found) == 1 else tuple(found)

    return called


def _open(v: Any, shape: Sequence[Any]) -> object:
    """A tensor with any number of rows, as jax2onnx takes it."""
    import jax

    if v.type.dtype == "float32":
        return tuple(shape)
    lengths = jax.export.symbolic_shape(", ".join(map(str, shape)))
    return jax.ShapeDtypeStruct(lengths, v.type.dtype)


def _names(variables: Sequence[Any], what: str) -> list[str]:
    """Their names; those without one, or with one that another has, are numbered."""
    found: list[str] = []
    for i, v in enumerate(variables):
        found.append(v.name if v.name and v.name not in found else f"{what}{i}")
    return found
