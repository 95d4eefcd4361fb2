"""Where rows come from: files of many kinds, as sources for a Loader.

A *source* has a length, a `shape` and a `dtype`, and gives rows for an array of their numbers.
`Loader` takes one, or several with equal lengths, and reads them ahead of the training::

    x = sources.hdf5("train.list", "features")
    y = sources.hdf5("train.list", "labels", classes=10)
    batches = Batches(len(x), 512, blocks=x.blocks)
    with Loader([x, y], batches, prefetch=4) as loader:
        for epoch in range(20):
            for rows, labels in loader:
                train(rows, labels)

`npy`, `hdf5`, `npz`, `zarr`, `parquet`, `csv`, `idx`
    Arrays or columns in files. Paths are one, several, or a file that ends in ``.list`` and has
    one path on each line. For `npz`, `parquet` and `csv`, a folder stands for the files in it.
`images`
    A folder with a subfolder for each class, or a list of paths and labels.
`cifar10`
    The records of CIFAR-10's binary files.
`synthetic`
    Rows that are computed from their numbers.
`known`
    MNIST and scikit-learn's digits, in memory.

Options of all readers of files:

cache : path
    A folder for copies of remote files, by fsspec: ``"s3://bucket/x.h5"``, or
    ``"filecache::s3://..."`` without `cache`, with options in fsspec's own configuration. A copy is
    never written again: a file that has changed is copied under another name. A source keeps the
    version that it was made from, and raises if it needs another copy of it and the file has
    changed. On several nodes each has its own folder. fsspec's drivers start threads that stay:
    start the group first.
skip : bool
    Leave out what cannot be read. Files that cannot be described are left out when the source is
    made, and ``source.skipped`` names them. Rows that turn out to be damaged are left out of their
    batch, which is then shorter; ``loader.skipped`` counts them, and a log line names them once.
check : bool
    Refuse NaN in rows that are read.
classes : int
    Refuse labels that are not from 0 to classes - 1.
keep : int
    Decoded blocks to keep in memory: a few more than the `window` of `Batches`.

An error is a `synkhronos.SourceError`. It names the file and the row; in a loop of a Loader, a note
adds batch and epoch.

Files are opened by the thread that reads, and closed at the end of a loop. A source can be pickled
into a few numbers for each file, and other processes open the files by the same paths.
"""

from synkhronos._public import belong_to as _belong_to
from synkhronos.training.sources._csv import csv
from synkhronos.training.sources._files import FileSource
from synkhronos.training.sources._hdf5 import hdf5
from synkhronos.training.sources._idx import cifar10, idx
from synkhronos.training.sources._images import ImageSource, images
from synkhronos.training.sources._known import Split, known
from synkhronos.training.sources._npy import npy
from synkhronos.training.sources._npz import npz
from synkhronos.training.sources._parquet import parquet
from synkhronos.training.sources._synthetic import SyntheticSource, synthetic
from synkhronos.training.sources._zarr import zarr

__all__ = [
    "FileSource",
    "ImageSource",
    "Split",
    "SyntheticSource",
    "cifar10",
    "csv",
    "hdf5",
    "idx",
    "images",
    "known",
    "npy",
    "npz",
    "parquet",
    "synthetic",
    "zarr",
]

_belong_to(__name__, [globals()[name] for name in __all__])
