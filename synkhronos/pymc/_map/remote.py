"""Results at an address of fsspec, each signed with a key of this user.

Whoever may write there could put a pickle in place of a result, and a pickle is code. So the first
line of each result is a code of the rest (HMAC, SHA-256; RFC 2104), of its name and of the address.
It takes the key to make one.
"""

from __future__ import annotations

import contextlib
import hmac
import io
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import IO

from synkhronos._errors import InputError, SynkhronosError, needing
from synkhronos._host import files
from synkhronos._host.own_key import key_path, own_key
from synkhronos._host.secrets import cause_of, without_secrets
from synkhronos.pymc._map.stores import Store, temporary

_AT_ONCE = 16  # requests; each takes some 20 ms, most of which are waiting
_AHEAD = 64  # results that wait to be sent
_CODE = 64  # hexadecimal digits


class Remote(Store):
    """Files at an address, such as ``s3://bucket/fits``.

    Raises
    ------
    InputError
        There is no such file system, its driver is missing, or it cannot be asked.
    """

    def __init__(self, address: str) -> None:
        with needing("fsspec", "data"):
            import fsspec
        self.at = address.rstrip("/")
        self.shown = without_secrets(self.at)
        self.path = Path(temporary(self))
        self._threads = ThreadPoolExecutor(_AT_ONCE, "synk-results")
        self._sent: deque[Future[None]] = deque()
        try:
            self._system, self._inside = fsspec.core.url_to_fs(self.at)
            if not self._inside.strip("/") or self.at.endswith(":"):
                raise ValueError("name a folder there")
            self._system.invalidate_cache()
            self._names = set(self._listed())
        except (ImportError, ValueError) as exc:
            raise InputError(f"map: folder={self.shown!r}: {without_secrets(str(exc))}") from None
        except Exception as exc:  # of any driver
            raise InputError(
                f"map: folder={self.shown!r} cannot be listed: {_said(exc)}"
            ) from cause_of(exc)
        self._key = own_key()

    def _listed(self) -> Iterator[str]:
        with contextlib.suppress(FileNotFoundError):
            for name in self._system.ls(self._inside, detail=False):
                yield name.rpartition("/")[2]

    def _place(self, name: str) -> str:
        return f"{self._inside}/{name}"

    def _write(self, name: str, data: bytes) -> None:
        try:
            try:
                self._system.pipe_file(self._place(name), data)
            except FileNotFoundError:  # a file system with folders
                self._system.makedirs(self._inside, exist_ok=True)
                self._system.pipe_file(self._place(name), data)
        except Exception as exc:  # of any driver
            raise SynkhronosError(
                f"map: {name} cannot be written to {self.shown!r}: {_said(exc)}"
            ) from cause_of(exc)
        self._names.add(name)

    def _read(self, name: str) -> bytes:
        try:
            if name not in self._names:
                raise FileNotFoundError(0, "there is no such file", self._place(name))
            found: bytes = self._system.cat_file(self._place(name))
        except OSError:
            raise
        except Exception as exc:  # of any driver
            raise OSError(0, _said(exc)) from cause_of(exc)
        return found

    def note(self, name: str, text: str) -> None:
        """See `Store`."""
        self._write(name, text.encode())

    def noted(self, name: str) -> str:
        """See `Store`."""
        return self._read(name).decode()

    def came(self, name: str) -> None:
        """See `Store`; it is sent beside the calls that follow.

        Raises
        ------
        SynkhronosError
            An earlier one could not be sent.
        """
        self._sent.append(self._threads.submit(self._send, name))
        while self._sent and (len(self._sent) > _AHEAD or self._sent[0].done()):
            self._sent.popleft().result()

    def _send(self, name: str) -> None:
        path = self.path / name
        data = files.read_bytes(path, None)
        self._write(name, self._code(name, data) + b"\n" + data)
        path.unlink()

    def remove(self, name: str) -> None:
        """See `Store`."""
        try:
            self._system.rm_file(self._place(name))
        except FileNotFoundError:
            pass
        except Exception as exc:  # of any driver
            raise SynkhronosError(
                f"map: {name} cannot be removed from {self.shown!r}: {_said(exc)}"
            ) from cause_of(exc)
        self._names.discard(name)

    def finish(self) -> None:
        """See `Store`; all are tried.

        Raises
        ------
        SynkhronosError
            One could not be sent.
        """
        waiting, self._sent = self._sent, deque()
        errors = [error for future in waiting if (error := future.exception()) is not None]
        if errors:
            raise errors[0]

    def each[T, R](self, function: Callable[[T], R], values: Iterable[T]) -> list[R]:
        """See `Store`; some at the same time."""
        return list(self._threads.map(function, values))

    @contextlib.contextmanager
    def opened(self, name: str) -> Iterator[IO[bytes]]:
        """See `Store`."""
        found = self._read(name)
        code, data = found[:_CODE], found[_CODE + 1 :]
        if not hmac.compare_digest(code, self._code(name, data)):
            raise InputError(
                f"map: {name} in {self.shown!r} is not signed with the key in {str(key_path())!r}. "
                "Someone else has written it, it is damaged, or another key or address has signed "
                "it. Results are pickles, which can run any code: remove it, give another folder, "
                "or set SYNKHRONOS_KEY to the file of the key that has signed it"
            )
        yield io.BytesIO(data)

    def _code(self, name: str, data: bytes) -> bytes:
        about = "\n".join(["synk.pymc.map", str(self.at), name, ""]).encode()
        return hmac.new(self._key, about + data, "sha256").hexdigest().encode()


def _said(exc: BaseException) -> str:
    text = os.strerror(exc.errno) if isinstance(exc, OSError) and exc.errno else str(exc)
    return without_secrets(f"{type(exc).__name__}: {text}")
