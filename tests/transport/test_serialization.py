"""What travels by value: code that cannot be imported stays readable in a worker's traceback."""

from __future__ import annotations

import traceback
from types import FunctionType
from typing import Any

import pytest

from synkhronos._transport.serialization import Serialized, pack_graph, read, unpack_graph


def by_message(value: Any) -> Any:
    packed = Serialized(value)
    box = bytearray(packed.nbytes)
    packed.write(box)
    return read(memoryview(box))


def by_graph(value: Any) -> Any:
    return unpack_graph(pack_graph(value, lambda thing: None), lambda number: None)


@pytest.mark.parametrize("travel", [by_message, by_graph])
def test_code_sent_by_value_keeps_its_file(travel: Any) -> None:
    """Its own, and the one of the functions in it: a traceback reads the lines there."""

    def outer(n: int) -> list[int]:
        def inner(k: int) -> int:
            return n // k

        return [inner(k) for k in (1, 0)]

    arrived = travel(outer)
    assert isinstance(arrived, FunctionType)
    assert arrived is not outer
    with pytest.raises(ZeroDivisionError) as raised:
        arrived(3)
    frames = traceback.extract_tb(raised.value.__traceback__)[1:]
    assert [frame.filename for frame in frames] == [__file__, __file__]
    assert frames[-1].line == "return n // k"
