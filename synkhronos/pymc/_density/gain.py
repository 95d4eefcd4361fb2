"""Which terms of a model take less time by the code of this package: the others stay PyMC's."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

import numpy as np
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.replace import clone_replace
from pytensor.graph.traversal import ancestors, toposort
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.linalg.solvers.triangular import SolveTriangular
from pytensor.tensor.math import Dot

from synkhronos._compiling.nodes import in_batches
from synkhronos._compiling.vectorised.rewrite import is_replaced, opened
from synkhronos._warnings import log
from synkhronos.pymc._density.estimate import (
    gradient_nanoseconds,
    has_constant_power,
    nanoseconds,
)
from synkhronos.pymc._density.likelihood import DividedTerms, Likelihood
from synkhronos.pymc._density.normals import with_normals
from synkhronos.pymc._reading.reading import Reading
from synkhronos.pymc._reading.rows import RowReading
from synkhronos.pymc._repeated.quadratic import QuadraticForm

# Measured for a gradient of 158 public models (benchmarks/pymc_corpora.py). The graph around the
# terms takes up to 2 microseconds more, of 3 to 10, most of it for data that can be set. Arithmetic
# of 1,000 rows and three columns takes as much.
FEW_ROWS = 2000
_LEAST_ELEMENTS = 150  # of vectorised functions
_LEAST_FUNCTIONS = 950.0  # nanoseconds that these elements take without vectors
_LEAST_REPEATED = 2000.0  # nanoseconds of the rows that a form has no more
_LEAST_PRODUCTS = 400  # elements of a matrix of data
_FEW_VECTORS = 500  # rows of a multivariate normal, whose triangle is solved for each of them
_INPUT = 250.0  # nanoseconds that Python's call of a function takes for one more array
_SLOW = 5.0  # nanoseconds for a number, of a function in place of arithmetic


def with_gain(reading: Reading, repeated: bool, settable: bool = False) -> Reading:
    """The reading of those terms that take less time; it may have none.

    Terms of few numbers stay PyMC's, unless they have products with matrices of data, or enough
    elements of functions that are vectorised, or sums over rows that repeat. So do terms of any
    size that have nothing but arithmetic with a parameter for each row. The numbers of rows and
    columns, and the graph, decide: no clock does, so draws do not depend on the machine. If data
    are settable, each array of them is one more input of a function.
    """
    large = {
        name
        for group in reading.groups
        if _numbers(group, reading) >= FEW_ROWS and not is_arithmetic(group, reading)
        for name in group.names
    }
    small = [group for group in reading.groups if not large.issuperset(group.names)]
    gaining = large | {
        name for group in small for name in group.names if _has_matrices(name, group, reading)
    }
    rest = {
        name
        for group in small
        for name in group.names
        if not (group.rows < _FEW_VECTORS and _is_closed(name, reading))
    } - gaining
    if rest:
        likelihood = Likelihood(reading.only(rest), repeated)
        for part in likelihood.parts:
            inputs = sum(part.settable) if settable else 0
            if _gains(part, likelihood, reading, _INPUT * inputs):
                gaining = gaining.union(part.names)
    lacking = [name for name in reading.names if name not in gaining]
    if not lacking:
        return reading
    log.info("%s: nothing to gain, the log-density stays the plain one", ", ".join(lacking))
    return reading.only(gaining)


def _numbers(group: RowReading, reading: Reading) -> int:
    """The numbers of the largest log-density: rows may have columns."""
    shapes = [reading.facts.shapes.get(term.variable, ()) for term in group.terms]
    return max(group.rows, *map(math.prod, shapes))


def is_arithmetic(group: RowReading, reading: Reading) -> bool:
    """Whether terms with a parameter for each row have neither functions nor matrices of data."""
    if not group.has_latents or any(_has_matrices(n, group, reading) for n in group.names):
        return False
    nodes, shapes = toposort([term.variable for term in group.terms]), reading.facts.shapes
    functions = [n for n in nodes if isinstance(n.op, Elemwise) and nanoseconds(n) >= _SLOW]
    return not any(math.prod(shapes.get(n.outputs[0], ())) >= group.rows for n in functions)


def _has_matrices(name: str, group: RowReading, reading: Reading) -> bool:
    """Whether a log-density has matrix products with data, or what is computed for each matrix."""
    nodes, facts = list(toposort([reading.factors[name]])), reading.facts
    if any(_is_product(node, facts.free, facts.shapes) for node in nodes):
        return not group.has_latents
    others = [node.op.core_op for node in nodes if isinstance(node.op, Blockwise)]
    others = [operation for operation in others if not isinstance(operation, Dot)]
    normal = any(isinstance(operation, SolveTriangular) for operation in others)
    return bool(others) and (group.rows >= _FEW_VECTORS or not normal)


def _is_closed(name: str, reading: Reading) -> bool:
    """Whether PyMC's graph gets a closed form of the gradient."""
    density = reading.factors[name].sum()
    return with_normals(density, reading.facts.free) is not density


