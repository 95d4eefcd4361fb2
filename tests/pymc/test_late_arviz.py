"""nutpie is imported without ArviZ and numba, and nobody else notices."""

from __future__ import annotations

import builtins
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import arviz_base
import pytest
from user_scripts import run_script

from synkhronos.pymc._density import late_arviz, late_numba
from synkhronos.pymc._density.late_arviz import import_nutpie

NUTPIE = """
import builtins, arviz
from numba.extending import intrinsic
builtins.during_import()
marked = intrinsic(len)
"""
LATE = ("arviz", "numba", "numba.extending")


@pytest.fixture
def during(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], Any]], None]:
    """Sets what runs while a nutpie that imports others is imported; all are files of the test."""
    (tmp_path / "nutpie.py").write_text(NUTPIE)
    (tmp_path / "arviz.py").write_text("plot = 'drawn'")
    (tmp_path / "numba").mkdir()
    (tmp_path / "numba" / "__init__.py").write_text("njit = 'compiled'")
    (tmp_path / "numba" / "extending.py").write_text("def intrinsic(function): return [function]")
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("nutpie", *LATE):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(builtins, "during_import", lambda: None, raising=False)
    return lambda run: monkeypatch.setattr(builtins, "during_import", run)


def stand_in() -> Any:
    return vars(sys.modules["nutpie"])["arviz"]


@pytest.mark.usefixtures("during")
def test_arviz_is_not_imported() -> None:
    """What nutpie calls after sampling is there, and so is all else of ArviZ."""
    import_nutpie()
    assert "arviz" not in sys.modules
    assert stand_in().from_dict is arviz_base.from_dict
    assert stand_in().dict_to_dataset is arviz_base.dict_to_dataset
    assert "arviz" not in sys.modules
    assert stand_in().plot == "drawn"
    assert vars(sys.modules["arviz"])["plot"] == "drawn"
    with pytest.raises(AttributeError, match="no attribute 'gone'"):
        _ = stand_in().gone


def test_another_thread_imports_arviz_meanwhile(
    during: Callable[[Callable[[], Any]], None],
) -> None:
    """It gets the stand-in, which works; from then on the program has ArviZ itself."""
    found: list[Any] = []

    def user() -> None:
        import arviz

        found.extend([arviz, arviz.plot])

    def run() -> None:
        thread = threading.Thread(target=user)
        thread.start()
        thread.join()

    during(run)
    import_nutpie()
    assert found[1] == "drawn"
    assert type(sys.modules["arviz"]) is ModuleType
    assert found[0].plot == "drawn"


@pytest.mark.usefixtures("during")
def test_numba_is_not_imported() -> None:
    import_nutpie()
    assert not {"numba", "numba.extending"} & sys.modules.keys()
    assert vars(sys.modules["nutpie"])["marked"] != [len]


@pytest.mark.usefixtures("during")
def test_numba_that_is_imported_is_nutpie_s() -> None:
    __import__("numba")
    import_nutpie()
    assert vars(sys.modules["nutpie"])["marked"] == [len]


def test_another_thread_imports_numba_meanwhile(
    during: Callable[[Callable[[], Any]], None],
) -> None:
    found: list[Any] = []

    def user() -> None:
        import numba
        import numba.extending

        found.extend([numba.njit, numba.extending.intrinsic(len)])

    def run() -> None:
        thread = threading.Thread(target=user)
        thread.start()
        thread.join()

    during(run)
    import_nutpie()
    assert found == ["compiled", [len]]
    assert type(sys.modules["numba"]) is ModuleType
    assert type(sys.modules["numba.extending"]) is ModuleType


CALLED = """
    import sys
    import numpy as np
    from synkhronos.pymc._density.late_arviz import import_nutpie
    import_nutpie()
    late = not {"arviz", "numba"} & sys.modules.keys()
    from nutpie.compile_pymc import address_as_void_pointer
    import numba

    @numba.njit
    def total(address):
        return numba.carray(address_as_void_pointer(address), (3,), np.float64).sum()

    @numba.njit
    def twice(address):
        return total(address) + numba.carray(address_as_void_pointer(address), (1,), np.int64)[0]

    x = np.array([0.0, 1.0, 2.0])
    print(late, total(x.ctypes.data), twice(x.ctypes.data))
"""


@pytest.mark.thorough
def test_nutpie_s_own_numba_code_finds_its_function(tmp_path: Path) -> None:
    """The function that nutpie marks as an intrinsic, once numba is there."""
    pytest.importorskip("nutpie")
    assert run_script(tmp_path, CALLED).split() == ["True", "3.0", "3.0"]


def test_nothing_stays_after_an_error(during: Callable[[Callable[[], Any]], None]) -> None:
    during(lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        import_nutpie()
    assert not {"nutpie", *LATE} & sys.modules.keys()


@pytest.mark.usefixtures("during")
@pytest.mark.parametrize("first", ["arviz", "an old version", "no ArviZ"])
def test_nutpie_imports_arviz_itself(monkeypatch: pytest.MonkeyPatch, first: str) -> None:
    """If the program has it already, or its functions are not those of `arviz_base`."""
    if first == "arviz":
        __import__("arviz")
    elif first == "an old version":
        monkeypatch.setattr(late_arviz, "version", lambda name: "0.23.4")
    else:
        monkeypatch.setattr(late_arviz, "version", gone)
    import_nutpie()
    assert type(stand_in()) is ModuleType
    assert stand_in() is sys.modules["arviz"]


def gone(name: str) -> str:
    raise late_arviz.PackageNotFoundError(name)


def test_numba_that_another_thread_has_begun_to_import_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("nutpie", "numba", "numba.extending"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    theirs = ModuleType("numba")

    class MadeMeanwhile(ModuleType):
        def __init__(self, name: str) -> None:
            super().__init__(name)
            monkeypatch.setitem(sys.modules, "numba", theirs)

    monkeypatch.setattr(late_numba, "_LateNumba", MadeMeanwhile)
    with late_numba.numba_late():
        assert sys.modules["numba"] is theirs
        assert "numba.extending" not in sys.modules
    assert sys.modules["numba"] is theirs
