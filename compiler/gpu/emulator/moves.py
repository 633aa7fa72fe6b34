"""Moves, and conversions between types.

Source of the meanings: NVIDIA, "PTX ISA", data movement and conversion instructions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from tunefarm.compiler.gpu.emulator.floats import flushed
from tunefarm.compiler.gpu.emulator.kinds import KINDS, UNSIGNED, Kind, Values
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

# Where these are among generic addresses:
SHARED_WINDOW, LOCAL_WINDOW, PARAMETER_WINDOW = 1 << 56, 1 << 57, 1 << 58
_WINDOWS = {
    "global": 0, "param": PARAMETER_WINDOW, "const": 0, "shared": SHARED_WINDOW,
    "local": LOCAL_WINDOW,
}  # fmt: skip
_ROUNDINGS: Mapping[str, Callable[[Values], Values]] = {
    "rni": np.rint,
    "rzi": np.trunc,
    "rmi": np.floor,
    "rpi": np.ceil,
}


def _mov(i: Instruction, scope: Scope) -> Step:
    """``mov.type d, a``; a vector on one side is packed, on the other unpacked."""
    only(i, i.modifiers[:-1], ())
    named = kind_of(i, i.modifiers[-1])
    kind = named if named.bits == 1 else KINDS[f"b{named.bits}"]
    d, a = operands(i, 2)
    if isinstance(a, Vector):
        return _pack(i, scope, kind)
    if isinstance(d, Vector):
        return _unpack(i, scope, kind)
    return pure(i, scope, lambda x: x, [(a, kind)], (d, kind))


def _pack(i: Instruction, scope: Scope, kind: Kind) -> Step:
    d, a = i.operands
    assert isinstance(a, Vector)
    each = kind.bits // len(a.parts)
    part, wide = KINDS[f"b{each}"], UNSIGNED[kind.bits].type

    def function(*values: Values) -> Values:
        result = np.zeros(1, wide)
        for number, value in enumerate(values):
            result = result | (value.astype(wide) << wide(number * each))
        return result

    return pure(i, scope, function, [(x, part) for x in a.parts], (d, kind))


def _unpack(i: Instruction, scope: Scope, kind: Kind) -> Step:
    d, a = i.operands
    assert isinstance(d, Vector)
    each = kind.bits // len(d.parts)
    part, wide = KINDS[f"b{each}"], UNSIGNED[kind.bits].type
    read = reads(i, scope, a, kind)
    write = [(n, writes(i, scope, x, part)) for n, x in enumerate(d.parts) if x is not None]

    def step(wave: Wave, group: Group) -> None:
        values = read(wave)
        for number, set_part in write:
            set_part(wave, group, (values >> wide(number * each)).astype(part.unsigned))

    return step


def _cvta(i: Instruction, scope: Scope) -> Step:
    """``cvta{.to}.space.u64 d, a``: between addresses of a state space and generic ones."""
    words = [m for m in i.modifiers[:-1] if m != "to"]
    if len(words) != 1 or words[0] not in _WINDOWS:
        unknown(i)
    kind = kind_of(i, i.modifiers[-1], [KINDS["u64"]])
    d, a = operands(i, 2)
    window = np.uint64(_WINDOWS[words[0]])
    back = "to" in i.modifiers
    return pure(i, scope, lambda x: x - window if back else x + window, [(a, kind)], (d, kind))


def _cvt(i: Instruction, scope: Scope) -> Step:
    """``cvt{.rounding}{.ftz}{.sat}.to.from d, a``, or d of two floats."""
    to, source = (kind_of(i, name) for name in i.modifiers[-2:])
    words = i.modifiers[:-2]
    allowed = ("rn", "ftz", "sat", "relu", *(_ROUNDINGS if source.family == "float" else ()))
    only(i, words, allowed)
    if to.name.endswith("x2"):
        d, a, b = operands(i, 3)

        def pair(upper: Values, lower: Values) -> Values:
            both = np.broadcast_arrays(lower, upper)
            return np.stack([np.maximum(x, 0) if "relu" in words else x for x in both], axis=-1)

        return pure(i, scope, pair, [(a, source), (b, source)], (d, to))
    d, a = operands(i, 2)
    return pure(i, scope, conversion(i, to, source, words), [(a, source)], (d, to))


def conversion(
    i: Instruction, to: Kind, source: Kind, words: tuple[str, ...]
) -> Callable[[Values], Values]:
    """The function from values of one type to those of another."""
    if source.family != "float" and to.family != "float":
        return lambda x: _integer(x, to, "sat" in words)
    if source.family != "float":
        return lambda x: x.astype(np.float32 if to.name == "f32" else np.float64)
    rounding = next((_ROUNDINGS[w] for w in words if w in _ROUNDINGS), None)
    if to.family != "float":
        if rounding is None:
            unknown(i, "it does not say how to round")
        whole = rounding
        return lambda x: saturated(whole(flushed(x) if "ftz" in words else x), to)

    def convert(x: Values) -> Values:
        x = flushed(x) if "ftz" in words else x
        x = rounding(x) if rounding else x
        x = np.clip(x, 0, 1) if "sat" in words else x
        x = np.maximum(x, 0) if "relu" in words else x
        if to.name in ("f32", "f64"):
            return x.astype(np.float32 if to.name == "f32" else np.float64)
        return x

    return convert


def _dtype(kind: Kind) -> np.dtype[np.signedinteger] | np.dtype[np.unsignedinteger]:
    return np.dtype(f"{'int' if kind.family == 'signed' else 'uint'}{kind.bits}")


def _integer(x: Values, to: Kind, saturate: bool) -> Values:
    dtype = _dtype(to)
    if saturate:
        limits = np.iinfo(dtype)
        low, high = (max(limits.min, np.iinfo(x.dtype).min), min(limits.max, np.iinfo(x.dtype).max))
        x = np.clip(x, x.dtype.type(low), x.dtype.type(high))
    return x.astype(dtype)


def saturated(x: Values, to: Kind) -> Values:
    """Whole floats as whole numbers: the nearest that there is, 0 for NaN."""
    dtype = _dtype(to)
    limits = np.iinfo(dtype)
    x = np.where(np.isnan(x), 0, x).astype(np.float64)
    high, low = x >= float(limits.max), x <= float(limits.min)
    inside = np.where(high | low, 0, x).astype(dtype)
    most, least = dtype.type(limits.max), dtype.type(limits.min)
    return np.where(high, most, np.where(low, least, inside))


BUILDERS: Mapping[str, Builder] = {"mov": _mov, "cvta": _cvta, "cvt": _cvt}
