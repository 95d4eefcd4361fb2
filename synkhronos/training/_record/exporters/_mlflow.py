"""A run of MLflow, which `MLFLOW_TRACKING_URI` says where to keep."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from itertools import batched
from pathlib import Path

from synkhronos._host import files
from synkhronos.training._record.exporters.target import Target, finite, numbers_of
from synkhronos.training._record.run_folder import read_starts

# limits of MLflow's REST API, for one request and for a value
_METRICS, _PARAMS, _LONGEST = 1000, 100, 6000


class MLflowRun(Target):
    """A new run, named after the folder, with the numbers ``KIND/NAME`` and the configuration.

    Its experiment is that of MLFLOW_EXPERIMENT_NAME, or "synkhronos". MLflow keeps every value that
    it gets: after a return to an earlier step, the later ones are there twice.
    """

    def __init__(self, run: Path, folder: Path | None) -> None:
        # here, so that this file can be imported where MLflow, which no extra has, is not installed
        from mlflow.entities import Metric, Param
        from mlflow.tracking import MlflowClient

        self._metric = Metric
        uri = None if folder is None else f"sqlite:///{folder.resolve() / 'mlflow.db'}"
        if folder is not None:
            files.make_folder(folder)
        self._client = MlflowClient(tracking_uri=uri)
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "synkhronos")
        found = self._client.get_experiment_by_name(name)
        number = self._client.create_experiment(name) if found is None else found.experiment_id
        tags = {"synkhronos.folder": str(run.resolve())}
        made = self._client.create_run(number, tags=tags, run_name=run.resolve().name)
        self._id = made.info.run_id
        starts = read_starts(run)
        config = starts[-1].get("config") if starts else None
        params = [
            Param(_name(str(key)), str(value)[:_LONGEST])
            for key, value in (config.items() if isinstance(config, dict) else ())
        ]
        for some in batched(params, _PARAMS):
            self._client.log_batch(self._id, params=some)
        self._step = 0.0

    @property
    def place(self) -> str:
        return f"run {self._id} of MLflow"

    def take(self, lines: Sequence[Mapping[str, object]]) -> None:
        found = []
        for line in lines:
            self._step = finite(line.get("step"), self._step)
            when = int(1000 * finite(line.get("time"), 0.0))  # milliseconds
            found += [
                self._metric(_name(f"{line.get('kind')}/{name}"), value, when, int(self._step))
                for name, value in numbers_of(line).items()
            ]
        for some in batched(found, _METRICS):
            self._client.log_batch(self._id, metrics=some)

    def close(self, ended: bool) -> None:
        self._client.set_terminated(self._id, "FINISHED" if ended else "FAILED")


def _name(text: str) -> str:
    """A name that MLflow takes."""
    return re.sub(r"[^\w\-. /]", "_", text)
