"""What one call of a scheduled program must do at the least: operations and bytes written."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from tunefarm.compiler.ir import Call, post_order, tensor_type
from tunefarm.compiler.ops.conv import channels_last, pairs, split_shape
from tunefarm.compiler.space import ConfigSpace
from tunefarm.compiler.target import dtype_bytes
from tunefarm.compiler.workload import Workload


def executed_operations(
    workload: Workload, space: ConfigSpace, config: Mapping[str, int | str]
) -> float:
    """Floating-point operations that the config's program cannot avoid.

    What its sketch says that it executes, or the nominal count if that is less, without the taps
    of convolutions that fall on padding (a program may skip them). Raises ScheduleError for a
    config that is not of this space.
    """
    row = space.encode(config)
    index = int(row[0])
    nest = space.sketches[index].nest(space.columns(row[None], index))
    executed = float(nest.operations[0])
    return min(executed, float(workload.flops)) * inner_share(workload)


def inner_share(workload: Workload) -> float:
    """The least share of taps inside the image over the workload's convolutions."""
    calls = [n for n in post_order(workload.function.body) if isinstance(n, Call)]
    return min((_taps_inside(c) for c in calls if c.op == "conv"), default=1.0)


def _taps_inside(conv: Call) -> float:
    """Share of (output, tap) pairs of a convolution that read the image and not its padding."""
    data, kernel = (tensor_type(a).shape for a in conv.args[:2])
    last = channels_last(conv.attrs)
    spatial = split_shape(data, last)[2]
    results = split_shape(tensor_type(conv).shape, last)[2]
    taps = kernel[: len(spatial)] if conv.attrs["kernel_layout"] == "SIO" else kernel[2:]
    shares = []
    for d, (extent, count, width) in enumerate(zip(spatial, results, taps, strict=True)):
        stride, dilation = _at(conv, "strides", d), _at(conv, "dilations", d)
        before = pairs(conv.attrs["padding"])[d][0]
        inside = sum(
            0 <= o * stride - before + t * dilation < extent
            for o in range(count)
            for t in range(width)
        )
        shares.append(inside / max(count * width, 1))
    return prod(shares)


def _at(conv: Call, name: str, dimension: int) -> int:
    values = conv.attrs[name]
    assert isinstance(values, tuple)
    value = values[dimension]
    assert isinstance(value, int)
    return value


def written_bytes(workload: Workload) -> float:
    """Bytes of the outputs, each of which is written once at least."""
    return float(sum(t.size * dtype_bytes(t.dtype) for t in workload.output_types))
