"""A run that was killed, whoever of it, and resumed, ends as an unbroken one (promise 14)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from selection import thorough
from user_scripts import run_script

TEXT = """
    import os, random, signal, sys, time
    import numpy as np, pytensor, pytensor.tensor as pt, synkhronos as synk
    from synkhronos.extensions import Batches, make_train_function, updates
    from synkhronos.extensions._saving.random_streams import fetch_states
    from synkhronos.extensions.checkpoints import Checkpoints
    from pytensor.compile.mode import Mode

    FAST = Mode("py", None)  # as in the tests
    EPOCHS, rows = 3, np.random.default_rng(1).normal(size=(30, 4))

    def train(folder, rule, say):
        # to the end, from where the last checkpoint was; dropout in every member
        synk.fork(2)
        x = pt.matrix("x", dtype="float64")
        w = pytensor.shared(np.linspace(-1, 1, 12).reshape(4, 3), name="w")
        v = pytensor.shared(np.ones(3), name="v")
        rng = pytensor.shared(np.random.default_rng(7), name="rng")
        after, mask = pt.random.bernoulli(0.7, size=x.shape, rng=rng, return_next_rng=True)
        loss = ((pt.tanh((x * mask) @ w) @ v - 1) ** 2).mean()
        step = make_train_function(loss, [w, v], x, None, getattr(updates, rule), 0.05,
                                   updates=[(rng, after)], mode=FAST)
        batches = Batches(len(rows), 6, seed=3)
        kept = Checkpoints(folder, step, batches)
        if kept.steps():
            kept.restore()
        say(b"w%d\\n" % synk._engine.group.current().channel.pid(1))
        count = kept.steps()[-1] if kept.steps() else 0
        while batches.epoch < EPOCHS:
            for chosen in batches:
                step(rows[chosen])
                count += 1
                say(b"s%d\\n" % count)
                if count % 2 == 0:
                    kept.save(count)
        final = [p.get_value().tobytes() for p in (w, v, *step.state)]
        draws = fetch_states(synk._engine.group.current(), [rng])
        synk.close()
        return repr((count, final, draws)).encode()

    def child(folder, rule):
        read, write = os.pipe()
        pid = os.fork()
        if pid:
            os.close(write)
            return pid, os.fdopen(read, "rb")
        code = 3
        try:
            os.setpgid(0, 0)
            result = train(folder, rule, lambda text: os.write(write, text))
            os.write(write, b"e" + result + b"\\n")
            code = 0
        except synk.WorkerDied:
            code = 7
        finally:
            os._exit(code)

    def finish(pid, pipe):
        with pipe:
            lines = pipe.read().split(b"\\n")
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        return code, next((line for line in lines if line[:1] == b"e"), None)

    rule, times = sys.argv[1], int(sys.argv[2])
    draw = random.Random(rule)
    # here, so that what it imports is there for all children
    unbroken = b"e" + train("unbroken", rule, lambda text: None)
    killed = {-9: 0, 7: 0}
    for trial in range(times):
        done = 0
        while True:
            pid, pipe = child(f"broken-{trial}", rule)
            worker = int(pipe.readline()[1:])
            last = done + draw.randint(1, 12)
            while (line := pipe.readline())[:1] == b"s" and int(line[1:]) < last:
                pass
            if line[:1] == b"s":
                time.sleep(draw.uniform(0, 0.004))
                os.kill(draw.choice((pid, worker)), signal.SIGKILL)
                done = max(0, int(line[1:]) - 2)
            code, found = finish(pid, pipe)
            found = line if line[:1] == b"e" else found
            if found:
                assert code in (0, -9, 7), code
                break
            killed[code] += 1
        assert found.strip() == unbroken, trial
    assert sum(killed.values()) >= times
    print(rule, "broken", sum(killed.values()), "times, of which by a worker", killed[7])
"""
RULES = ("momentum", "adam", "sgd", "nesterov_momentum", "adagrad", "rmsprop", "adadelta", "adamax")


@pytest.mark.parametrize("times", [1, *thorough(3)])
def test_resumed_after_kills(tmp_path: Path, trials: Callable[[Any, Any], Any], times: int) -> None:
    """Bit for bit, with the masks that every member draws."""
    for rule in trials(("adam",), RULES):
        print(run_script(tmp_path, TEXT, rule, str(trials(times, 12))).strip())
