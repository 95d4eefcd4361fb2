"""Which scalar operations gradients contain, how often they are computed, and the time they take.

    python benchmarks/operations.py [--values 20000] [--rounds 30]

Graphs are those of value and gradient after PyTensor's rewrites for mode NUMBA, but before its
loops are fused: of the models of `pymc_gallery.py`, of the kinds in `tests/pymc/zoo.py`, of a value
of each of PyMC's distributions, and of the losses of `synkhronos.zoo`. Graphs inside of operations
are counted too. Values are the elements that one gradient of each model of the gallery computes.
The last column but one is the time of these by PyTensor's own code, of which a value takes as long
as in a loop over many numbers. The last one tells which operations have vectorised code.
"""

from __future__ import annotations

import argparse
import functools
import signal
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from common import describe_machine, show
from pymc_gallery_models import MODELS, with_data
from pytensor.compile.mode import Mode, get_mode
from pytensor.graph.op import HasInnerGraph
from pytensor.link.vm import VMLinker
from pytensor.scalar import basic as ps
from pytensor.scalar import math
from pytensor.tensor.elemwise import CAReduce, Elemwise
from pytensor.tensor.special import LogSoftmax, Softmax
from special import measured
from threadpoolctl import threadpool_limits

from synkhronos._compiling.vectorised.table import TABLE

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "pymc"))

Sizes = Counter[str]
_EXCLUDED = ("fusion", "inplace", "scalarize")  # the last one takes minutes for some graphs
_SECONDS = 40  # at most, for one graph
_ROWS = 7  # of the graphs that are only counted
_REDUCTIONS = {Softmax: "Softmax", LogSoftmax: "LogSoftmax"}


def name_of(operation: Any) -> str | None:
    """The name under which a node is counted; None for one that computes no function of numbers."""
    if isinstance(operation, Elemwise):
        return type(operation.scalar_op).__name__
    if isinstance(operation, CAReduce):
        return f"{type(operation.scalar_op).__name__} over an axis"
    return _REDUCTIONS.get(type(operation))


def nodes(fgraph: Any) -> Iterator[Any]:
    """The nodes of a graph, and of the graphs inside of its operations."""
    for node in fgraph.toposort():
        yield node
        if isinstance(node.op, HasInnerGraph) and not isinstance(node.op, Elemwise):
            yield from nodes(node.op.fgraph)


def compiled(inputs: Sequence[Any], outputs: Sequence[Any], sizes: Sizes) -> Any:
    """The function, which adds the elements of each operation to `sizes` at each call."""

    def note(*, node: Any, storage_map: Any, **_: Any) -> None:
        if name := name_of(node.op):
            places = node.inputs if isinstance(node.op, CAReduce) else node.outputs
            sizes[name] += np.size(storage_map[places[0]][0])

    linker = VMLinker(callback=note, use_cloop=False, c_thunks=False)
    mode = Mode(linker, get_mode("NUMBA").provided_optimizer).excluding(*_EXCLUDED)
    with pytensor.config.change_flags(cxx=""):
        return pytensor.function(list(inputs), list(outputs), mode=mode, on_unused_input="ignore")


def of_model(model: pm.Model, sizes: Sizes) -> Any:
    """The function of value and gradient."""
    variables = model.continuous_value_vars
    value = model.logp()
    outputs = [value, *pytensor.grad(value, variables, disconnected_inputs="ignore")]
    return compiled(model.value_vars, outputs, sizes)


def gallery(name: str) -> tuple[Sizes, Counter[str]]:
    """Elements and nodes of one gradient of a model of the gallery."""
    sizes: Sizes = Counter()
    model = with_data(MODELS[name])
    function = of_model(model, sizes)
    start = model.initial_point(0)
    function(*[start[v.name] for v in model.value_vars])
    return sizes, counted(function)


def counted(function: Any) -> Counter[str]:
    found = (name_of(node.op) for node in nodes(function.maker.fgraph))
    return Counter(name for name in found if name)


def zoo() -> Iterator[Callable[[], Any]]:
    """Functions of the kinds of models that the tests divide or refuse."""
    from zoo import KINDS

    for kind in KINDS.values():
        yield lambda kind=kind: of_model(kind.make(), Counter())


def of_distribution(name: str, count: int) -> Any:
    """The function of the density of rows with parameters that are above 0."""
    with pm.Model() as model:
        given = [pm.Gamma(f"p{i}", 2, 2) for i in range(count)]
        getattr(pm, name)("y", *given, observed=np.ones(_ROWS))
    return of_model(model, Counter())


def distributions() -> Iterator[Callable[[], Any]]:
    """Functions of the densities of PyMC's distributions of one number."""
    for name, count in DISTRIBUTIONS.items():
        yield functools.partial(of_distribution, name, count)


def networks() -> Iterator[Callable[[], Any]]:
    """Functions of the losses of networks."""
    from synkhronos import zoo

    made = {
        "mlp": lambda: zoo.mlp(8, (4,)),
        "resnet": lambda: zoo.resnet(18, blocks=(1, 1), size=16, classes=10, width=4),
        "lstm": lambda: zoo.lstm(2, 4, length=5),
        "transformer": lambda: zoo.transformer(8, length=5, width=4, heads=2, layers=1),
    }
    for make in made.values():

        def function(make: Callable[[], Any] = make) -> Any:
            net = make()
            outputs = [net.loss, *pytensor.grad(net.loss, net.params)]
            return compiled(net.inputs, outputs, Counter())

        yield function


