"""Values of variables at divergences, and at all draws."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pytensor
import pytensor.tensor as pt
from pymc import Model
from pytensor.graph.replace import vectorize_graph
from pytensor.graph.traversal import ancestors
from pytensor.tensor.variable import TensorVariable as Tensor
from xarray import DataArray, DataTree

from synkhronos._errors import InputError

# numbers of a graph, in all and at once: for a scale of each row of data they may be very many
_MOST_NUMBERS, _BLOCK = 100_000_000, 1_000_000

Pick = Callable[[np.ndarray], np.ndarray]  # a number for each point, of its columns
_DIMS = ("chain", "draw")
_STORED, _NAMES = "divergence_start", "unconstrained_parameter"  # of nutpie


@dataclass(frozen=True)
class Positions:
    """Values of a model's free variables.

    At a divergence they are those from which the diverging step began, if nutpie has stored them.
    Else they are those of the draw, which is another point of the same trajectory.
    """

    diverging: np.ndarray  # of each draw, chain after chain
    stored: bool
    draws: Mapping[Tensor, np.ndarray]  # of shape (draws, ...)
    divergences: Mapping[Tensor, np.ndarray]  # of shape (divergences, ...)
    labels: Mapping[Tensor, list[str]]  # of the elements of each variable

    @staticmethod
    def of(tree: DataTree, model: Model) -> Positions:
        """Read the positions from the result of a sampler.

        Raises
        ------
        InputError
            It has no draws of this model, or does not tell which ones diverged.
        """
        found = {name: tree.get(name) for name in ("posterior", "sample_stats")}
        if found["posterior"] is None or "diverging" not in (found["sample_stats"] or ()):
            raise InputError(
                "explain_divergences: the tree needs a posterior, and sample_stats with "
                f"'diverging'; it has {sorted(tree.children)}. Sample by NUTS"
            )
        arrays = {
            rv: found["posterior"][rv.name].transpose(*_DIMS, ...)
            for rv in model.free_RVs
            if rv.name in found["posterior"]
        }
        if not arrays:
            raise InputError(
                "explain_divergences: the posterior has no variable of the model, which has "
                f"{[rv.name for rv in model.free_RVs]}: give the model that was sampled"
            )
        stats = found["sample_stats"].dataset
        diverging = _by_draw(stats["diverging"].transpose(*_DIMS, ...).values)
        diverging = diverging.reshape(len(diverging), -1).astype(bool).any(1)  # of any step method
        draws = {rv: _by_draw(values.values) for rv, values in arrays.items()}
        whole = np.ones(len(diverging), bool)  # an interrupted chain ends with NaN
        for values in draws.values():
            whole &= np.isfinite(values.reshape(len(values), -1).astype(float)).all(1)
        points = {rv: values[diverging & whole] for rv, values in draws.items()}
        known = {_STORED, _NAMES} <= set(stats.variables) and (diverging & whole).any()
        stored = _stored(stats, diverging & whole, model) if known else None
        return Positions(
            diverging[whole],
            stored is not None,
            {rv: values[whole] for rv, values in draws.items()},
            points if stored is None else {**points, **stored},
            {rv: _labels(values) for rv, values in arrays.items()},
        )

    def of_graph(
        self, values: Sequence[Tensor], picks: Sequence[Pick]
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        """For each pick, a number for all draws and one at divergences, of values of the graph.

        It is empty where all of these values would take long, as with a scale for each row of data.
        """
        found: list[list[np.ndarray]] = []
        for given in (self.draws, self.divergences):
            picked = []
            for block in _blocks(values, given):
                columns = np.concatenate([v.reshape(len(v), -1) for v in block], axis=1)
                if columns.shape[1] * len(self.diverging) > _MOST_NUMBERS:
                    return []
                picked.append([pick(columns) for pick in picks])
            found.append([np.concatenate(each) for each in zip(*picked, strict=True)])
        return list(zip(*found, strict=True))


def _by_draw(values: np.ndarray) -> np.ndarray:
    return values.reshape(-1, *values.shape[2:])


def _labels(values: DataArray) -> list[str]:
    """The elements as users write them: empty for a scalar, else ``[3]`` or ``[Ohio, 2]``."""
    shape, dims = values.shape[2:], values.dims[2:]
    if not shape:
        return [""]
    named = [values[dim].values for dim in dims]
    return [
        f"[{', '.join(str(names[i]) for names, i in zip(named, index, strict=True))}]"
        for index in np.ndindex(*shape)
    ]


def _stored(
    stats: Mapping[str, DataArray], diverging: np.ndarray, model: Model
) -> dict[Tensor, np.ndarray] | None:
    """The values that nutpie has stored; None if its parameters are not those of the model."""
    points = _by_draw(stats[_STORED].values)[diverging]
    places = {str(name): place for place, name in enumerate(stats[_NAMES].values)}
    given: dict[Tensor, np.ndarray] = {}
    starts = model.initial_point()
    for variable in model.value_vars:
        start = starts[variable.name]
        names = [
            "_".join([str(variable.name), *map(str, index)]) for index in np.ndindex(*start.shape)
        ]
        if not all(name in places for name in names):
            return None
        columns = points[:, [places[name] for name in names]]
        given[variable] = columns.reshape(len(points), *start.shape)
    blocks = _blocks(model.replace_rvs_by_values(model.free_RVs), given)
    found = [np.concatenate(each) for each in zip(*blocks, strict=True)]
    return dict(zip(model.free_RVs, found, strict=True))


def _blocks(
    values: Sequence[Tensor], given: Mapping[Tensor, np.ndarray]
) -> Iterator[list[np.ndarray]]:
    """Values of a graph for those of variables in it, some points at a time."""
    used = [v for v in given if v in set(ancestors(values))]
    inputs = [pt.tensor(dtype=v.dtype, shape=(None, *v.type.shape)) for v in used]
    outputs = vectorize_graph(values, replace=dict(zip(used, inputs, strict=True)))
    function = pytensor.function(inputs, outputs, mode="FAST_COMPILE")
    points = [given[v].astype(v.dtype, copy=False) for v in used]
    first, block = 0, 1
    while first < len(points[0]):
        found = function(*[p[first : first + block] for p in points])
        yield found
        first += block
        block = max(1, _BLOCK // sum(v[0].size for v in found))
