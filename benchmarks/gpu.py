"""Training on GPUs beside plain PyTensor and plain JAX; with the tests of tests/gpu, a report.

    python benchmarks/gpu.py --measure NETWORK DEVICES   one table, as JSON on the last line
    python benchmarks/gpu.py [--out FOLDER] [--minutes N] [--only PART ...]   tests, all tables

The report is gpu_report.json and gpu_report.rst in FOLDER (default: docs), after N minutes at most
(default: 9). A PART is "tests" or a network; what is not asked for is not in the report. It needs a
GPU, the packages of the extra cuda12 or cuda13, and pytest. The exit code is 2 if there is no GPU
or a package is missing, and 1 if a test fails or a goal is missed.

Contenders take turns in one process, each turn about a quarter of a second; a table gives medians
over the turns, and ratios within them. Inputs come from the host in every step, for all of them.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import itertools
import json
import os
import platform
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[1]
MINUTES = 9.0  # for everything
TEST_SHARE = 5 / 9  # of the time, if networks are measured too
LEAVING_SECONDS = 20  # for interrupted tests, to close groups and to write what has passed
TABLE_SECONDS = {"mlp": 60, "resnet50": 180}  # XLA compiles three programs for each
TURNS, TURN_SECONDS = 15, 0.25
MOST = 1.05  # times PyTensor alone
RATE, MOMENTUM = np.float32(0.01), np.float32(0.9)


@dataclass
class Network:
    """A network to train, in PyTensor and in plain JAX.

    Attributes
    ----------
    graph : callable
        Makes (x, y, loss, parameters, updates that go with the loss) in PyTensor.
    jax_loss : callable
        ``jax_loss(parameters, x, y)``; parameters by name.
    data : tuple of arrays
        A batch.
    """

    graph: Callable[[], tuple[Any, Any, Any, list[Any], list[Any]]]
    jax_loss: Callable[[dict[str, Any], Any, Any], Any]
    data: tuple[np.ndarray, np.ndarray]


def mlp(sizes: Sequence[int] = (784, 2048, 2048, 10), rows: int = 2048) -> Network:
    """784-2048-2048-10, ReLU, cross-entropy, batch 2048, float32."""
    draw = np.random.default_rng(1)
    weights = [
        (draw.standard_normal((a, b)) * np.sqrt(2 / a)).astype("float32")
        for a, b in itertools.pairwise(sizes)
    ]
    start = [v for w in weights for v in (w, np.zeros(w.shape[1], "float32"))]

    def graph() -> tuple[Any, Any, Any, list[Any], list[Any]]:
        import pytensor
        import pytensor.tensor as pt

        x, y = pt.matrix("x", dtype="float32"), pt.vector("y", dtype="int32")
        params = [pytensor.shared(v, name=f"p{i}") for i, v in enumerate(start)]
        h = x
        for i in range(0, len(params), 2):
            h = h @ params[i] + params[i + 1]
            h = pt.maximum(h, np.float32(0)) if i + 2 < len(params) else h
        log_p = pt.special.log_softmax(h, axis=1)
        return x, y, -log_p[pt.arange(y.shape[0]), y].mean(), params, []

    def jax_loss(params: dict[str, Any], x: Any, y: Any) -> Any:
        import jax

        h = x
        for i in range(0, len(params), 2):
            h = h @ params[f"p{i}"] + params[f"p{i + 1}"]
            h = jax.nn.relu(h) if i + 2 < len(params) else h
        return cross_entropy(h, y)

    images = draw.standard_normal((rows, sizes[0])).astype("float32")
    return Network(graph, jax_loss, (images, draw.integers(0, 10, rows).astype("int32")))


def resnet50(depth: int = 50, size: int = 224, classes: int = 1000, rows: int = 128) -> Network:
    """ResNet-50 of demos/resnet, 224 pixels to a side, 1000 classes, batch 128, float32."""
    sys.path.insert(0, str(ROOT / "demos" / "resnet"))
    import resnet

    def graph() -> tuple[Any, Any, Any, list[Any], list[Any]]:
        net = resnet.Net(depth, size, classes)
        return net.x, net.y, net.loss, net.params, net.updates

    def jax_loss(params: dict[str, Any], x: Any, y: Any) -> Any:
        """Without the running values of batch normalisation, which the loss does not contain."""
        import jax

        def conv(name: str, h: Any, stride: int = 1) -> Any:
            kernel = params[f"{name}_W"]
            around = [(kernel.shape[0] // 2,) * 2] * 2
            axes = ("NHWC", "HWIO", "NHWC")
            h = jax.lax.conv_general_dilated(h, kernel, (stride,) * 2, around, None, None, axes)
            h = jax.nn.standardize(h, axis=(0, 1, 2), epsilon=1e-5)
            return h * params[f"{name}_norm_scale"] + params[f"{name}_norm_loc"]

        relu = jax.nn.relu
        h = relu(conv("stem", x, 2))
        around = ((0, 0), (1, 1), (1, 1), (0, 0))
        least = -float("inf")
        h = jax.lax.reduce_window(h, least, jax.lax.max, (1, 3, 3, 1), (1, 2, 2, 1), around)
        for stage, blocks in enumerate(resnet.BLOCKS[depth]):
            for block in range(blocks):
                name, stride = f"stage{stage}_block{block}", 2 if stage and not block else 1
                is_new = f"{name}_beside_W" in params
                beside = conv(f"{name}_beside", h, stride) if is_new else h
                h = relu(conv(f"{name}_1", relu(conv(f"{name}_0", h)), stride))
                h = relu(conv(f"{name}_2", h) + beside)
        return cross_entropy(h.mean((1, 2)) @ params["scores_W"] + params["scores_b"], y)

    draw = np.random.default_rng(1)
    images = draw.standard_normal((rows, size, size, 3), dtype="float32")
    return Network(graph, jax_loss, (images, draw.integers(0, classes, rows).astype("int32")))


def cross_entropy(scores: Any, labels: Any) -> Any:
    """The mean over rows, in JAX."""
    import jax
    import jax.numpy as jnp

    return -jax.nn.log_softmax(scores)[jnp.arange(len(labels)), labels].mean()


# Add a network here, and it is measured and reported with the others.
NETWORKS: dict[str, Callable[[], Network]] = {"mlp": mlp, "resnet50": resnet50}
TESTS = "tests"
PARTS = (TESTS, *NETWORKS)


def contenders(network: Network, members: int) -> dict[str, Callable[[], Any]]:
    """One step of each contender, by name; call it while the group is the current one."""
    import synkhronos as synk
    from synkhronos.extensions import make_train_function, make_train_function_pytensor, updates

    how: dict[str, Any] = {"learning_rate": RATE, "momentum": MOMENTUM, "mode": "JAX"}
    x, y, loss, params, changes = network.graph()
    train = make_train_function(loss, params, x, y, updates.momentum, updates=changes, **how)
    data = [synk.data(v) for v in network.data]
    name = "1 member" if members == 1 else f"{members} members"
    found: dict[str, Callable[[], Any]] = {name: lambda: train(*data)}
    if members == 1:
        x, y, loss, params, changes = network.graph()
        found["plain JAX"] = plain_jax(network, {p.name: p.get_value() for p in params})
        alone = make_train_function_pytensor(
            loss, params, x, y, updates.momentum, updates=changes, **how
        )
        found["PyTensor alone"] = lambda: np.asarray(alone(*network.data))
    return found


def plain_jax(network: Network, params: dict[str, np.ndarray]) -> Callable[[], Any]:
    """The same step as JAX's users write it, with donated memory."""
    import jax

    state = [jax.device_put(params)]
    state.append(jax.tree.map(lambda v: v * 0, state[0]))

    def step(params: Any, speeds: Any, x: Any, y: Any) -> Any:
        loss, grads = jax.value_and_grad(network.jax_loss)(params, x, y)
        speeds = jax.tree.map(lambda v, g: MOMENTUM * v - RATE * g, speeds, grads)
        return jax.tree.map(lambda p, v: p + v, params, speeds), speeds, loss

    compiled = jax.jit(step, donate_argnums=(0, 1))

    def run() -> float:
        state[0], state[1], loss = compiled(*state, *network.data)
        return float(loss)

    return run


