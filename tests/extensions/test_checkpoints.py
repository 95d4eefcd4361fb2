"""Checkpoints: what goes in comes out, whole or not at all, on any number of members."""

from __future__ import annotations

import errno
import json
import os
import signal
import sys
import time
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from fork_to import fork_to
from held_variables import Holding
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from user_scripts import run_script

import synkhronos as synk
from synkhronos.extensions import make_train_function, updates
from synkhronos.extensions._saving import checkpoint_files, random_streams
from synkhronos.extensions._saving import checkpoints as module
from synkhronos.extensions.batches import Batches
from synkhronos.extensions.checkpoints import Checkpoints
from synkhronos.testing.conformance import DTYPES

ROWS = np.zeros((6, 2))


def shared(value: Any, name: str | None = None) -> Any:
    return pytensor.shared(np.asarray(value), name=name)


def weights(*names: str) -> list[Any]:
    return [shared(np.arange(3.0) + i, name) for i, name in enumerate(names)]


def drawing(seed: int = 7) -> tuple[Any, Any]:
    """A function of ROWS that draws in every member, and its generator."""
    x = pt.matrix("x", dtype="float64")
    rng = pytensor.shared(np.random.default_rng(seed), name="rng")
    after, noise = pt.random.normal(size=x.shape, rng=rng, return_next_rng=True)
    f = synk.function([x], (noise, "gather"), updates={rng: after}, mode="FAST_COMPILE")
    return f, rng


def same(found: Any, wanted: Any) -> None:
    """Equal in dtype, shape and every byte."""
    found, wanted = np.asarray(found), np.asarray(wanted)
    assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
    assert found.tobytes() == wanted.tobytes()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "run" / "checkpoints"


LAYOUTS = {
    "plain": lambda a: a,
    "transposed": lambda a: a.T,
    "fortran": np.asfortranarray,
    "reversed": lambda a: a[::-1],
    "strided": lambda a: a[:, ::2],
    "inner": lambda a: a[1:, 1:3],
    "broadcast": lambda a: np.broadcast_to(a[0], a.shape),
    "empty": lambda a: a[:0],
    "0-d": lambda a: a[1, 2, ...],
    "1x1": lambda a: a[:1, :1],
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("borrowed", [True, False])
def test_every_dtype_and_layout(folder: Path, dtype: str, borrowed: bool) -> None:
    """Non-contiguous values, which safetensors 0.8.0 would corrupt, among them."""
    base = np.arange(12).reshape(3, 4).astype(dtype)
    if dtype.startswith("complex"):
        base = base + np.array(1j, dtype)
    values = {name: np.asarray(cut(base)) for name, cut in LAYOUTS.items()}
    variables = {n: pytensor.shared(v, borrow=borrowed) for n, v in values.items()}
    checkpoints = Checkpoints(folder, variables)
    checkpoints.save(1)
    for variable in variables.values():
        variable.set_value(np.zeros_like(variable.get_value()))
    checkpoints.restore()
    for name, variable in variables.items():
        found = variable.get_value(borrow=True)
        same(found, values[name].copy(order="C"))
        assert found.flags.writeable


@given(
    npst.arrays(
        st.sampled_from(["bool", "uint8", "int64", "float16", "float32", "complex64"]),
        npst.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4),
    ),
    st.permutations(range(4)),
)
def test_any_array_in_any_order_of_axes(value: np.ndarray, axes: list[int]) -> None:
    turned = value.transpose([a for a in axes if a < value.ndim])
    kept = checkpoint_files.storable(turned)
    assert kept.flags.c_contiguous
    same(
        checkpoint_files.original(kept, turned.dtype.name, list(turned.shape)),
        turned.copy(order="C"),
    )


def test_the_defect_of_safetensors_is_what_we_avoid(tmp_path: Path) -> None:
    """Our values pass through `storable`; what it returns comes back as it was."""
    from safetensors.numpy import load_file, save_file

    turned = np.arange(6.0).reshape(2, 3).T
    save_file({"t": checkpoint_files.storable(turned)}, tmp_path / "t")
    same(load_file(tmp_path / "t")["t"], turned.copy(order="C"))


def test_big_values(folder: Path, rng: np.random.Generator) -> None:
    value = rng.normal(size=(1000, 2001))
    w = pytensor.shared(value[:, ::2], name="w", borrow=True)
    checkpoints = Checkpoints(folder, [w])
    checkpoints.save(1)
    w.set_value(np.zeros((1000, 1001)))
    checkpoints.restore()
    same(w.get_value(), value[:, ::2].copy())


