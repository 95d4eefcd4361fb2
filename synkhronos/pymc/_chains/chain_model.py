"""The model and the data that the draws of a run are of, as digests that are the same elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from pymc import Model
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.op import HasInnerGraph
from pytensor.graph.traversal import ancestors
from pytensor.tensor.random.type import RandomType

from synkhronos._compiling.kept.digests import Unkeyed
from synkhronos._compiling.kept.keys import portable_key
from synkhronos._compiling.progress import tell
from synkhronos.pymc._chains.chain_settings import digest


def said_of(model: Model) -> dict[str, Any]:
    """A digest of the model, its parameters, and a digest of each value that it reads."""
    outputs = _outputs(model)
    return {
        "model": _model_key(model, outputs),
        "parameters": [str(v.name) for v in model.value_vars],
        "data": _digests(model, outputs),
    }


def other_model(found: Sequence[str], asked: Sequence[str]) -> str:
    """In what way a model is another one, by the names of the parameters of both."""
    if found != asked and sorted(found) == sorted(asked):
        return (
            f"the same parameters in another order ({', '.join(asked)}), which may follow from "
            "sets of names: start Python with PYTHONHASHSEED=0 in each call"
        )
    return "another model"


def _outputs(model: Model) -> tuple[Variable, ...]:
    """The log-density, and what is drawn."""
    return type(model).logp(model), *model.unobserved_value_vars


def _digests(model: Model, outputs: Sequence[Variable]) -> dict[str, str]:
    """A digest of each observed value, each `pm.Data` and each other shared variable that is read.

    The generators of random variables are no data.
    """
    named = {str(rv.name): model.rvs_to_values[rv] for rv in model.observed_RVs}
    named |= {str(v.name): v for v in model.data_vars}
    others = (v for v in ancestors(outputs) if isinstance(v, SharedVariable))
    others = (v for v in others if not isinstance(v.type, RandomType))
    for number, variable in enumerate(v for v in others if v not in set(named.values())):
        name = variable.name or "a shared variable"
        named[f"{name} {number}" if name in named else name] = variable
    found = {}
    for name, variable in named.items():
        if isinstance(variable, SharedVariable):
            found[name] = digest(variable.get_value(borrow=True))
        elif isinstance(variable, Constant):
            found[name] = digest(variable.data)
    return found


def _model_key(model: Model, outputs: Sequence[Variable]) -> str:
    """A digest of the model's graphs; if they have none, of their parts, with a line."""
    try:
        return portable_key(model.value_vars, outputs, model.coords)
    except Unkeyed as exc:
        tell(
            "whether the model is the one of the folder is checked by its variables, constants and "
            f"kinds of operations, not by how they are connected: {exc}"
        )
        return digest([*(f"{v.name} {v.type}" for v in outputs[1:]), *sorted(_parts(outputs))])


def _parts(outputs: Iterable[Variable]) -> Iterator[str]:
    """The constants and the kinds of operations of graphs, also of those inside of operations."""
    for variable in ancestors(outputs):
        if isinstance(variable, Constant):
            yield digest(variable.data)
        elif (node := variable.owner) is not None:
            yield type(node.op).__qualname__
            if isinstance(node.op, HasInnerGraph):
                yield from _parts(node.op.fgraph.outputs)
