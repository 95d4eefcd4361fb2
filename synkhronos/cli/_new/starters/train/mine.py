"""The network of config.toml; `synk train config.toml` calls `net`."""

import numpy as np
import pytensor
import pytensor.tensor as pt

from synkhronos.training import Net


def net(columns=64, hidden=32, classes=10):
    """Make a classifier with one hidden layer; arguments are those of [model_arguments]."""
    rng = np.random.default_rng(0)

    def weights(name, *shape):
        value = rng.normal(size=shape) * np.sqrt(2 / shape[0])
        return pytensor.shared(value.astype("float32"), name=name)

    x, y = pt.fmatrix("x"), pt.lvector("y")
    w1, b1 = weights("w1", columns, hidden), pytensor.shared(np.zeros(hidden, "float32"), "b1")
    w2, b2 = weights("w2", hidden, classes), pytensor.shared(np.zeros(classes, "float32"), "b2")
    scores = pt.maximum(x @ w1 + b1, 0) @ w2 + b2
    log_p = pt.special.log_softmax(scores, axis=1)
    loss = -log_p[pt.arange(y.shape[0]), y].mean()
    return Net(loss=loss, params=[w1, b1, w2, b2], inputs=[x, y], outputs=scores)
