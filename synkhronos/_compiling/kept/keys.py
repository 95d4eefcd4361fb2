"""Keys of graphs: equal in every process for graphs that compile to the same code."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import pytensor
from pytensor.graph.basic import Variable

from synkhronos._compiling.kept.contents import Contents, Registry
from synkhronos._compiling.kept.digests import Unkeyed, digested
from synkhronos._compiling.kept.packages import versions
from synkhronos._compiling.kept.processor import processor

# PyTensor's flags that change what graphs become; `cxx`, which `without_c` sets, is a part of keys
# of functions alone
_FLAGS = (
    *("floatX", "cast_policy", "linker", "optimizer", "on_opt_error", "on_shape_error"),
    *("optimizer_excluding", "optimizer_including", "optimizer_requiring", "check_input"),
    *("optdb__max_use_ratio", "optdb__position_cutoff", "cycle_detection", "allow_gc"),
    *("scan__allow_gc", "scan__allow_output_prealloc", "tensor__cmp_sloppy", "numba__fastmath"),
)


def graph_key(
    inputs: Sequence[Variable],
    outputs: Sequence[Variable],
    *more: object,
    registries: Sequence[Registry] = (),
) -> str:
    """The key of a graph, and of more that its compiled form depends on: letters and digits.

    Shared variables count by their types, names and places, not by their values.

    Parameters
    ----------
    inputs, outputs : sequence of Variable
    *more : object
        Such as options, a mode, or further graphs.
    registries : sequence of singledispatch functions
        What these have for classes that are not of the packages in `machine` is a part of the key;
        so is the code that others have registered with numba for classes of these packages.

    Raises
    ------
    Unkeyed
    """
    return key_by(Contents(registries), [machine()], inputs, outputs, more)


def portable_key(inputs: Sequence[Variable], outputs: Sequence[Variable], *more: object) -> str:
    """As `graph_key`, and the same on another machine.

    Raises
    ------
    Unkeyed
    """
    return key_by(Contents(), [], inputs, outputs, more)


def key_by(
    contents: Contents,
    before: Sequence[object],
    inputs: Sequence[Variable],
    outputs: Sequence[Variable],
    more: Sequence[object],
) -> str:
    """The key of a graph, and of more, by the digests that `contents` makes.

    Raises
    ------
    Unkeyed
    """
    try:
        return contents.of((*before, contents.graph(inputs, outputs, True), *more)).hex()
    except RecursionError:
        raise Unkeyed("the graph has objects that are nested too deeply") from None


def machine() -> str:
    """Versions, the processor and flags of PyTensor, on which compiled code depends too."""
    flags = [str(getattr(pytensor.config, name, None)) for name in _FLAGS]
    return digested("machine", [_lasting(), repr(flags).encode()]).hex()


@functools.cache
def _lasting() -> bytes:
    """The part that stays in a process: each call of `sample` makes several keys."""
    return repr((versions(), processor())).encode()
