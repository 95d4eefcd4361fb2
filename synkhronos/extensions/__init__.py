"""What is built on the group's functions and collectives: training.

`updates`       update rules, split into gradient and update
`train`         one step of all members in one round
`batches`       shuffled index batches, seeded, that continue where they were
`loader`        batches read ahead of the training
`exchanges`     what nodes send of their gradients: all, the largest, or 16 bits
`checkpoints`   values, random states and cursor on disk (extra: checkpoints)
"""

import synkhronos.extensions.updates as updates
from synkhronos._api.public_names import belong_to as _belong_to
from synkhronos.extensions._free.points import Point as Point
from synkhronos.extensions.batches import Batches as Batches
from synkhronos.extensions.exchanges import HalfPrecision as HalfPrecision
from synkhronos.extensions.exchanges import TopK as TopK
from synkhronos.extensions.free_function import FreeFunction as FreeFunction
from synkhronos.extensions.loader import Loader as Loader
from synkhronos.extensions.local_function import LocalFunction as LocalFunction
from synkhronos.extensions.local_function import (
    make_local_train_function as make_local_train_function,
)
from synkhronos.extensions.nodes_function import NodesFunction as NodesFunction
from synkhronos.extensions.nodes_run import NodesRun as NodesRun
from synkhronos.extensions.round_function import RoundFunction as RoundFunction
from synkhronos.extensions.run import Death as Death
from synkhronos.extensions.run import Run as Run
from synkhronos.extensions.train import make_train_function as make_train_function
from synkhronos.extensions.train import make_train_function_pytensor as make_train_function_pytensor
from synkhronos.extensions.train import make_train_function_theano as make_train_function_theano
from synkhronos.extensions.train_function import TrainFunction as TrainFunction

__all__ = [
    "Batches",
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
