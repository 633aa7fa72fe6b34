"""Matrix instructions of a warp: ``ldmatrix`` and ``mma.sync``.

Which thread holds which element is written here from the manual's formulas alone, so that it
checks what the compiler makes of them. Source: NVIDIA, "PTX ISA", matrix fragments of
mma.m16n8k8 (TF32), m16n8k16 (16 bits) and m16n8k32 (bytes), and ldmatrix.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray
from tunefarm.compiler.gpu.archs import WARP
from tunefarm.compiler.gpu.emulator.errors import Fault
from tunefarm.compiler.gpu.emulator.kinds import KINDS, Values, brain_to_single, half_to_single
from tunefarm.compiler.gpu.emulator.operands import (
    Builder,
    Read,
    Scope,
    Step,
    addresses,
    located,
    operands,
    parts_of,
    reads,
    unknown,
    writes_own,
)
from tunefarm.compiler.gpu.emulator.parse import Instruction, Operand
from tunefarm.compiler.gpu.emulator.wave import Group, Wave

Index = NDArray[np.intp]


def _ldmatrix(i: Instruction, scope: Scope) -> Step:
    """``ldmatrix.sync.aligned.m8n8.x1|x2|x4{.trans}.shared.b16 {d…}, [a]``.

    Threads 8·j to 8·j + 7 give the addresses of the rows of matrix j. Thread t gets of each matrix
    elements 2·(t % 4) and 2·(t % 4) + 1 of row t / 4, or of column t / 4 with ``.trans``.
    """
    words = [m for m in i.modifiers if m != "trans"]
    if words[:3] != ["sync", "aligned", "m8n8"] or words[4:] != ["shared", "b16"]:
        unknown(i)
    count = {"x1": 1, "x2": 2, "x4": 4}.get(words[3], 0)
    d, a = operands(i, 2)
    targets = parts_of(i, d)
    if not count or len(targets) != count:
        unknown(i)
    turned = "trans" in i.modifiers
    place = addresses(i, scope, a, "shared")
    write = [writes_own(i, scope, target, KINDS["b32"]) for target in targets]

    def step(wave: Wave, group: Group) -> None:
        at = _first_lanes(group.own(place(wave)), 8 * count)
        threads = _first_lanes(group.index, 8 * count)
        try:
            rows = wave.shared.load(threads, at, np.dtype(np.uint16), 8)
        except Fault as fault:
            warp, lane = divmod(fault.position, 8 * count)
            raise Fault(warp * WARP + lane, fault.problem) from None
        if wave.traffic is not None:
            wave.traffic.matrices(i, at, group.count // WARP)
        matrices = rows.reshape(-1, count, 8, 8)
        if turned:
            matrices = matrices.transpose(0, 1, 3, 2)
        words = np.ascontiguousarray(matrices).view(np.uint32)  # four a row
        for number, set_one in enumerate(write):
            set_one(wave, group, np.ascontiguousarray(words[:, number]).reshape(-1))

    return _of_warps(i, step)


def _first_lanes(values: Values, count: int) -> Values:
    """The values of the first threads of each warp."""
    return values.reshape(-1, WARP)[:, :count].reshape(-1)


def _of_warps(i: Instruction, step: Step) -> Step:
    """The step; a block of another number of threads than whole warps is a fault."""

    def run(wave: Wave, group: Group) -> None:
        if wave.block_threads % WARP:
            raise wave.fault(
                i, int(group.index[0]), "its block has a warp of fewer than 32 threads"
            )
        step(wave, group)

    return located(i, run)


# --- fragments ----------------------------------------------------------------------------------
# Row and column of element number e of a thread; g = lane / 4 and t = lane % 4 in the manual.

Fragment = Callable[[Index, Index, Index], tuple[Index, Index]]


def _sums(g: Index, t: Index, e: Index) -> tuple[Index, Index]:
    """C and D, 16 × 8: four elements."""
    return g + 8 * (e >= 2), 2 * t + e % 2


def _a_halves(g: Index, t: Index, e: Index) -> tuple[Index, Index]:
    """A, 16 × 16 of 16 bits: eight elements."""
    return g + 8 * (e // 2 % 2), 2 * t + e % 2 + 8 * (e >= 4)


def _b_halves(g: Index, t: Index, e: Index) -> tuple[Index, Index]:
    """B, 16 × 8 of 16 bits: four elements."""
    return 2 * t + e % 2 + 8 * (e >= 2), g


def _a_bytes(g: Index, t: Index, e: Index) -> tuple[Index, Index]:
    """A, 16 × 32 of bytes: sixteen elements."""
    return g + 8 * (e // 4 % 2), 4 * t + e % 4 + 16 * (e >= 8)


def _b_bytes(g: Index, t: Index, e: Index) -> tuple[Index, Index]:
    """B, 32 × 8 of bytes: eight elements."""
    return 4 * t + e % 4 + 16 * (e >= 4), g


def _a_words(g: Index, t: Index, e: Index) -> tuple[Index, Index]:
    """A, 16 × 8 of TF32: four elements."""
    return g + 8 * (e % 2), t + 4 * (e >= 2)


def _b_words(g: Index, t: Index, e: Index) -> tuple[Index, Index]:
    """B, 8 × 8 of TF32: two elements."""
    return t + 4 * e, g


@functools.cache
def place_of(fragment: Fragment, rows: int, columns: int) -> Index:
    """For each element of the matrix, row by row, its place among (lane, element number)."""
    each = rows * columns // WARP
    lane, number = np.divmod(np.arange(rows * columns), each)
    row, column = fragment(lane // 4, lane % 4, number)
    places = np.empty(rows * columns, np.intp)
    places[row * columns + column] = np.arange(rows * columns)
    return places


# --- products -----------------------------------------------------------------------------------


def _halves(words: Values) -> Values:
    return half_to_single(words.view(np.uint16))


def _brains(words: Values) -> Values:
    return brain_to_single(words.view(np.uint16))


def _tf32(words: Values) -> Values:
    """Float32 whose 13 lowest bits are not looked at."""
    return (words & np.uint32(0xFFFFE000)).view(np.float32)


def _signed(words: Values) -> Values:
    return words.view(np.int8).astype(np.int32)


def _unsigned(words: Values) -> Values:
    return words.view(np.uint8).astype(np.int32)


_OPERANDS: Mapping[str, tuple[Callable[[Values], Values], Fragment, Fragment, int]] = {
    "f16": (_halves, _a_halves, _b_halves, 2),
    "bf16": (_brains, _a_halves, _b_halves, 2),
    "tf32": (_tf32, _a_words, _b_words, 1),
    "s8": (_signed, _a_bytes, _b_bytes, 4),
    "u8": (_unsigned, _a_bytes, _b_bytes, 4),
}  # what words of 32 bits hold, which element is whose, and how many a word
_DEPTHS = {"f16": 16, "bf16": 16, "tf32": 8, "s8": 32, "u8": 32}


def _mma(i: Instruction, scope: Scope) -> Step:
    """``mma.sync.aligned.m16n8kK.row.col.D.A.B.C d, a, b, c``: D = A · B + C."""
    match i.modifiers:
        case ("sync", "aligned", shape, "row", "col", d_type, a_type, b_type, c_type):
            pass
        case _:
            unknown(i)
    whole = a_type in ("s8", "u8") and b_type in ("s8", "u8")
    known = a_type in _OPERANDS and (whole or a_type == b_type) and d_type == c_type
    depth = _DEPTHS[a_type] if known else 0
    if shape != f"m16n8k{depth}" or d_type != ("s32" if whole else "f32"):
        unknown(i)
    kind = KINDS[d_type]
    d, a, b, c = operands(i, 4)
    a_values, a_place, _, each = _OPERANDS[a_type]
    b_values, _, b_place, _ = _OPERANDS[b_type]
    read_a = _fragment(i, scope, a, 16 * depth // WARP // each)
    read_b = _fragment(i, scope, b, 8 * depth // WARP // each)
    read_c = _fragment(i, scope, c, 4)
    a_at, b_at = place_of(a_place, 16, depth), place_of(b_place, depth, 8)
    at = place_of(_sums, 16, 8)
    back = np.argsort(at)
    write = [writes_own(i, scope, target, kind) for target in parts_of(i, d)]
    if len(write) != 4:
        unknown(i)

    def step(wave: Wave, group: Group) -> None:
        x = a_values(read_a(wave, group))[:, a_at].reshape(-1, 16, depth)
        y = b_values(read_b(wave, group))[:, b_at].reshape(-1, depth, 8)
        total = kind.decode(read_c(wave, group))[:, at].reshape(-1, 16, 8)
        with np.errstate(over="ignore"):
            total = x @ y + total
        held = total.reshape(-1, 128)[:, back].reshape(-1, 4)
        for number, set_one in enumerate(write):
            set_one(wave, group, np.ascontiguousarray(held[:, number]))

    return _of_warps(i, step)


def _fragment(
    i: Instruction, scope: Scope, operand: Operand, count: int
) -> Callable[[Wave, Group], Values]:
    """A function that gives the words of a fragment, a row for each warp: lane by lane."""
    parts = parts_of(i, operand)
    if len(parts) != count:
        unknown(i, f"it takes {count} words of an operand")
    read: list[Read] = [reads(i, scope, part, KINDS["b32"]) for part in parts]

    def words(wave: Wave, group: Group) -> Values:
        rows = np.empty((group.count, count), np.uint32)
        for number, each in enumerate(read):
            rows[:, number] = group.own(each(wave))
        return rows.reshape(-1, WARP * count)

    return words


BUILDERS: Mapping[str, Builder] = {"ldmatrix": _ldmatrix, "mma": _mma}
