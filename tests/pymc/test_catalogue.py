"""The benchmark that runs folders of models: each kind of file, and each outcome."""

from __future__ import annotations

import csv
import importlib
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
FILES = {
    "started": """
        import numpy as np
        import pymc as pm

        def build_model():
            with pm.Model() as model:
                pm.Normal("y", pm.Normal("mu", initval=3.0), 1, observed=np.arange(9.0))
            start = model.initial_point()
            model.rvs_to_initial_values = {rv: None for rv in model.free_RVs}
            return model, start
        """,
    "joint": """
        import numpy as np
        import pymc as pm

        with pm.Model() as model:
            pm.MvNormal("y", pm.Normal("mu") * np.ones(9), np.eye(9), observed=np.arange(9.0))
        """,
    "repeated": """
        import numpy as np
        import pymc as pm

        with pm.Model() as model:
            pm.StudentT("y", nu=3, mu=pm.Normal("mu"), observed=np.arange(300.0) % 4)
        """,
    "broken": "model = 1 / 0",
    "dying": "import os; os._exit(3)",
}
OF_DATA = """
def make_model(data) -> pm.Model:
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("mu"), 1, observed=data["y"])
    return model
"""


@pytest.fixture
def catalogue(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("pymc_catalogue")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Files of each kind, with the data of one beside them."""
    base = tmp_path / "database"
    models, data, posteriors = base / "models" / "pymc", base / "data" / "data", base / "posteriors"
    for made in (models, data, posteriors):
        made.mkdir(parents=True)
    for name, text in FILES.items():
        lines = text.split("\n        ")
        (models / f"{name}.py").write_text("\n".join(lines))
    (models / "of_data.py").write_text(OF_DATA)
    with zipfile.ZipFile(data / "nine.json.zip", "w") as packed:
        packed.writestr("nine.json", json.dumps({"y": list(range(9))}))
    entry = {"model_name": "of_data", "data_name": "nine"}
    (posteriors / "nine-of_data.json").write_text(json.dumps(entry))
    return models


@pytest.mark.parametrize(("name", "start"), [("started", 3), ("joint", 0), ("of_data", 0)])
def test_each_kind_of_file_offers_its_model(
    catalogue: ModuleType, folder: Path, name: str, start: int
) -> None:
    model, point = catalogue.load(folder / f"{name}.py")
    assert [rv.name for rv in model.observed_RVs] == ["y"]
    assert point == {"mu": start}
    at = catalogue.points(point, [10.0])
    assert list(at) == ["start", "near 0", "near 1", "near 2", "x10"]
    assert abs(at["near 2"]["mu"] - start) <= 0.1


def test_what_counts_as_a_difference(catalogue: ModuleType) -> None:
    one, inf, nan = np.ones(2), np.inf, np.nan
    assert catalogue.difference((5.0, one), (5.0 + 1e-9, one)) == ""
    assert catalogue.difference((nan, one), (nan, nan * one)) == ""
    assert "value" in catalogue.difference((5.0, one), (5.1, one))
    assert catalogue.difference((nan, one), (inf, one)) == "value inf for nan"
    assert catalogue.difference((nan, one), (-inf, one)) == ""
    assert catalogue.difference((-inf, one), (nan, one)) == ""
    assert catalogue.difference((inf, one), (nan, one)) == "value nan for inf"
    assert catalogue.difference((-inf, one), (3.0, one)) == "value 3 for -inf"
    assert "value -inf" in catalogue.difference((5.0, one), (-inf, one))
    assert catalogue.difference((5.0, one), (5.0, nan * one)) == "gradient not finite"
    assert "gradient by 1e-05" in catalogue.difference((5.0, one), (5.0, one + 1e-5))


def test_which_of_two_is_nearer_to_the_true_value(catalogue: ModuleType) -> None:
    one, inf, nan = np.ones(2), np.inf, np.nan
    nearer = catalogue.is_nearer
    assert nearer((-inf, nan * one), (3.0, one), (3.0, one))
    assert nearer((5.1, one), (5.05, one), (5.0, one))
    assert nearer((5.1, one), (5.1001, one), (5.0, one))
    assert not nearer((5.05, one), (5.1, one), (5.0, one))
    assert not nearer((-inf, one), (3.0, nan * one), (3.0, one))  # without a gradient
    assert not nearer((-inf, one), (nan, one), (3.0, one))
    assert not nearer((5.1, one), (5.0, nan * one), (5.0, nan * one))  # plain has one
    assert not nearer((5.1, one), (5.0, 1.1 * one), (5.0, nan * one))
    assert nearer((5.1, one), (5.0, one), (5.0, nan * one))
    assert not nearer((-inf, one), (3.0, one), None)
    assert not nearer((3.0, one), (-inf, one), (-inf, one))  # beyond the largest number


@pytest.mark.thorough  # compiles
@pytest.mark.timeout(300)
def test_sunspots_have_a_gradient_wherever_plain_has_one(catalogue: ModuleType) -> None:
    """Far out, where sticks have nothing left: a gradient of 0 hid what cancels in a weight's."""
    folder = BENCHMARKS / "catalogue"
    found = catalogue.child(folder, "sunspots", 0, ["default"], [40.0, 300.0])
    assert found["outcome"] == "equal", found["why"]


def test_where_models_differ_is_counted_apart(catalogue: ModuleType) -> None:
    one = "far out, one has no number"
    kinds = {
        "[mode default] near 0: value 3.0 for 2.0; x40: value nan for 2.0": "near the start",
        "[mode default] x40: value nan for 2.5; x300: value 3.5 for 3.0": one,
        "[mode default] x40: value 3 for -inf": one,
        "[mode default] x40: value 3.5 for 3.0, true 3.2": "far out, other values",
        "[mode default] x300: gradient not finite": one,
        "[mode default] x300: value 3.5 for 3.0": "far out, other values",
        "[mode default] x300: value inf for nan": "far out, other values",
        "[mode default] x40: gradient by 1e-05 of its size": "far out, other values",
    }
    assert {why: catalogue.side(why) for why in kinds} == kinds


@pytest.mark.thorough  # a process for each file
def test_a_folder_gives_a_table(folder: Path, tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    options = ["--modes", "python", "--scales", "10", "--csv", str(table), "--seconds", "120"]
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / "pymc_catalogue.py"), str(folder), *options],
        capture_output=True,
        text=True,
        timeout=280,
        check=True,
        env=os.environ,
    )
    with table.open() as file:
        listed = {row["model"]: row for row in csv.DictReader(file)}
    found = {name: (row["outcome"], row["why"]) for name, row in listed.items()}
    repeated = listed["repeated"]
    assert [repeated[k] for k in ("rows", "distinct", "form")] == ["300", "4", "DistinctRows"]
    assert min(float(repeated["plain us"]), float(repeated["divided us"])) > 0
    assert listed["started"]["form"] == "Form"
    assert "Rows, those that are left" in done.stdout
    assert {name: outcome for name, (outcome, _) in found.items()} == {
        "broken": "not built",
        "dying": "crashed",
        "joint": "refused",
        "of_data": "equal",
        "repeated": "equal",
        "started": "equal",
    }
    assert found["broken"][1] == "ZeroDivisionError: division by zero"
    assert "exit code 3" in found["dying"][1]
    assert "cannot be divided by row" in found["joint"][1]
    for name, (outcome, _) in found.items():
        assert f"{name:45} {outcome:9} " in done.stdout
