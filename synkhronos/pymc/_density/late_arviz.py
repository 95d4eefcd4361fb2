"""nutpie imported without ArviZ, whose import takes as long as that of PyMC.

nutpie calls two functions of ArviZ, after sampling, and they are those of `arviz_base`. ArviZ also
imports matplotlib and all of SciPy's statistics.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType

from synkhronos.pymc._density.late_numba import numba_late

_CALLED = ("from_dict", "dict_to_dataset")


class _LateArviz(ModuleType):
    """Stands for ArviZ in a module that has imported it: has the attributes of ArviZ.

    A thread may import ArviZ while nutpie is imported, and get this. It then works for that thread
    as well, also in a fork.
    """

    def __getattr__(self, name: str) -> object:
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        home = import_module("arviz_base" if name in _CALLED else self.__name__)
        found: object = getattr(home, name)
        return found


def import_nutpie() -> None:
    """Import nutpie. Afterwards the program has no more of ArviZ and numba than before.

    Raises
    ------
    ImportError
        nutpie cannot be imported.
    """
    if sys.modules.keys().isdisjoint({"nutpie", "arviz"}) and _has_own_packages():
        _import_without_arviz()
        return
    with numba_late():
        import_module("nutpie")


def _has_own_packages() -> bool:
    """Whether ArviZ's functions are those of `arviz_base`."""
    try:
        return int(version("arviz").partition(".")[0]) >= 1
    except PackageNotFoundError:
        return False


def _import_without_arviz() -> None:
    late = sys.modules["arviz"] = _LateArviz("arviz")
    try:
        with numba_late():
            import_module("nutpie")
    finally:
        if sys.modules.get("arviz") is late:
            del sys.modules["arviz"]
