"""The network, the images and the command line of the demos in this folder.

ResNet-50 (He et al., arXiv:1512.03385), with the stride in the 3x3 convolution of a block, and
batch normalisation over the rows of all members. Other depths have other numbers of blocks.
"""

import argparse
import itertools
import time

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor_ml.activations import ReLU
from pytensor_ml.layers import Input, Linear
from pytensor_ml.model import Model

from synkhronos.extensions import Batches, make_train_function_pytensor, updates
from synkhronos.nn import BatchNorm, Conv2D, MaxPool2D, state_updates

BLOCKS = {14: (1, 1, 1, 1), 26: (2, 2, 2, 2), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3)}
DIGITS = {"float32": 5, "float64": 12}  # of a loss
RATE = 0.1 / 256  # for each row of a step, in any member (Goyal et al., arXiv:1706.02677)


class Net:
    """The graph and its variables.

    Attributes
    ----------
    x, y : the inputs: images (rows, size, size, 3) and their labels
    params : list of shared variables
    loss : mean cross-entropy
    updates : the running values of batch normalisation, to use together with the loss
    """

    def __init__(self, depth, size, classes, seed=0):
        self.x = Input("x", (None, size, size, 3), pytensor.config.floatX)
        self.y = pt.ivector("y")
        images = ReLU()(self._conv("stem", self.x, 3, 64, 7, 2))
        images = MaxPool2D(kernel_size=3, stride=2, padding=1)(images)
        channels = 64
        for stage, blocks in enumerate(BLOCKS[depth]):
            for block in range(blocks):
                stride = 2 if stage and not block else 1
                name = f"stage{stage}_block{block}"
                images = self._block(name, images, channels, 64 << stage, stride)
                channels = 256 << stage
        scores = Linear("scores", n_in=channels, n_out=classes)(images.mean(axis=(1, 2)))
        self.params = Model(scores).initialize(seed).weights
        log_p = pt.special.log_softmax(scores, axis=1)
        self.loss = -log_p[pt.arange(self.y.shape[0]), self.y].mean()
        self.updates = state_updates(self.loss)

    def _block(self, name, images, channels, inner, stride):
        """Convolutions of 1x1, 3x3 and 1x1, added to the images or to a projection of them."""
        new = 4 * inner
        beside = images
        if stride > 1 or channels != new:
            beside = self._conv(f"{name}_beside", images, channels, new, 1, stride)
        images = ReLU()(self._conv(f"{name}_0", images, channels, inner, 1))
        images = ReLU()(self._conv(f"{name}_1", images, inner, inner, 3, stride))
        return ReLU()(self._conv(f"{name}_2", images, inner, new, 1) + beside)

    def _conv(self, name, images, channels, new, window, stride=1):
        conv = Conv2D(
            name,
            in_channels=channels,
            out_channels=new,
            kernel_size=window,
            stride=stride,
            padding=window // 2,
            bias=False,
        )
        return BatchNorm(f"{name}_norm", n_in=new)(conv(images))

    def size(self):
        return sum(p.get_value(borrow=True).size for p in self.params)


def images(args):
    """Random images of ImageNet's shape, and labels."""
    rng = np.random.default_rng(args.seed)
    shape = (args.rows, args.size, args.size, 3)
    labels = rng.integers(0, args.classes, args.rows).astype("int32")
    return rng.standard_normal(shape, dtype=args.dtype), labels


def arguments(doc):
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    for name, default, text in [
        ("batch", 32, "rows of a member"),
        ("size", 224, "pixels to a side"),
        ("rows", 1024, "images in all"),
        ("classes", 1000, "labels"),
        ("steps", 20, "to make"),
        ("seed", 0, "of images, weights and order"),
    ]:
        parser.add_argument(f"--{name}", type=int, default=default, help=f"{text} ({default})")
    parser.add_argument("--depth", type=int, default=50, choices=BLOCKS, help="layers (50)")
    parser.add_argument("--members", type=int, help="in the group")
    parser.add_argument("--mode", default="JAX", help="of PyTensor (JAX)")
    parser.add_argument("--dtype", default="float32", choices=DIGITS, help="(float32)")
    return parser


def net(args):
    """Make the network that the command line asks for."""
    pytensor.config.floatX = args.dtype  # of the layers, and of JAX when it compiles the net
    return Net(args.depth, args.size, args.classes, args.seed)


def rule(args, members):
    """The update rule and its rate, which grows with the rows of a step."""
    return updates.nesterov_momentum, RATE * args.batch * members


def run(args, members, step):
    """Make the steps with shuffled lists of rows, epoch after epoch; return the losses."""
    rows = args.batch * members
    batches = Batches(args.rows, rows, args.seed, last="drop")
    if not len(batches):
        raise SystemExit(f"--rows {args.rows}: fewer than the {rows} rows of a step")
    digits = DIGITS[args.dtype]
    losses, seconds = [], []
    endless = itertools.chain.from_iterable(itertools.repeat(batches))
    for batch in itertools.islice(endless, args.steps):
        began = time.perf_counter()
        losses.append(float(step(batch)))
        seconds.append(time.perf_counter() - began)
        print(f"step {len(losses)}: loss {losses[-1]:.{digits}f}", flush=True)
    if len(seconds) > 2:
        print(f"{rows / np.median(seconds[2:]):.1f} images/s")
    return losses


def run_serial(args, members):
    """Make the steps of this many members in one process, in plain PyTensor; return the losses."""
    made = net(args)
    print(f"ResNet-{args.depth}: {made.size():,} weights, 1 process", flush=True)
    train = make_train_function_pytensor(
        made.loss,
        made.params,
        made.x,
        made.y,
        *rule(args, members),
        updates=made.updates,
        mode=args.mode,
    )
    x, y = images(args)
    return run(args, members, lambda batch: train(x, y, batch=batch))
