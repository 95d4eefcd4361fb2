"""Rows a second of an MLP's training, with rows from files and from memory.

784-800-800-10, float32, one training step a batch. The rows are like MNIST's: four fifths are zero.
With `--bytes` they are uint8 in files and in memory, and the network divides them by 255.
All contenders train the same network in one group, and take turns; the table gives medians over the
rounds, and ratios within rounds. "Processor time" is that of all members together, against rows in
memory: beside other work it tells more than the rate. "Decoding" is the time that one thread needs
to read all rows once without training, as a part of the time that training takes with rows in
memory.

With `--csv` nothing is trained: a CSV file of these rows, with eight columns of floats, one of
integers and one of texts, is converted and read by one thread, and read whole by pandas.

    python benchmarks/sources.py [--rows 60000] [--batch 512] [--members 2] [--rounds 7]
                                 [--prefetch 4] [--window 8] [--bytes]
    python benchmarks/sources.py --csv --rows 1000000 [--batch 512] [--rounds 5]
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
from common import describe_machine, show

import synkhronos as synk
from synkhronos.extensions import Batches, Loader, make_train_function, updates
from synkhronos.training import sources

SIZES = (784, 800, 800, 10)
CHUNK = 500  # rows


def network(dtype: np.dtype) -> tuple[Any, Any, list[Any], Any]:
    """Inputs, labels (one-hot), parameters and the loss."""
    rng = np.random.default_rng(1)
    x, y = pt.matrix("x", dtype=dtype.name), pt.fmatrix("y")
    params, h = [], x if dtype == np.float32 else x.astype("float32") * np.float32(1 / 255)
    for i, (a, b) in enumerate(itertools.pairwise(SIZES)):
        w = pytensor.shared((rng.standard_normal((a, b)) / np.sqrt(a)).astype(np.float32))
        params += [w, pytensor.shared(np.zeros(b, np.float32))]
        h = (pt.maximum(h, 0) if i else h) @ w + params[-1]
    return x, y, params, -(pt.special.log_softmax(h, axis=1) * y).sum(axis=1).mean()


def images(rows: int, whole: bool) -> np.ndarray:
    """As those of MNIST: bytes divided by 255, most of them 0."""
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (rows, 784), dtype=np.uint8)
    pixels[rng.random(pixels.shape, dtype=np.float32) < 0.8] = 0
    return pixels if whole else pixels.astype(np.float32) / np.float32(255)


def write_all(folder: Path, x: np.ndarray) -> dict[str, Callable[[], Any]]:
    """Files of each format, and what makes their sources."""
    import h5py
    import pyarrow as pa
    from pyarrow import parquet
    from zarr.api import asynchronous

    np.save(folder / "x.npy", x)
    with h5py.File(folder / "x.h5", "w") as file:
        file.create_dataset("plain", data=x, chunks=(CHUNK, 784))
        file.create_dataset("gzip", data=x, chunks=(CHUNK, 784), compression="gzip", shuffle=True)

    async def write() -> None:
        made = await asynchronous.create_array(
            str(folder / "x.zarr"), shape=x.shape, dtype=x.dtype, chunks=(CHUNK, 784)
        )
        await made.setitem(..., x)

    asyncio.run(write())
    lists = pa.FixedSizeListArray.from_arrays(pa.array(x.ravel()), 784)
    parquet.write_table(pa.table({"x": lists}), folder / "x.parquet", row_group_size=CHUNK)
    return {
        "npy, mapped": lambda: sources.npy(folder / "x.npy"),
        "HDF5, chunks": lambda: sources.hdf5(folder / "x.h5", "plain"),
        "HDF5, chunks, gzip": lambda: sources.hdf5(folder / "x.h5", "gzip"),
        "zarr, zstd": lambda: sources.zarr(folder / "x.zarr"),
        "Parquet, snappy": lambda: sources.parquet(folder / "x.parquet", "x"),
    }


def processor_seconds() -> float:
    """Of all members so far."""
    group = synk.current_group()
    ticks = 0
    for rank in range(group.size):
        pid = os.getpid() if rank == group.master else group.channel.pid(rank)
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def seconds(call: Callable[[], Any]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("rows", 60_000), ("batch", 512), ("members", 2), ("rounds", 7)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--prefetch", type=int, default=4)
    parser.add_argument("--window", type=int, default=8)
    parser.add_argument("--bytes", action="store_true")
    parser.add_argument("--csv", action="store_true")
    args = parser.parse_args()
    describe_machine()
    if args.csv:
        run_csv(args)
        return
    x = images(args.rows, args.bytes)
    y = np.eye(10, dtype=np.float32)[np.random.default_rng(1).integers(0, 10, args.rows)]
    synk.fork(args.members)
    vx, vy, params, loss = network(x.dtype)
    train = make_train_function(loss, params, vx, vy, updates.sgd, learning_rate=0.01)
    with tempfile.TemporaryDirectory() as name:
        run(args, Path(name), x, y, train)
    synk.close()


def run(args: Any, folder: Path, x: np.ndarray, y: np.ndarray, train: Any) -> None:
    made = write_all(folder, x)
    data = synk.data(x), synk.data(y)
    plain = Batches(args.rows, args.batch, last="drop")

    def in_memory() -> None:
        for rows in plain:
            train(*data, batch=rows)

    epochs: dict[str, Callable[[], None]] = {"memory, batch=": in_memory}
    waited: dict[str, Callable[[], float]] = {}
    decoding: dict[str, float] = {}
    everything: dict[str, Any] = {"memory, Loader": x, **{n: make() for n, make in made.items()}}
    for label, source in everything.items():
        blocks = getattr(source, "blocks", None)
        order = Batches(args.rows, args.batch, last="drop", blocks=blocks, window=args.window)
        loader = Loader([source, y], order, prefetch=args.prefetch)

        def epoch(loader: Loader = loader) -> None:
            for batch in loader:
                train(*batch)

        epochs[label] = epoch
        waited[label] = lambda loader=loader: loader.waited
        if blocks is not None:
            decoding[label] = median(
                seconds(lambda s=source, o=order: read_all(s, o)) for _ in range(3)
            )
    for call in epochs.values():
        call()  # compiles, and fills the page cache
    found: dict[str, list[float]] = {label: [] for label in epochs}
    used: dict[str, list[float]] = {label: [] for label in epochs}
    before = {label: get() for label, get in waited.items()}
    for turn in range(args.rounds):
        for label in rotated(epochs, turn):
            began = processor_seconds()
            found[label].append(seconds(epochs[label]))
            used[label].append(processor_seconds() - began)
    report(args, found, used, {n: get() - before[n] for n, get in waited.items()}, decoding)


def read_all(source: Any, order: Batches) -> None:
    with source.reading():
        for rows in order:
            source[rows]


FLOATS = [f"x{i}" for i in range(8)]
KINDS = ["setosa", "versicolor", "virginica"]


def run_csv(args: Any) -> None:
    """Each round converts the file anew; the ways take turns."""
    import pandas as pd

    rng = np.random.default_rng(0)
    table = pd.DataFrame({name: rng.standard_normal(args.rows).round(6) for name in FLOATS})
    table["n"], table["kind"] = rng.integers(0, 100, args.rows), rng.choice(KINDS, args.rows)
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "x.csv"
        table.to_csv(path, index=False)
        found: dict[str, list[tuple[float, float]]] = {}
        for turn in range(args.rounds):
            cache = Path(name) / str(turn)
            read = csv_ways(path, cache, args)
            for label, call in read.items():
                began = time.perf_counter(), time.process_time()
                call()
                took = time.perf_counter() - began[0], time.process_time() - began[1]
                found.setdefault(label, []).append(took)
        size = path.stat().st_size / 1e6
    rows = []
    for label, took in found.items():
        clock, processor = (median(t[i] for t in took) for i in (0, 1))
        rows.append([label, f"{clock:.2f}", f"{processor:.2f}", f"{args.rows / clock:,.0f}"])
    title = f"CSV of {args.rows:,} lines, 10 columns, {size:.0f} MB; medians of {args.rounds}"
    show(title, ["", "seconds", "processor s", "rows/s"], rows)


def csv_ways(path: Path, cache: Path, args: Any) -> dict[str, Callable[[], Any]]:
    import pandas as pd

    def x() -> Any:
        return sources.csv(path, [*FLOATS, "n"], cache=cache)

    def y() -> Any:
        return sources.csv(path, "kind", classes=KINDS, cache=cache)

    def epoch() -> None:
        rows, labels = x(), y()
        order = Batches(args.rows, args.batch, blocks=rows.blocks, window=args.window)
        with rows.reading(), labels.reading():
            for numbers in order:
                rows[numbers], labels[numbers]

    return {
        "convert": x,
        "make both sources": lambda: (x(), y()),
        "an epoch of shuffled batches": epoch,
        "all rows": lambda: (x()[:], y()[:]),
        "pandas.read_csv": lambda: pd.read_csv(path),
        "pandas.read_csv, engine pyarrow": lambda: pd.read_csv(path, engine="pyarrow"),
    }


def rotated(labels: dict[str, Any], turn: int) -> Iterator[str]:
    start = turn % len(labels)
    return itertools.chain(list(labels)[start:], list(labels)[:start])


def report(
    args: Any,
    found: dict[str, list[float]],
    used: dict[str, list[float]],
    waited: dict[str, float],
    decoding: dict[str, float],
) -> None:
    base = next(iter(found))
    rows = args.rows // args.batch * args.batch
    table = []
    for label, took in found.items():
        ratios = [b / t for b, t in zip(found[base], took, strict=True)]
        table.append(
            [
                label,
                f"{rows / median(took):,.0f}",
                f"{median(ratios):.1%}".replace("%", " %"),
                f"{min(ratios):.0%} to {max(ratios):.0%}".replace("%", " %"),
                f"{median(used[label]) / median(used[base]):.0%}".replace("%", " %"),
                f"{waited.get(label, 0) / sum(took):.0%}".replace("%", " %"),
                f"{decoding[label] / median(found[base]):.0%}".replace("%", " %")
                if label in decoding
                else "",
            ]
        )
    title = (
        f"{'uint8' if args.bytes else 'float32'}, batches of {args.batch}, {args.members} members, "
        f"prefetch {args.prefetch}, window {args.window}, chunks of {CHUNK} rows"
    )
    columns = [
        "rows from",
        "rows/s",
        "of memory",
        "all rounds",
        "processor time",
        "loop waited",
        "decoding",
    ]
    show(title, columns, table)


if __name__ == "__main__":
    main()
