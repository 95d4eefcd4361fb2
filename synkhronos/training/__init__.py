"""From one training step to a trained model.

`fit`           in one call; `Trainer`: the same with your own training function
`config`        the settings of a run, in a file; `configured`: a run as a file describes it
`metrics`       exact over all rows, for any split
`optimizers`    averages of parameters, a guard, a rate that follows the step
`callbacks`     early stopping, targets, the best checkpoints, a rate that falls on a plateau
`augmentation`  the random words by which `synkhronos.nn.augment` moves pixels
`sources`       where rows come from: files of many formats
`history`       what a run gives back; `recorder`: what it leaves in its folder
"""

from synkhronos._public import belong_to as _belong_to
from synkhronos.training import metrics, sources
from synkhronos.training._pairs.alternate import Alternate
from synkhronos.training._pairs.pair import Pair
from synkhronos.training._record.history import History
from synkhronos.training._record.recorder import Recorder
from synkhronos.training._record.run_folder import read_metrics
from synkhronos.training._run.augmentation import augmentation_words
from synkhronos.training._run.evaluation import Evaluation
from synkhronos.training._run.events import Event
from synkhronos.training.callbacks import Best, EarlyStopping, Plateau, Target
from synkhronos.training.fit import fit
from synkhronos.training.metrics import Metric
from synkhronos.training.net import Net
from synkhronos.training.optimizers import averages_of, clipped, ema, guarded, scheduled
from synkhronos.training.trainer import Trainer

__all__ = [
    "Alternate",
    "Best",
    "EarlyStopping",
    "Evaluation",
    "Event",
    "History",
    "Metric",
    "Net",
    "Pair",
    "Plateau",
    "Recorder",
    "Target",
    "Trainer",
    "augmentation_words",
    "averages_of",
    "clipped",
    "ema",
    "fit",
    "guarded",
    "metrics",
    "read_metrics",
    "scheduled",
    "sources",
]

_belong_to(__name__, [globals()[name] for name in __all__ if name not in ("metrics", "sources")])
