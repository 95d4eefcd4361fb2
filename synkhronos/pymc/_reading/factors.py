"""The log-densities of a model's observed variables and Potentials, before anything is divided."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytensor.tensor as pt
from pymc import Model
from pymc.data import MinibatchOp
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.op import Op
from pytensor.graph.rewriting.utils import rewrite_graph
from pytensor.graph.traversal import ancestors
from pytensor.tensor import TensorVariable
from pytensor.tensor.random.type import RandomType
from pytensor.tensor.type import TensorType

from synkhronos._checks import shown
from synkhronos._compiling.python_mode import python_mode
from synkhronos._errors import InputError, InputTypeError
from synkhronos.pymc._reading.facts import Lengths

_PLAIN = python_mode("none")


@dataclass(frozen=True)
class Factor:
    """The log-density of an observed variable or of a Potential."""

    name: str
    graph: TensorVariable  # the log-density, element by element
    op: Op | None  # what the variable is computed by, such as a distribution
    data: Variable | None = None  # the values of an observed variable; None for a Potential
    shape: Lengths = ()  # the shape of these values
    axis: int | None = None  # their axis with the dimension that the user has named
    rows: int | None = None  # the length of that dimension


def factor_of(
    model: Model, variable: TensorVariable, graph: Variable, dim: str | None = None
) -> Factor:
    """The log-density of a variable, whose graph is given.

    Raises
    ------
    InputError
        It cannot be divided, with the reason.
    """
    data = model.rvs_to_values.get(variable)
    kind = (variable if data is None else data).type
    if not isinstance(kind, TensorType) and not hasattr(kind, "dims"):
        raise InputError(f"{variable.name} is observed as {kind}, whose rows cannot be divided")
    graph, op = _as_tensor(graph), None if variable.owner is None else variable.owner.op
    _refuse_random(variable.name, graph)
    if data is None:
        rows = None if dim is None else int(model.dim_lengths[dim].eval())
        return Factor(variable.name, graph, op, rows=rows)
    shape = np.shape(data.data if isinstance(data, Constant) else data.eval(mode=_PLAIN))
    if dim is None:
        return Factor(variable.name, graph, op, data, shape)
    axis = _dims_of(model, variable.name).index(dim)
    return Factor(variable.name, graph, op, data, shape, axis, shape[axis])


def _as_tensor(factor: Variable) -> TensorVariable:
    """Convert a term of `pymc.dims`, whose arrays have named axes, to plain tensors."""
    tensor = pt.as_tensor(factor, allow_xtensor_conversion=True)
    if tensor is factor:
        return tensor
    return rewrite_graph(tensor, include=("lower_xtensor", "canonicalize"), clone=True)


def _refuse_random(name: str, graph: TensorVariable) -> None:
    for variable in ancestors([graph]):
        if variable.owner is not None and isinstance(variable.owner.op, MinibatchOp):
            raise InputError(
                f"{name} depends on a Minibatch, which has other rows at each evaluation. Give "
                "it all rows: members divide them, and the result is exact"
            )
        if isinstance(variable.type, RandomType):
            raise InputError(f"the log-density of {name} draws random numbers")


def called(model: Model) -> str:
    """How messages name a model."""
    return f"model {model.name!r}" if model.name else "the model"


def observed_of(model: Model, dim: str | None) -> list[TensorVariable]:
    """The observed variables, or those with the dimension `dim`.

    Raises
    ------
    InputError, InputTypeError
        There is nothing to divide: neither such a variable nor a Potential.
    """
    if dim is None:
        if not model.observed_RVs and not model.potentials:
            raise InputError(
                f"{called(model)} has no observed variables: there is nothing to divide"
            )
        return list(model.observed_RVs)
    if not isinstance(dim, str):
        also = f"; for {dim} members write parallel(model, members={dim})"
        raise InputTypeError(
            f"dim={shown(dim)} is not the name of a dimension{also * isinstance(dim, int)}"
        )
    if dim not in model.dim_lengths:
        raise InputError(
            f"dim={dim!r} is not a dimension of {called(model)}; it has: "
            f"{', '.join(model.dim_lengths) or 'none (give coords and dims, or leave dim out)'}"
        )
    found = [rv for rv in model.observed_RVs if dim in _dims_of(model, rv.name)]
    if not found and not model.potentials:
        raise InputError(no_dim(model, dim))
    return found


def _dims_of(model: Model, name: str) -> list[str]:
    """The dimensions of a variable. Observed values beside missing ones have none but the first."""
    found = list(model.named_vars_to_dims.get(name) or ())
    if not found and name.endswith("_observed"):
        found = list(model.named_vars_to_dims.get(name.removesuffix("_observed")) or ())[:1]
    return found


def no_dim(model: Model, dim: str) -> str:
    """The message for a dimension that no observed variable has."""
    names = ", ".join(
        f"{rv.name}: {model.named_vars_to_dims.get(rv.name) or 'none'}" for rv in model.observed_RVs
    )
    return (
        f"dim={dim!r}: no observed variable has this dimension (dims of {names}). Name it in "
        "dims= of the observed variable, or leave dim out to divide the longest axis"
    )
