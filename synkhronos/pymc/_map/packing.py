"""Bytes for processes: `fit` and items."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytensor

from synkhronos._errors import InputError
from synkhronos._transport.serialization import pack_graph

_SETTINGS = ("mode", "floatX", "cxx")  # of PyTensor, which the script may have changed


def packed_job(
    what: str, fit: Callable[..., object], arguments: Mapping[str, object] | None = None
) -> bytes:
    """The pickle of `fit`, of arguments of `pm.sample`, and of this process's settings.

    Raises
    ------
    InputError
        They cannot be sent; `what` is how the message names the call.
    """
    settings = {name: getattr(pytensor.config, name) for name in _SETTINGS}
    job = {"fit": fit, "arguments": dict(arguments or {}), "settings": settings}
    return packed_for(what, "fit, or an argument of pm.sample,", job)


def packed_for(what: str, thing: str, value: object) -> bytes:
    """The pickle of a value, which a message names as `thing`; for exceptions see `packed_job`."""
    try:
        return pack_graph(value)
    except Exception as exc:  # of any object that it refers to
        raise InputError(
            f"{what}: {thing} refers to what cannot be sent to a process: {exc}. Make "
            "that inside of fit"
        ) from exc
