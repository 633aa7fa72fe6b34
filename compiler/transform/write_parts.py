"""Concatenations that cost nothing: each part is written where it belongs in the whole.

    concat(f(x), g(y))   ->   f and g write their rows into one array, each beside the other's

The calls stay in the graph; memory planning gives the parts places inside the whole, and their
kernels are built to write rows that lie ``RowPitch.pitch`` elements apart. A part that is one dense
piece of the whole may have other readers, which find it there: the steps of a recurrent network.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import accumulate
from math import prod

from tunefarm.compiler.ir import Call, Function, children, tensor_type
from tunefarm.compiler.ops.common import integer, normalize_axis
from tunefarm.compiler.row_pitch import RowPitch
from tunefarm.compiler.runtime.arrays import ALIGNMENT
from tunefarm.compiler.target import dtype_bytes
from tunefarm.compiler.transform.plan_memory import (
    Part,
    Value,
    kernel_calls,
    outputs_of,
    result_types,
    stored_value,
)


def joined_parts(main: Function, *, shared: bool = True) -> Iterator[tuple[Part, ...]]:
    """The parts, by concatenation, that the kernels of a fused ``main`` could write in place.

    Each part is the only result of a kernel and begins at a multiple of 64 bytes in the whole.
    Nobody else reads it, but, if they may be ``shared``, kernels that find it dense there.
    """
    calls, results = kernel_calls(main), [stored_value(e) for e in outputs_of(main)]
    uses = Counter(stored_value(a) for c in calls for a in children(c))
    uses.update(results)
    placed = set(results)
    for whole in calls:
        starts = _starts(whole)
        values = [stored_value(a) for a in whole.args]
        if not starts or len(set(values)) < len(values):
            continue
        dense = shared and _rows(whole)[0] == 1 and placed.isdisjoint(values)
        if all(_is_placeable(v) and (dense or uses[v] == 1) for v in values):
            placed.update(values)
            pairs = zip(values, starts, strict=True)
            yield tuple(Part(call, whole, start) for (call, _), start in pairs)  # type: ignore[arg-type]


def row_pitch(part: Part) -> RowPitch | None:
    """How the part's kernel must write it; None where it is one dense piece of the whole."""
    rows, pitch = _rows(part.whole)
    return RowPitch(rows, pitch) if rows > 1 else None


def _concatenation(call: Call) -> Call | None:
    """The operator of a kernel that does nothing but join its parameters, each once, in order."""
    body = call.op.body if isinstance(call.op, Function) else None
    if not isinstance(body, Call) or body.op != "concat":
        return None
    return body if isinstance(call.op, Function) and body.args == call.op.params else None


def _rows(whole: Call) -> tuple[int, int]:
    """Rows of the result of a concatenation, and elements of one."""
    body = _concatenation(whole)
    assert body is not None
    shape = tensor_type(body).shape
    axis = normalize_axis(integer(body.attrs, "axis"), len(shape))
    return prod(shape[:axis]), prod(shape[axis:])


def _starts(call: Call) -> list[int]:
    """The byte where each part of a concatenation begins; [] for other calls and odd places."""
    body = _concatenation(call)
    sizes = [tensor_type(a).size for a in call.args]
    if body is None or not all(sizes):
        return []
    rows, _ = _rows(call)
    widths = [size // rows * dtype_bytes(tensor_type(body).dtype) for size in sizes]
    starts = list(accumulate(widths[:-1], initial=0))
    return [] if any(start % ALIGNMENT for start in starts) else starts


def _is_placeable(value: Value) -> bool:
    """Whether a value is the only result of a kernel that is no concatenation itself."""
    call, _ = value
    return isinstance(call, Call) and len(result_types(call)) == 1 and _concatenation(call) is None
