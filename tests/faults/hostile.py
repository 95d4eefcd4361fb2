"""Checkpoints that were damaged by chance, and those that somebody has made up.

A made-up one is sealed and bears the right checksum: nothing tells it from a good one but what is
in it.
"""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import random
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from synkhronos.extensions._saving import checkpoint_files

ARRAYS, META = "arrays.safetensors", "meta.json"


# ---- by chance


def flip(data: bytearray, draw: random.Random) -> bytearray:
    """One bit."""
    data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    return data


def overwrite(data: bytearray, draw: random.Random) -> bytearray:
    """A stretch of other bytes."""
    at = draw.randrange(len(data))
    length = draw.randint(1, 64)
    data[at : at + length] = draw.randbytes(length)
    return data


def blank(data: bytearray, draw: random.Random) -> bytearray:
    """A sector that was never written."""
    at = draw.randrange(len(data)) // 512 * 512
    data[at : at + 512] = bytes(len(data[at : at + 512]))
    return data


def truncate(data: bytearray, draw: random.Random) -> bytearray:
    """The end is missing."""
    return data[: draw.randrange(len(data))]


def lengthen(data: bytearray, draw: random.Random) -> bytearray:
    """Something follows."""
    return data + draw.randbytes(draw.randint(1, 100))


DAMAGES = (flip, flip, flip, overwrite, blank, truncate, lengthen)


def damage(place: Path, draw: random.Random) -> str:
    """Harm one of a checkpoint's files; says how, or nothing if by chance nothing has changed."""
    path = place / draw.choice((ARRAYS, META))
    harm = draw.choice(DAMAGES)
    before = path.read_bytes()
    after = harm(bytearray(before), draw)
    path.write_bytes(after)
    return f"{harm.__name__} in {path.name}" if after != before else ""


# ---- by somebody

DEEP = 100_000
VALUES: tuple[Callable[[random.Random], Any], ...] = (
    lambda draw: None,
    lambda draw: draw.choice((True, False)),
    lambda draw: draw.choice((0, 1, -1, 2**31, 2**63, -(2**64), 10**400)),
    lambda draw: draw.randrange(-(2**70), 2**70),
    lambda draw: draw.choice((0.5, -1e308, float("nan"), float("inf"))),
    lambda draw: draw.choice(("", "x", "float64", "object", "../../x", "\0", "\ud800", "é" * 999)),
    lambda draw: [],
    lambda draw: {},
    lambda draw: [draw.choice((0, -1, 2**40, "x", None, [])) for _ in range(draw.randint(1, 5))],
    lambda draw: {
        "array": draw.choice(([1], "x", [[]])),
        "dtype": draw.choice(("S999999999", "O")),
    },
    lambda draw: {"a": {"b": [None]}},
)


def altered(value: Any, draw: random.Random) -> Any:
    """The same with one thing in it changed, taken away, or put in beside."""
    if isinstance(value, dict | list) and value and draw.random() < 0.85:
        keys: list[Any] = list(value) if isinstance(value, dict) else list(range(len(value)))
        key, found = draw.choice(keys), (dict if isinstance(value, dict) else list)(value)
        act = draw.random()
        if act < 0.75:
            found[key] = altered(found[key], draw)
        elif act < 0.9:
            del found[key]
        elif isinstance(found, dict):
            found[draw.choice(("x", "", "../x", "seal"))] = draw.choice(VALUES)(draw)
        else:
            found.append(draw.choice(VALUES)(draw))
        return found
    if isinstance(value, str) and value.startswith("{") and draw.random() < 0.8:
        return json.dumps(altered(json.loads(value), draw))  # the state of a generator
    return draw.choice(VALUES)(draw)


