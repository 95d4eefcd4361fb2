"""Blocks of draws by nutpie, with a metric, a step size and a position that are given.

nutpie (0.16) adapts all three itself, and has no argument for a metric or a position. But a run of
it with one tuning draw adapts nothing: its metric follows from the first gradient, its position
from the function of initial points, and its step size can be fixed. So a block samples standardised
points (`AffineMap`) whose first gradient is ones, which gives the identity as their metric.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import importlib
import json
from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np

from synkhronos._errors import InputError
from synkhronos._libraries.nutpie import NUTPIE
from synkhronos.pymc._chains.blocks import TEXT, Block
from synkhronos.pymc._density.adaptation import STUCK
from synkhronos.pymc._density.metric import DIAG, LOW_RANK

POSTERIOR, STATISTICS, UNCONSTRAINED = "posterior", "sample_stats", "unconstrained_posterior"
_OF_MAPS = "synkhronos._compiling.lean.standardised"  # it imports numba
_ADAPTATIONS = (DIAG, "draw_diag", LOW_RANK)
# the statistics that nutpie gives for a setting, as in its own trees
_FOR_SETTINGS = {
    "store_gradient": ("gradient",),
    "store_unconstrained": ("unconstrained_draw",),
    "store_mass_matrix": ("mass_matrix_inv", "mass_matrix_eigvals", "mass_matrix_stds"),
    "store_divergences": (
        *("divergence_start", "divergence_end", "divergence_momentum"),
        "divergence_start_gradient",
    ),
    "store_transformed": ("transformed_position", "transformed_gradient", "transformation_mu"),
}
_SCALES, _STDS = "mass_matrix_inv", "mass_matrix_stds"  # both are standard deviations
_EMPTY = {"f": np.nan, "O": None, "b": False, "i": 0, "u": 0}
_STATE = "unconstrained_draw"
_POSITIONS = (_STATE, "divergence_start", "divergence_end")
_GRADIENTS = ("gradient", "divergence_start_gradient")
# of updates of the metric, which draws have none of; and a distance to the centre that nutpie chose
_OF_ADAPTATION = (
    *("transformation_update_id", "transformation_mu", "num_eigenvalues", "fisher_distance"),
    *("mass_matrix_inv", "mass_matrix_eigvals", "mass_matrix_stds"),
)
_RANK_TOLERANCE = 1e-9  # of a correction, by the largest coordinate of a standardised point
_LEAST_FACTOR = -1 + 1e-6  # at -1 a direction would vanish

# starts a sampler of nutpie, and returns its result
type Runner = Callable[[Callable[..., Any]], Any]


class Kernel:
    """A compiled model of nutpie and its settings.

    Parameters
    ----------
    sample : callable
        `nutpie.sample`.
    compiled : nutpie.CompiledPyMCModel
    settings : mapping
        Arguments of `nutpie.sample`, without those of one run.
    chosen : bool
        Whether the metric was chosen for the model: then diag tunes a chain that low_rank has left
        stuck.

    Attributes
    ----------
    stuck : int
        The chains that diag has tuned instead.

    Raises
    ------
    InputError
        It adapts something else than a diagonal metric or one of low rank, or is compiled by JAX.
    """

    def __init__(
        self,
        sample: Callable[..., Any],
        compiled: Any,
        settings: Mapping[str, Any],
        chosen: bool = False,
    ) -> None:
        asked = settings.get("adaptation", "diag")
        if settings.get("sampler", "nuts") != "nuts" or asked not in _ADAPTATIONS:
            raise InputError(
                f"folder=: a run goes on with the metrics of {', '.join(_ADAPTATIONS)} by NUTS, "
                f"not with nuts={dict(settings)}: leave folder out, or use one of these"
            )
        if not hasattr(compiled, "compiled_logp_func"):
            raise InputError(
                "folder=: the model is compiled by JAX, and a run goes on with numba's code only: "
                'leave folder out, or use backend="numba"'
            )
        self._sample, self._compiled, self._settings = sample, compiled, dict(settings)
        self._low_rank, self._chosen = asked == LOW_RANK, chosen
        self.stuck = 0
        self._unasked = {
            name
            for setting, names in _FOR_SETTINGS.items()
            for name in ([] if settings.get(setting) else names)
        }

    def tuned(self, tune: int, seed: int, run: Runner) -> Block:
        """The draws of the tuning, and the position, the step size and the metric at its end."""
        settings = {**self._settings, "store_mass_matrix": True, "store_unconstrained": True}
        settings["store_transformed"] = self._low_rank
        found, metric = self._sampled(self._compiled, settings, 0, tune, seed, run), _diagonal
        if self._low_rank and not (self._chosen and _is_stuck(found)):
            metric = _low_rank
        elif self._low_rank:
            self.stuck += 1
            settings |= {"adaptation": DIAG, "store_transformed": False}
            found = self._sampled(self._compiled, settings, 0, tune, seed, run).as_of(found)
        state = {
            "position": found.stat(_STATE)[-1].copy(),
            "step_size": np.array(found.stat("step_size_bar")[-1]),
            "updates": np.array(found.stat("transformation_index")[-1]),
            **metric(found),
        }
        return self._block(found, state)

    def drawn(
        self,
        after: Mapping[str, np.ndarray],
        tuned: Mapping[str, np.ndarray],
        place: range,
        seed: int,
        run: Runner,
    ) -> Block:
        """The draws of these numbers, counted with those that tune.

        They begin at the state `after`, with what the tuning has found.
        """
        of_maps: Any = importlib.import_module(_OF_MAPS)
        parts = tuned["scales"], tuned["directions"], tuned["factors"]
        by = of_maps.AffineMap(after["position"], *parts)
        compiled = self._compiled
        record = of_maps.StandardisedRecord(
            compiled.compiled_logp_func.address,
            compiled.compiled_expand_func.address,
            compiled.user_data.ctypes.data,
            by,
        )
        log_density, expansion = of_maps.functions()

        def start(_: object) -> np.ndarray:
            record.begin()
            return np.zeros(len(by.centre))

        standardised = dataclasses.replace(
            compiled,
            compiled_logp_func=log_density,
            compiled_expand_func=expansion,
            user_data=record.words,
            initial_point_func=start,
        )
        step_size = repr(float(tuned["step_size"]))
        settings = {**self._settings, "step_size_adapt_method": step_size}
        settings["store_unconstrained"] = True
        unused = self._unasked - {_STATE}
        found = self._sampled(standardised, settings, len(place) - 1, 1, seed, run, unused)
        for names, by_map in ((_POSITIONS, by.points), (_GRADIENTS, by.gradients)):
            for name in names:
                if (values := found.columns.get(f"{STATISTICS}/{name}")) is not None:
                    values[:] = by_map(values)
        for name in _OF_ADAPTATION:
            if (values := found.columns.get(f"{STATISTICS}/{name}")) is not None:
                values[:] = np.nan if values.dtype.kind == "f" else 0
        found.stat("tuning")[:] = False
        found.stat("transformation_index")[:] = tuned["updates"]
        found.stat("divergence_draw")[found.stat("diverging")] += np.uint64(place.start)
        return self._block(found, {"position": found.stat(_STATE)[-1].copy()})

    def attributes(self, draws: int, tune: int, chains: int, seed: int) -> dict[str, str]:
        """Those of the statistics in nutpie's trees."""
        kinds = NUTPIE.get("PyNutsSettings")
        found = (kinds.LowRank if self._low_rank else kinds.Diag)(seed % 2**64)
        asked = {k: v for k, v in self._settings.items() if k not in ("adaptation", "sampler")}
        if self._settings.get("adaptation") == "draw_diag":
            asked["use_grad_based_mass_matrix"] = False
        found.update({**asked, "num_tune": tune, "num_draws": draws, "num_chains": chains})
        return {
            "inference_library": "nutpie",
            "inference_library_version": importlib.import_module("nutpie").__version__,
            "inference_library_settings": json.dumps(found.as_dict()),
        }

    def _sampled(
        self,
        compiled: Any,
        settings: Mapping[str, Any],
        draws: int,
        tune: int,
        seed: int,
        run: Runner,
        unused: Collection[str] = (),  # statistics
    ) -> _Columns:
        start = functools.partial(
            self._sample,
            compiled,
            **settings,
            draws=draws,
            tune=tune,
            chains=1,
            cores=1,
            seed=seed,
            progress_bar=False,
            blocking=False,
            return_raw_trace=True,
        )
        [variables], [statistics] = run(start).get_arrow_trace()
        unconstrained = set(compiled.reparameterized_names or ())
        return _Columns(variables, statistics, unconstrained, unused)

    def _block(self, found: _Columns, state: Mapping[str, np.ndarray]) -> Block:
        """The columns that nutpie's trees have with these settings, as records."""
        columns = {
            field: values
            for field, values in found.columns.items()
            if field.partition("/")[2] not in self._unasked or not field.startswith(STATISTICS)
        }
        if not self._settings.get("store_unconstrained"):
            columns = {f: v for f, v in columns.items() if not f.startswith(UNCONSTRAINED)}
        kinds = [
            (field, TEXT if values.dtype == object else values.dtype, values.shape[1:])
            for field, values in columns.items()
        ]
        draws, texts = np.zeros(len(found.stat("tuning")), kinds), {}
        for field, values in columns.items():
            if values.dtype == object:
                said = {i: text for i, text in enumerate(values) if isinstance(text, str)}
                texts[field], draws[field] = said, [i in said for i in range(len(values))]
            else:
                draws[field] = values
        return Block(draws, state, texts)


