"""Operations and layers of neural networks: they run in every mode and are exact over members.

=====================  ==========================================================================
`conv2d`               convolution, `conv_transpose2d` its transpose; `max_pool2d`, `avg_pool2d`:
                       pooling; with their gradients
`augment`              pad, crop, flip and normalise images; `without_augmentation`: to evaluate
`noise`                random numbers that follow from a word for each row
`layers`               pytensor-ml's layers on these operations (extra ``synkhronos[nn]``)
``_windows``           the positions of windows in an image
``_numba``, ``_jax``   the implementations by mode, see ``_compiling.late_imports``
``_moments``           mean and variance over the rows of all members, for `BatchNorm`
``_inference_rules``   which operations keep rows apart, for reductions that `function` infers
=====================  ==========================================================================
"""

from typing import TYPE_CHECKING

from synkhronos._compiling.late_imports import import_late
from synkhronos._public import belong_to as _belong_to
from synkhronos._public import imported_late as _imported_late
from synkhronos.nn import _inference_rules as _inference_rules
from synkhronos.nn._augmentation import augment, without_augmentation
from synkhronos.nn._convolution import conv2d, conv_transpose2d
from synkhronos.nn._noise import noise
from synkhronos.nn._pooling import avg_pool2d, max_pool2d

if TYPE_CHECKING:
    from synkhronos.nn.layers import (
        AvgPool1D,
        AvgPool2D,
        BatchNorm,
        Conv1D,
        Conv2D,
        ConvTranspose1D,
        ConvTranspose2D,
        MaxPool1D,
        MaxPool2D,
        state_updates,
    )

__all__ = [
    "AvgPool1D",
    "AvgPool2D",
    "BatchNorm",
    "Conv1D",
    "Conv2D",
    "ConvTranspose1D",
    "ConvTranspose2D",
    "MaxPool1D",
    "MaxPool2D",
    "augment",
    "avg_pool2d",
    "conv2d",
    "conv_transpose2d",
    "max_pool2d",
    "noise",
    "state_updates",
    "without_augmentation",
]

import_late("nn")
_belong_to(
    __name__,
    [augment, avg_pool2d, conv2d, conv_transpose2d, max_pool2d, noise, without_augmentation],
)

__getattr__ = _imported_late(
    __name__, __all__, lambda name: "layers", "pytensor_ml", "pytensor-ml", "nn"
)
