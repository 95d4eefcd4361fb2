"""Initial values of a model: PyMC refuses to copy a model that has some."""

from __future__ import annotations

from pymc import Model
from pytensor.graph.basic import Constant, Variable


def without_initial_values(model: Model) -> Model:
    """The same variables, as another model without initial values: for copies that need none.

    The model itself is not changed, since a sampler may read it in another thread.
    """
    found: Model = object.__new__(type(model))
    vars(found).update(
        vars(model), rvs_to_initial_values=dict.fromkeys(model.rvs_to_initial_values)
    )
    return found


def initial_values_of(model: Model) -> dict[str, object]:
    """The initial values that a copy of the model can have, by the names of variables.

    Raises
    ------
    NotImplementedError
        One is computed from variables of the model.
    """
    found = {rv.name: v for rv, v in model.rvs_to_initial_values.items() if v is not None}
    for name, value in found.items():
        if isinstance(value, Variable) and not isinstance(value, Constant):
            raise NotImplementedError(f"the initial value of {name} is computed from the model")
    return found
