"""Values and bytes that are nearly right: what a disk, a bug or a stranger makes of good ones."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

DEEP = 100_000
EDGES = (0, 1, -1, 2, 7, 127, 255, 2**15, 2**16, 2**31 - 1, 2**31, 2**32, 2**40, 2**62)
EDGES += (2**63 - 1, 2**63, -(2**63), 2**64, -(2**64), 10**400)
integers = st.sampled_from(EDGES) | st.integers(-(2**70), 2**70)
_WORDS = "x NaN float64 |O object ../../x /etc/passwd {{7*7}} </script> =1+1 -1 \x1b[31m \xb2 \0"
_TEXTS = (*_WORDS.split(" "), "", "\ud800", "\xe9" * 999, "a" * 100_000, "9" * 5000)
texts = st.sampled_from(_TEXTS) | st.text(max_size=8)
floats = st.sampled_from((0.5, -0.0, 1e308, -1e308, 5e-324, float("nan"), float("inf")))
scalars = st.none() | st.booleans() | integers | floats | texts
values: st.SearchStrategy[Any] = scalars | st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)


def once_in(n: int) -> st.SearchStrategy[bool]:
    return st.sampled_from((False,) * (n - 1) + (True,))


class Bomb:
    """An object whose unpickling makes a folder."""

    def __init__(self, canary: str) -> None:
        self.canary = canary

    def __reduce__(self) -> Any:
        return os.mkdir, (self.canary,)


def bomb(canary: str) -> bytes:
    return pickle.dumps(Bomb(canary))


@st.composite
def damaged(draw: st.DrawFn, data: bytes) -> bytes:
    """The bytes with some changed, missing, blank, or put in between."""
    found = bytearray(data)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(found)))
        act = draw(st.sampled_from(("flip", "number", "cut", "insert", "remove", "blank", "again")))
        length = draw(st.integers(1, 64))
        if act == "flip" and at < len(found):
            found[at] ^= 1 << draw(st.integers(0, 7))
        elif act == "number":
            size = draw(st.sampled_from((1, 2, 4, 8)))
            number = draw(st.sampled_from(EDGES)) % (1 << 8 * size)
            found[at : at + size] = number.to_bytes(size, draw(st.sampled_from(("little", "big"))))
        elif act == "cut":
            del found[at:]
        elif act == "insert":
            found[at:at] = draw(st.binary(max_size=length))
        elif act == "remove":
            del found[at : at + length]
        elif act == "blank":
            begin = at // 512 * 512
            found[begin : begin + 512] = bytes(len(found[begin : begin + 512]))
        elif act == "again":
            found[at:at] = found[at : at + length]
    return bytes(found)


@st.composite
def altered(draw: st.DrawFn, value: Any) -> Any:
    """The same value with one thing in it changed, taken away, or put in beside."""
    if isinstance(value, dict | list) and value and not draw(once_in(8)):
        keys: list[Any] = list(value) if isinstance(value, dict) else list(range(len(value)))
        key, found = draw(st.sampled_from(keys)), type(value)(value)
        act = draw(st.sampled_from(("inside", "inside", "inside", "inside", "remove", "add")))
        if act == "inside":
            found[key] = draw(altered(found[key]))
        elif act == "remove":
            del found[key]
        elif isinstance(found, dict):
            found[draw(st.sampled_from(keys) | texts)] = draw(values)
        else:
            found.insert(key, draw(st.sampled_from(found) | values))
        return found
    return draw(values)


@st.composite
def json_of(draw: st.DrawFn, value: Any) -> bytes:
    """The JSON of a value that is altered, or text that no encoder has made."""
    for _ in range(draw(st.integers(1, 3))):
        value = draw(altered(value))
    text = json.dumps(value)
    kind = draw(st.sampled_from(("json",) * 12 + ("list", "object", "number", "mark", "damaged")))
    if kind == "list":
        text = "[" * DEEP
    elif kind == "object":
        text = '{"a":' * DEEP + "1" + "}" * DEEP
    elif kind == "number":
        text = "9" * 10_000
    elif kind == "mark":
        text = f"\ufeff{text}"
    raw = text.encode("utf-8", "surrogatepass")
    return draw(damaged(raw)) if kind == "damaged" else raw


@st.composite
def text_of(draw: st.DrawFn, lines: Sequence[str], words: Sequence[str]) -> bytes:
    """Lines of which some are missing, others stand twice, or have other words in them."""
    found = list(lines)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(0, len(found) - 1)))
        act = draw(st.sampled_from(("word", "word", "word", "line", "remove", "again")))
        if act == "word" and found:
            parts = found[at].split(" ")
            parts[draw(st.integers(0, len(parts) - 1))] = draw(st.sampled_from(words) | texts)
            found[at] = " ".join(parts)
        elif act == "line":
            found.insert(at, draw(st.sampled_from(words) | texts))
        elif act == "remove" and found:
            del found[at]
        elif act == "again" and found:
            found.insert(at, found[at])
    raw = "\n".join(found).encode("utf-8", "surrogatepass")
    return draw(damaged(raw)) if draw(once_in(8)) else raw
