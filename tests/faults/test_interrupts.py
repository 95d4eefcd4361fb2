"""Ctrl-C, Ctrl-Z, SIGTERM and SIGHUP, in every state, as a terminal sends them (promise 9)."""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import interrupted
import pytest
from interrupted import BORDERS, LASTING, STATES
from selection import thorough
from terminal import CTRL_C, CTRL_Z, LIMIT, Program, Terminal

from synkhronos._engine.group_options import GRACE_SECONDS
from synkhronos._transport.processes.worker import signals_blocked

pytestmark = pytest.mark.together  # one terminal
Trials = Callable[[Any, Any], Any]
PROMPT = GRACE_SECONDS + 0.5  # seconds from the last key to the end, on a machine that is not busy
PATIENCE = 8.0  # on one that is, in a campaign; else only a hang fails
WORKING = [s for s in STATES if s not in (*LASTING, "idle", "user_code")]
MORE = [s for s in WORKING if s != "collective"]
ON = [s for s in WORKING if s not in WORKING[::4]]
MOMENTS = {"start_exec": 2.0}  # seconds within which the keys are pressed

# A line of source in a traceback begins with spaces: it may name an error that was being made.
WRONG = re.compile(r"(?m)^(?! ).*(rank \d|WorkerError|WorkerDied|Closed|BrokenPipe)")


def test_an_interrupt_waits_for_the_start_of_processes() -> None:
    """Also one that another thread of this process takes, which has not blocked it."""
    done = []

    def start() -> None:
        with signals_blocked():
            os.kill(os.getpid(), signal.SIGINT)
            until = time.monotonic() + 0.02
            while time.monotonic() < until:
                pass
            done.append(True)

    with another_thread(), pytest.raises(KeyboardInterrupt):
        start()
    assert done


@contextlib.contextmanager
def another_thread() -> Iterator[None]:
    """A thread beside this one; as it asks for the interpreter, this one looks for signals."""
    end = threading.Event()

    def work() -> None:
        while not end.wait(0.001):
            pass

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()


@pytest.fixture(autouse=True)
def nothing_is_left() -> None:
    """All processes are the terminal's, which `end` looks at."""


@pytest.fixture(scope="module")
def terminals() -> Iterator[list[Terminal]]:
    made: list[Terminal] = []
    yield made
    for one in made:
        one.close()


@pytest.fixture
def terminal(terminals: list[Terminal], trials: Trials) -> Terminal:
    """One for all tests; another after a program that hangs."""
    if not terminals or not terminals[-1].free:
        terminals.append(Terminal(interrupted.__file__))
    terminals[-1].patience = trials(LIMIT, PATIENCE)
    return terminals[-1]


@pytest.fixture(scope="module")
def draw() -> random.Random:
    return random.Random(9)


def come_to(terminal: Terminal, draw: random.Random, state: str, how: str = "") -> Program:
    """A program at a random moment of its state."""
    program = terminal.run(state, how)
    assert terminal.await_word("there"), program.printed
    time.sleep(draw.uniform(0.0, MOMENTS.get(state, 0.05)))
    return program


def end(terminal: Terminal, program: Program, since: float) -> float:
    """How long it took to end; nothing is left, and no worker has said a word."""
    assert terminal.await_word("ended", LIMIT), f"it hangs: {program.said}, {program.printed}"
    took = max(0.0, program.when("ended") - since)
    left = terminal.left()
    assert not left, program.said
    assert took < terminal.patience
    assert not WRONG.search(program.printed), program.printed
    return took


def status(program: Program) -> int:
    return program.number("ended")


def heard(program: Program) -> float:
    """When the first KeyboardInterrupt arrived."""
    return next(float(said.split()[1]) for _, said in program.said if said.startswith("interr"))


def press(terminal: Terminal, draw: random.Random, times: int) -> float:
    """Ctrl-C so many times; when the last one was that it could hear."""
    at = terminal.press(CTRL_C)
    for _ in range(times - 1):
        time.sleep(draw.uniform(0.0, 0.05))
        if terminal.program.when("ended") is None:
            at = terminal.press(CTRL_C)
    return at


