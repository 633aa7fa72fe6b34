"""An inverted residual block as stages: an expansion, a depthwise convolution, a projection.

    expand[n, h, w, c]     = Σ x[n, h, w, k] · a[k, c]                    and what is fused behind
                             or a network's first convolution, of taps and few inputs
    depthwise[n, h, w, c]  = Σ expand'[n, h·s + i − p, w·s + j − p, c] · b[i, j, c]
    project[n, h, w, o]    = Σ depthwise'[n, h, w, c] · d[c, o]

Expansion or projection may be missing. The depthwise convolution pads what was expanded, after its
bias and activation: beyond the border it has no terms.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod

from tunefarm.compiler import te
from tunefarm.compiler.ir import Call, Expr, Function, Tuple, post_order, tensor_type
from tunefarm.compiler.ops.common import integers
from tunefarm.compiler.ops.conv import pairs, result_channels_last
from tunefarm.compiler.space.program import create_program, is_elementwise
from tunefarm.compiler.tir import PrimFunc
from tunefarm.compiler.tir import schedule as s
from tunefarm.compiler.tir.ir import Expr as Value
from tunefarm.compiler.tir.schedule.tree import (
    blocks,
    producers_and_consumers,
    reads,
    written_buffer,
)

FEW_INPUTS = 4


@dataclass(frozen=True, slots=True)
class Convolution:
    """One convolution of a block, with the index of its constant weights."""

    anchor: Call
    param: int

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the result: images, rows, columns, channels."""
        return tensor_type(self.anchor).shape

    @property
    def inputs(self) -> int:
        """Terms of a sum, but for the taps."""
        return tensor_type(self.anchor.args[1]).shape[-2]

    @property
    def terms(self) -> int:
        """Of a sum, over inputs and taps."""
        return self.inputs * prod(self.taps)

    @property
    def data_shape(self) -> tuple[int, ...]:
        """Of what it reads: images, rows, columns, channels."""
        shape = tensor_type(self.anchor.args[0]).shape
        channels_last = self.anchor.attrs["data_layout"] == "NSC"
        return shape if channels_last else (shape[0], *shape[2:], shape[1])

    @property
    def taps(self) -> tuple[int, int]:
        height, width = tensor_type(self.anchor.args[1]).shape[:2]
        return height, width

    @property
    def strides(self) -> tuple[int, ...]:
        return integers(self.anchor.attrs, "strides")

    @property
    def dilations(self) -> tuple[int, ...]:
        return integers(self.anchor.attrs, "dilations")

    def span(self, axis: int) -> int:
        """Rows (axis 0) or columns (1) that one result reads."""
        return (self.taps[axis] - 1) * self.dilations[axis] + 1


@dataclass(frozen=True, slots=True)
class InvertedResidual:
    """The convolutions of a fused function; expansion or projection may be None, not both."""

    function: Function
    expand: Convolution | None
    depthwise: Convolution
    project: Convolution | None

    @property
    def rows(self) -> int:
        """Rows of the depthwise convolution's result."""
        return self.depthwise.shape[1]

    @property
    def channels(self) -> int:
        return self.depthwise.shape[-1]


@dataclass(frozen=True, slots=True)
class Stage:
    """The blocks of a convolution: its sum, and what is made of it."""

    sum: str
    value: str


def inverted_residual_of(function: Function) -> InvertedResidual | None:
    """The block that a fused function is; None if it is another function."""
    calls = [e for e in post_order(function.body) if isinstance(e, Call)]
    anchors = [c for c in calls if not is_elementwise(c)]
    kinds = [is_depthwise(c) for c in anchors]
    if isinstance(function.body, Tuple) or kinds not in (
        [False, True],
        [True, False],
        [False, True, False],
    ):
        return None
    middle = kinds.index(True)
    first, last = anchors[:middle], anchors[middle + 1 :]
    if not all(map(is_expansion, first)) or not all(map(is_pointwise, last)):
        return None
    position: dict[Expr, int] = {p: i for i, p in enumerate(function.params)}
    found = [Convolution(c, position.get(c.args[1], -1)) for c in anchors]
    if any(c.param not in function.constants for c in found) or anchors[0].args[0] not in position:
        return None
    return InvertedResidual(
        function,
        found[0] if middle else None,
        found[middle],
        found[-1] if len(found) > middle + 1 else None,
    )


def is_expansion(node: Call) -> bool:
    """True for a convolution that the block can begin with: 1 × 1, or of so few inputs that its sum
    is short, as a network's first one."""
    return is_pointwise(node) or (
        _is_plain(node, ("NSC", "NCS"))
        and node.attrs["groups"] == 1
        and tensor_type(node.args[1]).shape[-2] <= FEW_INPUTS
    )


def is_pointwise(node: Call) -> bool:
    """True for a 1 × 1 convolution, channels last, that the block can begin or end with."""
    return (
        _is_plain(node)
        and tensor_type(node.args[1]).shape[:2] == (1, 1)
        and min(tensor_type(node.args[1]).shape[2:]) > 1
        and node.attrs["groups"] == 1
        and node.attrs["strides"] == (1, 1)
        and all(p == (0, 0) for p in pairs(node.attrs["padding"]))
    )


