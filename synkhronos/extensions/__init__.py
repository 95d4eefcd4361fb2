"""Training, built on the group's functions and collectives.

`updates`       update rules, split into gradient and update
`train`         makes the functions that train
`_step`         members that train together: one step of all in one round, what nodes send for it
`_apart`        members that train apart: what they keep, how they meet, a room for each rule's kind
`_rows`         shuffled batches, and batches that are read ahead
`_saving`       values, random states and cursor on disk (extra: checkpoints)

`batches`, `loader` and `checkpoints` are import paths of what users name.
"""

import synkhronos.extensions.updates as updates
from synkhronos._public import belong_to as _belong_to
from synkhronos.extensions._apart.free.function import FreeFunction as FreeFunction
from synkhronos.extensions._apart.free.run import Death as Death
from synkhronos.extensions._apart.free.run import Run as Run
from synkhronos.extensions._apart.nodes.function import NodesFunction as NodesFunction
from synkhronos.extensions._apart.nodes.run import NodesRun as NodesRun
from synkhronos.extensions._apart.points import Point as Point
from synkhronos.extensions._apart.rounds.function import RoundFunction as RoundFunction
from synkhronos.extensions._apart.separate import LocalFunction as LocalFunction
from synkhronos.extensions._apart.separate import (
    make_local_train_function as make_local_train_function,
)
from synkhronos.extensions._rows.batches import Batches as Batches
from synkhronos.extensions._rows.loader import Loader as Loader
from synkhronos.extensions._saving.checkpoints import Checkpoints as Checkpoints
from synkhronos.extensions._step.exchanges import HalfPrecision as HalfPrecision
from synkhronos.extensions._step.exchanges import TopK as TopK
from synkhronos.extensions._step.function import TrainFunction as TrainFunction
from synkhronos.extensions.train import make_train_function as make_train_function
from synkhronos.extensions.train import make_train_function_pytensor as make_train_function_pytensor
from synkhronos.extensions.train import make_train_function_theano as make_train_function_theano

__all__ = [
    "Batches",
    "Checkpoints",
    "Death",
    "FreeFunction",
    "HalfPrecision",
    "Loader",
    "LocalFunction",
    "NodesFunction",
    "NodesRun",
    "Point",
    "RoundFunction",
    "Run",
    "TopK",
    "TrainFunction",
    "make_local_train_function",
    "make_train_function",
    "make_train_function_pytensor",
    "make_train_function_theano",
    "updates",
]

_belong_to(__name__, [globals()[name] for name in __all__])
