"""A 7 × 7 convolution and the maximum over windows behind it as stages, by blocks of pooled rows.

Each block is an image of its own for Winograd's stages (``winograd/program.py``), which begins with
the first row of results that its windows reach, in the padding too:

    value[b, t, r, w, o]   = the convolution's result in row r of the block's row of tiles t, bias
                             and activation included
    y[b, h, v, o]          = max value[b, u // m, u % m, w, o]   u = h·s + i,  w = v·s + j − left
                             over the window's (i, j) inside the image

A band of the block's pooled rows reads whole rows of tiles, the last of which the next band may
read again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import gcd, lcm
from typing import Any

from tunefarm.compiler import te
from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.ir import (
    Call,
    Constant,
    Expr,
    Function,
    TensorType,
    Var,
    post_order,
    tensor_type,
)
from tunefarm.compiler.ops import call
from tunefarm.compiler.ops.common import integers
from tunefarm.compiler.ops.conv import pairs
from tunefarm.compiler.space.program import create_program, fold_epilogue
from tunefarm.compiler.space.winograd.convolution import Convolution, convolution_of
from tunefarm.compiler.space.winograd.program import STAGES, half_transformed, result_of
from tunefarm.compiler.space.winograd.transforms import TILES, phases
from tunefarm.compiler.tir import PrimFunc
from tunefarm.compiler.tir.ir import Expr as Value


@dataclass(frozen=True, slots=True)
class Pooled:
    """A fused function: its convolution, of whole images, and the pooling that reads it."""

    function: Function
    conv: Convolution
    pool: Call

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the result: images, rows, columns, channels."""
        return tensor_type(self.pool).shape

    @property
    def kernel(self) -> tuple[int, ...]:
        return integers(self.pool.attrs, "kernel")

    @property
    def strides(self) -> tuple[int, ...]:
        return integers(self.pool.attrs, "strides")

    @property
    def before(self) -> tuple[int, int]:
        """Rows and columns of padding that begin the convolution's result."""
        (top, _), (left, _) = pairs(self.pool.attrs["padding"])
        return top, left


