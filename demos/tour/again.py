"""The same script again: a small PyMC model, in a process of its own each time.

python demos/tour/again.py pm.sample|synk.pymc.sample
"""

import argparse
import subprocess
import sys
import time

from comparing import Compared
from telling import telling

WAYS = "pm.sample", "synk.pymc.sample"


def scripts(runs):
    """Compare the seconds of whole scripts, after one that has filled the caches."""
    seconds = {}
    for way in WAYS:
        with telling(f"a script that calls {way}, and the same script again"):
            seconds[way] = min([seconds_of(way) for _ in range(1 + runs)][1:])
    yield Compared("the same script again", *seconds.values(), "s")


def seconds_of(way):
    begin = time.perf_counter()
    subprocess.run([sys.executable, __file__, way], check=True, stderr=subprocess.DEVNULL)
    return time.perf_counter() - begin


def main(way):
    """Sample the eight schools."""
    import pymc as pm

    sample = pm.sample
    if way == "synk.pymc.sample":
        import synkhronos.pymc

        sample = synkhronos.pymc.sample
    effects, errors = [28, 8, -3, 7, -1, 1, 18, 12], [15, 10, 16, 11, 9, 11, 10, 18]
    with pm.Model():
        mean, spread = pm.Normal("mean", 0, 5), pm.HalfCauchy("spread", 5)
        effect = pm.Deterministic("effect", mean + spread * pm.Normal("z", shape=8))
        pm.Normal("seen", effect, errors, observed=effects)
        sample(chains=2, cores=2, random_seed=1, progressbar=False)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("way", choices=WAYS)
    main(parser.parse_args().way)
