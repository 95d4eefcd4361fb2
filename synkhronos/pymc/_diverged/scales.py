"""Which variables a model makes the scale of which, by its graph."""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterator
from dataclasses import dataclass

import pymc as pm
import pytensor.tensor as pt
from pymc.distributions.distribution import SymbolicRandomVariable
from pymc.distributions.transforms import LogExpM1, LogTransform
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.traversal import toposort
from pytensor.scalar import basic as scalar
from pytensor.scalar.math import Softplus
from pytensor.tensor.basic import Alloc
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.subtensor import AdvancedSubtensor, Subtensor
from pytensor.tensor.variable import TensorVariable as Tensor

# The scale among the parameters of families that are a scale times a standard variable, up to
# their location. Of the multivariate ones it is a covariance.
_SCALES = {
    pm.AR: 1,
    pm.Cauchy: 1,
    pm.Exponential: 0,
    pm.Gumbel: 1,
    pm.HalfCauchy: 0,
    pm.HalfNormal: 1,
    pm.HalfStudentT: 1,
    pm.Laplace: 1,
    pm.LogNormal: 1,
    pm.Logistic: 1,
    pm.MvNormal: 1,
    pm.MvStudentT: 2,
    pm.Normal: 1,
    pm.SkewNormal: 1,
    pm.StudentT: 2,
    pm.ZeroSumNormal: 0,
}
_COVARIANCES = (pm.MvNormal, pm.MvStudentT)
_SAME_ELEMENTS = (DimShuffle, Subtensor, AdvancedSubtensor, Alloc)
_POSITIVE = (scalar.Exp, scalar.Sqr, scalar.Sqrt, scalar.Abs, Softplus)


def _operation(family: type[pm.Distribution]) -> type:
    return getattr(family, "rv_type", None) or type(family.rv_op)


_PLACES = {_operation(family): place for family, place in _SCALES.items()}
_WITH_COVARIANCE = tuple(_operation(family) for family in _COVARIANCES)


@dataclass(frozen=True)
class Scale:
    """The scale of a variable of the model, which depends on other variables."""

    of: str
    names: tuple[str, ...]  # of the variables that it follows from
    centred: bool  # a parameter of its prior. Else a factor of a standard variable
    observed: bool
    values: tuple[Tensor, ...]  # computed from variables of the model


def scales_of(model: pm.Model) -> list[Scale]:
    """The scales of a model's variables; a variable whose scale is a constant has none."""
    outputs = [*model.basic_RVs, *model.deterministics, *model.potentials]
    order, free = list(toposort(outputs)), set(model.free_RVs)
    reads: dict[Variable, frozenset[str]] = {rv: frozenset([str(rv.name)]) for rv in free}
    for node in order:
        names = frozenset[str]().union(*(reads.get(v, ()) for v in node.inputs))
        for output in node.outputs:
            reads.setdefault(output, names)
    scales, standard = [], set()
    for rv in model.basic_RVs:
        found = list(_scales_in(rv, free))
        values = [v for v in found if reads.get(v)]
        if values:
            of = sorted(frozenset[str]().union(*(reads[v] for v in values)))
            if isinstance(rv.owner.op, _WITH_COVARIANCE):
                values = [pt.sqrt(pt.diagonal(v, axis1=-2, axis2=-1)) for v in values]
            scales.append(Scale(str(rv.name), tuple(of), True, rv not in free, tuple(values)))
        elif found and rv in free:
            standard.add(rv)
    return scales + _of_standard(model, order, reads, standard)


def _scales_in(rv: Variable, free: set[Variable]) -> Iterator[Tensor]:
    """The scale of a variable, or those of the distributions that it is made of."""
    op = rv.owner.op
    if not isinstance(op, RandomVariable | SymbolicRandomVariable):
        return
    parameters = op.dist_params(rv.owner)
    if (place := _PLACES.get(type(op))) is not None:
        yield parameters[place]
        return
    for parameter in parameters:
        if parameter.owner is not None and parameter not in free:
            yield from _scales_in(parameter, free)


def _of_standard(
    model: pm.Model,
    order: list[Apply],
    reads: dict[Variable, frozenset[str]],
    standard: set[Variable],
) -> list[Scale]:
    """The factors of variables with a constant scale: those that are not centred."""
    logs = LogTransform, LogExpM1
    positive = {rv for rv in model.free_RVs if isinstance(model.rvs_to_transforms[rv], logs)}

    def is_scale(value: Variable) -> bool:
        value = _with_its_elements(value)
        op = value.owner and value.owner.op
        if isinstance(op, Elemwise) and isinstance(op.scalar_op, scalar.Mul):
            return all(not reads.get(v) or is_scale(v) for v in value.owner.inputs)
        known = isinstance(op, Elemwise) and isinstance(op.scalar_op, _POSITIVE)
        return value in positive or known

    # by a variable that is a standard one times factors: these
    products: dict[Variable, tuple[Variable, tuple[Tensor, ...]]]
    products = {z: (z, ()) for z in standard - positive}
    for node in order:
        within = [v for v in node.inputs if v in products]
        others = [v for v in node.inputs if v not in products and reads.get(v)]
        is_product = isinstance(node.op, Elemwise) and isinstance(node.op.scalar_op, scalar.Mul)
        if len(within) == 1 and (is_product or isinstance(node.op, _SAME_ELEMENTS)):
            z, factors = products[within[0]]
            if all(is_scale(v) for v in others):
                products.setdefault(node.outputs[0], (z, (*factors, *others)))
    longest: dict[Variable, tuple[Tensor, ...]] = {}
    for z, factors in products.values():
        longest[z] = max(longest.get(z, ()), factors, key=len)
    found = []
    for z, factors in longest.items():
        if factors:
            names = sorted(frozenset[str]().union(*(reads[v] for v in factors)))
            one = _with_its_elements(factors[0])  # the rows of data may repeat them
            value = one if len(factors) == 1 else functools.reduce(operator.mul, factors)
            found.append(Scale(str(z.name), tuple(names), False, False, (value,)))
    return sorted(found, key=lambda scale: scale.of)


def _with_its_elements(value: Variable) -> Variable:
    """The variable whose elements are picked, or repeated, to give this one."""
    while value.owner is not None and isinstance(value.owner.op, _SAME_ELEMENTS):
        value = value.owner.inputs[0]
    return value
