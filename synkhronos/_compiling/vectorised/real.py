"""Numbers of a function that is being written in LLVM code.

A function on them is a function of Python: its operators append instructions. The same text serves
float64 and float32. There is no branch and no call, so a loop around it can be vectorised. All
instructions are rounded as IEEE 754 says; only `fused` leaves one rounding to the processor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from llvmlite import ir

from synkhronos._compiling.vectorised.coefficients import COEFFICIENTS


@dataclass(frozen=True)
class Format:
    """A format of IEEE 754."""

    bits: int  # of a number
    fraction: int  # bits of the fraction
    bias: int  # of the exponent
    # LLVM's types of the number, and of an integer as wide
    type: ir.Type
    word: ir.Type

    @property
    def shifter(self) -> float:
        """Added to a number, it leaves the nearest integer in the low bits of the sum."""
        return 1.5 * 2.0**self.fraction

    @property
    def tiny(self) -> float:
        """The smallest normal number."""
        return 2.0 ** (1 - self.bias)

    @property
    def largest(self) -> float:
        """The largest finite number."""
        return (2.0 - 2.0**-self.fraction) * 2.0**self.bias


DOUBLE = Format(64, 52, 1023, ir.DoubleType(), ir.IntType(64))
SINGLE = Format(32, 23, 127, ir.FloatType(), ir.IntType(32))


@dataclass(frozen=True)
class Truth:
    """A comparison's result."""

    builder: ir.IRBuilder
    value: ir.Value

    def __and__(self, other: Truth) -> Truth:
        return Truth(self.builder, self.builder.and_(self.value, other.value))

    def __or__(self, other: Truth) -> Truth:
        return Truth(self.builder, self.builder.or_(self.value, other.value))


@dataclass(frozen=True)
class Word:
    """The low bits of an integer."""

    builder: ir.IRBuilder
    value: ir.Value

    def __add__(self, number: int) -> Word:
        return Word(self.builder, self.builder.add(self.value, self._like(number)))

    def _like(self, number: int) -> ir.Value:
        return ir.Constant(self.value.type, number)

    def single(self) -> Word:
        """As many bits as a float32 has."""
        return Word(self.builder, self.builder.trunc(self.value, SINGLE.word))

    def bit(self, place: int) -> Truth:
        """Whether the integer has this bit; the last one is 0."""
        found = self.builder.and_(self.value, self._like(1 << place))
        return Truth(self.builder, self.builder.icmp_unsigned("!=", found, self._like(0)))

    def sign(self, place: int) -> Word:
        """This bit at the place of a number's sign, and no others."""
        bits = self.value.type.width
        found = self.builder.and_(self.value, self._like(1 << place))
        return Word(self.builder, self.builder.shl(found, self._like(bits - 1 - place)))


