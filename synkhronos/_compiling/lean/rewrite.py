"""Replaces operations by ones whose numba code compiles in a fraction of the time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pytensor.compile.mode import optdb
from pytensor.graph.basic import Apply
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.op import Op
from pytensor.tensor.basic import Alloc, Split
from pytensor.tensor.elemwise import CAReduce
from pytensor.tensor.math import Dot, cast
from pytensor.tensor.shape import SpecifyShape

from synkhronos._compiling.data.once import compute_once
from synkhronos._compiling.lean.axes import order_axes
from synkhronos._compiling.lean.convolutions import convolve_rows
from synkhronos._compiling.lean.covariances import CovarianceGradient
from synkhronos._compiling.lean.exponents import join_powers, join_products
from synkhronos._compiling.lean.gathers import gather_by_loops
from synkhronos._compiling.lean.narrow import leave_out_axes
from synkhronos._compiling.lean.op import Lean
from synkhronos._compiling.lean.outer import multiply_outer
from synkhronos._compiling.lean.quotients import log_of_data
from synkhronos._compiling.lean.row_products import multiply_chosen_rows
from synkhronos._compiling.lean.scans import scan_numbers
from synkhronos._compiling.nodes import FLOATS
from synkhronos._compiling.vectorised.ratios import put_quotients
from synkhronos._compiling.where import Where, register_all, registering
from synkhronos._libraries.library import tell, usable

TAG = "synkhronos_lean"
_JOINED = f"{TAG}_exponentials"
_LOGARITHMS = f"{TAG}_logarithms"
_AFTER_FACTORS = 46.5  # are joined; the graph of a model takes up those of densities at 47
_BEFORE_FUNCTIONS = 48.3  # are vectorised
_BEFORE_FUSION = 48.6
_BEFORE_ELEMENTS = 48.65  # `vectorised` computes short axes over elements at 48.7
_LAST_BEFORE_FUSION = 48.8
_BEFORE_INDEXED_LOOPS = 99.0  # PyTensor joins gathers and loops at 100
_BEFORE_INNER_GRAPHS = 99.5  # are rewritten
_LAST = 1001.0  # a position after all of PyTensor's own rewrites, and after those of `nn`


def _is_product(op: Op, node: Apply) -> bool:
    return node.outputs[0].type.dtype in FLOATS


def operands_alike(node: Apply) -> list[Any]:
    """The operands of a product in the dtype of the result, to which PyTensor's code casts them."""
    dtype = node.outputs[0].type.dtype
    return [v if v.type.dtype == dtype else cast(v, dtype) for v in node.inputs]


# The scalar operations of reductions, by the name of their class.
_COMBINED = ("Add", "Mul", "Maximum", "Minimum", "AND", "OR")
_REDUCED = (*FLOATS, "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")


def _is_reduction(op: Any, node: Apply) -> bool:
    kinds = [node.inputs[0].type.dtype, node.outputs[0].type.dtype]
    kinds += [d] if (d := getattr(op, "acc_dtype", None)) else []
    return (
        type(op.scalar_op).__name__ in _COMBINED
        and 0 < node.inputs[0].type.ndim <= 4
        and op.axis != ()
        and not getattr(op, "initial", False)  # a value for no elements
        and all(k in (*_REDUCED, "bool") for k in kinds)
    )


def _is_fill(op: Op, node: Apply) -> bool:
    return all(length == 1 for length in node.inputs[0].type.shape)


def _is_divided(op: Any, node: Apply) -> bool:
    return bool(op.len_splits > 1)


def _always(op: Op, node: Apply) -> bool:
    return True


_OF_REDUCTIONS = {"scalar_op", "axis", "dtype", "acc_dtype", "initial"}
_OF_REDUCTIONS |= {"upcast_discrete_output", "no_zeros_in_input"}  # these change no value

# For each class of operations: the properties that this package knows, and whether it has code for
# a node.
_KNOWN: dict[type, tuple[set[str], Callable[[Any, Apply], bool]]] = {
    Dot: (set(), _is_product),
    CAReduce: (_OF_REDUCTIONS, _is_reduction),
    Alloc: (set(), _is_fill),
    SpecifyShape: (set(), _always),
    Split: ({"len_splits", "axis"}, _is_divided),
}


def _known(op: Op) -> type | None:
    """The class of operations that an operation belongs to; subclasses only of reductions."""
    if isinstance(op, CAReduce):
        return CAReduce
    return type(op) if type(op) in _KNOWN else None


def _replace(fgraph: FunctionGraph) -> None:
    """Put lean operations in the place of those that this package has code for.

    The graph is otherwise ready for numba.
    """
    if not usable("synkhronos._compiling.lean.dispatch"):
        return
    for node in fgraph.toposort():
        kind = _known(node.op)
        if kind is None or not _is_fit(kind, node):
            continue
        inputs = operands_alike(node) if kind is Dot else node.inputs
        new = Apply(Lean(node.op), inputs, [v.type() for v in node.outputs])
        pairs = list(zip(node.outputs, new.outputs, strict=True))
        fgraph.replace_all(pairs, reason=TAG)


def _is_fit(kind: type, node: Apply) -> bool:
    properties, is_fit = _KNOWN[kind]
    unknown = set(getattr(node.op, "__props__", ())) - properties
    if unknown:
        tell(
            f"first calls take longer: PyTensor's own numba code is used for {kind.__name__}, "
            f"which has unknown properties {sorted(unknown)}"
        )
        return False
    return is_fit(node.op, node)


def register() -> None:
    """Register the rewrites, which only modes that include their tag use."""
    with registering.held():
        if TAG not in optdb:
            _register()


def _register() -> None:
    if usable("synkhronos._compiling.lean.exponentials"):
        from synkhronos._compiling.lean.exponentials import join_alike

        optdb["specialize"].register(_JOINED, join_alike, TAG)
    optdb["canonicalize"].register(_LOGARITHMS, log_of_data, TAG)
    rewrites = (
        ("operations", _replace, _LAST),
        ("number_products", join_products, _BEFORE_FUNCTIONS),
        ("powers", join_powers, _BEFORE_FUNCTIONS),
        ("outer_products", multiply_outer, _BEFORE_FUSION),
        ("without_axes", leave_out_axes, _BEFORE_FUSION),
        ("convolutions", convolve_rows, _BEFORE_FUSION),
        ("row_products", multiply_chosen_rows, _BEFORE_FUSION),
        ("axes", order_axes, _BEFORE_ELEMENTS),
        ("once", compute_once, _LAST_BEFORE_FUSION),
        ("gathers", gather_by_loops, _BEFORE_INDEXED_LOOPS),
        ("scans", scan_numbers, _BEFORE_INNER_GRAPHS),
    )
    register_all(TAG, rewrites)
    optdb.register(
        "synkhronos_lean_quotients", Where(put_quotients), "numba", position=_AFTER_FACTORS
    )
    register_where(CovarianceGradient)  # PyTensor's operations would take longer


def instead() -> tuple[str, ...]:
    """The names of PyTensor's rewrites instead of which there are rewrites of this package."""
    return ("local_mul_exp_to_exp_add",) if _JOINED in optdb["specialize"] else ()


def register_where(operation: type) -> None:
    """Replace operations in all graphs for numba with this operation, also those of the user."""
    name = f"synkhronos_lean_where_{operation.__name__}"
    if name not in optdb:
        optdb.register(name, Where(_replace, operation), "numba", position=_LAST)
