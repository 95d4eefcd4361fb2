"""A network as the trainer takes it: a graph, its parameters, and what may be said about it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from synkhronos._checks import shown
from synkhronos._errors import InputError


@dataclass(frozen=True, kw_only=True)
class Net:
    """What a function that builds a network returns, for `synk train` and configs.

    Parameters
    ----------
    loss : 0-d variable
    params : sequence of SharedVariable
    inputs : sequence of Variable
        The inputs of the loss that have rows, in the order of the arrays of the data. Labels are
        the last ones.
    outputs : variable, optional
        What the network predicts, such as scores (rows, classes). Metrics that a config only names
        compare it with the last of `inputs`.
    metrics : mapping, optional
        As for `fit`.
    updates
        As for `fit`: of statistics, such as those of batch normalisation.
    augment : variable, optional
        As for `fit`.

    Notes
    -----
    An object of another class serves as well, if it has the attributes ``loss``, ``params`` and
    ``inputs``.

    Examples
    --------
    >>> import numpy as np, pytensor, pytensor.tensor as pt
    >>> from synkhronos.training import Net
    >>> def line(columns=2):
    ...     x, y = pt.matrix("x"), pt.vector("y")
    ...     w = pytensor.shared(np.zeros(columns, x.dtype), name="w")
    ...     error = ((x @ w - y) ** 2).mean()
    ...     return Net(loss=error, params=[w], inputs=[x, y], outputs=x @ w)
    >>> [v.name for v in line().inputs]
    ['x', 'y']
    """

    loss: Any
    params: Sequence[Any]
    inputs: Sequence[Any]
    outputs: Any = None
    metrics: Mapping[str, Any] = field(default_factory=dict)
    updates: Any = None
    augment: Any = None


def net_of(found: Any, what: str) -> Net:
    """The Net of an object with the same attributes; `what` begins messages.

    Raises
    ------
    InputError
        An attribute is missing.
    """
    if isinstance(found, Net):
        return found
    missing = [name for name in ("loss", "params", "inputs") if not hasattr(found, name)]
    if missing:
        raise InputError(
            f"{what} returned {shown(found)}, which has no {missing[0]}: return a Net, as in "
            "synkhronos.training.Net(loss=loss, params=[w], inputs=[x, y])"
        )
    given = {f.name: getattr(found, f.name) for f in fields(Net) if hasattr(found, f.name)}
    if given.get("metrics") is None:
        given.pop("metrics", None)
    return Net(**given)
