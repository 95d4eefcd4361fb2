"""Training from one step to a trained model, and what a run leaves behind.

`History`        the numbers of a run, by row and by column
`Recorder`       the folder of a run: configuration, environment, metrics
`read_metrics`   the lines of metrics that a run has written
`sources`        where rows come from: files of many formats, for a Loader
"""

from synkhronos._api.public_names import belong_to as _belong_to
from synkhronos.training import sources as sources
from synkhronos.training.history import History as History
from synkhronos.training.recorder import Recorder as Recorder
from synkhronos.training.recorder import read_metrics as read_metrics

__all__ = [
    "History",
    "Recorder",
    "read_metrics",
    "sources",
]

_belong_to(__name__, [globals()[name] for name in __all__ if name != "sources"])
