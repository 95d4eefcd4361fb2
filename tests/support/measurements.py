"""Measurements of ``synk bench``, made up."""

from __future__ import annotations

from typing import Any

from synkhronos.cli._scaling import Measurement


def measurement(members: int, number: int, rate: float, **others: Any) -> Measurement:
    """One of some rows per second, in a round of this number."""
    given = {"function": "m:f", "scaling": "strong", "batch": 100, "rows": 100, "steps": 7}
    made = {"members": members, "round": number, "seconds": 0.5, "rows_per_second": rate}
    return Measurement(**{**given, **made, **others})
