"""Networks for MNIST in plain PyTensor, in float32: rectified layers with dropout, then a softmax.

`mlp` is Lasagne's example: two hidden layers of 800 units; dropout of a fifth of the input and of
half of the units of each hidden layer. `custom_mlp:DEPTH,WIDTH,DROP_IN,DROP_HID` sets these
numbers. `cnn` and `custom_cnn:FILTERS,WIDTH,DROP` are convolutional (see cnn.py), and need
pytensor-ml.
"""

from importlib.util import find_spec
from typing import NamedTuple

import numpy as np
import pytensor
import pytensor.tensor as pt

CLASSES = 10


class Model(NamedTuple):
    """The sizes of an MLP; rates are the share of units that dropout removes in a step."""

    depth: int
    width: int
    drop_in: float
    drop_hid: float


class Cnn(NamedTuple):
    """The sizes of a CNN: the first layer's filters, the units before the softmax, dropout."""

    filters: int
    width: int
    drop: float


MLP = Model(depth=2, width=800, drop_in=0.2, drop_hid=0.5)
CNN = Cnn(filters=16, width=128, drop=0.5)
KNOWN = "mlp, custom_mlp:DEPTH,WIDTH,DROP_IN,DROP_HID, cnn and custom_cnn:FILTERS,WIDTH,DROP"


def parse(text):
    """Parse the name of a model."""
    name, _, given = text.partition(":")
    if text == "mlp":
        return MLP
    if text == "cnn" or name == "custom_cnn":
        return _parse_cnn(text, given)
    if name != "custom_mlp":
        raise ValueError(f"{text!r} is not one of {KNOWN}")
    try:
        depth, width, drop_in, drop_hid = given.split(",")
        model = Model(int(depth), int(width), float(drop_in), float(drop_hid))
    except ValueError:
        raise ValueError(
            f"{text!r}: custom_mlp takes two integers and two rates, DEPTH,WIDTH,DROP_IN,DROP_HID, "
            "such as custom_mlp:2,800,0.2,0.5"
        ) from None
    if model.depth < 0 or model.width < 1:
        raise ValueError(f"{text!r}: DEPTH is at least 0 and WIDTH at least 1")
    if not (0 <= model.drop_in < 1 and 0 <= model.drop_hid < 1):
        raise ValueError(f"{text!r}: DROP_IN and DROP_HID are from 0 up to, not including, 1")
    return model


def _parse_cnn(text, given):
    if not find_spec("pytensor_ml"):
        raise ValueError(f'{text!r} needs pytensor-ml: pip install "synkhronos[nn]"')
    if text == "cnn":
        return CNN
    try:
        filters, width, drop = given.split(",")
        model = Cnn(int(filters), int(width), float(drop))
    except ValueError:
        raise ValueError(
            f"{text!r}: custom_cnn takes two integers and a rate, FILTERS,WIDTH,DROP, such as "
            "custom_cnn:16,128,0.5"
        ) from None
    if model.filters < 1 or model.width < 1 or not 0 <= model.drop < 1:
        raise ValueError(
            f"{text!r}: FILTERS and WIDTH are at least 1, DROP is from 0 up to, not including, 1"
        )
    return model


def build(model, pixels, seed):
    """Make the network of a model."""
    if isinstance(model, Model):
        return Net(model, pixels, seed)
    from cnn import Net as ConvolutionalNet

    return ConvolutionalNet(model, pixels, CLASSES, seed)


class Net:
    """A model's graph and its shared variables.

    Attributes
    ----------
    inputs, x, y : the inputs: images as rows of pixels, and their labels
    params : weights and biases
    loss : mean cross-entropy, with dropout
    updates : updates of the random generators, to use together with the loss
    accuracy : share of right answers, without dropout
    metrics : accuracy, and the loss without dropout, by name
    """

    def __init__(self, model, pixels, seed):
        self.inputs = self.x, self.y = pt.fmatrix("x"), pt.ivector("y")
        self.params = []
        rng = np.random.default_rng(seed)
        sizes = [pixels, *[model.width] * model.depth, CLASSES]
        for i in range(model.depth + 1):
            bound = np.sqrt(6 / (sizes[i] + sizes[i + 1]))  # Glorot and Bengio, 2010
            w = rng.uniform(-bound, bound, sizes[i : i + 2]).astype("float32")
            b = np.zeros(sizes[i + 1], "float32")
            self.params += [pytensor.shared(w, f"w{i}"), pytensor.shared(b, f"b{i}")]

        stream = pt.random.shared_rng(seed=seed + 1, name="stream")
        state = stream

        def drop(rate, units, width):
            """Dropout: remove random units, other ones for each row, and scale up the rest."""
            nonlocal state
            if not rate:
                return units
            state, drawn = state.uniform(size=(self.x.shape[0], width), dtype="float32")
            return units * (drawn >= np.float32(rate)) * np.float32(1 / (1 - rate))

        log_p = self._log_p(model, sizes, drop)
        self.loss = -log_p[pt.arange(self.y.shape[0]), self.y].mean()
        self.updates = [] if state is stream else [(stream, state)]
        whole = self._log_p(model, sizes, lambda rate, units, width: units)
        self.accuracy = pt.eq(whole.argmax(axis=1), self.y).astype("float32").mean()
        loss = -whole[pt.arange(self.y.shape[0]), self.y].mean()
        self.metrics = {"loss": loss, "accuracy": self.accuracy}

    def _log_p(self, model, sizes, drop):
        layer = drop(model.drop_in, self.x, sizes[0])
        for i in range(model.depth + 1):
            layer = layer @ self.params[2 * i] + self.params[2 * i + 1]
            if i < model.depth:
                layer = drop(model.drop_hid, pt.maximum(layer, 0), sizes[i + 1])
        return pt.special.log_softmax(layer, axis=1)

    def size(self):
        return sum(p.get_value(borrow=True).size for p in self.params)
