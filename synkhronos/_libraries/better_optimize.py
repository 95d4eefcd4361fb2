"""Private names of better_optimize, by which `pm.find_MAP` optimises."""

from __future__ import annotations

from synkhronos._libraries.library import Library

BETTER_OPTIMIZE = Library(
    "better_optimize",
    tried="0.5.1",
    names={
        "after the death of a member find_MAP may return a point that means nothing": (
            "better_optimize.minimize:optimizer_early_stopping_wrapper",
        )
    },
)
__getattr__ = BETTER_OPTIMIZE.get
