"""Train a network on MNIST with all members; the images are scattered once and stay in the members.

    python demos/mnist/train_gpu_data.py [MODEL] [BATCH] [EPOCHS] [--members 2] [--even] ...

MODEL is one of models.py: mlp, cnn, custom_mlp:DEPTH,WIDTH,DROP_IN,DROP_HID,
custom_cnn:FILTERS,WIDTH,DROP. In the demo of 2017 with this name, the images stayed on the GPUs;
this one also runs on CPUs. Each member holds its part of the images in shared variables. `batch_s`
selects the rows of its part for a step. A step calls two functions, for gradient and update, and
reduces the gradients between them.

The batches are those of train_serial.py: each member takes the rows of a batch that are in its
part. So any number of members ends with the same weights, up to rounding and to the masks of
dropout. The members then have different numbers of rows. With --even, all members have equally many
rows in every step, drawn from their own parts. No member then waits for one with more rows, and
JAX, which compiles for each length, compiles once. The learning curve then depends on the number of
members.
"""

import mnist
import models
import numpy as np
import pytensor

import synkhronos as synk
from synkhronos.extensions import updates
from synkhronos.extensions.batches import Batches


class Shares:
    """Batches of all rows; for each batch, the row numbers within every member's part."""

    def __init__(self, lengths, size, seed):
        self.batches = Batches(sum(lengths), size, seed)
        self.edges = np.cumsum([0, *lengths])

    def __len__(self):
        return len(self.batches)

    def __iter__(self):
        for rows in self.batches:
            owner = np.searchsorted(self.edges, rows, "right") - 1
            yield [rows[owner == r] - self.edges[r] for r in range(len(self.edges) - 1)]


class EvenShares:
    """Batches of each part, equally long in every step; leftover rows wait for the next epoch."""

    def __init__(self, lengths, size, seed):
        members = len(lengths)
        share = max(1, size // members)
        self.batches = [
            Batches(n, share, seed * members + rank, last="drop") for rank, n in enumerate(lengths)
        ]

    def __len__(self):
        return min(map(len, self.batches))

    def __iter__(self):
        return map(list, zip(*self.batches, strict=False))


def main():
    parser = mnist.arguments(__doc__)
    parser.add_argument("--even", action="store_true", help="members' shares are equally long")
    args = mnist.parse(parser)
    data = mnist.load()
    members = synk.fork(args.members)
    x = pytensor.shared(np.zeros((1, data.train[0].shape[1]), "float32"), name="images")
    y = pytensor.shared(np.zeros(1, "int32"), name="labels")
    synk.scatter([x, y], list(data.train))
    validation, test = (
        [synk.data(array) for array in pair] for pair in (data.validation, data.test)
    )

    net = models.build(args.sizes, data.train[0].shape[1], args.seed)
    rate = mnist.start(args, net, members)
    halves = updates.nesterov_momentum(net.loss, net.params, rate)
    f_grad = synk.function(
        [],
        (net.loss, "avg"),
        updates=[*halves.grad_updates, *net.updates],
        givens={net.x: x, net.y: y},
        sliceable_shareds=[x, y],
    )
    f_update = synk.function([], updates=halves.param_updates)
    accuracy = synk.function([net.x, net.y], net.accuracy)  # a mean over rows: exact

    def step(shares):
        lengths = [len(rows) for rows in shares]
        loss = f_grad(batch_s=shares)
        synk.all_reduce(halves.grad_shared, "avg", weights=lengths)
        f_update()
        return loss, sum(lengths)

    batches = (EvenShares if args.even else Shares)(synk.get_lengths(y), args.batch, args.seed)
    mnist.run(args, rate, batches, step, validation=lambda: accuracy(*validation))
    found = accuracy(*test)
    synk.close()
    mnist.finish(found)


main()
