"""Indices that are data: a call looks at all of them first, so that its loops need not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from llvmlite import ir

from synkhronos._compiling.direct.arrays import Buffer
from synkhronos._compiling.direct.scalars import stored_type
from synkhronos._compiling.direct.steps import Gather, Scatter, Step

type Bounds = tuple[tuple[Buffer, int], ...]


def bounds_of(steps: Sequence[Step], values: Mapping[Buffer, np.ndarray]) -> Bounds:
    """The buffers of indices, with lengths that all their numbers are below. None is negative.

    Parameters
    ----------
    steps : sequence of Step
    values : mapping
        Of buffers that are data.
    """
    found: dict[tuple[Buffer, int], None] = {}  # in the order of the steps
    for step in steps:
        if not isinstance(step, Gather | Scatter):
            continue
        for length, number in zip(step.table.shape, step.placed, strict=True):
            if number is None:
                continue
            buffer = step.reads[number].buffer
            value = values.get(buffer, buffer.constant)
            if value is not None and value.size and 0 <= value.min() <= value.max() < length:
                found[buffer, length] = None
    return tuple(found)


def write_within(module: ir.Module, name: str, buffer: Buffer, length: int) -> ir.Function:
    """A function of an address: whether all indices there are from 0 to below a length."""
    kind, word, bit = stored_type(buffer.dtype), ir.IntType(64), ir.IntType(1)
    function = ir.Function(module, ir.FunctionType(bit, [kind.as_pointer()]), name)
    function.linkage = "internal"
    first, body, after = map(function.append_basic_block, ("entry", "loop", "after"))
    ir.IRBuilder(first).branch(body)
    b = ir.IRBuilder(body)
    at, before = b.phi(word), b.phi(bit)
    number = b.load(b.gep(function.args[0], [at], inbounds=True))
    # numbers below 0 are large ones without a sign; a length may be more than the type has
    last = min(length - 1, int(np.iinfo(buffer.dtype).max))
    within = b.and_(before, b.icmp_unsigned("<=", number, kind(last)))
    following = b.add(at, word(1))
    for phi, begin, then in ((at, word(0), following), (before, bit(1), within)):
        phi.add_incoming(begin, first)
        phi.add_incoming(then, body)
    b.cbranch(b.icmp_unsigned("<", following, word(buffer.size)), body, after)
    ir.IRBuilder(after).ret(within)
    return function
