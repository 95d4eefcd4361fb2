"""Notices that the value of a shared variable is set."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakMethod

from pytensor.compile.sharedvalue import SharedVariable
from pytensor.link.basic import Container


class FollowedContainer(Container):
    """The container of a value, also of those of clones of its variable, with followers."""

    followers: Sequence[WeakMethod[Callable[[Container], None]]] = ()

    def alive(self) -> list[Callable[[Container], None]]:
        """The followers that exist."""
        return [found for each in self.followers if (found := each()) is not None]

    def _set(self, value: object) -> None:
        self.__set__(value)
        for refresh in self.alive():
            refresh(self)

    data = property(Container.__get__, _set)
    value = property(Container.__get__, _set)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "followers": self.alive()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.followers = [WeakMethod(each) for each in state["followers"]]


def follow(shared: SharedVariable, refresh: Callable[[Container], None]) -> None:
    """Let `refresh`, a method, be called whenever the value is set, as long as its object exists.

    It is given the container. Variables that PyTensor and PyMC copy share a container, so any of
    them may be set.
    """
    container = shared.container
    container.__class__ = FollowedContainer
    known = [] if refresh in container.alive() else [WeakMethod(refresh)]
    container.followers = [*(each for each in container.followers if each() is not None), *known]
