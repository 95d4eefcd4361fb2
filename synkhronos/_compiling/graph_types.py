"""PyTensor's types, where its annotations say less than is known; without a cost when it runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np
from pytensor.graph.basic import Variable
from pytensor.tensor.type import TensorType

type Inputs = Sequence[Variable]  # of a node; its outputs, or their cotangents
type Arrays = Sequence[np.ndarray]  # their values


def tensor_type(variable: Variable) -> TensorType:
    """The type of a variable that is a tensor: `Variable.type` has no dtype, shape or ndim.

    Nothing is checked: where it may be another type, ask `is_dense` first, or use `getattr`.
    """
    return cast(TensorType, variable.type)
