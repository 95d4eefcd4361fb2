"""A network of layers of units."""

from __future__ import annotations

from collections.abc import Sequence

import pytensor
from pytensor_ml.layers import Input

from synkhronos.training.net import Net
from synkhronos.zoo._blocks import drop, flat, linear, relu
from synkhronos.zoo._classifier import classifier
from synkhronos.zoo._network import network


@network
def mlp(
    shape: int | Sequence[int] = 784,
    hidden: Sequence[int] = (800, 800),
    *,
    classes: int = 10,
    dropout: float = 0.5,
    input_dropout: float = 0.2,
    seed: int | None = 0,
) -> Net:
    """Layers of units, each of which sees all of the layer before.

    Parameters
    ----------
    shape : int or sequence of int
        Of a row.
    hidden : sequence of int
        Units of the layers before the scores.
    classes : int
    dropout, input_dropout : float
        Share of the units of these layers, and of the values of a row, that is removed in training.
    seed : int or None
        Of the weights and of dropout. None: weights are 0, for those that are loaded.

    Returns
    -------
    Net
        Inputs: rows of this shape, and labels (rows,). Outputs: scores (rows, classes), as in
        validation.

    Raises
    ------
    InputError
        An argument is out of range.

    Examples
    --------
    >>> from synkhronos import zoo
    >>> net = zoo.mlp(seed=None)
    >>> sum(p.get_value(borrow=True).size for p in net.params)
    1276810
    """
    given = Input(
        "x", (None, *([shape] if isinstance(shape, int) else shape)), pytensor.config.floatX
    )
    x = drop("input_drop", flat(given), input_dropout, seed)
    for number, units in enumerate(hidden):
        x = drop(f"drop{number}", relu(linear(f"dense{number}", x, units)), dropout, seed)
    return classifier(given, linear("scores", x, classes))
