"""Private names of Keras; no model can be taken over without them."""

from __future__ import annotations

from synkhronos._libraries.library import Library

KERAS = Library(
    "keras",
    tried="3.15.1",
    names={
        "the layers of a model, and what draws random numbers, are not found": (
            "keras:Model()._flatten_layers Layer()._seed_generators",
        ),
        "masks of sequences, which losses read, are not found": (
            "keras.src.backend.common.masking:get_keras_mask",
        ),
    },
)
__getattr__ = KERAS.get
