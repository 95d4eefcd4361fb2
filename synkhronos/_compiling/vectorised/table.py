"""Which scalar operations of PyTensor have vectorised code: the module and the function."""

from __future__ import annotations

from typing import Any

from pytensor.scalar import basic as ps
from pytensor.scalar import math

from synkhronos._compiling.vectorised.tails import LogNdtr, Mills

psm: Any = math
TABLE: dict[type, tuple[str, str]] = {
    ps.Exp: ("exponentials", "exp"),
    ps.Exp2: ("exponentials", "exp2"),
    ps.Expm1: ("exponentials", "expm1"),
    psm.Sigmoid: ("exponentials", "sigmoid"),
    psm.Softplus: ("exponentials", "softplus"),
    psm.Log1mexp: ("exponentials", "log1mexp"),
    ps.Tanh: ("exponentials", "tanh"),
    ps.Sinh: ("exponentials", "sinh"),
    ps.Cosh: ("exponentials", "cosh"),
    ps.ArcTan: ("angles", "atan"),
    ps.Sin: ("angles", "sin"),
    ps.Cos: ("angles", "cos"),
    ps.Log: ("logarithms", "log"),
    ps.Log1p: ("logarithms", "log1p"),
    ps.Log2: ("powers", "log2"),
    ps.Log10: ("powers", "log10"),
    ps.Pow: ("powers", "power"),
    psm.Erf: ("normal", "erf"),
    psm.Erfc: ("normal", "erfc"),
    psm.Erfcx: ("normal", "erfcx"),
    psm.Erfinv: ("quantiles", "erfinv"),
    psm.Erfcinv: ("quantiles", "erfcinv"),
    LogNdtr: ("normal", "log_ndtr"),
    Mills: ("normal", "mills"),
    psm.GammaLn: ("gammas", "gammaln"),
    psm.Psi: ("gammas", "digamma"),
    psm.TriGamma: ("gammas", "trigamma"),
}
# Long functions, of which libm's choose a short branch for most numbers
BRANCHING = (ps.Pow, psm.Erf, psm.Erfc)
FLOATS = ("float32", "float64")


def has_code(operation: Any, dtype: str) -> bool:
    """Whether there is vectorised code for a scalar operation with results of this dtype."""
    return type(operation) in TABLE and dtype in FLOATS
