"""Which terms of a model take less time by the code of this package: the others stay PyMC's."""

from __future__ import annotations

import logging
import math
from collections.abc import Collection

from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.traversal import ancestors, toposort
from pytensor.scalar.basic import Pow
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.math import Dot

from synkhronos._compiling.vectorised.rewrite import is_replaced
from synkhronos.pymc._density.likelihood import DividedTerms, Likelihood
from synkhronos.pymc._reading.reading import Reading
from synkhronos.pymc._reading.rewrites import without_axes
from synkhronos.pymc._repeated.quadratic import QuadraticForm

log = logging.getLogger("synkhronos")

# Measured for a gradient of 81 models (benchmarks/catalogue), and of regressions with 100 to 1,000
# rows. An element of a vectorised function takes some 4 ns less. The graph around the terms takes
# up to 0.7 microseconds more, of 3 to 7. Arithmetic of 1,000 rows and three columns takes as much.
FEW_ROWS = 2000
LEAST_ELEMENTS = 150  # of vectorised functions


def with_gain(reading: Reading, repeated: bool) -> Reading:
    """The reading of those terms that take less time; it may have none.

    Terms of few rows stay PyMC's, unless they have products with matrices of data, or enough
    elements of functions that are vectorised, or sums over rows that repeat. The numbers of rows
    and the graph decide: no clock does, so draws do not depend on the machine.
    """
    large = {name for group in reading.groups if group.rows >= FEW_ROWS for name in group.names}
    small = set(reading.names) - large
    free = reading.facts.free
    gaining = large | {name for name in small if _has_matrices(reading.factors[name], free)}
    rest = small - gaining
    if rest:
        parts = Likelihood(reading.only(rest), repeated).parts
        gaining = gaining.union(*[part.names for part in parts if _gains(part)])
    lacking = [name for name in reading.names if name not in gaining]
    if not lacking:
        return reading
    log.info("%s: few rows, the log-density stays the plain one", ", ".join(lacking))
    return reading.only(gaining)


def _has_matrices(graph: Variable, free: Collection[Variable]) -> bool:
    """Whether a log-density has matrix products with data, or what is computed for each matrix."""
    return any(_is_of_matrices(node, free) for node in toposort([graph]))


def _is_of_matrices(node: Apply, free: Collection[Variable]) -> bool:
    operation = node.op.core_op if isinstance(node.op, Blockwise) else node.op
    if not isinstance(operation, Dot):
        return isinstance(node.op, Blockwise)
    # products of parameters alone take as long in PyMC's graph
    return any(set(ancestors([v])).isdisjoint(free) for v in node.inputs)


def _gains(part: DividedTerms) -> bool:
    if part.form.described and not isinstance(part.form, QuadraticForm):
        return True
    nodes = toposort([part.value, *part.by_pieces.values(), *part.by_latents])
    vectorised = [v for node in nodes for v in node.outputs if _is_function(v)]
    rowed, _ = part.arrays()
    width = max((array.size // part.rows for array in rowed), default=1)
    return sum(_elements(v, part.rows, width) for v in vectorised) >= LEAST_ELEMENTS


def _is_function(variable: Variable) -> bool:
    """Whether a vectorised function computes it; powers of a constant become products."""
    if not is_replaced(variable):
        return False
    operation, inputs = variable.owner.op.scalar_op, variable.owner.inputs
    return not (isinstance(operation, Pow) and isinstance(without_axes(inputs[1]), Constant))


def _elements(variable: Variable, rows: int, width: int) -> int:
    """The number of elements. An unknown first axis has the rows, another one at most `width`."""
    first, *others = variable.type.shape or (1,)
    return (rows if first is None else first) * math.prod(length or width for length in others)
