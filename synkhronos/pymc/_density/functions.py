"""PyMC's functions in the mode of groups. This file alone knows how PyMC compiles.

`pymc.pytensorf.compile` makes a mode of its own from the linker of the one that it is given. So a
function of PyMC has lean operations, and is kept, only if this new mode says so.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from pytensor.compile.mode import Mode

from synkhronos._compiling.lean.mode import lean
from synkhronos._libraries.library import Replacing
from synkhronos._libraries.pymc import PYMC

# A context in which all functions that PyMC compiles in mode NUMBA in this thread are compiled as
# those of groups: they are kept for later runs, and their bits do not depend on what caches hold.
compiled_as_in_groups = Replacing(lambda: PYMC.replace({"Mode": _mode}))


def compiled(compile_fn: Callable[..., Any], outputs: Any, mode: object, **given: Any) -> Any:
    """What ``compile_fn`` of a model compiles; in mode NUMBA as a function of groups."""
    with compiled_as_in_groups:
        return compile_fn(outputs, mode=lean(mode), **given)


@functools.wraps(Mode, updated=())
def _mode(*args: Any, **named: Any) -> Any:
    made = Mode(*args, **named)
    return lean(made) if compiled_as_in_groups.is_here else made
