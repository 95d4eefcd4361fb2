"""Train a network on MNIST with all members; each step divides a batch of the Data over them.

    python demos/mnist/train_cpu_data.py [MODEL] [BATCH] [EPOCHS] [--members 2] ...

MODEL is one of models.py: mlp, cnn, custom_mlp:DEPTH,WIDTH,DROP_IN,DROP_HID,
custom_cnn:FILTERS,WIDTH,DROP. All members read one copy of the images in shared memory. A step is
one call: each member computes the gradient of its rows of the batch, the gradients are reduced, and
each member updates its chunk of the weights. Any number of members ends with the weights of
train_serial.py, up to rounding and to the masks of dropout.
"""

import mnist
import models

import synkhronos as synk
from synkhronos.extensions import make_train_function, updates
from synkhronos.extensions.batches import Batches


def main():
    args = mnist.parse(mnist.arguments(__doc__))
    data = mnist.load()
    members = synk.fork(args.members)
    (x, y), validation, test = ([synk.data(array) for array in pair] for pair in data)
    net = models.build(args.sizes, x.shape[1], args.seed)
    rate = mnist.start(args, net, members)
    train = make_train_function(
        net.loss,
        net.params,
        net.x,
        net.y,
        updates.nesterov_momentum,
        rate,
        updates=net.updates,
    )
    accuracy = synk.function([net.x, net.y], net.accuracy)  # a mean over rows: exact

    def step(rows):
        return train(x, y, batch=rows), len(rows)

    batches = Batches(len(x), args.batch, args.seed)
    mnist.run(args, rate, batches, step, validation=lambda: accuracy(*validation))
    found = accuracy(*test)
    synk.close()
    mnist.finish(found)


main()
