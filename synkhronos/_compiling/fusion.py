"""How many arrays a fused loop reads and writes."""

from __future__ import annotations

from collections.abc import Callable

from synkhronos._libraries.library import Replacing
from synkhronos._libraries.pytensor import PYTENSOR

_MOST = 1024  # as PyTensor's own for C code
_LIMIT = "elemwise_max_operands_fct"


def _lift_limit() -> Callable[[], None]:
    """Let PyTensor fuse loops with many operands; returns what restores its limit."""
    own = PYTENSOR.get(_LIMIT)

    def most(node: object) -> int:
        return _MOST if many_operands.is_here else own(node)

    return PYTENSOR.replace({_LIMIT: most})


# A context in which loops of numba are fused that have more than 32 operands, as many as numpy's
# functions take. Without a C compiler, PyTensor fuses nothing of such a loop.
many_operands = Replacing(_lift_limit)
