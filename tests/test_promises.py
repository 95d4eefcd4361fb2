"""Whatever is promised has a test in the default selection, not only in `scripts/test --all`.

The promises are those of docs/explanation/reliability.rst, by their numbers (1 to 23; that the
tests never fail by chance, 24, is a matter of repeating them); T1 to T15 are the threats of
docs/explanation/trust.rst, S1 to S97 the defects of the system of 2017. A test that holds one names
it in its docstring, or in that of its module.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from mutants import MUTANTS, Mutant
from selection import Collected
from sharing import whole_selection

import synkhronos as synk
from synkhronos import extensions, interop, nn, ops, pymc, search, sklearn, testing, training, zoo
from synkhronos.extensions import updates
from synkhronos.training import config, configured

PAGE = Path(__file__).parents[1] / "docs" / "explanation" / "reliability.rst"
THREATS = PAGE.with_name("trust.rst")
NUMBERS = {
    **{f"S{n}": rf"\bS{n}\b" for n in range(1, 98)},
    **{f"T{n}": rf"\bT{n}\b" for n in range(1, 15)},
    **{f"promise {n}": rf"(?i:\bpromises?) [\d,\sand]*\b{n}\b" for n in range(1, 24)},
}
PUBLIC = {
    f"{module.__name__}.{name}": name
    for module in (
        synk,
        extensions,
        updates,
        training,
        training.sources,
        config,
        configured,
        interop,
        nn,
        ops,
        pymc,
        search,
        sklearn,
        testing,
        zoo,
    )
    for name in module.__all__
}


@pytest.fixture(scope="module")
def default(pytestconfig: pytest.Config) -> list[Collected]:
    """The tests of the default selection."""
    found = whole_selection(pytestconfig)
    if found is None:
        pytest.skip("only a run of all tests has collected them all")
    return found


@pytest.fixture(scope="module")
def places(default: list[Collected]) -> list[tuple[str, str]]:
    """The path of each of these tests, and the words by which -k finds it."""
    return [(i.path, f"{Path(i.path).name} {i.name}".lower()) for i in default]


@pytest.fixture(scope="module")
def words(default: list[Collected]) -> set[str]:
    """All words of the modules of these tests."""
    sources = (Path(path).read_text() for path in {item.path for item in default})
    return {word for text in sources for word in re.findall(r"\w+", text)}


@pytest.fixture(scope="module")
def named(default: list[Collected]) -> str:
    """What the docstrings of these tests and of their modules name, ranges written out."""
    texts = {doc for item in default for doc in (item.doc, item.module_doc)}
    return "\n".join(re.sub(r"\bS(\d+) to S(\d+)", _written_out, text) for text in texts)


def _written_out(found: re.Match[str]) -> str:
    return ", ".join(f"S{n}" for n in range(int(found[1]), int(found[2]) + 1))


def test_each_number_is_named_by_a_test(named: str) -> None:
    assert not [n for n, pattern in NUMBERS.items() if not re.search(pattern, named)]


def test_tests_of_the_page_are_in_the_default_selection(default: list[Collected]) -> None:
    """Each promise of the page names a file, and what it names has tests that are run."""
    files = {Path(item.path).name for item in default}
    numbers: set[int] = set()
    for title, text in promises():
        found = set(re.findall(r"``(?:tests/)?(?:\w+/)*(test_\w+\.py)``", text))
        assert found, title
        assert found <= files, title
        numbers.update(map(int, re.findall(r"\d+", title)))
    assert numbers == set(range(1, 24))


def test_each_threat_is_named_by_the_tests_of_its_row(default: list[Collected]) -> None:
    """Those of the page of threats, each of which is in the default selection."""
    rows = re.findall(r"\n   \* - (T\d+)\n(.*?)(?=\n   \* - |\n\n)", THREATS.read_text(), re.DOTALL)
    assert [number for number, _ in rows] == [f"T{n}" for n in range(1, 16)]
    for number, text in rows:
        files = re.findall(r"``(test_\w+\.py)``", text)
        assert files, number
        for file in files:
            items = [item for item in default if Path(item.path).name == file]
            named = {doc for item in items for doc in (item.doc, item.module_doc)}
            assert any(re.search(rf"\b{number}\b", d) for d in named), (number, file)


def promises() -> Iterator[tuple[str, str]]:
    """The numbered titles of the page, and what stands below each."""
    text = PAGE.read_text().partition("The last fault campaign\n")[0]
    yield from re.findall(r"^(\S.*\(\d[^\n]*)\n((?:    .*\n)+)", text, re.MULTILINE)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.guard)
def test_each_guard_has_tests(places: list[tuple[str, str]], mutant: Mutant) -> None:
    """Among those by which mutants.py expects that it is caught."""
    paths, _, wanted = mutant.tests.partition(" -k ")
    inside = [Path(__file__).parents[1] / path for path in paths.split()]
    assert all(place.exists() for place in inside)
    begins = tuple(f"{place}/" if place.is_dir() else str(place) for place in inside)
    names = [name for path, name in places if path.startswith(begins)]
    assert any(matches(wanted.strip("'"), name) for name in names)


def matches(words: str, name: str) -> bool:
    """As pytest's option -k, for `a and (b or c)`."""
    alternatives = re.split(r"\band\b", re.sub(r"[()]", "", words))
    return all(
        any(word.strip().lower() in name for word in re.split(r"\bor\b", each))
        for each in alternatives
    )


def test_no_module_of_tests_keeps_a_process_number() -> None:
    """The processes that run the tests are forked after the import: the number is not theirs."""
    for path in Path(__file__).parent.rglob("*.py"):
        text = path.read_text()
        for held in ast.parse(text).body if "getpid" in text else ():
            names = [getattr(n, "attr", "") for n in ast.walk(held) if isinstance(held, ast.Assign)]
            assert "getpid" not in names, (path, held.lineno)


@pytest.mark.parametrize("name", PUBLIC)
def test_each_public_name_is_used_by_a_test(words: set[str], name: str) -> None:
    assert PUBLIC[name] in words
