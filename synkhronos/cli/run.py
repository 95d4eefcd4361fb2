"""Run a script, a module or code, on members and nodes.

Without options it does what `python SCRIPT` does, and tells by its exit code why the script has
ended. `fork()` in the script follows the options. A number in the script that differs from that of
an option is an error, so leave it out of the script.

On one node the script runs here. On several nodes one process runs on each: by srun inside of a
job of Slurm, else by mpirun. Hosts are those of the job (Slurm, PBS, LSF), of -H or of a file.

Options come before SCRIPT. All words behind it belong to the script.

Examples:
  synk run train.py --epochs 20
  synk run -n 4 train.py
  synk run -n 4 --log-dir logs --tee 0 --max-restarts 3 -m mypackage.train
  synk run --pymc model.py                    # pm.sample and others are ours
  synk run --pymc-folder night model.py       # and a killed run goes on
  synk run --nodes 2 train.py                 # in a job, or both on this machine
  synk run -H node1:8,node2:8 -x NCCL_DEBUG=INFO train.py
  synk run --array 100 --sbatch-args="--cpus-per-task=4 --time=4:0:0" fleet.py
  synk run --dry-run --hostfile hosts train.py

Exit codes:
  0    the script has ended well
  1    the script has raised an exception
  2    the command line is wrong
  3    no group was started: a launcher, a host, memory or processes are missing
  4    a member died
  5    a member did not answer in time (--timeout)
  75   stopped by a signal, with a checkpoint: run it again
  130  Ctrl-C
  others are the script's own; 128 + n: signal n has ended it
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable

from synkhronos.cli._numbers import count, integers, seconds

ALIASES = ("launch",)


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this verb."""
    parser.allow_abbrev = False  # else words of the script could be taken for abbreviations
    programs = ("SCRIPT", "-m MODULE", "-c CODE")
    parser.usage = "\n       ".join(f"%(prog)s [option ...] {p} [argument ...]" for p in programs)
    _add_places(parser.add_argument)
    _add_array(parser.add_argument)
    _add_ends(parser.add_argument)
    _add_program(parser.add_argument)


def _add_places(add: Callable[..., object]) -> None:
    """Members, nodes, and what starts them."""
    add(
        *("-n", "--members", "--nproc-per-node", "--nproc_per_node"),
        type=_members,
        metavar="N",
        help="members on each node; default: the script decides, or fork() takes one for each "
        'core or GPU ("auto" means the same)',
    )
    add(
        *("-D", "--devices"),
        type=_devices,
        metavar="LIST",
        help='what members compute on, as devices= of fork: "cpu"; "cuda", one member for each '
        'GPU; or one for each member, as in "cuda:0,cuda:1"',
    )
    add(
        *("--nodes", "--nnodes"),
        type=count,
        metavar="N",
        help="nodes; default: all hosts. Without hosts, all of them are on this machine",
    )
    add(
        *("-H", "--hosts"),
        metavar="HOST:N,...",
        help="hosts, each with its number of members or without it",
    )
    add(
        *("--hostfile", "--machinefile"),
        metavar="FILE",
        help="a file with a host a line, as in `node1`, `node1:4` or `node1 slots=4`",
    )
    add(
        "--launcher",
        choices=("fork", "mpirun", "srun"),
        help="what starts the processes; default: fork on one node, srun in a job of Slurm of "
        "several nodes, else mpirun",
    )
    add(
        "--launcher-args",
        metavar="ARGS",
        default="",
        help='further options for mpirun or srun, in one word: `--launcher-args="--mpi=pmi2"`',
    )


def _add_array(add: Callable[..., object]) -> None:
    """A job array."""
    add(
        "--array",
        type=count,
        metavar="N",
        help="submit a job array of Slurm by sbatch, and end. Each of its N tasks runs the script; "
        "pymc.map fits a part of the items in each",
    )
    add(
        *("--sbatch-args", "--sbatch_args"),
        metavar="ARGS",
        default="",
        help='further options for sbatch, in one word: `--sbatch-args="--time=4:0:0"`',
    )


def _add_ends(add: Callable[..., object]) -> None:
    """Logs, restarts and limits."""
    add(
        *("--log-dir", "--log_dir"),
        metavar="FOLDER",
        help="write what each rank prints to FOLDER/rank-N.log. A restart appends",
    )
    add(
        "--tee",
        type=_ranks,
        metavar="RANKS",
        help='ranks whose output is shown, as in "0,2"; "all", which is the default; "none"',
    )
    add(
        *("--max-restarts", "--max_restarts"),
        type=integers(0),
        metavar="K",
        default=0,
        help="start the script again, at most K times, after a death, a stall, an end by a "
        "signal, or code 75, unless this command was told to end. fit() then goes on from its "
        "latest checkpoint; default: 0",
    )
    add(
        "--resume",
        action="store_true",
        help="also the first start goes on from the latest checkpoint, if there is one",
    )
    add(
        "--timeout",
        type=seconds,
        metavar="SECONDS",
        help="as timeout= of fork: how long members may keep the master waiting in a call",
    )
    add(
        *("--start-timeout", "--start_timeout"),
        type=seconds,
        metavar="SECONDS",
        default=10.0,
        help="how long hosts may take to answer by ssh, before the launch; default: 10",
    )


def _add_program(add: Callable[..., object]) -> None:
    """The program, and its environment."""
    add(
        *("-x", "--export"),
        dest="exported",
        metavar="VAR[=VALUE]",
        action="append",
        default=[],
        help="set an environment variable on all nodes, or send it as it is here; repeatable",
    )
    add(
        "--pymc",
        action="store_true",
        help="the functions of PyMC that the script calls are synkhronos.pymc's, as in `with "
        "synk.pymc.everywhere():`; `python -m synkhronos SCRIPT` means this",
    )
    add(
        *("--pymc-folder", "--pymc_folder"),
        metavar="FOLDER",
        help="--pymc, and the draws of pm.sample are in this folder while they are made: the same "
        "line goes on after a kill",
    )
    add("--dry-run", action="store_true", help="print the environment and the line; start nothing")
    add(
        "-m",
        dest="module",
        metavar="MODULE",
        nargs=argparse.REMAINDER,
        help="run a module, as python -m does; ends the options",
    )
    add(
        "-c",
        dest="code",
        metavar="CODE",
        nargs=argparse.REMAINDER,
        help="run code, as python -c does; ends the options",
    )
    add(
        "program",
        metavar="SCRIPT",
        nargs=argparse.REMAINDER,
        help="the script, and then its own arguments",
    )


def run(options: argparse.Namespace) -> int:
    """Start the script."""
    from synkhronos.cli._run.launch import launch

    return launch(options)


def _members(text: str) -> int | None:
    return None if text == "auto" else count(text)


def _devices(text: str) -> str:
    found = re.sub(r"cuda(?=\d)", "cuda:", text)  # Platoon's names
    if not all(re.fullmatch(r"cpu|cuda(:\d+)?", name) for name in found.split(",")):
        raise argparse.ArgumentTypeError(f'{text!r}: give "cpu", "cuda", or a list as "cuda:0,cpu"')
    return found


def _ranks(text: str) -> frozenset[int] | None:
    if text == "all":
        return None
    words = [] if text == "none" else text.split(",")
    if not all(word.isdigit() for word in words):
        raise argparse.ArgumentTypeError(f'{text!r}: give ranks as in "0,2", "all" or "none"')
    return frozenset(map(int, words))
