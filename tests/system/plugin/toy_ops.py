"""A package of a user's: an operator with a sketch, and how ONNX models say it."""

from __future__ import annotations

import numpy as np
from tunefarm.compiler import te
from tunefarm.compiler.frontend.onnx.node import Node
from tunefarm.compiler.ir import Call, Expr, TensorType, Var, tensor_type
from tunefarm.compiler.ops.base import Op, Pattern
from tunefarm.compiler.space import Knob, Nest, Sketch, SketchSpace
from tunefarm.compiler.space.config import Access
from tunefarm.compiler.space.program import create_program

from tunefarm import schedule


def infer(types, attrs):
    (x,) = types
    return TensorType(x.shape[:1], x.dtype)


def compute(tensors, attrs, type):
    (x,) = tensors
    k = te.reduce_axis(x.shape[1], "k")
    return te.compute(type.shape, lambda i: te.sum(x[i, k] * x[i, k], [k]), "sum_squares")


def reference(arrays, attrs):
    (x,) = arrays
    return (x * x).sum(axis=1)


OPERATOR = Op("sum_squares", infer, compute, reference, Pattern.REDUCTION)


def space(function, target):
    """Rows in blocks, each block in one piece."""
    call = function.body
    if not isinstance(call, Call) or call.op != "sum_squares" or not isinstance(call.args[0], Var):
        return None
    m, n = shape = tensor_type(call.args[0]).shape

    def nest(c):
        ones = np.ones(len(c["rows"]), np.int64)
        tile = {"m": c["rows"], "n": ones}
        tiles = dict.fromkeys(("vector", "register", "l1", "l2", "core"), tile)
        accesses = (
            Access("x", 4, shape, ({"m": 1}, {"n": 1})),
            Access("y", 4, (m,), ({"m": 1},), write=True),
        )
        extents = {"m": m, "n": n}
        return Nest(extents, frozenset("n"), accesses, tiles, ones, ones * 2.0 * m * n)

    knobs = (Knob("rows", (1, 2, 4, 8)), Knob("pieces", (1, 2, 4)))
    default = {"sketch": "toy_rows", "rows": 1, "pieces": 1}
    return SketchSpace("toy_rows", 1, knobs, (), default, nest)


def tile(function, target, config):
    program = create_program(function)
    i, k = schedule.loops_of(program, "sum_squares")
    program, (_, rows) = schedule.split(program, i, config["rows"])
    program, (_, _) = schedule.split(program, k, config["pieces"] * 8)
    return schedule.unroll(program, rows)


SKETCH = Sketch("toy_rows", space, tile, first=True)


def convert(node: Node) -> Expr:
    return node.emit("sum_squares", node.x)


CONVERTERS = {"SumSquaresOfRows": convert}
