"""A config that is made of an old command line, with comments where the meaning differs."""

from __future__ import annotations

import argparse
import os
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise, zip_longest
from pathlib import Path
from typing import Any

from synkhronos._checks import closest, shown
from synkhronos._errors import InputError
from synkhronos.training._config_text.toml import toml_of

NET = "mine:net"
WIDTH = 96  # of comments


class Translation:
    """The settings of a config, their comments, and what could not be translated.

    Parameters
    ----------
    system : str
    line : sequence of str
        The words of the old command line.
    folder : path
        The folder of the config: relative paths of the old line begin at the working folder, those
        of the config at this one.
    """

    def __init__(self, system: str, line: Sequence[str], folder: Path) -> None:
        self.table: dict[str, Any] = {}
        self.left: list[str] = []  # the options without a counterpart, and why
        self._comments: dict[str, str] = {}
        self._system = system
        self._line = shlex.join(line)
        self._folder = folder.resolve()

    def set(self, key: str, value: Any, comment: str = "") -> None:
        """Set a value by its dotted key, with a comment above it."""
        *tables, last = key.split(".")
        place = self.table
        for name in tables:
            place = place.setdefault(name, {})
        place[last] = value
        if comment:
            before = [self._comments[key]] if key in self._comments else []
            self._comments[key] = "\n".join([*before, _wrapped(comment)])

    def leave(self, option: str, why: str) -> None:
        """Note an option that has no counterpart."""
        self.left.append(f"{option}: {why}")

    def launch(self, words: Sequence[str]) -> int | None:
        """The number of processes of a launcher's line; its other options have no counterpart."""
        count, rest = launched(words)
        if rest:
            self.leave(shlex.join(rest), "of the launcher: see `synk run --help`")
        return count

    def path(self, old: str) -> str:
        """A path of the old line, as the config has it."""
        if os.path.isabs(old) or "://" in old:
            return old
        return os.path.relpath(Path(old).resolve(), self._folder)

    def toml(self) -> str:
        """The text of the config."""
        about = [
            f"Made by `synk new --from {self._system}` of this line:",
            f"    {self._line}",
            "Comments say where the meaning differs. Run it by `synk train`.",
        ]
        if self.left:
            about += ["Not translated:", *(f"  {text}" for text in self.left)]
        scalars = {k: v for k, v in self.table.items() if not isinstance(v, dict)}
        ordered = {k: scalars[k] for k in _ORDER if k in scalars} | scalars
        ordered |= {k: v for k, v in self.table.items() if k not in scalars}
        return toml_of(ordered, {**self._comments, "": "\n".join(about)})


_ORDER = ("model", "optimizer", "rule", "batch", "member_batch", "epochs", "metrics")


def _wrapped(text: str) -> str:
    lines = [""]
    for word in text.split():
        if len(lines[-1]) + len(word) >= WIDTH and lines[-1]:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return "\n".join(lines)


def divided(
    line: Sequence[str],
    programs: Sequence[str],
    others: Mapping[str, str],
    takes_words: bool = False,
) -> tuple[list[str], str, list[str]]:
    """The launcher's words, the program's name, and its arguments.

    The program is the first word whose last part is one of `programs`. Without a program, all words
    are arguments of the first of `programs`; `takes_words`: they may begin with another word than
    an option. `others` says of other programs of the same system what serves instead.

    Raises
    ------
    InputError
        The line runs another program.

    >>> line = "mpirun -n 4 python a/MPIDriver.py --epochs 3".split()
    >>> divided(line, ["MPIDriver.py"], {})
    (['mpirun', '-n', '4', 'python'], 'MPIDriver.py', ['--epochs', '3'])
    """
    for i, word in enumerate(line):
        name = os.path.basename(word)
        if name in programs:
            return list(line[:i]), name, list(line[i + 1 :])
    runs = line[0].endswith((".py", ".sh")) or _is_launcher(line[0])
    runs = runs or not (takes_words or line[0].startswith("-"))
    named = [name for word in line if (name := os.path.basename(word)) in others]
    if runs or named:
        scripts = (os.path.basename(word) for word in line if word.endswith((".py", ".sh")))
        name = (named or [next(scripts, line[0])])[0]
        instead = f": {others[name]}" if name in others else ""
        raise InputError(
            f"{name} is not {' or '.join(programs)}, of which lines are translated{instead}"
        )
    return [], programs[0], list(line)


def _is_launcher(word: str) -> bool:
    program = os.path.basename(word)
    return program in _LAUNCHERS or program.startswith("python")


def launched(launcher: Sequence[str]) -> tuple[int | None, list[str]]:
    """The number of processes that a launcher was asked for, and the rest of its options.

    >>> launched(["mpirun", "--np", "4", "-x", "HOME", "python3"])
    (4, ['-x', 'HOME'])
    """
    count, rest, taken, python = None, [], False, False
    for word, after in zip_longest(launcher, launcher[1:], fillvalue=""):
        name, _, value = word.partition("=")
        program = os.path.basename(word)
        python = python or program.startswith("python")
        if taken:
            taken = False
        elif python and _OF_PYTHON.fullmatch(word):
            continue
        elif name in _COUNTS and (value or after).isdecimal():
            count, taken = int(value or after), not value
        elif not _is_launcher(word):
            rest.append(word)
    return count, rest


_OF_PYTHON = re.compile("-[uOBdEIsSqvb]+")  # its options that change no result
_COUNTS = ("-n", "-np", "--n", "--np", "--ntasks")
_LAUNCHERS = ("mpirun", "mpiexec", "mpiexec.hydra", "orterun", "srun")


class OldParser(argparse.ArgumentParser):
    """The options of an old program; an error is an InputError."""

    def __init__(self, program: str, **options: Any) -> None:
        super().__init__(program, **options)

    def error(self, message: str) -> Any:
        """Raise what is wrong with the old line."""
        raise InputError(f"the old line of {self.prog}: {message}")


def parsed(parser: OldParser, words: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """The options of an old line, and those that are not known, with the words behind them.

    Raises
    ------
    InputError
        The word behind an unknown option may be its value, or an argument of the program.

    >>> parser = OldParser("old.py")
    >>> _ = parser.add_argument("--epochs", type=int)
    >>> parsed(parser, ["--new", "3", "--epochs", "5"])
    (Namespace(epochs=5), ['--new 3'])
    """
    found, unknown = parser.parse_known_args(words)
    left: list[str] = []
    for word in unknown:
        if left and not word.startswith("-"):
            left[-1] += f" {word}"
        else:
            left.append(word)
    for word, after in pairwise(words):
        taken = word in unknown and unknown[unknown.index(word) + 1 :][:1] != [after]
        if taken and word.startswith("-") and "=" not in word and not after.startswith("-"):
            raise InputError(
                f"the old line of {parser.prog}: {word} is not known, so {after} may be its value, "
                f"or an argument: leave {word} out"
            )
    return found, left


def known(option: str, name: str, names: Iterable[str]) -> str:
    """A name that the old program knew.

    Raises
    ------
    InputError
        It did not know it.
    """
    names = list(names)
    if name not in names:
        meant = closest(name, names)
        hint = f"; did you mean {meant}?" if meant else ""
        raise InputError(f"{option} {name}: not known; there were {', '.join(names)}{hint}")
    return name


def truth(text: str) -> bool:
    """True or False, as old programs took them; other words, which were False, are refused."""
    meanings = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
    if text.lower() not in meanings:
        raise argparse.ArgumentTypeError(f"found {shown(text)}, give True or False")
    return meanings[text.lower()]
