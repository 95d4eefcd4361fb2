"""Write a starter that runs as it is, or translate an old command line into a config.

Kinds:
  function  a function of PyTensor that all members compute
  train     config.toml and mine.py, for `synk train`
  gan       two networks that train in turn
  pymc      a model whose likelihood the members divide
  slurm     a job for a cluster, which starts again until the run has ended

Examples:
  synk new train
  synk new gan experiments
  synk new --from mpidriver -- mpirun -n 4 python MPIDriver.py model.json train.list val.list
  synk new --from tmlauncher --to config.toml -- tmlauncher -cfg=launch.cfg
  synk new --from pydtnn -- pydtnn_benchmark --model=simplemlp --dataset=mnist

An old line becomes config.toml, with comments where the meaning differs. Options without a
counterpart are named there and on stderr. Files that exist are kept, unless --force is given.

exit codes: 0 written, 1 failed, 2 a wrong line
"""

from __future__ import annotations

import argparse
import importlib
from pathlib import Path

from synkhronos._host import files
from synkhronos.cli._say import complain, say

STARTERS = Path(__file__).parent / "_new" / "starters"
# the files of each kind, as they are stored and as they are written
KINDS = {
    "function": {"function.py": "function.py"},
    "train": {"train/config.toml": "config.toml", "train/mine.py": "mine.py"},
    "gan": {"gan.py": "gan.py"},
    "pymc": {"glm.py": "glm.py"},
    "slurm": {"slurm.sh": "slurm.sh"},
}
SYSTEMS = ("mpidriver", "tmlauncher", "pydtnn")
# what else people call them, and what to give then
_MEANT = {
    **dict.fromkeys(("mpi_learn", "mpi-learn", "nnlo"), "mpidriver"),
    **dict.fromkeys(("theano-mpi", "theano_mpi", "theanompi"), "tmlauncher"),
}
_BY_HAND = {
    "platoon": "its programs have no options to translate: the page Port from Theano-MPI, Platoon "
    "or mpi_learn has the lines that replace a worker and its controller",
    "synkhronos": "scripts of 2017 run as they are: see the page Porting from Synkhronos 2017",
}
NEXT = {
    "function": "python {0}",
    "train": "synk train {0}",
    "gan": "python {0}",
    "pymc": "python {0}",
    "slurm": "sbatch {0}",
}


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this verb."""
    add = parser.add_argument
    add(
        "words",
        metavar="KIND [FOLDER]",
        nargs="*",
        default=[],
        help=f"{', '.join(KINDS)}, and where to write; with --from, after --, the old line",
    )
    add(
        "--from",
        dest="system",
        type=_system,
        metavar=f"{{{','.join(SYSTEMS)}}}",
        help="translate a line of this system",
    )
    add(
        "--to",
        metavar="FOLDER",
        help="in place of FOLDER: a folder, which is made; for one file a folder that exists or "
        "ends in /, or a file",
    )
    add("--force", action="store_true", help="replace files that exist")


def _system(text: str) -> str:
    """The name of an old system, as a type of an argument."""
    if text in SYSTEMS:
        return text
    name = text.lower()
    if name in _BY_HAND:
        raise argparse.ArgumentTypeError(f"{text}: {_BY_HAND[name]}")
    meant = _MEANT.get(name)
    hint = f"; {text} is {meant}" if meant else ""
    raise argparse.ArgumentTypeError(f"{text}: choose from {', '.join(SYSTEMS)}{hint}")


def run(options: argparse.Namespace) -> int:
    """Write the files."""
    if options.system is not None:
        return _translated(options)
    kind, *places = options.words or [""]
    if kind not in KINDS or len(places) > 1 or not KINDS.keys().isdisjoint(places):
        asked = " ".join(options.words) or "nothing"
        return _wrong(f"asked for {asked}: give one of {', '.join(KINDS)}, or --from")
    if places and options.to is not None:
        return _wrong(f"{places[0]} and --to {options.to}: give one place")
    to = _folder(places[0]) if places else options.to
    targets = _targets(list(KINDS[kind].values()), to)
    if targets is None:
        return _wrong(f"{to}: it is a file, and {kind} has several: give a folder")
    if not options.force and (there := _existing(targets)):
        return _failed(there)
    for source, target in zip(KINDS[kind], targets, strict=True):
        target.parent.mkdir(parents=True, exist_ok=True)
        files.write(target, (STARTERS / source).read_bytes())
        say(f"wrote {target}")
    say(f"run it: {NEXT[kind].format(targets[0])}")
    return 0


def _translated(options: argparse.Namespace) -> int:
    from synkhronos._errors import InputError
    from synkhronos.cli._new.translation.translation import Translation

    if not options.words:
        return _wrong(f"--from {options.system}: give the old line after --")
    [target] = _targets(["config.toml"], options.to) or []
    if not options.force and (there := _existing([target])):
        return _failed(there)
    made = Translation(options.system, options.words, target.parent)
    module = importlib.import_module(f"synkhronos.cli._new.translation.{options.system}")
    try:
        module.translate(made, options.words)
        _check(made.table)
    except InputError as exc:
        return _wrong(str(exc))
    target.parent.mkdir(parents=True, exist_ok=True)
    files.write(target, made.toml())
    for text in made.left:
        complain(f"synk new: not translated: {text}")
    say(f"wrote {target}\nread its comments; then: synk train {target}")
    return 0


def _check(table: dict[str, object]) -> None:
    """Raise if `synk train` would refuse the config; without its library nothing is checked."""
    from synkhronos._errors import BackendMissing

    try:
        from synkhronos.training import config
    except BackendMissing:
        return
    config.config_of(table, "the old line gives a config that cannot run")


def _folder(place: str) -> str:
    """The second word: a folder even if there is none yet, unless its name has a suffix."""
    made = Path(place)
    return place if made.suffix or made.exists() else f"{place}/"


def _targets(names: list[str], to: str | None) -> list[Path] | None:
    """Where files go; None if a file is asked for, and there are several."""
    if to is None:
        return [Path(name) for name in names]
    place = Path(to)
    several = len(names) > 1 and not place.suffix and not place.exists()
    if place.is_dir() or to.endswith("/") or several:
        return [place / name for name in names]
    return [place] if len(names) == 1 else None


def _existing(targets: list[Path]) -> list[Path]:
    return [target for target in targets if target.exists()]


def _failed(there: list[Path]) -> int:
    names = ", ".join(map(str, there))
    complain(f"synk new: {names} exists: give --force to replace it, or another --to")
    return 1


def _wrong(text: str) -> int:
    complain(f"synk new: {text}")
    return 2
