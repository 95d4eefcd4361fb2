"""All public names of `synkhronos`; the package imports this module when one of them is first used.

So `import synkhronos` alone, and the help of the command line, import neither numpy nor PyTensor.
"""

from synkhronos._api.advice import Advice as Advice
from synkhronos._api.advice import advise as advise
from synkhronos._api.collectives import all_gather as all_gather
from synkhronos._api.collectives import all_reduce as all_reduce
from synkhronos._api.collectives import broadcast as broadcast
from synkhronos._api.collectives import gather as gather
from synkhronos._api.collectives import get_lengths as get_lengths
from synkhronos._api.collectives import get_shapes as get_shapes
from synkhronos._api.collectives import get_value as get_value
from synkhronos._api.collectives import permute as permute
from synkhronos._api.collectives import reduce as reduce
from synkhronos._api.collectives import reduce_scatter as reduce_scatter
from synkhronos._api.collectives import scatter as scatter
from synkhronos._api.collectives import set_value as set_value
from synkhronos._api.consistency import check_consistency as check_consistency
from synkhronos._api.consistency import sync as sync
from synkhronos._api.data import Data as Data
from synkhronos._api.function import Function as Function
from synkhronos._api.function import function as function
from synkhronos._api.make_data import data as data
from synkhronos._api.membership import current_group as current_group
from synkhronos._api.membership import part_lengths as part_lengths
from synkhronos._api.membership import rank as rank
from synkhronos._api.membership import size as size
from synkhronos._api.report import Report as Report
from synkhronos._engine.group import Group as Group
from synkhronos._engine.group import close as close
from synkhronos._engine.group import fork as fork
from synkhronos._engine.shipping import distribute as distribute
from synkhronos._engine.trace import Trace as Trace
from synkhronos._errors import BackendMissing as BackendMissing
from synkhronos._errors import BatchError as BatchError
from synkhronos._errors import BatchWarning as BatchWarning
from synkhronos._errors import CheckpointError as CheckpointError
from synkhronos._errors import CheckpointWarning as CheckpointWarning
from synkhronos._errors import DeprecatedWarning as DeprecatedWarning
from synkhronos._errors import GroupClosed as GroupClosed
from synkhronos._errors import GroupError as GroupError
from synkhronos._errors import GroupTimeout as GroupTimeout
from synkhronos._errors import InputError as InputError
from synkhronos._errors import InputTypeError as InputTypeError
from synkhronos._errors import LocalUpdateWarning as LocalUpdateWarning
from synkhronos._errors import NonFinite as NonFinite
from synkhronos._errors import NotForked as NotForked
from synkhronos._errors import ReductionWarning as ReductionWarning
from synkhronos._errors import ReplicaWarning as ReplicaWarning
from synkhronos._errors import SourceError as SourceError
from synkhronos._errors import StartFailed as StartFailed
from synkhronos._errors import StateTorn as StateTorn
from synkhronos._errors import SynkhronosError as SynkhronosError
from synkhronos._errors import SynkhronosWarning as SynkhronosWarning
from synkhronos._errors import UnusedWarning as UnusedWarning
from synkhronos._errors import VersionWarning as VersionWarning
from synkhronos._errors import WorkerDied as WorkerDied
from synkhronos._errors import WorkerError as WorkerError
from synkhronos._host.devices import get_n_gpu as get_n_gpu
from synkhronos._public import belong_to as _belong_to

_belong_to("synkhronos", [value for name, value in globals().items() if name[0] != "_"])
