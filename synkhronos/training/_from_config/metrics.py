"""Metrics that a config names."""

from __future__ import annotations

from collections.abc import Sequence

from synkhronos._errors import InputError, InputTypeError
from synkhronos.training import metrics
from synkhronos.training._from_config.functions import check_arguments, meant
from synkhronos.training.config import Config, named
from synkhronos.training.net import Net

METRICS = tuple(name for name in metrics.__all__ if name != "Metric")


def metrics_of(config: Config, net: Net) -> dict[str, object]:
    """The network's metrics, and those of `training.metrics` that a config names.

    Raises
    ------
    InputError
    """
    found = dict(net.metrics)
    for number, value in enumerate(config.metrics):
        path = f"metrics[{number}]"
        name, arguments = named(value, path)
        if name in net.metrics and not arguments:
            continue
        if name not in METRICS:
            known = [*net.metrics, *METRICS]
            raise InputError(
                f"{path}: there is no metric {name!r}{meant(name, known)}; there are "
                f"{', '.join(known)}"
            )
        outputs = net.outputs
        if isinstance(outputs, Sequence) and len(outputs) == 1:
            [outputs] = outputs
        if outputs is None:
            raise InputError(f"{path}: {name} compares outputs, and the network names none")
        maker = getattr(metrics, name)
        check_arguments(maker, arguments, path, given=2)
        try:
            found[name] = maker(outputs, net.inputs[-1], **arguments)
        except InputTypeError as exc:
            raise InputError(f"{path}: {exc}") from None
    return found
