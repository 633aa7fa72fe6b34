"""What the contraction sketch asks of a contraction: its axes, lanes, operands and panels."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from math import prod

from tunefarm.compiler.ir import Function
from tunefarm.compiler.processors import X86_64
from tunefarm.compiler.space.aliases import rows_meet
from tunefarm.compiler.space.analysis import Axis, Contraction, analyse
from tunefarm.compiler.space.columns import Mask, Numbers
from tunefarm.compiler.space.program import create_program, view_contraction
from tunefarm.compiler.target import LINE_BYTES, Target, dtype_bytes
from tunefarm.compiler.tir import PrimFunc
from tunefarm.compiler.tir.affine import affine
from tunefarm.compiler.tir.ir import Var
from tunefarm.compiler.tir.schedule.tree import store_of

NAME, VERSION = "contraction", 3
MAX_WINDOW = 32  # taps that are unrolled together
FEW_TAPS = 9  # of a window: all of these, by default
FEW_SUMS = 8  # two multiply-adds a cycle, each of which takes four
PACK_PANEL, PACK_WHOLE = 1, 2  # a right operand copied panel by panel, or all of it at once
# Orders of blocks "mn" in which a tile of rows takes all panels of one in turn, or all groups.
PANELS_INSIDE, GROUPS_INSIDE = "mtn", "mtg"


@lru_cache(maxsize=64)
def viewed_program(function: Function) -> PrimFunc:
    """A fused function's program, pointwise convolutions viewed as products."""
    return create_program(view_contraction(function))


@lru_cache(maxsize=64)
def contraction_of(function: Function) -> Contraction | None:
    """The contraction that a fused function is, pointwise convolutions viewed as products."""
    return analyse(viewed_program(function))


def sum_dtype(c: Contraction) -> str:
    """The dtype that products are summed in, which narrower operands are widened to."""
    return store_of(c.node).buffer.dtype


def lanes_of(c: Contraction, target: Target) -> int:
    """Lanes of one vector of sums: the machine's, or fewer for a short axis."""
    full = target.lanes(sum_dtype(c))
    lanes = 1
    while lanes < min(full, c.vector.extent):
        lanes *= 2
    return lanes


def row_axes(c: Contraction) -> tuple[Axis | None, Axis | None]:
    """The axes of the register tile: (second last, last) of the rows longer than 1."""
    long = [a for a in c.rows if a.extent > 1]
    last = long[-1] if long else None
    return (long[-2] if len(long) > 1 else None), last


def groups_of(c: Contraction) -> tuple[Axis, ...]:
    """The axis of a convolution's groups, each of which has inputs and weights of its own; none for
    other sums."""
    operands = [{v for i in o.load.indices for v in affine(i).variables()} for o in (c.lhs, c.rhs)]
    shared = operands[0] & operands[1]
    convolution = len(c.reduce) > 1 and row_axes(c)[1] is not None
    of_both = (a for a in c.outer if c.node.iters[a.position].var in shared)
    return tuple(a for a in of_both if a.extent > 1) if convolution else ()


