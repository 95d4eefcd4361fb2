"""What is built on the group's functions and collectives: training.

`updates`       update rules, split into gradient and update
`train`         one step of all members in one round
"""

from synkhronos.extensions import train as train
from synkhronos.extensions import updates as updates
from synkhronos.extensions.train import TrainFunction as TrainFunction
from synkhronos.extensions.train import make_train_function as make_train_function
from synkhronos.extensions.train import (
    make_train_function_pytensor as make_train_function_pytensor,
)
from synkhronos.extensions.train import make_train_function_theano as make_train_function_theano

__all__ = [
    "TrainFunction",
    "make_train_function",
    "make_train_function_pytensor",
    "make_train_function_theano",
    "train",
    "updates",
]