def test_what_is_written(folder: Path) -> None:
    w, rng = shared(np.ones((2, 2), "float32"), "w"), pytensor.shared(np.random.default_rng(1))
    batches = Batches(9, 2)
    next(iter(batches))
    checkpoints = Checkpoints(folder, {"w": w, "rng": rng}, batches)
    place = checkpoints.save(12, loss=np.float32(0.5), curve=np.array([1, 2]), note="fine")
    assert place == folder / "step-00000012"
    assert sorted(p.name for p in folder.iterdir()) == ["step-00000012"]
    assert sorted(p.name for p in place.iterdir()) == ["arrays.safetensors", "meta.json"]
    modes = {p.name: p.stat().st_mode for p in place.iterdir()}
    assert modes["arrays.safetensors"] == modes["meta.json"]
    body = json.loads((place / "meta.json").read_text())
    assert body["values"] == {"w": ["float32", [2, 2]]}
    assert list(body["streams"]) == ["rng"]
    assert body["batches"]["row"] == 2
    assert checkpoints.restore() == {"step": 12, "loss": 0.5, "curve": [1, 2], "note": "fine"}


def test_counters_and_cursor_are_restored(folder: Path) -> None:
    w, t = shared(np.ones(2), "w"), shared(np.array(3), "t")
    batches = Batches(9, 2, seed=1)
    checkpoints = Checkpoints(folder, [w, t], batches)
    rest = []
    for number, rows in enumerate(batches):
        if number == 1:
            checkpoints.save(number)
        if number > 1:
            rest.append(rows.tolist())
    w.set_value(np.zeros(2))
    t.set_value(0)
    again = Batches(9, 2, seed=1)
    assert Checkpoints(folder, [w, t], again).restore() == {"step": 1}
    assert (w.get_value().tolist(), int(t.get_value())) == ([1, 1], 3)
    assert [rows.tolist() for rows in again] == rest


def test_the_last_ones_are_kept_in_the_order_of_saving(folder: Path) -> None:
    """After going back, a lower step is the latest, and the abandoned ones are the oldest."""
    (w,) = weights("w")
    checkpoints = Checkpoints(folder, [w], keep=3)
    assert checkpoints.steps() == []
    for step in (10, 20, 30, 40):
        w.set_value(np.full(3, float(step)))
        checkpoints.save(step)
    assert checkpoints.steps() == [20, 30, 40]
    assert checkpoints.restore(20)["step"] == 20
    assert w.get_value().tolist() == [20] * 3
    w.set_value(np.full(3, 25.0))
    checkpoints.save(25)
    assert checkpoints.steps() == [30, 40, 25]
    checkpoints.restore(40)
    assert Checkpoints(folder, [w]).restore() == {"step": 25}
    assert w.get_value().tolist() == [25] * 3
    w.set_value(np.full(3, 31.0))
    checkpoints.save(30)
    assert checkpoints.steps() == [40, 25, 30]
    w.set_value(np.zeros(3))
    checkpoints.restore()
    assert w.get_value().tolist() == [31] * 3
    assert sorted(p.name for p in folder.iterdir()) == [
        f"step-000000{n}" for n in ("25", "30", "40")
    ]
    Checkpoints(folder, [w], keep=1).save(123_456_789)
    assert checkpoints.steps() == [123_456_789]
    assert checkpoints.restore(123_456_789) == {"step": 123_456_789}


def test_all_can_be_kept(folder: Path) -> None:
    checkpoints = Checkpoints(folder, weights("w"), keep=None)
    for step in range(6):
        checkpoints.save(step)
    assert checkpoints.steps() == list(range(6))


def test_no_checkpoint(folder: Path) -> None:
    checkpoints = Checkpoints(folder, weights("w"))
    with pytest.raises(synk.InputError, match="no checkpoint in"):
        checkpoints.restore()
    checkpoints.save(3)
    with pytest.raises(synk.InputError, match=r"no checkpoint of step 4 in .*; steps there: \[3\]"):
        checkpoints.restore(4)


def test_other_names_are_listed_and_nothing_is_set(folder: Path) -> None:
    Checkpoints(folder, weights("a", "b", "c")).save(1)
    b, c, d = weights("b", "c", "d")
    batches = Batches(5, 1)
    text = "holds a, which this Checkpoints lacks, and it lacks d; nothing was set"
    with pytest.raises(synk.InputError, match=text):
        Checkpoints(folder, [b, c, d]).restore()
    with pytest.raises(synk.InputError, match="step-00000001 holds a, b, which this Checkpoints"):
        Checkpoints(folder, [c]).restore()
    with pytest.raises(synk.InputError, match="step-00000001 lacks e0, e1, e2, e3, e4 and 4 more;"):
        Checkpoints(folder, weights("a", "b", "c", *(f"e{i}" for i in range(9)))).restore()
    with pytest.raises(synk.InputError, match="without batches"):
        Checkpoints(folder, weights("a", "b", "c"), batches).restore()
    rng = pytensor.shared(np.random.default_rng(0))
    with pytest.raises(synk.InputError, match=r"\['a'\] one is a random generator"):
        Checkpoints(folder, {"a": rng, "b": b, "c": c}).restore()
    assert [v.get_value()[0] for v in (b, c, d)] == [0, 1, 2]


