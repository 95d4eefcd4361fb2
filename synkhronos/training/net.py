"""A network as the trainer takes it: a graph, its parameters, and what may be said about it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Variable

from synkhronos._checks import shown
from synkhronos._errors import InputError


@dataclass(frozen=True, kw_only=True)
class Net:
    """A network that can be trained: for `fit`, and what functions return for `synk train`.

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
        As for `Trainer`.
    updates
        As for `synkhronos.function`: of statistics, such as those of batch normalisation.
    augment : variable, optional
        The words of `synkhronos.nn.augment`, a uint64 vector, which is not among `inputs`. Words
        are drawn for each epoch and row, from the seed of the run. The loss and metrics are
        validated without augmentation.

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

    loss: Variable
    params: Sequence[SharedVariable]
    inputs: Sequence[Variable]
    outputs: Any = None
    metrics: Mapping[str, object] = field(default_factory=dict)
    updates: object = None
    augment: object = None


_NEEDED = ("loss", "params", "inputs")


def is_net(found: object) -> bool:
    """Whether this is a Net, or has the attributes that a Net needs."""
    return isinstance(found, Net) or all(hasattr(found, name) for name in _NEEDED)


def inputs_of(net: Net) -> list[Variable]:
    """All inputs with rows: the words of augmentation are the last one.

    Raises
    ------
    InputError
        The words are among the others.
    """
    given = net.inputs
    found: list[Any] = list(given) if isinstance(given, list | tuple) else [given]
    if net.augment is None:
        return found
    if net.augment in found:
        raise InputError(f"fit: augment={net.augment} is among the inputs: leave it out there")
    return [*found, net.augment]


def training_function[T](
    make: Callable[..., T],
    net: Net,
    inputs: Sequence[Variable],
    optimizer: Callable[..., object],
    **options: object,
) -> T:
    """The training function of a network, with its statistics.

    Parameters
    ----------
    make : callable
        Such as `make_train_function`.
    net : Net
    inputs : sequence of Variable
    optimizer : callable
    **options
        Of `make`.
    """
    return make(net.loss, net.params, inputs, None, optimizer, **options | {"updates": net.updates})


def net_of(found: object, what: str) -> Net:
    """The Net of an object with the same attributes; `what` begins messages.

    Raises
    ------
    InputError
        An attribute is missing.
    """
    if isinstance(found, Net):
        return found
    missing = [name for name in _NEEDED if not hasattr(found, name)]
    if missing:
        raise InputError(
            f"{what} returned {shown(found)}, which has no {missing[0]}: return a Net, as in "
            "synkhronos.training.Net(loss=loss, params=[w], inputs=[x, y])"
        )
    given = {f.name: getattr(found, f.name) for f in fields(Net) if hasattr(found, f.name)}
    if given.get("metrics") is None:
        given.pop("metrics", None)
    return Net(**given)
