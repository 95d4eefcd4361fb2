"""Signals that this process gets, read from a descriptor: a wait for them can watch others, too."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import struct
from dataclasses import dataclass
from typing import Self

_INFO = struct.Struct("=Iii116x")  # <sys/signalfd.h>: number, errno, code, and what is not needed
_BY_KERNEL = 0x80  # <asm-generic/siginfo.h>: SI_KERNEL, of Ctrl-C at the terminal
_SET_BYTES = 128  # of sigset_t
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)


@dataclass(frozen=True)
class Received:
    """A signal, and whether the terminal has sent it, to all of its foreground processes."""

    number: int
    from_terminal: bool


class SignalDescriptor:
    """A context in which the signals that end a script wait to be read.

    Those that this process ignores are not among them: nohup makes it ignore SIGHUP, for example,
    and the script inherits that.
    """

    def __enter__(self) -> Self:
        numbers = [number for number in ENDING if signal.getsignal(number) != signal.SIG_IGN]
        self.mask_before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
        bits = sum(1 << (number - 1) for number in numbers)
        wanted = (ctypes.c_char * _SET_BYTES).from_buffer_copy(bits.to_bytes(_SET_BYTES, "little"))
        flags = os.O_CLOEXEC | os.O_NONBLOCK
        self._descriptor = ctypes.CDLL(None, use_errno=True).signalfd(-1, wanted, flags)
        if self._descriptor < 0:
            self._restore()
            raise OSError(ctypes.get_errno(), "signalfd")
        return self

    def __exit__(self, *exc: object) -> None:
        os.close(self._descriptor)
        self._restore()

    def _restore(self) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self.mask_before)

    def fileno(self) -> int:
        """The descriptor, which can be read while signals wait."""
        return self._descriptor

    def read(self) -> list[Received]:
        """Take the signals that wait."""
        found = []
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self._descriptor, _INFO.size):
                number, _, code = _INFO.unpack(data)
                found.append(Received(number, code == _BY_KERNEL))
        return found
