"""Figures of the package's own shape: rooms, floors, arrows, arguments, attributes, types.

    python tests/support/house.py [--package synkhronos] [FOLDER ...]

Of each FOLDER, such as ``training`` or ``extensions``, its rooms, floors and arrows; then figures
of the whole package. A room is a module or a folder directly in FOLDER, without ``__init__``. An
arrow goes from a room to another one that it imports. Floors are the rooms on the longest way
along arrows; rooms in a circle count as one. Nothing is imported: the figures come from the text.
"""

from __future__ import annotations

import argparse
import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

type Graph = Mapping[str, set[str]]

PACKAGE = Path(__file__).parents[2] / "synkhronos"
_RULE = re.compile(r"\brule\b|\w+Rule\b")
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class Shape:
    """The rooms of a folder, and what they import of each other."""

    arrows: Graph

    @property
    def rooms(self) -> list[str]:
        return sorted(self.arrows)

    @property
    def count(self) -> int:
        """The number of arrows."""
        return sum(map(len, self.arrows.values()))

    @cached_property
    def circles(self) -> list[list[str]]:
        """Rooms that import each other, directly or not."""
        reached = {room: _reached(room, self.arrows) for room in self.arrows}
        found = {
            tuple(sorted(b for b in reached[a] if a in reached[b]))
            for a in self.arrows
            if a in reached[a]
        }
        return [list(circle) for circle in sorted(found)]

    @property
    def floors(self) -> int:
        """The rooms on the longest way along arrows."""
        inside = {room: circle[0] for circle in self.circles for room in circle}
        whole: dict[str, set[str]] = {}
        for room, targets in self.arrows.items():
            own = inside.get(room, room)
            whole.setdefault(own, set()).update({inside.get(t, t) for t in targets} - {own})
        heights: dict[str, int] = {}

        def height(room: str) -> int:
            if room not in heights:
                heights[room] = 1 + max((height(t) for t in whole[room]), default=0)
            return heights[room]

        return max(map(height, whole), default=0)


