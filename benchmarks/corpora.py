"""Two public collections of PyMC models, read from folders as they are.

posteriordb has PyMC models, Stan programs of the same models, data, and reference draws of some
(`models/pymc`, `models/stan`, `data`, `reference_posteriors`). pymc-model-catalogue has PyMC models
with their data (`models`, and `models_discrete` whose parameters are partly discrete).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pymc_catalogue import data_of
from pymc_metric import references

POSTERIORDB, CATALOGUE = "posteriordb", "catalogue"


@dataclass(frozen=True)
class Entry:
    """A model of a collection.

    Attributes
    ----------
    corpus : str
    path : Path
        The file that makes the PyMC model.
    """

    corpus: str
    path: Path

    @property
    def name(self) -> str:
        return self.path.stem

    @property
    def stan(self) -> Path | None:
        """The Stan program of the same model."""
        file = self.path.parents[1] / "stan" / f"{self.name}.stan"
        return file if self.corpus == POSTERIORDB and file.exists() else None

    def data(self) -> Any:
        """The data of the Stan program, and of the PyMC model."""
        return data_of(self.path)

    def references(self) -> dict[str, list[float]]:
        """Means of the reference draws by parameter, and their standard errors; empty if none."""
        if self.corpus != POSTERIORDB:
            return {}
        return references(self.name, str(self.path.parents[2]))


def entries(posteriordb: Path | None, catalogue: Path | None) -> list[Entry]:
    """The models of both collections.

    Raises
    ------
    SystemExit
        A folder has no such models.
    """
    found: list[Entry] = []
    if posteriordb is not None:
        inner = posteriordb / "posterior_database"
        base = inner if inner.is_dir() else posteriordb
        found += _files(POSTERIORDB, base / "models" / "pymc")
    if catalogue is not None:
        found += _files(CATALOGUE, catalogue / "models")
        discrete = catalogue / "models_discrete"
        found += _files(CATALOGUE, discrete) if discrete.is_dir() else []
    return found


def _files(corpus: str, folder: Path) -> list[Entry]:
    files = sorted(file for file in folder.glob("*.py") if not file.name.startswith("_"))
    if not files:
        raise SystemExit(f"--{corpus}: there are no PyMC models in {folder}")
    return [Entry(corpus, file) for file in files]
