"""Outputs as the user asked for them, made from the values that the members computed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from synkhronos._checks import is_integer, shown
from synkhronos._engine.function_plan import Plan
from synkhronos._errors import InputError, InputTypeError
from synkhronos._proofs.reductions import Reduction


class Outputs:
    """The outputs of a plan: selects, finishes and structures them.

    Only the first `n` belong to the user (None: all). Calls compute the others too.
    """

    def __init__(self, plan: Plan, n: int | None, what: str) -> None:
        self._outputs = plan.outputs[:n]
        self._keys = plan.keys
        self._form = plan.structure
        self._what = what
        self.all = tuple(range(len(self._outputs)))  # the indices of the user's outputs
        # the recipe's outputs for the others; their values stay in the members
        self.kept = () if n is None else tuple([o.partials[0] for o in plan.outputs[n:]])
        # the computed values are the user's, one by one
        self._in_order = [o.partials for o in self._outputs] == [(i,) for i in self.all]
        self._finishing = any(o.finish is not None for o in self._outputs)

    def modes(self) -> object:
        """The reduction of each output, in the structure of the outputs."""
        return self.structured([mode_name(o.mode, o.finish) for o in self._outputs])

    def subset(self, wanted: Sequence[object] | None) -> tuple[int, ...]:
        """The indices of the outputs that the user names by index or key; None: all."""
        n = len(self._outputs)
        if wanted is None:
            return self.all
        if isinstance(wanted, str) or not isinstance(wanted, Iterable):
            raise InputTypeError(
                f"{self._what}: output_subset={shown(wanted)} is not a list of outputs; give "
                f"[{shown(wanted)}]"
            )
        found = []
        for one in wanted:
            if isinstance(one, str) and one in self._keys:
                found.append(self._keys.index(one))
            elif is_integer(one) and -n <= one < n:
                found.append(int(one) % n)
            else:
                raise InputError(f"{self._what} has {n} outputs; output_subset names {shown(one)}")
        return tuple(found)

    def partials(self, subset: tuple[int, ...]) -> tuple[int, ...]:
        """The recipe's outputs that these need."""
        return tuple(sorted({p for i in subset for p in self._outputs[i].partials}))

    def finishing(
        self, computed: tuple[int, ...], subset: tuple[int, ...]
    ) -> Callable[[list[object]], list[object]] | None:
        """A function that makes outputs of the reduced values; None: `chosen` is enough."""
        if not self._finishing:
            return None
        return lambda values: self._finished(computed, subset, values)

    def _finished(
        self, computed: tuple[int, ...], subset: tuple[int, ...], values: list[object]
    ) -> list[object]:
        at = dict(zip(computed, values, strict=True))
        found = []
        for i in subset:
            output = self._outputs[i]
            reduced = [at[p] for p in output.partials]
            found.append(reduced[0] if output.finish is None else output.finish(reduced))
        return _distinct(found)

    def chosen(
        self, computed: tuple[int, ...], subset: tuple[int, ...], values: list[object]
    ) -> list[object]:
        """The values of the wanted outputs; only where `finishing` is None."""
        if subset is self.all and self._in_order:
            return values
        at = computed.index
        return _distinct([values[at(self._outputs[i].partials[0])] for i in subset])

    def structured(self, values: list[object], subset: tuple[int, ...] | None = None) -> object:
        """The values as the outputs were given: one, a list, a dict."""
        whole = subset is None or subset is self.all
        if self._form == "single" and whole:
            return values[0]
        if self._form == "dict":
            numbers = self.all if subset is None else subset
            return {self._keys[i]: v for i, v in zip(numbers, values, strict=True)}
        return values


def _distinct(values: list[object]) -> list[object]:
    """Copies where one array is returned for several outputs: the user may write into each."""
    seen: set[int] = set()
    found = []
    for value in values:
        again = id(value) in seen and isinstance(value, np.ndarray)
        found.append(np.array(value) if again else value)
        seen.add(id(value))
    return found


def mode_name(op: Reduction | None, finish: object) -> str | None:
    """The name of a reduction for the user."""
    if finish is not None:
        return "inferred"
    return None if op is None else str(op)
