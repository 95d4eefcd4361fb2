"""Random values that follow from a seed, whatever else runs at the same time."""

from __future__ import annotations

from typing import Any

import numpy as np
from optuna.samplers import RandomSampler


class RandomByNumber(RandomSampler):  # type: ignore[misc]
    """Optuna's RandomSampler, of which each value has a seed of its own.

    The seed of a value follows from the study's, from the number of its trial and from the value's
    name. Optuna's sampler has one sequence for all trials, from which they take turns.
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._seed = seed

    def reseed_rng(self) -> None:
        """Nothing: a worker of a pool, which calls this, draws the same values."""

    def sample_independent(
        self, study: Any, trial: Any, param_name: str, param_distribution: Any
    ) -> Any:
        """See `optuna.samplers.BaseSampler`."""
        words = [self._seed, trial.number, *param_name.encode()]
        own = int(np.random.SeedSequence(words).generate_state(1)[0])
        return RandomSampler(own).sample_independent(study, trial, param_name, param_distribution)
