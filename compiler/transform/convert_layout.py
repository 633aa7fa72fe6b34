"""Channels last: rewrite operators on images to layout NSC, with transposes around them.

    conv(x, w)                      ->  T⁻(conv[NSC, SIO](T(x), w'))
    flatten(T(x)) @ w               ->  flatten(x) @ w'          (rows of w permuted)
    conv[NSC](T(image), w)          ->  conv[NCS → NSC](image, w)

T moves channels last and T⁻ back. ``push_transposes`` then makes the pairs meet and vanish: inside
a convolutional network none remains.
"""

from __future__ import annotations

from math import prod

from tunefarm.compiler.ir import (
    Attrs,
    Call,
    Constant,
    Expr,
    IRModule,
    Var,
    post_order,
    tensor_type,
)
from tunefarm.compiler.ops import call
from tunefarm.compiler.target import Target
from tunefarm.compiler.transform.constants import (
    constant,
    contiguous,
    inverse,
    permutation,
    reshape,
    transpose,
)
from tunefarm.compiler.transform.push_transposes import TRANSPOSE_RULES, turn_streams
from tunefarm.compiler.transform.rewrite import Uses, is_call, rewrite_main

PLANES = 4  # channels of an image
CONVOLUTIONS = ("conv", "conv_transpose")


def convert_layout(module: IRModule, target: Target) -> IRModule:
    """Images become NSC, kernels of convolutions SIO; transposes are cancelled.

    A model without convolutions keeps its planes: pooling, norms and resizing lose more to two
    transposes than they gain (instance norm of 64 × 128² 1112 µs, 248 in planes; Zen 3). All
    channels are sampled at the same places, which pixels find once for a vector of them: that pays
    anywhere on a CPU.
    """
    convolves = any(is_call(node, *CONVOLUTIONS) for node in post_order(module.main.body))

    def turned(node: Call, uses: Uses) -> Expr | None:
        pays = target.kind == "llvm" if node.op == "sample" else convolves
        return _channels_last(node) if pays else None

    module = rewrite_main(module, [turned])
    module = rewrite_main(module, TRANSPOSE_RULES)
    module = rewrite_main(module.with_body(turn_streams(module.main.body)), TRANSPOSE_RULES)
    return rewrite_main(module, [*TRANSPOSE_RULES, _flatten_into_weights, _read_planes])


def to_channels_last(rank: int) -> tuple[int, ...]:
    """The axes of the transpose NCS → NSC."""
    return (0, *range(2, rank), 1)


def _channels_last(node: Call) -> Expr | None:
    if node.attrs.get("data_layout") != "NCS" and not _is_channel_lrn(node):
        return None
    if node.attrs.get("out_layout"):
        return None  # it reads planes already
    data, *others = node.args
    axes = to_channels_last(len(tensor_type(data).shape))
    attrs = dict(node.attrs)
    if node.op == "lrn":
        attrs["axis"] = len(axes) - 1
    else:
        attrs["data_layout"] = "NSC"
    if attrs.get("kernel_layout") == "OIS":
        attrs["kernel_layout"] = "SIO"
        others[0] = transpose(others[0], (*range(2, len(axes)), 1, 0))
    if not isinstance(node.op, str):
        return None
    converted = call(node.op, transpose(data, axes), *others, name=node.name, **attrs)
    return transpose(converted, inverse(axes))


def _read_planes(node: Call, uses: Uses) -> Expr | None:
    """A convolution of a model's input of few channels reads their planes where they lie."""
    if node.op != "conv" or node.attrs["data_layout"] != "NSC" or node.attrs["groups"] != 1:
        return None
    image = planes_of(node.args[0], uses)
    if not isinstance(image, Var):
        return None
    attrs = reading_planes(node.attrs)
    return call("conv", image, *node.args[1:], name=node.name, **attrs)


def planes_of(pixels: Expr, uses: Uses) -> Expr | None:
    """The planes of few channels that are turned to pixels for one reader; None for other tensors,
    and if others read them too."""
    if not is_call(pixels, "transpose") or uses.get(pixels, 1) > 1:
        return None
    assert isinstance(pixels, Call)
    image = pixels.args[0]
    shape = tensor_type(image).shape
    turned = permutation(pixels) == to_channels_last(len(shape))
    return image if turned and shape[1] <= PLANES else None


def reading_planes(attrs: Attrs) -> Attrs:
    """The attributes of a convolution that reads planes instead of pixels."""
    return {**attrs, "data_layout": "NCS", "out_layout": "NSC"}


def _is_channel_lrn(node: Call) -> bool:
    return node.op == "lrn" and node.attrs["axis"] == 1 and len(tensor_type(node).shape) > 2


def _flatten_into_weights(node: Call, uses: Uses) -> Expr | None:
    """matmul(reshape(transpose(x), [n, k]), w)  ->  matmul(reshape(x, [n, k]), w'), rows moved."""
    if node.op != "matmul" or node.attrs["transpose_a"]:
        return None
    flat, weight = node.args
    if not is_call(flat, "reshape") or not isinstance(weight, Constant):
        return None
    assert isinstance(flat, Call)
    moved = flat.args[0]
    if not is_call(moved, "transpose") or weight.data.ndim != 2:
        return None
    assert isinstance(moved, Call)
    axes = permutation(moved)
    shape = tensor_type(moved).shape
    flat_shape = tensor_type(flat).shape
    if axes[0] != 0 or flat_shape != (shape[0], prod(shape[1:])):
        return None
    rows = _permuted_rows(weight, shape[1:], axes, bool(node.attrs["transpose_b"]))
    return call("matmul", reshape(moved.args[0], flat_shape), rows, name=node.name, **node.attrs)


def _permuted_rows(
    weight: Constant, extents: tuple[int, ...], axes: tuple[int, ...], transposed: bool
) -> Constant:
    """Weights whose contracted index runs over the extents in the order before the transpose."""
    order = [inverse(axes)[a] - 1 for a in range(1, len(axes))]
    data = weight.data
    if transposed:
        split = data.reshape(data.shape[0], *extents)
        moved = split.transpose(0, *(o + 1 for o in order))
    else:
        split = data.reshape(*extents, data.shape[1])
        moved = split.transpose(*order, len(extents))
    return constant(contiguous(moved).reshape(data.shape), weight, weight.name)
