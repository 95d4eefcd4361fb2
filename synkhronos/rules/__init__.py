"""Rules by which members train apart, and meet seldom or never.

Pass one to `synkhronos.extensions.make_train_function` as ``rule=``. Between meetings each member
trains on values of its own.
"""

from synkhronos._public import belong_to as _belong_to
from synkhronos.rules._base import FreeRule, RoundRule, Rule, TurnRule
from synkhronos.rules.averages import Average, DiLoCo, SlowMo
from synkhronos.rules.downpour import Downpour
from synkhronos.rules.elastic import EASGD
from synkhronos.rules.gem import GEM
from synkhronos.rules.gossip import GoSGD
from synkhronos.rules.hogwild import Hogwild
from synkhronos.rules.nodes import Nodes
from synkhronos.rules.swap import Swap

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
