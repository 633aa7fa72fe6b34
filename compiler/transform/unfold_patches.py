"""Convolutions whose windows lie side by side as products, of a matrix unit or of 16-bit floats.

conv[strides = 16](x[n, 3, 224, 224], w[16, 16, 3, o])
    ->  reshape(matmul(patches[n · 14 · 14, 3 · 16 · 16], w'), [n, 14, 14, o])

A window of the patch embedding of a vision transformer shares no pixel with another: patches are
the image's own numbers in another order, and one kernel more copies it. Convolutions of few
channels fill no step of a unit's terms, of three no words of two; products of patches do.
"""

from __future__ import annotations

from math import prod

from tunefarm.compiler.ir import Call, Constant, Expr, IRModule, tensor_type
from tunefarm.compiler.ops import call
from tunefarm.compiler.ops.common import integers
from tunefarm.compiler.ops.conv import channels_last, pairs, result_channels_last, split_shape
from tunefarm.compiler.space import float_parts
from tunefarm.compiler.space.dot.gain import FMA_CYCLES
from tunefarm.compiler.space.float_parts.forms import DEPTH, PART
from tunefarm.compiler.target import Target
from tunefarm.compiler.transform.constants import constant, contiguous, reshape, transpose
from tunefarm.compiler.transform.lower_precision import PRECISIONS, gain_of, is_lowered
from tunefarm.compiler.transform.outline import alone
from tunefarm.compiler.transform.push_reshapes import RESHAPE_RULES
from tunefarm.compiler.transform.rewrite import Uses, rewrite_main

UNIT = "amx-bf16"
COPY_CYCLES = 0.7  # of an element of a patch (Zen 5: of 4 × 4 pixels; 0.2 of 16 × 16)


def unfold_patches(module: IRModule, target: Target) -> IRModule:
    """Runs on channels-last graphs, before products take another precision."""
    if target.kind != "llvm" or target.strict:
        return module
    dtype = PRECISIONS.get(str(module.main.attrs.get("precision")))
    if dtype is None and not target.has(UNIT):
        return module

    def rule(node: Call, uses: Uses) -> Expr | None:
        if not _has_patches(node):
            return None
        product = _product_of_patches(node)
        rounded = dtype is not None and _gains_rounded(node, product, dtype, target)
        gains = rounded or _gains_in_parts(product, target)
        return reshape(product, tensor_type(node).shape) if gains else None

    unfolded = rewrite_main(module, [rule])
    return module if unfolded is module else rewrite_main(unfolded, RESHAPE_RULES)


def _has_patches(node: Call) -> bool:
    """True for convolutions of constant weights and few channels whose windows tile the image."""
    if node.op != "conv" or not isinstance(node.args[1], Constant):
        return False
    attrs, (x, weight) = node.attrs, map(tensor_type, node.args)
    _, channels, spatial = split_shape(x.shape, channels_last(attrs))
    window = weight.shape[:-2]
    return (
        attrs["kernel_layout"] == "SIO"
        and attrs["groups"] == 1
        and x.dtype == "float32"
        and channels < DEPTH
        and prod(window) > 1
        and integers(attrs, "strides") == window
        and all(d == 1 for d in integers(attrs, "dilations"))
        and all(p == (0, 0) for p in pairs(attrs["padding"]))
        and all(extent % taps == 0 for extent, taps in zip(spatial, window, strict=True))
        and result_channels_last(attrs)
        and tensor_type(node).size > 0
    )


def _product_of_patches(node: Call) -> Call:
    """The product of patches and weights, of as many rows as there are windows."""
    x, weight = node.args
    assert isinstance(weight, Constant)
    last = channels_last(node.attrs)
    shape = tensor_type(x).shape
    batch, channels, spatial = split_shape(shape, last)
    window, outputs = weight.data.shape[:-2], weight.data.shape[-1]
    rank, made = len(window), tensor_type(node).shape
    # [n, (c,) g0, k0, g1, k1, … (, c)]  ->  [n, g0, g1, …, (c,) k0, k1, … (, c)]
    cut = [n for e, k in zip(spatial, window, strict=True) for n in (e // k, k)]
    before, behind = ([], [channels]) if last else ([channels], [])
    first = 1 + len(before)
    grid, taps = range(first, first + 2 * rank, 2), range(first + 1, first + 2 * rank, 2)
    axes = (0, *grid, *range(1, first), *taps, *range(first + 2 * rank, first + 2 * rank + last))
    pixels = transpose(reshape(x, (batch, *before, *cut, *behind)), axes)
    terms = prod(window) * channels
    order = range(rank + 2) if last else (rank, *range(rank), rank + 1)
    rows = contiguous(weight.data.transpose(tuple(order))).reshape(terms, outputs)
    patches = reshape(pixels, (prod(made[:-1]), terms))
    return call("matmul", patches, constant(rows, weight, weight.name), name=node.name)


def _gains_rounded(node: Call, product: Call, dtype: str, target: Target) -> bool:
    """Whether 16 bits are faster in the product: without a unit than the convolution is either way,
    the copy of patches included."""
    if not is_lowered(product, dtype, target):
        return False
    if dtype == PART and target.has(UNIT):
        return True
    rows, terms = tensor_type(product.args[0]).shape
    vectors = -(-tensor_type(product).shape[-1] // target.lanes("float32"))
    multiply = rows * terms * vectors * FMA_CYCLES
    copied = multiply / gain_of(product, dtype, target) + COPY_CYCLES * rows * terms
    return copied < multiply / max(gain_of(node, dtype, target), 1.0)


def _gains_in_parts(product: Call, target: Target) -> bool:
    """Whether the unit is the way to the product in float32, too."""
    found = float_parts.space(alone(product, ("float32", "float32"), product.attrs), target)
    return found is not None and found.preferred
