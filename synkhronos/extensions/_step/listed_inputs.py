"""The inputs with rows of a training function, as its maker takes them."""

from __future__ import annotations

from pytensor.graph.basic import Variable

from synkhronos._checks import shown
from synkhronos._compiling.graph_types import Variables
from synkhronos._errors import InputTypeError


def listed_inputs(what: str, x: Variables, y: Variables | None) -> list[Variable]:
    """Those of x, and then of y, each of which is a variable or a list; raise if one is not."""
    found: list[Variable] = []
    for given in (x, y):
        if given is None:
            continue
        for each in given if isinstance(given, list | tuple) else [given]:
            if not isinstance(each, Variable):
                raise InputTypeError(
                    f"{what}: x and y are variables of the graph, found {shown(each)}: "
                    "pass arrays when you call the training function"
                )
            found.append(each)
    return found
