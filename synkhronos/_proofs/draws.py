"""Random draws that have one row for each row of the inputs, such as the masks of dropout."""

from __future__ import annotations

from collections.abc import Sequence

from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors, toposort
from pytensor.tensor.random.op import RandomVariable

from synkhronos._proofs.values import Count, Entries
from synkhronos._proofs.walk import Walk, seed


def row_draws(output: Variable, rows: Sequence[Variable]) -> list[Variable]:
    """The draws that `output` depends on and that have one row for each row of `rows`.

    A proof may treat them as rows of an input: each member draws its own, so what follows has the
    distribution of the serial value.

    >>> import pytensor, pytensor.tensor as pt, numpy as np
    >>> x, rng = pt.matrix("x"), pytensor.shared(np.random.default_rng(1))
    >>> _, mask = pt.random.bernoulli(0.5, size=x.shape, rng=rng, return_next_rng=True)
    >>> row_draws((x * mask).mean(), [x]) == [mask]
    True
    """
    walk, used = Walk({v: seed(v) for v in rows}), set(ancestors([output]))
    found = []
    for node in toposort([output]):
        if not isinstance(node.op, RandomVariable) or node.outputs[1] not in used:
            continue
        [size] = walk.read([node.inputs[1]])
        if isinstance(size, Entries) and size.entries[0] == Count(whole=True):
            draw = node.outputs[1]
            walk.assume(draw, seed(draw))  # the sizes of later draws may be those of what it masks
            found.append(draw)
    return found
