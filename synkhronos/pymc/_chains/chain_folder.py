"""The folder of a run: of which model and settings it is, and who may write to it.

It holds ``run.json``, which says that, and a folder of blocks for each chain. One process at a
time has it: the lock is one of the folder itself, which the kernel releases with the process.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from pymc import Model

from synkhronos._checks import is_integer, plain, shown
from synkhronos._compiling.progress import tell
from synkhronos._errors import InputError, InputTypeError
from synkhronos._host import files
from synkhronos._host.folder_locks import FolderLock
from synkhronos.pymc._chains.blocks import Block, length_of
from synkhronos.pymc._chains.chain_model import other_model, said_of

BLOCK = 100  # draws
_RUN, _FORMAT = "run.json", 1
_NEW = re.compile(r"\.[0-9a-f]+\.new")  # of run.json, which is written before anything else
_OF_MODEL = ("model", "parameters", "data")
_TUNING, _METRIC = "tuning.npy", "metric.json"
_LOOKS, _LOOK_SECONDS = 10, 0.1  # at the metric that another process has begun to write


class ChainFolder:
    """The folder of a run, once it fits the run; see `opened`.

    Attributes
    ----------
    path : pathlib.Path
    seed : list of int
    block : int
        The draws in a block.
    calls : list of dict
        What each call has found and done.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        said = _said(path)
        self.seed: list[int] = said["random_seed"]
        self.block: int = said["block"]
        self.calls: list[dict[str, Any]] = said["calls"]

    def seed_of(self, chain: int, number: int) -> int:
        """The seed of a block of a chain; number 0 is its tuning."""
        made = np.random.SeedSequence(self.seed, spawn_key=(chain, number))
        return int(made.generate_state(1, np.uint64)[0])

    def tuning(self, chain: int) -> Path:
        """The file of the tuning of a chain."""
        return self.path / f"chain-{chain}" / _TUNING

    def blocks(self, chain: int, draws: int) -> list[Path]:
        """The files of a chain of this number of draws, whether or not they are there."""
        place = self.path / f"chain-{chain}"
        return [place / f"draws-{i:06d}.npy" for i in range(-(-draws // self.block))]

    def write(self, path: Path, block: Block) -> None:
        """Write a block, of a chain that may be a new one.

        Raises
        ------
        InputError
            It cannot be written.
        """
        with _telling(self.path):
            files.make_folder(path.parent, lasting=True)
            block.write(path)

    def chosen(self, choose: Callable[[], Sequence[Any]]) -> Sequence[Any]:
        """The metric of the run: what its first call has chosen, with the reason.

        It has a file of its own, which each process with some of the chains may write: the choice
        of the first one counts, since chains of two metrics have other statistics.
        """
        path = self.path / _METRIC
        if (kept := _kept_choice(path)) is not None:
            return kept
        found = choose()
        with _telling(self.path):
            try:
                files.create(path, json.dumps(found))
            except FileExistsError:
                for _ in range(_LOOKS):
                    if (kept := _kept_choice(path)) is not None:
                        return kept
                    time.sleep(_LOOK_SECONDS)  # another process may be about to write it
                files.replace(path, json.dumps(found))  # it is damaged
        return found

    @property
    def has_chosen(self) -> bool:
        """Whether the metric of the run was chosen, and not named."""
        return (self.path / _METRIC).exists()

    @property
    def ended(self) -> str:
        """How the last call has ended, as far as it has."""
        return str(self.calls[-1]["ended"])

    @ended.setter
    def ended(self, how: str) -> None:
        self.calls[-1]["ended"] = how

    @contextlib.contextmanager
    def called(self) -> Iterator[None]:
        """A context that is one call, which is written down with what it found and how it ended."""
        call: dict[str, Any] = {
            "began": datetime.now(UTC).isoformat(timespec="seconds"),
            "host": os.uname().nodename,
            "found": {place.name: _draws_in(place) for place in sorted(self.path.glob("chain-*"))},
            "ended": "killed",
        }
        self.calls.append(call)
        self._note()
        try:
            yield
        except BaseException as exc:
            call["ended"] = type(exc).__name__
            raise
        finally:
            with contextlib.suppress(OSError):  # a full disk, of which the call tells
                self._note()

    def _note(self) -> None:
        said = _said(self.path) | {"calls": self.calls}
        files.replace(self.path / _RUN, json.dumps(said, indent=1))


def _kept_choice(path: Path) -> list[Any] | None:
    with contextlib.suppress(OSError, ValueError, TypeError):
        return list(json.loads(files.read_text(path)))
    return None


def _draws_in(place: Path) -> int | None:
    """The draws in the folder of a chain; None if its tuning has not ended."""
    if not length_of(place / _TUNING):
        return None
    return sum(map(length_of, place.glob("draws-*.npy")))


def path_of(given: object) -> Path:
    """The path of a folder, which stays the same if the process goes elsewhere.

    Raises
    ------
    InputTypeError
        It is not a path.
    InputError
        It is an address.
    """
    if not isinstance(given, str | os.PathLike):
        raise InputTypeError(f'folder={shown(given)}: give a path, such as "run"')
    if files.is_address(given):
        raise InputError(
            f"folder={str(given)!r}: draws go into a folder that this machine has, and this is an "
            "address: give a path, such as one where it is mounted"
        )
    return Path(os.fspath(given)).absolute()


@contextlib.contextmanager
def opened(
    given: object, model: Model, random_seed: object, settings: Mapping[str, Any]
) -> Iterator[ChainFolder]:
    """A context with the folder of a run, which is made if there is none.

    Raises
    ------
    InputTypeError
        It is not a path, or the seed is not one.
    InputError
        It is of another model, other data, another seed or other settings; it has files of
        something else; another process uses it; or it cannot be made.
    """
    path = path_of(given)
    said = {**said_of(model), **settings}
    asked = _seed(random_seed)
    with contextlib.ExitStack() as stack:
        with _telling(path):
            files.make_folder(path)
            stack.enter_context(_alone(path))
            if not (path / _RUN).exists():
                _check_empty(path)
                seed = _fresh() if asked is None else asked
                begun = {"format": _FORMAT, "random_seed": seed, "block": BLOCK, "calls": []}
                files.replace(path / _RUN, json.dumps(begun | {"of": said}, indent=1))
            _check(path, said, asked)
            for left in path.rglob(".*.new"):
                left.unlink(missing_ok=True)
            found = ChainFolder(path)
            stack.enter_context(found.called())
        yield found


@contextlib.contextmanager
def _telling(path: Path) -> Iterator[None]:
    """A context in which an error of the system is one of the folder."""
    try:
        yield
    except OSError as exc:
        raise InputError(
            f"folder={str(path)!r}: {exc.strerror}. What was drawn before is there: the same call "
            "goes on with it"
        ) from exc


def _seed(given: object) -> list[int] | None:
    """A seed of `pm.sample` as numbers."""
    if given is None:
        return None
    if isinstance(given, np.random.Generator):
        return [int(given.integers(2**63))]
    if isinstance(given, np.random.RandomState):
        return [int(given.randint(2**31))]
    numbers = [plain(n) for n in given] if isinstance(given, Sequence) else [plain(given)]
    if isinstance(given, np.ndarray):
        numbers = [plain(n) for n in given.ravel()]
    if not numbers or not all(is_integer(n) and n >= 0 for n in numbers):
        raise InputTypeError(f"random_seed={shown(given)}: give an integer, or leave it out")
    return [int(n) for n in numbers]


def _fresh() -> list[int]:
    return [secrets.randbits(63)]


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    with contextlib.closing(FolderLock(path)) as lock:
        try:
            is_alone = lock.take()
        except OSError:
            tell(f"{path} is in a file system without locks: see that no other call uses it")
            is_alone = True
        if not is_alone:
            raise InputError(
                f"folder={str(path)!r}: another call samples into it: wait for its end, or give "
                "another folder"
            )
        yield


def _check_empty(path: Path) -> None:
    strange = sorted(name for name in os.listdir(path) if not _NEW.fullmatch(name))
    if strange:
        raise InputError(
            f"folder={str(path)!r}: it has no {_RUN}, and files of something else, such as "
            f"{strange[0]!r}: give a new or an empty folder"
        )


def _said(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(files.read_text(path / _RUN))
        if found["format"] != _FORMAT:
            raise InputError(
                f"folder={str(path)!r}: it is of another version of synkhronos: give another folder"
            )
        if not {"random_seed", "block", "calls", "of"} <= found.keys():
            raise KeyError
        if not set(_OF_MODEL) <= found["of"].keys():
            raise KeyError
    except (ValueError, KeyError, TypeError):
        raise InputError(
            f"folder={str(path)!r}: {_RUN} is damaged, so nothing tells of which model its draws "
            "are: give another folder"
        ) from None
    return dict(found)


def _check(path: Path, asked: Mapping[str, Any], seed: list[int] | None) -> None:
    """Whether a folder is of this run."""
    said = _said(path)
    found = said["of"]
    differing = [
        f"{name}={found.get(name)!r}, and now {name}={asked.get(name)!r}"
        for name in sorted((found.keys() | asked.keys()) - set(_OF_MODEL))
        if found.get(name) != asked.get(name)
    ]
    data, before = asked["data"], found["data"]
    other = sorted(name for name in data.keys() & before.keys() if data[name] != before[name])
    if other:
        differing.insert(0, f"other data ({', '.join(other)})")
    elif found["model"] != asked["model"] or data.keys() != before.keys():
        differing.insert(0, other_model(found["parameters"], asked["parameters"]))
    if seed not in (None, said["random_seed"]):
        differing.append(f"random_seed={said['random_seed']}, and now {seed}")
    if differing:
        raise InputError(
            f"folder={str(path)!r}: its draws are of another run: {'; '.join(differing)}. Give "
            "another folder, or call sample as before"
        )
