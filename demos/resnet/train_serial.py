"""Train ResNet-50 on random images in one process: plain PyTensor, to compare with.

    python demos/resnet/train_serial.py [--batch 32] [--members 2] [--size 224] ...

`--members` says whose steps to make: as many rows, and as large a rate.
"""

import resnet

from synkhronos.extensions import make_train_function_pytensor, updates


def main():
    args = resnet.arguments(__doc__).parse_args()
    members = args.members or 1
    net = resnet.net(args)
    print(f"ResNet-{args.depth}: {net.size():,} weights")
    train = make_train_function_pytensor(
        net.loss,
        net.params,
        net.x,
        net.y,
        updates.nesterov_momentum,
        resnet.RATE * args.batch * members,
        updates=net.updates,
        mode=args.mode,
    )
    x, y = resnet.images(args)
    resnet.run(args, members, lambda batch: train(x, y, batch=batch))


main()
