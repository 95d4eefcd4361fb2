"""Train ResNet-50 on random images with all members; each step divides its rows over them.

    python demos/resnet/train_resnet.py [--batch 32] [--devices cuda] [--members 2] [--size 224] ...

The images lie once in memory that all members read, and each member takes its rows of a shuffled
list from there. Rows of a step, and the rate, grow with the number of members. Batch normalisation
is over the rows of all members, so the losses are those of train_serial.py.

`--compare` then makes the same steps in one process, and says how far the losses are apart. In
float32 what rounding changes grows from step to step, the faster the fewer rows there are for
batch normalisation; `--dtype float64` shows that nothing else is different.
"""

import resnet

import synkhronos as synk
from synkhronos.extensions import make_train_function


def main():
    parser = resnet.arguments(__doc__)
    parser.add_argument("--devices", help="such as cuda, cuda:0,cuda:1 or cpu")
    parser.add_argument("--compare", action="store_true", help="with the steps of one process")
    args = parser.parse_args()
    members = synk.fork(args.members, devices=args.devices)
    net = resnet.net(args)
    print(f"ResNet-{args.depth}: {net.size():,} weights, {members} members", flush=True)
    train = make_train_function(
        net.loss,
        net.params,
        net.x,
        net.y,
        *resnet.rule(args, members),
        updates=net.updates,
        mode=args.mode,
    )
    x, y = map(synk.data, resnet.images(args))
    losses = resnet.run(args, members, lambda batch: train(x, y, batch=batch))
    synk.close()
    if args.compare:
        pairs = zip(losses, resnet.run_serial(args, members), strict=True)
        apart = ", ".join(f"{abs(a - b) / abs(b):.1e}" for a, b in pairs)
        print(f"apart, as a share of the loss, step by step: {apart}")


main()
