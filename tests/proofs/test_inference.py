"""Proofs are checked against what they say: for any split, the parts give the serial value."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pytensor.compile.builders import OpFromGraph
from pytensor.compile.mode import Mode
from pytensor.conditional.op import ifelse
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.traversal import toposort
from pytensor.raise_op import Assert
from pytensor.scan.op import Scan
from selection import examples, thorough

from synkhronos._proofs import Proof, Unproved, depends_on, prove, row_draws

Values = dict[Variable, np.ndarray]

# The scattered inputs ...
x = pt.matrix("x")
t = pt.tensor3("t")
y = pt.lvector("y")
y2 = pt.lmatrix("y2")
target = pt.vector("target")
mask = pt.vector("mask")
ROWS = [x, t, y, y2, target, mask]
# ... and what all members have alike.
w1, w2 = pt.matrix("w1"), pt.matrix("w2")
b1, b2, c = pt.vector("b1"), pt.vector("b2"), pt.vector("c")
table = pt.matrix("table")
k = pt.scalar("k")
WEIGHTS = [w1, b1, w2, b2, table]


@pytest.fixture(autouse=True)
def nothing_is_left() -> None:
    """In place of the check after each test that no process is left: here is none."""


def random_values(n: int, seed: int = 0) -> Values:
    draw = np.random.default_rng(seed)
    shapes = {
        **{x: (n, 3), t: (n, 2, 3), target: (n,), mask: (n,)},
        **{w1: (3, 3), b1: (3,), w2: (3, 4), b2: (4,), c: (n,), table: (4, 3), k: ()},
    }
    values = {v: np.asarray(draw.normal(size=shape)) for v, shape in shapes.items()}
    values[mask] = draw.integers(0, 3, n).astype(float)
    values[mask][n // 2] = 1.0
    return values | {y: draw.integers(0, 3, n), y2: draw.integers(0, 3, (n, 2))}


def evaluate(outputs: Sequence[Variable], values: Values) -> list[np.ndarray]:
    known = dict(values)
    with np.errstate(all="ignore"):
        for node in list(toposort(outputs, blockers=known)):
            results = _perform(node, [_lookup(v, known) for v in node.inputs])
            known.update(zip(node.outputs, results, strict=True))
    return [_lookup(v, known) for v in outputs]


def _lookup(variable: Variable, known: Values) -> np.ndarray:
    return variable.data if isinstance(variable, Constant) else known[variable]


def _perform(node: Apply, inputs: list[np.ndarray]) -> list[np.ndarray]:
    if isinstance(node.op, OpFromGraph):
        fresh = [v.type() for v in node.inputs]
        return evaluate(node.op.fgraph.bind(fresh), dict(zip(fresh, inputs, strict=True)))
    if isinstance(node.op, Scan):
        return _loop(node)(*inputs)
    if type(node.op).__name__ == "IfElse":
        count = node.op.n_outs
        return inputs[1 : 1 + count] if inputs[0] else inputs[1 + count :]
    storage = [[None] for _ in node.outputs]
    node.op.prepare_node(node, None, None, "py")
    node.op.perform(node, inputs, storage)
    return [cell[0] for cell in storage]


@cache
def _loop(node: Apply) -> Callable[..., list[np.ndarray]]:
    fresh = [v.type() for v in node.inputs]
    outputs = node.clone_with_new_inputs(fresh).outputs
    with pytensor.config.change_flags(mode="FAST_COMPILE", linker="py"):
        return pytensor.function(fresh, outputs, mode=Mode("py", None), on_unused_input="ignore")


REDUCE: dict[str | None, Callable[[list[np.ndarray], np.ndarray], np.ndarray]] = {
    None: lambda parts, lengths: parts[-1],
    "gather": lambda parts, lengths: np.concatenate(parts),
    "sum": lambda parts, lengths: np.sum(parts, axis=0, dtype=parts[0].dtype),
    "avg": lambda parts, lengths: np.average(parts, axis=0, weights=lengths).astype(
        parts[0].dtype, casting="same_kind"
    ),
    "max": lambda parts, lengths: np.max(parts, axis=0),
    "min": lambda parts, lengths: np.min(parts, axis=0),
    "prod": lambda parts, lengths: np.prod(parts, axis=0, dtype=parts[0].dtype),
}


def by_parts(
    proof: Proof, values: Values, bounds: Sequence[int], rows: Sequence[Variable]
) -> np.ndarray:
    """The output as the members and then the master would compute it."""
    parts = [
        {v: a[start:stop] if v in rows else a for v, a in values.items()}
        for start, stop in pairwise(bounds)
    ]
    wanted = [partial.variable for partial in proof.partials]
    results = list(zip(*(evaluate(wanted, part) for part in parts), strict=True))
    reduced = [
        np.asarray(REDUCE[partial.reduction](list(arrays), np.diff(bounds)))
        for partial, arrays in zip(proof.partials, results, strict=True)
    ]
    for partial, value in zip(proof.partials, reduced, strict=True):
        assert value.dtype == partial.variable.type.dtype
    if proof.finished is None:
        return reduced[0]
    shared = {v: a for v, a in values.items() if v not in rows}
    shared |= dict(zip(proof.placeholders, reduced, strict=True))
    return evaluate([proof.finished], shared)[0]


def check_exact(
    output: Variable,
    proof: Proof,
    values: Values,
    splits: Sequence[Sequence[int]],
    rows: Sequence[Variable] = ROWS,
) -> None:
    serial = np.asarray(evaluate([output], values)[0])
    for bounds in splits:
        found = np.asarray(by_parts(proof, values, bounds, rows))
        assert found.dtype == serial.dtype
        assert found.shape == serial.shape
        np.testing.assert_allclose(found, serial, rtol=1e-8, atol=1e-10)


SPLITS_OF_7 = [[0, 7], [0, 3, 7], [0, 1, 7], [0, 2, 5, 7], [0, 6, 7], list(range(8))]


hidden = pt.tanh(x @ w1 + b1)
logits = hidden @ w2 + b2
residual = logits[:, 0] - target
errors = residual**2
log_p = pt.special.log_softmax(logits, axis=1)
l2 = (w1**2).sum() + (w2**2).sum()
score, label = pt.vector(), pt.vector()
softplus_op = OpFromGraph([score, label], [pt.softplus(score) - score * label])
mean_op = OpFromGraph([score, label], [((score - label) ** 2).mean()])
ratio_op = OpFromGraph([score, label], [(score * label).sum() / label.sum()])


def rnn(sequence: Variable) -> Variable:
    start = pt.zeros((sequence.shape[1], w1.shape[0]))
    return pytensor.scan(
        lambda now, state, a, b: pt.tanh(now @ a + state + b),
        sequences=[sequence],
        outputs_info=[start],
        non_sequences=[w1, b1],
        return_updates=False,
    )


states = rnn(t.dimshuffle(1, 0, 2))
energy = pytensor.scan(
    lambda now, total, a: total + ((now @ a) ** 2).sum(),
    sequences=[t.dimshuffle(1, 0, 2)],
    outputs_info=[pt.zeros(())],
    non_sequences=[w1],
    return_updates=False,
)
mapped = pytensor.map(
    lambda now, a: (now @ a).sum(axis=1), [t.dimshuffle(1, 0, 2)], [w1], return_updates=False
)


def loop(step: Callable[..., Variable], start: Variable, *others: Variable) -> Variable:
    return pytensor.scan(
        step,
        sequences=[t.dimshuffle(1, 0, 2)],
        outputs_info=[start],
        non_sequences=[w1, *others],
        return_updates=False,
    )


steps = t.dimshuffle(1, 0, 2)

LOSSES: dict[str, Variable] = {
    "squared error": errors.mean(),
    "squared error, all axes": ((logits - b2) ** 2).mean(),
    "nested means": (logits**2).mean(axis=1).mean(),
    "mean over rows, then over the rest": (logits**2).mean(axis=0).mean(),
    "mean of sums": (logits**2).sum(axis=1).mean(),
    "sum": errors.sum(),
    "sum of means": (logits**2).mean(axis=1).sum(),
    "sum / x.shape[0]": errors.sum() / x.shape[0],
    "sum of terms / x.shape[0]": (errors / x.shape[0]).sum(),
    "sum * (1 / x.shape[0])": errors.sum() * (1.0 / x.shape[0]),
    "cross-entropy by index": -log_p[pt.arange(y.shape[0]), y].mean(),
    "cross-entropy by index, log of softmax": -pt.log(
        pt.special.softmax(logits, axis=-1)[pt.arange(x.shape[0]), y]
    ).mean(),
    "cross-entropy by take_along_axis": -pt.take_along_axis(log_p, y[:, None], axis=1).mean(),
    "cross-entropy by one-hot": -(log_p * pt.eq(y[:, None], pt.arange(4))).sum(axis=1).mean(),
    "cross-entropy by to_one_hot": -(log_p * pt.extra_ops.to_one_hot(y, 4)).sum(axis=1).mean(),
    "cross-entropy by logsumexp": (
        pt.logsumexp(logits, axis=1) - logits[pt.arange(y.shape[0]), y]
    ).mean(),
    "softplus": pt.softplus(-residual).mean(),
    "sigmoid": -(
        mask * pt.log(pt.sigmoid(residual)) + (1 - mask) * pt.log1p(-pt.sigmoid(residual))
    ).mean(),
    "hinge": pt.maximum(0, 1 - residual).mean(),
    "huber": pt.switch(abs(residual) < 1, errors / 2, abs(residual) - 0.5).mean(),
    "clipped": pt.clip(residual, -1, 1).mean(),
    "margin": (logits.max(axis=1) - logits[:, 0]).mean(),
    "mean + L2": errors.mean() + 0.1 * l2,
    "sum + L2": errors.sum() + 0.1 * l2,
    "sum + no penalty": errors.sum() + 0.0,
    "mean + what needs all rows": errors.mean()
    + Assert("all rows")((x @ w1).sum() ** 2, pt.gt(x.shape[0], 6)),
    "masked mean": (mask * errors).sum() / mask.sum(),
    "masked mean by switch": pt.switch(mask > 0, errors, 0).sum() / (mask > 0).sum(),
    "weighted mean + L2": (mask * errors).sum() / mask.sum() + 0.1 * l2,
    "weighted mean, normalised first": (errors * (mask / mask.sum())).sum(),
    "two weighted means": (mask * errors).sum() / mask.sum()
    + (mask**2 * errors).sum() / (mask**2).sum(),
    "mean of means + weighted mean": (logits**2).mean(axis=0).mean()
    + (mask * errors).sum() / mask.sum(),
    "mean + weighted mean": errors.mean() + (mask * errors).sum() / mask.sum(),
    "root of mean square": pt.sqrt(errors.mean()),
    "log of sum of exp": pt.log(pt.exp(residual).sum()),
    "guarded mean": errors.sum() / pt.maximum(x.shape[0], 1),
    "embedding": ((table[y] @ w1).sum(axis=1) - target).clip(-2, 2).mean(),
    "embedding of sequences": (table[y2].mean(axis=1) @ w1).sum(),
    "token loss": ((t.reshape((-1, t.shape[2])) @ w1) ** 2).mean(),
    "tokens folded back": (
        (t.reshape((t.shape[0] * t.shape[1], 3)) @ w1).reshape((t.shape[0], 2, 3)).sum(axis=2) ** 2
    ).mean(),
    "tensordot": (pt.tensordot(t, w1, axes=[[2], [0]]) ** 2).mean(),
    "time-major dot": (pt.dot(steps, w1) ** 2).mean(),
    "time-major tensordot, summed by step": (
        pt.tanh(pt.tensordot(steps, w1, axes=[[2], [0]]).sum(axis=0) + b1).mean()
    ),
    "time-major embedding": (
        pt.tanh(table[y2.T.flatten()].reshape((y2.shape[1], y2.shape[0], table.shape[1]))).mean()
    ),
    "time-major embedding, not folded back": (table[y2.T.ravel()] ** 2).mean(),
    "einsum": (pt.einsum("ntd,de->nte", t, w1) ** 2).mean(),
    "matmul of sequences": ((t @ w1) ** 2).sum(),
    "joined": (pt.concatenate([x @ w1, hidden], axis=1) ** 2).mean(),
    "stacked": (pt.stack([x @ w1, hidden], axis=0) ** 2).mean(),
    "scan over time": (states[-1] ** 2).mean(),
    "scan over time, all steps": (states * x).sum(),
    "scan over time, masked": (mask * (states[-1] ** 2).sum(axis=1)).sum() / mask.sum(),
    "scan that sums": energy[-1],
    "scan that sums / x.shape[0]": energy[-1] / x.shape[0],
    "scan that maps": (mapped**2).mean(),
    "scan that averages": loop(lambda now, s, a: 0.5 * s + ((now @ a) ** 2).mean(), w1.sum())[-1],
    "scan that scales": loop(lambda now, s, a: s + (now @ a) / x.shape[0], pt.zeros_like(x))[
        -1
    ].sum(),
    "OpFromGraph, row-wise": softplus_op(logits[:, 0], mask).mean(),
    "OpFromGraph, mean": mean_op(logits[:, 0], target),
    "OpFromGraph, ratio": ratio_op(errors, mask),
    "checkpoint": pt.sqr(pytensor.gradient.disconnected_grad(hidden) @ w2).mean(),
    "ifelse": ifelse(k > 0, errors.mean(), abs(residual).mean()),
}

top, highest = x.max(axis=0, keepdims=True), x.max()
finite = pt.switch(pt.isinf(top), 0, top)

LOG_SUMS: dict[str, Variable] = {
    **{f"logsumexp over {axis}": pt.logsumexp(t, axis=axis) for axis in (0, 1, -3, (0, 2), None)},
    "logsumexp, kept": pt.logsumexp(x, axis=0, keepdims=True),
    "logsumexp of time first": pt.logsumexp(t.dimshuffle(1, 0, 2), axis=1),
    "logsumexp of flat sequences": pt.logsumexp(t.reshape((-1, t.shape[2])), axis=0),
    "logsumexp of features first": pt.logsumexp(pt.logsumexp(x, axis=1)),
    "log of sum of exp": pt.log(pt.exp(x).sum(axis=0)),
    "log of sum of exp, kept": pt.log(pt.exp(x).sum(axis=0, keepdims=True)),
    "log of sum of all exp": pt.log(pt.exp(x).sum()),
    "log of mean of exp": pt.log(pt.exp(x).mean(axis=0)),
    "by the maximum": pt.log(pt.exp(x - top).sum(axis=0)) + top[0],
    "by the maximum, squeezed": top.squeeze(0) + pt.log(pt.exp(x - top).sum(axis=0)),
    "by the maximum, kept": pt.log(pt.exp(x - top).sum(axis=0, keepdims=True)) + top,
    "by the maximum, twice": (
        pt.log(pt.exp(x - x.max(axis=0)).sum(axis=0)) + x.max(axis=0)  # two variables, one value
    ),
    "by the maximum of time first": (
        pt.log(pt.exp(x.T - x.max(axis=0)[:, None]).sum(axis=1)) + x.max(axis=0)
    ),
    "by a finite maximum": (
        (pt.log(pt.exp(x - finite).sum(axis=0, keepdims=True)) + finite).squeeze(0)
    ),
    "by the maximum of all": pt.log(pt.exp(x - highest).sum()) + highest,
    "by another shift": pt.log(pt.exp(x - b1).sum(axis=0)) + b1,
    "of integers": pt.log(pt.exp(y2).sum(axis=0)),
    "logmeanexp": pt.logsumexp(x, axis=0) - pt.log(x.shape[0]),
    "logmeanexp by the maximum": pt.log(pt.exp(x - top).mean(axis=0)) + top[0],
    "logmeanexp by the maximum, kept": pt.log(pt.exp(x - top).mean(axis=0, keepdims=True)) + top,
    "logmeanexp of all": pt.log(pt.exp(t - t.max()).mean()) + t.max(),
    "log-partition by a temperature": k * pt.logsumexp(x / k, axis=0),
    "free energy": -(pt.log(pt.exp(-x - pt.max(-x, axis=0)).sum(axis=0)) + pt.max(-x, axis=0)),
    "logsumexp + L2": pt.logsumexp(x @ w1) + l2,
    "scaled by a logsumexp": (x * pt.logsumexp(x)).sum(axis=0),
    "logsumexp of rows, averaged": pt.logsumexp(x, axis=1).mean(),
    "shifted by another maximum": (
        pt.log(pt.exp(x - x.max(axis=1, keepdims=True)).sum(axis=0)) + x.max(axis=0)
    ),
}

number = x.shape[0].dimshuffle("x")

shaped = pt.specify_shape(hidden.mean(axis=0) ** 2, 3)

FORMS: dict[str, Variable] = {
    **{f"mean over {axis}": t.mean(axis=axis) for axis in (0, 1, 2, -1, -3, (0, 1), (0, 2), None)},
    **{f"sum over {axis}, kept": t.sum(axis, keepdims=True) for axis in (0, 1, -3, (0, -1), None)},
    **{f"mean over {axis}, kept": t.mean(axis, keepdims=True) for axis in (0, 2, (0, 1), None)},
    **{f"max over {axis}": t.max(axis=axis) for axis in (0, 1, (0, 2), None)},
    **{f"min over {axis}": t.min(axis=axis) for axis in (0, 1, (0, 2), None)},
    **{f"prod over {axis}": t.prod(axis=axis) for axis in (0, 1, (0, 2), None)},
    "max, kept": x.max(axis=0, keepdims=True),
    "all": pt.all(x > -2, axis=0),
    "any": pt.any(x > 1),
    "error rate": pt.neq(logits.argmax(axis=1), y).mean(),
    "error rate in float32": pt.neq(logits.argmax(axis=1), y).mean(dtype="float32"),
    "errors in float64": pt.neq(logits.argmax(axis=1), y).sum(dtype="float64"),
    "cross-entropy by an integer matrix": pt.log(pt.special.softmax(logits, axis=1))[
        pt.arange(y2.shape[0]), y2[:, :1].flatten()
    ].mean(),
    "time-major dot itself": pt.dot(t.dimshuffle(1, 0, 2), w1),
    "time-major twice": pt.dot(pt.tanh(pt.dot(t.dimshuffle(1, 0, 2), w1)), w1).max(axis=(0, 1)),
    "errors": pt.neq(pt.argmax(logits, axis=-1), y).sum(),
    "mean of integers": y.mean(),
    "mean of booleans": (x > 0).mean(axis=0),
    "x.T @ x": x.T @ x,
    "x.T @ target": x.T @ target,
    "dot": target @ mask,
    "weighted x.T @ x": (x * mask[:, None]).T @ x,
    "outer products": pt.einsum("ni,nj->ij", x, hidden),
    "tensordot over rows": pt.tensordot(t, x, axes=[[0], [0]]),
    "predictions": pt.special.softmax(logits, axis=1),
    "predicted classes": logits.argmax(axis=1),
    "row norms": pt.linalg.norm(x, axis=1),
    "standardised features": (x - x.mean(axis=1, keepdims=True)) / x.std(axis=1, keepdims=True),
    "sorted features": pt.sort(x, axis=1),
    "order of features": pt.argsort(x, axis=1),
    "cumulated features": pt.cumsum(x, axis=1),
    "median of features": pt.median(x, axis=1),
    **LOG_SUMS,
    "features, some": x[:, 1:],
    "features, reversed": x[:, ::-1],
    "feature": x[:, 0],
    "picked features": x[:, [2, 0]],
    "transposed": x.T,
    "time first": t.dimshuffle(1, 0, 2),
    "flat sequences": t.flatten(2),
    "flat": t.flatten(),
    "folded": t.reshape((t.shape[0], -1, 1)),
    "repeated": pt.repeat(x, 2, axis=1),
    "repeated rows": pt.repeat(target, 2),
    "tiled": pt.tile(x, (1, 2)),
    "split": pt.split(x, [1, 2], n_splits=2, axis=1)[1],
    "set": x[:, 0].set(0.5),
    "set to a column": x[:, 1].set(target),
    "one-hot": pt.extra_ops.to_one_hot(y, 4),
    "looked up": table[y],
    "looked up in pairs": table[y2, y[:, None]],
    "looked up, rows second": table[[[0], [1]], y],
    "looked up in columns": table[:, y],
    "indexed around a slice": t[pt.arange(x.shape[0]), :, y],
    "indexed in two places": t[pt.arange(x.shape[0]), y % 2, y],
    "indexed by columns": t[:, [[0, 1], [1, 0]], [1, 2]],
    "indexed by rows of columns": x[pt.arange(x.shape[0])[:, None], y2],
    "incremented around a slice": pt.zeros_like(t)[pt.arange(t.shape[0]), :, y].inc(x[:, :2]),
    "incremented by less axes": x[:, 1:].inc(b1[:2]),
    "searched": pt.searchsorted(b1.cumsum() * 0 + pt.arange(3), target),
    "zeros like": pt.zeros_like(x),
    "ones": pt.ones((x.shape[0], 2)),
    "row-wise solve": pt.linalg.solve(t.dimshuffle(0, 2, 1) @ t + pt.eye(3), x[:, :, None])[..., 0],
    "scan, all states": states,
    "scan, last state": states[-1],
    "ifelse, row-wise": ifelse(k > 0, x, -x),
    "asserted": Assert("k")(x, pt.le(k, 100)),
    "counts": x.shape[0],
    "size": t.size,
    "shape": t.shape,
    "numbers of rows": pt.arange(x.shape[0]),
    "histogram": pt.zeros(4)[y].inc(1.0),
    "sums by class": pt.zeros((4, 3))[y].inc(x),
    "closed form": pt.linalg.solve(x.T @ x + pt.eye(3), x.T @ target),
    "sum cut to an integer": pt.zeros(2, dtype="int64")[0].set(target.sum()),
    "sum wrapped": pt.zeros(2, dtype="int8")[0].set(y.sum() * 77),
    "largest wrapped": pt.zeros(2, dtype="int8")[0].set(y.max() * 77),
    "mean of squares": pt.sqrt((x**2).mean(axis=0)),
    "sums compared": x[:, 0].sum() > x[:, 1].sum(),
    "rounded mean": pt.floor(10 * x.mean(axis=0)),
    "mean as integer": (10 * x.mean()).astype("int8"),
    "integer division": y.sum() // y.shape[0],
    "mean, shifted and scaled": 3 * x.mean(axis=0) / k - b1,
    "sum, negated and folded": -x.sum(axis=0).reshape((3, 1)),
    "sums side by side": pt.stack([x.sum(), target.sum()]),
    "largest of means": x.mean(axis=0).max(),
    "independent": l2,
    "independent, by shape": pt.ones(x.shape[1]),
    "probability weights": mask / mask.sum(),
    "scaled by what needs all rows": x / Assert("all rows")(mask.sum(), pt.gt(x.shape[0], 6)),
    "scaled by a length in use": target * number * pt.ones(number[0]),
    "fixed shape": shaped,
    "filled, fixed shape": pt.fill(shaped, 2.0) * target.sum(),
    "shares of rows": x / x.shape[0],
    "centred square by moments": (x**2).mean(axis=0) - x.mean(axis=0) ** 2,
}


# by name; three processes collect these tests, and graphs are made when a test needs them
GRADIENTS = {
    f"{name}, gradient of {weight.name}": (loss, weight)
    for name, loss in LOSSES.items()
    for weight in WEIGHTS
    if depends_on(loss, [weight])
}


@cache
def required(name: str) -> Variable:
    if name not in GRADIENTS:
        return {**LOSSES, **FORMS}[name]
    loss, weight = GRADIENTS[name]
    return pytensor.grad(loss, weight, disconnected_inputs="ignore")


# of each loss the gradient of one weight; weights take turns
IN_TURN = [
    names[turn % len(names)]
    for turn, loss in enumerate(LOSSES)
    if (names := [name for name in GRADIENTS if name.startswith(f"{loss}, gradient of ")])
]
OTHERS = [name for name in GRADIENTS if name not in IN_TURN]


@pytest.mark.parametrize("name", [*LOSSES, *FORMS, *IN_TURN, *thorough(*OTHERS)])
def test_required_forms_are_proved_and_exact(name: str) -> None:
    proof = prove(required(name), ROWS)
    assert isinstance(proof, Proof), proof
    assert proof.penalised == (name in PENALISED)
    check_exact(required(name), proof, random_values(7), SPLITS_OF_7)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_no_sum_of_exponentials_overflows(dtype: str) -> None:
    """Parts are far apart, one holds only -inf, and so does a column."""
    v = pt.matrix(dtype=dtype)
    top = v.max(axis=0)
    values = {v: 1000 * np.random.default_rng(5).normal(size=(7, 3)).astype(dtype)}
    values[v][2:4] = values[v][:, 2] = -np.inf
    [wanted] = evaluate([pt.logsumexp(v, axis=0)], values)
    assert np.isfinite(wanted[:2]).all()
    for form in (
        pt.logsumexp(v, axis=0),
        pt.log(pt.exp(v).sum(axis=0)),
        pt.log(pt.exp(v - top).sum(axis=0)) + top,
    ):
        proof = prove(form, [v])
        for bounds in ([0, 2, 4, 7], range(8), [0, 7]):
            found = by_parts(proof, values, bounds, [v])
            assert found.dtype == dtype
            np.testing.assert_allclose(found, wanted, rtol=1e-6)


@pytest.mark.parametrize(
    "name",
    [
        *thorough("cross-entropy by index, gradient of w1"),
        *thorough("sum + L2, gradient of w2"),
        *thorough("weighted mean + L2, gradient of w1"),
        "mean of means + weighted mean, gradient of w2",
        "OpFromGraph, ratio, gradient of b1",
        *thorough("scan over time, masked, gradient of w1"),
        "shape",
    ],
)
@pytest.mark.filterwarnings("ignore:PyTensor could not link to a BLAS")
def test_proofs_compile(name: str) -> None:
    proof = prove(required(name), ROWS)
    assert isinstance(proof, Proof)
    values = {v: a for v, a in random_values(7).items() if v not in (y2, c, k, table)}
    with pytensor.config.change_flags(mode="FAST_COMPILE", linker="py"):
        mode = Mode("py", "fast_compile")
        options = {"mode": mode, "on_unused_input": "ignore"}
        serial = pytensor.function([*values], required(name), **options)
        member = pytensor.function([*values], [p.variable for p in proof.partials], **options)
        if proof.finished is not None:
            master = pytensor.function(
                [*proof.placeholders, w1, b1, w2, b2], proof.finished, **options
            )
    halves = [
        {v: a[part] if v in ROWS else a for v, a in values.items()}
        for part in (slice(0, 2), slice(2, 7))
    ]
    results = zip(*(member(*half.values()) for half in halves), strict=True)
    reduced = [
        np.asarray(REDUCE[p.reduction](list(r), np.array([2, 5])))
        for p, r in zip(proof.partials, results, strict=True)
    ]
    alike = [values[v] for v in (w1, b1, w2, b2)]
    found = reduced[0] if proof.finished is None else master(*reduced, *alike)
    np.testing.assert_allclose(found, serial(*values.values()), rtol=1e-8, atol=1e-10)


def test_the_other_gradients_are_proved() -> None:
    """Whether they are exact: scripts/test --all."""
    assert not [n for n in OTHERS if not isinstance(prove(required(n), ROWS), Proof)]


REDUCTIONS: dict[str, str | None] = {
    "squared error": "avg",
    "squared error, gradient of w1": "avg",
    "nested means, gradient of w2": "avg",
    "cross-entropy by index": "avg",
    "cross-entropy by index, gradient of w1": "avg",
    "sum of terms / x.shape[0]": "avg",
    "mean + L2": "avg",
    "mean + L2, gradient of w1": "avg",
    "scan over time, gradient of w1": "avg",
    "OpFromGraph, mean": "avg",
    "OpFromGraph, mean, gradient of b1": "avg",
    "embedding, gradient of table": "avg",
    "error rate": "avg",
    "mean of integers": "avg",
    "mean, shifted and scaled": "avg",
    "sum": "sum",
    "sum, gradient of w1": "sum",
    "sum + no penalty": "sum",
    "embedding of sequences, gradient of table": "sum",
    "x.T @ x": "sum",
    "errors": "sum",
    "histogram": "sum",
    "predictions": "gather",
    "flat": "gather",
    "scan, last state": "gather",
    "max over 0": "max",
    "any": "max",
    "min over (0, 2)": "min",
    "all": "min",
    "prod over None": "prod",
    "max over 1": "gather",
    "independent": None,
    "independent, by shape": None,
}


@pytest.mark.parametrize("name", REDUCTIONS)
def test_plain_forms_need_no_finishing(name: str) -> None:
    proof = prove(required(name), ROWS)
    assert isinstance(proof, Proof)
    assert [partial.reduction for partial in proof.partials] == [REDUCTIONS[name]]
    assert proof.partials[0].variable is required(name)
    assert proof.finished is None
    assert not proof.placeholders
    assert not proof.penalised


PENALISED: dict[str, Variable] = {
    "sum + L2": LOSSES["sum + L2"],
    "sum + L2, gradient of w1": required("sum + L2, gradient of w1"),
    "sum + L2, gradient of w2": required("sum + L2, gradient of w2"),
    "scaled": -2 * (LOSSES["sum + L2"] / k),
    "two sums": errors.sum() + (x**2).sum() - l2,
    "summed vectors": (x.sum(axis=0) + b1).sum(),
    "moved": (x.sum(axis=0) + b1).dimshuffle("x", 0),
}


@pytest.mark.parametrize("name", PENALISED)
def test_sum_and_penalty_is_penalised_and_exact(name: str) -> None:
    proof = prove(PENALISED[name], ROWS)
    assert isinstance(proof, Proof)
    assert proof.penalised
    assert "sum" in [partial.reduction for partial in proof.partials]
    check_exact(PENALISED[name], proof, random_values(7), SPLITS_OF_7)


rng = pytensor.shared(np.random.default_rng(0), name="rng")
coin = pt.random.bernoulli(0.5, rng=rng, size=x.shape, return_next_rng=True)[1]
noise = pt.random.normal(rng=rng, return_next_rng=True)[1]
noisy = pytensor.scan(
    lambda now, state: (state, now.sum() + pt.random.normal(rng=state, return_next_rng=True)[1]),
    sequences=[t.dimshuffle(1, 0, 2)],
    outputs_info=[rng, None],
    return_updates=False,
)
fixed = pt.matrix("fixed", shape=(7, 3))
tokens = t.reshape((-1, t.shape[2]))

NEVER: dict[str, tuple[Variable, str]] = {
    "std": (x.std(axis=0), "over all rows"),
    "var": (x.var(axis=0), "over all rows"),
    "std of all": (x.std(), "Sub"),
    "median": (pt.median(x, axis=0), "SortOp"),
    "cumsum": (pt.cumsum(x, axis=0), "Cumsum"),
    "cumprod": (pt.cumprod(x, axis=0), "Cumprod"),
    "flat cumsum": (pt.cumsum(x), "Cumsum"),
    "diff": (pt.diff(x, axis=0), "Subtensor"),
    "sort": (pt.sort(x, axis=0), "SortOp"),
    "argsort": (pt.argsort(target), "ArgSort"),
    "centred": (x - x.mean(axis=0), "Sub"),
    "centred by all": (x - x.mean(), "Sub"),
    "batch norm": ((x - x.mean(axis=0)) / pt.sqrt(x.var(axis=0) + 1e-5), "Sub"),
    "x @ x.T": (x @ x.T, "rows with other rows"),
    "pairwise": (x[:, None, :] - x[None, :, :], "rows with other rows"),
    "outer": (pt.outer(target, target), "rows with other rows"),
    "argmax": (x.argmax(axis=0), "Argmax"),
    "argmax of all": (x.argmax(), "Argmax"),
    "every other row": (x[::2], "some of the rows"),
    "first row": (x[0], "some of the rows"),
    "last row": (x[-1], "some of the rows"),
    "all but the last": (x[:-1], "some of the rows"),
    "reversed": (x[::-1], "some of the rows"),
    "permuted": (x[c.astype("int64")], "some of the rows"),
    "rows by label": (x[y], "some of the rows"),
    "masked rows": (x[mask > 0], "mask"),
    "labels of some": (x[pt.arange(3), y], "some of the rows"),
    "diagonal": (x[pt.arange(x.shape[0]), pt.arange(x.shape[0])], "position"),
    "softmax": (pt.special.softmax(x, axis=0), "over all rows"),
    "softmax of all": (pt.special.log_softmax(x), "Sub"),
    "log of a sum by the maximum, which is not added": (
        pt.log(pt.exp(x - top).sum(axis=0)),
        "Sub",
    ),
    "log of a sum by the maximum, another added": (
        pt.log(pt.exp(x - top).sum(axis=0)) + x.min(axis=0),
        "Sub",
    ),
    "log of a sum by the maximum, added across": (
        pt.log(pt.exp(x - top).sum(axis=0)) + top.T,
        "Sub",
    ),
    "log of a sum by the maximum, subtracted": (
        pt.log(pt.exp(x - top).sum(axis=0)) - top[0],
        "Sub",
    ),
    "log of a sum of weighted exp": (
        pt.log((mask[:, None] * pt.exp(x - top)).sum(axis=0)) + top[0],
        "Sub",
    ),
    "log of shares of exp by the maximum": (
        pt.log(pt.exp(x - top).sum(axis=0) / pt.exp(x - top).sum()) + top[0],
        "Sub",
    ),
    "log of shares of the same exp by the maximum": (
        (lambda powers: pt.log(powers.sum(axis=0) / powers.sum()) + top[0])(pt.exp(x - top)),
        "Sub",
    ),
    "log of cumulated exp": (pt.log(pt.cumsum(pt.exp(x), axis=0)), "Cumsum"),
    "dropout": (x * coin, "random"),
    "noise": (x.sum() + noise, "random"),
    "noise alone": (noise, "random"),
    "random state": (rng, "random"),
    "noise in a loop": (noisy[-1], "random"),
    "position": (x * pt.arange(x.shape[0])[:, None], "Mul"),
    "as long as the rows": (target * c, "as long as the rows"),
    "dot with as long": (x.T @ c, "as long as the rows"),
    "equal to as long": (pt.eq(y, c).mean(), "as long as the rows"),
    "by as long": (table[y, c.astype("int64")], "as long as the rows"),
    "joined rows": (pt.concatenate([x, x]), "along the rows"),
    "row added": (pt.concatenate([x, b1[None]]), "along the rows"),
    "shifted": (pt.concatenate([x[1:], x[:1]]), "some of the rows"),
    "folded across": (x.reshape((3, -1)), "places of different rows"),
    "folded in twos": (x.reshape((-1, 2)), "places of different rows"),
    "folded to fixed": (x.reshape((-1, x.shape[0])), "places of different rows"),
    "time folded over rows": (t.dimshuffle(1, 0, 2).reshape((-1, 3)), "places of different rows"),
    "stated": (pt.specify_shape(target, (k.astype("int64"),)), "states a number of rows"),
    "square of a mean's terms": (((x / x.shape[0]) ** 2).sum(), "Pow"),
    "switched by a total": (pt.switch(target.sum() > 0, x, -x), "Switch"),
    "scan over rows": (
        pytensor.scan(
            lambda now, total: total + now,
            sequences=[target],
            outputs_info=[pt.zeros(())],
            return_updates=False,
        ),
        "some of the rows",
    ),
    "as many steps as rows": (
        pytensor.scan(
            lambda total, now: total + now.sum(),
            outputs_info=[pt.zeros(())],
            non_sequences=[x],
            n_steps=x.shape[0],
            return_updates=False,
        ),
        "number of steps",
    ),
    "loop that multiplies by a sum": (
        loop(lambda now, s, a: s + now.sum() * s, pt.ones(()))[-1],
        "in each step",
    ),
    "loop that multiplies sums": (
        loop(lambda now, s, a: now.sum() * s + now.sum(), pt.zeros(()))[-1],
        "in each step",
    ),
    "loop that sums onto a start": (loop(lambda now, s, a: s + now.sum(), k)[-1], "in each step"),
    "loop that divides again": (
        loop(lambda now, s, a: (s + now) / x.shape[0], x)[-1],
        "scaled by totals",
    ),
    "loop scaled within": (
        loop(lambda now, s, a: s + now / x.shape[0], pt.zeros_like(x))[-1],
        "scaled by values",
    ),
    "loop gated by a sum": (
        loop(lambda now, s, a: pt.switch(now.sum() > 0, s, now), x)[-1],
        "condition",
    ),
    "loop weighted by a sum": (
        loop(lambda now, s, a: s + (now * now.sum()).sum(), pt.zeros(()))[-1],
        "in each step",
    ),
    "loop of rows made sums": (loop(lambda now, s, a: s + now.sum(axis=0), b1)[-1], "in each step"),
    "first labels of more": (tokens[pt.arange(y.shape[0]), y], "some of the rows"),
    "labels of twice as many": (x[pt.arange(2 * x.shape[0]), y], "some of the rows"),
    "spread to rows": (pt.alloc(c, x.shape[0]) * target, "as long as the rows"),
    "fixed rows": (fixed.sum(), "fixed number of rows"),
    "last class set": (pt.zeros(4)[y].set(target), "not a sum over rows"),
    "added into a start": (table[y].inc(x), "not a sum over rows"),
    "small sum": (y.sum(dtype="int8"), "int8"),
    "inverse": (pt.linalg.inv(x), "mix"),
    "diagonal of rows": (pt.diagonal(x), "may mix rows"),
    "unique": (pt.unique(y), "may mix rows"),
}


@pytest.mark.parametrize("name", NEVER)
def test_never_claimed(name: str) -> None:
    output, reason = NEVER[name]
    found = prove(output, [*ROWS, fixed])
    assert isinstance(found, Unproved)
    assert reason in found.reason


weight = pt.matrix("weight")  # 3 x 3, or as many rows as there are
square = pt.matrix("square")  # n x n
near = pt.vector("near")  # n long, in all members alike
order = pt.lvector("order")  # n long, in all members alike
FUZZ_ROWS = [x, t, target, y, mask]
ALIKE = [weight, square, near, order, b1, k]


def fuzz_values(n: int, draw: np.random.Generator) -> Values:
    shapes = {x: (n, 3), t: (n, 2, 3), target: (n,), mask: (n,)}
    shapes |= {weight: (3, 3), square: (n, n), near: (n,), b1: (3,), k: ()}
    values = {v: np.asarray(draw.normal(size=shape)) for v, shape in shapes.items()}
    return values | {y: draw.integers(0, 3, n), order: draw.permutation(n)}


def _axis(v: Variable, i: int) -> int:
    return i % v.type.ndim


def _gradient(v: Variable, i: int) -> Variable:
    return pytensor.grad(v.sum(), [weight, b1, k][i % 3])


def _by_maximum(v: Variable, m: Variable, i: int) -> Variable:
    powers, axis = pt.exp(v - m), _axis(v, i // 2)
    total = powers.mean(axis=axis) if i % 3 else powers.sum(axis=axis, keepdims=i % 2 == 0)
    return pt.log(total) + (m if i % 5 else m.squeeze())


def _row_numbers(v: Variable) -> Variable:
    return pt.arange(v.shape[0])


UNARY: list[Callable[[Variable, int], Variable]] = [
    lambda v, i: -v,
    lambda v, i: pt.tanh(v),
    lambda v, i: v**2,
    lambda v, i: abs(v) + 0.5,
    lambda v, i: pt.sqrt(abs(v)),
    lambda v, i: pt.floor(v * 1.37 + 0.21),
    lambda v, i: (v * 1.37 + 0.21).astype("int8"),
    lambda v, i: (v * 1.37 + 0.21).astype("int64"),
    lambda v, i: v.astype("float64"),
    lambda v, i: v > 0.1234,
    lambda v, i: v.sum(),
    lambda v, i: v.mean(),
    lambda v, i: v.max(),
    lambda v, i: v.sum(axis=_axis(v, i), keepdims=i % 2 == 0),
    lambda v, i: v.mean(axis=_axis(v, i), keepdims=i % 2 == 0),
    lambda v, i: v.max(axis=_axis(v, i), keepdims=i % 2 == 0),
    lambda v, i: v.min(axis=_axis(v, i)),
    lambda v, i: v.prod(axis=_axis(v, i)),
    lambda v, i: pt.all(v > 0.1234, axis=_axis(v, i)),
    lambda v, i: v.sum() / v.shape[_axis(v, i)],
    lambda v, i: v / v.shape[_axis(v, i)],
    lambda v, i: v.argmax(axis=_axis(v, i)),
    lambda v, i: pt.sort(v, axis=_axis(v, i)),
    lambda v, i: pt.cumsum(v, axis=_axis(v, i)),
    lambda v, i: pt.special.softmax(v, axis=_axis(v, i)),
    lambda v, i: pt.logsumexp(v, axis=_axis(v, i)),
    lambda v, i: pt.log(pt.exp(v).sum(axis=_axis(v, i), keepdims=i % 2 == 0)),
    lambda v, i: _by_maximum(v, v.max(axis=_axis(v, i), keepdims=True), i),
    lambda v, i: _by_maximum(v, v.max(axis=_axis(v, i)), i),
    lambda v, i: _by_maximum(v, b1, i),
    lambda v, i: v.std(axis=_axis(v, i)),
    lambda v, i: v.T,
    lambda v, i: v.dimshuffle("x", *range(v.type.ndim)),
    lambda v, i: v.dimshuffle(*range(v.type.ndim), "x"),
    lambda v, i: pt.moveaxis(v, 0, _axis(v, i)),
    lambda v, i: v.flatten(1 + i % 2),
    lambda v, i: v.ravel(),
    lambda v, i: v.reshape((-1, v.shape[-1])),
    lambda v, i: v.reshape((-1, 2 + i % 2)),
    lambda v, i: v.reshape((2 + i % 2, -1)),
    lambda v, i: v.reshape((v.shape[_axis(v, i)], -1)),
    lambda v, i: v.reshape((v.shape[0] * v.shape[1], *v.shape[2:])),
    lambda v, i: pt.moveaxis(v, 0, 1).reshape((v.shape[0] * v.shape[1], *v.shape[2:])),
    lambda v, i: v.reshape((t.shape[1], t.shape[0], *v.shape[1:])),
    lambda v, i: weight[(v.T > 0.1234).astype("int64").flatten()],
    lambda v, i: (v > 0.1234).sum(axis=_axis(v, i), dtype="float64"),
    lambda v, i: v.reshape(v.shape[::-1]),
    lambda v, i: pt.join_dims(v, i % 2, 2),
    lambda v, i: pt.split_dims(v, (v.shape[0], 1), 0),
    lambda v, i: v[0],
    lambda v, i: v[:, _axis(v, i)],
    lambda v, i: v[:, 1:],
    lambda v, i: v[:-1],
    lambda v, i: v[::2],
    lambda v, i: v[..., ::-1],
    lambda v, i: v[_row_numbers(v)],
    lambda v, i: v[_row_numbers(v), _row_numbers(v)],
    lambda v, i: v[_row_numbers(x), y],
    lambda v, i: v[y],
    lambda v, i: v[:, y],
    lambda v, i: v[order],
    lambda v, i: v[v > 0.1234],
    lambda v, i: pt.zeros((3, *v.shape[1:]))[y].inc(v),
    lambda v, i: pt.zeros(3)[y].inc(v),
    lambda v, i: pt.zeros(3)[y].set(v),
    lambda v, i: pt.arange(2 * v.shape[0]),
    lambda v, i: v[pt.arange(v.shape[0] // 2), 0],
    lambda v, i: pt.zeros_like(v)[_row_numbers(v), y].inc(v[:, 0]),
    lambda v, i: v[:, 0].set(0.5),
    lambda v, i: v[0].inc(1.5),
    lambda v, i: v[_row_numbers(v), y].set(target),
    lambda v, i: v[order].set(v),
    lambda v, i: pt.concatenate([v, v], axis=_axis(v, i)),
    lambda v, i: pt.stack([v, -v], axis=_axis(v, i)),
    lambda v, i: pt.repeat(v, 2, axis=_axis(v, i)),
    lambda v, i: pt.tile(v, 2),
    lambda v, i: pt.diagonal(v),
    lambda v, i: _row_numbers(v),
    lambda v, i: _row_numbers(v)[:, None] + v,
    lambda v, i: v.shape,
    lambda v, i: v.shape[_axis(v, i)],
    lambda v, i: v.size,
    lambda v, i: pt.eye(v.shape[0]),
    lambda v, i: pt.ones((v.shape[_axis(v, i)], 2)),
    lambda v, i: pt.alloc(v.sum(), v.shape[0], 3),
    lambda v, i: pt.alloc(v, 2, *v.shape),
    lambda v, i: pt.fill(v, v.mean()),
    lambda v, i: v - v.mean(axis=0),
    lambda v, i: v @ weight,
    lambda v, i: v.T @ v,
    lambda v, i: v @ v.T,
    lambda v, i: pt.outer(v, v),
    lambda v, i: pt.switch(k > 0, v, v * 2),
    lambda v, i: ifelse(k > 0, v, v * 2),
    _gradient,
]

BINARY: list[Callable[[Variable, Variable], Variable]] = [
    lambda a, b: a + b,
    lambda a, b: a - b,
    lambda a, b: a * b,
    lambda a, b: a * b,
    lambda a, b: a / (abs(b) + 0.5),
    lambda a, b: a / (b.sum() + 9.7),
    lambda a, b: a * b.sum(),
    lambda a, b: a[:, None] * b[None],
    lambda a, b: a[..., None] + b[:, None],
    lambda a, b: a // (abs(b) + 1.37),
    lambda a, b: pt.maximum(a, b),
    lambda a, b: a > b + 0.1234,
    lambda a, b: pt.switch(a > 0.1234, a, b),
    lambda a, b: pt.switch(a > 0.1234, b, 0),
    lambda a, b: pt.fill(a, b),
    lambda a, b: a @ b,
    lambda a, b: a.T @ b,
    lambda a, b: pt.tensordot(a, b, axes=[[0], [0]]),
    lambda a, b: pt.tensordot(a, b, axes=[[-1], [0]]),
    lambda a, b: pt.outer(a, b),
    lambda a, b: pt.concatenate([a, b], axis=-1),
    lambda a, b: pt.concatenate([a, b], axis=0),
    lambda a, b: pt.stack([a, b], axis=a.type.ndim),
    lambda a, b: a[:, 0].set(b),
    lambda a, b: a[:, 0].inc(b),
    lambda a, b: pt.zeros_like(a)[0].set(b),
    lambda a, b: pt.zeros(3, dtype=a.dtype)[0].set(b.sum() * 77),
    lambda a, b: pt.zeros(3, dtype=a.dtype)[0].set(b.max() * 77),
    lambda a, b: pt.zeros_like(a)[_row_numbers(a), y].inc(b),
    lambda a, b: a[_row_numbers(b), b.argmax(axis=-1)],
    lambda a, b: weight[a.argmax(axis=-1), b.argmax(axis=-1)],
    lambda a, b: ifelse(a.sum() > 0.1234, b, -b),
    lambda a, b: pt.alloc(a.mean(), b.shape[0], b.shape[-1]),
    lambda a, b: pt.alloc(a, b.shape[0], a.shape[0]),
    lambda a, b: pt.alloc(a, *b.shape),
    lambda a, b: a[_row_numbers(b), y],
    lambda a, b: a[_row_numbers(b)],
    lambda a, b: a[pt.arange(b.size), 0],
    lambda a, b: a.reshape(b.shape),
    lambda a, b: OpFromGraph([a, b], [(a * b).sum(axis=0)])(a, b),
]


def grow(
    pool: list[Variable], choices: Sequence[tuple[int, int, int]], values: Values
) -> list[Variable]:
    """The variables that the choices build from the pool, those of finite moderate value."""
    known = dict(values)
    grown: list[Variable] = []
    for op, first, second in choices:
        candidates = [*pool, *grown, *grown]  # with a liking for what is grown
        a, b = candidates[first % len(candidates)], candidates[second % len(candidates)]
        try:
            built = UNARY[op](a, second) if op < len(UNARY) else BINARY[op - len(UNARY)](a, b)
            value = np.asarray(evaluate([built], known)[0])
        except Exception:  # ill-typed or ill-shaped: there is nothing to prove
            continue
        moderate = value.size and np.all(abs(value.astype(float)) < 1e4)
        exact = value.dtype == built.type.dtype != "float32"  # PyTensor's cumsum may widen it
        if moderate and exact:
            known[built] = value
            grown.append(built)
    return grown


choice = st.tuples(
    st.integers(0, len(UNARY) + len(BINARY) - 1), st.integers(0, 40), st.integers(0, 40)
)


@settings(max_examples=examples(300), deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.integers(1, 5),
    st.lists(choice, min_size=3, max_size=12),
    st.integers(0, 2**32 - 1),
    st.sets(st.integers(1, 4)),
)
def test_random_graphs_are_never_proved_wrongly(
    n: int, choices: list[tuple[int, int, int]], seed: int, cuts: set[int]
) -> None:
    values = fuzz_values(n, np.random.default_rng(seed))
    splits = [[0, *sorted(c for c in cuts if c < n), n], list(range(n + 1))]
    for output in grow([*FUZZ_ROWS, *FUZZ_ROWS, *ALIKE], choices, values):
        proof = prove(output, FUZZ_ROWS)
        if isinstance(proof, Proof):
            check_exact(output, proof, values, splits, FUZZ_ROWS)


def test_draws_one_after_the_other() -> None:
    """Each as long as what the one before has masked; a draw with other rows is none of them."""
    masked, masks = x, []
    for _ in range(3):
        _, mask = pt.random.bernoulli(0.5, rng=rng, size=masked.shape, return_next_rng=True)
        masked, masks = masked @ pt.ones((3, 3)) * mask, [*masks, mask]
    assert row_draws(masked.mean(), ROWS) == masks
    proof = prove(masked.mean(), [*ROWS, *masks])
    assert isinstance(proof, Proof)
    assert [p.reduction for p in proof.partials] == ["avg"]
    other = pt.random.normal(rng=rng, size=masked.shape[::-1], return_next_rng=True)[1]
    assert row_draws((masked.T + other).mean(), ROWS) == masks
