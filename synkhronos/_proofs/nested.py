"""Rules for Ops that contain a graph, which is read like the outer one; a loop several times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pytensor.compile.builders import OpFromGraph
from pytensor.conditional.op import IfElse
from pytensor.graph.basic import Apply, Variable
from pytensor.scan.op import Scan
from pytensor.scan.utils import ScanArgs

from synkhronos._proofs.values import (
    Count,
    Factor,
    Factors,
    Finished,
    Reduced,
    Rows,
    Same,
    Stuck,
    Unknown,
    Value,
    merge,
)
from synkhronos._proofs.walk import Transferred, Walk, has_rows, transfer

MAX_ROUNDS = 20  # a state goes from Same to Rows or Reduced, then gets factors: a few rounds


@transfer.register
def open_graph(op: OpFromGraph, node: Apply, values: Sequence[Value], walk: Walk) -> Transferred:
    if not has_rows(values):
        return None
    inner = walk.once(_inner, node)
    walk.inlined.update(zip(node.outputs, inner, strict=True))
    return walk.read(inner)


def _inner(op: OpFromGraph, node: Apply) -> list[Variable]:
    return list(op.fgraph.bind(node.inputs))


@transfer.register
def _branch(op: IfElse, node: Apply, values: Sequence[Value], walk: Walk) -> Transferred:
    condition, *branches = values
    if not isinstance(condition, Same):
        return None
    pairs = zip(branches[: op.n_outs], branches[op.n_outs :], strict=True)
    found = [merge(pair) for pair in pairs]
    return None if None in found else found


@transfer.register
def _scan(op: Scan, node: Apply, values: Sequence[Value], walk: Walk) -> Transferred:
    return _Loop(node, values).outputs() if has_rows(values) else None


class _Loop:
    """A Scan whose body is read again until its states do not change."""

    def __init__(self, node: Apply, values: Sequence[Value]) -> None:
        self._args = args = ScanArgs.from_node(node, clone=True)
        self._outer = dict(zip(node.inputs, values, strict=True))
        self._factors = frozenset[Factor]().union(
            *(v.factors for v in values if isinstance(v, Rows | Reduced))
        )
        lengths = [args.n_steps, *args.outer_in_nit_sot]
        if not all(isinstance(self._outer[v], Same) for v in lengths):
            raise Stuck("its number of steps depends on the rows")
        self._states: list[Value] = [
            *(self._outer[v] for v in self._buffers()),
            *(self._outer[v] for v in args.outer_in_shared),
        ]

    def outputs(self) -> list[Value]:
        for _ in range(MAX_ROUNDS):
            inner = self._read()
            states = [
                self._merged(state, [v if shared else self._stacked(v) for v in inner.read(outs)])
                for state, (outs, shared) in zip(self._states, self._updates(), strict=True)
            ]
            if states == self._states:
                return self._collect(inner)
            self._states = states
        raise Stuck("its states do not settle")

    def _collect(self, inner: Walk) -> list[Value]:
        if not all(isinstance(v, Same) for v in inner.read(self._args.cond)):
            raise Stuck("its number of steps depends on the rows")
        traced = len(self._buffers())
        singles = [self._stacked(v) for v in inner.read(self._args.inner_out_nit_sot)]
        return [*self._states[:traced], *singles, *self._states[traced:]]

    def _buffers(self) -> list[Variable]:
        """The outer arrays with a state for each step."""
        args = self._args
        return [*args.outer_in_mit_mot, *args.outer_in_mit_sot, *args.outer_in_sit_sot]

    def _taps(self) -> list[list[Variable]]:
        """The inner variables that read a state."""
        args = self._args
        singles = [[v] for v in [*args.inner_in_sit_sot, *args.inner_in_shared]]
        return [*map(list, [*args.inner_in_mit_mot, *args.inner_in_mit_sot]), *singles]

    def _updates(self) -> list[tuple[list[Variable], bool]]:
        """The inner variables that set a state, and whether it is kept for only one step."""
        args = self._args
        singles = [*args.inner_out_mit_sot, *args.inner_out_sit_sot]
        return [
            *((list(outs), False) for outs in args.inner_out_mit_mot),
            *(([v], False) for v in singles),
            *(([v], True) for v in args.inner_out_shared),
        ]

    def _read(self) -> Walk:
        args, traced = self._args, len(self._buffers())
        seeds = {
            inner: self._outer[outer]
            for inner, outer in zip(args.inner_in_non_seqs, args.outer_in_non_seqs, strict=True)
        }
        for inner, outer in zip(args.inner_in_seqs, args.outer_in_seqs, strict=True):
            seeds[inner] = _unstacked(self._outer[outer])
        for i, (state, taps) in enumerate(zip(self._states, self._taps(), strict=True)):
            seeds |= dict.fromkeys(taps, _unstacked(state) if i < traced else state)
        return Walk(seeds)

    def _merged(self, state: Value, updates: Sequence[Value]) -> Value:
        found = merge([state, *updates])
        if found is None:
            raise Stuck("a state is not what it was a step before")
        return found

    def _stacked(self, value: Value) -> Value:
        match value:
            case Rows(axis=axis, factors=factors):
                return replace(value, axis=axis + 1, factors=self._seen_from_outside(factors))
            case Reduced(factors=factors):
                return replace(value, factors=self._seen_from_outside(factors))
            case Same() | Count():
                return value
            case Unknown(reason=reason):
                raise Stuck(reason)
        raise Stuck("it computes a value over all rows in each step")

    def _seen_from_outside(self, factors: Factors) -> Factors:
        inside = factors - self._factors
        if not all(f.per_row for f in inside):
            raise Stuck("it scales by a value over all rows in each step")
        hidden = {replace(f, variable=None) for f in inside}
        return (factors & self._factors) | hidden


def _unstacked(value: Value) -> Value:
    match value:
        case Rows(axis=0):
            raise Stuck("it steps through the rows")
        case Rows(axis=axis):
            return replace(value, axis=axis - 1)
        case Same() | Reduced() | Count() | Finished():
            return value
    raise Stuck("it steps through a value over all rows")
