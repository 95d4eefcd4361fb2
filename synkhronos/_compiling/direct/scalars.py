"""The instructions of PyTensor's operations on numbers.

Numbers are in registers. An operation is computed in the dtype of its result, as PyTensor does it.
It raises `UnfitError` for a dtype that it has no instructions for. `Scalars` appends instructions,
and reads and writes no memory. Functions that write operations know nothing of arrays: `_WRITTEN`
has them by the type of the operation. An operation that LLVM has no instruction for is a vectorised
function, or else a call of SciPy's function, whose name the process has to know.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import llvmlite.binding as llvm
import numpy as np
import pytensor.scalar as ps
from llvmlite import ir
from pytensor.graph.basic import Constant, Variable
from pytensor.scalar.basic import Composite
from pytensor.scalar.loop import ScalarLoop
from pytensor.scalar.math import BetaInc, GammaInc, GammaIncC

from synkhronos._compiling.direct import inverses
from synkhronos._compiling.direct.unfit import UnfitError
from synkhronos._compiling.special_entries import entry, entry_address
from synkhronos._compiling.vectorised import table
from synkhronos._compiling.vectorised.op import Vectorised
from synkhronos._compiling.vectorised.real import Real

FLAGS = ("arcp", "contract", "afn", "reassoc", "nsz")  # those that PyTensor gives numba
_BITS = 8
_REALS = {"float64": ir.DoubleType(), "float32": ir.FloatType()}
BOOL = "bool"


def type_of(dtype: str) -> ir.Type:
    """LLVM's type of numbers in registers.

    Raises
    ------
    UnfitError
    """
    if dtype in _REALS:
        return _REALS[dtype]
    if dtype == BOOL:
        return ir.IntType(1)
    if dtype.startswith(("int", "uint")):
        return ir.IntType(_BITS * np.dtype(dtype).itemsize)
    raise UnfitError(f"numbers of {dtype}")


def stored_type(dtype: str) -> ir.Type:
    """LLVM's type of numbers in memory."""
    return ir.IntType(_BITS) if dtype == BOOL else type_of(dtype)


def is_real(dtype: str) -> bool:
    return dtype in _REALS


@dataclass(frozen=True)
class Number:
    """A number in a register."""

    value: ir.Value
    dtype: str