class House:
    """A package as its text: modules by their dotted names below it.

    Parameters
    ----------
    package : Path
        The folder of the package.
    """

    def __init__(self, package: Path = PACKAGE) -> None:
        self.package = package
        self.texts: dict[str, str] = {}
        for path in sorted(package.rglob("*.py")):
            if "starters" not in path.parts:  # scripts that are copied, and not imported
                self.texts[".".join(path.relative_to(package).with_suffix("").parts)] = (
                    path.read_text()
                )
        self.trees = {name: ast.parse(text) for name, text in self.texts.items()}

    def shape(self, folder: str) -> Shape:
        """The rooms of a folder, by its dotted name."""
        start = f"{folder}."
        arrows: dict[str, set[str]] = {}
        for name, tree in self.trees.items():
            room = name.removeprefix(start).partition(".")[0]
            if name.startswith(start) and room != "__init__":
                found = {
                    target.removeprefix(start).partition(".")[0]
                    for target in self._imported(tree)
                    if target.startswith(start)
                }
                arrows.setdefault(room, set()).update(found - {room})
        return Shape({room: found & arrows.keys() for room, found in arrows.items()})

    def _imported(self, tree: ast.Module) -> Iterator[str]:
        """The modules and names that a module imports, below the package."""
        start = f"{self.package.name}."
        for node in ast.walk(tree):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (name.removeprefix(start) for name in names if name.startswith(start))

    @cached_property
    def functions(self) -> dict[str, ast.FunctionDef | ast.AsyncFunctionDef]:
        """Functions and methods, by module and line."""
        return {
            f"{module}.{node.name}:{node.lineno}": node
            for module, tree in self.trees.items()
            for node in ast.walk(tree)
            if isinstance(node, _FUNCTIONS)
        }

    @property
    def lines(self) -> int:
        """Lines of all modules."""
        return sum(text.count("\n") for text in self.texts.values())

    def most_arguments(self, number: int = 5) -> list[tuple[str, int]]:
        """The functions with most arguments, without `self`."""
        counts = {name: _arguments(node) for name, node in self.functions.items()}
        return sorted(counts.items(), key=lambda found: -found[1])[:number]

    def most_attributes(self, number: int = 5) -> list[tuple[str, int, int]]:
        """The classes with most methods and attributes: name, methods, attributes."""
        found = []
        for module, tree in self.trees.items():
            for node in ast.walk(tree):
                if isinstance(node, ast.ClassDef):
                    methods = sum(isinstance(part, _FUNCTIONS) for part in node.body)
                    found.append((f"{module}.{node.name}", methods, len(_attributes(node))))
        return sorted(found, key=lambda each: -max(each[1:]))[:number]

    @property
    def any_lines(self) -> int:
        """Lines on which `Any` stands, but for imports."""
        return sum(
            bool(re.search(r"\bAny\b", line)) and "import" not in line
            for text in self.texts.values()
            for line in text.splitlines()
        )

    @property
    def asked_of_rules(self) -> dict[str, int]:
        """Calls of `isinstance` and `getattr` on a training rule, outside of `rules` itself."""
        counts = {"isinstance": 0, "getattr": 0}
        for module, tree in self.trees.items():
            for node in ast.walk(tree):
                name = node.func.id if _is_plain_call(node) else ""  # type: ignore[attr-defined]
                if name in counts and not module.startswith("rules."):
                    counts[name] += bool(_RULE.search(ast.unparse(node)))
        return counts

    @property
    def deepest(self) -> tuple[str, int]:
        """The class with most ancestors of this package in a row, and their number with it."""
        bases: dict[str, list[str]] = {}
        for tree in self.trees.values():
            for node in ast.walk(tree):
                if isinstance(node, ast.ClassDef):
                    names = [re.sub(r"\[.*", "", ast.unparse(b)) for b in node.bases]
                    bases.setdefault(node.name, []).extend(n.rpartition(".")[2] for n in names)

        def depth(name: str) -> int:
            above = [depth(b) for b in bases[name] if b in bases and b != name]
            return 1 + max(above, default=0)

        name = max(bases, key=depth)
        return name, depth(name)


def _reached(start: str, arrows: Graph) -> set[str]:
    found: set[str] = set()
    todo = [start]
    while todo:
        new = arrows[todo.pop()] - found
        found |= new
        todo += new
    return found


def _arguments(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    given = node.args
    every = [*given.posonlyargs, *given.args, *given.kwonlyargs]
    return len([a for a in every if a.arg not in ("self", "cls")])


def _attributes(node: ast.ClassDef) -> set[str]:
    """Fields of the class, and what its methods assign to `self`."""
    fields = {
        part.target.id
        for part in node.body
        if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name)
    }
    return fields | {
        inner.attr
        for inner in ast.walk(node)
        if isinstance(inner, ast.Attribute)
        and isinstance(inner.ctx, ast.Store)
        and ast.unparse(inner.value) == "self"
    }


def _is_plain_call(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="*", default=["extensions", "training"])
    parser.add_argument("--package", type=Path, default=PACKAGE)
    options = parser.parse_args()
    house = House(options.package.resolve())
    for folder in options.folders:
        shape = house.shape(folder)
        print(
            f"{folder}: {len(shape.rooms)} rooms, {shape.floors} floors, {shape.count} arrows, "
            f"circles: {shape.circles or 'none'}"
        )
    print(f"modules: {len(house.trees)}, lines: {house.lines}, functions: {len(house.functions)}")
    print(f"lines with Any: {house.any_lines}, of 100 functions: ", end="")
    print(f"{100 * house.any_lines / len(house.functions):.0f}")
    print("asked of rules:", ", ".join(f"{n} {k}" for k, n in house.asked_of_rules.items()))
    print("deepest class: {}, {}".format(*house.deepest))
    print("most arguments:", ", ".join(f"{n} {k}" for n, k in house.most_arguments()))
    print("most methods, attributes:", end=" ")
    print(", ".join(f"{n} {m}, {a}" for n, m, a in house.most_attributes()))


if __name__ == "__main__":
    main()
