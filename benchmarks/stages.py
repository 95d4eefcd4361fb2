"""Where the time of a small call goes: microseconds until each stage, in the master and a worker.

The sum of 1,000 float32 by two members, back to back and after pauses. Clocks are put around the
package's own methods; they take about 2 us of a call.

    python benchmarks/stages.py [--calls 5000] [--pause 0.02]
"""

from __future__ import annotations

import argparse
import mmap
import time
from typing import Any

import numpy as np
import pytensor.tensor as pt
from common import describe_machine, show

import synkhronos as synk
from synkhronos._engine.commands.call import Call
from synkhronos._transport.channels.one_node import OneNodeChannel
from synkhronos._transport.channels.one_node_end import OneNodeEnd

STAGES = (  # by the number of their word
    "the master begins to post",
    "the command is posted",
    "the worker has noticed it",
    "the worker has read it",
    "the worker has computed its part",
    "the worker has reported",
    "the master has computed its part",
    "the master has collected the report",
)
AFTER_PAUSES = 200  # calls


def stamped(owner: type, name: str, before: Any, after: Any) -> None:
    """Write the time before and after a method: `before(self)` and `after(self)` name the word."""
    method = getattr(owner, name)

    def wrapped(self: Any, *args: Any) -> Any:
        if (word := before(self, *args)) is not None:
            WORDS[word] = time.perf_counter()
        found = method(self, *args)
        if (word := after(self, *args)) is not None:
            WORDS[word] = time.perf_counter()
        return found

    setattr(owner, name, wrapped)


# shared with the worker, which is forked
WORDS = np.frombuffer(mmap.mmap(-1, 4096), np.float64)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=5000)
    parser.add_argument("--pause", type=float, default=0.02, help="seconds")
    options = parser.parse_args()
    describe_machine()
    stamped(OneNodeChannel, "post", lambda *_: 0, lambda *_: 1)
    stamped(OneNodeEnd, "next", lambda *_: None, lambda *_: 2)
    stamped(Call, "run", lambda _, m: 3 if m.rank else None, lambda _, m: 4 if m.rank else 6)
    stamped(OneNodeEnd, "report", lambda *_: None, lambda *_: 5)
    stamped(OneNodeChannel, "collect", lambda *_: None, lambda *_: 7)
    x = pt.fvector("x")
    with synk.Group(2, start="fork"):
        f = synk.function([x], (x.sum(), "sum"))
        data = synk.data(np.ones(1000, "float32"))
        for _ in range(1000):
            f(data)
        columns = []
        for calls, pause in ((options.calls, 0.0), (AFTER_PAUSES, options.pause)):
            found = []
            for _ in range(calls):
                if pause:
                    time.sleep(pause)
                began = time.perf_counter()
                f(data)
                found.append([*(WORDS[: len(STAGES)] - began), time.perf_counter() - began])
            columns.append(1e6 * np.median(found, axis=0))
    names = [*STAGES, "the call returns"]
    show(
        "Microseconds since the call began, medians",
        ["until", "back to back", f"after {1e3 * options.pause:.0f} ms"],
        [[name, *map(float, row)] for name, *row in zip(names, *columns, strict=True)],
    )


if __name__ == "__main__":
    main()