class Real:
    """A number; Python's numbers become constants of its format."""

    def __init__(self, builder: ir.IRBuilder, value: ir.Value) -> None:
        self.builder = builder  # where instructions are appended
        self.value = value
        self.format = DOUBLE if value.type == DOUBLE.type else SINGLE

    def like(self, number: Real | float) -> Real:
        """A constant of the same format; a `Real` stays as it is."""
        if isinstance(number, Real):
            return number
        return Real(self.builder, ir.Constant(self.format.type, float(number)))

    def pick(self, double: float, single: float) -> Real:
        """A constant that depends on the format."""
        return self.like(double if self.format is DOUBLE else single)

    def _made(self, operation: Callable[..., ir.Value], *others: Real | float) -> Real:
        return Real(self.builder, operation(self.value, *[self.like(v).value for v in others]))

    def __add__(self, other: Real | float) -> Real:
        return self._made(self.builder.fadd, other)

    def __radd__(self, other: float) -> Real:
        return self.like(other) + self

    def __sub__(self, other: Real | float) -> Real:
        return self._made(self.builder.fsub, other)

    def __rsub__(self, other: float) -> Real:
        return self.like(other) - self

    def __mul__(self, other: Real | float) -> Real:
        return self._made(self.builder.fmul, other)

    def __rmul__(self, other: float) -> Real:
        return self.like(other) * self

    def __truediv__(self, other: Real | float) -> Real:
        return self._made(self.builder.fdiv, other)

    def __rtruediv__(self, other: float) -> Real:
        return self.like(other) / self

    def __neg__(self) -> Real:
        return self._made(self.builder.fneg)

    def __abs__(self) -> Real:
        return self._called("llvm.fabs")

    def __lt__(self, other: Real | float) -> Truth:
        return self._compared("<", other)

    def __le__(self, other: Real | float) -> Truth:
        return self._compared("<=", other)

    def __gt__(self, other: Real | float) -> Truth:
        return self._compared(">", other)

    def __ge__(self, other: Real | float) -> Truth:
        return self._compared(">=", other)

    def equals(self, other: Real | float) -> Truth:
        """Whether both are equal; never, if one is nan."""
        return self._compared("==", other)

    def _compared(self, sign: str, other: Real | float) -> Truth:
        value = self.builder.fcmp_ordered(sign, self.value, self.like(other).value)
        return Truth(self.builder, value)

    def _called(self, name: str, *others: Real | float) -> Real:
        """The result of one of LLVM's own functions, which are instructions of the processor."""
        types = [self.format.type]
        count = 1 + len(others)
        signature = ir.FunctionType(self.format.type, types * count)
        function = self.builder.module.declare_intrinsic(name, types, signature)
        values = [self.value, *[self.like(v).value for v in others]]
        return Real(self.builder, self.builder.call(function, values))

    def double(self) -> Real:
        """The same number in float64."""
        return Real(self.builder, self.builder.fpext(self.value, DOUBLE.type))

    def single(self) -> Real:
        """The nearest number in float32."""
        return Real(self.builder, self.builder.fptrunc(self.value, SINGLE.type))

    def fused(self, factor: Real | float, term: Real | float) -> Real:
        """Self * factor + term, rounded once where the processor can do so."""
        return self._called("llvm.fmuladd", factor, term)

    def root(self) -> Real:
        """The square root."""
        return self._called("llvm.sqrt")

    def floor(self) -> Real:
        """The largest integer that is not larger."""
        return self._called("llvm.floor")

    def rounded(self) -> Real:
        """The nearest integer, of any number."""
        return self._called("llvm.rint")

    def signed(self, other: Real) -> Real:
        """This magnitude with the sign of another number."""
        return self._called("llvm.copysign", other)

    def turned(self, sign: Word) -> Real:
        """The number with the other sign, where the word has one."""
        word = self.builder.bitcast(self.value, self.format.word)
        found = self.builder.xor(word, sign.value)
        return Real(self.builder, self.builder.bitcast(found, self.format.type))

    def at_most(self, bound: Real | float) -> Real:
        """The smaller one; nan stays."""
        return where(self > bound, bound, self)

    def at_least(self, bound: Real | float) -> Real:
        """The larger one; nan stays."""
        return where(self < bound, bound, self)

    def between(self, low: Real, high: Real) -> Real:
        """The nearest number between two; nan stays."""
        return self.at_most(high).at_least(low)

    def nearest(self) -> Real:
        """The nearest integer, for magnitudes below 2**(fraction - 1)."""
        return (self + self.format.shifter) - self.format.shifter

    def whole(self) -> tuple[Real, Word]:
        """The nearest integer, and its low bits, for magnitudes below 2**(fraction - 1)."""
        raised = self + self.format.shifter
        word = self.builder.bitcast(raised.value, self.format.word)
        return raised - self.format.shifter, Word(self.builder, word)

    def power_of_two(self) -> Real:
        """2**self for an integer that gives a normal number, or 0 for -bias."""
        form = self.format
        raised = (self + (form.shifter + form.bias)).value
        word = self.builder.bitcast(raised, form.word)
        moved = self.builder.shl(word, ir.Constant(form.word, form.fraction))
        return Real(self.builder, self.builder.bitcast(moved, form.type))

    def head(self, dropped: int) -> Real:
        """The number without its last bits."""
        form = self.format
        word = self.builder.bitcast(self.value, form.word)
        kept = self.builder.and_(word, ir.Constant(form.word, -1 << dropped))
        return Real(self.builder, self.builder.bitcast(kept, form.type))

    def looked_up(self, rows: Sequence[Sequence[float]], exponents: int) -> tuple[Real, list[Real]]:
        """This number times a power of two, and the row of a table for its exponent.

        Each row is for this number of exponents, a power of two; the first one also for those below
        that of 2. The number is at least 0 and finite; if it is 2 or larger, the product is from 2
        to 2**(exponents + 1).
        """
        form, b = self.format, self.builder
        kept = -exponents << form.fraction
        word = b.and_(b.bitcast(self.at_least(2.0).value, form.word), ir.Constant(form.word, kept))
        one = (2 * form.bias + 1) << form.fraction
        scale = Real(b, b.bitcast(b.sub(ir.Constant(form.word, one), word), form.type))
        first = (form.bias + 1) // exponents
        number = b.lshr(word, ir.Constant(form.word, form.fraction + exponents.bit_length() - 1))
        row = b.zext(b.sub(number, ir.Constant(form.word, first)), DOUBLE.word)
        numbers = ir.Constant(
            ir.ArrayType(form.type, sum(map(len, rows))), [v for row in rows for v in row]
        )
        table = ir.GlobalVariable(b.module, numbers.type, b.module.get_unique_name("rows"))
        table.linkage, table.global_constant, table.initializer = "internal", True, numbers
        begin = b.mul(row, ir.Constant(row.type, len(rows[0])))
        found = []
        for i in range(len(rows[0])):
            at = b.add(begin, ir.Constant(row.type, i))
            place = b.gep(table, [ir.Constant(row.type, 0), at], inbounds=True)
            found.append(Real(b, b.load(place)))
        return self * scale, found

    def split(self) -> tuple[Real, Real]:
        """(k, m) with self = 2**k m, m from sqrt(1/2) to sqrt(2), of a normal number above 0."""
        form, b = self.format, self.builder

        def word(value: int) -> ir.Value:
            return ir.Constant(form.word, value)

        one = form.bias << form.fraction
        low = 0x3FE6A09E667F3BCD if form is DOUBLE else 0x3F3504F3  # sqrt(1/2)
        raised = b.add(b.bitcast(self.value, form.word), word(one - low))
        shifter = (form.fraction + form.bias << form.fraction) | 1 << (form.fraction - 1)
        exponent = b.or_(b.lshr(raised, word(form.fraction)), word(shifter))
        k = Real(b, b.bitcast(exponent, form.type)) - (form.shifter + form.bias)
        rest = b.add(b.and_(raised, word((1 << form.fraction) - 1)), word(low))
        return k, Real(b, b.bitcast(rest, form.type))

    def polynomial(self, name: str) -> Real:
        """The polynomial with coefficients of this name."""
        return self._sum(COEFFICIENTS[name, self.format.bits])

    def constant_and_rest(self, name: str) -> tuple[Real, Real]:
        """The polynomial as a sum of two; its coefficients begin with a constant in two parts."""
        constant, tail, *others = COEFFICIENTS[name, self.format.bits]
        return self.like(constant), self._sum(others).fused(self, tail)

    def long_polynomial(self, name: str) -> tuple[Real, Real]:
        """The same for terms that may be larger than the constant: the last step rounds nothing.

        One chain takes longer than two, but rounds no power of this number.
        """
        constant, tail, *others = COEFFICIENTS[name, self.format.bits]
        more, lost = product(self._horner(others), self)
        head, rest = sum_of_two(self.like(constant), more)
        return head, rest + (lost + tail)

    def _sum(self, coefficients: Sequence[float]) -> Real:
        """A polynomial by powers of the square in two chains, each half as long to wait for."""
        if len(coefficients) < 6:
            return self._horner(coefficients)
        square = self * self
        return square._horner(coefficients[1::2]).fused(self, square._horner(coefficients[::2]))

    def _horner(self, coefficients: Sequence[float]) -> Real:
        found = self.like(coefficients[-1])
        for coefficient in coefficients[-2::-1]:
            found = found.fused(self, coefficient)
        return found


def where(condition: Truth, one: Real | float, other: Real | float) -> Real:
    """One number if the condition holds, else the other; both are computed."""
    model = one if isinstance(one, Real) else other
    assert isinstance(model, Real)
    a, b = model.like(one), model.like(other)
    return Real(model.builder, model.builder.select(condition.value, a.value, b.value))


def sum_of_two(a: Real, b: Real) -> tuple[Real, Real]:
    """The sum, and what has been rounded off (Knuth, "Seminumerical Algorithms", 4.2.2)."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def product(a: Real, b: Real) -> tuple[Real, Real]:
    """The product, and what has been rounded off; 0 where the processor fuses no operations."""
    head = a * b
    return head, a.fused(b, -head)
