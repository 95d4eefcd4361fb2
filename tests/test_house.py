"""The figures of the house, of a package of which they are known."""

from __future__ import annotations

from pathlib import Path

from house import House

FILES = {
    "__init__": "from small.room.a import one\n",
    "room.__init__": "from small.room.top import two\n",
    "room.a": "import os\nfrom typing import Any\n\ndef one(x: Any, *, y: Any) -> int: ...\n",
    "room.b": "from small.room import a\nfrom small.room.inner.c import C\n",
    "room.inner.__init__": "",
    "room.inner.c": "class C:\n    x: int\n    def m(self): self.y = isinstance(self.rule, Rule)\n",
    "room.inner.d": "from small.room.inner.c import C\nclass D(C): ...\n",
    "room.top": "import small.room.b\nfrom small.room.back import z\n",
    "room.back": "from small.room.top import two\nz = getattr(rule, 'warmup', 0)\n",
    "rules.one": "isinstance(rule, int)\n",
}


def small(folder: Path) -> House:
    for name, text in FILES.items():
        path = folder / "small" / (name.replace(".", "/") + ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return House(folder / "small")


def test_rooms_floors_and_arrows(tmp_path: Path) -> None:
    """A folder is one room; rooms in a circle are one floor."""
    shape = small(tmp_path).shape("room")
    assert shape.rooms == ["a", "b", "back", "inner", "top"]
    assert shape.arrows["b"] == {"a", "inner"}
    assert shape.arrows["top"] == {"b", "back"}
    assert (shape.count, shape.floors) == (5, 3)
    assert shape.circles == [["back", "top"]]


def test_figures_of_a_package(tmp_path: Path) -> None:
    house = small(tmp_path)
    assert house.lines == sum(text.count("\n") for text in FILES.values())
    assert house.most_arguments(1) == [("room.a.one:4", 2)]
    assert house.most_attributes(1) == [("room.inner.c.C", 1, 2)]
    assert house.any_lines == 1
    assert house.asked_of_rules == {"isinstance": 1, "getattr": 1}
    assert house.deepest == ("D", 2)