# Parameters of each distribution.
DISTRIBUTIONS = {
    **dict.fromkeys(("Exponential", "HalfNormal", "HalfCauchy", "ChiSquared", "Poisson"), 1),
    **dict.fromkeys(("Bernoulli", "Geometric"), 1),
    **dict.fromkeys(("Normal", "Laplace", "Cauchy", "Gumbel", "Logistic", "LogitNormal"), 2),
    **dict.fromkeys(("LogNormal", "Gamma", "InverseGamma", "Beta", "Kumaraswamy", "Weibull"), 2),
    **dict.fromkeys(("VonMises", "Moyal", "Pareto", "Rice", "Wald", "HalfStudentT"), 2),
    **dict.fromkeys(("Uniform", "NegativeBinomial", "Binomial", "DiscreteWeibull"), 2),
    **dict.fromkeys(("SkewNormal", "AsymmetricLaplace"), 3),
    **dict.fromkeys(("Triangular", "TruncatedNormal", "BetaBinomial", "ZeroInflatedPoisson"), 3),
    **dict.fromkeys(("HyperGeometric", "ZeroInflatedBinomial"), 3),
    "ZeroInflatedNegativeBinomial": 3,
}
DISTRIBUTIONS |= {"TruncatedNormal": 2, "ZeroInflatedPoisson": 2, "StudentT": 2}
_PAIRS = ("Pow", "Add", "Mul", "Sub", "TrueDiv", "Maximum", "Minimum", "ArcTan2", "Switch")


def models_with(functions: Iterator[Callable[[], Any]]) -> tuple[Counter[str], int, list[str]]:
    """In how many graphs each operation occurs, the number of graphs, and what went wrong."""
    found: Counter[str] = Counter()
    failed, total = [], 0
    for make in functions:
        signal.alarm(_SECONDS)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                function = make()
        except Exception as exc:  # some kinds have no gradient, or take too long
            failed.append(f"{type(exc).__name__}: {str(exc).splitlines()[0][:80]}")
            continue
        finally:
            signal.alarm(0)
        total += 1
        print(f"graphs read: {total}", end="\r", file=sys.stderr, flush=True)
        found.update(set(counted(function)))
    return found, total, failed


def nanoseconds(name: str, values: int, rounds: int) -> float | None:
    """For one value by PyTensor's code for numba; None for what needs other arguments."""
    kind = getattr(ps, name, None) or getattr(math, name, None)
    kind = kind if kind is not ps.Composite else None
    if kind is None or not issubclass(kind, ps.ScalarOp):
        return None
    x = pt.dvector("x")
    count = 2 if name in _PAIRS or issubclass(kind, ps.BinaryScalarOp) else 1
    try:
        operation = Elemwise(kind(ps.upgrade_to_float_no_complex))
        out = operation(*[x] * count)
        function = pytensor.function([x], out, mode="NUMBA", trust_input=True)
        value = np.random.default_rng(0).uniform(0.1, 0.9, values)
        return 1e9 * measured({"plain": lambda: function(value)}, rounds, np.min)["plain"] / values
    except Exception:
        return None


def late(*_: object) -> None:
    raise TimeoutError(f"more than {_SECONDS} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--values", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=30)
    asked = parser.parse_args()
    signal.signal(signal.SIGALRM, late)
    describe_machine()
    sizes: Sizes = Counter()
    of_gallery: Counter[str] = Counter()
    for name in MODELS:
        elements, each = gallery(name)
        sizes.update(elements)
        of_gallery.update(set(each))
        print(f"gallery: {name}", file=sys.stderr)
    others = [models_with(each()) for each in (zoo, distributions, networks)]
    replaced = {kind.__name__ for kind in TABLE}
    names = set(sizes).union(of_gallery, *[found for found, _, _ in others])
    rows = []
    with threadpool_limits(1):
        for name in names:
            ns = nanoseconds(name, asked.values, asked.rounds)
            time = None if ns is None else ns * sizes[name] / 1000
            counts = [of_gallery[name], *[found[name] for found, _, _ in others]]
            rows.append((name, *counts, sizes[name], ns, time, name in replaced))
    rows.sort(key=lambda row: (-(row[7] or 0.0), -row[2] - row[3]))
    columns = ["", f"gallery ({len(MODELS)})"]
    columns += [f"{what} ({o[1]})" for what, o in zip(_WHAT, others, strict=True)]
    columns += ["values", "ns", "us", "vectorised"]
    show(
        "Models with each operation, and the time of one gradient of all models of the gallery",
        columns,
        [[*row[:5], f"{row[5]:,}", *map(shown, row[6:8]), "yes" if row[8] else ""] for row in rows],
    )
    for what, (_, _, failed) in zip(_WHAT, others, strict=True):
        for reason in failed:
            print(f"not counted, {what}: {reason}")


def shown(number: float | None) -> str:
    return "" if number is None else f"{number:.1f}"


_WHAT = ("zoo", "distributions", "networks")

if __name__ == "__main__":
    main()
