"""Train ResNet-50 on random images with all members; each step divides its rows over them.

    python demos/resnet/train_resnet.py [--batch 32] [--devices cuda] [--members 2] [--size 224] ...

All members read one copy of the images in shared memory, and each takes its rows of a shuffled
list. The rows of a step and the learning rate grow with the number of members. Batch normalisation
uses the rows of all members, so the losses equal those of train_serial.py.

`--compare` then makes the same steps in one process, and prints the differences of the losses. In
float32 the effect of rounding grows from step to step; fewer rows for batch normalisation make it
grow faster. `--dtype float64` shows that there is no other difference.
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
        print(f"relative differences of the losses, by step: {apart}")


main()
