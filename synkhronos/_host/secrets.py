"""Leaves secrets out of what is written down: logs, records of runs, messages.

A secret is known by its name or its place only: the value of an option or a variable with a telling
name, and the user and the query of a URL.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterable

HIDDEN = "***"
_TELLING = re.compile(r"token|passw|secret|credential|(api|access|private|account)[-_]?key", re.I)
_OPTION = re.compile(r"(?P<name>-{0,2}[A-Za-z][\w.-]*)=(?P<value>.*)", re.DOTALL)
_URL = re.compile(
    r"(?P<scheme>\b[A-Za-z][A-Za-z0-9+.-]*://)(?P<user>[^\s/?#'\"]*@)?"
    r"(?P<place>[^\s?#'\"]*)(?P<query>\?[^\s#'\"]*)?"
)


def is_telling(name: str) -> bool:
    """Whether the value of an option or a variable of this name is a secret.

    >>> is_telling("WANDB_API_KEY"), is_telling("--hub-token"), is_telling("KEYBOARD")
    (True, True, False)
    """
    return bool(_TELLING.search(name))


def without_secrets(text: str) -> str:
    """A text without the users and queries of its URLs.

    >>> without_secrets("https://me:pw@host/x.npy?sig=abc cannot be read")
    'https://***@host/x.npy?*** cannot be read'
    """
    return _URL.sub(_shown_url, text)


def cause_of(exc: BaseException) -> BaseException | None:
    """An error as the cause of another one; None if its traceback shows a secret.

    >>> cause_of(OSError("https://me:pw@host/x.npy")), cause_of(OSError("is full"))
    (None, OSError('is full'))
    """
    text = "".join(traceback.format_exception(exc))
    return exc if without_secrets(text) == text else None


def _shown_url(found: re.Match[str]) -> str:
    user = f"{HIDDEN}@" if found["user"] else ""
    query = f"?{HIDDEN}" if found["query"] else ""
    return f"{found['scheme']}{user}{found['place']}{query}"


def words_without_secrets(words: Iterable[str]) -> list[str]:
    """A command line without secrets, word by word.

    >>> words_without_secrets(["train", "--token", "abc", "WANDB_API_KEY=abc", "rate=0.1"])
    ['train', '--token', '***', 'WANDB_API_KEY=***', 'rate=0.1']
    """
    found: list[str] = []
    hides_next = False
    for word in words:
        option = _OPTION.fullmatch(word)
        if hides_next and not word.startswith("-"):
            found.append(HIDDEN)
        elif option and is_telling(option["name"]):
            found.append(f"{option['name']}={HIDDEN}")
        else:
            found.append(without_secrets(word))
        hides_next = word.startswith("-") and option is None and is_telling(word)
    return found
