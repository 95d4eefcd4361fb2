"""The processor of this machine, and settings of numba that change its machine code."""

from __future__ import annotations

import ctypes
import functools
import itertools
import os
import sys

from synkhronos._libraries.library import optional_gain
from synkhronos._libraries.numpy import NUMPY

_OF_PROCESSES = ("NUMBA_NUM_THREADS", "NUMBA_CACHE_DIR")  # settings of numba that change no code
_OF_ARM = ("implementer", "architecture", "variant", "part", "revision")
# lines of Linux: of processors as those of Intel and AMD, and as those of ARM
_OF_FEATURES = {"flags", "Features"}
_OF_PROCESSORS = {"vendor_id", "cpu family", "model", "model name", "stepping", *_OF_FEATURES}
_OF_PROCESSORS |= {f"CPU {each}" for each in _OF_ARM}


@functools.cache
def processor() -> tuple[object, ...]:
    """The processor, numba's settings, and whether numba takes functions from Intel's SVML."""
    given = {n: v for n, v in os.environ.items() if n.startswith("NUMBA_")}
    settings = sorted(given.items() - {(n, given.get(n)) for n in _OF_PROCESSES})
    return (_told_by_linux() or _told_by_llvm(), settings, _uses_svml())


def _told_by_linux() -> tuple[str, ...]:
    """The first processor, by Linux and by itself; empty if that is not known.

    An import of LLVM, which would ask it too, takes longer. Linux does not know the features that
    an emulator leaves out.
    """
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            lines = list(itertools.takewhile(str.strip, file))
    except OSError:
        return ()
    found = {each.partition(":")[0].strip(): each for each in lines}
    if not found.keys() & _OF_FEATURES:  # as for processors of other makers
        return ()
    with optional_gain():
        features = NUMPY.get("__cpu_features__")
        has = sorted(name for name, is_there in features.items() if is_there)
        return (*(found[name] for name in sorted(found.keys() & _OF_PROCESSORS)), *has)
    return ()


def _told_by_llvm() -> tuple[object, ...]:
    try:
        import llvmlite.binding as llvm
    except ImportError:
        return ()
    return llvm.get_host_cpu_name(), sorted(llvm.get_host_cpu_features().items())


def _uses_svml() -> bool:
    """Whether Intel's SVML is there, and LLVM is built for it: numba takes functions from it."""
    name = {"linux": "libsvml.so", "darwin": "libsvml.dylib"}.get(sys.platform, "svml_dispmd")
    try:
        ctypes.CDLL(name)
        import llvmlite.binding as llvm
    except (OSError, ImportError):
        return False
    return bool(llvm.targets.has_svml())