def report(what: str, took: list[float]) -> None:
    took.sort()
    slow = sum(t > PROMPT for t in took)
    print(
        f"{what}: {len(took)} programs, over in {1e3 * took[len(took) // 2]:.0f} ms (median), "
        f"{1e3 * took[-1]:.0f} ms (max), {slow} after more than {PROMPT} s"
    )


@pytest.mark.parametrize(  # of those that work one; some are interrupted in the next test
    "state", [*(s for s in (*STATES, *BORDERS) if s not in MORE), *thorough(*MORE)]
)
def test_ctrl_c(terminal: Terminal, draw: random.Random, state: str, trials: Trials) -> None:
    """One KeyboardInterrupt, which ends the program as it ends any."""
    took = []
    for times in trials((draw.choice((1, 2, 5)),), (1, 2, 5) * 14):
        program = come_to(terminal, draw, state)
        took.append(end(terminal, program, press(terminal, draw, times)))
        said = program.printed
        assert status(program) == -signal.SIGINT, said
        # what comes while the interpreter prints or ends is its own affair
        assert said.count("KeyboardInterrupt") == 1 or times > 1, said
        assert "KeyboardInterrupt" in said or times > 1, said
    report(f"Ctrl-C: {state}", took)


@pytest.mark.parametrize("state", [*WORKING[::4], *thorough(*ON)])
def test_ctrl_c_ends_the_call_not_the_group(
    terminal: Terminal, draw: random.Random, state: str, trials: Trials
) -> None:
    """Whoever catches it goes on, with members that agree."""
    took = []
    for times in trials((draw.choice((1, 2, 5)),), (1, 2, 5) * 14):
        program = come_to(terminal, draw, state, "goes on")
        began = time.monotonic()
        end(terminal, program, press(terminal, draw, times))
        assert program.when("again") is not None, program.printed
        assert status(program) == 0
        assert "Traceback" not in program.printed
        took.append(heard(program) - began)
    report(f"Ctrl-C and on: {state}", took)


def test_ctrl_c_with_workers_at_the_terminal(terminal: Terminal, draw: random.Random) -> None:
    """Where workers keep the terminal, the keys are the master's all the same."""
    for state in ("calls", "idle"):
        program = come_to(terminal, draw, state, "debug")
        end(terminal, program, press(terminal, draw, 1))
        assert status(program) == -signal.SIGINT
        assert program.printed.count("KeyboardInterrupt") == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_ended_by_a_signal(
    terminal: Terminal, draw: random.Random, number: signal.Signals, trials: Trials
) -> None:
    """At once, and with all its processes."""
    took = []
    for state in trials(draw.sample([*STATES, *BORDERS], 1), [*STATES, *BORDERS] * 4):
        program = come_to(terminal, draw, state)
        at = time.monotonic()
        os.kill(program.pid, number)
        took.append(end(terminal, program, at))
        assert status(program) == -number
        assert "Traceback" not in program.printed
    report(number.name, took)


def test_stopped_and_continued(terminal: Terminal, draw: random.Random, trials: Trials) -> None:
    """Ctrl-Z, then `fg`: as if nothing had been."""
    states = [*WORKING, "idle", "user_code"]
    took = []
    for state in trials(draw.sample(states, 1), states * 4):
        program = come_to(terminal, draw, state, "goes on")
        terminal.press(CTRL_Z)
        assert terminal.await_word("stopped"), program.said
        time.sleep(draw.uniform(0.0, 0.3))
        assert program.when("ended") is None
        terminal.foreground()
        time.sleep(draw.uniform(0.0, 0.05))
        began = press(terminal, draw, 1)
        end(terminal, program, began)
        took.append(heard(program) - began)
        assert program.when("again") is not None, program.printed
        assert status(program) == 0
    for state in trials(("start",), ("start", "close", "start_exec") * 4):
        program = come_to(terminal, draw, state)
        terminal.press(CTRL_Z)
        assert terminal.await_word("stopped"), program.said
        terminal.foreground()
        time.sleep(draw.uniform(0.0, 0.1))
        took.append(end(terminal, program, press(terminal, draw, 1)))
        assert status(program) == -signal.SIGINT
    report("Ctrl-Z, fg, Ctrl-C", took)
