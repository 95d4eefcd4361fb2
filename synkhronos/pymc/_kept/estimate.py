"""The estimate by which `sample` chooses a way: a model that is kept is not read for it.

To import what reads a model takes longer than to load what is kept of it.
"""

from __future__ import annotations

from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any

from pymc import Model

from synkhronos._compiling.traces import untraced
from synkhronos._errors import InputError
from synkhronos.pymc._kept.models import KeptModel
from synkhronos.pymc._reading.declared import Declared
from synkhronos.pymc._reading.models import length_of

if TYPE_CHECKING:
    from synkhronos.pymc._reading.reading import Reading


class Estimate:
    """The rows of a model, and about the seconds of one gradient.

    Raises
    ------
    InputError
        Nothing can be divided, with the reasons.
    """

    rows: int
    seconds: float

    def __init__(
        self, model: Model, dim: str | None, declared: Declared, kept: KeptModel | None = None
    ) -> None:
        self._model, self._asked, self._kept = model, (dim, declared), kept
        # the model was read with these
        self.options = dim, declared.kinds, declared.names, _dims(model, dim)
        known = kept and kept.recall("estimate", *self.options)
        refused, self.rows, self.seconds = known or self._read()
        if kept and not known:
            kept.note((refused, self.rows, self.seconds), "estimate", *self.options)
        if refused:
            raise InputError(refused)

    @cached_property
    def reading(self) -> Reading:
        """The terms and the rest. The model is read now if it was known before."""
        reading: Any = import_module("synkhronos.pymc._reading.reading")
        known = self._kept and self._kept.graphs.terms
        with untraced():
            found: Reading = reading.read(self._model, *self._asked, known)
        return found

    def _read(self) -> tuple[str, int, float]:
        try:
            terms = self.reading.terms
        except InputError as exc:
            return str(exc), 0, 0.0
        estimate: Any = import_module("synkhronos.pymc._density.estimate")
        return "", sum(term.rows for term in terms), estimate.gradient_seconds(self.reading)


def _dims(model: Model, dim: str | None) -> object:
    """All that names of dimensions say of the rows; log-densities and data are without them."""
    if dim is None:
        return None
    lengths = {name: length_of(model, name) for name in model.dim_lengths}
    return lengths, dict(model.named_vars_to_dims)