def is_depthwise(node: Call) -> bool:
    """True for a convolution of images, channels last, each channel by itself."""
    if not _is_plain(node) or min(tensor_type(node.args[1]).shape[:2]) < 2:
        return False
    channels = tensor_type(node.args[0]).shape[-1]
    inner, outputs = tensor_type(node.args[1]).shape[-2:]
    return node.attrs["groups"] == channels == outputs and inner == 1 and channels > 1


def _is_plain(node: Call, layouts: tuple[str, ...] = ("NSC",)) -> bool:
    """True for a convolution of float32 images to channels last, of data in given layouts."""
    types = [tensor_type(a) for a in node.args]
    return (
        node.op == "conv"
        and all(t.dtype == "float32" and len(t.shape) == 4 for t in types)
        and tensor_type(node).dtype == "float32"
        and node.attrs["data_layout"] in layouts
        and result_channels_last(node.attrs)
        and node.attrs["kernel_layout"] == "SIO"
        and node.attrs["pad_value"] == 0
    )


def create_stages(block: InvertedResidual) -> tuple[PrimFunc, list[Stage]] | None:
    """The plain loops of the stages, what is fused behind each folded into one block; None where
    that cannot be."""
    convolutions = [c for c in (block.expand, block.depthwise, block.project) if c is not None]
    computes = {c.anchor: partial(_compute_of(block, c), c) for c in convolutions}
    program = create_program(block.function, computes=computes)
    sums = [b.name for b in blocks(program.body) if b.init is not None]
    for name in sums:
        buffer = written_buffer(s.find_block(program, name))
        readers = [b for b in blocks(program.body) if reads(b, buffer)]
        if not readers or any(b.init is not None for b in readers):
            program, _ = s.cache_write(program, name, "local")
    for name in s.remaining_blocks(program)[:-1]:
        if name not in sums and not _feeds_a_sum(program, name):
            program = s.compute_inline(program, name)
    names = s.remaining_blocks(program)
    if len(sums) != len(convolutions) or names[::2] != sums or len(names) != 2 * len(sums):
        return None
    for name in names[:-1]:
        _, readers = producers_and_consumers(program, written_buffer(s.find_block(program, name)))
        if len(readers) != 1:
            return None
    return program, [Stage(a, b) for a, b in zip(names[::2], names[1::2], strict=True)]


def _feeds_a_sum(program: PrimFunc, block: str) -> bool:
    buffer = written_buffer(s.find_block(program, block))
    return any(b.init is not None and reads(b, buffer) for b in blocks(program.body))


def _compute_of(
    block: InvertedResidual, c: Convolution
) -> Callable[[Convolution, Sequence[te.Tensor]], te.Tensor]:
    if c is block.depthwise:
        return _depthwise
    return _pointwise if is_pointwise(c.anchor) else _of_few_inputs


def _of_few_inputs(c: Convolution, args: Sequence[te.Tensor]) -> te.Tensor:
    x, w = args
    channels_last = c.anchor.attrs["data_layout"] == "NSC"
    (top, _), (left, _) = pairs(c.anchor.attrs["padding"])
    (down, right), (rows, columns) = c.strides, c.dilations
    kh, kw = te.reduce_axis(c.taps[0], "kh"), te.reduce_axis(c.taps[1], "kw")
    k = te.reduce_axis(c.inputs, "k")
    _, height, width, _ = c.data_shape

    def element(n: Value, h: Value, v: Value, o: Value) -> te.Reduce:
        y, z = h * down + kh * rows - top, v * right + kw * columns - left
        inside = (y >= 0) & (y < height) & (z >= 0) & (z < width)
        value = x[n, y, z, k] if channels_last else x[n, k, y, z]
        data = te.if_then_else(inside, value, te.const(0, x.dtype))
        return te.sum(data * w[kh, kw, k, o], [kh, kw, k])

    return te.compute(c.shape, element, "first", axis_names=["n", "h", "w", "o"])


def _pointwise(c: Convolution, args: Sequence[te.Tensor]) -> te.Tensor:
    x, w = args
    k = te.reduce_axis(x.shape[-1], "k")
    zero = te.const(0, "int64")

    def element(n: Value, h: Value, v: Value, o: Value) -> te.Reduce:
        return te.sum(x[n, h, v, k] * w[zero, zero, k, o], [k])

    return te.compute(c.shape, element, "pointwise", axis_names=["n", "h", "w", "o"])


def _depthwise(c: Convolution, args: Sequence[te.Tensor]) -> te.Tensor:
    x, w = args
    (top, _), (left, _) = pairs(c.anchor.attrs["padding"])
    (down, right), (rows, columns) = c.strides, c.dilations
    kh, kw = te.reduce_axis(c.taps[0], "kh"), te.reduce_axis(c.taps[1], "kw")

    def element(n: Value, h: Value, v: Value, o: Value) -> te.Reduce:
        y, z = h * down + kh * rows - top, v * right + kw * columns - left
        inside = (y >= 0) & (y < x.shape[1]) & (z >= 0) & (z < x.shape[2])
        data = te.if_then_else(inside, x[n, y, z, o], te.const(0, x.dtype))
        return te.sum(data * w[kh, kw, te.const(0, "int64"), o], [kh, kw])

    return te.compute(c.shape, element, "depthwise", axis_names=["n", "h", "w", "o"])
