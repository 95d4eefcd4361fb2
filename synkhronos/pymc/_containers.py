"""Notices that the value of a shared variable is set."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol
from weakref import WeakSet

from pytensor.compile.sharedvalue import SharedVariable
from pytensor.link.basic import Container


class Follower(Protocol):
    """An object that depends on the values of shared variables."""

    def refresh(self) -> None:
        """A value was set."""


class FollowedContainer(Container):
    """The container of a value, also of those of clones of its variable, with followers."""

    followers: Iterable[Follower] = ()

    def _set(self, value: object) -> None:
        self.__set__(value)
        for follower in list(self.followers):
            follower.refresh()

    data = property(Container.__get__, _set)
    value = property(Container.__get__, _set)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "followers": list(self.followers)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.followers = WeakSet(state["followers"])


def follow(shared: SharedVariable, follower: Follower) -> None:
    """Let `follower.refresh` be called whenever the value is set, as long as the follower exists.

    Variables that PyTensor and PyMC copy share a container, so any of them may be set.
    """
    container = shared.container
    if "followers" not in vars(container):  # nor has a container that was copied
        container.__class__ = FollowedContainer
        container.followers = WeakSet()
    container.followers.add(follower)
