"""From a script's start to its first draw: whole scripts, each run in a process of its own.

Eight small models, 1,000 + 1,000 draws, 2 chains on 2 cores, by `pm.sample`, `synk.pymc.sample` and
stanli (if it is installed). Cases:

    first    caches are empty, as on a fresh machine
    again    the same script once more
    data     the same model in another process, with other data of other lengths
    edited   the model has one more parameter; all other caches are as after "first"

Contenders take turns. Times are those of the clock and of processors: of the call, and of the whole
script from the start of the interpreter to the draws. Of stanli no tree of draws is made.

"functions" compares the second process that compiles the gradient of a model by `pytensor.function`
and by `synk.function`, and one that runs the first step of `fit`.

    python benchmarks/first_draw.py [--runs 5] [--cases first,again,data,edited,functions]
        [--contenders pm.sample,synk.pymc.sample,stanli] [MODEL ...]
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

from common import answer_help, describe_machine, show
from first_draw_models import MODELS, model_of, stan_data

STAN, PLAIN, OURS = "stanli", "pm.sample", "synk.pymc.sample"
CASES = ("again", "data", "edited", "first", "functions")
DRAWS, CHAINS = 1000, 2
FUNCTIONS = ("pytensor.function", "synk.function", "fit")

type Times = dict[str, float]


def now() -> tuple[float, float]:
    """Seconds of the clock, and of processors for this process and those that it has waited for."""
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return time.monotonic(), sum(each.ru_utime + each.ru_stime for each in usage)


def child(what: str, contender: str, case: str, seed: int) -> None:
    """Do it once; print the seconds of the call."""
    call = prepared(what, contender, case, seed)
    before = now()
    call()
    clock, processors = (b - a for a, b in zip(before, now(), strict=True))
    print(json.dumps({"call": clock, "call, cpu": processors}))


def prepared(what: str, contender: str, case: str, seed: int) -> Callable[[], Any]:
    """What is timed, with all imports that a script has at its top."""
    if contender in FUNCTIONS:
        return function_of(contender)
    longer = case == "data"
    if contender == STAN:
        import stanli

        data = stan_data(what, longer, longer)

        def by_stan() -> Any:
            program = stanli.Model(stan_code=MODELS[what].program(), data=data, fast_math=True)
            given = {"warmup": DRAWS, "samples": DRAWS, "seed": seed, "refresh": 0}
            fit = program.sample(chains=CHAINS, parallel_chains=CHAINS, **given)
            return {key: fit.draws(key) for key in fit}

        return by_stan
    import pymc as pm

    if contender == OURS:
        import synkhronos.pymc

        sample = synkhronos.pymc.sample
    else:
        sample = pm.sample
    model = model_of(what, longer, longer, case == "edited")
    given = {"draws": DRAWS, "tune": DRAWS, "chains": CHAINS, "cores": CHAINS, "random_seed": seed}
    return lambda: sample(model=model, progressbar=False, quiet=True, **given)


def function_of(contender: str) -> Callable[[], Any]:
    """The first value of the gradient of an MLP; or the first step of `fit`."""
    import numpy as np
    import pytensor
    import pytensor.tensor as pt

    import synkhronos as synk

    r = np.random.default_rng(0)
    sizes = (20, 50, 50, 3)
    weights = [
        pytensor.shared(0.1 * r.normal(size=pair), name=f"w{number}")
        for number, pair in enumerate(pairwise(sizes))
    ]
    x, y = pt.dmatrix("x"), pt.lvector("y")
    hidden = x
    for weight in weights[:-1]:
        hidden = pt.tanh(hidden @ weight)
    scores = pt.special.log_softmax(hidden @ weights[-1], axis=1)
    loss = -scores[pt.arange(y.shape[0]), y].mean()
    data = [r.normal(size=(64, 20)), r.integers(0, 3, 64)]
    synk.fork(1)
    if contender == "fit":
        from synkhronos.extensions import make_train_function, updates
        from synkhronos.training import Trainer

        def step() -> Any:
            train = make_train_function(loss, weights, x, y, updates.adam)
            Trainer(train, progress=False).fit(data, batch=64, epochs=1)

        return step
    function = synk.function if contender == "synk.function" else pytensor.function
    outputs = [loss, *pytensor.grad(loss, weights)]
    return lambda: function([x, y], outputs)(*data)


def run(what: str, contender: str, case: str, seed: int, home: Path) -> Times | None:
    """The times of a process whose HOME and caches are in this folder; None if it fails."""
    dropped = ("XDG_CACHE_HOME", "NUMBA_CACHE_DIR", "PYTENSORRC", "PYTHONDONTWRITEBYTECODE")
    env = {k: v for k, v in os.environ.items() if k not in dropped}
    env |= {"HOME": str(home), "PYTENSOR_FLAGS": f"base_compiledir={home / 'pytensor'},mode=NUMBA"}
    command = [sys.executable, __file__, "--child", what, contender, case, str(seed)]
    before = now()
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    clock, processors = (b - a for a, b in zip(before, now(), strict=True))
    if done.returncode:
        reason = (done.stderr.splitlines() or [f"exit code {done.returncode}"])[-1]
        print(f"{what}, {contender}, {case}: {reason}", flush=True)
        return None
    found: Times = json.loads(done.stdout.splitlines()[-1])
    return found | {"script": clock, "script, cpu": processors}


def measured(what: str, contenders: list[str], case: str, runs: int) -> dict[str, Times]:
    """Medians of times by contender, which take turns."""
    found: dict[str, list[Times]] = {contender: [] for contender in contenders}
    with tempfile.TemporaryDirectory() as folder:
        filled = {contender: Path(folder, str(n)) for n, contender in enumerate(contenders)}
        for contender, home in filled.items():
            home.mkdir()
            if case != "first":
                run(what, contender, "first", 0, home)
                if case == "again":
                    run(what, contender, case, 0, home)
        for number in range(1, runs + 1):
            for contender, home in filled.items():
                used = Path(folder, "used")
                shutil.copytree(home, used)  # nothing of this run is there in the next one
                times = run(what, contender, case, number, used)
                shutil.rmtree(used)
                found[contender] += [times] if times else []
    return {
        contender: {name: middle([each[name] for each in times]) for name in times[0]}
        for contender, times in found.items()
        if times
    }


def middle(numbers: list[float]) -> float:
    """The median."""
    return sorted(numbers)[len(numbers) // 2]


def table(case: str, found: dict[str, dict[str, Times]]) -> None:
    """Print the times of a case, and those of each contender over the first one's."""
    rows: list[list[Any]] = []
    for what, by_contender in found.items():
        first = next(iter(by_contender.values()))
        for contender, times in by_contender.items():
            seconds = [f"{value:.2f}" for value in times.values()]
            over = [f"{times[name] / first[name]:.2f}" for name in ("call, cpu", "script, cpu")]
            rows.append([f"{what}, {contender}", *seconds, *over])
    columns = ["", "call, s", "processors, s", "script, s", "processors, s"]
    show(case, [*columns, "of first's call", "of its script"], rows)


def main() -> None:
    answer_help(__doc__)
    parser = argparse.ArgumentParser()
    parser.add_argument("models", nargs="*", choices=[[], *MODELS], default=[])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--contenders", default=",".join([PLAIN, OURS, STAN]))
    options = parser.parse_args()
    contenders = options.contenders.split(",")
    if STAN in contenders and importlib.util.find_spec(STAN) is None:
        print("stanli is not installed (pip install stanli): it is left out")
        contenders.remove(STAN)
    describe_machine()
    for case in options.cases.split(","):
        if case == "functions":
            table(case, {"an MLP": measured("an MLP", list(FUNCTIONS), "again", options.runs)})
            continue
        of_case = [each for each in contenders if each != STAN or case != "edited"]
        names = options.models or list(MODELS)
        table(case, {name: measured(name, of_case, case, options.runs) for name in names})


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(*sys.argv[2:5], int(sys.argv[5]))
    else:
        main()
