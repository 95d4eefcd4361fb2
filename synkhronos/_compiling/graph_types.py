"""PyTensor's types, where its annotations say less than is known; without a cost when it runs."""

from __future__ import annotations

from typing import cast

from pytensor.graph.basic import Variable
from pytensor.tensor.type import TensorType


def tensor_type(variable: Variable) -> TensorType:
    """The type of a variable that is a tensor: `Variable.type` has no dtype, shape or ndim.

    Nothing is checked: where it may be another type, ask `is_dense` first, or use `getattr`.
    """
    return cast(TensorType, variable.type)
