"""A convolutional network for MNIST, made of pytensor-ml's layers.

It has two blocks of 3x3 filters and 2x2 pooling, the second with twice as many filters. A layer of
units with dropout follows, then a softmax.
"""

import math

import pytensor
import pytensor.tensor as pt
from pytensor_ml.activations import ReLU
from pytensor_ml.layers import Dropout, Linear, Sequential
from pytensor_ml.model import Model
from pytensor_ml.pytensorf import rewrite_for_prediction

from synkhronos.nn import Conv2D, MaxPool2D, state_updates


class Net:
    """As `models.Net`: x, y, inputs, params, loss, updates, accuracy and metrics."""

    def __init__(self, model, pixels, classes, seed):
        self.inputs = self.x, self.y = pt.fmatrix("x"), pt.ivector("y")
        with pytensor.config.change_flags(floatX="float32"):
            self._make(model, pixels, classes, seed)

    def _make(self, model, pixels, classes, seed):
        side = math.isqrt(pixels)
        flat = (side // 4) ** 2 * 2 * model.filters
        how = {"kernel_size": 3, "padding": "same"}
        filters = Sequential(
            Conv2D("conv0", in_channels=1, out_channels=model.filters, **how),
            ReLU(),
            MaxPool2D(kernel_size=2),
            Conv2D("conv1", in_channels=model.filters, out_channels=2 * model.filters, **how),
            ReLU(),
            MaxPool2D(kernel_size=2),
        )
        head = Sequential(
            Linear("dense", n_in=flat, n_out=model.width),
            ReLU(),
            *([Dropout("drop", p=model.drop, random_state=seed)] if model.drop else []),
            Linear("scores", n_in=model.width, n_out=classes),
        )
        rows = self.x.shape[0]
        scores = head(filters(self.x.reshape((rows, side, side, 1))).reshape((rows, flat)))
        self.params = Model(scores).initialize(seed).weights
        log_p = pt.special.log_softmax(scores, axis=1)
        self.loss = -log_p[pt.arange(self.y.shape[0]), self.y].mean()
        self.updates = state_updates(self.loss)
        answers = rewrite_for_prediction(scores).argmax(axis=1)
        self.accuracy = pt.eq(answers, self.y).astype("float32").mean()
        self.metrics = {"loss": rewrite_for_prediction(self.loss), "accuracy": self.accuracy}

    def size(self):
        return sum(p.get_value(borrow=True).size for p in self.params)
