"""Estimators of scikit-learn that train with all members of a group.

`SynkClassifier` and `SynkRegressor`: a network of dense layers, or your own.
It needs the extra: ``pip install "synkhronos[sklearn]"``. scikit-learn is imported when one of
them is first used. Workers do not import it.
"""

from typing import TYPE_CHECKING

from synkhronos._public import imported_late as _imported_late

if TYPE_CHECKING:
    from synkhronos.sklearn._estimators import SynkClassifier, SynkRegressor

__all__ = ["SynkClassifier", "SynkRegressor"]

__getattr__ = _imported_late(
    __name__, __all__, lambda name: "_estimators", "sklearn", "scikit-learn", "sklearn"
)
