"""Train a network on MNIST in one process with plain PyTensor, for comparison.

    python demos/mnist/train_serial.py [MODEL] [BATCH] [EPOCHS] [--mode NUMBA] [--seed 0] ...

MODEL is one of models.py: mlp, cnn, custom_mlp:DEPTH,WIDTH,DROP_IN,DROP_HID,
custom_cnn:FILTERS,WIDTH,DROP.
"""

import mnist
import models
import pytensor

from synkhronos.extensions import make_train_function_pytensor, updates
from synkhronos.extensions.batches import Batches


def main():
    args = mnist.parse(mnist.arguments(__doc__, members=False))
    data = mnist.load()
    x, y = data.train
    net = models.build(args.sizes, x.shape[1], args.seed)
    rate = mnist.start(args, net)
    train = make_train_function_pytensor(
        net.loss,
        net.params,
        net.x,
        net.y,
        updates.nesterov_momentum,
        rate,
        updates=net.updates,
    )
    accuracy = pytensor.function([net.x, net.y], net.accuracy)

    def step(rows):
        return train(x, y, batch=rows), len(rows)

    batches = Batches(len(x), args.batch, args.seed)
    mnist.run(args, rate, batches, step, validation=lambda: accuracy(*data.validation))
    mnist.finish(accuracy(*data.test))


main()