class _Columns:
    """Draws of nutpie: arrays with a row for each, by field."""

    def __init__(
        self,
        variables: Any,
        statistics: Any,
        unconstrained: Collection[str],
        unused: Collection[str] = (),
    ) -> None:
        self.columns: dict[str, np.ndarray] = {}
        add = NUTPIE.get("_add_arrow_data")
        for group, batch, skipped in (
            (POSTERIOR, variables, ()),
            (STATISTICS, statistics, unused),  # without values they would be as long as a draw
        ):
            found: dict[str, np.ndarray] = {}
            add(found, batch.num_rows, batch, 0, 1, {}, skipped)
            for name, values in found.items():
                place = UNCONSTRAINED if group == POSTERIOR and name in unconstrained else group
                self.columns[f"{place}/{name}"] = values[0]

    def as_of(self, other: _Columns) -> _Columns:
        """Draws of diag in the columns of low_rank; what only low_rank has is empty."""
        own = self.columns | {f"{STATISTICS}/{_STDS}": self.stat(_SCALES)}
        found = copy.copy(self)
        found.columns = {
            field: own[field] if field in own else np.full_like(values, _EMPTY[values.dtype.kind])
            for field, values in other.columns.items()
        }
        return found

    def stat(self, name: str) -> np.ndarray:
        """A statistic of the sampler."""
        return self.columns[f"{STATISTICS}/{name}"]


