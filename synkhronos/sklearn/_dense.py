"""A network of dense layers, with rectifiers between them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.tensor.variable import TensorVariable

from synkhronos.training.net import Net


def dense(
    columns: int, outputs: int, layers: Sequence[int], dtype: str, draw: np.random.RandomState
) -> tuple[TensorVariable, TensorVariable, list[SharedVariable]]:
    """The input, the scores (rows, outputs) and the parameters of a network.

    Weights are drawn as by He et al., arXiv:1502.01852; the last ones, which no rectifier follows,
    with half of the variance.
    """
    x = pt.matrix("x", dtype=dtype)
    params: list[SharedVariable] = []
    value, sizes = x, [columns, *layers, outputs]
    for n, (rows, units) in enumerate(itertools.pairwise(sizes)):
        last = n == len(layers)
        scale = np.sqrt((1 if last else 2) / rows)
        w = pytensor.shared(draw.normal(0, scale, (rows, units)).astype(dtype), name=f"w{n}")
        b = pytensor.shared(np.zeros(units, dtype), name=f"b{n}")
        params += [w, b]
        value = value @ w + b
        if not last:
            value = pt.maximum(value, 0)
    return x, value, params


def classifier(x: TensorVariable, scores: TensorVariable, params: Sequence[SharedVariable]) -> Net:
    """The network with the cross-entropy of classes, which are numbered."""
    y = pt.lvector("y")
    log_p = pt.special.log_softmax(scores, axis=1)
    loss = -log_p[pt.arange(y.shape[0]), y].mean()
    return Net(loss=loss, params=params, inputs=[x, y], outputs=scores)


def regressor(x: TensorVariable, scores: TensorVariable, params: Sequence[SharedVariable]) -> Net:
    """The network with the mean of squared errors."""
    y, found = pt.vector("y", dtype=x.dtype), scores[:, 0]
    return Net(loss=((found - y) ** 2).mean(), params=params, inputs=[x, y], outputs=found)
