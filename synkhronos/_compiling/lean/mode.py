"""Modes: those that users name, and the one in which the functions of groups are compiled.

Rewrites are imported where a function is compiled: a PyMC model that is kept needs none of them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytensor
from pytensor.compile.mode import Mode, get_mode
from pytensor.link.numba.linker import NumbaLinker

import synkhronos._compiling.thread_flags  # noqa: F401 (each thread has a mode of its own)
from synkhronos._compiling.compile_cache import compiles_at_call
from synkhronos._libraries.library import Replacing


def mode_of(mode: Mode | str | None) -> Mode:
    """The Mode of a name; "C" means PyTensor's CVM, which runs C code if an operation has some."""
    return get_mode("CVM" if mode == "C" else mode)


def lean(mode: object) -> Any:
    """The mode for a function of a group: in mode NUMBA, with operations of this package's own.

    They are lean ones and, if the group wants them, vectorised ones. Other modes stay as they are.
    """
    from synkhronos._compiling.lean.linker import LeanLinker

    found = get_mode(mode)
    if type(found) is Mode and isinstance(found.linker, LeanLinker):
        return with_lean(found)
    if type(found) is not Mode or type(found.linker) is not NumbaLinker:
        return mode
    return with_lean(Mode(LeanLinker(), found.provided_optimizer))


def with_lean(mode: Mode) -> Mode:
    """A mode for numba, with this package's operations, whose functions are kept."""
    from synkhronos._compiling.kept.functions import KeptMode
    from synkhronos._compiling.lean.rewrite import TAG, instead, register
    from synkhronos._compiling.vectorised.rewrite import tags

    register()
    kept = KeptMode(mode.linker, mode.provided_optimizer)
    found: Mode = kept.including(TAG, *tags()).excluding(*instead())
    return found


@contextlib.contextmanager
def without_c(*modes: object) -> Iterator[None]:
    """A context in which PyTensor computes constants in Python, if these modes use no C.

    PyTensor else compiles C code for each kind of constant expression that it folds, 1 to 3 s each;
    and code that runs a graph's operations, once on a machine.
    """
    if not all(map(compiles_at_call, modes)):
        yield
        return
    with _without_c:
        yield


def _switch_off_c() -> Callable[[], None]:
    """Switch PyTensor's C compiler off in all threads; returns what switches it on again."""
    before = pytensor.config.cxx
    pytensor.config.cxx = ""

    def restore() -> None:
        if not pytensor.config.cxx:  # else the program has set another one
            pytensor.config.cxx = before

    return restore


_without_c = Replacing(_switch_off_c)
