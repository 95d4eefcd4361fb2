"""The scalar operation that stands in a graph for one of PyTensor's."""

from __future__ import annotations

from typing import Any

from pytensor.scalar import basic as ps


class Vectorised(ps.ScalarOp):
    """A function of numbers with vectorised code."""

    def __init__(self, plain: Any) -> None:
        # the operation that it replaces, which says what is computed
        self.plain, self.nin = plain, plain.nin
        super().__init__(plain.output_types_preference, name=f"vectorised_{plain}")

    def impl(self, *inputs: Any) -> Any:
        return self.plain.impl(*inputs)

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> Any:
        """The derivative of `plain`, of operations that may be replaced as well."""
        return self.plain.pullback(inputs, outputs, cotangents)

    def supports_c_code(self, inputs: Any, outputs: Any) -> bool:
        """Say yes: PyTensor asks this to fuse loops, also those of other languages."""
        return True

    def c_code(self, *args: Any) -> str:
        """Not available: only numba compiles this."""
        raise NotImplementedError

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Vectorised) and self.plain == other.plain

    def __hash__(self) -> int:
        return hash((Vectorised, self.plain))


def has_vectorised(operation: Any) -> bool:
    """Whether a scalar operation is vectorised, or composed of some that are."""
    if isinstance(operation, ps.Composite):
        return any(isinstance(node.op, Vectorised) for node in operation.fgraph.apply_nodes)
    return isinstance(operation, Vectorised)
