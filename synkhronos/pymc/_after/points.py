"""Draws of a model's variables, as one array for each variable."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pymc as pm
from arviz_base import dict_to_dataset
from pymc import Model
from pymc.backends.arviz import coords_and_dims_for_inferencedata
from pytensor.compile import Function
from xarray import DataArray, Dataset

from synkhronos._errors import InputError
from synkhronos.pymc._reading.bambi import refuse_changed_draws


def names_of(given: str | Iterable[str]) -> list[str]:
    """Names of variables or dimensions; a string is one name.

    >>> names_of("chain"), names_of(("chain", "draw"))
    (['chain'], ['chain', 'draw'])
    """
    return [given] if isinstance(given, str) else list(given)


@dataclass
class Points:
    """Draws of variables."""

    sample_shape: tuple[int, ...]  # the lengths of the dimensions of the draws
    # the coordinates of these dimensions, by name; empty if they have none
    coords: dict[str, DataArray]
    _values: Mapping[str, DataArray | np.ndarray]

    @staticmethod
    def of_dataset(dataset: Dataset, model: Model, sample_dims: Sequence[str]) -> Points:
        """The draws of a model in a group, such as the posterior; values are read when asked for.

        Variables without one of the dimensions are no draws, and left out.
        """
        refuse_changed_draws(dataset, model)
        missing = [dim for dim in sample_dims if dim not in dataset.dims]
        if missing:
            raise InputError(
                f"sample_dims={list(sample_dims)}: the draws have no dimension {missing[0]!r}; "
                f"they have {[str(dim) for dim in dataset.dims]}"
            )
        coords = {dim: dataset[dim] for dim in sample_dims}
        shape = tuple(dataset.sizes[dim] for dim in sample_dims)
        draws = {k: v for k, v in dataset.data_vars.items() if coords.keys() <= set(v.dims)}
        arrays = {str(k): v.transpose(*sample_dims, ...) for k, v in draws.items()}
        return Points(shape, coords, arrays)

    @staticmethod
    def of_list(points: Sequence[Mapping[str, np.ndarray]]) -> Points:
        """The draws of a list of points, which count as one chain."""
        stacked = {name: np.stack([point[name] for point in points])[None] for name in points[0]}
        return Points((1, len(points)), {}, stacked)

    def values(self, name: str, dtype: str) -> np.ndarray:
        """All values of a variable, of shape ``(draws, ...)``."""
        found = np.asarray(self._values[name]).astype(dtype, copy=False)
        return found.reshape((-1, *found.shape[len(self.sample_shape) :]))

    def inputs_of(self, function: Function, names: Sequence[str]) -> list[np.ndarray]:
        """All values of the inputs of a function, which are variables of these names.

        Raises
        ------
        InputError
            A variable is not there, or has another shape: the function would not notice that.
        """
        if missing := [name for name in names if name not in self._values]:
            raise InputError(f"the draws have no variable {missing[0]!r}: {sorted(self._values)}")
        found = []
        for name, variable in zip(names, function.maker.fgraph.inputs[: len(names)], strict=True):
            values = self.values(name, variable.type.dtype)
            _check_shape(name, values.shape[1:], variable.type.shape)
            found.append(values)
        return found

    def dataset(
        self, found: Mapping[str, np.ndarray], model: Model, sample_dims: Sequence[str]
    ) -> Dataset:
        """Values of shape ``(*sample_shape, ...)``, as PyMC labels those of the model."""
        coords, dims = coords_and_dims_for_inferencedata(model)
        return dict_to_dataset(
            dict(found),
            inference_library=pm,
            dims=dims,
            coords={**coords, **self.coords},
            sample_dims=list(sample_dims),
            skip_event_dims=True,
        )

    def shaped(self, name: str) -> np.ndarray:
        """All values of a variable, of shape ``(*sample_shape, ...)``."""
        return np.asarray(self._values[name])


def _check_shape(name: str, found: Sequence[int], wanted: Sequence[int | None]) -> None:
    """Raise if a draw of a variable has not the shape of the model's, where that is known."""
    same = len(found) == len(wanted) and all(
        length in (None, own) for own, length in zip(found, wanted, strict=True)
    )
    if not same:
        own, known = (
            ", ".join("any" if length is None else str(length) for length in shape)
            for shape in (found, wanted)
        )
        raise InputError(
            f"a draw of {name} has the shape ({own}), and in the model it is ({known}): give the "
            "model, with the data and coords, that the draws were made with"
        )
