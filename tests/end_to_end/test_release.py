"""What PyPI and conda-forge get: the sdist, a wheel made of it, its pages, the recipe.

The wheel is used in an environment of its own, outside of the checkout. Its libraries are those of
the environment of these tests.
"""

from __future__ import annotations

import ast
import os
import re
import runpy
import shutil
import site
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email import message_from_bytes
from email.message import Message
from pathlib import Path
from typing import Any

import pytest

import synkhronos as synk
from synkhronos.cli import new

pytestmark = pytest.mark.together  # one sdist, wheel and environment
ROOT = Path(__file__).parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
README = (ROOT / "README.rst").read_text()
ADDRESS = "https://example.org/synk"
BUILD = "import sys; from setuptools import build_meta as b; b.build_sdist(sys.argv[1])"
LEFT_OUT = (".git", ".venv", "__pycache__", "*.egg-info", "build", "dist", "results", "_build")


def described(repository: str) -> str:
    """README.rst as PyPI shows it."""
    return str(runpy.run_path(str(ROOT / "setup.py"))["long_description"](README, repository, "9"))


def run(command: list[str | Path], cwd: Path) -> str:
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=270, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made of a copy, since setuptools leaves files behind."""
    folder = tmp_path_factory.mktemp("sdist")
    copy = shutil.copytree(ROOT, folder / "copy", ignore=shutil.ignore_patterns(*LEFT_OUT))
    run([sys.executable, "-P", "-W", "ignore", "-c", BUILD, folder], copy)
    return folder / f"synkhronos-{synk.__version__}.tar.gz"


@pytest.fixture(scope="module")
def wheel(sdist: Path) -> Path:
    pip = [sys.executable, "-P", "-m", "pip", "wheel", "--quiet", "--no-deps"]
    run([*pip, "--no-build-isolation", "-w", sdist.parent, sdist], sdist.parent)
    return sdist.with_name(f"synkhronos-{synk.__version__}-py3-none-any.whl")


@pytest.fixture(scope="module")
def installed(wheel: Path) -> Path:
    """The folder of programs of an environment that has the wheel."""
    folder = wheel.parent / "environment"
    run([sys.executable, "-P", "-m", "venv", "--without-pip", folder], wheel.parent)
    pip = [sys.executable, "-P", "-m", "pip", "--python", folder / "bin" / "python", "install"]
    run([*pip, "--quiet", "--no-deps", "--no-index", wheel], wheel.parent)
    [packages] = folder.glob("lib/python*/site-packages")
    (packages / "libraries.pth").write_text("\n".join(site.getsitepackages()))
    return folder / "bin"


@pytest.mark.thorough
def test_the_sdist_has_the_repository(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        found = {name.partition("/")[2] for name in archive.getnames()}
    for name in (
        "tests/conftest.py",
        "tests/support/selection.py",
        "docs/index.rst",
        "docs/conf.py",
    ):
        assert name in found
    for folder in ("benchmarks", "demos", "docs", "recipe", "scripts", "synkhronos", "tests"):
        here = {
            str(path.relative_to(ROOT))
            for path in (ROOT / folder).rglob("*")
            if path.is_file() and not {"__pycache__", "_build", "results"} & {*path.parts}
        }
        assert here <= found, sorted(here - found)
    single = ("CHANGELOG.rst", "CITATION.cff", "CONTRIBUTING.rst", "LICENSE", "MANIFEST.in")
    assert {*single, ".github/SECURITY.rst", ".ci/run", "Dockerfile", "pyproject.toml"} <= found
    assert not [name for name in found if "__pycache__" in name or name.startswith("docs/_build")]


@pytest.mark.thorough
def test_the_wheel_has_the_package_only(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        found = set(archive.namelist())
    info = f"synkhronos-{synk.__version__}.dist-info"
    assert {name.partition("/")[0] for name in found} == {"synkhronos", info}
    here = {
        f"synkhronos/{path.relative_to(ROOT / 'synkhronos')}"
        for path in (ROOT / "synkhronos").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert here <= found, sorted(here - found)
    assert {"synkhronos/py.typed", "synkhronos/cli/_report/report.html.j2"} <= found
    assert f"{info}/licenses/LICENSE" in found


@pytest.mark.thorough
def test_metadata(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        [name] = [n for n in archive.namelist() if n.endswith(".dist-info/METADATA")]
        said: Message = message_from_bytes(archive.read(name))
    assert (said["Name"], said["Version"]) == ("synkhronos", synk.__version__)
    assert said["License-Expression"] == "MIT"
    assert said["Description-Content-Type"] == "text/x-rst"
    keywords = set(said["Keywords"].split(","))
    assert {"pymc", "bayesian", "mcmc", "nuts", "data parallelism", "pytensor"} <= keywords
    assert "theano" in keywords
    text = said.get_payload(decode=True)
    assert isinstance(text, bytes)
    assert text.decode().strip() == described(PROJECT["urls"].get("Repository", "")).strip()


@pytest.mark.thorough
def test_the_wheel_works_outside_of_the_checkout(installed: Path, tmp_path: Path) -> None:
    where = "import synkhronos, synkhronos.training; print(synkhronos.__file__)"
    assert run([installed / "python", "-c", where], tmp_path).startswith(str(installed.parent))
    assert "usage: synk" in run([installed / "synk", "--help"], tmp_path)
    assert run([installed / "synk", "--version"], tmp_path) == f"synkhronos {synk.__version__}\n"
    for kind, files in new.KINDS.items():
        run([installed / "synk", "new", kind, f"a-{kind}"], tmp_path)
        for stored, written in files.items():
            text = (new.STARTERS / stored).read_text()
            assert (tmp_path / f"a-{kind}" / written).read_text() == text
    line = ["--", "pydtnn_benchmark", "--model=simplemlp", "--dataset=mnist"]
    run([installed / "synk", "new", "--from", "pydtnn", "--to", "old/", *line], tmp_path)
    assert (tmp_path / "old" / "config.toml").exists()
    shown = run([installed / "python", tmp_path / "a-function" / "function.py"], tmp_path)
    assert re.search(r"mean 0\.\d+.*\nserial: +mean 0\.\d+", shown)


@pytest.mark.parametrize("repository", [ADDRESS, ""])
def test_the_readme_renders_without_the_repository(repository: str) -> None:
    """No link and no picture is a path; with an address each leads to a file of the version."""
    import docutils.core

    text = described(repository)
    publish = docutils.core.publish_doctree
    tree = publish(text, settings_overrides={"report_level": 2, "halt_level": 2})
    places = [n["refuri"] for n in tree.findall() if getattr(n, "attributes", {}).get("refuri")]
    pictures = [n["uri"] for n in tree.findall() if getattr(n, "attributes", {}).get("uri")]
    assert not [p for p in places + pictures if not p.startswith("https://")]
    own = [p for p in places + pictures if p.startswith(ADDRESS)]
    assert len(own) > 20 if repository else not own + pictures
    for place in own:
        kind, _, path = place.removeprefix(f"{ADDRESS}/").partition("/v9/")
        assert kind == ("raw" if place in pictures else "blob")
        assert (ROOT / path).exists(), place
    before = publish(README, settings_overrides={"report_level": 5})
    for title in ("Install", "Speed", "Documentation"):
        assert title in [n.astext() for n in before.findall() if n.tagname == "title"]
        assert title in [n.astext() for n in tree.findall() if n.tagname == "title"]


def test_links_of_the_readme_become_their_words() -> None:
    text = described("")
    assert "</" not in text
    assert ".rst>`_" not in text
    assert "image::" not in text
    assert "figure::" not in text
    assert "A virtual machine with 2 cores" not in text
    assert "A PyTensor function on all cores:" in text
    assert ">>> synk.fork(2) " in text


def test_versions_are_one() -> None:
    """Of the package, the citation, the recipe and the changes."""
    version = re.escape(synk.__version__)
    assert re.search(rf"(?m)^version: {version}$", (ROOT / "CITATION.cff").read_text())
    assert re.search(rf'(?m)^  version: "{version}"$', recipe())
    assert re.search(rf"(?m)^{version}\n-+$", (ROOT / "CHANGELOG.rst").read_text())


def test_changes_are_listed_by_kind() -> None:
    """Those of keepachangelog.com, in its order; each has changes."""
    text = (ROOT / "CHANGELOG.rst").read_text().partition("\n1.0.0 (2017)\n")[0]
    kinds = re.findall(r"(?m)^(\w+)\n~+\n\n\* ", text)
    assert kinds == ["Added", "Changed", "Deprecated", "Fixed", "Security"]
    assert len(re.findall(r"(?m)^~+$", text)) == len(kinds)


def recipe() -> str:
    return (ROOT / "recipe" / "recipe.yaml").read_text()


def test_the_recipe_needs_what_the_project_needs() -> None:
    run_section = recipe().partition("\n  run:\n")[2].partition("\ntests:")[0]
    asked = dict(re.findall(r"(?m)^    - (\S+) (.+)$", run_section))
    names = {"pytensor": "pytensor-base", "pymc": "pymc-base"}
    for need in (*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["pymc"]):
        name, bounds = re.fullmatch(r"([\w-]+)(.*)", need).groups()
        assert asked.pop(names.get(name, name)) == bounds, need
    assert asked == {"python": ">=${{ python_min }}"}
    assert f'python_min: "{PROJECT["requires-python"].removeprefix(">=")}"' in recipe()
    [script] = PROJECT["scripts"].items()
    assert f"- {' = '.join(script)}" in recipe()
    assert f"summary: {PROJECT['description']}\n" in recipe()
    assert "noarch: python" in recipe()


def test_all_name_the_addresses_of_the_project() -> None:
    urls = PROJECT["urls"]
    cite = re.findall(r"(?m)^repository-code: (\S+)$", (ROOT / "CITATION.cff").read_text())
    about = re.findall(r"(?m)^  repository: (\S+)$", recipe())
    assert cite == about == [u for name, u in urls.items() if name == "Repository"]
    wanted = {"Repository", "Documentation", "Issues", "Changelog"}
    assert urls.keys() in (set(), wanted)


def test_each_old_spelling_is_on_the_page_of_versions() -> None:
    """As many rows as places that warn; each says from when it warns and is refused."""
    places = [
        node
        for path in sorted((ROOT / "synkhronos").rglob("*.py"))
        if "DeprecatedWarning" in (text := path.read_text())  # most need not be parsed
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call)
        and any(ast.unparse(a) == "DeprecatedWarning" for a in node.args)
    ]
    page = (ROOT / "docs" / "reference" / "versions.rst").read_text()
    table = page[page.index("     - refused from\n") :]
    rows = re.findall(r"(?m)^   \* - ``.*\n     - ``.*\n     - (\d+\.\d+)\n     - (\d+\.0)$", table)
    assert len(rows) == len(places)
    for since, until in rows:
        assert float(since) < float(until)
        assert int(since[0]) + 1 == int(until.partition(".")[0])


def test_the_script_uploads_nothing() -> None:
    """It names the upload in its last lines, for a person, and runs none."""
    text = (ROOT / "scripts" / "release").read_text()
    before, _, said = text.partition("cat <<EOF\n")
    assert "twine upload" in said
    assert "git push" in said
    for word in ("upload dist", "twine upload", "git push", "git tag"):
        assert word not in before
    for tool in ("-m build", "twine check --strict", "cffconvert", "pip install --quiet dist/"):
        assert tool in before