def measure(name: str, devices: str) -> dict[str, Any]:
    """One table."""
    import pytensor

    import synkhronos as synk

    pytensor.config.floatX = "float32"  # else PyTensor's own function computes in float64
    network = NETWORKS[name]()
    with synk.Group(devices=devices.split(",")) as group:
        steps = contenders(network, group.size)
        times: dict[str, list[float]] = {n: [] for n in steps}
        counts = {}
        for n, step in steps.items():
            for _ in range(5):
                step()
            began = time.perf_counter()
            step()
            counts[n] = max(2, int(TURN_SECONDS / (time.perf_counter() - began)))
        for _ in range(TURNS):
            for n, step in steps.items():
                began = time.perf_counter()
                for _ in range(counts[n]):
                    step()
                times[n].append((time.perf_counter() - began) / counts[n])
        linked = getattr(group.member.communicator, "is_linked", None)
    rows = len(network.data[0])
    found: dict[str, Any] = {
        "network": name,
        "devices": devices,
        "what": (NETWORKS[name].__doc__ or "").strip(),
        "NCCL": linked,
        "milliseconds": {n: 1e3 * median(t) for n, t in times.items()},
        "images per second": {n: rows / median(t) for n, t in times.items()},
    }
    if "PyTensor alone" in times:
        for other in ("PyTensor alone", "plain JAX"):
            pairs = zip(times["1 member"], times[other], strict=True)
            found[f"step over {other}"] = median(a / b for a, b in pairs)
    return found


