"""Checkpoints: the complete state of a training run, each in a folder that is written atomically.

::

    folder/step-00000012/arrays.safetensors    the values
                         meta.json             the rest, and checksums of both

A checkpoint is written under a name that begins with a dot, flushed to the disk with fsync, and
renamed. A kill at any moment leaves the earlier checkpoints intact; the next save removes the
remains. A serial number in each checkpoint gives the order of saving: after a return to step
5, a new step 6 is later than the earlier step 9.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, overload

import numpy as np
from pytensor.tensor.random.type import RandomType

from synkhronos._checks import check_integer, check_word, options_checked, or_none, shown
from synkhronos._engine.commands.collectives import Broadcast
from synkhronos._engine.group import Group, current
from synkhronos._engine.process_bound import ProcessBound
from synkhronos._engine.variables import check_whole
from synkhronos._errors import (
    CheckpointError,
    CheckpointWarning,
    GroupError,
    InputError,
    InputTypeError,
    ReplicaWarning,
    SynkhronosError,
    needing,
)
from synkhronos._host import files
from synkhronos._host.folder_locks import FolderLock
from synkhronos._warnings import warn
from synkhronos.extensions._apart.points import Point
from synkhronos.extensions._rows.batches import Batches
from synkhronos.extensions._saving.checkpoint_files import (
    ARRAYS,
    FORMAT,
    META,
    NAME,
    Body,
    check_streams,
    damage,
    digest,
    folders,
    original,
    read_meta,
    sealed,
    storable,
)
from synkhronos.extensions._saving.named_variables import Saved, check_array, named_variables
from synkhronos.extensions._saving.random_streams import fetch_states, set_states
from synkhronos.extensions._step.training_function import TrainingFunction

_LEAVINGS = ".tmp-"
_LEFT = re.compile(rf"{re.escape(_LEAVINGS)}{NAME.pattern}")  # all other names are the user's
_SHOWN = 5  # names in a message
_LOCK_SECONDS = 300.0  # that a save waits for that of another process; the largest take minutes
_LOOK_SECONDS = 0.01
_ERRNO = re.compile(r"os error ([0-9]+)")


class Checkpoints(ProcessBound):
    """The checkpoints of one training run, in their own folder.

    Parameters
    ----------
    folder : path
        The first save makes it. Each run needs one of its own. Saves of two processes wait for each
        other, and each is whole; but each removes what it takes for its own older checkpoints.
    variables : list or dict of shared variables, or a train function
        Parameters, optimizer state, counters, random generators. The files identify them by name:
        the variables' names, which must be unique, or the keys of the dict. A train function gives
        its `params`, `state`, `streams` and `settings`, so all that a step reads; the name of an
        unnamed one is its position there.
    batches : Batches, optional
        Their position is saved too.
    keep : int or None
        The number of checkpoints to keep, the latest ones. None: all.

    Raises
    ------
    BackendMissing
        safetensors is not installed.
    InputError, InputTypeError
        Names are missing or not unique, or an object is not a shared variable.

    Warns
    -----
    CheckpointWarning
        The first save goes to a folder with checkpoints of later steps, and none was restored: they
        are of another run, and will be replaced. Or `restore` finds a position of batches, and no
        `batches` were given.

    Notes
    -----
    A checkpoint holds the master's values, and the states of the random generators of all members.
    A `ReplicaWarning` names variables whose values differ between members. `restore` sets the
    values in all members. Without a group, files are those of a group of one.

    Examples
    --------
    >>> import tempfile, numpy as np, pytensor
    >>> from synkhronos.extensions.checkpoints import Checkpoints
    >>> w = pytensor.shared(np.zeros(3), name="w")
    >>> folder = tempfile.TemporaryDirectory()
    >>> checkpoints = Checkpoints(folder.name, [w])
    >>> _ = checkpoints.save(12, loss=0.5)
    >>> w.set_value(np.ones(3))
    >>> checkpoints.restore(), w.get_value().tolist()
    ({'step': 12, 'loss': 0.5}, [0.0, 0.0, 0.0])
    >>> folder.cleanup()
    """

    _instead = "make it again, with the same folder and variables"

    @options_checked
    def __init__(
        self,
        folder: str | os.PathLike[str],
        variables: Saved,
        batches: Batches | None = None,
        keep: int | None = 3,
    ) -> None:
        self._files, self._error = _safetensors()
        if not isinstance(folder, str | os.PathLike):
            raise InputTypeError(
                "Checkpoints: the folder comes first, as in Checkpoints(folder, train); found "
                f"{shown(folder)}"
            )
        self.folder = Path(folder)
        train = variables if isinstance(variables, TrainingFunction) else None
        self._owner = "this Checkpoints" if train is None else "this training function"
        self.batches = batches
        self.keep = or_none(check_integer, "keep", keep, 1)
        named = named_variables(variables)
        self._streams = {n: v for n, v in named.items() if isinstance(v.type, RandomType)}
        self._values = {n: v for n, v in named.items() if n not in self._streams}
        self._by_node = set[str]()
        self._collect = None
        if train is not None and train.by_node:
            self._by_node = {n for n, v in named.items() if v in train.by_node}
            self._collect = train.collect
        for name, variable in self._values.items():
            check_array(name, variable)
        self._said: set[str] = set()
        self._under_way = False  # the folder's checkpoints are of this run

    def __repr__(self) -> str:
        n = len(self._values) + len(self._streams)
        held = f"{n} variable{'s' * (n != 1)}"
        also = "" if self.batches is None else " and batches"
        return f"<synkhronos.extensions.Checkpoints of {held}{also} in {str(self.folder)!r}>"

    def steps(self) -> list[int]:
        """The steps that have checkpoints, in the order of saving.

        >>> import tempfile, pytensor
        >>> from synkhronos.extensions.checkpoints import Checkpoints
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     checkpoints = Checkpoints(folder, [pytensor.shared(0.0, name="w")], keep=2)
        ...     [checkpoints.save(step).name for step in (3, 6, 9)], checkpoints.steps()
        (['step-00000003', 'step-00000006', 'step-00000009'], [6, 9])
        """
        return [step for _, step, _ in self._listed()]

    def saved(self) -> dict[int, dict[str, Any]]:
        """The keywords of `save` by step, in the order of saving, of all that can be read."""
        places = [place for serial, _, place in self._listed() if serial is not None]
        return {body["step"]: body["meta"] for body in map(read_meta, places)}

    def save(self, step: int | Point, **meta: object) -> Path:
        """Write a checkpoint; it replaces one of the same step.

        Parameters
        ----------
        step : int, not negative; or Point
            A point of a run is saved with its own values and its place in the batches; its version
            is the step.
        **meta
            More values to save as JSON; numpy's numbers and arrays become Python's.

        Returns
        -------
        Path
            The checkpoint's folder, which is flushed to the disk.

        Raises
        ------
        InputError
            A value cannot be JSON. Nothing has been written.
        StateTorn
            A value is half written.
        OSError
            For example, the disk is full. The earlier checkpoints are intact.

        Notes
        -----
        Cost: with random generators one round; the bytes of the values are written once and read
        once for their checksum; five fsyncs.

        Examples
        --------
        >>> import json, tempfile, pytensor
        >>> from synkhronos.extensions.checkpoints import Checkpoints
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     place = Checkpoints(folder, [pytensor.shared(0.0, name="w")]).save(7, loss=0.5)
        ...     sorted(file.name for file in place.iterdir())
        ['arrays.safetensors', 'meta.json']
        """
        point = step if isinstance(step, Point) else None
        step = check_integer("step", step.version if isinstance(step, Point) else step, 0)
        try:
            kept = json.loads(json.dumps(meta, default=_plain))
        except (TypeError, ValueError) as exc:
            raise InputError(f"save: {shown(meta)} cannot be put into JSON: {exc}") from None
        group = _group()
        for variable in self._values.values():
            check_whole(variable)
        if self._collect is not None and group is not None:
            self._collect()
        self._say_what_differs(group)
        self._say_whose(step)
        states = fetch_states(group, list(self._streams.values()))
        held = {} if point is None else point.values
        arrays = {
            n: np.asarray(held[v] if v in held else v.get_value(borrow=True))
            for n, v in self._values.items()
        }
        position = None if self.batches is None else self.batches.state()
        if point is not None and position is not None:
            position = point.batches
        body = {
            "format": FORMAT,
            "step": step,
            "values": {n: [a.dtype.name, list(a.shape)] for n, a in arrays.items()},
            "streams": {n: [row[i] for row in states] for i, n in enumerate(self._streams)},
            "size": len(states) if group is None else group.size,
            "master": 0 if group is None else group.master,
            "batches": position,
            "meta": kept,
        }
        files.make_folder(self.folder, lasting=True)
        with self._alone():
            place = self._write(step, {n: storable(a) for n, a in arrays.items()}, body)
            self._prune()
        self._under_way = True
        return place

    @overload
    def restore(
        self, step: int | None = None, *, missing: Literal["raise"] = "raise"
    ) -> dict[str, Any]: ...

    @overload
    def restore(
        self, step: int | None = None, *, missing: Literal["ignore"]
    ) -> dict[str, Any] | None: ...

    def restore(self, step: int | None = None, *, missing: str = "raise") -> dict[str, Any] | None:
        """Set all variables, generators and batches to a checkpoint.

        Parameters
        ----------
        step : int, optional
            Default: the latest one saved.
        missing : {"raise", "ignore"}
            "ignore" returns None if the checkpoint does not exist, and sets nothing. So a script
            resumes if there is something to resume.

        Returns
        -------
        dict, or None
            The arguments of `save`: "step" and the keywords.

        Raises
        ------
        InputError
            The checkpoint does not exist, or it holds other variables, dtypes, shapes or rows.
            Nothing has been set.
        CheckpointError
            The checkpoint of `step`, or each one, is damaged; or it has another format. Nothing has
            been set.
        OSError
            Descriptors or memory are short. Nothing has been set.

        Warns
        -----
        CheckpointWarning
            The latest checkpoint is damaged, and the latest one that is whole is restored instead.

        Notes
        -----
        In a group of the size that saved, every member's random generators go on where they were.
        In another one only the master's do, and a `ReplicaWarning` says so: the others get streams
        that follow from them, as when a generator is first shared.

        Cost: the file is read twice; one round for random generators; values travel with the next
        call.

        Examples
        --------
        >>> import tempfile, pytensor
        >>> from synkhronos.extensions.checkpoints import Checkpoints
        >>> w = pytensor.shared(2.0, name="w")
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     checkpoints = Checkpoints(folder, [w])
        ...     _ = checkpoints.save(7, loss=0.5)
        ...     w.set_value(3.0)
        ...     checkpoints.restore(7), w.get_value()
        ({'step': 7, 'loss': 0.5}, array(2.))

        A script that resumes if there is something:

        >>> with tempfile.TemporaryDirectory() as folder:
        ...     checkpoints = Checkpoints(folder, [w])
        ...     found = checkpoints.restore(missing="ignore")
        ...     first = 0 if found is None else found["step"] + 1
        ...     for step in range(first, 3):
        ...         _ = checkpoints.save(step)
        ...     checkpoints.restore(missing="ignore")
        {'step': 2}
        """
        check_word("missing", missing, ("raise", "ignore"))
        wanted = self._wanted(step)
        if not wanted:
            if missing == "ignore":
                return None
            what = "no checkpoint" if step is None else f"no checkpoint of step {step}"
            raise InputError(
                f"restore: {what} in {self.folder}; steps there: {self.steps()}. To go on without "
                'one, pass missing="ignore"'
            )
        place, body, arrays = self._first_whole(wanted)
        group = _group()
        size = 1 if group is None else group.size
        if self._streams and size != body["size"]:
            warn(
                f"restore: the random generators were saved by {body['size']} members and these "
                f"are {size}: the master's goes on, the other members get new streams",
                ReplicaWarning,
            )
        if self.batches is not None:
            self._continue(self.batches, place, body)
        elif body["batches"] is not None:
            warn(
                f"restore: {place} also holds the position of its batches, which is not restored: "
                "give the batches, as in Checkpoints(folder, train, batches)",
                CheckpointWarning,
            )
        self._set_values(group, arrays)
        self._set_streams(group, body)
        self._under_way = True
        return {"step": body["step"], **body["meta"]}

    def remove(self, *steps: int) -> None:
        """Remove the checkpoints of these steps; steps without one are left out.

        Raises
        ------
        OSError
            A folder cannot be renamed.

        Examples
        --------
        >>> import tempfile, pytensor
        >>> from synkhronos.extensions.checkpoints import Checkpoints
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     checkpoints = Checkpoints(folder, [pytensor.shared(0.0, name="w")])
        ...     _ = checkpoints.save(3), checkpoints.save(6)
        ...     checkpoints.remove(3)
        ...     checkpoints.steps()
        [6]
        """
        if not self.folder.is_dir():
            return
        with self._alone():
            found = folders(self.folder)
            self._discard([found[step] for step in steps if step in found])

    def adopt(self) -> None:
        """Take the checkpoints in the folder for those of this run, as `restore` does.

        Later saves replace them without a warning. No value changes.

        Examples
        --------
        >>> import tempfile, pytensor
        >>> from synkhronos.extensions.checkpoints import Checkpoints
        >>> w = pytensor.shared(0.0, name="w")
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = Checkpoints(folder, [w]).save(3)
        ...     again = Checkpoints(folder, [w])
        ...     again.adopt()
        ...     again.save(3).name
        'step-00000003'
        """
        self._under_way = True

    def _say_what_differs(self, group: Group | None) -> None:
        """Log, once each, the variables whose values differ between members."""
        for name, variable in self._values.items():
            entry = None if group is None else group.member.variables.find(variable)
            if entry is not None and entry.differs and name not in self._said:
                self._said.add(name)
                warn(
                    f"checkpoint: the members' values of {name} differ; only the master's is saved",
                    ReplicaWarning,
                )

    def _say_whose(self, step: int) -> None:
        """Warn before the first save replaces checkpoints of another run."""
        if self._under_way:
            return
        last = max([s for serial, s, _ in self._listed() if serial is not None], default=-1)
        if step <= last:
            warn(
                f"save: {self.folder} holds checkpoints of another run, up to step {last}, "
                f"and step {step} of this run begins to replace them. To go on with that run, call "
                "restore() first; else give this one a folder of its own",
                CheckpointWarning,
            )

    @staticmethod
    def _continue(batches: Batches, place: Path, body: Body) -> None:
        try:
            batches.restore(body["batches"])
        except InputError as exc:
            raise InputError(
                f"restore: {place} does not fit: {exc}. Nothing was set. To restore only the "
                "variables, make Checkpoints without batches"
            ) from None

    def _set_values(self, group: Group | None, arrays: dict[str, np.ndarray]) -> None:
        differing = []
        for name, variable in self._values.items():
            value = arrays[name]
            if name in self._by_node:
                value = _rows_for(len(variable.get_value(borrow=True)), value)
            variable.set_value(value, borrow=True)
            entry = None if group is None else group.member.variables.find(variable)
            if entry is not None and entry.differs:
                differing.append(entry.number)
        if group is not None and differing:  # else the other members would keep their values
            group.run(Broadcast(tuple(differing)), "restore")

    def _set_streams(self, group: Group | None, body: Body) -> None:
        if not self._streams:
            return
        rows = list(zip(*[body["streams"][n] for n in self._streams], strict=True))
        if len(rows) != (1 if group is None else group.size):
            rows = [rows[body["master"]]]
        set_states(group, list(self._streams.values()), rows)

    def _check_names(self, place: Path, body: Body) -> None:
        mine = self._values.keys() | self._streams.keys()
        saved = body["values"].keys() | body["streams"].keys()
        if mine != saved:
            holds = f"holds {_names(saved - mine)}, which {self._owner} lacks"
            lacks = f"lacks {_names(mine - saved)}"
            other = " (another update rule?)" if "function" in self._owner else ""
            found = [holds + other] * bool(saved - mine) + [lacks] * bool(mine - saved)
            raise InputError(f"restore: {place} {', and it '.join(found)}; nothing was set")
        moved = sorted(self._streams.keys() ^ body["streams"].keys())
        if moved:
            raise InputError(
                f"restore: of {moved} one is a random generator and the other an array, here and "
                f"in {place}; nothing was set"
            )

    def _check_shapes(self, place: Path, body: Body) -> None:
        wrong = []
        for name, variable in self._values.items():
            dtype, shape = body["values"][name]
            held = np.asarray(variable.get_value(borrow=True))
            saved, mine = tuple(shape), held.shape
            if name in self._by_node:  # any number of nodes
                saved, mine = saved[1:], mine[1:]
            if (held.dtype.name, mine) != (dtype, saved):
                found = f"{dtype} {tuple(shape)}"
                wrong.append(f"{name} is {held.dtype} {held.shape}, saved was {found}")
        if wrong:
            raise InputError(f"restore: {place} does not fit: {'; '.join(wrong)}; nothing was set")

    def _read_arrays(self, place: Path, body: Body) -> dict[str, np.ndarray]:
        path = place / ARRAYS
        try:
            if digest(path) != body["blake2b"]:
                raise damage(place, f"the checksum of {ARRAYS} is not the one in {META}")
            found = self._files.load_file(path)
            return {n: original(found[n], *body["values"][n]) for n in self._values}
        except (OSError, self._error, KeyError, ValueError, TypeError) as exc:
            if files.is_shortage(exc):
                raise
            raise damage(place, f"{ARRAYS}: {exc}") from exc

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """A context in which no other process, and no other object, changes the folder.

        The lock is one of the folder itself, which ends with this process.
        """
        lock = FolderLock(self.folder)
        try:
            until = time.monotonic() + _LOCK_SECONDS
            while not _locks(lock):
                if time.monotonic() > until:
                    raise TimeoutError(
                        errno.ETIMEDOUT,
                        f"another process has been saving for {_LOCK_SECONDS:.0f} s: give each run "
                        "a folder of its own",
                        str(self.folder),
                    )
                time.sleep(_LOOK_SECONDS)
            yield
        finally:
            lock.close()

    def _write(self, step: int, arrays: dict[str, np.ndarray], body: dict[str, object]) -> Path:
        self._clear()
        listed = self._listed()
        place = self.folder / f"step-{step:08d}"
        made = self.folder / f"{_LEAVINGS}{place.name}"
        try:
            with files.new_folder(made) as inside:
                self._save_arrays(arrays, inside / ARRAYS)
                body["blake2b"] = digest(inside / ARRAYS)
                # from the clock, so that an unreadable one does not become the latest
                last = max([n for n, _, _ in listed if n is not None], default=0)
                body["serial"] = max(last + 1, time.time_ns())
                files.create(inside / META, sealed(body), lasting=False)
            if os.path.lexists(place):
                # a folder cannot replace another; until the next rename the old one counts
                place.rename(self.folder / f".old-{place.name}")
            made.rename(place)
            files.sync(self.folder)
        except BaseException:
            shutil.rmtree(made, ignore_errors=True)
            raise
        return place

    def _save_arrays(self, arrays: dict[str, np.ndarray], path: Path) -> None:
        try:
            self._files.save_file(arrays, path)
        except self._error as exc:  # safetensors raises its own error also for errors of the system
            match = _ERRNO.search(str(exc))
            if match is None:
                raise
            number = int(match[1])
            raise OSError(number, os.strerror(number), str(path)) from exc

    def _prune(self) -> None:
        """Remove checkpoints that are too old or replaced."""
        readable = [path for serial, _, path in self._listed() if serial is not None]
        self._discard(readable[: -self.keep] if self.keep is not None else [])

    def _discard(self, places: Iterable[Path]) -> None:
        for path in places:
            path.rename(path.with_name(f"{_LEAVINGS}{path.name}"))
        self._clear()

    def _clear(self) -> None:
        """Remove checkpoints that are half written, replaced, or half removed."""
        leavings = [path for path in self.folder.iterdir() if self._left_over(path)]
        if leavings:  # flush the names before their files are removed
            files.sync(self.folder)
        for path in leavings:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)

    def _left_over(self, path: Path) -> bool:
        if _LEFT.fullmatch(path.name):
            return True
        match = NAME.fullmatch(path.name)
        replaced = match is not None and bool(match[1])
        return replaced and (self.folder / path.name.removeprefix(".old-")).exists()

    def _listed(self) -> list[tuple[int | None, int, Path]]:
        """(serial, step, folder) in the order of saving.

        Those that cannot be read are last if no other one has a later step, else first.
        """
        found = []
        for step, path in folders(self.folder).items():
            serial = None
            with contextlib.suppress(SynkhronosError):
                serial = read_meta(path)["serial"]
            found.append((serial, step, path))
        last = max([step for serial, step, _ in found if serial is not None], default=-1)

        def order(entry: tuple[int | None, int, Path]) -> tuple[int, int]:
            serial, step, _ = entry
            return (1, serial) if serial is not None else (2 if step > last else 0, step)

        return sorted(found, key=order)

    def _wanted(self, step: int | None) -> list[Path]:
        """The checkpoint of a step; without one all of them, the latest first."""
        if step is None:
            return [path for _, _, path in reversed(self._listed())]
        found = folders(self.folder).get(check_integer("step", step, 0))
        return [] if found is None else [found]

    def _first_whole(self, places: Sequence[Path]) -> tuple[Path, Body, dict[str, np.ndarray]]:
        """The first checkpoint that is not damaged: its folder, its entries and its arrays."""
        damaged: list[CheckpointError] = []
        for place in places:
            try:
                body, arrays = self._read(place)
            except CheckpointError as exc:
                if not exc.damaged:
                    raise
                damaged.append(exc)
                continue
            for error in damaged:
                warn(
                    f"restore: {error.damaged}. The latest one that is whole is restored instead, "
                    f"that of step {body['step']}",
                    CheckpointWarning,
                )
            return place, body, arrays
        raise damaged[0]

    def _read(self, place: Path) -> tuple[dict[str, object], dict[str, np.ndarray]]:
        """Read a checkpoint whole, and check that it fits."""
        body = read_meta(place)
        self._check_names(place, body)
        self._check_shapes(place, body)
        if self.batches is not None and body["batches"] is None:
            raise InputError(
                f"restore: {place} was saved without batches, and this Checkpoints has batches; "
                "nothing was set. To restore the variables, make it without batches"
            )
        check_streams(place, body)
        return body, self._read_arrays(place, body)


def _locks(lock: FolderLock) -> bool:
    try:
        return lock.take()
    except OSError as exc:
        if exc.errno not in (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.EBADF):
            raise
        # a file system without locks, or, as NFS, without those of folders
        return True


def _rows_for(nodes: int, rows: np.ndarray) -> np.ndarray:
    """The residuals of nodes; for another number of nodes their sum, on the first one."""
    if len(rows) == nodes:
        return rows
    found = np.zeros((nodes, *rows.shape[1:]), rows.dtype)
    found[0] = rows.sum(axis=0)
    return found


def _names(found: Iterable[str]) -> str:
    """Some of the names, in their order, for a message."""
    names = sorted(found)
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _safetensors() -> tuple[ModuleType, type[Exception]]:
    """The safetensors library, and its error class."""
    with needing("safetensors", "checkpoints"):
        from safetensors import SafetensorError
        from safetensors import numpy as files
    return files, SafetensorError


def _group() -> Group | None:
    """The current group; None if this process has none."""
    try:
        return current("checkpoints")
    except GroupError:
        return None


def _plain(value: object) -> object:
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} cannot be JSON")
