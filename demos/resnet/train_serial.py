"""Train ResNet-50 on random images in one process: plain PyTensor, to compare with.

    python demos/resnet/train_serial.py [--batch 32] [--members 2] [--size 224] ...

`--members` says whose steps to make: as many rows, and as large a rate.
"""

import resnet


def main():
    args = resnet.arguments(__doc__).parse_args()
    resnet.run_serial(args, args.members or 1)


main()
