"""Search for hyperparameters with Optuna: each trial is a process with a group of its own.

`search`       runs trials of an objective, in slots of cores
`open_study`   makes or opens a study: its storage, sampler and pruner
`Trial`        what the objective gets: it draws values, reports, and hears whether to stop
``_parent``    asks and tells; ``_trial_process``: one trial's process, and the messages with it
``_outcomes``  what a study is told of a trial, and when there are enough of them
``_pooled``    trials on Dask, Ray, MPI or an executor; ``_station``: what their workers do
``_entry``     what the trial's process runs; ``_ownership``: trials of parents that have died
``_storages``  where a study is kept, and how a worker gets at a trial there
``_studies``   all that Optuna does; ``_by_number``: random values that a seed repeats
``_spaces``    texts such as ``batch~32,64,128``; ``_configured``: trials of ``synk train``

It needs the extra: ``pip install "synkhronos[search]"``. A trial's process imports no Optuna.
"""

from synkhronos._public import belong_to as _belong_to
from synkhronos.search._search import search
from synkhronos.search._studies import open_study
from synkhronos.search._trial import Trial

__all__ = ["Trial", "open_study", "search"]

_belong_to(__name__, [globals()[name] for name in __all__])