@dataclass(frozen=True, slots=True)
class Bands:
    """Blocks of ``rows`` pooled rows of an image, ``count`` of them, in bands of ``height`` rows,
    each ``step`` rows of tiles further down than the one before, of which it reads ``reads``."""

    rows: int
    count: int
    height: int
    step: int
    reads: int
    tile: int
    stride: int
    kernel: int

    def tiles(self, rows: int | Value) -> int | Value:
        """Rows of tiles that a block's first pooled rows read."""
        return ((rows - 1) * self.stride + self.kernel - 1) // self.tile + 1

    @property
    def tile_rows(self) -> int:
        """Rows of tiles of a block whose last band is a whole one."""
        return (-(-self.rows // self.height) - 1) * self.step + self.reads

    @property
    def overlap(self) -> bool:
        """Whether bands of a block read rows of tiles that the one before has made."""
        return self.reads > self.step and self.rows > self.height


def bands_of(p: Pooled, rows: int, tile: int) -> Bands:
    """The bands of blocks of so many pooled rows; ScheduleError if some block would begin inside
    another's band."""
    stride, kernel = p.strides[0], p.kernel[0]
    height = tile // gcd(tile, stride)
    if rows % height and p.shape[1] % rows:
        raise ScheduleError(
            f"blocks of {rows} pooled rows are no multiple of {height}, and do not divide "
            f"{p.shape[1]}"
        )
    reads = ((height - 1) * stride + kernel - 1) // tile + 1
    step = lcm(tile, stride) // tile
    return Bands(rows, -(-p.shape[1] // rows), height, step, reads, tile, stride, kernel)


@lru_cache(maxsize=64)
def pooled_of(function: Function) -> Pooled | None:
    """The convolution and the pooling that a fused function is; None if it is another function."""
    pool = function.body
    if not isinstance(pool, Call) or not _is_pooling(pool):
        return None
    c = convolution_of(replace(function, body=pool.args[0]))
    if c is None or phases(c.taps) == 1 or min(c.height, c.width) < 2:
        return None
    operands = (p for p in function.params if p not in c.anchor.args)
    calls = [e for e in post_order(pool.args[0]) if isinstance(e, Call) and e is not c.anchor]
    fits = all(_is_of_channels(p) for p in operands) and all(map(_keeps_shape, calls))
    return Pooled(function, c, pool) if fits else None


def _is_pooling(node: Call) -> bool:
    """True for maxima over windows of several rows and columns of images, channels last."""
    return (
        node.op == "max_pool"
        and node.attrs["data_layout"] == "NSC"
        and len(tensor_type(node).shape) == 4
        and min(integers(node.attrs, "kernel")) > 1
        and integers(node.attrs, "dilations") == (1, 1)
    )


def _is_of_channels(operand: Expr) -> bool:
    """True for an operand of one element, or of one a channel."""
    return all(extent == 1 for extent in tensor_type(operand).shape[:-1])


def _keeps_shape(node: Call) -> bool:
    """True for an elementwise operator that means the same whatever the rank of its operands."""
    return tensor_type(node).dtype == "float32" and "axis" not in node.attrs


def blocked(p: Pooled, bands: Bands) -> Convolution:
    """The convolution of all blocks, each of them an image."""
    c, ((above, left), stride) = p.conv, (p.conv.padding, p.conv.stride)
    return replace(
        c,
        batch=c.batch * bands.count,
        height=bands.tile_rows * bands.tile,
        padding=(above + stride * p.before[0], left),
        parts=bands.count,
        part_rows=bands.rows * bands.stride * stride,
    )


def rows_knob(p: Pooled) -> tuple[int, ...]:
    """Heights of blocks: of about equal ones, and of those that whole bands make."""
    total = p.shape[1]
    heights = [t // gcd(t, p.strides[0]) for t in TILES[p.conv.taps]]
    even = {-(-total // count) for count in (*range(1, 9), 10, 12, 14, 16, 20, 24, 28, 32, 64)}
    found = {-(-rows // height) * height for rows in even for height in (1, *heights)}
    return tuple(sorted(rows for rows in found if rows <= total))


@lru_cache(maxsize=64)
def create_pooled(p: Pooled, bands: Bands, tile: tuple[int, int], lanes: int) -> PrimFunc:
    """The plain loops of the stages: those of the convolution, its value, the result.

    Blocks that divide the image are the result's first dimension.
    """
    c, f = blocked(p, bands), p.function
    shape = (c.batch, bands.tile_rows, bands.tile, c.width, c.outputs)
    anchor = Call(c.anchor.op, c.anchor.args, c.anchor.attrs, TensorType(shape, "float32"))
    done: dict[Expr, Expr] = {c.anchor: anchor}
    for node in post_order(p.pool.args[0]):
        if isinstance(node, (Var, Constant)):
            done[node] = node
        elif isinstance(node, Call) and node is not c.anchor:
            attrs: dict[str, Any] = dict(node.attrs)
            done[node] = call(str(node.op), *(done[a] for a in node.args), **attrs)
    pool = Call(p.pool.op, (done[p.pool.args[0]],), p.pool.attrs, p.pool.type)
    kernel = (*(c.transforms(t).filters for t in tile), c.depth, c.outputs)
    program = create_program(
        Function(f.params, pool, f.attrs),
        computes={anchor: _value(c, tile, lanes), pool: _maximum(p, bands)},
        shapes={f.params[c.filter_param]: kernel},
    )
    return fold_epilogue(program, STAGES, results=2)


def _value(
    c: Convolution, tile: tuple[int, int], lanes: int
) -> Callable[[Sequence[te.Tensor]], te.Tensor]:
    rows, columns = c.tiles(tile)

    def compute(args: Sequence[te.Tensor]) -> te.Tensor:
        rows_out = half_transformed(c, tile, lanes, None, args)

        def element(b: Value, t: Value, r: Value, w: Value, o: Value) -> Value:
            number = (b * rows + t) * columns + w // tile[1]
            return result_of(c, tile, rows_out, (r, number, w, o))

        return te.compute((c.batch, rows, tile[0], c.width, c.outputs), element, "value")

    return compute


def _maximum(p: Pooled, bands: Bands) -> Callable[[Sequence[te.Tensor]], te.Tensor]:
    images, height, width, channels = p.shape
    divides = height % bands.rows == 0
    down, right = p.strides

    def compute(args: Sequence[te.Tensor]) -> te.Tensor:
        (x,) = args
        i, j = te.reduce_axis(p.kernel[0], "i"), te.reduce_axis(p.kernel[1], "j")

        def element(n: Value, h: Value, v: Value, o: Value) -> te.Reduce:
            row = n % bands.count * bands.rows + h if divides else h
            block = n if divides else n * bands.count + h // bands.rows
            y, w = row * down + i - p.before[0], v * right + j - p.before[1]
            inside = (y >= 0) & (y < p.conv.height) & (w >= 0) & (w < p.conv.width)
            u = (h if divides else h % bands.rows) * down + i
            term = x[block, u // bands.tile, u % bands.tile, w, o]
            return te.max(te.if_then_else(inside, term, te.identity("max", x.dtype)), [i, j])

        shape = (images * bands.count, bands.rows) if divides else (images, height)
        return te.compute((*shape, width, channels), element, "pool")

    return compute
