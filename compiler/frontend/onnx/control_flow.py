"""If, Loop and Scan, whose course is known at import: a branch is chosen, a loop written out.

A loop's body becomes part of the graph once for every iteration, with all that an iteration's
number makes constant folded away.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

from tunefarm.compiler.frontend.onnx.node import (
    Malformed,
    Unsupported,
    axis_of,
    concat,
    constant,
    dimension,
    expand_dims,
    rank_of,
    reshape,
    shape_of,
    take_range,
)
from tunefarm.compiler.ir import Constant, Expr, Tuple, tensor_type

if TYPE_CHECKING:
    from onnx import GraphProto, NodeProto

Scope: TypeAlias = "Mapping[str, Expr | None]"
RunGraph: TypeAlias = "Callable[[GraphProto, Scope], list[Expr]]"
"""Import a body; fewer results than the body has mean that problems were noted."""
Flow: TypeAlias = "Callable[[NodeProto, tuple[Expr | None, ...], Scope, RunGraph], Sequence[Expr]]"

_MOST_ITERATIONS = 1024


def _branch(
    node: NodeProto, inputs: tuple[Expr | None, ...], scope: Scope, run: RunGraph
) -> Sequence[Expr]:
    wanted = "then_branch" if _known(inputs, 0, "the condition") else "else_branch"
    return run(next(a.g for a in node.attribute if a.name == wanted), scope)


def _loop(
    node: NodeProto, inputs: tuple[Expr | None, ...], scope: Scope, run: RunGraph
) -> Sequence[Expr]:
    body = _body(node)
    trips, going = _known(inputs, 0, "the trip count"), _known(inputs, 1, "the condition")
    if trips is None and going is None:
        raise Unsupported("a loop without trip count and condition does not end")
    asked, carried = going is not None, [i for i in inputs[2:] if i is not None]
    if not len(body.input) == len(carried) + 2 <= len(body.output) + 1:
        raise Malformed(
            f"a body of {len(body.input)} inputs and {len(body.output)} outputs for "
            f"{len(carried)} values from one iteration to the next"
        )
    rows: list[Sequence[Expr]] = []
    while (trips is None or len(rows) < trips) and going in (None, 1):
        if len(rows) == _MOST_ITERATIONS:
            raise Unsupported(f"loops of more than {_MOST_ITERATIONS} iterations are not supported")
        given = [constant(len(rows), "int64"), constant(True, "bool"), *carried]
        names = [i.name for i in body.input]
        results = run(body, {**scope, **dict(zip(names, given, strict=True))})
        if len(results) < len(body.output):
            return ()
        going = _known(results, 0, "whether the loop goes on") if asked else None
        carried = results[1 : len(carried) + 1]
        rows.append(results[len(carried) + 1 :])
    scans = len(body.output) - 1 - len(carried)
    if scans and not rows:
        raise Unsupported("a loop that never runs has results of no known shape")
    return [*carried, *(_stacked([row[n] for row in rows], 0) for n in range(scans))]


def _known(values: Sequence[Expr | None], index: int, what: str) -> int | None:
    """The number that an operand holds; None if there is no such operand."""
    value = values[index] if index < len(values) else None
    if value is None:
        return None
    if not isinstance(value, Constant):
        raise Unsupported(f"{what} is computed at run time, not a constant")
    if value.data.size != 1 or value.data.dtype.kind not in "biu":
        raise Malformed(f"{what} is {value.type}, expected one number or truth value")
    return int(value.data.reshape(-1)[0])


def _stacked(parts: Sequence[Expr], axis: int) -> Expr:
    """Tensors, or numbers, of equal shape side by side along a new axis."""
    if any(isinstance(p, Tuple) for p in parts):
        raise Unsupported("a loop's results that are joined must be tensors")
    types = {(tensor_type(p).shape, tensor_type(p).dtype) for p in parts}
    if len(types) > 1:
        raise Unsupported("a loop's results that are joined have different types")
    at = axis_of(axis, rank_of(parts[0]) + 1)
    return concat([expand_dims(p, [at]) for p in parts], at)


def _scan(
    node: NodeProto, inputs: tuple[Expr | None, ...], scope: Scope, run: RunGraph
) -> Sequence[Expr]:
    body, given = _body(node), [i for i in inputs if i is not None]
    count = next(a.i for a in node.attribute if a.name == "num_scan_inputs")
    if not 1 <= count <= len(given):
        raise Malformed(f"num_scan_inputs={count} of {len(given)} inputs")
    states, scanned = given[: len(given) - count], given[len(given) - count :]
    if not len(body.input) == len(given) == len(inputs) or len(body.output) < len(states):
        raise Unsupported("the operands are not those of its body; before opset 9 Scan had others")
    outputs = len(body.output) - len(states)

    def listed(name: str, length: int) -> Sequence[int]:
        found = [a.ints for a in node.attribute if a.name == name]
        values = list(found[0]) if found else [0] * length
        if len(values) != length:
            raise Malformed(f"{name} is {values}, and must be {length} integers")
        return values

    axes = [dimension(a, x) for a, x in zip(listed("scan_input_axes", count), scanned, strict=True)]
    extents = {shape_of(x)[a] for a, x in zip(axes, scanned, strict=True)}
    if len(extents) != 1 or not 0 < min(extents) <= _MOST_ITERATIONS:
        raise Unsupported(
            f"scans of {sorted(extents)} elements, of 1 to {_MOST_ITERATIONS} they are"
        )
    (length,) = extents
    backward = listed("scan_input_directions", count)
    rows: list[Sequence[Expr]] = []
    for step in range(length):
        places = [length - 1 - step if back else step for back in backward]
        elements = [_element(*of) for of in zip(scanned, axes, places, strict=True)]
        names = [i.name for i in body.input]
        bound = dict(zip(names, [*states, *elements], strict=True))
        results = run(body, {**scope, **bound})
        if len(results) < len(body.output):
            return ()
        states, row = results[: len(states)], results[len(states) :]
        rows.append(row)
    directions = listed("scan_output_directions", outputs)
    joined = [
        _stacked([row[n] for row in (rows[::-1] if directions[n] else rows)], axis)
        for n, axis in enumerate(listed("scan_output_axes", outputs))
    ]
    return [*states, *joined]


def _element(x: Expr, axis: int, place: int) -> Expr:
    shape = shape_of(x)
    return reshape(take_range(x, axis, place, place + 1), (*shape[:axis], *shape[axis + 1 :]))


def _body(node: NodeProto) -> GraphProto:
    return next(a.g for a in node.attribute if a.name == "body")


FLOWS: Mapping[str, Flow] = {"If": _branch, "Loop": _loop, "Scan": _scan}