def missing() -> str:
    """A message about what this machine lacks."""
    import synkhronos as synk
    from synkhronos._host.devices import has_plugin

    if not synk.get_n_gpu():
        return "gpu-check: this machine has no NVIDIA GPU, so there is nothing to check here"
    packages = ("jax", "nccl4py", "pytest", "pytensor-ml")
    lacks = next((p for p in packages if version(p) is None), None)
    if lacks is None and not has_plugin():
        lacks = "JAX's plugin for CUDA"
    if lacks is None:
        return ""
    return (
        f'gpu-check: {lacks} is not installed: pip install "synkhronos[cuda12,test]" or '
        '"synkhronos[cuda13,test]"'
    )


def version(package: str) -> str | None:
    """The version of an installed package."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def tests(until: float) -> dict[str, Any]:
    """Run tests/gpu; return which tests passed, failed or were skipped, and whether all ended."""
    xml = Path(os.environ.get("TMPDIR", "/tmp")) / f"gpu-check-{os.getpid()}.xml"
    command = [sys.executable, "-m", "pytest", "-q", "--tb=short", f"--junit-xml={xml}"]
    command.append(str(ROOT / "tests" / "gpu"))
    pipe, ended = subprocess.PIPE, True
    with subprocess.Popen(command, cwd=ROOT, stdout=pipe, stderr=pipe, text=True) as running:
        try:
            said = running.communicate(timeout=until - time.monotonic())[0]
        except subprocess.TimeoutExpired:
            ended = False
            running.send_signal(signal.SIGINT)
            try:
                said = running.communicate(timeout=LEAVING_SECONDS)[0]
            except subprocess.TimeoutExpired:
                running.kill()
                said = running.communicate()[0]
    cases = {}
    if xml.exists():
        for case in ET.parse(xml).iter("testcase"):
            kinds = {child.tag for child in case}
            state = "skipped" if "skipped" in kinds else "failed" if kinds & FAILURES else "passed"
            if name := case.get("name"):  # none: it was interrupted
                cases[name] = state
        xml.unlink()
    is_clear = ended and cases and "failed" not in cases.values()
    return {"cases": cases, "ended": ended, "output": "" if is_clear else said[-12000:]}


FAILURES = {"failure", "error"}


def tables(networks: Sequence[str], until: float) -> list[dict[str, Any]]:
    """These networks on one GPU; the first of all with two members on one, and on all GPUs too."""
    import synkhronos as synk

    count = synk.get_n_gpu()
    first = next(iter(NETWORKS))
    asked = [(name, "cuda:0") for name in networks]
    if first in networks:
        asked.append((first, "cuda:0,cuda:0"))
        if count > 1:
            asked.append((first, ",".join(f"cuda:{i}" for i in range(count))))
    return [table(*what, until) for what in asked]


def table(name: str, devices: str, until: float) -> dict[str, Any]:
    """The result of `measure` in a separate process, or the reason why there is none."""
    failed = {"network": name, "devices": devices}
    limit = min(TABLE_SECONDS[name], until - time.monotonic())
    if limit < 10:
        return failed | {"error": "no time was left"}
    command = [sys.executable, str(Path(__file__)), "--measure", name, devices]
    try:
        done = subprocess.run(command, timeout=limit, capture_output=True, text=True, check=False)
    except subprocess.TimeoutExpired:
        return failed | {"error": f"did not end within {limit:.0f} s"}
    if done.returncode:
        return failed | {"error": done.stderr[-2000:]}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def machine() -> dict[str, Any]:
    """GPUs, driver and versions."""
    query = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    try:
        gpus = subprocess.run(query, capture_output=True, text=True, check=True).stdout.splitlines()
    except (OSError, subprocess.CalledProcessError) as exc:
        gpus = [f"nvidia-smi: {exc}"]
    from synkhronos._backends import nccl as nccl_backend

    try:
        number: Any = nccl_backend.version()
    except nccl_backend.NotServed as exc:
        number = str(exc)
    names = ("pytensor", "jax", "jaxlib", "nccl4py", "numpy")
    versions = {"synkhronos": version("synkhronos") or "from the checkout"}
    versions |= {name: version(name) or "not installed" for name in names}
    return {
        "gpus": gpus,
        "NCCL": number,
        "versions": versions,
        "Python": platform.python_version(),
        "Linux": platform.release(),
        "cores": len(os.sched_getaffinity(0)),
    }


def verdict(report: dict[str, Any]) -> list[str]:
    """The failures, one line each."""
    wrong = []
    if tested := report.get("tests"):
        wrong += [f"test {n}: {s}" for n, s in tested["cases"].items() if s != "passed"]
        if not tested["ended"]:
            wrong.append("the time ended before the tests")
        elif not tested["cases"]:
            wrong.append("the tests did not run")
    for row in report["tables"]:
        where = f"{row['network']} on {row['devices']}"
        if "error" in row:
            wrong.append(f"{where}: {row['error'].strip().splitlines()[-1]}")
        elif row.get("step over PyTensor alone", 0) > MOST:
            ratio = row["step over PyTensor alone"]
            wrong.append(f"{where}: a step takes {ratio:.3f} of PyTensor alone, goal {MOST}")
    return wrong


def page(report: dict[str, Any]) -> str:
    """The report as a page."""
    m = report["machine"]
    versions = ", ".join(f"{n} {v}" for n, v in m["versions"].items())
    lines = [
        f"{report['date']}, {'; '.join(m['gpus'])}; NCCL {m['NCCL']}; Python {m['Python']}, "
        f"Linux {m['Linux']}, {m['cores']} cores; {versions}.",
        "",
    ]
    if tested := report.get("tests"):
        states = list(tested["cases"].values())
        passed = f"{states.count('passed')} of {len(states)} passed"
        lines += [f"Tests that need a GPU: {passed}.", ""]
    if report["tables"]:
        lines += [
            ".. list-table::",
            "   :header-rows: 1",
            "",
            "   * - network",
            "     - members on",
            "     - contender",
            "     - ms for a step",
            "     - images/s",
        ]
    for row in report["tables"]:
        for name, ms in row.get("milliseconds", {}).items():
            cells = (row["devices"], name, f"{ms:.3f}", f"{row['images per second'][name]:,.0f}")
            lines += [f"   * - {row['network']}", *(f"     - {cell}" for cell in cells)]
    lines.append("")
    for row in report["tables"]:
        if "step over PyTensor alone" in row:
            lines += [
                f"A step of one member on {row['network']} takes "
                f"{row['step over PyTensor alone']:.3f} of PyTensor's own function (goal: at most "
                f"{MOST}), and {row['step over plain JAX']:.3f} of plain JAX.",
                "",
            ]
    wrong = verdict(report)
    lines += [f"Amiss: {'; '.join(wrong)}." if wrong else "Nothing is amiss."]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--measure", nargs=2, metavar=("NETWORK", "DEVICES"))
    parser.add_argument("--out", type=Path, default=ROOT / "docs")
    parser.add_argument("--minutes", type=float, default=MINUTES)
    parser.add_argument("--only", nargs="+", metavar="PART", choices=PARTS, default=PARTS)
    args = parser.parse_args()
    if args.measure:
        print(json.dumps(measure(*args.measure)))
        return 0
    if lack := missing():
        print(lack, file=sys.stderr)
        return 2
    began, seconds = time.monotonic(), 60 * args.minutes
    until = began + seconds - 15
    networks = [name for name in NETWORKS if name in args.only]
    report: dict[str, Any] = {"date": time.strftime("%Y-%m-%d"), "machine": machine()}
    if TESTS in args.only:
        limit = began + seconds * TEST_SHARE if networks else until - LEAVING_SECONDS
        report["tests"] = tests(limit)
    report["tables"] = tables(networks, until)
    report["wrong"] = verdict(report)
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "gpu_report.json").write_text(json.dumps(report, indent=1) + "\n")
    text = page(report)
    (args.out / "gpu_report.rst").write_text(text)
    print(text)
    return 1 if report["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
