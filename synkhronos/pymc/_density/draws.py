"""How many draws `pm.sample` makes, and about how many gradients they take."""

from __future__ import annotations

import math
from collections.abc import Mapping

DRAWS, TUNE = 1000, 1000  # of `pm.sample`
_STEPS = 15  # gradients of a draw; NUTS takes 7 to 31 in most models


def gradients_in_turn(chains: int, cores: int, given: Mapping[str, int | None]) -> int:
    """About the number of gradients that are computed one after another."""
    draws = given.get("draws") or DRAWS
    tune = TUNE if given.get("tune") is None else given["tune"]
    return int(math.ceil(chains / min(chains, cores)) * (draws + tune) * _STEPS)
