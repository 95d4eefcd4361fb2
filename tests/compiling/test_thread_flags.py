"""Flags that PyTensor changes in one thread have their values in another thread."""

from __future__ import annotations

import copy
import gc
import pickle
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from importlib import import_module
from typing import Any

import cloudpickle
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.mode import Mode, get_default_mode
from pytensor.graph.rewriting.basic import GraphRewriter

from synkhronos._compiling import thread_flags  # noqa: F401

SECONDS = 60  # the longest wait


class Asking(GraphRewriter):
    """Calls a function while a graph is rewritten."""

    def __init__(self, call: Callable[[], object]) -> None:
        super().__init__()
        self.call = call

    def apply(self, fgraph: Any) -> None:
        self.call()


def compiled(call: Callable[[], object]) -> Mode:
    """Compile a function in a mode that calls while it rewrites; returns this mode."""
    mode = Mode(linker="py", optimizer=Asking(call))
    x = pt.dscalar()
    assert pytensor.function([x], x + 1, mode=mode)(2) == 3
    return mode


def flags() -> tuple[object, int]:
    return pytensor.config.mode, pytensor.config.traceback__limit


class Rewriting:
    """A thread that rewrites a graph until it may end, with what it has seen meanwhile."""

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self.inside, self.may_end = threading.Event(), threading.Event()
        self.seen: list[object] = []
        self.mode: Future[Mode] = pool.submit(compiled, self.wait)
        assert self.inside.wait(SECONDS)

    def wait(self) -> None:
        self.inside.set()
        assert self.may_end.wait(SECONDS)
        self.seen.append(pytensor.config.mode)

    def end(self) -> None:
        self.may_end.set()
        mode = self.mode.result(SECONDS)
        assert self.seen == [mode]


def test_a_thread_reads_its_own_mode_while_others_rewrite() -> None:
    """And none stays, in whatever order they end."""
    before, default = flags(), get_default_mode()
    with ThreadPoolExecutor() as pool:
        first, second = Rewriting(pool), Rewriting(pool)
        assert flags() == before
        assert get_default_mode() is default
        first.end()
        assert flags() == before
        second.end()
    assert flags() == before


def test_a_rewrite_compiles_another_function() -> None:
    seen = []

    def inner() -> None:
        outer = pytensor.config.mode
        own = compiled(lambda: seen.append(pytensor.config.mode))
        seen.extend([own, pytensor.config.mode, outer])

    before = flags()
    mode = compiled(inner)
    assert seen == [seen[1], seen[1], mode, mode]
    assert flags() == before


def test_an_error_restores_the_flags() -> None:
    def fail() -> None:
        raise ZeroDivisionError

    before = flags()
    with pytest.raises(ZeroDivisionError):
        compiled(fail)
    assert flags() == before


def test_users_still_change_the_mode_for_all_threads() -> None:
    with ThreadPoolExecutor() as pool, pytensor.config.change_flags(mode="FAST_COMPILE"):
        assert pool.submit(lambda: pytensor.config.mode).result() == "FAST_COMPILE"


def test_a_change_inside_of_a_rewrite_ends_there() -> None:
    seen = []

    def change() -> None:
        with pytensor.config.change_flags(mode="FAST_COMPILE"):
            seen.append(pytensor.config.mode)
        seen.append(pytensor.config.mode)

    before = flags()
    mode = compiled(change)
    assert seen == ["FAST_COMPILE", mode]
    assert flags() == before


def test_threads_that_infer_lengths_leave_the_compiler_of_c() -> None:
    """PyTensor and PyMC switch it off meanwhile; each would restore what the other has set."""
    of_pymc: dict[str, Any] = {"__name__": "pymc.of_a_test", "config": pytensor.config}
    exec("def changed(**values): return config.change_flags(**values)", of_pymc)
    before = pytensor.config.cxx, pytensor.config.optdb__max_use_ratio
    contexts = [of_pymc["changed"](cxx=each, optdb__max_use_ratio=1) for each in ("one", "two")]
    with ThreadPoolExecutor(1) as first, ThreadPoolExecutor(1) as second:
        for pool, context in zip((first, second), contexts, strict=True):
            pool.submit(context.__enter__).result(SECONDS)
        assert first.submit(lambda: pytensor.config.cxx).result(SECONDS) == "one"
        assert second.submit(lambda: pytensor.config.cxx).result(SECONDS) == "two"
        assert (pytensor.config.cxx, pytensor.config.optdb__max_use_ratio) == before
        for pool, context in zip((first, second), contexts, strict=True):
            pool.submit(context.__exit__, None, None, None).result(SECONDS)
            assert (pytensor.config.cxx, pytensor.config.optdb__max_use_ratio) == before


def test_a_change_keeps_no_memory_of_its_callers() -> None:
    """No collection of cycles is awaited."""

    class Memory:
        pass

    def compile_beside() -> weakref.ref[Memory]:
        memory = Memory()
        compiled(lambda: None)
        return weakref.ref(memory)

    gc.disable()
    try:
        assert compile_beside()() is None
    finally:
        gc.enable()


def test_an_unknown_value_is_an_error_as_before() -> None:
    of_pytensor: dict[str, Any] = {"__name__": "pytensor", "config": pytensor.config}
    exec("def changed(**values): return config.change_flags(**values)", of_pytensor)
    before = pytensor.config.linker
    with pytest.raises(ValueError, match="linker"), of_pytensor["changed"](linker="nothing"):
        pass
    assert pytensor.config.linker == before


@pytest.mark.parametrize(
    "copied",
    [
        lambda given: pickle.loads(pickle.dumps(given)),
        lambda given: cloudpickle.loads(cloudpickle.dumps(given)),
        copy.copy,
        copy.deepcopy,
    ],
)
def test_the_configuration_is_pickled_and_copied(copied: Callable[[Any], Any]) -> None:
    """Functions of the user's script that read it travel to other processes."""
    compiled(lambda: None)
    with pytensor.config.change_flags(traceback__limit=3):
        flag = copied(vars(type(pytensor.config))["traceback__limit"])
    assert (flag.val, type(flag).__module__) == (3, "pytensor.configparser")
    assert copied(pytensor.config).mode == pytensor.config.mode


@pytest.mark.parametrize("name", ["lean", "vectorised"])
def test_threads_register_rewrites_once(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """And none goes on before all of them are there."""
    module = import_module(f"synkhronos._compiling.{name}.rewrite")
    known: set[str] = set()
    made = []

    def slowly(*_: object) -> None:
        made.append(1)
        time.sleep(0.05)
        known.update({"synkhronos_lean", "synkhronos_vectorised"})

    monkeypatch.setattr(module, "optdb", known)
    monkeypatch.setattr(module, "_register" if name == "lean" else "register_all", slowly)
    with ThreadPoolExecutor(2) as pool:
        for each in [pool.submit(lambda: (module.register(), len(known))) for _ in range(2)]:
            assert each.result(SECONDS) == (None, 2)
    assert made == [1]
