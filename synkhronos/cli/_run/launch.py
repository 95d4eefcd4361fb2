"""A launch: the plan is made and shown, the script is started, and again after a failure."""

from __future__ import annotations

import argparse
import itertools
import os
import signal
import sys
from collections.abc import Collection

from synkhronos._engine.exit_codes import AGAIN, DEATH, INTERRUPTED, NO_START, STALL, USAGE
from synkhronos._errors import InputError, StartFailed
from synkhronos._host.files import check_place, make_folder
from synkhronos._host.rank_logs import RankLogs
from synkhronos._host.system import trouble
from synkhronos.cli._run.array import submit
from synkhronos.cli._run.plan import Machine, Plan, plan_of
from synkhronos.cli._run.process import Process
from synkhronos.cli._run.reach import check_reached
from synkhronos.cli._run.signals import SignalDescriptor
from synkhronos.cli._run.usage import UsageError
from synkhronos.cli._say import complain, say

_SIGNALLED = 128  # a shell's code for the end by signal n is 128 + n
_ENDS = (signal.SIGKILL, signal.SIGUSR1, signal.SIGTERM)  # as MPICH's launcher reports them
_MEANINGS = {
    NO_START: "the group was not started",
    DEATH: "a member died",
    STALL: "a member did not answer in time",
    AGAIN: "it was stopped, and a checkpoint was written: run it again",
}


def launch(options: argparse.Namespace) -> int:
    """Start the script as the options say; returns the exit code."""
    try:
        if options.array is not None:
            return submit(options, Machine.here().python)
        plan = plan_of(options, os.environ, Machine.here())
        if options.dry_run:
            say(str(plan))
            return 0
        if why := trouble():
            raise StartFailed(why)
        logs = _logs(plan)
        if plan.remote:
            check_reached(plan.remote, plan.start_timeout)
        return _started(plan, logs)
    except (UsageError, InputError) as exc:
        _say(str(exc))
        return USAGE
    except StartFailed as exc:
        _say(str(exc))
        return NO_START


def _logs(plan: Plan) -> RankLogs | None:
    if plan.log_dir is None:
        return None
    try:
        make_folder(plan.log_dir)
        check_place(plan.log_dir / "rank-0.log")
    except OSError as exc:
        raise UsageError(f"--log-dir {plan.log_dir}: {exc.strerror}") from None
    return RankLogs(plan.log_dir)


def _started(plan: Plan, logs: RankLogs | None) -> int:
    """Start the script, and again as often as is allowed; returns the exit code."""
    try:
        with SignalDescriptor() as signals:
            for start in itertools.count(1):
                now = plan.starting(start)
                if plan.launcher != "fork":
                    _say(str(now))
                _note(logs, f"start {start} of at most {1 + plan.max_restarts}: {now}")
                process = Process(now, signals, logs)
                code = exit_code(process.wait(), plan.launcher, process.asked_to_end)
                why = f"exit code {code}{': ' * (code in _MEANINGS)}{_MEANINGS.get(code, '')}"
                _note(logs, why)
                if start > plan.max_restarts or not starts_again(code, process.asked_to_end):
                    if code in _MEANINGS:
                        _say(why)
                    return code
                _say(f"{why}; restart {start} of {plan.max_restarts}")
        raise AssertionError("the loop has no end")
    finally:
        if logs is not None:
            logs.close()


def exit_code(status: int, launcher: str, asked_to_end: Collection[int]) -> int:
    """The exit code of `synk run` for a status as in Popen.

    >>> exit_code(-9, "fork", ()), exit_code(3, "fork", ()), exit_code(137, "mpirun", ())
    (137, 3, 4)
    """
    code = _SIGNALLED - status if status < 0 else status
    if launcher == "fork":
        return code
    if code and signal.SIGINT in asked_to_end:
        return INTERRUPTED
    # launchers end all processes where one dies, and report its signal
    if code > _SIGNALLED or code in _ENDS:
        return _SIGNALLED + min(asked_to_end) if asked_to_end else DEATH
    return code


def starts_again(code: int, asked_to_end: Collection[int]) -> bool:
    """Whether a restart may help: after a death, a stall, an end by a signal, or with code 75.

    An exception of the script's own (1) would come again, and so would wrong usage (2) or a group
    that cannot be started (3).

    >>> [code for code in (0, 1, 2, 3, 4, 5, 75, 130, 137) if starts_again(code, ())]
    [4, 5, 75, 137]
    """
    failed = code in (DEATH, STALL, AGAIN) or code > _SIGNALLED
    return failed and code != INTERRUPTED and not asked_to_end


def _note(logs: RankLogs | None, text: str) -> None:
    """Write a line into the files of all ranks."""
    if logs is not None:
        for rank in {0, *logs.known()}:
            logs.write(rank, f"synk run: {text}")


def _say(text: str) -> None:
    complain(f"synk run: {text}")
    sys.stderr.flush()
