"""Matrix products: arrays of any strides are handed to BLAS, or copied if BLAS cannot read them.

The product is one LLVM function per dtype, which all nodes of a graph share. Numba has nothing to
infer in LLVM code, and little to optimise: 0.3 s instead of 5 to 15 s for each node.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from pytensor.link.numba.dispatch.basic import numba_njit

from synkhronos._libraries.numba import cgutils, ensure_blas

VERSION = 1  # part of the key of cached machine code: change it whenever the code changes

_I8, _I32, _I64 = (ir.IntType(bits) for bits in (8, 32, 64))
_POINTER = _I8.as_pointer()
_KINDS = {types.float32: ("s", ir.FloatType(), 4), types.float64: ("d", ir.DoubleType(), 8)}
_DONE, _NO_MEMORY, _UNFIT = range(3)

# int numba_xxgemm(kind, transa, transb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc) and
# int numba_xxgemv(kind, trans, m, n, alpha, a, lda, x, beta, y): numba's entries into SciPy's BLAS.
_GEMM = ir.FunctionType(
    _I32, [*[_I8] * 3, *[_I64] * 3, *[_POINTER] * 2, _I64, _POINTER, _I64, *[_POINTER] * 2, _I64]
)
_GEMV = ir.FunctionType(_I32, [*[_I8] * 2, *[_I64] * 2, *[_POINTER] * 2, _I64, *[_POINTER] * 3])


def _word(value: int) -> ir.Value:
    return ir.Constant(_I64, value)


def _letter(text: str) -> ir.Value:
    return ir.Constant(_I8, ord(text))


class _Product:
    """Writes the LLVM function that computes c = a @ b; it returns whether that has succeeded.

    Its arguments are the addresses of a, b and c; the strides of a and b, in bytes; and the lengths
    m, k, n of a (m, k), b (k, n) and c (m, n). c is C-contiguous and no part of a or b.
    """

    def __init__(self, module: ir.Module, dtype: types.Type) -> None:
        self.letter, self.element, size = _KINDS[dtype]
        self.module, self.size = module, _word(size)
        self.copies: list[ir.Value] = []  # slots with the addresses of copies, or null
        signature = ir.FunctionType(_I32, [*[_POINTER] * 3, *[_I64] * 7])
        self.function = ir.Function(module, signature, self.name(dtype))
        self.function.linkage = "linkonce_odr"  # the nodes of a graph share one copy
        self.function.attributes.add("noinline")
        self.builder = ir.IRBuilder(self.function.append_basic_block("entry"))
        self._write()

    @staticmethod
    def name(dtype: types.Type) -> str:
        """The name of the function."""
        return f"synkhronos_product_{_KINDS[dtype][0]}_{VERSION}"

    def _write(self) -> None:
        b = self.builder
        first, second, out, a0, a1, b0, b1, m, k, n = self.function.args
        cells = b.mul(m, n)
        nothing = b.icmp_signed("==", b.mul(cells, k), _word(0))
        with b.if_then(nothing, likely=False):  # no rows, no columns, or sums over nothing
            self._clear(out, cells)
            self._return(_DONE)
        is_column = b.icmp_signed("==", n, _word(1))
        is_vector = b.or_(is_column, b.icmp_signed("==", m, _word(1)))
        with b.if_then(is_vector):
            self._write_vector(is_column)
        self.copies.clear()
        at_a, a_rows, a_lead = self._operand(first, a0, a1, m, k)
        at_b, b_rows, b_lead = self._operand(second, b0, b1, k, n)
        # BLAS stores by columns: it computes the transposed product of the transposed operands.
        given = [_letter(self.letter), self._flag(b_rows), self._flag(a_rows), n, m, k]
        given += [self._scalar(1.0), at_b, b_lead, at_a, a_lead, self._scalar(0.0), out, n]
        b.call(cgutils.get_or_insert_function(self.module, _GEMM, "numba_xxgemm"), given)
        self._return(_DONE)

    def _write_vector(self, is_column: ir.Value) -> None:
        """A product with one column, a @ x; or with one row, x @ b, which is b.T @ x."""
        b = self.builder
        first, second, out, a0, a1, b0, b1, m, k, n = self.function.args

        def pick(column: ir.Value, row: ir.Value) -> ir.Value:
            return b.select(is_column, column, row)

        length = pick(m, n)
        matrix = pick(first, second), pick(a0, b1), pick(a1, b0), length, k
        at, by_rows, lead = self._operand(*matrix)
        x, step = pick(second, first), pick(b0, a1)
        at_x = self._slot(x)
        copy = self._copy_slot()
        with b.if_then(b.icmp_signed("!=", step, self.size), likely=False):
            b.store(self._copied(x, step, _word(0), k, _word(1), copy), at_x)
        self._clear(out, length)  # some BLAS read it in spite of beta = 0
        given = [_letter(self.letter), b.select(by_rows, _letter("t"), _letter("n"))]
        given += [b.select(by_rows, k, length), b.select(by_rows, length, k), self._scalar(1.0)]
        given += [at, lead, b.load(at_x), self._scalar(0.0), out]
        b.call(cgutils.get_or_insert_function(self.module, _GEMV, "numba_xxgemv"), given)
        self._return(_DONE)

    def _operand(
        self, data: ir.Value, s0: ir.Value, s1: ir.Value, n0: ir.Value, n1: ir.Value
    ) -> tuple[ir.Value, ...]:
        """A matrix for BLAS: address, whether it is stored by rows, leading dimension."""
        b = self.builder
        by_rows, row_lead = self._lead(s1, s0, n1, n0)
        by_columns, column_lead = self._lead(s0, s1, n0, n1)
        at, copy = self._slot(data), self._copy_slot()
        lead = self._slot(b.select(by_rows, row_lead, column_lead))
        with b.if_then(b.not_(b.or_(by_rows, by_columns)), likely=False):
            b.store(self._copied(data, s0, s1, n0, n1, copy), at)
            b.store(n1, lead)
        return b.load(at), b.or_(by_rows, b.not_(by_columns)), b.load(lead)

    def _lead(
        self, inner: ir.Value, outer: ir.Value, n_inner: ir.Value, n_outer: ir.Value
    ) -> tuple[ir.Value, ir.Value]:
        """Whether BLAS can read a matrix whose inner axis is dense, and the leading dimension."""
        b = self.builder
        lead = b.sdiv(outer, self.size)
        exact = b.icmp_signed("==", b.mul(lead, self.size), outer)
        apart = b.and_(exact, b.icmp_signed(">=", lead, n_inner))
        single = b.icmp_signed("==", n_outer, _word(1))
        dense = b.or_(b.icmp_signed("==", inner, self.size), b.icmp_signed("==", n_inner, _word(1)))
        return b.and_(dense, b.or_(apart, single)), b.select(single, n_inner, lead)

    def _copied(
        self, data: ir.Value, s0: ir.Value, s1: ir.Value, n0: ir.Value, n1: ir.Value, copy: ir.Value
    ) -> ir.Value:
        """The address of a C-contiguous copy, also stored in its slot; returns without memory."""
        b = self.builder
        allocate = ir.FunctionType(_POINTER, [_I64])
        size = b.mul(b.mul(n0, n1), self.size)
        new = b.call(cgutils.get_or_insert_function(self.module, allocate, "NRT_Allocate"), [size])
        with b.if_then(cgutils.is_null(b, new), likely=False):
            self._return(_NO_MEMORY)
        b.store(new, copy)
        to = b.bitcast(new, self.element.as_pointer())
        with cgutils.for_range(b, n0) as row:
            begin = b.gep(data, [b.mul(row.index, s0)])
            with cgutils.for_range(b, n1) as column:
                source = b.gep(begin, [b.mul(column.index, s1)])
                value = b.load(b.bitcast(source, self.element.as_pointer()))
                b.store(value, b.gep(to, [b.add(b.mul(row.index, n1), column.index)]))
        return new

    def _copy_slot(self) -> ir.Value:
        """A slot for the address of a copy, which a return frees; none yet."""
        self.copies.append(self._slot(ir.Constant(_POINTER, None)))
        return self.copies[-1]

    def _return(self, code: int) -> None:
        free = ir.FunctionType(ir.VoidType(), [_POINTER])
        for slot in self.copies:  # null is none
            called = cgutils.get_or_insert_function(self.module, free, "NRT_Free")
            self.builder.call(called, [self.builder.load(slot)])
        self.builder.ret(_I32(code))

    def _clear(self, data: ir.Value, cells: ir.Value) -> None:
        cgutils.memset(self.builder, data, self.builder.mul(cells, self.size), 0)

    def _flag(self, by_rows: ir.Value) -> ir.Value:
        """The letter for BLAS: "n" where `by_rows` holds, or "t" for the transpose."""
        return self.builder.select(by_rows, _letter("n"), _letter("t"))

    def _slot(self, value: ir.Value) -> ir.Value:
        return cgutils.alloca_once_value(self.builder, value)

    def _scalar(self, value: float) -> ir.Value:
        return self.builder.bitcast(self._slot(ir.Constant(self.element, value)), _POINTER)


@intrinsic  # type: ignore[untyped-decorator]
def _multiply(typingctx: Any, x: Any, y: Any, out: Any) -> Any:
    """Write x @ y into `out`; returns a code: done, no memory, or lengths that do not fit."""
    ensure_blas()
    dtype = x.dtype

    def generate(
        context: Any, builder: ir.IRBuilder, signature: Any, arguments: Sequence[ir.Value]
    ) -> ir.Value:
        module = builder.module
        function = module.globals.get(_Product.name(dtype)) or _Product(module, dtype).function
        arrays = [
            context.make_array(kind)(context, builder, value)
            for kind, value in zip(signature.args, arguments, strict=True)
        ]
        (m, k), (inner, n) = (cgutils.unpack_tuple(builder, a.shape, 2) for a in arrays[:2])
        code = cgutils.alloca_once_value(builder, _I32(_UNFIT))
        with builder.if_then(builder.icmp_signed("==", k, inner), likely=True):
            given = [builder.bitcast(a.data, _POINTER) for a in arrays]
            for array in arrays[:2]:
                given += cgutils.unpack_tuple(builder, array.strides, 2)
            builder.store(builder.call(function, [*given, m, k, n]), code)
        return builder.load(code)

    return types.int32(x, y, out), generate


def product(dtype: str) -> Any:
    """A function of numba: (x, y) -> x @ y."""
    kind = np.dtype(dtype)

    @numba_njit
    def dot(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        out = np.empty((x.shape[0], y.shape[1]), kind)
        code = _multiply(x, y, out)  # numba gives the first
        if code == _UNFIT:
            raise ValueError("dot: the columns of the first matrix are not the rows of the second")
        if code == _NO_MEMORY:
            raise MemoryError("dot: no memory for a copy that BLAS can read")
        return out

    return dot
