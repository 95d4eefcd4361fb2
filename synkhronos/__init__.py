"""Synkhronos: one script, one control flow, all your cores, for PyTensor functions.

The folders, lower layers first; a lower folder never imports a higher one:

==============  ==================================================================================
``_plan``       which rows each member gets, how partial results combine (starts no process)
``_host``       one machine: shared memory, memory limits, cores, devices
``_backends``   what uses JAX, MPI and NCCL, and loops compiled by numba
``_transport``  channels carry commands and outcomes, communicators move and reduce arrays
``_engine``     the group, its members, the commands they run, their compiled functions
``_api``        the objects of the user: functions, Data, collectives, consistency checks
``rules``       rules by which members train apart (pure code on vectors)
``extensions``  update rules, training steps, batches, checkpoints
``nn``          convolution, pooling and normalisation layers
``pymc``        PyMC models whose observations are spread over the group
``testing``     leak checks, fault injection, conformance suites
``cli``         the ``synk`` command
==============  ==================================================================================

`docs/architecture.rst` follows one call ``f(x, batch=rows)`` through them.
"""

from synkhronos._host import system as _system  # noqa: F401  # isort: skip (raises on Windows)
from synkhronos._api.advice import Advice as Advice
from synkhronos._api.advice import advise as advise
from synkhronos._api.collectives import all_gather as all_gather
from synkhronos._api.collectives import all_reduce as all_reduce
from synkhronos._api.collectives import broadcast as broadcast
from synkhronos._api.collectives import gather as gather
from synkhronos._api.collectives import get_lengths as get_lengths
from synkhronos._api.collectives import get_shapes as get_shapes
from synkhronos._api.collectives import get_value as get_value
from synkhronos._api.collectives import reduce as reduce
from synkhronos._api.collectives import reduce_scatter as reduce_scatter
from synkhronos._api.collectives import scatter as scatter
from synkhronos._api.collectives import set_value as set_value
from synkhronos._api.consistency import check_consistency as check_consistency
from synkhronos._api.consistency import sync as sync
from synkhronos._api.data import Data as Data
from synkhronos._api.function import Function as Function
from synkhronos._api.function import function as function
from synkhronos._api.make_data import data as data
from synkhronos._api.membership import current_group as current_group
from synkhronos._api.membership import part_lengths as part_lengths
from synkhronos._api.membership import rank as rank
from synkhronos._api.membership import size as size
from synkhronos._api.public_names import belong_to as _belong_to
from synkhronos._api.report import Report as Report
from synkhronos._engine.group import Group as Group
from synkhronos._engine.group import close as close
from synkhronos._engine.group import fork as fork
from synkhronos._errors import BackendMissing as BackendMissing
from synkhronos._errors import BatchError as BatchError
from synkhronos._errors import BatchWarning as BatchWarning
from synkhronos._errors import CheckpointError as CheckpointError
from synkhronos._errors import CheckpointWarning as CheckpointWarning
from synkhronos._errors import GroupClosed as GroupClosed
from synkhronos._errors import GroupError as GroupError
from synkhronos._errors import GroupTimeout as GroupTimeout
from synkhronos._errors import InputError as InputError
from synkhronos._errors import InputTypeError as InputTypeError
from synkhronos._errors import LocalUpdateWarning as LocalUpdateWarning
from synkhronos._errors import NonFinite as NonFinite
from synkhronos._errors import NotForked as NotForked
from synkhronos._errors import ReductionWarning as ReductionWarning
from synkhronos._errors import ReplicaWarning as ReplicaWarning
from synkhronos._errors import SourceError as SourceError
from synkhronos._errors import StartFailed as StartFailed
from synkhronos._errors import StateTorn as StateTorn
from synkhronos._errors import SynkhronosError as SynkhronosError
from synkhronos._errors import SynkhronosWarning as SynkhronosWarning
from synkhronos._errors import UnusedWarning as UnusedWarning
from synkhronos._errors import WorkerDied as WorkerDied
from synkhronos._errors import WorkerError as WorkerError
from synkhronos._host.devices import get_n_gpu as get_n_gpu

__version__ = "2.0.0"
from synkhronos._engine.shipping import distribute as distribute

__all__ = [
    "Advice",
    "BackendMissing",
    "BatchError",
    "BatchWarning",
    "CheckpointError",
    "CheckpointWarning",
    "Data",
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
    "UnusedWarning",
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
    "rank",
    "reduce",
    "reduce_scatter",
    "scatter",
    "set_value",
    "size",
    "sync",
]

_belong_to(__name__, [globals()[name] for name in __all__])


def __getattr__(name: str) -> object:
    """`synkhronos.pymc` is imported when it is first used: it imports PyMC."""
    if name == "pymc":
        from importlib import import_module

        return import_module("synkhronos.pymc")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