def _is_stuck(tuned: _Columns) -> bool:
    """Whether the chain has no usable step size at the end of its tuning."""
    diverging = tuned.stat("diverging")
    return bool(diverging[-(len(diverging) // 10) :].mean() > STUCK)


def _diagonal(found: _Columns) -> dict[str, np.ndarray]:
    """The latest metric of a tuning."""
    scales = found.columns.get(f"{STATISTICS}/{_STDS}")
    if scales is None:
        scales = found.stat(_SCALES)
    latest = np.flatnonzero(~np.isnan(scales[:, :1]).any(axis=1))[-1]
    length = scales.shape[1]
    return {
        "scales": scales[latest].copy(),
        "directions": np.empty((0, length)),
        "factors": np.empty(0),
    }


def _low_rank(found: _Columns) -> dict[str, np.ndarray]:
    """The same of a metric whose directions nutpie does not tell.

    A point is ``scales * (y + A y)`` and a constant, for nutpie's transformed point `y`: the draws
    since the latest update tell `A`, which is symmetric and of low rank.
    """
    scales = found.stat(_STDS)
    latest = np.flatnonzero(~np.isnan(scales[:, :1]).any(axis=1))[-1]
    scale = scales[latest].copy()
    points = found.stat(_STATE)[latest + 1 :] / scale
    moved = found.stat("transformed_position")[latest + 1 :]
    if len(points):
        points, moved = points - points.mean(axis=0), moved - moved.mean(axis=0)
    _, sizes, rows = np.linalg.svd(points - moved, full_matrices=False)
    rows = rows[sizes > _RANK_TOLERANCE * np.abs(points).max(initial=0)]
    inner, *_ = np.linalg.lstsq(moved @ rows.T, (points - moved) @ rows.T)
    factors, turned = np.linalg.eigh((inner + inner.T) / 2)
    usable = factors > _LEAST_FACTOR
    return {"scales": scale, "directions": (turned.T @ rows)[usable], "factors": factors[usable]}
