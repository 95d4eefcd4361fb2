"""Reductions as loops that know the layout of their array.

PyTensor's reductions sort the strides of an array while they run. The sort, and the errors with
formatted lengths that it can raise, take 5 s to compile, also for arrays that are known to be
contiguous.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
from numba import types
from numba.extending import intrinsic, overload
from pytensor.link.numba.dispatch.basic import numba_njit

from synkhronos._libraries.numba import cgutils
from synkhronos._libraries.pytensor import compile_numba_function_src

VERSION = 1  # part of the key of cached machine code: change it whenever the code changes

_COMBINE = {
    "Add": "{0} + {1}",
    "Mul": "{0} * {1}",
    "AND": "{0} & {1}",
    "OR": "{0} | {1}",
    # a select, which is vectorised; NaN is kept
    "Maximum": "{1} if ({1} != {1}) | ({0} < {1}) else {0}",
    "Minimum": "{1} if ({1} != {1}) | ({0} > {1}) else {0}",
}
_LANES = 8  # independent maxima, which the processor compares at once


@intrinsic  # type: ignore[untyped-decorator]
def flat(typingctx: Any, x: Any) -> Any:
    """A contiguous array as an array of one axis, in the order of memory."""
    kind = types.Array(x.dtype, 1, "C")

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        given = context.make_array(signature.args[0])(context, builder, arguments[0])
        size = given.nitems
        found = context.make_array(kind)(context, builder)
        context.populate_array(
            found,
            data=given.data,
            shape=cgutils.pack_array(builder, [size]),
            strides=cgutils.pack_array(builder, [given.itemsize]),
            itemsize=given.itemsize,
            meminfo=None,  # used only while the array itself is alive
            parent=None,
        )
        return found._getvalue()

    return kind(x), generate


def _identity(value: Any, dtype: np.dtype) -> Any:
    """The value with which a reduction begins, in the dtype in which it is computed."""
    if dtype.kind in "iu" and not np.isfinite(value):
        limits = np.iinfo(dtype)
        value = limits.max if value > 0 else limits.min
    elif dtype.kind == "b" and not np.isfinite(value):
        value = value > 0
    return np.asarray(value).astype(dtype)[()]


class _Reduction:
    """The source code of a reduction for one layout of its array."""

    def __init__(self, scalar: str, ndim: int, axes: Sequence[int], layout: str) -> None:
        self.combine = _COMBINE[scalar]
        self.lanes = _LANES if scalar in ("Maximum", "Minimum") else 1
        self.ndim, self.axes, self.layout = ndim, set(axes), layout
        self.kept = [d for d in range(ndim) if d not in self.axes]
        self.lines = ["def careduce(x):"]

    def source(self) -> str:
        """The function's text."""
        if self.layout != "A":
            self._contiguous()
        elif self.ndim == 1:
            self._total("x", "x.size")
        else:
            self._strided()
        return "\n".join(self.lines)

    def _add(self, depth: int, *lines: str) -> None:
        self.lines += [f"{'    ' * depth}{line}" for line in lines]

    def _into(self, target: str, value: str) -> str:
        return f"{target} = {self.combine.format(target, value)}"

    def _contiguous(self) -> None:
        """Loops over groups of neighbouring axes that are all reduced, or all kept."""
        order = list(range(self.ndim))
        if self.layout == "F":
            order.reverse()
        groups = [
            (reduced, list(dims))
            for reduced, dims in itertools.groupby(order, lambda d: d in self.axes)
        ]
        self._add(1, "y = flat(x)")
        if len(groups) == 1:
            self._total("y", "y.size")
            return
        for i, (_, dims) in enumerate(groups):
            self._add(1, f"n{i} = {' * '.join(f'x.shape[{d}]' for d in dims)}")
        kept = [d for reduced, dims in groups if not reduced for d in dims]
        self._new_output([f"x.shape[{d}]" for d in kept])
        outer_reduced = any(reduced for reduced, _ in groups[:-1])
        last = len(groups) - 1
        if outer_reduced:
            self._fill()
        for i in range(last):
            self._add(i + 1, f"for i{i} in range(n{i}):")
        source, target = "0", "0"
        for i, (reduced, _) in enumerate(groups[:-1]):
            source = f"({source} * n{i} + i{i})" if i else f"i{i}"
            if not reduced:
                target = f"({target} * n{i} + i{i})" if target != "0" else f"i{i}"
        depth = last + 1
        self._add(depth, f"start = {source} * n{last}")
        if groups[last][0]:
            self._run(depth, f"n{last}", "y[start + {}]")
            cell = f"o[{target}]"
            self._add(depth, self._into(cell, "total") if outer_reduced else f"{cell} = total")
        else:
            self._add(
                depth,
                f"begin = {target} * n{last}",
                f"for i in range(n{last}):",
                f"    {self._into('o[begin + i]', 'y[start + i]')}",
            )
        self._return("out.T" if self.layout == "F" and len(kept) > 1 else "out")

    def _strided(self) -> None:
        """Loops over all axes; the axis with the shortest steps is the innermost one."""
        if self.kept:
            self._new_output([f"x.shape[{d}]" for d in self.kept])
            self._fill()
        else:
            self._add(1, "total = identity")
        steps = [f"abs(x.strides[{d}])" for d in range(self.ndim)]
        for inner in reversed(range(self.ndim)):
            others = [f"{steps[inner]} <= {s}" for d, s in enumerate(steps) if d < inner]
            word = "if" if inner == self.ndim - 1 else "elif"
            self._add(1, f"{word} {' and '.join(others)}:" if others else "else:")
            self._nested(inner)
        if self.kept:
            self._return("out")
        else:
            self._return_scalar("total")

    def _nested(self, inner: int) -> None:
        outer = [d for d in range(self.ndim) if d != inner]
        for depth, d in enumerate(outer, 2):
            self._add(depth, f"for i{d} in range(x.shape[{d}]):")
        depth = 1 + self.ndim
        target = f"out[{', '.join(f'i{d}' for d in self.kept)}]" if self.kept else "total"
        source = f"x[{', '.join(f'i{d}' for d in range(self.ndim))}]"
        loop = f"for i{inner} in range(x.shape[{inner}]):"
        if inner in self.kept or not self.kept:
            self._add(depth, loop, f"    {self._into(target, source)}")
        else:
            self._add(depth, "part = identity", loop, f"    {self._into('part', source)}")
            self._add(depth, self._into(target, "part"))

    def _total(self, array: str, size: str) -> None:
        """One value from an array of one axis."""
        self._add(1, f"size = {size}")
        self._run(1, "size", array + "[{}]")
        self._return_scalar("total")

    def _run(self, depth: int, size: str, element: str) -> None:
        """Combine the elements of a run into `total`."""
        begin = "0"
        if self.lanes > 1:
            lanes = [f"total{i}" for i in range(self.lanes)]
            begin = "whole"
            self._add(depth, f"whole = {size} - {size} % {self.lanes}")
            self._add(depth, *[f"{lane} = identity" for lane in lanes])
            self._add(depth, f"for i in range(0, whole, {self.lanes}):")
            for k, lane in enumerate(lanes):
                self._add(depth + 1, self._into(lane, element.format(f"i + {k}")))
            self._add(depth, "total = total0", *[self._into("total", v) for v in lanes[1:]])
        else:
            self._add(depth, "total = identity")
        self._add(depth, f"for i in range({begin}, {size}):")
        self._add(depth + 1, self._into("total", element.format("i")))

    def _new_output(self, lengths: Sequence[str]) -> None:
        self._add(1, f"out = np.empty(({', '.join(lengths)},), wide)", "o = flat(out)")

    def _fill(self, depth: int = 1) -> None:
        self._add(depth, "for i in range(o.size):", "    o[i] = identity")

    def _return_scalar(self, name: str) -> None:
        self._add(1, "out = np.empty((), narrow)", f"out[()] = {name}", "return out")

    def _return(self, text: str) -> None:
        if text == "out":
            self._add(1, "return narrowed(out)")
        else:
            self._add(1, f"return narrowed(out){text.removeprefix('out')}")


def reduction(op: Any, ndim: int, narrow: np.dtype, wide: np.dtype) -> Any:
    """A function of numba: x -> x reduced over axes.

    Parameters
    ----------
    op : CAReduce
        The reduction.
    ndim : int
        Of x.
    narrow, wide : dtype
        Of the result, and of the values while they are combined.
    """
    axes = range(ndim) if op.axis is None else op.axis
    scalar = type(op.scalar_op).__name__
    identity = _identity(op.scalar_op.identity, wide)

    if narrow == wide:

        @numba_njit(inline="always")
        def narrowed(out: object) -> Any:
            return out

    else:

        @numba_njit
        def narrowed(out: Any) -> Any:
            return out.astype(narrow)

    def careduce(x: object) -> Any:
        raise NotImplementedError("only numba runs this")

    @overload(careduce, strict=False)  # type: ignore[untyped-decorator]
    def _careduce(x: Any) -> Any:
        source = _Reduction(scalar, ndim, axes, x.layout).source()
        names = {"np": np, "flat": flat, "identity": identity, "wide": wide, "narrow": narrow}
        return compile_numba_function_src(source, "careduce", names | {"narrowed": narrowed})

    return careduce