class Scalars:
    """Appends the instructions of operations on numbers.

    Parameters
    ----------
    builder : ir.IRBuilder
    flags : sequence of str
        What LLVM may change of arithmetic.
    """

    def __init__(self, builder: ir.IRBuilder, flags: Sequence[str]) -> None:
        self._b, self._flags = builder, tuple(flags)

    def constant(self, value: Any, dtype: str) -> Number:
        kind = type_of(dtype)
        number = float(value) if is_real(dtype) else int(value)
        if not is_real(dtype) and dtype.startswith("uint"):
            number &= (1 << kind.width) - 1
        return Number(ir.Constant(kind, number), dtype)

    def cast(self, number: Number, dtype: str) -> Number:
        """The number as one of another dtype, as C does it."""
        old, kind, value = number.dtype, type_of(dtype), number.value
        if old == dtype:
            return number
        b = self._b
        if dtype == BOOL:
            return self._compared("!=", number, self.constant(0, old))
        if is_real(old) and is_real(dtype):
            found = b.fpext(value, kind) if old == "float32" else b.fptrunc(value, kind)
        elif is_real(old):
            found = (b.fptoui if dtype.startswith("u") else b.fptosi)(value, kind)
        elif is_real(dtype):
            found = (b.uitofp if _is_unsigned(old) else b.sitofp)(value, kind)
        elif kind.width > value.type.width:
            found = (b.zext if _is_unsigned(old) else b.sext)(value, kind)
        elif kind.width < value.type.width:
            found = b.trunc(value, kind)
        else:
            found = value
        return Number(found, dtype)

    def applied(self, op: Any, inputs: Sequence[Number], dtypes: Sequence[str]) -> list[Number]:
        """The results of a scalar operation, of these dtypes.

        Raises
        ------
        UnfitError
        """
        if isinstance(op, Composite):
            return self._composed(op.fgraph, inputs)
        if isinstance(op, ScalarLoop):
            return self._looped(op, inputs)
        plain = op.plain if isinstance(op, Vectorised) else op
        [dtype] = dtypes
        if isinstance(plain, ps.Pow) and (power := _few(inputs[1])) and dtype != BOOL:
            return [self.folded(ps.mul, [inputs[0]] * power, dtype)]
        if table.has_code(plain, dtype):
            return [self._by_function(plain, inputs, dtype)]
        write = _WRITTEN.get(type(plain))
        if write is None:
            raise UnfitError(f"{plain}")
        return [self.cast(write(self, plain, inputs, dtype), dtype)]

    def _composed(self, graph: Any, inputs: Sequence[Number]) -> list[Number]:
        known: dict[Variable, Number] = dict(zip(graph.inputs, inputs, strict=True))

        def of(v: Any) -> Number:
            if v not in known:
                if not isinstance(v, Constant):
                    raise UnfitError(f"{v}")
                known[v] = self.constant(v.data, v.type.dtype)
            return known[v]

        for node in graph.toposort():
            kinds = [v.type.dtype for v in node.outputs]
            found = self.applied(node.op, [of(v) for v in node.inputs], kinds)
            known.update(zip(node.outputs, found, strict=True))
        return [of(v) for v in graph.outputs]

    def _looped(self, op: Any, inputs: Sequence[Number]) -> list[Number]:
        """The last states of a loop, and whether it has ended before its last step."""
        b, graph = self._b, op.fgraph
        steps, *given = inputs
        given = [self.cast(v, k.type.dtype) for v, k in zip(given, graph.inputs, strict=True)]
        count = len(graph.outputs) - op.is_while
        states, constants = given[:count], given[count:]
        word = steps.value.type
        if op.is_while:  # without a step it has ended
            states.append(self.constant(1, BOOL))
        before = b.block
        body, after = b.append_basic_block("step"), b.append_basic_block("stepped")
        b.cbranch(b.icmp_signed(">", steps.value, word(0)), body, after)
        b.position_at_end(body)
        at = b.phi(word)
        carried = [Number(b.phi(v.value.type), v.dtype) for v in states[:count]]
        found = self._composed(graph, [*carried, *constants])
        following = b.add(at, word(1))
        more = b.icmp_signed("<", following, steps.value)
        if op.is_while:
            more = b.and_(more, b.not_(found[-1].value))
        last = b.block  # a step may have blocks of its own
        b.cbranch(more, body, after)
        at.add_incoming(word(0), before)
        at.add_incoming(following, last)
        for each, first, then in zip(carried, states, found, strict=False):
            each.value.add_incoming(first.value, before)
            each.value.add_incoming(then.value, last)
        b.position_at_end(after)
        results = [Number(b.phi(v.value.type), v.dtype) for v in states]
        for each, first, then in zip(results, states, found, strict=True):
            each.value.add_incoming(first.value, before)
            each.value.add_incoming(then.value, last)
        return results

    def called_by_name(self, function: str, inputs: Sequence[Number], dtype: str) -> Number:
        """A function of `scipy.special`, which computes in doubles as PyTensor calls it.

        Raises
        ------
        UnfitError
        """
        double, name = ir.DoubleType(), entry(function)
        address = entry_address(name, len(inputs))
        if address is None or not is_real(dtype):
            raise UnfitError(f"{function} of {dtype}")
        llvm.add_symbol(name, address)
        kinds = [*[double] * len(inputs), ir.IntType(32)]
        module = self._b.module
        of = module.globals.get(name) or ir.Function(module, ir.FunctionType(double, kinds), name)
        given = [self.cast(v, "float64").value for v in inputs]
        return Number(self._b.call(of, [*given, ir.IntType(32)(0)]), "float64")

    def _by_function(self, op: Any, inputs: Sequence[Number], dtype: str) -> Number:
        module, name = table.TABLE[type(op)]
        function = getattr(import_module(f"{table.__package__}.{module}"), name)
        given = [Real(self._b, self.cast(v, dtype).value) for v in inputs]
        return Number(function(*given).value, dtype)

    # the operations

    def folded(self, op: Any, inputs: Sequence[Number], dtype: str) -> Number:
        """An operation of two numbers for any number of them, of the dtype of the result."""
        found, *others = [self.cast(v, dtype) for v in inputs]
        for other in others:
            found = self.combined(op, found, other)
        return found

    def combined(self, op: Any, one: Number, other: Number) -> Number:
        """A commutative operation of two numbers of one dtype.

        Raises
        ------
        UnfitError
        """
        dtype = one.dtype
        if dtype == BOOL:
            logical = {ps.Add: "or_", ps.Mul: "and_", ps.OR: "or_", ps.AND: "and_"}
            logical |= {ps.XOR: "xor", ps.Maximum: "or_", ps.Minimum: "and_"}
            name = logical.get(type(op))
        elif is_real(dtype):
            name = {ps.Add: "fadd", ps.Mul: "fmul"}.get(type(op))
        else:
            name = {ps.Add: "add", ps.Mul: "mul"}.get(type(op))
            name = name or {ps.OR: "or_", ps.AND: "and_", ps.XOR: "xor"}.get(type(op))
        if name is not None:
            write = getattr(self._b, name)
            flags = {"flags": self._flags} if is_real(dtype) else {}
            return Number(write(one.value, other.value, **flags), dtype)
        if isinstance(op, ps.Maximum | ps.Minimum):
            first = self._compared(">" if isinstance(op, ps.Maximum) else "<", one, other)
            if is_real(dtype):  # a first one that is no number stays
                first = Number(self._b.or_(first.value, self._no_number(one)), BOOL)
            return self._selected(first, one, other)
        raise UnfitError(f"{op} of {dtype}")

    def _compared(self, sign: str, one: Number, other: Number) -> Number:
        b, (x, y) = self._b, (one.value, other.value)
        if is_real(one.dtype):
            write = b.fcmp_unordered if sign == "!=" else b.fcmp_ordered
        else:
            write = b.icmp_unsigned if _is_unsigned(one.dtype) else b.icmp_signed
        return Number(write(sign, x, y), BOOL)

    def _selected(self, condition: Number, one: Number, other: Number) -> Number:
        return Number(self._b.select(condition.value, one.value, other.value), one.dtype)

    def _no_number(self, number: Number) -> ir.Value:
        return self._b.fcmp_unordered("uno", number.value, number.value)

    def arithmetic(self, name: str, one: Number, other: Number) -> Number:
        write = getattr(self._b, f"f{name}" if is_real(one.dtype) else name)
        flags = {"flags": self._flags} if is_real(one.dtype) else {}
        return Number(write(one.value, other.value, **flags), one.dtype)

    def _called(self, name: str, number: Number) -> Number:
        if not is_real(number.dtype):
            raise UnfitError(f"{name} of {number.dtype}")
        kind = number.value.type
        signature = ir.FunctionType(kind, [kind])
        function = self._b.module.declare_intrinsic(name, [kind], signature)
        return Number(self._b.call(function, [number.value]), number.dtype)