def test_other_shapes_and_dtypes_are_listed_and_nothing_is_set(folder: Path) -> None:
    Checkpoints(folder, weights("a", "b", "c"), Batches(7, 2)).save(1)
    a = shared(np.zeros(3), "a")
    b, c = shared(np.zeros(3, "float32"), "b"), shared(np.zeros((3, 1)), "c")
    with pytest.raises(synk.InputError) as caught:
        Checkpoints(folder, [a, b, c], Batches(7, 2)).restore()
    assert "b is float32 (3,), saved was float64 (3,)" in str(caught.value)
    assert "c is float64 (3, 1), saved was float64 (3,)" in str(caught.value)
    ours, batches = weights("a", "b", "c"), Batches(8, 2)
    ours[1].set_value(np.zeros(3))
    text = "step-00000001 does not fit: .* with n=7, and these have n=8; .* Nothing was set"
    with pytest.raises(synk.InputError, match=text):
        Checkpoints(folder, ours, batches).restore()
    assert a.get_value().tolist() == ours[1].get_value().tolist() == [0, 0, 0]


def test_a_position_that_is_not_asked_for_is_told(folder: Path) -> None:
    """Batches that were saved and are not given would begin anew."""
    ours = weights("a")
    Checkpoints(folder, ours, Batches(7, 2)).save(1)
    with pytest.warns(synk.CheckpointWarning, match=r"position of its batches.*train, batches"):
        assert Checkpoints(folder, ours).restore() == {"step": 1}


def test_another_run_in_the_folder_is_told_before_it_is_replaced(folder: Path) -> None:
    """At the first save, unless a checkpoint was restored or the steps go on."""
    ours = weights("a")
    first = Checkpoints(folder, ours)
    assert repr(first) == f"<synkhronos.extensions.Checkpoints of 1 variable in {str(folder)!r}>"
    for step in (5, 3, 4):
        first.save(step)
    Checkpoints(folder, ours).save(6)
    again = Checkpoints(folder, ours)
    again.restore()
    again.save(2)
    other = Checkpoints(folder, ours, Batches(7, 2))
    before = set(folder.iterdir())
    with (
        warnings.catch_warnings(action="error"),
        pytest.raises(synk.CheckpointWarning, match="another run, up to step 6, and step 0 of"),
    ):
        other.save(0)
    assert set(folder.iterdir()) == before
    with pytest.warns(synk.CheckpointWarning, match="restore"):
        other.save(0)
    other.save(1)
    assert (
        repr(other)
        == f"<synkhronos.extensions.Checkpoints of 1 variable and batches in {str(folder)!r}>"
    )


def test_batches_of_another_size_continue_at_the_row(folder: Path) -> None:
    """The position is a number of rows."""
    ours, batches = weights("a"), Batches(8, 4, seed=3)
    for _ in batches:
        break
    Checkpoints(folder, ours, batches).save(1)
    others = Batches(8, 2, seed=3)
    Checkpoints(folder, ours, others).restore()
    assert [rows.tolist() for rows in others] == [r.tolist() for r in Batches(8, 2, seed=3)][2:]


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def cut(path: Path, at: int) -> None:
    path.write_bytes(path.read_bytes()[:at])


@pytest.mark.parametrize("name", ["arrays.safetensors", "meta.json"])
@pytest.mark.parametrize("at", [0, 9, 60, -1, None])
@pytest.mark.parametrize("harm", [flip, cut])
def test_damage_is_said_and_the_latest_whole_one_is_taken(
    folder: Path, name: str, at: int | None, harm: Any
) -> None:
    (w,) = weights("w")
    checkpoints = Checkpoints(folder, [w])
    checkpoints.save(1)
    place = checkpoints.save(2, note="something")
    w.set_value(np.full(3, -1.0))
    if at is None:
        (place / name).unlink()
    else:
        harm(place / name, at)
    with pytest.raises(synk.CheckpointError, match="step-00000002 is damaged") as caught:
        checkpoints.restore(2)
    assert not isinstance(caught.value, synk.InputError)
    assert w.get_value().tolist() == [-1] * 3
    assert checkpoints.steps() == [1, 2]
    with pytest.warns(synk.CheckpointWarning, match="step-00000002 is damaged.* that of step 1"):
        assert checkpoints.restore() == {"step": 1}
    assert w.get_value().tolist() == [0, 1, 2]
    for step in (3, 4, 5, 6):
        checkpoints.save(step)
    if name == "meta.json":
        assert place.exists(), "what cannot be read is not removed"
    assert checkpoints.restore() == {"step": 6}


