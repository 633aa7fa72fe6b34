"""Dilated convolutions as plain ones of the image's phases, where Winograd's method then pays.

Output pixels of one residue modulo the dilation d read input pixels of the same residue alone: d²
small images, side by side in the batch, of which each is an ordinary convolution.

conv[dilations = d](x[n, h, w, i], k)
    ->  whole(conv(phases(x), k)),  phases: [n, h, w, i] -> [n·d·d, ⌈h / d⌉, ⌈w / d⌉, i]

The two copies are in the model that decides, and what ``split_inputs`` makes of many inputs.
Source: Wang and Ji, "Smoothed Dilated Convolutions for Improved Dense Prediction" (2018), which
decomposes them so.
"""

from __future__ import annotations

from collections.abc import Sequence

from tunefarm.compiler.ir import Call, Constant, Expr, tensor_type
from tunefarm.compiler.ops import call
from tunefarm.compiler.ops.common import integers
from tunefarm.compiler.ops.conv import pairs, result_channels_last
from tunefarm.compiler.space.winograd.transforms import ROW_TILES
from tunefarm.compiler.target import Target
from tunefarm.compiler.transform.constants import reshape, transpose
from tunefarm.compiler.transform.split_inputs import COPY_CYCLES, least_cycles

WORTH = 1.1  # times fewer cycles in the model


def split_dilation(node: Call, target: Target) -> Expr | None:
    """Runs on channels-last graphs; None for other nodes, and where it does not pay."""
    if target.kind != "llvm" or not _fits(node):
        return None
    plain = _plain(node)
    if plain is None or not _pays(node, plain, target):
        return None
    return _whole(plain, _steps(node), tensor_type(node).shape)


def _plain(node: Call) -> Call | None:
    """The convolution of the phases; None where pixels of one residue read those of another."""
    (x, weight), padding = node.args, _padding_of_phases(node)
    if padding is None:
        return None
    phases = _phases(x, _steps(node))
    attrs = {**node.attrs, "dilations": (1, 1), "padding": padding}
    return call("conv", phases, weight, name=node.name, **attrs)


def _pays(node: Call, plain: Call, target: Target) -> bool:
    direct, phased = (least_cycles(n, target) for n in (node, plain))
    copied = tensor_type(node.args[0]).size + tensor_type(node).size
    if direct is None or phased is None:
        return False
    return WORTH * (phased + COPY_CYCLES * copied) < direct


def _fits(node: Call) -> bool:
    """True for convolutions of constant weights that dilate and do not stride, of as many taps as
    Winograd's method knows."""
    if node.op != "conv":
        return False
    attrs, (x, weight) = node.attrs, node.args
    return (
        isinstance(weight, Constant)
        and (attrs["data_layout"], attrs["kernel_layout"]) == ("NSC", "SIO")
        and result_channels_last(attrs)
        and len(weight.data.shape) == 4
        and max(weight.data.shape[:2]) in ROW_TILES
        and tensor_type(x).dtype == tensor_type(node).dtype == "float32"
        and attrs["strides"] == (1, 1)
        and attrs["groups"] == 1
        and attrs["pad_value"] == 0
        and max(_steps(node)) > 1
        and bool(tensor_type(node).size)
    )


def _steps(node: Call) -> tuple[int, ...]:
    """How far pixels are apart that a result reads, where there are several in a dimension."""
    taps, apart = tensor_type(node.args[1]).shape, integers(node.attrs, "dilations")
    return tuple(d if k > 1 else 1 for k, d in zip(taps, apart, strict=False))


def _phase_extents(shape: Sequence[int], steps: Sequence[int]) -> tuple[int, ...]:
    return tuple(-(-e // d) for e, d in zip(shape[1:3], steps, strict=True))


def _padding_of_phases(node: Call) -> tuple[tuple[int, int], ...] | None:
    """What each phase is padded with; None where pixels of one residue read those of another."""
    steps = _steps(node)
    ins = _phase_extents(tensor_type(node.args[0]).shape, steps)
    outs = _phase_extents(tensor_type(node).shape, steps)
    found = []
    taps, padding = tensor_type(node.args[1]).shape[:2], pairs(node.attrs["padding"])
    for (low, _), d, k, n, made in zip(padding, steps, taps, ins, outs, strict=True):
        high = made + k - 1 - n - low // d
        if low % d or high < 0:
            return None
        found.append((low // d, high))
    return tuple(found)


def _phases(x: Expr, steps: Sequence[int]) -> Expr:
    n, h, w, c = tensor_type(x).shape
    (rows, columns), (down, right) = _phase_extents((n, h, w, c), steps), steps
    missing = (0, 0), (0, rows * down - h), (0, columns * right - w), (0, 0)
    if any(m for pair in missing for m in pair):
        x = call("pad", x, padding=missing)
    x = transpose(reshape(x, (n, rows, down, columns, right, c)), (0, 2, 4, 1, 3, 5))
    return reshape(x, (n * down * right, rows, columns, c))


def _whole(y: Expr, steps: Sequence[int], shape: tuple[int, ...]) -> Expr:
    """The image of ``shape`` whose phases ``y`` has; what lies beyond it is cut off."""
    (_, rows, columns, c), (down, right), n = tensor_type(y).shape, steps, shape[0]
    y = transpose(reshape(y, (n, down, right, rows, columns, c)), (0, 3, 1, 4, 2, 5))
    y = reshape(y, (n, rows * down, columns * right, c))
    if tensor_type(y).shape == shape:
        return y
    return call("slice", y, begin=(0,) * 4, size=shape, strides=(1,) * 4)
