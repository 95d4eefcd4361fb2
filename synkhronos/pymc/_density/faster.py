"""A model whose log-density is computed faster, in whatever samples it."""

from __future__ import annotations

import pytensor.tensor as pt
from pymc import Model
from pytensor.graph.traversal import toposort
from pytensor.scan.op import Scan
from pytensor.tensor import TensorVariable

from synkhronos._compiling.lean.mode import without_c
from synkhronos._compiling.progress import telling
from synkhronos._compiling.traces import untraced
from synkhronos._warnings import log
from synkhronos.pymc._density.density import AsInGroups, density
from synkhronos.pymc._density.divided import Divided, Marked, Replaced
from synkhronos.pymc._density.faults import FaultError
from synkhronos.pymc._density.gain import with_gain
from synkhronos.pymc._density.likelihood import Likelihood, tell_forms
from synkhronos.pymc._density.normals import with_normals
from synkhronos.pymc._density.proof import prove
from synkhronos.pymc._density.serial import DataInGraph, InProcess, sources_of
from synkhronos.pymc._reading.reading import Reading


def mark(model: Model, graph: TensorVariable) -> bool:
    """Let functions of a model with this log-density be compiled as those of groups, if that pays.

    It pays for loops over time, and for multivariate normals whose gradient has a closed form.
    Returns whether it has any.
    """
    loops = any(isinstance(node.op, Scan) for node in toposort([graph]))
    normals = with_normals(graph, model.value_vars) is not graph
    if loops:
        log.info("its loops over time are compiled anew")
    if normals:
        log.info("the gradient of a multivariate normal has a closed form")
    if loops or normals:
        Replaced(model).replace(Marked(model, AsInGroups()))
    return loops or normals


class Faster(Replaced):
    """A model with a faster log-density, until `close`."""

    def __init__(
        self, model: Model, reading: Reading, settable: bool = False, repeated: bool = True
    ) -> None:
        super().__init__(model)
        self._repeated = repeated  # as for `fast`
        # whether the log-density follows data that the user sets. If not, data are constants
        self._settable = settable
        with telling(f"proving {', '.join(reading.names)}"), untraced(), without_c("NUMBA"):
            reading = with_gain(reading, repeated, settable)
            value = self._value_of(reading)
        # who samples without a copy compiles as groups do
        plain = settable and not reading.terms
        if not (plain and mark(model, reading.sum_of(reading.factors))):
            self.replace(Divided(model, reading, value, self._value_of, lasting=settable))

    def _value_of(self, reading: Reading) -> TensorVariable:
        """The log-density of these terms' variables, proved; of no terms it is 0."""
        if not reading.terms:
            return pt.constant(0.0)
        likelihood = Likelihood(reading, self._repeated)
        tell_forms(likelihood)
        data = DataInGraph(likelihood, self._settable)
        found = prove(reading, InProcess(likelihood, data))
        if found is not None:
            raise FaultError(
                f"the faster log-density of {', '.join(reading.names)} is not the plain one: "
                f"{found}. The model has not been changed; please report this"
            )
        value = density(likelihood, data.variables, sources_of(likelihood))[0]
        value = value if data.valid is None else value * data.valid
        rests = list(reading.rests.values())
        return pt.add(value, *rests) if rests else value
