"""Objects that belong to a process and its group, and can be neither copied nor pickled."""

from __future__ import annotations

from typing import ClassVar, NoReturn

from synkhronos._errors import InputTypeError


class ProcessBound:
    """The base of such classes: `pickle`, `copy`, `joblib` and others get an error that helps."""

    _instead: ClassVar[str]  # what to do; the end of the message

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise InputTypeError(
            f"a {type(self).__name__} cannot be copied or pickled, since it belongs to this "
            f"process and its group: {self._instead}"
        )
