"""Elementary functions as straight-line vector code: no library, no branch, no optimiser.

Largest errors in ulp of the result, measured on two million arguments (bit patterns drawn at
random, and the regions where the method changes); the tests hold them on fewer:

    float32   log: 0.8; exp: 1.1; tanh: 1.4; log1p: 1.5; expm1: 1.7; log1p_unit: 1.9; erf: 5;
              exp_within: 1.1; exp_shifted: 3 + 1.5 |x|; pow: 0.501; others: 0.5 (made in float64);
              near_sigmoid 2^-12 of the result
    float64   exp, log, erf: 1; tanh: 1.4; asin, acos, atan, sinh, acosh: 3; tan: 4; others: 2;
              pow: |b · log a| + 2

for the whole range of arguments but sin, cos and tan: those are meaningless beyond |x| = 1e8.

Coefficients are Chebyshev fits made at 40 digits; the reductions are those of Cody & Waite,
"Software Manual for the Elementary Functions" (1980).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from tunefarm.compiler.codegen.math.error_function import erf
from tunefarm.compiler.codegen.math.exponential import (
    cosh,
    exp,
    exp_shifted,
    exp_within,
    expm1,
    near_sigmoid,
    sinh,
    tanh,
)
from tunefarm.compiler.codegen.math.logarithm import (
    acosh,
    asinh,
    atanh,
    log,
    log1p,
    log1p_unit,
    log2,
)
from tunefarm.compiler.codegen.math.powers import power, power_in_float64
from tunefarm.compiler.codegen.math.rounding import ceil, floor, fmod, nearest, trunc
from tunefarm.compiler.codegen.math.trigonometric import (
    acos,
    asin,
    atan,
    cos,
    cos_to_round,
    sin,
    sin_to_round,
    tan,
)
from tunefarm.compiler.codegen.math.writer import Fresh, Writer
from tunefarm.compiler.errors import BuildError


def emit_math(
    name: str,
    lanes: int,
    dtype: str,
    args: Sequence[str],
    fresh: Fresh,
    scalef: bool = False,
    fused: bool = True,
    tables: Collection[str] = (),
) -> tuple[list[str], str, set[str]]:
    """Instructions that compute a function, the result's name, and the declarations they need.

    ``args`` are SSA names or literals of ``lanes`` lanes of float32 or float64. ``scalef`` allows
    AVX-512's multiplication by a power of two, ``tables`` names what it may look up in registers
    ("exp", "erf"), ``fused`` allows the fused multiply-add and SSE4.1's rounding; without it errors
    grow by 0.6 ulp at most, and sin, cos and tan end at |x| = 1e6.
    """
    if name not in _FUNCTIONS or dtype not in ("float32", "float64"):
        raise BuildError(f"function {name} of {dtype} has no code")
    w = Writer(lanes, dtype, fresh, scalef, fused, tables)
    if not w.single:
        return w.lines, _FUNCTIONS[name](w, *args), w.declares
    if name in _OWN_FLOAT32:
        return w.lines, _OWN_FLOAT32[name](w, *args), w.declares
    wide, function = w.wide(), _TO_ROUND.get(name, _FUNCTIONS[name])
    result = function(wide, *(w.convert(a, "float64") for a in args))
    return w.lines, wide.convert(result, "float32"), w.declares


_FUNCTIONS: dict[str, Callable[..., str]] = {
    "exp": exp, "exp_shifted": exp_shifted, "exp_within": exp_within,
    "log": log, "log2": log2, "log1p": log1p, "log1p_unit": log1p_unit,
    "expm1": expm1, "tanh": tanh, "erf": erf,
    "sin": sin, "cos": cos, "tan": tan, "asin": asin, "acos": acos,
    "atan": atan, "sinh": sinh, "cosh": cosh, "asinh": asinh, "acosh": acosh,
    "atanh": atanh, "pow": power, "fmod": fmod, "round": nearest, "floor": floor, "ceil": ceil,
    "trunc": trunc, "near_sigmoid": near_sigmoid,
}  # fmt: skip
# Of float32, without going through float64.
_OWN_FLOAT32: dict[str, Callable[..., str]] = {
    "exp": exp, "exp_shifted": exp_shifted, "exp_within": exp_within,
    "log": log, "log1p": log1p, "log1p_unit": log1p_unit,
    "expm1": expm1, "tanh": tanh, "erf": erf, "pow": power_in_float64, "round": nearest,
    "floor": floor, "ceil": ceil, "trunc": trunc, "near_sigmoid": near_sigmoid,
}  # fmt: skip
# In float64, with the digits that are left when the result is rounded to float32.
_TO_ROUND: dict[str, Callable[..., str]] = {"sin": sin_to_round, "cos": cos_to_round}