@pytest.mark.parametrize("file", ["meta.json", "arrays.safetensors"])
def test_a_shortage_of_descriptors_is_no_damage(
    folder: Path, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    """Else an earlier checkpoint would be restored, or the advice would be to remove this one."""
    [a] = weights("a")
    checkpoints = Checkpoints(folder, [a])
    checkpoints.save(1)
    a.set_value(np.full(3, 7.0))
    checkpoints.save(2)
    reading = module.files.reading

    def short(path: Path) -> Any:
        if path == folder / "step-00000002" / file:
            raise OSError(errno.EMFILE, "Too many open files")
        return reading(path)

    monkeypatch.setattr(module.files, "reading", short)
    with pytest.raises(OSError, match="Too many open files"):
        checkpoints.restore()
    monkeypatch.undo()
    assert checkpoints.restore() == {"step": 2}


def test_a_failed_save_leaves_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoints = Checkpoints(folder, weights("w"))
    checkpoints.save(1)

    def full(descriptor: int) -> None:
        if os.readlink(f"/proc/self/fd/{descriptor}").endswith("meta.json"):
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        checkpoints.save(2)
    monkeypatch.undo()
    assert [p.name for p in folder.iterdir()] == ["step-00000001"]
    with pytest.raises(synk.InputError, match="JSON"):
        checkpoints.save(2, what=object())
    assert checkpoints.steps() == [1]


def test_a_folder_that_is_taken_while_it_is_written(folder: Path, tmp_path: Path) -> None:
    """T7: a stranger puts a link in its place, to another checkpoint of this user."""
    mine = Checkpoints(tmp_path / "mine", weights("v")).save(1)
    before = {path.name: path.read_bytes() for path in mine.iterdir()}
    checkpoints = Checkpoints(folder, weights("w"))
    checkpoints.save(1)
    save = checkpoints._files.save_file

    def taken(arrays: Any, path: Any) -> None:
        new = folder / ".tmp-step-00000002"
        new.rename(folder / "away")
        new.symlink_to(mine)
        save(arrays, path)

    checkpoints._files = SimpleNamespace(save_file=taken)
    with pytest.raises(FileExistsError, match="another process has put something in its place"):
        checkpoints.save(2)
    assert {path.name: path.read_bytes() for path in mine.iterdir()} == before
    assert checkpoints.steps() == [1]


@pytest.mark.skipif(os.getuid() != 0, reason="it takes root to make a link of another user")
def test_a_folder_behind_a_link_of_another_user(folder: Path, tmp_path: Path) -> None:
    mine = Checkpoints(tmp_path / "mine", weights("v"))
    mine.save(1)
    folder.parent.mkdir(exist_ok=True)
    folder.symlink_to(mine.folder)
    os.lchown(folder, 65534, 65534)
    with pytest.raises(OSError, match="it is a link of another user"):
        Checkpoints(folder, weights("w")).save(2)
    assert mine.steps() == [1]


@pytest.mark.parametrize("moment", range(1, 10))
def test_a_stop_between_any_two_steps_of_replacing(
    folder: Path, monkeypatch: pytest.MonkeyPatch, moment: int
) -> None:
    """Saving a step again, stopped at its n-th act on the disk: the old or the new one is there."""

    class Stop(BaseException):
        pass

    (w,) = weights("w")
    checkpoints = Checkpoints(folder, [w], keep=2)
    for step in (1, 2):
        w.set_value(np.full(3, float(step)))
        checkpoints.save(step)
    w.set_value(np.full(3, 7.0))
    count = iter(range(1, 100))

    def stopping(real: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            if next(count) == moment:
                raise Stop
            return real(*args, **kwargs)

        return call

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", stopping(Path.rename))
        patch.setattr(os, "fsync", stopping(os.fsync))
        patch.setattr(module.shutil, "rmtree", lambda *a, **k: None)
        stopped = False
        try:
            checkpoints.save(2)
        except Stop:
            stopped = True
    assert stopped == (moment <= 7), "two files, and the list of names three times; two names"
    fresh = Checkpoints(folder, [w], keep=2)
    w.set_value(np.zeros(3))
    assert fresh.restore() == {"step": 2}
    assert w.get_value()[0] == (2 if moment <= 5 else 7)
    assert fresh.steps() == [1, 2]
    fresh.save(3)
    assert fresh.steps() == [2, 3]
    assert sorted(p.name for p in folder.iterdir() if p.name.startswith(".tmp")) == []
    assert fresh.restore(2) == {"step": 2}
    fresh.save(2)
    fresh.save(4)
    assert sorted(p.name for p in folder.iterdir()) == ["step-00000002", "step-00000004"]


@pytest.mark.thorough  # at each system call: tests/faults/test_saves.py
def test_a_kill_at_any_moment_tears_nothing(tmp_path: Path) -> None:
    """SIGKILL in the middle of saves, fifty times: the latest loads, and is none older than the
    last of which `save` has returned."""
    out = run_script(
        tmp_path,
        """
        import os, random, signal, time
        import numpy as np, pytensor
        from synkhronos.extensions.batches import Batches
        from synkhronos.extensions.checkpoints import Checkpoints

        names = ("a", "b", "c")
        variables = {}
        for i, n in enumerate(names):
            variables[n] = pytensor.shared(np.full(30_000, float(i)), name=n)
        rng = pytensor.shared(np.random.default_rng(0), name="rng")
        batches = Batches(10**6, 1, shuffle=False)
        checkpoints = Checkpoints("kept", [*variables.values(), rng], batches, keep=2)
        random.seed(5)
        begun = time.monotonic()
        checkpoints.save(0, step_too=0)
        a_save = time.monotonic() - begun
        step, in_a_save = 0, 0

        def told(count):
            # of so many saves, the steps that the child says are done; "s" it says before each
            text = b""
            while len(text) < 5 * count + 1:
                text += os.read(read, 5 * count + 1 - len(text))
            return [int.from_bytes(text[i + 1 : i + 5], "big") for i in range(0, 5 * count, 5)]

        for _ in range(50):
            read, write = os.pipe()
            child = os.fork()
            if child == 0:
                while True:
                    step += random.choice((0, 1))
                    for i, variable in enumerate(variables.values()):
                        variable.set_value(np.full(30_000, float(step + i)))
                    rng.set_value(np.random.default_rng(step))
                    batches.restore({**batches.state(), "row": step})
                    os.write(write, b"s")
                    checkpoints.save(step, step_too=step)
                    os.write(write, step.to_bytes(4, "big"))
            least = max(told(random.choice((0, 0, 1, 2))), default=step)
            time.sleep(random.random() * 1.2 * a_save)
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            os.close(write)
            rest = b"s" + b"".join(iter(lambda: os.read(read, 1 << 16), b""))
            os.close(read)
            in_a_save += len(rest) % 5 == 1
            least = max([least] + [int.from_bytes(rest[i - 4 : i], "big")
                                   for i in range(5, len(rest) + 1, 5)])
            found = checkpoints.restore()
            assert found["step"] == found["step_too"] >= least, (found, least)
            a_save *= 1.1 if found["step"] == step else 0.95  # the machine's speed changes
            step = found["step"]
            for i, variable in enumerate(variables.values()):
                assert (variable.get_value() == step + i).all()
            assert rng.get_value().normal() == np.random.default_rng(step).normal()
            assert batches.state()["row"] == step
            assert checkpoints.steps()[-1] == step
            for older in checkpoints.steps():
                assert checkpoints.restore(older)["step"] == older
            checkpoints.restore()
        print("ok", step > 10, in_a_save > 10)
        """,
    )
    assert out.split() == ["ok", "True", "True"], out


def test_a_fork_that_outlives_a_save_keeps_no_lock(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as a process of multiprocessing that another thread starts."""
    write, pids = Checkpoints._write, list[int]()

    def forking(self: Checkpoints, *args: Any) -> Path:
        if not pids:
            pids.append(fork_to(lambda: time.sleep(60)))
        return write(self, *args)

    monkeypatch.setattr(Checkpoints, "_write", forking)
    monkeypatch.setattr(module, "_LOCK_SECONDS", 0.5)
    checkpoints = Checkpoints(folder, weights("a"))
    try:
        for step in (1, 2):
            checkpoints.save(step)
    finally:
        os.kill(pids[0], signal.SIGKILL)
        os.waitpid(pids[0], 0)
    assert checkpoints.steps() == [1, 2]


# ---- random generators


@pytest.mark.parametrize("kind", ["PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64"])
def test_every_kind_of_generator(kind: str) -> None:
    draws = np.random.Generator(getattr(np.random, kind)(5))
    draws.integers(0, 10, 3, dtype="int32")  # half of a word is left in the generator
    draws.spawn(1)
    again = random_streams.rebuild(random_streams.describe(draws))
    assert type(again.bit_generator) is type(draws.bit_generator)
    for g, h in ((draws, again), (*draws.spawn(1), *again.spawn(1))):
        np.testing.assert_array_equal(g.integers(0, 99, 9, "int32"), h.integers(0, 99, 9, "int32"))
        np.testing.assert_array_equal(g.normal(size=9), h.normal(size=9))


def test_a_strange_generator() -> None:
    class Strange(np.random.PCG64):
        pass

    with pytest.raises(synk.InputError, match="Strange"):
        random_streams.describe(np.random.Generator(Strange(1)))


def test_every_member_draws_on_where_it_was(size: int, folder: Path) -> None:
    """Saved in one group, restored in another of the size: the same numbers in every rank."""
    with synk.Group(size):
        f, rng = drawing()
        f(ROWS)
        Checkpoints(folder, [rng]).save(1)
        wanted = [f(ROWS) for _ in range(2)]
        Checkpoints(folder, [rng]).restore()
        np.testing.assert_array_equal([f(ROWS) for _ in range(2)], wanted)
    with synk.Group(size):
        f, rng = drawing(seed=99)
        f(ROWS)
        Checkpoints(folder, [rng]).restore()
        np.testing.assert_array_equal([f(ROWS) for _ in range(2)], wanted)
    with synk.Group(size):
        f, rng = drawing(seed=99)
        Checkpoints(folder, [rng]).restore()
        np.testing.assert_array_equal([f(ROWS) for _ in range(2)], wanted)


def test_before_the_first_call_and_after_seeding(group: synk.Group, folder: Path) -> None:
    """Streams that the members do not have yet, or no longer, when they are saved."""
    f, rng = drawing()
    checkpoints = Checkpoints(folder, [rng])
    checkpoints.save(1)
    first = f(ROWS)
    rng.set_value(np.random.default_rng(8))
    checkpoints.save(2)
    second = f(ROWS)
    assert not np.isin(second, first).any()
    for step, wanted in ((1, first), (2, second), (1, first)):
        checkpoints.restore(step)
        np.testing.assert_array_equal(f(ROWS), wanted)


@pytest.mark.parametrize(("saved", "now"), [(1, 2), (2, 1), (3, 2), (2, 3)])
def test_another_number_of_members(folder: Path, saved: int, now: int) -> None:
    """The master draws on; the others draw numbers of their own, the same ones every time."""
    with synk.Group(saved):
        f, rng = drawing()
        f(ROWS)
        Checkpoints(folder, [rng]).save(1)
        wanted = f(ROWS)
    found = []
    for _ in range(2):
        with synk.Group(now):
            f, rng = drawing(seed=99)
            f(ROWS)
            text = f"saved by {saved} members and these are {now}"
            with pytest.warns(synk.ReplicaWarning, match=text):
                Checkpoints(folder, [rng]).restore()
            found.append(f(ROWS))
    common = 6 // max(saved, now)
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0][:common], wanted[:common])
    assert len(np.unique(found[0])) == found[0].size


def test_without_a_group_as_in_a_group_of_one(folder: Path) -> None:
    rng, w = pytensor.shared(np.random.default_rng(3), name="rng"), shared(np.ones(2), "w")
    checkpoints = Checkpoints(folder, [rng, w])
    checkpoints.save(1)
    wanted = rng.get_value().normal(size=3)
    w.set_value(np.zeros(2))
    rng.get_value(borrow=True).normal(size=5)
    checkpoints.restore()
    assert w.get_value().tolist() == [1, 1]
    np.testing.assert_array_equal(rng.get_value().normal(size=3), wanted)
    with synk.Group(1):
        checkpoints.save(2)
    with synk.Group(2):
        with pytest.warns(synk.ReplicaWarning, match="saved by 1 members and these are 2"):
            checkpoints.restore(1)
        assert synk.get_value(1, w).tolist() == [1, 1]
    checkpoints.restore(2)
    np.testing.assert_array_equal(rng.get_value().normal(size=3), wanted)


# ---- in a group


def test_values_reach_every_member(group: synk.Group, folder: Path) -> None:
    w, v = shared(np.ones(2), "w"), shared(np.ones((2, 2), "float32"), "v")
    x = pt.vector("x", dtype="float64")
    f = synk.function([x], [x + w.sum(), (v.sum(), None)], mode="FAST_COMPILE")
    rows = np.zeros(4)
    wanted = f(rows)
    checkpoints = Checkpoints(folder, [w, v])
    checkpoints.save(1)
    w.set_value(np.zeros(2))
    synk.broadcast(v, np.zeros((2, 2), "float32"))
    assert f(rows)[0].tolist() == [0] * 4
    checkpoints.restore()
    for found, value in zip(f(rows), wanted, strict=True):
        np.testing.assert_array_equal(found, value)


def test_values_that_live_in_the_arena(group2: synk.Group, folder: Path) -> None:
    w = shared(np.array([1.0, 2.0]), "w")
    synk.all_reduce(w, "sum")
    checkpoints = Checkpoints(folder, [w])
    checkpoints.save(1)
    synk.all_reduce(w, "sum")
    checkpoints.restore()
    assert w.get_value().tolist() == synk.get_value(1, w).tolist() == [2, 4]
    synk.all_reduce(w, "sum")
    assert w.get_value().tolist() == synk.get_value(1, w).tolist() == [4, 8]


def test_values_that_differ_on_purpose(group2: synk.Group, folder: Path) -> None:
    """The master's is saved, which is said once; restored, it is everybody's."""
    w, v = shared(np.zeros(2), "w"), shared(np.zeros(2), "v")
    synk.set_value(1, w, np.ones(2))
    synk.broadcast(v)
    checkpoints = Checkpoints(folder, [w, v])
    with pytest.warns(synk.ReplicaWarning, match="members' values of w differ; only the master's"):
        checkpoints.save(1)
    checkpoints.save(2)  # and not again: warnings are errors
    assert synk.get_value(1, w).tolist() == [1, 1]
    checkpoints.restore()
    assert w.get_value().tolist() == synk.get_value(1, w).tolist() == [0, 0]
    w.set_value(np.ones(2))
    assert synk.get_value(1, w).tolist() == [1, 1], "they no longer differ on purpose"


def test_a_torn_value_is_not_saved_and_can_be_restored(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (w,) = weights("w")
    checkpoints = Checkpoints(folder, [w])
    checkpoints.save(1)
    torn = {w.container: w.container.storage[0]}
    monkeypatch.setattr("synkhronos._engine.variables._torn", torn)
    with pytest.raises(synk.StateTorn):
        checkpoints.save(2)
    assert checkpoints.steps() == [1]
    checkpoints.restore()
    checkpoints.save(2)


@pytest.mark.thorough  # forked ones: the tests above
def test_workers_started_by_exec(folder: Path) -> None:
    with synk.Group(2, start="exec"):
        f, rng = drawing()
        f(ROWS)
        checkpoints = Checkpoints(folder, [rng])
        checkpoints.save(1)
        wanted = f(ROWS)
        checkpoints.restore()
        np.testing.assert_array_equal(f(ROWS), wanted)


# ---- what may be given


def test_a_train_function(folder: Path) -> None:
    """Names of their own where these are unique, places elsewhere."""
    a, b = weights("a", "same")
    c, d = shared(1.0, "same"), shared(2.0)
    rng = pytensor.shared(np.random.default_rng(0))
    train = Holding(params=[a, b], state=[c, d, a], streams=[rng])
    place = Checkpoints(folder, train).save(1)
    body = json.loads((place / "meta.json").read_text())
    assert list(body["values"]) == ["a", "params.1", "state.0", "state.1"]
    assert list(body["streams"]) == ["streams.0"]
    d.set_value(5.0)
    Checkpoints(folder, train).restore()
    assert float(d.get_value()) == 2


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: [shared(1.0)], r"variables at \[0\] have no name"),
        (lambda: [*weights("a", "b"), shared(1.0, "a")], r"named \['a'\]"),
        (lambda: weights("__metadata__"), "__metadata__"),
        (lambda: {"a": (w := shared(1.0)), "b": w}, "listed twice"),
        (lambda: {3: shared(1.0)}, "no name"),
        (lambda: [np.zeros(3)], "no name|not shared"),
        (lambda: shared(1.0, "a"), "not a list or dict"),
        (lambda: None, "not a list or dict"),
        (lambda: SimpleNamespace(params=[shared(1.0, "a")]), "not a train function"),
        (lambda: {"a": pytensor.shared("text", name="a")}, "a .* not an array of numbers"),
    ],
)
def test_bad_variables(folder: Path, make: Any, said: str) -> None:
    with pytest.raises(synk.InputError, match=said):
        Checkpoints(folder, make())


def test_bad_numbers(folder: Path) -> None:
    for keep in (0, -1, 1.5, True, "2"):
        with pytest.raises(synk.InputError, match="keep="):
            Checkpoints(folder, weights("w"), keep=keep)  # type: ignore[arg-type]
    checkpoints = Checkpoints(folder, weights("w"))
    for step in (-1, 1.5, True, None):
        with pytest.raises(synk.InputError, match="step="):
            checkpoints.save(step)  # type: ignore[arg-type]
    assert not folder.exists()


def test_only_generators_and_nothing_at_all(folder: Path) -> None:
    Checkpoints(folder, []).save(1)
    assert Checkpoints(folder, {}).restore() == {"step": 1}


@pytest.fixture
def no_safetensors(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(sys.modules, "safetensors", None)
    return


@pytest.mark.usefixtures("no_safetensors")
def test_safetensors_is_missing(folder: Path) -> None:
    with pytest.raises(synk.BackendMissing, match=r'pip install "synkhronos\[checkpoints\]"'):
        Checkpoints(folder, weights("w"))


def test_another_format(folder: Path) -> None:
    checkpoints = Checkpoints(folder, weights("w"))
    place = checkpoints.save(1)
    body = json.loads((place / "meta.json").read_text())
    del body["seal"]
    (place / "meta.json").write_text(checkpoint_files.sealed({**body, "format": 99}))
    with pytest.raises(synk.CheckpointError, match="format 99; this reads 1"):
        checkpoints.restore()


def test_strangers_in_the_folder_stay(folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "notes.txt").write_text("mine")
    (folder / "step-12").mkdir()
    checkpoints = Checkpoints(folder, weights("w"), keep=1)
    checkpoints.save(1)
    checkpoints.save(2)
    assert checkpoints.steps() == [2]
    assert {"notes.txt", "step-12"} < set(os.listdir(folder))


# Resuming: all that a step reads, and an empty folder.


def test_a_checkpoint_holds_all_that_a_step_reads(group: synk.Group, folder: Path) -> None:
    """The rate, what the loss reads besides, and what `updates` change are as they were."""
    x, w = pt.dmatrix("x"), shared(np.zeros(3), "w")
    rate, scale, seen = shared(0.001, "rate"), shared(2.0), shared(0.0, "seen")
    train = make_train_function(
        ((scale * x @ w - x.sum(axis=1)) ** 2).mean(),
        [w],
        x,
        None,
        updates.momentum,
        rate,
        momentum=shared(0.5, "momentum"),
        updates=[(seen, seen + 1)],
        mode="FAST_COMPILE",
    )
    momentum = next(s for s in train.settings if s.name == "momentum")
    assert {s.name for s in train.settings} == {"rate", "momentum", None, "seen"}
    rows = np.random.default_rng(0).normal(size=(7, 3))
    train(rows)
    checkpoints = Checkpoints(folder, train)
    checkpoints.save(1)
    wanted = [float(train(rows)) for _ in range(3)]
    for variable, value in ((rate, 0.1), (momentum, 0.9), (scale, 1.0)):
        variable.set_value(np.float64(value))
    checkpoints.restore()
    assert [float(v.get_value()) for v in (rate, momentum, scale, seen)] == [0.001, 0.5, 2.0, 1.0]
    assert [float(train(rows)) for _ in range(3)] == wanted
    assert seen.get_value() == 4.0


def test_nothing_to_resume(folder: Path) -> None:
    """None on request, and no value changes; else an error that says how to ask."""
    w = shared(np.ones(2), "w")
    checkpoints = Checkpoints(folder, [w])
    for step in (None, 3):
        assert checkpoints.restore(step, missing="ignore") is None
        with pytest.raises(synk.InputError, match='missing="ignore"'):
            checkpoints.restore(step)
    assert w.get_value().tolist() == [1, 1]
    with pytest.raises(synk.InputError, match="missing="):
        checkpoints.restore(missing="skip")  # type: ignore[call-overload]
    checkpoints.save(3, loss=0.5)
    assert checkpoints.restore(missing="ignore") == {"step": 3, "loss": 0.5}


def test_missing_is_not_damaged(folder: Path) -> None:
    """A checkpoint that is there and cannot be read raises, whatever `missing` says."""
    checkpoints = Checkpoints(folder, [shared(np.ones(2), "w")])
    place = checkpoints.save(1)
    (place / "arrays.safetensors").write_bytes(b"no")
    with pytest.raises(synk.CheckpointError):
        checkpoints.restore(missing="ignore")


def save_often(folder: Path, saver: str, ready: int, go: int) -> None:
    w = pytensor.shared(np.full(1000, float(saver)), name="w")
    checkpoints = Checkpoints(folder, [w], keep=2)
    checkpoints.adopt()
    os.write(ready, b"r")
    os.read(go, 1)
    for step in range(60):
        checkpoints.save(step, saver=saver)


@pytest.mark.slow
def test_two_processes_save_in_one_folder(folder: Path) -> None:
    """Each save is whole, whoever makes it; nothing of either is half there."""
    pytest.importorskip("safetensors")
    (is_ready, ready), (may_go, go) = os.pipe(), os.pipe()
    savers = [fork_to(partial(save_often, folder, str(n), ready, may_go)) for n in range(2)]
    for end in (ready, may_go):
        os.close(end)
    try:
        assert [os.read(is_ready, 1) for _ in savers] == [b"r"] * 2
        os.write(go, b"gg")
    finally:
        for end in (is_ready, go):
            os.close(end)
        ended = [os.waitpid(pid, 0)[1] for pid in savers]
    assert ended == [0, 0]
    w = pytensor.shared(np.zeros(1000), name="w")
    found = Checkpoints(folder, [w]).restore()
    assert found["step"] == 59
    assert w.get_value().tolist() == [float(found["saver"])] * 1000
    assert {path.name for path in folder.iterdir()} <= {f"step-{n:08d}" for n in range(60)}
