"""Convolutions of bytes in float32, where that is the faster way.

requantize(conv(x, w, pad_value=z) + b, f, t)
    ->  requantize(conv(dequantize(x, 1, z), w in float32) + (b + z · Σ w), f, t)

A processor without dot products of bytes multiplies them as 16-bit numbers, twice as many at once
as float32; Winograd's method needs up to four times fewer products. Its sums are off by at most
5e-6 of the largest (8e-6 of five and seven taps in a row), so here and there a quantum is rounded
to its neighbour: of 514,000 results of four 3×3 layers and a 7×7 one twelve were (tested to one of
2000). First layers, whose pixels of three bytes are copied one by one to be words, are summed as
they are: exactly, as these sums are below 2²⁴.
"""

from __future__ import annotations

from math import prod

import numpy as np
from numpy.typing import NDArray
from tunefarm.compiler.ir import (
    Attrs,
    Call,
    Constant,
    Expr,
    IRModule,
    tensor_type,
)
from tunefarm.compiler.ops import call
from tunefarm.compiler.ops.conv import pad_value, result_channels_last
from tunefarm.compiler.space.dot.gain import gain_over_float32, saved_by_winograd
from tunefarm.compiler.target import Target
from tunefarm.compiler.transform.convert_layout import planes_of, reading_planes
from tunefarm.compiler.transform.integer_products import BYTES, number
from tunefarm.compiler.transform.outline import alone
from tunefarm.compiler.transform.rewrite import Uses, is_call, rewrite_main

WIDE = "float32"
WORTH = 1.15  # times faster in the model: the input takes four times the bytes
EXACT_TERMS = 2**24 // (255 * 128)


def convolve_in_float32(module: IRModule, target: Target) -> IRModule:
    """Runs when convolutions lie as kernels compute them, before anything is fused."""
    if target.kind != "llvm" or target.strict:
        return module
    inputs: dict[tuple[Expr, float], Expr] = {}

    def rule(node: Call, uses: Uses) -> Expr | None:
        if node.op != "requantize":
            return None
        sums, *parameters = node.args
        found = _biased(sums, uses)
        if found is None or not _pays(found[0], target):
            return None
        conv, bias = found
        x, w = conv.args
        assert isinstance(w, Constant)
        zero, attrs = float(pad_value(conv.attrs)), _wide(conv.attrs)
        planes = planes_of(x, uses)
        if planes is not None:
            x, attrs = planes, reading_planes(attrs)
        if (x, zero) not in inputs:
            inputs[x, zero] = _numbers(x, zero)
        weights = Constant(w.data.astype(np.float32), w.name)
        made = call("conv", inputs[x, zero], weights, name=conv.name, **attrs)
        moved = bias + zero * w.data.sum(axis=(0, 1, 2), dtype=np.int64)
        if moved.any():
            made = call("add", made, Constant(moved.astype(np.float32)))
        return call("requantize", made, *parameters, name=node.name, **node.attrs)

    return rewrite_main(module, [rule])


def _biased(sums: Expr, uses: Uses) -> tuple[Call, NDArray[np.int64]] | None:
    """A convolution of bytes and constant weights that nobody else reads, and what is added to its
    sums: a number, or one for each output."""
    bias = np.zeros((), np.int64)
    if is_call(sums, "add") and isinstance(sums, Call) and uses.get(sums, 1) == 1:
        sums, added = sums.args
        if not isinstance(added, Constant) or added.data.shape not in ((), _outputs(sums)):
            return None
        bias = added.data.astype(np.int64)
    if not is_call(sums, "conv") or not isinstance(sums, Call) or uses.get(sums, 1) != 1:
        return None
    x, w = sums.args
    of_bytes = tensor_type(x).dtype in BYTES and tensor_type(w).dtype == "int8"
    lies = sums.attrs["kernel_layout"] == "SIO" and result_channels_last(sums.attrs)
    if not of_bytes or not lies or not isinstance(w, Constant) or len(w.data.shape) != 4:
        return None
    return sums, bias


def _outputs(sums: Expr) -> tuple[int, ...]:
    return tensor_type(sums).shape[-1:]


def _numbers(x: Expr, zero: float) -> Expr:
    """Bytes less their zero point, which stays out of workloads, in float32."""
    return call("dequantize", x, number(1), number(zero)) if zero else call("cast", x, dtype=WIDE)


def _wide(attrs: Attrs) -> Attrs:
    return {**attrs, "pad_value": 0, "out_dtype": ""}


def _pays(conv: Call, target: Target) -> bool:
    """Whether it takes less time than what sums products of bytes, by Winograd's method or with
    sums that are exact. Without an instruction for these, which is a gain of 0, Winograd's always
    does: they are multiplied one by one."""
    wide = alone(conv, (WIDE, WIDE), _wide(conv.attrs))
    dtypes = tuple(tensor_type(a).dtype for a in conv.args)
    gain = gain_over_float32(alone(conv, dtypes, conv.attrs), wide, target)
    exact = gain > 0 and prod(tensor_type(conv.args[1]).shape[:-1]) <= EXACT_TERMS
    return gain * WORTH < 1 and (exact or saved_by_winograd(wide, target) > 1)