def _is_unsigned(dtype: str) -> bool:
    return dtype == BOOL or dtype.startswith("uint")


def _few(power: Number) -> int:
    """An exponent for which products take less time than a power; 0 if it is another."""
    known = power.value.constant if isinstance(power.value, ir.Constant) else None
    return int(known) if known in (2, 3) else 0


type Write = Callable[[Scalars, Any, Sequence[Number], str], Number]


def _fold(s: Scalars, op: Any, given: Sequence[Number], dtype: str) -> Number:
    return s.folded(op, given, dtype)


def _arithmetic(name: str) -> Write:
    def write(s: Scalars, op: Any, given: Sequence[Number], dtype: str) -> Number:
        one, other = (s.cast(v, dtype) for v in given)
        if dtype == BOOL:
            raise UnfitError(f"{op} of {dtype}")
        return s.arithmetic(name, one, other)

    return write


def _divided(s: Scalars, op: Any, given: Sequence[Number], dtype: str) -> Number:
    if not is_real(dtype):
        raise UnfitError(f"{op} of {dtype}")
    one, other = (s.cast(v, dtype) for v in given)
    return s.arithmetic("div", one, other)


def _inverse(s: Scalars, op: Any, given: Sequence[Number], dtype: str) -> Number:
    return _divided(s, op, [s.constant(1, dtype), *given], dtype)


def _negated(s: Scalars, op: Any, given: Sequence[Number], dtype: str) -> Number:
    number = s.cast(given[0], dtype)
    if is_real(dtype):
        return Number(s._b.fneg(number.value), dtype)
    if dtype == BOOL:
        raise UnfitError(f"{op} of {dtype}")
    return s.arithmetic("sub", s.constant(0, dtype), number)


def _squared(s: Scalars, op: Any, given: Sequence[Number], dtype: str) -> Number:
    number = s.cast(given[0], dtype)
    return s.combined(ps.mul, number, number)


def _intrinsic(name: str) -> Write:
    def write(s: Scalars, op: Any, given: Sequence[Number], dtype: str) -> Number:
        return s._called(name, s.cast(given[0], dtype))

    return write


def _by(function: Callable[..., Real]) -> Write:
    def write(s: Scalars, op: Any, given: Sequence[Number], dtype: str) -> Number:
        if not is_real(dtype):
            raise UnfitError(f"{op} of {dtype}")
        return Number(function(*[Real(s._b, s.cast(v, dtype).value) for v in given]).value, dtype)

    return write


