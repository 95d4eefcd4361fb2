"""The files of a checkpoint: its entries as sealed JSON, and its arrays as safetensors has them."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from synkhronos._errors import CheckpointError
from synkhronos._host import files
from synkhronos.extensions._saving.random_streams import rebuild

type Body = dict[str, Any]  # of the JSON file of a checkpoint

FORMAT = 1
ARRAYS, META = "arrays.safetensors", "meta.json"
NAME = re.compile(r"(\.old-)?step-([0-9]{8,})")


def folders(folder: Path) -> dict[int, Path]:
    """The checkpoints in a folder. A replaced one counts until the new one has its name."""
    found: dict[int, Path] = {}
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():  # ".old-..." before "step-..."
        match = NAME.fullmatch(path.name)
        if match:
            found[int(match[2])] = path
    return found


def read_meta(place: Path) -> Body:
    """The entries of a checkpoint.

    Raises
    ------
    CheckpointError
    """
    try:
        body = json.loads(files.read_bytes(place / META, most=None))
        seal = body.pop("seal")
        whole = _seal(body) == seal
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as exc:
        if files.is_shortage(exc):
            raise
        raise damage(place, f"{META} cannot be read ({exc!r})") from exc
    if not whole:
        raise damage(place, f"the contents of {META} have changed")
    if body.get("format") != FORMAT:
        raise CheckpointError(
            f"checkpoint {place} has format {body.get('format')}; this reads {FORMAT}. Nothing was "
            "set. Use the version that wrote it, or name another step"
        )
    if not _complete(body):
        raise damage(place, f"{META} has missing or wrong entries")
    match = NAME.fullmatch(place.name)
    if match is not None and body["step"] != int(match[2]):
        raise damage(place, f"its contents were saved as step {body['step']}")
    return dict(body)


def _complete(body: Body) -> bool:
    """Whether a checkpoint's body has all entries, each of the right type."""
    kinds = {"step": int, "serial": int, "values": dict, "streams": dict, "size": int}
    kinds |= {"master": int, "meta": dict, "blake2b": str}
    if "batches" not in body or any(type(body.get(p)) is not kind for p, kind in kinds.items()):
        return False
    if not 0 <= body["master"] < body["size"]:
        return False
    values = all(
        type(v) is list and len(v) == 2 and type(v[0]) is str and type(v[1]) is list
        for v in body["values"].values()
    )
    return values and all(
        type(states) is list and len(states) == body["size"] for states in body["streams"].values()
    )


def check_streams(place: Path, body: Body) -> None:
    """Raise if a random state cannot be restored."""
    for name, states in body["streams"].items():
        for state in states:
            try:
                rebuild(state)
            except Exception as exc:  # numpy raises different errors for a wrong state
                raise damage(place, f"{name} is not the state of a generator ({exc!r})") from exc


def sealed(body: dict[str, object]) -> str:
    """The entries as JSON, with a checksum."""
    return json.dumps({**body, "seal": _seal(body)}, indent=1)


def _seal(body: dict[str, object]) -> str:
    return hashlib.blake2b(json.dumps(body, sort_keys=True).encode(), digest_size=16).hexdigest()


def digest(path: Path) -> str:
    """The checksum of a file."""
    with files.reading(path) as file:
        return hashlib.file_digest(file, "blake2b").hexdigest()


def damage(place: Path, why: str) -> CheckpointError:
    """The error of a checkpoint that is not as it was saved."""
    found = CheckpointError(
        f"checkpoint {place} is damaged: {why}. Nothing was set. Remove it, or name another step"
    )
    found.damaged = f"checkpoint {place} is damaged: {why}"
    return found


def storable(value: np.ndarray) -> np.ndarray:
    """In C order, which safetensors 0.8.0 assumes (its issue 825); complex numbers as pairs."""
    found = np.asarray(value, order="C")  # np.ascontiguousarray would make 0-d values 1-d
    if found.dtype.kind == "c":
        half = np.dtype(f"f{found.dtype.itemsize // 2}")
        found = found.reshape(-1).view(half).reshape(*found.shape, 2)
    return found


def original(stored: np.ndarray, dtype: str, shape: Sequence[int]) -> np.ndarray:
    """The array that `storable` had, from its stored values."""
    if stored.dtype.name != dtype:
        stored = stored.reshape(-1).view(dtype)
    return stored.reshape(tuple(shape))
