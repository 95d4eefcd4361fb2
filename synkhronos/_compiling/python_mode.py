"""The mode of functions of a few values: Python evaluates them, as compiling would cost more.

numpy's functions take at most 32 arrays. PyTensor makes one addition of nested ones, however many
values they add, such as the squared norms of all parameters. Such an addition is divided here.
Some operations of PyTensor have a function of one number only, which Python calls for each element:
0.5 us each, or for loops of scalars up to some ms. They get a function of arrays here.
"""

from __future__ import annotations

import functools
from typing import Any

from pytensor.compile.mode import Mode
from pytensor.graph.basic import Apply
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.rewriting.basic import dfs_rewriter, node_rewriter
from pytensor.graph.rewriting.db import RewriteDatabaseQuery
from pytensor.scalar.basic import Clip
from pytensor.scalar.loop import ScalarLoop
from pytensor.scalar.math import Log1mexp, Softplus, TriGamma
from pytensor.tensor.elemwise import Elemwise

from synkhronos._compiling import array_functions
from synkhronos._compiling.array_functions import ArrayLoop

MOST_OPERANDS = 31  # of an operation with one result: Elemwise refuses more than 32 in all
OF_ARRAYS = {  # by name, as PyTensor imports them
    kind: f"{array_functions.__name__}.{function.__name__}"
    for kind, function in (
        (Softplus, array_functions.softplus),
        (Log1mexp, array_functions.log1mexp),
        (TriGamma, array_functions.trigamma),
        (Clip, array_functions.clip),
    )
}
_LAST = 1000.0  # position after all rewrites of PyTensor, which would join the parts again


@functools.cache
def python_mode(*rewrites: str) -> Any:
    """The mode: PyTensor's rewrites without a compiler, for operations of any length.

    Parameters
    ----------
    *rewrites : str
        The names of the rewrites in PyTensor's database. Default: "fast_compile"; "none" for none.

    >>> import pytensor, pytensor.tensor as pt
    >>> values = [pt.dscalar() for _ in range(100)]
    >>> add = pytensor.function(values, sum(values), mode=python_mode())
    >>> float(add(*range(100)))
    4950.0
    """
    # from the leaves on, so that the parts of a sum are not looked at again
    divided = dfs_rewriter(_divided, ignore_newtrees=False)
    arrays = dfs_rewriter(_of_arrays)  # apart: a rewriter of both could not be shipped to members
    chosen = RewriteDatabaseQuery(include=rewrites or ["fast_compile"])
    return Mode(linker="py", optimizer=chosen).register((divided, _LAST), (arrays, _LAST))


@node_rewriter([Elemwise])  # type: ignore[untyped-decorator]
def _divided(fgraph: FunctionGraph, node: Apply) -> Any:
    """Combine the results of parts, where an associative operation has too many operands."""
    del fgraph
    given = node.inputs
    if len(given) <= MOST_OPERANDS or not node.op.scalar_op.associative:
        return None
    parts = [given[i : i + MOST_OPERANDS] for i in range(0, len(given), MOST_OPERANDS)]
    return [node.op(*(node.op(*p) if len(p) > 1 else p[0] for p in parts))]


@node_rewriter([Elemwise])  # type: ignore[untyped-decorator]
def _of_arrays(fgraph: FunctionGraph, node: Apply) -> Any:
    """Compute all elements with one function of arrays."""
    del fgraph
    if isinstance(node.op.scalar_op, ScalarLoop) and node.outputs[0].type.ndim:
        return ArrayLoop(node.op.scalar_op)(*node.inputs, return_list=True)
    name = OF_ARRAYS.get(type(node.op.scalar_op))
    if name is None or node.op.nfunc_spec is not None:
        return None
    spec = (name, len(node.inputs), 1)
    made = Elemwise(node.op.scalar_op, node.op.inplace_pattern, nfunc_spec=spec)
    return made.make_node(*node.inputs).outputs
