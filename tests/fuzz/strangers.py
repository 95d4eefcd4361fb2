"""Readers of files that a stranger may have made, and processes in which they are tried."""

from __future__ import annotations

import base64
import contextlib
import faulthandler
import os
import resource
import select
import signal
import sys
import traceback
import warnings
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hypothesis
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from peak_memory import forget_peak, peak

type Tree = Mapping[str, bytes]  # files by their paths below a folder

HANG_SECONDS = 120
ADDRESSES = 4 << 30  # bytes of address space, of which a large part is only reserved
CANARY = "canary"
# of Python's audit events: a reader of data runs no program, asks no host, unpickles nothing
_FORBIDDEN = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork")
_FORBIDDEN += ("socket.connect", "socket.getaddrinfo", "pickle.find_class")
_SHOWN = 20_000  # characters of a case


@dataclass(frozen=True)
class Reader:
    """One reader.

    Attributes
    ----------
    name : str
    cases : function of str
        A strategy of files; the argument is the path of a folder that nothing may make.
    read : function of Path
        Reads the files in a folder, and checks what it has read.
    names : str
        What each error names: the file.
    errors : tuple of classes
        The documented ones.
    most : int
        Bytes of memory that reading may take, beyond those of the process.
    share : int
        One example is made of so many, where each takes long.
    """

    name: str
    cases: Callable[[str], st.SearchStrategy[Tree]]
    read: Callable[[Path], object]
    names: str
    errors: tuple[type[Exception], ...]
    most: int = 256 << 20
    share: int = 1


def write(tree: Tree, folder: Path) -> None:
    for name, content in tree.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def remove(folder: Path) -> None:
    """As shutil.rmtree, which is slower."""
    for place, folders, files in os.walk(folder, topdown=False):
        for name in files:
            os.unlink(os.path.join(place, name))
        for name in folders:
            os.rmdir(os.path.join(place, name))


def judged(reader: Reader, tree: Tree, folder: Path, canary: Path) -> str:
    """Read one case: "read" or "refused".

    Raises
    ------
    AssertionError
        The reader has not kept its word.
    """
    write(tree, folder)
    said = None
    try:
        reader.read(folder)
    except reader.errors as exc:
        said = str(exc)
    assert not canary.exists(), "code of the file has run"
    if said is None:
        return "read"
    assert reader.names in said, f"no {reader.names} in the message: {said}"
    return "refused"


def tried(reader: Reader, folder: Path, examples: int, seed: int | None = None) -> dict[str, int]:
    """Try a reader in a process of its own: how many cases it has read, and how many refused.

    Raises
    ------
    AssertionError
        An error that is not documented, a crash, a hang, too much memory, or code that has run.
    """
    return in_a_process(folder, lambda say: _examples(reader, folder, examples, seed, say))


def _examples(
    reader: Reader, folder: Path, examples: int, seed: int | None, say: Callable[[str], None]
) -> None:
    place, canary = folder / "case", folder / CANARY
    place.mkdir()
    tell = _forbid()

    @settings(
        max_examples=max(1, examples // reader.share),
        derandomize=seed is None,
        database=None,
        deadline=None,
        phases=(Phase.generate,),
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    @hypothesis.given(reader.cases(str(canary)))
    def each(tree: Tree) -> None:
        remove(place)
        before = forget_peak()
        try:
            with tell():
                say(judged(reader, tree, place, canary))
            grown = peak() - before
            assert grown < reader.most, f"reading took {grown:,} bytes of memory"
        except BaseException as exc:
            exc.add_note(shown(tree))
            raise

    (each if seed is None else hypothesis.seed(seed)(each))()


def _forbid() -> Callable[[], Any]:
    """A context in which what no reader does raises."""
    on: list[bool] = []
    done: list[str] = []

    def look(event: str, arguments: tuple[Any, ...]) -> None:
        if on and event in _FORBIDDEN:
            done.append(f"{event} {arguments}")

    sys.addaudithook(look)

    @contextlib.contextmanager
    def tell() -> Any:
        on.append(True)
        try:
            yield
        finally:
            on.clear()
        assert not done, done

    return tell


def shown(tree: Tree) -> str:
    """A case, to be put into `opened`."""
    packed = {name: _packed(content) for name, content in tree.items()}
    return f"the files: {packed!r}"[:_SHOWN]


def _packed(content: bytes) -> str:
    return base64.b85encode(zlib.compress(content)).decode()


def opened(tree: Mapping[str, str]) -> Tree:
    """The files that `shown` shows."""
    return {name: zlib.decompress(base64.b85decode(text)) for name, text in tree.items()}


def in_a_process(
    folder: Path, work: Callable[[Callable[[str], None]], None], patience: float = HANG_SECONDS
) -> dict[str, int]:
    """Do work in a fork with little memory, which may crash or hang: how often it said what."""
    reads, writes = os.pipe()
    sys.stdout.flush()
    pid = os.fork()
    if not pid:
        _work(work, writes, folder / "said")
    os.close(writes)
    heard = b""
    try:
        poll = select.poll()
        poll.register(reads, select.POLLIN)
        while poll.poll(1000 * patience):
            if not (more := os.read(reads, 1 << 16)):
                break
            heard += more
        else:
            os.kill(pid, signal.SIGKILL)
            raise AssertionError(f"{patience} s without an end; the files are in {folder / 'case'}")
    finally:
        os.close(reads)
        status = os.waitpid(pid, 0)[1]
    code = os.waitstatus_to_exitcode(status)
    said = (folder / "said").read_text(errors="replace") if (folder / "said").exists() else ""
    assert not code, said or f"it ended with {code}; the files are in {folder / 'case'}"
    words = heard.decode().split()
    return {word: words.count(word) for word in sorted(set(words))}


def _work(work: Callable[[Callable[[str], None]], None], writes: int, said: Path) -> None:
    code = 1
    try:
        signal.setitimer(signal.ITIMER_REAL, 0)
        warnings.simplefilter("ignore")
        faulthandler.disable()  # the exit code tells of a crash
        most = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (most + ADDRESSES, most + ADDRESSES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        work(lambda word: os.write(writes, f"{word}\n".encode()) and None)
        code = 0
    except BaseException:
        said.write_text(traceback.format_exc(), errors="replace")
    finally:
        os._exit(code)
