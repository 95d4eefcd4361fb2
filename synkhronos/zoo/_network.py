"""How networks get their weights: they are built of zeros, which costs nothing, and then drawn."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from pytensor_ml.state import Initializer, ZeroInitializer, fans, initial_values_from

from synkhronos._checks import check_integer, is_integer, or_none, shown
from synkhronos._errors import InputError, InputTypeError
from synkhronos.training._pairs.pair import Pair
from synkhronos.training.net import Net


class He(Initializer):  # type: ignore[misc]
    """Normal numbers of variance 2 / n for units with n inputs, drawn in their own dtype.

    References
    ----------
    He et al., Delving deep into rectifiers, arXiv:1502.01852: rectified layers of such weights keep
    the size of what goes through them.
    """

    def sample(self, shape: Sequence[int], dtype: str, rng: np.random.Generator) -> np.ndarray:
        """Draw an array."""
        kind = np.dtype(dtype).type
        drawn = rng.standard_normal(shape, dtype=kind)
        drawn *= kind(math.sqrt(2 / fans(shape)[0]))
        return drawn


def network[**P, N: Net | Pair](build: Callable[P, N]) -> Callable[P, N]:
    """Let a function that builds a network draw its weights from the keyword ``seed``.

    With ``seed=None`` they stay zeros. Memory of zeros is not touched, so a network of any size is
    then built in the time of its graph. Arguments annotated as integers are checked: all are
    numbers of things.

    Raises
    ------
    InputError, InputTypeError
        An argument is out of range; or the network cannot be built, as for images that are too
        small.
    """
    name, signature = build.__name__, inspect.signature(build)

    @functools.wraps(build)
    def built(*args: P.args, **kwargs: P.kwargs) -> N:
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError as exc:
            raise InputTypeError(f"{name}: {exc}") from None
        given = bound.arguments
        seed = or_none(check_integer, f"{name}: seed", given.get("seed", 0), 0)
        for key, value in given.items():
            kind = str(signature.parameters[key].annotation)
            if key != "seed" and kind.startswith(("int", "Sequence[int]")):
                given[key] = _counts(f"{name}: {key}", value, kind)
        try:
            with initial_values_from(ZeroInitializer()):
                net = build(*bound.args, **bound.kwargs)
        except InputError as exc:
            raise type(exc)(f"{name}: {exc}") from None
        except ValueError as exc:
            raise InputError(f"{name}: {exc}") from exc
        if seed is not None:
            _draw(net.params, np.random.default_rng(seed))
        return net

    return built


def _counts(name: str, value: Any, kind: str) -> object:
    """Check one integer, or several, as the annotation `kind` says."""
    if value is None and kind.endswith("None"):
        return None
    if kind in ("int", "int | None"):
        return check_integer(name, value, 1)
    several = isinstance(value, list | tuple)
    numbers = value if several else [value]
    if not (several or kind.startswith("int")) or not all(is_integer(n) and n > 0 for n in numbers):
        raise InputError(f"{name}={shown(value)}: give integers of at least 1")
    return tuple(int(n) for n in numbers) if several else int(value)


def _draw(params: Sequence[Any], rng: np.random.Generator) -> None:
    """Give each parameter a value of its initializer, one after the other to save memory."""
    for p in params:
        zeros = p.get_value(borrow=True)
        p.set_value(p.initializer.sample(zeros.shape, zeros.dtype.name, rng), borrow=True)