def _by_name(function: str) -> Write:
    def write(s: Scalars, op: Any, given: Sequence[Number], dtype: str) -> Number:
        return s.called_by_name(function, given, dtype)

    return write


def _magnitude(s: Scalars, op: Any, given: Sequence[Number], dtype: str) -> Number:
    [number] = given
    if is_real(dtype):
        return s._called("llvm.fabs", s.cast(number, dtype))
    if _is_unsigned(number.dtype):
        return number
    negative = s._compared("<", number, s.constant(0, number.dtype))
    return s._selected(negative, _negated(s, op, given, number.dtype), number)


def _sign(s: Scalars, op: Any, given: Sequence[Number], dtype: str) -> Number:
    [number] = given
    zero = s.constant(0, number.dtype)
    above, below = s._compared(">", number, zero), s._compared("<", number, zero)
    down = s._selected(below, s.constant(-1, dtype), s.cast(number, dtype))
    return s._selected(above, s.constant(1, dtype), down)


def _comparison(sign: str) -> Write:
    def write(s: Scalars, op: Any, given: Sequence[Number], dtype: str) -> Number:
        common = ps.upcast(*[v.dtype for v in given])
        one, other = (s.cast(v, common) for v in given)
        return s._compared(sign, one, other)

    return write


def _switch(s: Scalars, op: Any, given: Sequence[Number], dtype: str) -> Number:
    condition, one, other = given
    return s._selected(s.cast(condition, BOOL), s.cast(one, dtype), s.cast(other, dtype))


def _inverted(s: Scalars, op: Any, given: Sequence[Number], dtype: str) -> Number:
    return Number(s._b.not_(given[0].value), given[0].dtype)


def _is_nan(s: Scalars, op: Any, given: Sequence[Number], dtype: str) -> Number:
    if not is_real(given[0].dtype):
        return s.constant(0, BOOL)
    return Number(s._no_number(given[0]), BOOL)


def _is_infinite(s: Scalars, op: Any, given: Sequence[Number], dtype: str) -> Number:
    [number] = given
    if not is_real(number.dtype):
        return s.constant(0, BOOL)
    size = s._called("llvm.fabs", number)
    return s._compared("==", size, s.constant(math.inf, number.dtype))


def _first(s: Scalars, op: Any, given: Sequence[Number], dtype: str) -> Number:
    return given[0]


def _last(s: Scalars, op: Any, given: Sequence[Number], dtype: str) -> Number:
    return given[-1]


def _clipped(s: Scalars, op: Any, given: Sequence[Number], dtype: str) -> Number:
    number, low, high = (s.cast(v, dtype) for v in given)
    less, more = s._compared("<", number, low), s._compared(">", number, high)
    return s._selected(less, low, s._selected(more, high, number))


_WRITTEN: dict[type, Write] = {
    **dict.fromkeys((ps.Add, ps.Mul, ps.Maximum, ps.Minimum, ps.AND, ps.OR, ps.XOR), _fold),
    ps.Sub: _arithmetic("sub"),
    ps.TrueDiv: _divided,
    ps.Reciprocal: _inverse,
    ps.Neg: _negated,
    ps.Sqr: _squared,
    ps.Sqrt: _intrinsic("llvm.sqrt"),
    ps.Floor: _intrinsic("llvm.floor"),
    ps.Ceil: _intrinsic("llvm.ceil"),
    ps.Trunc: _intrinsic("llvm.trunc"),
    ps.RoundHalfToEven: _intrinsic("llvm.rint"),
    ps.Tan: _by(inverses.tan),
    ps.ArcSin: _by(inverses.arcsin),
    ps.ArcCos: _by(inverses.arccos),
    ps.ArcTan2: _by(inverses.arctan2),
    ps.ArcSinh: _by(inverses.arcsinh),
    ps.ArcCosh: _by(inverses.arccosh),
    ps.ArcTanh: _by(inverses.arctanh),
    GammaInc: _by_name("gammainc"),
    GammaIncC: _by_name("gammaincc"),
    BetaInc: _by_name("betainc"),
    ps.Abs: _magnitude,
    ps.Sign: _sign,
    ps.LT: _comparison("<"),
    ps.LE: _comparison("<="),
    ps.GT: _comparison(">"),
    ps.GE: _comparison(">="),
    ps.EQ: _comparison("=="),
    ps.NEQ: _comparison("!="),
    ps.Switch: _switch,
    ps.Invert: _inverted,
    ps.IsNan: _is_nan,
    ps.IsInf: _is_infinite,
    ps.Cast: _first,
    ps.Identity: _first,
    ps.Second: _last,
    ps.Clip: _clipped,
}
