"""Types of graphs for which PyTensor has no names, or whose annotations say less than is known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np
from pytensor.compile.mode import Mode
from pytensor.graph.basic import Variable
from pytensor.tensor.type import TensorType

type Inputs = Sequence[Variable]  # of a node; its outputs, or their cotangents
type Arrays = Sequence[np.ndarray]  # their values
type ModeLike = Mode | str | None  # of a compilation; None: PyTensor's default
type Variables = Variable | Sequence[Variable]
type Output = Variable | tuple[Variable, str | None]  # with its reduction


def tensor_type(variable: Variable) -> TensorType:
    """The type of a variable that is a tensor: `Variable.type` has no dtype, shape or ndim.

    Nothing is checked: where it may be another type, ask `is_dense` first, or use `getattr`.
    """
    return cast(TensorType, variable.type)
