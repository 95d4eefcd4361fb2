"""Runs a program as Python does; PyMC's functions are ours once the program has imported PyMC.

`synk run --pymc` starts this module with the words that Python would get: a script, or ``-m`` and a
module. Before them, ``--folder`` names the folder of draws. PyMC is not imported before the program
does so, since the program may set what PyTensor and numba read when they are imported.
"""

from __future__ import annotations

import importlib
import runpy
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

_PYMC = "pymc"
_FOLDER = "--folder"


class _WhenImported(MetaPathFinder):
    """Finds PyMC as the other finders do; its first import ends with `everywhere`."""

    def __init__(self, folder: str | None = None) -> None:
        self._folder = folder

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of PyMC; a program may ask for it, and import PyMC later or never."""
        if name != _PYMC:
            return None
        others = [finder for finder in sys.meta_path if finder is not self]
        specs = (finder.find_spec(name, path, target) for finder in others)
        spec = next(filter(None, specs), None)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def load_and_open(module: ModuleType) -> None:
                load(module)
                if self in sys.meta_path:
                    sys.meta_path.remove(self)
                    importlib.import_module("synkhronos.pymc").everywhere(folder=self._folder)

            spec.loader.exec_module = load_and_open
        return spec


def main(words: Sequence[str]) -> None:
    """Run the program of these words."""
    folder = None
    if words[0] == _FOLDER:
        folder, words = words[1], words[2:]
    sys.meta_path.insert(0, _WhenImported(folder))
    first, *rest = words
    if first == "-m":
        sys.argv = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv = [first, *rest]
        if not sys.flags.safe_path:
            sys.path[0] = str(Path(first).resolve().parent)
        runpy.run_path(first, run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
