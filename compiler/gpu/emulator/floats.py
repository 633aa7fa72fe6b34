"""Instructions on floats, and those that are spelled the same for whole numbers and floats.

Values of 16 bits are computed in float32 and rounded once; a fused multiply-add in float64.
Approximate functions (``.approx``) are the true value, rounded: a GPU's differ within the errors
that the manual states. Source of the meanings: NVIDIA, "PTX ISA", floating-point instructions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from tunefarm.compiler.gpu.emulator.integers import INTEGER_ARITHMETIC, build_mul
from tunefarm.compiler.gpu.emulator.kinds import FLOATS, KINDS, Kind, Values
from tunefarm.compiler.gpu.emulator.operands import (
    Builder,
    Scope,
    Step,
    kind_of,
    only,
    operands,
    pure,
    reads,
    unknown,
    writes,
)
from tunefarm.compiler.gpu.emulator.parse import Instruction, Vector
from tunefarm.compiler.gpu.emulator.wave import Group, Wave

Function = Callable[..., Values]
SMALLEST_NORMAL = np.finfo(np.float32).tiny


def flushed(values: Values) -> Values:
    """The values with subnormal numbers as zeros of their sign (``.ftz``)."""
    small = np.abs(values) < SMALLEST_NORMAL
    return np.where(small, np.copysign(values.dtype.type(0), values), values)


def flushing(function: Function) -> Function:
    """The function of flushed arguments, its result flushed."""
    return lambda *values: flushed(function(*map(flushed, values)))


def fused(a: Values, b: Values, c: Values) -> Values:
    """a · b + c, rounded once (in float64, from which 16 and 32 bits are rounded)."""
    if a.dtype == np.float64:
        return _fused_doubles(a, b, c)
    wide: Values = a.astype(np.float64) * b + c
    return wide


def _fused_doubles(a: Values, b: Values, c: Values) -> Values:
    """a · b + c of doubles: the product as a sum of two, by Dekker's splitting."""
    product = a * b
    (a1, a0), (b1, b0) = _halves(a), _halves(b)
    error = ((a1 * b1 - product) + a1 * b0 + a0 * b1) + a0 * b0
    total = product + c
    back = total - product
    rest = (product - (total - back)) + (c - back)
    result: Values = np.where(np.isfinite(error), total + (rest + error), total)
    return result


def _halves(values: Values) -> tuple[Values, Values]:
    """The values as sums of two of 26 bits."""
    scaled = values * 134217729.0  # 2²⁷ + 1
    high = scaled - (scaled - values)
    return high, values - high


# --- arithmetic ---------------------------------------------------------------------------------


def _minimum(a: Values, b: Values) -> Values:
    return np.fmin(a, b)


def _maximum(a: Values, b: Values) -> Values:
    return np.fmax(a, b)


_FLOAT_ARITHMETIC: Mapping[str, Function] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "min": _minimum,
    "max": _maximum,
    "neg": np.negative,
    "abs": np.absolute,
    "fma": fused,
}
_ROUNDED = ("rn", "ftz")
_MODIFIERS: Mapping[str, tuple[str, ...]] = {
    "add": _ROUNDED,
    "sub": _ROUNDED,
    "mul": _ROUNDED,
    "fma": _ROUNDED,
    "div": ("rn", "full", "approx", "ftz"),
    "min": ("ftz", "NaN"),
    "max": ("ftz", "NaN"),
    "neg": ("ftz",),
    "abs": ("ftz",),
}


def build_arithmetic(i: Instruction, scope: Scope) -> Step:
    """``add|sub|mul|…`` of any type."""
    kind = kind_of(i, i.modifiers[-1])
    words = i.modifiers[:-1]
    d, *sources = i.operands
    kinds = [kind] * len(sources)
    if words[-1:] == ("f32",) and i.opcode in ("add", "sub", "fma"):  # of narrower floats
        words, kinds[-1] = words[:-1], KINDS["f32"]
    if kind.family == "float":
        only(i, words, _MODIFIERS[i.opcode])
        function = _FLOAT_ARITHMETIC[i.opcode]
        if "NaN" in words:
            function = {"min": np.minimum, "max": np.maximum}[i.opcode]
        if "ftz" in words:
            function = flushing(function)
    else:
        only(i, words, ())
        if i.opcode not in INTEGER_ARITHMETIC:
            unknown(i)
        function = INTEGER_ARITHMETIC[i.opcode]
    if len(sources) != {"neg": 1, "abs": 1, "fma": 3}.get(i.opcode, 2):
        unknown(i, f"it has {len(i.operands)} operands")
    return pure(i, scope, function, list(zip(sources, kinds, strict=True)), (d, kinds[-1]))


def _mul(i: Instruction, scope: Scope) -> Step:
    """``mul`` of floats, or ``mul.lo|hi|wide`` of whole numbers."""
    build = build_arithmetic if kind_of(i, i.modifiers[-1]) in FLOATS else build_mul
    return build(i, scope)


# --- functions ----------------------------------------------------------------------------------


def _in_double(function: Function) -> Function:
    """The function computed in float64, in the type of its argument."""
    return lambda x: function(x.astype(np.float64)).astype(x.dtype)