def _is_product(
    node: Apply, free: Collection[Variable], shapes: Mapping[Variable, tuple[int, ...]]
) -> bool:
    """Whether it is a product with a matrix of data; small ones take as long in PyMC's graph."""
    operation = in_batches(node)
    if not isinstance(operation, Dot):
        return False
    data = [v for v in node.inputs if set(ancestors([v])).isdisjoint(free)]
    return any(math.prod(shapes.get(v, (_LEAST_PRODUCTS,))) >= _LEAST_PRODUCTS for v in data)


def _gains(part: DividedTerms, likelihood: Likelihood, reading: Reading, lost: float) -> bool:
    """Whether the nanoseconds that are saved pay for those that are lost, and for the graph."""
    if part.form.described and not isinstance(part.form, QuadraticForm):
        terms = [term.variable for term in reading.terms if term.name in part.names]
        saved = sum(gradient_nanoseconds(node, reading.facts.shapes) for node in toposort(terms))
        rows = part.form.instead_of or part.rows
        return saved * (rows - part.form.left) / rows - lost >= _LEAST_REPEATED
    vectorised = _functions(part, likelihood)
    rowed, _ = part.arrays()
    width = max((array.size // part.rows for array in rowed), default=1)
    counts = [_elements(v, part.rows, width) for v in vectorised]
    taken = [max(nanoseconds(v.owner), _SLOW) for v in vectorised]
    return sum(counts) >= _LEAST_ELEMENTS and np.dot(counts, taken) - lost >= _LEAST_FUNCTIONS


def _functions(part: DividedTerms, likelihood: Likelihood) -> list[Variable]:
    """The results of vectorised functions; their lengths follow from those of the sources."""
    rowed, whole = part.arrays()
    shapes = [*[p.shape for p in part.pieces], *[likelihood.latent_shapes[i] for i in part.latents]]
    shapes += [array.shape for array in [*rowed, *whole]]
    places = [*part.pieces.values(), *part.scattered, *part.broadcast[1:]]
    pairs = [(v, v.type.clone(shape=shape)()) for v, shape in zip(places, shapes, strict=True)]
    outputs = [part.value, *part.by_pieces.values(), *part.by_latents]
    graph = opened(clone_replace(outputs, replace=pairs, rebuild_strict=False))
    return [v for node in toposort(graph) for v in node.outputs if _is_function(v)]


def _is_function(variable: Variable) -> bool:
    """Whether a vectorised function computes it; powers of a constant become products."""
    return is_replaced(variable) and not has_constant_power(variable.owner)


def _elements(variable: Variable, rows: int, width: int) -> int:
    """The number of elements. An unknown first axis has the rows, another one at most `width`."""
    first, *others = variable.type.shape or (1,)
    return (rows if first is None else first) * math.prod(length or width for length in others)
