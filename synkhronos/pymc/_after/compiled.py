"""The mode in which functions of PyMC are compiled for many draws."""

from __future__ import annotations

from typing import Any

from synkhronos._compiling.lean.mode import lean


def fast(mode: object) -> Any:
    """The mode with operations of this package's own where there are some, as in groups."""
    return lean(mode)
