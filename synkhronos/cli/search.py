"""Search for values of a config by which training ends best: each trial is a `synk train`.

KEY~LOW..HIGH draws a number, an integer if both ends are; KEY~LOW..HIGH:STEP in steps;
KEY~log:LOW..HIGH by its logarithm; KEY~A,B,C one of several values. KEY=VALUE sets a value.

Each trial runs in a process of its own, on the cores of its slot, and starts its own group. With
--storage the same line resumes a search; trials that a killed search has left are asked again. The
config of the best trial so far is in the file of --best.

Examples:
  synk search config.toml optimizer.rate~log:1e-4..1e-1 batch~32,64,128 --trials 20
  synk search config.toml optimizer.rate~log:1e-4..1e-1 --slots 2 -n 1 --storage search.db
  synk search config.toml model_arguments.width~16..128:16 --metric val_accuracy --sampler nsga2
  synk train best.toml epochs=50

exit codes: 0 searched, 1 failed, or no trial has a value, 2 a wrong line or config, 130 Ctrl-C
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from synkhronos._host.files import check_place
from synkhronos.cli._numbers import count, integers, numbers, seconds
from synkhronos.cli._parser import Parser
from synkhronos.cli._say import complain, say


def arguments(parser: Parser) -> None:
    """Add the arguments of this verb."""
    add = parser.add_argument
    add("config", metavar="CONFIG", help="a TOML file")
    add("values", metavar="KEY~RANGE | KEY=VALUE", nargs="+", help="what is drawn, or set")
    add(
        "--trials",
        type=count,
        metavar="N",
        default=20,
        help="in all, with earlier ones; default 20",
    )
    add("--slots", type=count, metavar="N", default=1, help="trials at once; default 1")
    add("-n", "--members", type=count, metavar="N", help="members of the group of a trial")
    add("--metric", default="val_loss", help="the value to search by; default val_loss")
    add(
        "--direction",
        choices=("minimize", "maximize"),
        help="default: lower losses, higher accuracies; of a metric of yours it is needed",
    )
    add("--study", metavar="NAME", help="default: the name of the config's file")
    add(
        "--storage",
        metavar="FILE",
        help="keep the study in SQLite (.db), or in a journal (.journal) which several machines "
        "can share; default: it ends with the search",
    )
    add("--sampler", choices=("tpe", "nsga2", "random"), default="tpe", help="default tpe")
    add(
        "--pruner",
        choices=("median", "hyperband", "none"),
        default="median",
        help="which trials to stop early; default median",
    )
    add("--seed", type=integers(0), metavar="N", help="of the sampler")
    add("--target", type=numbers(), metavar="VALUE", help="stop at a value as good as this one")
    add("--limit", type=seconds, metavar="SECONDS", help="kill a trial that takes longer")
    add("--shared", action="store_true", help="other machines search the same study now")
    add("--log-dir", metavar="FOLDER", help="write what trial N prints to FOLDER/trial-N.log")
    add("--best", metavar="FILE", default="best.toml", help="default best.toml")
    parser.mixed = True  # options may stand between CONFIG and the values


def run(options: argparse.Namespace) -> int:
    """Search."""
    from synkhronos._errors import InputError
    from synkhronos.search._configured import ConfigObjective
    from synkhronos.search._spaces import Space

    drawn = [v for v in options.values if "~" in v.partition("=")[0]]
    try:
        objective = ConfigObjective(
            path=str(Path(options.config).absolute()),
            values=tuple(v for v in options.values if v not in drawn),
            spaces=tuple(map(Space.of, drawn)),
            metric=options.metric,
            members=options.members,
        )
        objective.check()
        if not Path(options.best).absolute().parent.is_dir():
            raise InputError(f"--best {options.best}: there is no such folder: make it first")
        check_place(options.best)
        study = _study(options)
    except InputError as exc:
        complain(f"synk search: {exc}")
        return 2
    return _searched(options, objective, study)


def _study(options: argparse.Namespace) -> object:
    from synkhronos.search import open_study
    from synkhronos.search._studies import optuna

    optuna().logging.set_verbosity(optuna().logging.WARNING)  # else it tells of each study made
    return open_study(
        options.study or Path(options.config).stem,
        options.storage,
        direction=options.direction or _usual_direction(options.metric),
        sampler=options.sampler,
        pruner=None if options.pruner == "none" else options.pruner,
        seed=options.seed,
    )


def _usual_direction(metric: str) -> str:
    from synkhronos._errors import InputError
    from synkhronos.training._directions import usual_mode

    mode = usual_mode(metric)
    if mode is None:
        raise InputError(
            f"--metric {metric}: it is not known whether lower or higher values are better: give "
            "--direction minimize or maximize"
        )
    return f"{mode}imize"


def _searched(options: argparse.Namespace, objective: Any, study: Any) -> int:
    from synkhronos.search import search

    best = Path(options.best)

    def tell(study: Any, trial: Any) -> None:
        values = ", ".join(f"{k}={v}" for k, v in trial.params.items())
        value = "" if trial.value is None else f" {options.metric} {trial.value:.6g}"
        complain(f"trial {trial.number}: {trial.state.name.lower()}{value}  {values}")
        if trial.state.name == "COMPLETE" and study.best_trial.number == trial.number:
            objective.write_best(best, study)

    search(
        objective,
        study,
        trials=options.trials,
        slots=options.slots,
        members=options.members,
        target=options.target,
        limit=options.limit,
        alone=not options.shared,
        log_dir=options.log_dir,
        callbacks=[tell],
    )
    if not any(trial.state.name == "COMPLETE" for trial in study.trials):
        complain("synk search: no trial has a value")
        return 1
    objective.write_best(best, study)
    found = study.best_trial
    values = ", ".join(f"{k}={v}" for k, v in found.params.items())
    say(f"trial {found.number}, {options.metric} {found.value:.6g}: {values}")
    return 0
