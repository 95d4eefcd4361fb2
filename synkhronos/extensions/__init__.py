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
from synkhronos.extensions._apart.free.function import FreeFunction
from synkhronos.extensions._apart.free.run import Death, Run
from synkhronos.extensions._apart.nodes.function import NodesFunction
from synkhronos.extensions._apart.nodes.run import NodesRun
from synkhronos.extensions._apart.points import Point
from synkhronos.extensions._apart.rounds.function import RoundFunction
from synkhronos.extensions._apart.separate import LocalFunction
from synkhronos.extensions._apart.separate import (
    make_local_train_function as make_local_train_function,
)
from synkhronos.extensions._rows.batches import Batches
from synkhronos.extensions._rows.loader import Loader
from synkhronos.extensions._saving.checkpoints import Checkpoints
from synkhronos.extensions._step.exchanges import HalfPrecision, TopK
from synkhronos.extensions._step.function import TrainFunction
from synkhronos.extensions.train import (
    make_train_function,
    make_train_function_pytensor,
    make_train_function_theano,
)

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
