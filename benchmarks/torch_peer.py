"""PyTorch trains the benchmark's network, in one process or with DDP over gloo; see contenders.py.

python benchmarks/torch_peer.py RULE BATCH PROCESSES
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

if "--help" in sys.argv:
    raise SystemExit(print(sys.modules["__main__"].__doc__))

GIVEN = sys.argv[1:]
sys.argv = ["contenders", "torch", "-", "-", "-", str(3 - int(GIVEN[-1]))]  # what it looks at

import contenders  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.multiprocessing as mp  # noqa: E402
from torch import nn  # noqa: E402

TIMEOUT = 300  # seconds


def network() -> Any:
    layers: list[Any] = []
    for a, b in zip(contenders.SIZES[:-1], contenders.SIZES[1:], strict=True):
        layers += [nn.Linear(a, b), nn.ReLU()]
    net = nn.Sequential(*layers[:-1])
    with torch.no_grad():
        for p, w in zip(net.parameters(), contenders.weights(), strict=True):
            p.copy_(torch.from_numpy(w.T.copy() if w.ndim == 2 else w))
    return net


def work(rank: int, rule: str, batch: int, size: int, orders: Any, answers: Any, port: int) -> None:
    """A process: its part of every batch."""
    torch.set_num_threads(1 if size > 1 else 2)
    net = network()
    if size > 1:
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        dist.init_process_group("gloo", rank=rank, world_size=size)
        net = nn.parallel.DistributedDataParallel(net)
    if rule == "nesterov":
        how = {"lr": contenders.RATE, "momentum": 0.9, "nesterov": True}
        optimizer: Any = torch.optim.SGD(net.parameters(), **how)
    else:
        optimizer = torch.optim.Adam(net.parameters())
    images, one_hot = contenders.data()
    x, y = torch.from_numpy(images), torch.from_numpy(one_hot.argmax(1))
    rows = contenders.batches(batch)

    def step() -> None:
        mine = next(rows)[rank * batch // size : (rank + 1) * batch // size]
        index = torch.from_numpy(mine)
        optimizer.zero_grad(set_to_none=True)
        nn.functional.cross_entropy(net(x[index]), y[index]).backward()
        optimizer.step()

    step()
    answers.put(None)
    while (n := orders.get()) is not None:
        if size > 1:
            dist.barrier()
        began = time.perf_counter()
        for _ in range(n):
            step()
        answers.put(time.perf_counter() - began)


def main() -> None:
    import random

    sys.argv = [__file__, *GIVEN]  # spawned processes read it again
    rule, batch, size = GIVEN[0], int(GIVEN[1]), int(GIVEN[2])
    context = mp.get_context("spawn")
    queues = [(context.Queue(), context.Queue()) for _ in range(size)]
    port = random.randint(21000, 28000)
    for rank, (orders, answers) in enumerate(queues):
        given = (rank, rule, batch, size, orders, answers, port)
        context.Process(target=work, args=given, daemon=True).start()
    for _, answers in queues:
        answers.get(timeout=TIMEOUT)
    print("ready", json.dumps({"torch": torch.__version__}), flush=True)
    for line in sys.stdin:
        for orders, _ in queues:
            orders.put(int(line))
        took = max(answers.get(timeout=TIMEOUT) for _, answers in queues)
        print(json.dumps({"seconds": took, "phases": {}}), flush=True)


if __name__ == "__main__":
    main()
