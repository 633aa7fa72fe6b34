"""Operands and results of a product as tensors in memory, whose tiles can be boxes."""

from __future__ import annotations

from tunefarm.compiler.gpu.boxes import MAX_EXTENT, STRIDE_BYTES
from tunefarm.compiler.tir.affine import affine
from tunefarm.compiler.tir.ir import Block, Expr

Axes = tuple[tuple[str, int, int], ...]
"""Names ("b", "m", "n", "k"), extents and strides in elements, that of stride 1 first."""


def axes_in_memory(
    node: Block, index: Expr, item_bytes: int, inner: tuple[str, ...]
) -> Axes | None:
    """The axes of what a block reads or writes at an index; None if its elements do not lie as a
    tensor with rows of whole 16 bytes along one of ``inner``."""
    form = affine(index)
    axes = [(i.var.name, i.extent, form.coefficient(i.var)) for i in node.iters]
    if form.const or form.variables() - {i.var for i in node.iters}:
        return None
    axes = sorted((a for a in axes if a[2] or a[0] != "b"), key=lambda axis: axis[2])
    own, *others = axes
    unit = STRIDE_BYTES // item_bytes
    fits = own[0] in inner and own[2] == 1 and all(stride % unit == 0 for _, _, stride in others)
    fits = fits and all(stride > 0 and extent <= MAX_EXTENT for _, extent, stride in axes)
    return tuple(axes) if fits else None
