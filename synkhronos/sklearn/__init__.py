"""Estimators of scikit-learn that train with all members of a group.

`SynkClassifier`  and `SynkRegressor`: a network of dense layers, or your own
``_estimators``   the estimators, the only importer of scikit-learn here
``_dense``        the network of dense layers

It needs the extra: ``pip install "synkhronos[sklearn]"``. scikit-learn is imported when one of
them is first used. Workers do not import it.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from synkhronos._errors import BackendMissing
from synkhronos._public import belong_to as _belong_to

if TYPE_CHECKING:
    from synkhronos.sklearn._estimators import SynkClassifier as SynkClassifier
    from synkhronos.sklearn._estimators import SynkRegressor as SynkRegressor

__all__ = ["SynkClassifier", "SynkRegressor"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        import_module("sklearn")
    except ImportError:
        raise BackendMissing("scikit-learn", "sklearn") from None
    found = getattr(import_module("synkhronos.sklearn._estimators"), name)
    _belong_to(__name__, [found])
    return found
