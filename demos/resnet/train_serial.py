"""Train ResNet-50 on random images in one process with plain PyTensor, for comparison.

    python demos/resnet/train_serial.py [--batch 32] [--members 2] [--size 224] ...

`--members` makes the steps of a group of that size: the same number of rows, the same learning
rate.
"""

import resnet


def main():
    args = resnet.arguments(__doc__).parse_args()
    resnet.run_serial(args, args.members or 1)


main()
