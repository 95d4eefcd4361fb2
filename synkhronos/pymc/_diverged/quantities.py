"""The quantities at whose small or large values divergences may be, and what to try there."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from pymc import Model
from pymc.distributions.transforms import Interval, LogExpM1, LogOddsTransform, LogTransform
from pytensor.tensor.variable import TensorVariable as Tensor

from synkhronos.pymc._diverged.positions import Pick, Positions
from synkhronos.pymc._diverged.ranks import Ranks
from synkhronos.pymc._diverged.scales import Scale, scales_of

_MOST_NUMBERS = 2_000_000  # that are ranked, in about a second
_NEAR = np.log(2.0)  # so far towards a bound, by the logarithm or the log-odds of the distance
STEP = "try a larger target_accept"


@dataclass(frozen=True)
class Quantity:
    """A number for each draw."""

    what: str
    names: tuple[str, ...]  # of the variables that it is about
    ranks: Ranks
    weight: int  # of two that are about the same variable, the heavier one explains more
    advice: Callable[[bool], str]  # what to try if it is low at divergences, or else high


@dataclass(frozen=True)
class Quantities:
    """Those of a model."""

    positions: Positions
    model: Model

    def __iter__(self) -> Iterator[Quantity]:
        yield from self._variables()
        for scale in scales_of(self.model):
            if set(scale.names) <= {str(rv.name) for rv in self.positions.draws}:
                yield from self._scales(scale)

    def _variables(self) -> Iterator[Quantity]:
        """The elements of each variable, its smallest and its largest."""
        draws, divergences = self.positions.draws, self.positions.divergences
        numbers = sum(values.size for values in draws.values())
        step = -(-numbers // _MOST_NUMBERS)  # of many elements, some
        for rv, values in draws.items():
            labels = self.positions.labels[rv]
            chosen = range(0, len(labels), step)
            found = [v.reshape(len(v), -1)[:, ::step].T for v in (values, divergences[rv])]
            each = [Ranks.of(*columns) for columns in zip(*found, strict=True)]
            picks: list[tuple[str, Ranks, Pick]] = [
                (f"{rv.name}{labels[k]}", ranks, functools.partial(np.take, indices=k, axis=1))
                for k, ranks in zip(chosen, each, strict=True)
            ]
            if len(each) > 1:
                for word, end in (("smallest", np.min), ("largest", np.max)):
                    ends = [
                        end([getattr(r, of) for r in each], 0) for of in ("draws", "divergences")
                    ]
                    pick = functools.partial(end, axis=1)
                    picks.append((f"the {word} {rv.name}", Ranks.of(*ends), pick))
            for what, ranks, pick in picks:
                advice = functools.partial(self._of_variable, rv, pick)
                yield Quantity(what, (str(rv.name),), ranks, 0, advice)

    def _of_variable(self, rv: Tensor, pick: Pick, low: bool) -> str:
        if not (bound := self._bound(rv, low)) or not self._is_near(rv, pick, low):
            return self._lighter((str(rv.name),), low) or STEP
        return f"give {rv.name} a prior that excludes {bound}, or {STEP}"

    def _bound(self, rv: Tensor, low: bool) -> str:
        """The bound of a variable below it, or above; empty if it has none."""
        transform = self.model.rvs_to_transforms[rv]
        if isinstance(transform, LogTransform | LogExpM1):
            return "0" if low else ""
        if isinstance(transform, LogOddsTransform):
            return "0" if low else "1"
        if isinstance(transform, Interval):
            lower, upper = transform.args_fn(*rv.owner.inputs)
            name, bound = ("lower", lower) if low else ("upper", upper)
            return "" if bound is None else f"its {name} bound"
        return ""

    def _is_near(self, rv: Tensor, pick: Pick, low: bool) -> bool:
        """Whether divergences are nearer to a bound than other draws."""
        transform = self.model.rvs_to_transforms[rv]
        free = transform.forward(rv, *rv.owner.inputs)
        found = self.positions.of_graph([free], [pick])
        towards = [np.median(draws) - np.median(divergences) for draws, divergences in found]
        return any((by if low else -by) > _NEAR for by in towards)

    def _scales(self, scale: Scale) -> Iterator[Quantity]:
        """The smallest and the largest scale of the elements of a variable."""
        picks = [functools.partial(end, axis=1) for end in (np.min, np.max)]
        if not (ends := self.positions.of_graph(scale.values, picks)):
            return
        smallest, largest = ends
        is_one = np.array_equal(smallest[0], largest[0])
        found = {"": smallest} if is_one else {"smallest ": smallest, "largest ": largest}
        names = scale.names if scale.observed else (*scale.names, scale.of)
        weight = 1 if scale.observed else 2
        advice = functools.partial(self._of_scale, scale)
        for word, values in found.items():
            kind = "scale" if scale.centred else "factor"
            what = f"the {word}{kind} of {scale.of} ({', '.join(scale.names)})"
            yield Quantity(what, names, Ranks.of(*values), weight, advice)

    def _of_scale(self, scale: Scale, low: bool) -> str:
        lighter = self._lighter(scale.names, low)
        if not scale.centred:
            centre = f"{STEP}, or centre {scale.of} if it is well known from the data"
            return f"{lighter}, or {centre}" if lighter else centre
        if not low:
            return lighter or STEP
        positive = [rv.name for rv in self._named(scale.names) if self._bound(rv, low) == "0"]
        excluding = f"give {' and '.join(positive)} a prior that excludes 0"
        if scale.observed:
            return f"{excluding}, or {STEP}" if positive else STEP
        non_centre = f"non-centre {scale.of}"
        return (
            f"{non_centre}, or {excluding}"
            if len(positive) == len(scale.names) == 1
            else non_centre
        )

    def _lighter(self, names: tuple[str, ...], low: bool) -> str:
        """Advice for positive variables that are too large; empty if there are none."""
        positive = [str(rv.name) for rv in self._named(names) if self._bound(rv, True) == "0"]
        if low or not positive:
            return ""
        return f"give {' and '.join(positive)} a prior with a lighter tail"

    def _named(self, names: tuple[str, ...]) -> list[Tensor]:
        return [rv for rv in self.model.free_RVs if rv.name in names]
