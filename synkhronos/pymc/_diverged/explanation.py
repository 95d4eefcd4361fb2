"""`explain_divergences`: which variables divergences come with, and what to try."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from typing import Any

from pymc import Model
from pymc.model import modelcontext
from xarray import DataTree

from synkhronos._api.tables import Table
from synkhronos._compiling.progress import tell
from synkhronos._warnings import log
from synkhronos.pymc._diverged.positions import Positions
from synkhronos.pymc._diverged.quantities import STEP, Quantities
from synkhronos.pymc._diverged.ranks import LEAST_DEVIATION, MOST_CHANCE, Rotations

_FEWEST = 10  # divergences; the mean rank of fewer says little
_MOST_PLACES = 10
_MOST_READ = 4_000_000  # numbers of draws that stay on the disk, in 32 MB


@dataclass(frozen=True)
class Place:
    """Where divergences are, by one quantity.

    Attributes
    ----------
    what : str
        The quantity: a variable, an element of it, or the scale of a variable.
    rank : float
        Its mean rank at divergences among all draws: 0 is the smallest, 1 the largest.
    chance : float
        The probability that divergences at random times had such a rank of any quantity.
    names : tuple of str
        The variables of the model that it is computed from.
    advice : str
        What to try.
    """

    what: str
    rank: float
    chance: float
    names: tuple[str, ...]
    advice: str
    weight: int  # of two that are about the same variables, the heavier one explains more

    @property
    def deviation(self) -> float:
        """Of the rank, from that of a quantity that has nothing to do with divergences."""
        return abs(self.rank - 0.5)

    @property
    def side(self) -> str:
        """Where most divergences are."""
        return "low" if self.rank < 0.5 else "high"


@dataclass(frozen=True, repr=False)
class Divergences:
    """The result of `explain_divergences`; `str` and `show` format it as a table.

    Attributes
    ----------
    count, draws : int
        The numbers of divergences and of draws.
    stored : bool
        Whether the positions are those that nutpie has stored, and not those of draws.
    places : tuple of Place
        Where divergences are, most telling first: ``what``, ``rank``, ``chance``, ``names`` and
        ``advice`` of each.

    Examples
    --------
    >>> from synkhronos.pymc import Divergences
    >>> Divergences(3, 4000, False, ()).said
    '3 divergences in 4,000 draws are too few to tell what they come with'
    """

    count: int
    draws: int
    stored: bool
    places: tuple[Place, ...]

    @property
    def are_few(self) -> bool:
        """Whether there are too few to tell anything from them."""
        return self.count < _FEWEST

    @property
    def said(self) -> str:
        """One sentence: the variables that divergences come with, and what to try."""
        count = f"{self.count:,} divergence{'s' * (self.count != 1)}"
        if not self.count:
            return "no draw diverged"
        if self.are_few:
            are = "is" if self.count == 1 else "are"
            return f"{count} in {self.draws:,} draws {are} too few to tell what they come with"
        if not self.places:
            precise = 'nuts={"store_divergences": True} stores where they begin'
            also = "" if self.stored else f"; {precise}"
            return f"{count} come with no variable in particular: {STEP}{also}"
        first = self.places[0]
        return f"{count} come with {first.side} values of {first.what}: {first.advice}"

    def _table(self) -> Table:
        rows = [(p.what, p.side, f"{p.rank:.2f}", f"{p.chance:.3f}", p.advice) for p in self.places]
        positions = "positions that nutpie has stored" if self.stored else "draws that diverged"
        headline = f"{self.count:,} of {self.draws:,} draws diverged; by the {positions}"
        columns = "quantity", "where", "mean rank", "by chance", "what to try"
        return Table(headline, columns, rows, f"{self.said[0].upper()}{self.said[1:]}.")

    def __str__(self) -> str:
        return str(self._table()) if self.places else self.said

    __repr__ = __str__

    def show(self) -> None:
        """Print the table: with rich at a terminal if it is installed, else as plain lines."""
        if self.places:
            self._table().show()
        else:
            sys.stdout.write(f"{self}\n")


def explain_divergences(idata: DataTree, model: Model | None = None) -> Divergences:
    """Which variables the divergences of a run come with, and what to try.

    `sample` tells the first place in one line, if there are at least 10 divergences.

    A quantity is a variable, one of its elements, or the scale of a variable. The model's graph
    tells the scales: that of ``theta = pm.Normal("theta", mu, tau)`` is tau. A quantity is named if
    divergences are where it is small, or where it is large, and not by chance.

    Parameters
    ----------
    idata : DataTree
        Has the groups ``posterior``, and ``sample_stats`` with ``diverging``: from `sample`,
        `pm.sample`, nutpie, numpyro or blackjax.
    model : pymc.Model, optional
        Its model. Default: that of the current context.

    Returns
    -------
    Divergences
        `show` prints its table.

    Raises
    ------
    InputError
        The tree does not tell which draws diverged, or has no variable of the model.

    Notes
    -----
    A draw that diverged is not where its trajectory diverged, though near it. nutpie stores that
    place with ``nuts={"store_divergences": True}``, and then it is used. The tree then takes five
    times the memory, and the process still more while it samples.

    The mean rank at divergences is compared with those of all rotations of the divergences along
    the draws. The largest deviation of all quantities counts, so that many variables find no more
    by chance (Westfall and Young, Resampling-Based Multiple Testing, 1993). Ranks are the same for
    a scale and its logarithm. The advice follows Betancourt and Girolami (2013, arXiv:1312.0906).

    Cost: about a second at most for two million numbers; of larger posteriors, some elements of
    the variables are taken.

    Examples
    --------
    >>> import numpy as np, pymc as pm, xarray as xr, synkhronos as synk
    >>> with pm.Model() as model:
    ...     tau = pm.HalfNormal("tau")
    ...     theta = pm.Normal("theta", 0, tau, shape=2)
    >>> rng = np.random.default_rng(0)
    >>> scale = abs(rng.normal(size=(4, 250)))
    >>> points = scale[..., None] * rng.normal(size=(4, 250, 2))
    >>> draws = {"tau": (("chain", "draw"), scale), "theta": (("chain", "draw", "i"), points)}
    >>> stats = {"diverging": (("chain", "draw"), scale < 0.05)}
    >>> groups = {"posterior": xr.Dataset(draws), "sample_stats": xr.Dataset(stats)}
    >>> found = synk.pymc.explain_divergences(xr.DataTree.from_dict(groups), model)
    >>> found.places[0].what, found.places[0].advice
    ('the scale of theta (tau)', 'non-centre theta, or give tau a prior that excludes 0')
    """
    return explained(idata, modelcontext(model))


def tell_of_divergences(result: Any, model: Model, count: int, on_disk: bool = False) -> None:
    """Tell in one line what the divergences of a sampler's result come with, if there are enough.

    Of draws that are on the disk, a bounded number is read. Nothing is raised: it would lose the
    draws.
    """
    try:
        if count >= _FEWEST:
            found = explained(_spaced(result, model) if on_disk else result, model)
            if not found.are_few:
                said = replace(found, count=count).said
                tell(f"{said} (see synk.pymc.explain_divergences)")
            elif on_disk:
                tell(f"{count:,} draws diverge: synk.pymc.explain_divergences reads all of them")
    except Exception:
        log.debug("divergences are not explained", exc_info=True)


def _spaced(tree: DataTree, model: Model) -> DataTree:
    """Evenly spaced draws of a tree: divergences among them are a fair share of all."""
    posterior = tree["posterior"]
    numbers = sum(posterior[v.name].size for v in model.free_RVs if v.name in posterior)
    every = slice(None, None, max(1, -(-numbers // _MOST_READ)))
    groups = {name: tree[name].to_dataset() for name in ("posterior", "sample_stats")}
    return DataTree.from_dict({name: group.isel(draw=every) for name, group in groups.items()})


def explained(tree: DataTree, model: Model) -> Divergences:
    """Where the divergences of a tree are."""
    positions = Positions.of(tree, model)
    count, draws = int(positions.diverging.sum()), len(positions.diverging)
    places: list[Place] = []
    if _FEWEST <= count < draws:
        # scales apart: they are few, and theory expects divergences at small ones
        rotations = {is_scale: Rotations(positions.diverging) for is_scale in (True, False)}
        quantities = Quantities(positions, model)
        means = [(q, rotations[q.weight > 0].add(q.ranks)) for q in quantities]
        found = [(q, mean) for q, mean in means if abs(mean - 0.5) >= LEAST_DEVIATION]
        places = [
            Place(q.what, mean, chance, q.names, q.advice(mean < 0.5), q.weight)
            for q, mean in found
            if (chance := rotations[q.weight > 0].chance(mean)) <= MOST_CHANCE
        ]
    return Divergences(count, draws, positions.stored, tuple(_ordered(places)[:_MOST_PLACES]))


def _ordered(places: list[Place]) -> list[Place]:
    """By their deviations, but a scale comes first if the first place is of one of its variables.

    Places of the variables of scales are left out where they advise nothing of their own.
    """
    places = sorted(places, key=lambda place: (place.deviation, place.weight), reverse=True)
    related = [p for p in places if set(p.names) & set(places[0].names)]
    first = max(related, key=lambda place: place.weight, default=None)
    scaled = {name for place in places if place.weight for name in place.names}
    return [p for p in places if p is first] + [
        p for p in places if p is not first and not (p.advice == STEP and scaled >= set(p.names))
    ]
