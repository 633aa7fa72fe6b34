"""A 3 × 3 convolution as Winograd's stages: transformed tiles, products of matrices, results.

    window[t, y, x, c]     = the inputs under tile t, 0 beyond the border
    rows_in[i, t, j, c]    = Σ Bᵀ[i, y] · window[t, y, j, c]
    tile_in[i, j, t, c]    = Σ rows_in[i, t, x, c] · Bᵀ[j, x]
    product[i, j, t, o]    = Σ tile_in[i, j, t, c] · w[i, j, c, o]
    rows_out[r, t, j, o]   = Σ Aᵀ[r, i] · product[i, j, t, o]
    y[n, h, w, o]          = Σ rows_out[h % m, t, j, o] · Aᵀ[w % m, j]

Rows and columns have matrices of their own: tiles may be 2 × 4.
The filters w are transformed when the model is built.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from tunefarm.compiler import te
from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.ir import Call, Function, Tuple, Var, post_order, tensor_type
from tunefarm.compiler.ops.common import integers
from tunefarm.compiler.ops.conv import pairs
from tunefarm.compiler.space.program import create_program, find_anchor, is_elementwise
from tunefarm.compiler.space.winograd.transforms import STRIDES, TAPS, Matrix, Parts, transforms
from tunefarm.compiler.tir import PrimFunc
from tunefarm.compiler.tir import schedule as s
from tunefarm.compiler.tir.ir import Expr


@dataclass(frozen=True, slots=True)
class Convolution:
    """A fused 3 × 3 convolution that Winograd's method can compute: NHWC, stride 1 or 2, constant
    weights. ``padding`` is what the input lacks above and at the left."""

    function: Function
    anchor: Call
    filter_param: int
    batch: int
    height: int
    width: int
    inputs: int
    outputs: int
    padding: tuple[int, int]
    stride: int

    def tiles(self, tile: tuple[int, int]) -> tuple[int, int]:
        """Rows and columns of tiles of ``tile`` results in one image."""
        return -(-self.height // tile[0]), -(-self.width // tile[1])

    @property
    def taps_inside(self) -> tuple[int, int]:
        """How many taps of all rows, and of all columns of results read no padding."""
        sizes = tensor_type(self.anchor.args[0]).shape[1:3]
        above, across = (
            sum(
                0 <= at * self.stride + tap - before < size
                for at in range(count)
                for tap in range(TAPS)
            )
            for count, before, size in zip(
                (self.height, self.width), self.padding, sizes, strict=True
            )
        )
        return above, across


def convolution_of(function: Function) -> Convolution | None:
    """The convolution of a fused function; None if the method does not apply."""
    anchor = find_anchor(function)
    if anchor is None or isinstance(function.body, Tuple) or not _fits(anchor):
        return None
    data, kernel = anchor.args
    calls = [e for e in post_order(function.body) if isinstance(e, Call) and e is not anchor]
    if not all(is_elementwise(c) for c in calls) or any(kernel in c.args for c in calls):
        return None
    position = next(i for i, p in enumerate(function.params) if p is kernel)
    constants = function.attrs.get("constants", ())
    if position not in constants:  # type: ignore[operator]
        return None
    batch, height, width, outputs = tensor_type(anchor).shape
    (top, _), (left, _) = pairs(anchor.attrs["padding"])
    inputs = tensor_type(data).shape[-1]
    stride = integers(anchor.attrs, "strides")[0]
    return Convolution(
        function, anchor, position, batch, height, width, inputs, outputs, (top, left), stride
    )


def _fits(anchor: Call) -> bool:
    attrs, types = anchor.attrs, [tensor_type(a) for a in anchor.args]
    return (
        anchor.op == "conv"
        and all(isinstance(a, Var) for a in anchor.args)
        and all(t.dtype == "float32" for t in types)
        and attrs["data_layout"] == "NSC"
        and attrs["kernel_layout"] == "SIO"
        and types[1].shape[:-2] == (TAPS, TAPS)
        and attrs["groups"] == 1
        and attrs["strides"] in [(stride, stride) for stride in STRIDES]
        and attrs["dilations"] == (1, 1)
    )


@lru_cache(maxsize=64)
def create_winograd(c: Convolution, tile: tuple[int, int]) -> PrimFunc:
    """The plain loops of the stages and of what is fused behind them, as one last block."""
    kernel = (*(transforms(t, c.stride).points for t in tile), c.inputs, c.outputs)
    program = create_program(
        c.function,
        computes={c.anchor: lambda args: _stages(c, tile, args)},
        shapes={c.function.params[c.filter_param]: kernel},
    )
    for block in s.remaining_blocks(program)[5:-1]:
        program = s.compute_inline(program, block)
    if len(s.remaining_blocks(program)) != 6:
        raise ScheduleError("what follows the convolution does not fold into one block")
    return program


def _stages(c: Convolution, tile: tuple[int, int], args: Sequence[te.Tensor]) -> te.Tensor:
    x, w = args
    above, across = (transforms(t, c.stride) for t in tile)
    rows, columns = c.tiles(tile)
    count = c.batch * rows * columns
    step = (tile[0] * c.stride, tile[1] * c.stride)

    def data(t: Expr, y: Expr, column: Expr, channel: Expr) -> Expr:
        image = t // (rows * columns) if c.batch > 1 else te.const(0, "int64")
        tile_row = t // columns % rows if c.batch > 1 else t // columns
        top = tile_row * step[0] + y - c.padding[0]
        left = t % columns * step[1] + column - c.padding[1]
        inside = (top >= 0) & (top < x.shape[1]) & (left >= 0) & (left < x.shape[2])
        return te.if_then_else(inside, x[image, top, left, channel], te.const(0, x.dtype))

    window = te.compute((count, above.points, across.points, c.inputs), data, "window")
    rows_in = te.compute(
        (above.points, count, across.points, c.inputs),
        lambda i, t, j, k: _transformed(
            above.data, above.data_parts, i, lambda y: window[t, y, j, k]
        ),
        "rows_in",
    )
    tile_in = te.compute(
        (above.points, across.points, count, c.inputs),
        lambda i, j, t, k: _transformed(
            across.data, across.data_parts, j, lambda v: rows_in[i, t, v, k]
        ),
        "tile_in",
    )
    k = te.reduce_axis(c.inputs, "k")
    product = te.compute(
        (above.points, across.points, count, c.outputs),
        lambda i, j, t, o: te.sum(tile_in[i, j, t, k] * w[i, j, k, o], [k]),
        "product",
    )
    rows_out = te.compute(
        (tile[0], count, across.points, c.outputs),
        lambda r, t, j, o: _transformed(
            above.result, above.result_parts, r, lambda i: product[i, j, t, o]
        ),
        "rows_out",
    )

    def result(n: Expr, h: Expr, v: Expr, o: Expr) -> Expr:
        t = (n * rows + h // tile[0]) * columns + v // tile[1]
        return _transformed(
            across.result, across.result_parts, v % tile[1],
            lambda j: rows_out[h % tile[0], t, j, o],
        )  # fmt: skip

    return te.compute((c.batch, c.height, c.width, c.outputs), result, "winograd")


def _transformed(matrix: Matrix, parts: Parts, row: Expr, value: Callable[[int], Expr]) -> Expr:
    """Row ``row`` of ``matrix`` times a vector: a sum of its own for each row, without zeros."""
    sums = [_sum_of(coefficients, parts, value) for coefficients in matrix]
    chosen = sums[-1]
    for index in range(len(sums) - 2, -1, -1):
        chosen = te.if_then_else(row.equal(index), sums[index], chosen)
    return chosen


def _sum_of(coefficients: Sequence[float], parts: Parts, value: Callable[[int], Expr]) -> Expr:
    """Σ c · v, part by part. What two rows for ±p have in common is then the same expression:

    (d4 - B·d2) + (d3 - B·d1)·p   and   (d4 - B·d2) + (d3 - B·d1)·(-p)
    """
    sums: list[Expr] = []
    for part in parts:
        terms = [(coefficients[k], value(k)) for k in reversed(part) if coefficients[k] != 0]
        if terms:
            scale = terms[0][0]
            sums.append(_scaled(_added([_scaled(v, c / scale) for c, v in terms]), scale))
    return _added(sums)


def _scaled(value: Expr, factor: float) -> Expr:
    return value if factor == 1 else value * factor


def _added(terms: Sequence[Expr]) -> Expr:
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total
