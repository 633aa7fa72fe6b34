"""What one call of a program must do at the least: operations, bytes read and bytes written."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from tunefarm.compiler.ir import (
    Call,
    Expr,
    Tuple,
    TupleGetItem,
    TupleType,
    post_order,
    tensor_type,
)
from tunefarm.compiler.ops.base import OPS, Pattern
from tunefarm.compiler.ops.conv import channels_last, pairs, split_shape
from tunefarm.compiler.space import ConfigSpace
from tunefarm.compiler.target import dtype_bytes
from tunefarm.compiler.workload import Workload

_GATHERS = ("gather", "gather_elements", "gather_nd")


def executed_operations(
    workload: Workload, space: ConfigSpace, config: Mapping[str, int | str]
) -> float:
    """Floating-point operations that the config's program cannot avoid.

    What its sketch says that it executes, or the nominal count if that is less, without the taps
    of convolutions that fall on padding (a program may skip them). Terms that an instruction sums
    in a lane count as one. Raises ScheduleError for a config that is not of this space.
    """
    scheduled = scheduled_operations(space, config)
    nominal = workload.flops / space.sketch(str(config["sketch"])).terms
    return min(scheduled, nominal) * inner_share(workload)


def scheduled_operations(space: ConfigSpace, config: Mapping[str, int | str]) -> float:
    """Operations of a config's program as its sketch tells them, padding and all; ScheduleError
    for a config that is not of this space."""
    row = space.encode(config)
    index = int(row[0])
    nest = space.sketches[index].nest(space.columns(row[None], index))
    return float(nest.operations[0])


def inner_share(workload: Workload) -> float:
    """The least share of taps inside the image over the workload's convolutions."""
    calls = [n for n in post_order(workload.function.body) if isinstance(n, Call)]
    return min((_taps_inside(c) for c in calls if c.op == "conv"), default=1.0)


def _taps_inside(conv: Call) -> float:
    """Share of (output, tap) pairs of a convolution that read the image and not its padding."""
    last = channels_last(conv.attrs)
    spatial = split_shape(tensor_type(conv.args[0]).shape, last)[2]
    results = split_shape(tensor_type(conv).shape, last)[2]
    shares = []
    for d, (extent, count, width) in enumerate(zip(spatial, results, _taps(conv), strict=True)):
        stride, dilation = _at(conv, "strides", d), _at(conv, "dilations", d)
        before = pairs(conv.attrs["padding"])[d][0]
        inside = sum(
            0 <= o * stride - before + t * dilation < extent
            for o in range(count)
            for t in range(width)
        )
        shares.append(inside / max(count * width, 1))
    return prod(shares)


def _taps(conv: Call) -> tuple[int, ...]:
    """The spatial extents of a convolution's kernel."""
    kernel = tensor_type(conv.args[1]).shape
    return kernel[:-2] if conv.attrs["kernel_layout"] == "SIO" else kernel[2:]


def _at(conv: Call, name: str, dimension: int) -> int:
    values = conv.attrs[name]
    assert isinstance(values, tuple)
    value = values[dimension]
    assert isinstance(value, int)
    return value


def read_bytes(workload: Workload) -> tuple[float, ...]:
    """Bytes of each parameter that a call cannot avoid to read, once each.

    A gather reads a row of its table, as all indices may be the same; a strided convolution steps
    over pixels.
    """
    body = workload.function.body
    nodes = [n for n in post_order(body) if not isinstance(n, Tuple)]
    outputs = body.fields if isinstance(body, Tuple) else (body,)
    needed = dict.fromkeys(nodes, 0.0) | {o: float(_size(o)) for o in outputs}
    for node in reversed(nodes):
        if isinstance(node, Call):
            for index, operand in enumerate(node.args):
                needed[operand] = max(needed[operand], _read_of(node, index, needed[node]))
        elif isinstance(node, TupleGetItem):
            needed[node.value] = max(needed[node.value], needed[node])
    return tuple(needed.get(p, 0.0) * dtype_bytes(p.type.dtype) for p in workload.function.params)


def _read_of(call: Call, index: int, needed: float) -> float:
    """Elements of an operand that so many elements of a call's result need at the least."""
    size = float(_size(call.args[index]))
    if call.op in _GATHERS and index == 0:
        return min(needed, _size(call) / max(1, _size(call.args[1])))
    if OPS[str(call.op)].pattern <= Pattern.INJECTIVE:
        return min(size, needed)
    if call.op == "conv" and index == 0:
        return size * prod(min(1.0, n / _at(call, "strides", d)) for d, n in enumerate(_taps(call)))
    return size


def _size(value: Expr) -> int:
    kind = value.type
    return sum(f.size for f in kind.fields) if isinstance(kind, TupleType) else kind.size


def written_bytes(workload: Workload) -> float:
    """Bytes of the outputs, each of which is written once at least."""
    return float(sum(t.size * dtype_bytes(t.dtype) for t in workload.output_types))
