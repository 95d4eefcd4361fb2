"""Arrays that are a part of machine code begin at a cache line, as those of `data.aligned`.

numba gives them the border of their elements.
"""

from __future__ import annotations

from itertools import islice
from typing import Any

from llvmlite import ir

from synkhronos._compiling.data.aligned import BORDER
from synkhronos._libraries.numba import NUMBA


def align_arrays(context: Any) -> None:
    """Let code that is compiled in a context of numba have arrays at cache lines."""
    make = NUMBA.of(context, "make_constant_array")

    def made(builder: ir.IRBuilder, kind: object, array: object) -> object:
        known = len(builder.module.globals)
        found: object = make(builder, kind, array)
        for each in islice(builder.module.globals.values(), known, None):
            if isinstance(each, ir.GlobalVariable) and each.global_constant:
                each.align = BORDER
        return found

    NUMBA.put(context, "make_constant_array", made)
