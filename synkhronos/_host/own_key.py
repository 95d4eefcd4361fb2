"""A secret of this user, which signs what is kept where others may write."""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path

from synkhronos._errors import InputError
from synkhronos._host import files

SETTING = "SYNKHRONOS_KEY"  # the file of the key
_BYTES = 32
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def key_path() -> Path:
    """Where the key is: the file that the environment names, else one in the user's settings."""
    if given := os.environ.get(SETTING):
        return Path(given).absolute()
    home = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(home) / "synkhronos" / "key"


def own_key() -> bytes:
    """The key of this user, which is made at its first use.

    Raises
    ------
    InputError
        Another user may read or write it, it is damaged, or it cannot be made.
    """
    path = key_path()
    try:
        if not path.exists():
            _make(path)
        with files.reading(path) as file:
            found = os.fstat(file.fileno())
            text = file.read(4 * _BYTES)
    except OSError as exc:
        raise InputError(f"the key in {str(path)!r} cannot be read: {exc.strerror}") from None
    if not files.is_own(found) or found.st_mode & _OTHERS:
        raise InputError(
            f"another user may read or write the key in {str(path)!r}, with which results are "
            "signed: remove it, and what it has signed, or take the permission away (chmod 600)"
        )
    try:
        key = bytes.fromhex(text.decode().strip())
    except ValueError:
        key = b""
    if len(key) != _BYTES:
        raise InputError(
            f"the key in {str(path)!r} is damaged: it has {2 * _BYTES} hexadecimal digits. Copy "
            "the one that has signed your results, or remove the file and get a new key"
        )
    return key


def _make(path: Path) -> None:
    """Make a key, unless another process of the user does so at the same time."""
    files.make_folder(path.parent, files.OWN)
    new = path.with_name(f".{secrets.token_hex(8)}.new")
    try:
        with files.draft(new, mode=files.OWN_FILE) as file:
            file.write(f"{secrets.token_hex(_BYTES)}\n".encode())
        os.link(new, path)
    except FileExistsError:
        pass  # that one is the key
    finally:
        new.unlink(missing_ok=True)