class Forger:
    """Makes checkpoints of a good one."""

    def __init__(self, good: Path) -> None:
        self.arrays = (good / ARRAYS).read_bytes()
        self.body = json.loads((good / META).read_text())
        del self.body["seal"]

    def write(self, place: Path, arrays: bytes, body: Any) -> None:
        """Put a checkpoint there as if it had been saved so."""
        (place / ARRAYS).write_bytes(arrays)
        if isinstance(body, dict) and isinstance(body.get("blake2b"), str):
            body = {**body, "blake2b": hashlib.blake2b(arrays).hexdigest()}
        sealed = checkpoint_files.sealed(body) if isinstance(body, dict) else json.dumps(body)
        (place / META).write_text(sealed)

    def __call__(self, place: Path, draw: random.Random) -> str:
        """One of any kind; returns which."""
        forge = draw.choice(FORGERIES)
        for name in (ARRAYS, META):
            path = place / name
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        forge(self, place, draw)
        return forge.__name__

    def a_body(self, place: Path, draw: random.Random) -> None:
        body = self.body
        for _ in range(draw.randint(1, 3)):
            body = altered(body, draw)
        self.write(place, self.arrays, body)

    def a_state(self, place: Path, draw: random.Random) -> None:
        states = {n: [altered(s, draw) for s in row] for n, row in self.body["streams"].items()}
        self.write(place, self.arrays, {**self.body, "streams": states})

    def a_kind_of_generator(self, place: Path, draw: random.Random) -> None:
        """Whatever numpy.random has, to be called with a seed."""
        state = {"kind": draw.choice(dir(np.random)), "state": {}}
        self.write(place, self.arrays, {**self.body, "streams": self._streams(state)})

    def a_greedy_seed(self, place: Path, draw: random.Random) -> None:
        """A generator that would take gigabytes."""
        state = json.loads(next(iter(self.body["streams"].values()))[0])
        if draw.random() < 0.5:
            state["seeds"]["pool_size"] = draw.choice((2**31, 2**40, -1))
        else:
            state["state"] = {"array": ["x"] * 9, "dtype": "S999999999"}
        self.write(place, self.arrays, {**self.body, "streams": self._streams(state)})

    def _streams(self, state: Any) -> dict[str, list[str]]:
        size = self.body["size"]
        return {name: [json.dumps(state)] * size for name in self.body["streams"]}

    def a_header(self, place: Path, draw: random.Random) -> None:
        (length,) = struct.unpack("<Q", self.arrays[:8])
        header = altered(json.loads(self.arrays[8 : 8 + length]), draw)
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        data = self.arrays[8 + length :]
        self.write(place, struct.pack("<Q", len(text)) + text + data, self.body)

    def a_length(self, place: Path, draw: random.Random) -> None:
        length = draw.choice((0, 1, 2**31, 2**63, 2**64 - 1, draw.randrange(2**20)))
        self.write(place, struct.pack("<Q", length) + self.arrays[8:], self.body)

    def a_zoo(self, place: Path, draw: random.Random) -> None:
        """Bytes of something else."""
        bomb = pickle.dumps(Bomb("/nil/canary"))
        files = (b"", b"PK\x03\x04" + bytes(99), bomb, draw.randbytes(999), self.arrays[:-1])
        self.write(place, draw.choice(files), self.body)

    def a_text(self, place: Path, draw: random.Random) -> None:
        """Bytes that no encoder has made."""
        (place / ARRAYS).write_bytes(self.arrays)
        text = checkpoint_files.sealed(self.body)
        texts = (
            "[" * DEEP,
            '{"a":' * DEEP + "1" + "}" * DEEP,
            "9" * 10_000,
            text.replace("{", "{" + '"step": 1,' * 999, 1),
            "\ufeff" + text,
            text[: draw.randrange(len(text))],
            draw.randbytes(99).decode("latin1"),
            "null",
        )
        (place / META).write_bytes(draw.choice(texts).encode("utf-8", "surrogatepass"))

    def a_place(self, place: Path, draw: random.Random) -> None:
        """Where a file should be there is something else."""
        self.write(place, self.arrays, self.body)
        path = place / draw.choice((ARRAYS, META))
        path.unlink()
        kind = draw.randrange(5)
        if kind == 0:
            os.mkfifo(path)
        elif kind == 1:
            path.mkdir()
        elif kind < 4:
            path.symlink_to(("/dev/zero", "/dev/stdin")[kind - 2])


FORGERIES = (
    Forger.a_body,
    Forger.a_body,
    Forger.a_state,
    Forger.a_kind_of_generator,
    Forger.a_greedy_seed,
    Forger.a_header,
    Forger.a_header,
    Forger.a_length,
    Forger.a_zoo,
    Forger.a_text,
    Forger.a_place,
)


class Bomb:
    """An object whose unpickling leaves a file."""

    def __init__(self, canary: str) -> None:
        self.canary = canary

    def __reduce__(self) -> Any:
        return os.mkdir, (self.canary,)
