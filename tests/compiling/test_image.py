"""Machine code as one piece of memory: several objects, their variables, and functions outside."""

from __future__ import annotations

import ctypes
import pickle
import platform
import re
from pathlib import Path

import llvmlite.binding as llvm
import pytest

from synkhronos._compiling.kept import image
from synkhronos._compiling.kept.image import Image, NotLoadable, missing
from synkhronos._compiling.kept.machine_code import _assembled

pytestmark = pytest.mark.skipif(
    platform.machine() != "x86_64" or platform.system() != "Linux", reason="LLVM places code here"
)

CALLS = """
@count = common global i64 0, align 8
@start = global i64 40
@step = external global i64
declare i64 @shared()
declare i64 @outside(i64)
define i64 @entry() {
  %shared = call i64 @shared()
  %before = load i64, ptr @count
  %next = add i64 %before, 1
  store i64 %next, ptr @count
  %start = load i64, ptr @start
  %step = load i64, ptr @step
  %sum = add i64 %start, %step
  %all = add i64 %sum, %shared
  %more = add i64 %all, %next
  %found = call i64 @outside(i64 %more)
  ret i64 %found
}
"""
WEAK = "define weak i64 @shared() { ret i64 5000 }"
SHARED = "@step = constant i64 2\ndefine i64 @shared() { ret i64 100 }"
DOUBLED = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(lambda value: 2 * value)
OUTSIDE = {"outside": ctypes.cast(DOUBLED, ctypes.c_void_p).value or 0}


def objects(*texts: str) -> list[bytes]:
    return [_assembled(each) for each in texts]


@pytest.mark.parametrize("order", [(CALLS, WEAK, SHARED), (SHARED, WEAK, CALLS)])
def test_objects_that_call_each_other_and_what_is_outside(order: tuple[str, ...]) -> None:
    """Twice, from a pickle: each image has variables of its own."""
    made = objects(*order)
    assert missing(made) == {"outside"}
    found = pickle.loads(pickle.dumps(Image.of(made, ["entry", "count"])))
    for _ in range(2):
        address, held = found.placed(OUTSIDE.__getitem__)
        call = ctypes.CFUNCTYPE(ctypes.c_int64)(address + found.places["entry"])
        assert [call(), call()] == [2 * 143, 2 * 144]
        count = ctypes.c_int64.from_address(address + found.places["count"])
        assert count.value == 2
        assert permissions(address + found.places["entry"]) == "r-x"
        assert permissions(address + found.places["count"]) == "rw-"
        del held


def permissions(address: int) -> str:
    for line in Path("/proc/self/maps").read_text().splitlines():
        start, end, allowed = re.match(r"(\w+)-(\w+) (...)", line).groups()  # type: ignore[union-attr]
        if int(start, 16) <= address < int(end, 16):
            return str(allowed)
    raise AssertionError("no memory is there")


def test_what_has_more_than_addresses_is_refused() -> None:
    """LLVM places it: code for a place near to what it calls, of threads, of another processor."""
    near = llvm.Target.from_default_triple().create_target_machine(codemodel="small", reloc="pic")
    call = "declare void @f()\ndefine void @g() {\n call void @f()\n ret void\n}"
    with pytest.raises(NotLoadable, match="relocation of kind"):
        Image.of([near.emit_object(llvm.parse_assembly(call))], ["g"])
    with pytest.raises(NotLoadable, match="section of kind"):
        Image.of(objects("@own = thread_local global i64 1"), [])
    other = bytearray(objects(SHARED)[0])
    other[18] = 183
    with pytest.raises(NotLoadable, match="another processor"):
        Image.of([bytes(other)], [])
    with pytest.raises(NotLoadable, match="another format"):
        missing([b"\xfe\xed\xfa\xcf" * 20])


def test_a_system_that_runs_no_code_of_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image, "_protect", lambda: lambda *_: -1)
    with pytest.raises(NotLoadable, match="runs no code"):
        Image.of(objects(SHARED), []).placed(OUTSIDE.__getitem__)
