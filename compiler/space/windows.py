"""Maxima and averages over overlapping windows of NHWC images: what their sketches share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby
from typing import TypeAlias

import numpy as np
from tunefarm.compiler import te
from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.ir import Attrs, Call, Function, Var, tensor_type
from tunefarm.compiler.ops.common import integers
from tunefarm.compiler.ops.conv import pairs
from tunefarm.compiler.space.columns import Numbers, whole
from tunefarm.compiler.space.config import Access, Columns, Nest
from tunefarm.compiler.space.nests import busy_cores, own_loops
from tunefarm.compiler.space.tiles import in_registers
from tunefarm.compiler.target import Target, dtype_bytes
from tunefarm.compiler.tir import PrimFunc
from tunefarm.compiler.tir import schedule as s
from tunefarm.compiler.tir.ir import Expr
from tunefarm.compiler.tir.ir import Var as LoopVar

DTYPES = {
    "max_pool": ("float32", "float64", "int8", "uint8", "int32"),
    "avg_pool": ("float32", "float64"),
}
MAX_RUNS = 9  # of equal counts along an axis

Combine: TypeAlias = Callable[[Expr, Sequence[LoopVar]], te.Reduce]


@dataclass(frozen=True, slots=True)
class Windows:
    """Overlapping windows of ``kernel`` pixels, ``strides`` apart, over an NHWC image of ``data``
    that ``top`` and ``left`` pixels of padding begin; ``result`` is the shape of their maxima, or
    of their averages if ``counts`` says by how many rows, and columns, each of those is divided."""

    data: tuple[int, ...]
    result: tuple[int, ...]
    dtype: str
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    top: int
    left: int
    counts: tuple[tuple[int, ...], ...] = ()

    @property
    def combine(self) -> Combine:
        """What a window does with its terms."""
        return te.sum if self.counts else te.max

    @property
    def neutral(self) -> Expr:
        return te.identity("add" if self.counts else "max", self.dtype)

    @property
    def side_by_side(self) -> bool:
        """Whether windows are a pixel apart: results stand beside each other as their terms do."""
        return self.strides[1] == 1

    @property
    def operations(self) -> int:
        """Maxima, or additions, that passes down the columns and along the rows take."""
        batch, rows, width, channels = self.result
        columns = self.kernel[0] * self.data[2]
        return batch * rows * channels * (columns + self.kernel[1] * width)

    @property
    def row_bytes(self) -> int:
        """Bytes of a row of the image."""
        return self.data[2] * self.data[3] * dtype_bytes(self.dtype)

    def lanes(self, target: Target) -> int:
        """Of a vector of the target."""
        return target.vector_bytes // dtype_bytes(self.dtype)

    def work_ns(self, target: Target) -> float:
        """About how long they take on one core."""
        return self.operations / self.lanes(target)


def windows_of(function: Function) -> Windows | None:
    """The windows of a function that is a maximum or an average over them of its parameter; None
    for others."""
    body = function.body
    if not isinstance(body, Call) or body.op not in DTYPES or not isinstance(body.args[0], Var):
        return None
    data, result, attrs = tensor_type(body.args[0]), tensor_type(body), body.attrs
    if attrs["data_layout"] != "NSC" or len(data.shape) != 4 or data.dtype not in DTYPES[body.op]:
        return None
    kernel, strides = integers(attrs, "kernel"), integers(attrs, "strides")
    (top, _), (left, _) = pairs(attrs["padding"])
    overlap = kernel[0] > 1 and kernel[1] > strides[1] and integers(attrs, "dilations") == (1, 1)
    inside = top < kernel[0] and (result.shape[1] - 1) * strides[0] - top < data.shape[1]
    # Lanes are channels where windows are further apart: one channel has no loop to be lanes.
    lanes = min(data.shape[2], result.shape[2]) if strides[1] == 1 else 1
    if not (overlap and inside and lanes * data.shape[3] > 1):
        return None
    counts = _counts(attrs, data.shape, result.shape) if body.op == "avg_pool" else ()
    if any(min(c) < 1 or len(list(groupby(c))) > MAX_RUNS for c in counts):
        return None
    return Windows(data.shape, result.shape, data.dtype, kernel, strides, top, left, counts)


def _counts(
    attrs: Attrs, data: Sequence[int], result: Sequence[int]
) -> tuple[tuple[int, ...], ...]:
    """Rows of the windows of each row of results, and columns of those of each column, that lie in
    the data or the counted padding."""
    counts = []
    for axis in (0, 1):
        size, step = integers(attrs, "kernel")[axis], integers(attrs, "strides")[axis]
        (before, _), counted = pairs(attrs["padding"])[axis], pairs(attrs["counted"])[axis]
        first, end = -counted[0], data[axis + 1] + counted[1]
        starts = (at * step - before for at in range(result[axis + 1]))
        counts.append(tuple(min(s + size, end) - max(s, first) for s in starts))
    return tuple(counts)


def scheduled(function: Function) -> Windows:
    """The windows of a function that a config is applied to. Raises ScheduleError for others."""
    w = windows_of(function)
    if w is None:
        raise ScheduleError(
            "the workload is no maximum or average over overlapping windows of NHWC images"
        )
    return w


def place_terms(program: PrimFunc, block: str, loop: LoopVar, lanes: int) -> PrimFunc:
    """Maxima or sums in registers below a loop, term by term over all of a tile: unrolled code of a
    tile finds what that of the one before has in registers."""
    program = s.compute_at(program, block, loop)
    *rows, last, term = own_loops(program, block, loop)
    program, (vector, lane) = s.split(program, last, lanes)
    program = s.reorder(program, term, *rows, vector, lane)
    program = in_registers(program, (term, *rows, vector), lane)
    return s.decompose_reduction(program, block, term)


def average(w: Windows, total: te.Tensor, names: Sequence[str]) -> te.Tensor:
    """The sums ``total`` times the reciprocals of their counts."""
    pixel = w.result[-1] if w.side_by_side else 1

    def element(*at: Expr) -> Expr:
        rows, columns = w.counts
        return total[at] * (
            share_of(rows, at[1], 1, w.dtype) * share_of(columns, at[2], pixel, w.dtype)
        )

    return te.compute(total.shape, element, "average", axis_names=names)


def share_of(counts: Sequence[int], at: Expr, step: int, dtype: str) -> Expr:
    """1 / counts[at // step], told apart where the counts change."""
    runs = [(count, len(list(places))) for count, places in groupby(counts)]
    ends = list(accumulate(length for _, length in runs))
    share: Expr = te.const(1.0 / runs[-1][0], dtype)
    for (count, _), end in reversed(list(zip(runs[:-1], ends[:-1], strict=True))):
        share = te.if_then_else(at < end * step, te.const(1.0 / count, dtype), share)
    return share


def nest_of(w: Windows, target: Target, k: Columns, knobs: Sequence[str]) -> Nest:
    """The nest, for features: windows over rows of an image, ``p`` along pixels and channels."""
    (batch, height, width, channels), (_, rows, across, _) = w.data, w.result
    extents = {"row": batch * rows, "p": across * channels, "ky": w.kernel[0], "kx": w.kernel[1]}
    size, one = dtype_bytes(w.dtype), np.ones(len(whole(k, "nv")), np.int64)
    image = Access(
        "p0", size, (batch * height, width * channels),
        ({"row": w.strides[0], "ky": 1}, {"p": w.strides[1], "kx": channels}),
    )  # fmt: skip
    result = Access("out", size, (extents["row"], extents["p"]), ({"row": 1}, {"p": 1}), write=True)

    def tile(along: Numbers, taps: bool) -> dict[str, Numbers]:
        p = np.minimum(along * one, extents["p"])
        return {"row": one, "p": p} | {a: (extents[a] if taps else 1) * one for a in ("ky", "kx")}

    lanes = w.lanes(target)
    in_row = tile(extents["p"], True)
    tasks = busy_cores(whole(k, "tasks"), target)
    return Nest(
        extents,
        frozenset(("ky", "kx")),
        (image, result),
        {
            "vector": tile(lanes, False),
            "register": tile(lanes * whole(k, "nv") * whole(k, "tile"), False),
            **dict.fromkeys(("l1", "l2", "core"), in_row),
        },
        tasks,
        np.full(len(one), float(w.operations)),
        {name: whole(k, name).astype(np.float64) for name in knobs},
    )
