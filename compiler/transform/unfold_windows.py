"""Convolutions of windows copied side by side, which fill a matrix unit's tiles better.

conv(x[8, 7, 7, 512], w[3, 3, 512, o])
    ->  conv(reshape(unfold(x), [8, 7, 7, 9 · 512]), w'[1, 1, 9 · 512, o])

A tile's rows are pixels of a row of the image: seven of these fill half of a tile. A convolution of
single pixels is a product of matrices, whose rows run on from one row of the image to the next. The
copy has a kernel of its own; whether it pays is for the model of the unit's products to say.
"""

from __future__ import annotations

from math import prod

import numpy as np
from tunefarm.compiler.ir import Attrs, Call, Constant, Expr, Function, IRModule, tensor_type
from tunefarm.compiler.ops import call
from tunefarm.compiler.ops.conv import channels_last, result_channels_last
from tunefarm.compiler.space import matrix_tiles
from tunefarm.compiler.space.matrix_tiles.cycles import cycles
from tunefarm.compiler.space.matrix_tiles.shape import tiled_product_of
from tunefarm.compiler.target import LINE_BYTES, Target, dtype_bytes
from tunefarm.compiler.transform.constants import reshape
from tunefarm.compiler.transform.outline import alone
from tunefarm.compiler.transform.rewrite import Uses, rewrite_main

_NARROW = (("bfloat16", "float32"), ("int8", "int32"), ("uint8", "int32"))
WORTH = 1.1  # times fewer clocks in the model
COPY = 16.0  # clocks of a line of windows


def unfold_windows(module: IRModule, target: Target) -> IRModule:
    """Runs on channels-last graphs, when the dtypes of products are settled."""
    if target.kind != "llvm" or not target.has("amx-bf16"):
        return module

    windows: dict[tuple[Expr, str], Call] = {}  # one copy for all who read the same ones

    def rule(node: Call, uses: Uses) -> Expr | None:
        if not _fits(node):
            return None
        unfolded = _of_windows(node, windows)
        return unfolded if _pays(node, unfolded, target) else None

    return rewrite_main(module, [rule])


def _fits(node: Call) -> bool:
    """True for convolutions of constant weights and few bytes whose taps' channels fill lines."""
    if node.op != "conv" or not isinstance(node.args[1], Constant):
        return False
    attrs, x = node.attrs, tensor_type(node.args[0])
    return (
        (x.dtype, attrs["out_dtype"]) in _NARROW
        and attrs["groups"] == 1
        and attrs["kernel_layout"] == "SIO"
        and channels_last(attrs)
        and result_channels_last(attrs)
        and x.shape[-1] * dtype_bytes(x.dtype) % LINE_BYTES == 0
        and tensor_type(node).size > 0
    )


def _of_windows(node: Call, made: dict[tuple[Expr, str], Call]) -> Call:
    """The convolution of single pixels, which are windows of the image; ``made`` has those of
    others."""
    (x, weight), attrs = node.args, node.attrs
    assert isinstance(weight, Constant)
    *window, channels, outputs = weight.data.shape
    terms, ones = prod(window) * channels, (1,) * len(window)
    geometry: Attrs = {n: attrs[n] for n in ("strides", "dilations", "padding", "pad_value")}
    windows = call("unfold", x, name="", **{**geometry, "kernel": tuple(window)})
    windows = made.setdefault((x, repr(windows.attrs)), windows)
    pixels = reshape(windows, (*tensor_type(node).shape[:-1], terms))
    flat = Constant(weight.data.reshape(*ones, terms, outputs), weight.name)
    inside = ((0, 0),) * len(window)
    single: Attrs = {"strides": ones, "dilations": ones, "padding": inside, "pad_value": 0}
    return call("conv", pixels, flat, name=node.name, **{**attrs, **single})


def _pays(node: Call, unfolded: Call, target: Target) -> bool:
    """Whether it takes less than the convolution, the copy included, by the model."""
    windows = tensor_type(unfolded.args[0])
    copy = COPY * windows.size * dtype_bytes(windows.dtype) / LINE_BYTES / target.num_cores
    ours, theirs = _cycles(_kernel(unfolded), target), _cycles(_kernel(node), target)
    return ours is not None and theirs is not None and WORTH * (ours + copy) < theirs


def _kernel(node: Call) -> Function:
    x, w = (tensor_type(a).dtype for a in node.args)
    return alone(node, (x, w), node.attrs)


def _cycles(function: Function, target: Target) -> float | None:
    """Clocks of a product under the default of the unit's sketch; None if it is not the unit's."""
    product, space = tiled_product_of(function, target), matrix_tiles.space(function, target)
    if product is None or space is None:
        return None
    config = {k: np.array([v]) for k, v in space.default.items() if k != "sketch"}
    return float(np.ravel(cycles(product, target, config))[0])