def panel_count(extent: int, tile: int) -> int:
    return -(-extent // tile)


def padded(c: Contraction) -> bool:
    """True if the left operand is read under a padding condition or with strides."""
    return any(len(affine(i).terms) > 1 for i in c.lhs.load.indices)


def constants(c: Contraction) -> frozenset[int]:
    return frozenset(c.program.constants)


def packed_at_build(c: Contraction) -> bool:
    """True if the right operand is constant and read plainly: a variable or a number an index."""
    plain = all(isinstance(i, Var) or not affine(i).terms for i in c.rhs.load.indices)
    return c.rhs.param in constants(c) and plain


def packable(c: Contraction) -> bool:
    """True if all of a variable right operand can be packed before the product."""
    variable = c.rhs.param is not None and c.rhs.param not in constants(c)
    plain = all(isinstance(i, Var) for i in c.rhs.load.indices)
    return variable and plain and not shares_vector(c)


def taps(c: Contraction, axis: Axis) -> int:
    """Extent of the window that slides along an axis; 1 if none does."""
    var = c.node.iters[axis.position].var
    summed = {c.node.iters[a.position].var: a.extent for a in c.reduce}
    for index in c.lhs.load.indices:
        terms = affine(index).terms
        if var in terms:
            return prod(extent for v, extent in summed.items() if v in terms)
    return 1


def step_of(c: Contraction, axis: Axis) -> int:
    """How far apart the windows of neighbours along an axis begin."""
    var = c.node.iters[axis.position].var
    return max((abs(affine(i).coefficient(var)) for i in c.lhs.load.indices), default=1) or 1


def ends_inside(c: Contraction, axis: Axis) -> bool:
    """Whether the last windows along an axis end inside the image: of 3 taps two pixels apart those
    of an even size do, padded by a pixel."""
    iters = {i.var: i.extent for i in c.node.iters}
    var = c.node.iters[axis.position].var
    for size, index in zip(c.lhs.load.buffer.shape, c.lhs.load.indices, strict=True):
        place = affine(index)
        if place.coefficient(var):
            last = place.const + sum(place.coefficient(v) * (n - 1) for v, n in iters.items())
            return last < size
    return True


def is_strided(c: Contraction) -> bool:
    """Whether neighbours along a row or a column are further apart than a pixel."""
    return any(axis is not None and step_of(c, axis) > 1 for axis in row_axes(c))


def whole_window(c: Contraction) -> int:
    """Taps of a depthwise window of two axes, which a tile may unroll together; 0 for others."""
    return _window(c) if _window(c) <= MAX_WINDOW else 0


def is_large_window(c: Contraction) -> bool:
    """Whether a depthwise window of two axes has more taps than a tile may unroll together."""
    return _window(c) > MAX_WINDOW


def _window(c: Contraction) -> int:
    axes = len([a for a in c.reduce if a.extent > 1])
    return prod(a.extent for a in c.reduce) if axes == 2 and shares_vector(c) else 0


def row_by_row(c: Contraction, k: Mapping[str, Numbers]) -> Mask:
    """Whether a tile, or which of many, finishes a row of results before it begins the next: one of
    a whole window whose pixels begin inside lines, with sums enough for multiply-adds not to wait.

    Few registers hold the sums of a row, and what it reads of the image with the next; all sums at
    once took up to 1.7 × the time (1 column by 7 rows by 2 vectors, Zen 4). Where all loads meet
    one line, 2 × 2 pixels of two vectors take 0.87 to 0.97 × the time with all sums at once.
    """
    sums = k["rw"] * k["rh"] * k["nv"]
    many = (k["rh"] > 1) & (sums >= FEW_SUMS)
    return (k["ku"] > c.reduce[-1].extent) & many & begins_inside_lines(c)


def begins_inside_lines(c: Contraction) -> bool:
    """True if pixels begin anywhere in a line of the cache: their channels fill no lines."""
    return c.vector.extent * dtype_bytes(c.lhs.load.dtype) % LINE_BYTES != 0


def shares_vector(c: Contraction) -> bool:
    """True if the left operand has the lanes too (depthwise)."""
    used = {v for i in c.lhs.load.indices for v in affine(i).variables()}
    return c.node.iters[c.vector.position].var in used


def takes_few_sums(c: Contraction, target: Target) -> bool:
    """True for a depthwise window of two axes on a processor of 16 registers whose multiply-adds
    take an operand from memory: a tile of few sums has all taps at once."""
    few = target.isa is X86_64 and target.has_few_registers
    return few and whole_window(c) > 0 and row_axes(c)[1] is not None


def transposed(c: Contraction) -> bool:
    """True if the right operand's lanes are not contiguous in memory."""
    var = c.node.iters[c.vector.position].var
    return affine(c.rhs.load.indices[-1]).coefficient(var) != 1


def lane_dimension(c: Contraction) -> int | None:
    """The dimension of the right operand that the lanes run along; None if it is none of them, as
    of channels that groups number anew."""
    var = c.node.iters[c.vector.position].var
    indices = enumerate(c.rhs.load.indices)
    return next((d for d, i in indices if var in affine(i).terms), None)


def bytes_apart(c: Contraction, axis: Axis) -> int:
    """From what a result reads of the left operand to what its neighbour along an axis reads."""
    load, var = c.lhs.load, c.node.iters[axis.position].var
    apart, stride = 0, dtype_bytes(load.dtype)
    for index, extent in zip(reversed(load.indices), reversed(load.buffer.shape), strict=True):
        apart += affine(index).coefficient(var) * stride
        stride *= extent
    return apart


def waits_for_stores(c: Contraction, target: Target) -> bool:
    """True where a depthwise window of two axes reads rows that meet in the last 12 bits of their
    addresses, and so with stores that are on their way."""
    second, last = row_axes(c)
    if target.isa is not X86_64 or not whole_window(c) or second is None or last is None:
        return False
    row, pixel = (bytes_apart(c, axis) // step_of(c, axis) for axis in (second, last))
    return pixel % LINE_BYTES == 0 and any(rows_meet(rows * row, pixel) for rows in (1, 2))
