"""Instructions on whole numbers, bits and predicates.

Source of their meanings: NVIDIA, "PTX ISA", integer, logic and shift instructions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from tunefarm.compiler.gpu.emulator.kinds import INTEGERS, KINDS, UNSIGNED, Kind, Values
from tunefarm.compiler.gpu.emulator.operands import (
    Builder,
    Scope,
    Step,
    kind_of,
    only,
    operands,
    pure,
    unknown,
)
from tunefarm.compiler.gpu.emulator.parse import Instruction

Function = Callable[..., Values]


def two(function: Function) -> Builder:
    """``op.type d, a, b``, of one type throughout."""

    def build(i: Instruction, scope: Scope) -> Step:
        only(i, i.modifiers[:-1], ())
        kind = kind_of(i, i.modifiers[-1])
        d, a, b = operands(i, 3)
        return pure(i, scope, function, [(a, kind), (b, kind)], (d, kind))

    return build


def one(function: Function) -> Builder:
    """``op.type d, a``."""

    def build(i: Instruction, scope: Scope) -> Step:
        only(i, i.modifiers[:-1], ())
        kind = kind_of(i, i.modifiers[-1])
        d, a = operands(i, 2)
        return pure(i, scope, function, [(a, kind)], (d, kind))

    return build


# --- arithmetic ---------------------------------------------------------------------------------


def quotient(a: Values, b: Values) -> Values:
    """a / b, rounded towards zero; nothing that is defined for b = 0."""
    rest: Values = remainder(a, b)
    return (a - rest) // np.where(b == 0, b.dtype.type(1), b)


def remainder(a: Values, b: Values) -> Values:
    """The remainder of that quotient, of the sign of a."""
    result: Values = np.fmod(a, np.where(b == 0, b.dtype.type(1), b))
    return result


def upper_half(a: Values, b: Values) -> Values:
    """The upper half of the bits of the product."""
    bits = 8 * a.dtype.itemsize
    if bits < 64:
        wide = np.int64 if a.dtype.kind == "i" else np.uint64
        return ((a.astype(wide) * b.astype(wide)) >> wide(bits)).astype(a.dtype)
    low = np.uint64(0xFFFFFFFF)
    half = np.uint64(32)
    x, y = a.view(np.uint64), b.view(np.uint64)
    x0, x1, y0, y1 = x & low, x >> half, y & low, y >> half
    middle = x1 * y0 + ((x0 * y0) >> half)
    other = x0 * y1 + (middle & low)
    high: Values = x1 * y1 + (middle >> half) + (other >> half)
    if a.dtype.kind == "i":  # of two's complements
        high = high - np.where(a < 0, y, np.uint64(0)) - np.where(b < 0, x, np.uint64(0))
    return high.view(a.dtype)


def build_mul(i: Instruction, scope: Scope) -> Step:
    """``mul.lo|hi|wide.type``."""
    form, kind = _form(i)
    d, a, b = operands(i, 3)
    function, result = _product(form, kind)
    return pure(i, scope, function, [(a, kind), (b, kind)], (d, result))


def build_mad(i: Instruction, scope: Scope) -> Step:
    """``mad.lo|hi|wide.type``: a · b + c."""
    form, kind = _form(i)
    d, a, b, c = operands(i, 4)
    product, result = _product(form, kind)

    def function(x: Values, y: Values, z: Values) -> Values:
        return product(x, y) + z

    return pure(i, scope, function, [(a, kind), (b, kind), (c, result)], (d, result))


def _form(i: Instruction) -> tuple[str, Kind]:
    if len(i.modifiers) != 2 or i.modifiers[0] not in ("lo", "hi", "wide"):
        unknown(i)
    kind = kind_of(i, i.modifiers[1], INTEGERS)
    if i.modifiers[0] == "wide" and kind.bits == 64:
        unknown(i)
    return i.modifiers[0], kind


def _product(form: str, kind: Kind) -> tuple[Function, Kind]:
    if form == "lo":
        return np.multiply, kind
    if form == "hi":
        return upper_half, kind
    wide = KINDS[f"{kind.name[0]}{2 * kind.bits}"]
    dtype = np.dtype(f"{'int' if kind.family == 'signed' else 'uint'}{wide.bits}")
    return lambda a, b: a.astype(dtype) * b.astype(dtype), wide


# --- bits ---------------------------------------------------------------------------------------


def _shift(i: Instruction, scope: Scope) -> Step:
    """``shl|shr.type d, a, b``: bits beyond the width are zeros, or the sign."""
    only(i, i.modifiers[:-1], ())
    kind = kind_of(i, i.modifiers[-1], INTEGERS)
    d, a, b = operands(i, 3)
    function = np.left_shift if i.opcode == "shl" else np.right_shift

    def shifted(values: Values, by: Values) -> Values:
        count = np.minimum(by, np.uint32(kind.bits)).astype(values.dtype)
        moved: Values = function(values, count)
        return moved

    return pure(i, scope, shifted, [(a, kind), (b, KINDS["u32"])], (d, kind))


def _funnel(i: Instruction, scope: Scope) -> Step:
    """``shf.l|r.wrap|clamp.b32 d, a, b, c``: 32 bits out of b:a."""
    if i.modifiers[-1:] != ("b32",) or len(i.modifiers) != 3:
        unknown(i)
    way, mode = i.modifiers[:2]
    if way not in ("l", "r") or mode not in ("wrap", "clamp"):
        unknown(i)
    kind = KINDS["b32"]
    d, a, b, c = operands(i, 4)

    def function(low: Values, high: Values, by: Values) -> Values:
        count = by & np.uint32(31) if mode == "wrap" else np.minimum(by, np.uint32(32))
        both = (high.astype(np.uint64) << np.uint64(32)) | low
        wide = count.astype(np.uint64)
        moved = (both << wide) >> np.uint64(32) if way == "l" else both >> wide
        return moved.astype(np.uint32)

    return pure(i, scope, function, [(a, kind), (b, kind), (c, kind)], (d, kind))


def _lop3(i: Instruction, scope: Scope) -> Step:
    """``lop3.b32 d, a, b, c, table``: any function of three bits."""
    only(i, i.modifiers, ("b32",))
    kind = KINDS["b32"]
    d, a, b, c, table = operands(i, 5)

    def function(x: Values, y: Values, z: Values, lut: Values) -> Values:
        result = np.zeros(1, np.uint32)
        for number in range(8):
            if int(lut[0]) >> number & 1:
                terms = [v if number & bit else ~v for v, bit in ((x, 4), (y, 2), (z, 1))]
                result = result | (terms[0] & terms[1] & terms[2])
        return result

    return pure(i, scope, function, [(v, kind) for v in (a, b, c, table)], (d, kind))


def _prmt(i: Instruction, scope: Scope) -> Step:
    """``prmt.b32 d, a, b, c``: each byte one of the eight of b:a, or its sign."""
    only(i, i.modifiers, ("b32",))
    kind = KINDS["b32"]
    d, a, b, c = operands(i, 4)

    def function(x: Values, y: Values, selector: Values) -> Values:
        both = (y.astype(np.uint64) << np.uint64(32)) | x
        result = np.zeros(1, np.uint32)
        for byte in range(4):
            choice = (selector >> np.uint32(4 * byte)) & np.uint32(15)
            chosen = (both >> ((choice & np.uint32(7)) << np.uint32(3)).astype(np.uint64)).astype(
                np.uint8
            )
            sign = np.where(chosen >> np.uint8(7), np.uint8(255), np.uint8(0))
            chosen = np.where(choice & np.uint32(8), sign, chosen)
            result = result | (chosen.astype(np.uint32) << np.uint32(8 * byte))
        return result

    return pure(i, scope, function, [(v, kind) for v in (a, b, c)], (d, kind))


def _bfe(i: Instruction, scope: Scope) -> Step:
    """``bfe.type d, a, b, c``: c bits of a from number b on, with zeros or the sign above."""
    only(i, i.modifiers[:-1], ())
    kind = kind_of(i, i.modifiers[-1], [KINDS[n] for n in ("u32", "s32", "u64", "s64")])
    d, a, b, c = operands(i, 4)
    bits = kind.bits

    def function(values: Values, begin: Values, length: Values) -> Values:
        dtype = values.dtype
        unsigned = values.view(UNSIGNED[bits])
        first = np.minimum(begin & np.uint32(255), np.uint32(bits))
        count = np.minimum(length & np.uint32(255), np.uint32(bits))
        last = np.minimum(first + count, np.uint32(bits))
        up = (np.uint32(bits) - last).astype(unsigned.dtype)
        down = (np.uint32(bits) - (last - first)).astype(unsigned.dtype)
        moved = (unsigned << up).view(dtype) >> down.view(UNSIGNED[bits]).astype(dtype)
        taken: Values = np.where(count == 0, dtype.type(0), moved)
        return taken

    small = KINDS["u32"]
    return pure(i, scope, function, [(a, kind), (b, small), (c, small)], (d, kind))


def _count(i: Instruction, scope: Scope) -> Step:
    """``clz|popc.b32|b64 d, a``: zeros before the first one; how many ones."""
    only(i, i.modifiers[:-1], ())
    kind = kind_of(i, i.modifiers[-1], [KINDS["b32"], KINDS["b64"]])
    d, a = operands(i, 2)

    def function(values: Values) -> Values:
        if i.opcode == "popc":
            return np.bitwise_count(values).astype(np.uint32)
        filled = values
        for step in (1, 2, 4, 8, 16, 32)[: kind.bits.bit_length() - 1]:
            filled = filled | (filled >> filled.dtype.type(step))
        ones: Values = np.bitwise_count(filled).astype(np.uint32)
        return np.uint32(kind.bits) - ones

    return pure(i, scope, function, [(a, kind)], (d, KINDS["u32"]))


INTEGER_ARITHMETIC: Mapping[str, Function] = {
    "add": np.add,
    "sub": np.subtract,
    "min": np.minimum,
    "max": np.maximum,
    "div": quotient,
    "neg": np.negative,
    "abs": np.absolute,
}
BUILDERS: Mapping[str, Builder] = {
    "mad": build_mad,
    "rem": two(remainder),
    "and": two(np.bitwise_and),
    "or": two(np.bitwise_or),
    "xor": two(np.bitwise_xor),
    "not": one(np.invert),
    "shl": _shift,
    "shr": _shift,
    "shf": _funnel,
    "lop3": _lop3,
    "prmt": _prmt,
    "bfe": _bfe,
    "clz": _count,
    "popc": _count,
}
