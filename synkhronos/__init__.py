"""Synkhronos: one script, one control flow, all your cores, for PyTensor functions.

`docs/architecture.rst` lists the folders, each of which is a layer, and follows one call
``f(x, batch=rows)`` through them.
"""

from importlib import import_module as _import
from typing import TYPE_CHECKING as _TYPES

from synkhronos._host import launch_settings as _launch_settings  # noqa: F401  # marks its process
from synkhronos._host import system as _system
from synkhronos._libraries import imported as _imported  # noqa: F401  # notes what was there before

# A process of an MPI launch notes at once that it is one, before it starts others, or ends early.
if _system.has_mpi_rank():
    _import("synkhronos._backends.mpi")

_system.tell()

if _TYPES:
    from synkhronos._api.exports import *

__version__ = "2.0.0"

__all__ = [
    "Advice",
    "BackendMissing",
    "BatchError",
    "BatchWarning",
    "CheckpointError",
    "CheckpointWarning",
    "Data",
    "DeprecatedWarning",
    "Function",
    "Group",
    "GroupClosed",
    "GroupError",
    "GroupTimeout",
    "InputError",
    "InputTypeError",
    "LocalUpdateWarning",
    "NonFinite",
    "NotForked",
    "ReductionWarning",
    "ReplicaWarning",
    "Report",
    "SourceError",
    "StartFailed",
    "StateTorn",
    "SynkhronosError",
    "SynkhronosWarning",
    "Trace",
    "UnusedWarning",
    "VersionWarning",
    "WorkerDied",
    "WorkerError",
    "advise",
    "all_gather",
    "all_reduce",
    "broadcast",
    "check_consistency",
    "close",
    "current_group",
    "data",
    "distribute",
    "fork",
    "function",
    "gather",
    "get_lengths",
    "get_n_gpu",
    "get_shapes",
    "get_value",
    "part_lengths",
    "permute",
    "rank",
    "reduce",
    "reduce_scatter",
    "scatter",
    "set_value",
    "size",
    "sync",
]

_PACKAGES = (
    *("extensions", "nn", "ops", "pymc", "rules"),
    *("interop", "search", "sklearn", "testing", "training", "zoo"),
)


def __getattr__(name: str) -> object:
    """Import public names when the first of them is used, and packages when they are."""
    if name != "pymc" and name in (*_PACKAGES, *__all__):
        _system.refuse_windows(name)
    if name in _PACKAGES:
        return _import(f"synkhronos.{name}")
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    exports = vars(_import("synkhronos._api.exports"))
    globals().update({each: exports[each] for each in __all__})
    return exports[name]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_PACKAGES})
