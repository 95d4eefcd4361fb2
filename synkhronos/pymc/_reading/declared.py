"""The argument `row_wise`: what the user declares of operations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pymc import Model
from pytensor.graph.op import Op

from synkhronos._checks import shown
from synkhronos._errors import InputError, InputTypeError


@dataclass(frozen=True)
class Declared:
    """The operations that keep rows apart, as the user declares."""

    kinds: tuple[type[Op], ...] = ()  # classes of operations
    # observed variables and Potentials, with all operations of their log-densities
    names: frozenset[str] = frozenset()

    @staticmethod
    def of(model: Model, row_wise: Sequence[object]) -> Declared:
        """The declaration of the argument `row_wise`.

        Raises
        ------
        InputError, InputTypeError
            An entry is neither a class nor a name.
        """
        if isinstance(row_wise, str) or not isinstance(row_wise, Sequence):
            raise InputTypeError(
                f"row_wise={shown(row_wise)}: give a list of classes of operations, or of names of "
                "observed variables and Potentials"
            )
        known = [variable.name for variable in (*model.observed_RVs, *model.potentials)]
        kinds: list[type[Op]] = []
        names: list[str] = []
        for entry in row_wise:
            if isinstance(entry, type) and issubclass(entry, Op):
                kinds.append(entry)
            elif isinstance(entry, str) and entry in known:
                names.append(entry)
            else:
                raise InputError(
                    f"row_wise: {shown(entry)} is neither the class of an operation nor one of the "
                    f"observed variables and Potentials ({', '.join(known)})"
                )
        return Declared(tuple(kinds), frozenset(names))