_FUNCTIONS: Mapping[str, tuple[Function, tuple[str, ...]]] = {
    "sqrt": (np.sqrt, ("rn", "approx", "ftz")),
    "rsqrt": (_in_double(lambda x: 1 / np.sqrt(x)), ("approx", "ftz")),
    "rcp": (lambda x: x.dtype.type(1) / x, ("rn", "approx", "ftz")),
    "ex2": (_in_double(np.exp2), ("approx", "ftz")),
    "lg2": (_in_double(np.log2), ("approx", "ftz")),
    "tanh": (_in_double(np.tanh), ("approx",)),
}


def build_function(i: Instruction, scope: Scope) -> Step:
    """``sqrt|ex2|…`` of one float."""
    function, allowed = _FUNCTIONS[i.opcode]
    only(i, i.modifiers[:-1], allowed)
    kind = kind_of(i, i.modifiers[-1], FLOATS)
    d, a = operands(i, 2)
    if "ftz" in i.modifiers:
        function = flushing(function)
    return pure(i, scope, function, [(a, kind)], (d, kind))


def _copysign(i: Instruction, scope: Scope) -> Step:
    """``copysign.type d, a, b``: b with the sign of a."""
    only(i, i.modifiers[:-1], ())
    kind = kind_of(i, i.modifiers[-1], FLOATS)
    d, a, b = operands(i, 3)
    return pure(i, scope, lambda x, y: np.copysign(y, x), [(a, kind), (b, kind)], (d, kind))


# --- comparisons and choices --------------------------------------------------------------------

_ORDERED: Mapping[str, Function] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "lo": np.less,
    "ls": np.less_equal,
    "hi": np.greater,
    "hs": np.greater_equal,
}
_COMBINED: Mapping[str, Function] = {
    "and": np.logical_and,
    "or": np.logical_or,
    "xor": np.logical_xor,
}


def _comparison(i: Instruction, name: str, kind: Kind) -> Function:
    """The test of that name: with NaN, ordered ones are false and unordered ones (``ltu``) true."""
    if kind.family != "float":
        if name not in _ORDERED:
            unknown(i)
        return _ORDERED[name]
    if name == "num":
        return lambda a, b: ~(np.isnan(a) | np.isnan(b))
    if name == "nan":
        return lambda a, b: np.isnan(a) | np.isnan(b)
    if name == "ne":
        return lambda a, b: (a < b) | (a > b)
    if name in ("equ", "neu", "ltu", "leu", "gtu", "geu"):
        test = _ORDERED[name[:2]]
        return lambda a, b: test(a, b) | np.isnan(a) | np.isnan(b)
    if name not in ("eq", "lt", "le", "gt", "ge"):
        unknown(i)
    return _ORDERED[name]


def _setp(i: Instruction, scope: Scope) -> Step:
    """``setp.cmp{.and|or|xor}{.ftz}.type p, a, b{, c}``; of two floats, ``p|q``."""
    kind = kind_of(i, i.modifiers[-1])
    words = [m for m in i.modifiers[:-1] if m != "ftz"]
    flush = len(words) != len(i.modifiers) - 1
    if not 1 <= len(words) <= 2 or (len(words) == 2 and words[1] not in _COMBINED):
        unknown(i)
    test = _comparison(i, words[0], kind)
    p, a, b, *more = operands(i, 3 + len(words) - 1)
    sources = [(a, kind), (b, kind), *((c, KINDS["pred"]) for c in more)]

    def function(x: Values, y: Values, *others: Values) -> Values:
        result = test(flushed(x), flushed(y)) if flush else test(x, y)
        return _COMBINED[words[1]](result, *others) if others else result

    if not isinstance(p, Vector):
        return pure(i, scope, function, sources, (p, KINDS["pred"]))
    read = [reads(i, scope, operand, each) for operand, each in sources]
    write = [writes(i, scope, part, KINDS["pred"]) for part in p.parts]
    if len(write) != 2 or not kind.name.endswith("x2"):
        unknown(i)

    def step(wave: Wave, group: Group) -> None:
        result = function(*[each(wave) for each in read])
        for number, set_one in enumerate(write):
            set_one(wave, group, np.ascontiguousarray(result[:, number]))

    return step


def _selp(i: Instruction, scope: Scope) -> Step:
    """``selp.type d, a, b, p``: a where p holds."""
    only(i, i.modifiers[:-1], ())
    named = kind_of(i, i.modifiers[-1])
    kind = named if named.bits == 1 else KINDS[f"b{named.bits}"]
    d, a, b, p = operands(i, 4)

    def function(x: Values, y: Values, condition: Values) -> Values:
        return np.where(condition, x, y)

    return pure(i, scope, function, [(a, kind), (b, kind), (p, KINDS["pred"])], (d, kind))


BUILDERS: Mapping[str, Builder] = {
    **dict.fromkeys(("add", "sub", "div", "min", "max", "neg", "abs", "fma"), build_arithmetic),
    "mul": _mul,
    **dict.fromkeys(_FUNCTIONS, build_function),
    "copysign": _copysign,
    "setp": _setp,
    "selp": _selp,
}
