"""Repeated calls of one function of mode NUMBA, without the storage that PyTensor calls it through.

PyTensor's call takes 1.6 us more: it writes inputs to storage, reads them, and clears them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from pytensor.link.utils import raise_with_op


def repeated(function: Any, arguments: Sequence[Any]) -> Callable[[], Sequence[Any]]:
    """A function that computes the same again, from new values of shared variables.

    Parameters
    ----------
    function : pytensor.compile.executor.Function
        It returns a list, changes no variable, and trusts its inputs.
    arguments : sequence of array
    """
    thunk = function.vm
    kernel, storages = getattr(thunk, "jit_fn", None), getattr(thunk, "inputs", None)
    fgraph = function.maker.fgraph
    node = next((v.owner for v in fgraph.outputs if v.owner is not None), None)
    if kernel is None or storages is None or node is None or function.profile:
        return functools.partial(function, *arguments)
    places = [container.storage for container in function.input_storage[: len(arguments)]]
    given = {id(place): [value] for place, value in zip(places, arguments, strict=True)}
    # the arguments stay; values of shared variables are read from their storage in each call
    held = [given.get(id(storage), storage) for storage in storages]

    def call() -> Sequence[Any]:
        try:
            found: Sequence[Any] = kernel(*[storage[0] for storage in held])
        except Exception:
            for place, value in zip(places, arguments, strict=True):
                place[0] = value  # the message shows shapes
            raise_with_op(fgraph, node, thunk)  # as PyTensor does: one operation stands for all
        return found

    return call
