"""The fast functions of `_fast` as numba code, inlined into the loops that call them."""

from __future__ import annotations

from typing import Any

import numba
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic
from pytensor.link.numba.dispatch.basic import register_funcify_and_cache_key

from synkhronos.pymc._fast import FastExp, FastLog, FastLog1p, FastSigmoid, FastSoftplus

_I64, _F64 = ir.IntType(64), ir.DoubleType()


@intrinsic  # type: ignore[untyped-decorator]
def _bits(typingctx: Any, x: Any) -> Any:
    """The bits of a float64 as an int64."""
    del typingctx, x
    return types.int64(types.float64), lambda _, b, __, args: b.bitcast(args[0], _I64)


@intrinsic  # type: ignore[untyped-decorator]
def _float(typingctx: Any, i: Any) -> Any:
    """The float64 of these bits."""
    del typingctx, i
    return types.float64(types.int64), lambda _, b, __, args: b.bitcast(args[0], _F64)


@intrinsic  # type: ignore[untyped-decorator]
def _choose(typingctx: Any, condition: Any, a: Any, b: Any) -> Any:
    """A select instruction, which the compiler does not turn into a branch."""
    del typingctx, condition, b

    def generate(_: Any, builder: Any, __: Any, args: Any) -> Any:
        return builder.select(args[0], args[1], args[2])

    return a(types.boolean, a, a), generate


_inline = numba.njit(
    fastmath={"contract"},
    error_model="numpy",
    forceinline=True,
    no_cpython_wrapper=True,
    no_cfunc_wrapper=True,
)

_LOG2E = 1.4426950408889634
_LN2_HI = 6.93147180369123816490e-01  # 33 bits, so that k * _LN2_HI is exact
_LN2_LO = 1.90821492927058770002e-10
_SHIFTER = 6755399441055744.0  # 1.5 * 2**52: adding it leaves a rounded integer in the low bits
_SHIFTER_BITS = 0x4338000000000000
_ONE_BITS = 1023 << 52


@_inline
def exp(x):  # type: ignore[no-untyped-def]
    """2**k * p(r), x = k log(2) + r; scaled in two steps, so that subnormal results are right."""
    y = _choose(x > 710.0, 710.0, x)
    y = _choose(y < -746.0, -746.0, y)
    shifted = y * _LOG2E + _SHIFTER
    k = shifted - _SHIFTER
    r = (y - k * _LN2_HI) - k * _LN2_LO
    p = 1.6059043836821613e-10  # 1 / 13!
    p = p * r + 2.08767569878681e-09
    p = p * r + 2.505210838544172e-08
    p = p * r + 2.755731922398589e-07
    p = p * r + 2.7557319223985893e-06
    p = p * r + 2.48015873015873e-05
    p = p * r + 0.0001984126984126984
    p = p * r + 0.001388888888888889
    p = p * r + 0.008333333333333333
    p = p * r + 0.041666666666666664
    p = p * r + 0.16666666666666666
    p = p * r + 0.5
    p = (p * r) * r + r + 1.0
    n = _bits(shifted) - _SHIFTER_BITS
    half = n >> 1
    low = _float((half << 52) + _ONE_BITS)
    high = _float(((n - half) << 52) + _ONE_BITS)
    return p * low * high


@_inline
def _atanh_series(s):  # type: ignore[no-untyped-def]
    """(2 atanh(s) - 2 s) / s for |s| <= 3 - 2 sqrt(2)."""
    z = s * s
    p = 0.09523809523809523  # 2 / 21
    p = p * z + 0.10526315789473684
    p = p * z + 0.11764705882352941
    p = p * z + 0.13333333333333333
    p = p * z + 0.15384615384615385
    p = p * z + 0.18181818181818182
    p = p * z + 0.2222222222222222
    p = p * z + 0.2857142857142857
    p = p * z + 0.4
    p = p * z + 0.6666666666666666
    return p * z


@_inline
def log(x):  # type: ignore[no-untyped-def]
    """The logarithm: x is 2**k m with m in [sqrt(1/2), sqrt(2)), and both parts are added."""
    tiny = x < 2.2250738585072014e-308
    y = _choose(tiny, x * 18014398509481984.0, x)
    raised = _bits(y) + (_ONE_BITS - 0x3FE6A09E667F3BCD)
    n = (raised >> 52) - 1023
    m = _float((raised & 0x000FFFFFFFFFFFFF) + 0x3FE6A09E667F3BCD)
    k = _float(n + _SHIFTER_BITS) - _SHIFTER
    k = _choose(tiny, k - 54.0, k)
    f = m - 1.0
    s = f / (2.0 + f)
    h = 0.5 * f * f
    found = k * _LN2_HI - ((h - (s * (h + _atanh_series(s)) + k * _LN2_LO)) - f)
    found = _choose(x == float("inf"), x, found)
    found = _choose(x == 0.0, -float("inf"), found)
    return _choose(x >= 0.0, found, float("nan"))


@_inline
def log1p(x):  # type: ignore[no-untyped-def]
    """log(1 + x), corrected for the rounding error of 1 + x."""
    u = 1.0 + x
    lost = _choose(u > 2.0, 1.0 - (u - x), x - (u - 1.0))
    found = log(u) + lost / u
    found = _choose(x == float("inf"), x, found)
    return _choose(u == 0.0, -float("inf"), found)


@_inline
def _log1p_of_fraction(y):  # type: ignore[no-untyped-def]
    """log(1 + y) for y in [0, 1], with one division."""
    large = y > 0.41421356237309503
    f = _choose(large, 0.5 * (y - 1.0), y)  # 1 + y = 2 (1 + f) or 1 + f
    s = f / (2.0 + f)
    h = 0.5 * f * f
    base = f - (h - s * (h + _atanh_series(s)))
    return _choose(large, 0.6931471805599453 + base, base)


@_inline
def sigmoid(x):  # type: ignore[no-untyped-def]
    """Computed from exp(-|x|), which `softplus` of the same x needs too."""
    y = exp(-abs(x))
    return _choose(x >= 0.0, 1.0, y) / (1.0 + y)


@_inline
def softplus(x):  # type: ignore[no-untyped-def]
    """max(x, 0) + log(1 + exp(-|x|))."""
    return _choose(x > 0.0, x, 0.0) + _log1p_of_fraction(exp(-abs(x)))


_CODE = {FastExp: exp, FastLog: log, FastLog1p: log1p, FastSigmoid: sigmoid, FastSoftplus: softplus}
_VERSION = 2  # part of the key of cached machine code: change it whenever the code changes


def _register(kind: type, code: Any) -> None:
    @register_funcify_and_cache_key(kind)  # type: ignore[untyped-decorator]
    def _funcify(op: Any, node: Any = None, **kwargs: Any) -> tuple[Any, str]:
        return code, f"synkhronos-{kind.__name__}-{_VERSION}"


for _kind, _function in _CODE.items():
    _register(_kind, _function)
