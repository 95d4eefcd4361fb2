"""Rules by which members train apart, and meet seldom or never.

Pass one to `synkhronos.extensions.make_train_function` as ``rule=``. Between meetings each member
trains on values of its own.
"""

from synkhronos._public import belong_to as _belong_to
from synkhronos.rules._base import FreeRule as FreeRule
from synkhronos.rules._base import RoundRule as RoundRule
from synkhronos.rules._base import Rule as Rule
from synkhronos.rules._base import TurnRule as TurnRule
from synkhronos.rules.averages import Average as Average
from synkhronos.rules.averages import DiLoCo as DiLoCo
from synkhronos.rules.averages import SlowMo as SlowMo
from synkhronos.rules.downpour import Downpour as Downpour
from synkhronos.rules.elastic import EASGD as EASGD
from synkhronos.rules.gem import GEM as GEM
from synkhronos.rules.gossip import GoSGD as GoSGD
from synkhronos.rules.hogwild import Hogwild as Hogwild
from synkhronos.rules.nodes import Nodes as Nodes
from synkhronos.rules.swap import Swap as Swap

__all__ = [
    "EASGD",
    "GEM",
    "Average",
    "DiLoCo",
    "Downpour",
    "FreeRule",
    "GoSGD",
    "Hogwild",
    "Nodes",
    "RoundRule",
    "Rule",
    "SlowMo",
    "Swap",
    "TurnRule",
]

_belong_to(__name__, [globals()[name] for name in __all__])
