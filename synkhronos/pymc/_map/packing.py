"""Bytes for processes: `fit` and items."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytensor

from synkhronos._transport.serialization import pack_or_refuse

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
    return pack_or_refuse(value, f"{what}: {thing}", "Make that inside of fit")
