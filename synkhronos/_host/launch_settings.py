"""Settings of `synk run` for the script that it starts, as environment variables.

They are for one process: the script, and on other nodes its processes. A process that the script
starts inherits the environment, and must not follow it: its groups are its own matter. So the first
process that imports this package writes its pid beside the settings, and others ignore them.
Variables that the user has exported by hand are defaults for all processes.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass

from synkhronos._errors import InputError

_MEMBERS, _DEVICES = "SYNKHRONOS_MEMBERS", "SYNKHRONOS_DEVICES"
_TIMEOUT, _LOG_DIR = "SYNKHRONOS_TIMEOUT", "SYNKHRONOS_LOG_DIR"
_RESUME, _NODES = "SYNKHRONOS_RESUME", "SYNKHRONOS_NODES"
_START = "SYNKHRONOS_START"
PART = "SYNKHRONOS_PART"  # of an array, as in "2/10", from 1
_SCRIPT = "SYNKHRONOS_SCRIPT"  # the pid of the process that the settings are for
NAMES = (_MEMBERS, _DEVICES, _TIMEOUT, _LOG_DIR, _RESUME, _NODES, _START, PART)


@dataclass(frozen=True)
class LaunchSettings:
    """The options that a script is started with."""

    # on each node, in the order of nodes; one number for all nodes, or none
    members: tuple[int, ...] = ()
    devices: str = ""  # as for `Group`; empty: the script decides
    timeout: float | None = None  # as for `Group`
    log_dir: str = ""  # the folder of the files rank-N.log; empty: none
    resume: str = ""  # "auto", or empty
    nodes: int = 0  # the number of processes that the launcher starts; 0: not known
    start: int = 0  # counts the starts of the script, from 1; 0: `synk run` has not started it
    part: tuple[int, int] = (1, 1)  # of the items of `pymc.map`, from 1, and how many there are

    @staticmethod
    def of(environ: Mapping[str, str]) -> LaunchSettings:
        """Read them.

        Raises
        ------
        InputError
            A variable has no possible value.

        Examples
        --------
        >>> LaunchSettings.of({"SYNKHRONOS_MEMBERS": "4,2"}).members
        (4, 2)
        """
        timeout = environ.get(_TIMEOUT)
        resume = environ.get(_RESUME, "")
        if resume not in ("", "auto"):
            raise InputError(f'{_RESUME}={resume!r} in the environment: the only value is "auto"')
        return LaunchSettings(
            members=_counts(environ, _MEMBERS),
            devices=environ.get(_DEVICES, ""),
            timeout=_seconds(timeout) if timeout else None,
            log_dir=environ.get(_LOG_DIR, ""),
            resume=resume,
            nodes=next(iter(_counts(environ, _NODES)), 0),
            part=_part(environ.get(PART, "")),
            start=next(iter(_counts(environ, _START)), 0),
        )

    def environment(self) -> dict[str, str]:
        """The variables with these settings.

        >>> LaunchSettings(members=(2,), start=1).environment()
        {'SYNKHRONOS_MEMBERS': '2', 'SYNKHRONOS_START': '1'}
        """
        values = {
            _MEMBERS: ",".join(map(str, self.members)),
            _DEVICES: self.devices,
            _TIMEOUT: f"{self.timeout or ''}",
            _LOG_DIR: self.log_dir,
            _RESUME: self.resume,
            _NODES: f"{self.nodes or ''}",
            PART: "" if self.part == (1, 1) else "{}/{}".format(*self.part),
            _START: f"{self.start or ''}",
        }
        return {name: value for name, value in values.items() if value}

    def members_of(self, node: int) -> int | None:
        """The number of members on a node; None: the script decides."""
        if len(self.members) < 2:
            return next(iter(self.members), None)
        if node >= len(self.members):
            raise InputError(
                f"{_MEMBERS} names the members of {len(self.members)} nodes, and this is node "
                f"{node}, from 0"
            )
        return self.members[node]


def _counts(environ: Mapping[str, str], name: str) -> tuple[int, ...]:
    given = environ.get(name, "")
    try:
        found = tuple(int(each) for each in given.split(",")) if given else ()
    except ValueError:
        found = (0,)
    if any(count < 1 for count in found):
        raise InputError(f"{name}={given!r} in the environment: give a number above 0")
    return found


def _part(given: str) -> tuple[int, int]:
    words = given.split("/") if given else ["1", "1"]
    if len(words) != 2 or not all(word.isascii() and word.isdigit() for word in words):
        words = ["0", "0"]
    part, parts = int(words[0]), int(words[1])
    if not 1 <= part <= parts:
        raise InputError(
            f'{PART}={given!r} in the environment: give a part and their number, "2/10"'
        )
    return part, parts


def _seconds(given: str) -> float:
    try:
        found = float(given)
    except ValueError:
        found = 0.0
    if not found > 0:
        raise InputError(f"{_TIMEOUT}={given!r} in the environment: give seconds above 0")
    return found


def are_for_this_process(environ: MutableMapping[str, str] = os.environ) -> bool:
    """Whether settings in the environment are for this process; the first one that asks gets them.

    >>> from_launcher = {"SYNKHRONOS_START": "1"}
    >>> are_for_this_process(from_launcher), "SYNKHRONOS_SCRIPT" in from_launcher
    (True, True)
    >>> are_for_this_process({"SYNKHRONOS_START": "1", "SYNKHRONOS_SCRIPT": "1"})
    False
    """
    if _START not in environ:
        return True
    return environ.setdefault(_SCRIPT, str(os.getpid())) == str(os.getpid())


def launch_settings(environ: MutableMapping[str, str] = os.environ) -> LaunchSettings:
    """The settings of this process.

    >>> launch_settings({"SYNKHRONOS_MEMBERS": "4"}).members
    (4,)
    """
    if are_for_this_process(environ):
        return LaunchSettings.of(environ)
    return LaunchSettings()


def without_settings(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment for a new launch: without the settings of the launch that this is a part of.

    >>> without_settings({"SYNKHRONOS_START": "1", "SYNKHRONOS_MEMBERS": "4", "HOME": "/root"})
    {'HOME': '/root'}
    >>> without_settings({"SYNKHRONOS_MEMBERS": "4"})
    {'SYNKHRONOS_MEMBERS': '4'}
    """
    ours = {*NAMES, _SCRIPT} if _START in environ else {_SCRIPT}
    return {name: value for name, value in environ.items() if name not in ours}


are_for_this_process()  # at the import, before this process can start another
