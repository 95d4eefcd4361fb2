"""Systems that have no groups: the faster density, and sampling on one core for each chain."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap

import pytest
from selection import thorough

LACKING = """
    import os, select, signal, sys
    # theirs may know the real system
    import arviz, numba, numpy as np, pandas, pymc as pm, pytensor
    mode = "FAST_COMPILE"
    given = {"tune": 5, "chains": 1, "random_seed": 3, "progressbar": False, "quiet": True}
    given |= {"compute_convergence_checks": False, "compile_kwargs": {"mode": mode}}
    with pm.Model() as model:
        mu = pm.Normal("mu", initval=1.0)
        pm.StudentT("y", nu=3, mu=mu, sigma=1, observed=np.linspace(-1, 4, 50))
        plain = pm.sample(5, **given)  # once for all systems
    for platform in sys.argv[1:]:  # a fork each, which goes on: they import nothing again
        if not os.fork():
            break
        assert os.wait()[1] == 0, platform
    else:
        sys.exit()
    print(platform, flush=True)
    names = ["fork", "memfd_create", "eventfd", "pidfd_open", "sched_getaffinity",
             "sched_setaffinity", "pipe2", "posix_fallocate"]
    for name in names:
        delattr(os, name)
    del select.epoll, signal.pidfd_send_signal
    sys.platform = platform
    if sys.platform == "win32":
        sys.modules.update(dict.fromkeys(["fcntl", "resource"]))
    """
SCRIPT = """
    import logging
    import synkhronos as synk
    group = {"_plan", "_host", "_backends", "_transport", "_engine", "_api"}
    before = set(sys.modules)  # the package itself asks which system this is
    pytensor.config.cxx = ""  # PyTensor's flags for a compiler are those of the other system
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    logging.getLogger("synkhronos").propagate = True
    copy = synk.pymc.fast(model)
    at = {"mu": 0.5}
    values = [m.compile_logp(mode=mode)(at) for m in (model, copy)]
    assert abs(values[0] - values[1]) < 1e-9 * abs(values[0]), values
    ours = [name.split(".") for name in sys.modules.keys() - before if name[:11] == "synkhronos."]
    assert ours and not [name for name in ours if name[1] in group], ours
    from synkhronos.pymc._chains import sampling as _sampling
    _sampling._CHEAP_SECONDS = 0.0
    with model:
        found = synk.pymc.sample(5, **given | {"quiet": False})
    np.testing.assert_allclose(found.posterior["mu"], plain.posterior["mu"], rtol=1e-6)
    with synk.pymc.everywhere(), model:
        whoever = pm.sample(5, **given)
        if sys.platform == "darwin":  # on Windows PyMC's own, which refuses the initial value
            pm.compute_log_likelihood(whoever, progressbar=False, compile_kwargs={"mode": mode})
    np.testing.assert_array_equal(found.posterior["mu"], whoever.posterior["mu"])
    try:
        synk.fork(2)
    except (ImportError, synk.StartFailed if sys.platform == "darwin" else ImportError) as exc:
        print(exc)
    """


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "systems", [{"win32": "Windows"}, *thorough({"darwin": "macOS"})], ids=" ".join
)
def test_other_systems_have_the_faster_density(systems: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-W", "ignore", "-c", textwrap.dedent(LACKING + SCRIPT), *systems],
        capture_output=True,
        text=True,
        timeout=270,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    parts = re.split(r"^(darwin|win32)\n", done.stdout, flags=re.MULTILINE)[1:]
    said = dict(zip(parts[::2], parts[1::2], strict=True))
    assert said.keys() == systems.keys()
    for platform, name in systems.items():
        assert "1 chain with a faster density on one core each, by pymc" in said[platform]
        assert (
            f"groups need Linux 5.3 or later (memfd, eventfd, pidfd), and this is {name}"
            in (said[platform])
        )
