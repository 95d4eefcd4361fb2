"""The functions of a compiled model for data of other lengths, of their rewritten graphs.

The key of a model has all that its rewritten graphs follow from: lengths as far as types have them,
and no others. So these graphs are those of each model with this key. Code has all lengths.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from synkhronos._compiling.kept.machine_code import CFunction
from synkhronos._compiling.kept.pickles import NO_PICKLE
from synkhronos._warnings import log
from synkhronos.pymc._density.nutpie import code_for, flat_of, reads_of
from synkhronos.pymc._kept.start import packed_graph, parts_of


def packed_functions(compiled: Any) -> list[bytes]:
    """The rewritten graphs of log-density and expansion, and which arrays of the record they read.

    There are none if an operation has no pickle, such as one with a function of the user's inside.

    Parameters
    ----------
    compiled : CompiledPyMCModel
        As nutpie has compiled it.
    """
    numbers = {v: number for number, v in enumerate(compiled.shared_var_keys)}
    functions = [compiled.logp_func, compiled.expand_func]
    read = [[numbers[v] for v in reads_of(function)] for function in functions]
    graphs = map(flat_of, functions)
    try:
        return [
            packed_graph(each.inputs, sources, each.outputs, each.nodes)
            for each, sources in zip(graphs, read, strict=True)
        ]
    except NO_PICKLE as exc:
        log.debug("the model is compiled anew for data of other lengths: %s", exc)
        return []


def functions_for(
    packed: Sequence[bytes],
    lengths: Sequence[Sequence[int]],
    keys: Sequence[str],
    data: Mapping[str, np.ndarray],
    record: np.ndarray,
) -> list[CFunction]:
    """The C functions of these graphs for the lengths of these data.

    Parameters
    ----------
    packed : sequence of bytes
        Of `packed_functions`.
    lengths : sequence of sequence of int
        The numbers that each function gets.
    keys : sequence of str
        Of all arrays of the record, in their order.
    data, record
        Of `recorded`.

    Raises
    ------
    UnfitError
        A graph does not fit these data, or has no code for them.
    """
    from synkhronos._compiling.direct.flat import Flat  # most models need none of it

    made = []
    for each, numbers in zip(packed, lengths, strict=True):
        sources, *parts = parts_of(each)
        read = [keys[source] for source in sources]
        made.append(code_for(Flat(*parts), read, data, record, numbers))
    return made
