"""Momentum for the updates of any rule, pure graphs like the rules themselves."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from pytensor.graph.basic import Variable

from synkhronos._errors import InputError
from synkhronos.extensions.updates._slots import (
    Hyper,
    Slot,
    hypers,
    is_float,
    label,
    names_of,
    pairs,
    trainable,
)


def apply_momentum(updates: object, params: object = None, momentum: Hyper = 0.9) -> Any:
    """Add momentum to updates: ``velocity = momentum * velocity + step; param + velocity``.

    Parameters
    ----------
    updates : dict or list of pairs
        New values by shared variable; a step is the new value less the old.
    params : list of shared variables, optional
        Which variables get momentum: all floats unless said, so name them where the updates hold
        states too. A 0-d value in this place is the momentum, as in the original's
        ``apply_momentum(param_updates, 0.9)``.
    momentum : 0-d

    Returns
    -------
    dict or list of pairs
        As given, with the velocities.

    Raises
    ------
    InputError
        A variable that has no update, or is listed twice; two momenta.

    Notes
    -----
    Cost: one state for each variable. The formula is that of `momentum` with any step in place of
    ``-learning_rate * gradient``.

    Examples
    --------
    >>> import numpy as np, pytensor
    >>> from synkhronos.extensions.updates import sgd
    >>> w = pytensor.shared(np.array([1.0, -2.0]), name="w")
    >>> [v.name for v in apply_momentum(sgd.rule((w**2).sum(), [w], 0.25), momentum=0.8)]
    ['w', 'w.velocity']
    """
    return _with_velocity("apply_momentum", updates, params, momentum, ahead=False)


def apply_nesterov_momentum(updates: object, params: object = None, momentum: Hyper = 0.9) -> Any:
    """Add Nesterov's momentum: as `apply_momentum`, ``param + momentum * velocity + step``.

    Parameters
    ----------
    updates : dict or list of pairs
        New values by shared variable; a step is the new value less the old.
    params : list of shared variables, optional
        As in `apply_momentum`.
    momentum : 0-d

    Returns
    -------
    dict or list of pairs
        As given, with the velocities.

    Raises
    ------
    InputError
        A variable that has no update, or is listed twice; two momenta.

    Notes
    -----
    Cost: one state for each variable. The formula is that of `nesterov_momentum` with any step in
    place of ``-learning_rate * gradient``.

    Examples
    --------
    >>> import numpy as np, pytensor
    >>> w = pytensor.shared(np.array([1.0, -2.0]), name="w")
    >>> new = apply_nesterov_momentum([(w, w - 0.25 * 2 * w)], 0.5)
    >>> [(v.name, x.eval().tolist()) for v, x in new]
    [('w', [0.25, -0.5]), ('w.velocity', [-0.5, 1.0])]
    """
    return _with_velocity("apply_nesterov_momentum", updates, params, momentum, ahead=True)


def _with_velocity(
    what: str, updates: object, params: object, momentum: object, ahead: bool
) -> object:
    if params is not None and not isinstance(params, list | tuple):
        if isinstance(params, Iterable) and not isinstance(params, Variable | np.ndarray):
            params = list(params)
        else:
            if not (isinstance(momentum, float) and momentum == 0.9):
                raise InputError(f"{what}: two momenta given, {params!r} and {momentum!r}")
            momentum, params = params, None
    (mu,) = hypers(momentum=momentum)
    found = pairs(updates, what)
    if params is None:
        params = [v for v in found if is_float(v)]
    kept = trainable(params, what) if params else []
    missing = [label(p) for p in kept if p not in found]
    if missing:
        raise InputError(f"{what}: {missing} have no update; list variables that have")
    taken = {v.name for v in found if v.name}
    for param, name in zip(kept, names_of(kept), strict=True):
        slot = Slot(param, param, param, name, taken)
        velocity = slot.state("velocity")
        step = found[param] - param
        new = slot.num(mu) * velocity + step
        found[velocity] = new
        found[param] = param + slot.num(mu) * new + step if ahead else param + new
    if isinstance(updates, OrderedDict):
        return OrderedDict(found)
    return found if isinstance(updates, Mapping) else list(found.items())
