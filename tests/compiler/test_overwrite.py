"""Kernels that write their result over an operand give the same bits as with a place of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tunefarm.compiler.build import build_kernel
from tunefarm.compiler.ir import Expr, Function, TensorType, Var
from tunefarm.compiler.ops import call
from tunefarm.compiler.overwrite import overwritable
from tunefarm.compiler.packing import pack
from tunefarm.compiler.runtime.arrays import aligned_copy, aligned_empty
from tunefarm.compiler.runtime.kernel import load_kernel
from tunefarm.compiler.space import config_space
from tunefarm.compiler.target import Target
from tunefarm.compiler.workload import Workload

HOST = Target.host(2)
CHANNELS_LAST = {"data_layout": "NSC", "kernel_layout": "SIO"}


def function_of(
    shapes: list[tuple[int, ...]], body: Callable[..., Expr], constants: tuple[int, ...] = ()
) -> Function:
    params = tuple(Var(f"p{i}", TensorType(s, "float32")) for i, s in enumerate(shapes))
    return Function(params, body(*params), {"primitive": True, "constants": constants})


def residual_conv(x: Expr, w: Expr, b: Expr, r: Expr, **attrs: Any) -> Expr:
    y = call("conv", x, w, padding=((1, 1), (1, 1)), **CHANNELS_LAST, **attrs)
    return call("relu", call("add", call("add", y, b), r))


IMAGE = (1, 9, 11, 32)
CASES = {
    "conv": function_of([IMAGE, (3, 3, 32, 32), (32,), IMAGE], residual_conv, (1, 2)),
    "depthwise": function_of(
        [IMAGE, (3, 3, 1, 32), (32,), IMAGE],
        lambda x, w, b, r: residual_conv(x, w, b, r, groups=32),
        (1, 2),
    ),
    "pointwise": function_of(
        [(1, 9, 11, 16), (1, 1, 16, 40), (1, 9, 11, 40)],
        lambda x, w, r: call("add", r, call("conv", x, w, **CHANNELS_LAST)),
        (1,),
    ),
    "matmul": function_of(
        [(29, 50), (50, 37), (37,), (29, 37)],
        lambda x, w, b, r: call("add", call("add", call("matmul", x, w), b), r),
        (1, 2),
    ),
    "rows": function_of(
        [(33, 50), (33, 50)], lambda x, r: call("add", call("softmax", x, axis=-1), r)
    ),
    "elementwise": function_of(
        [(33, 50), (50,), (33, 50)],
        lambda x, b, r: call("multiply", call("tanh", r), call("add", call("exp", r), b)),
    ),
}
RESIDUAL = {"conv": {3}, "depthwise": {3}, "pointwise": {2}, "matmul": {3}, "rows": {1}}


@pytest.mark.parametrize("name", CASES)
def test_the_result_may_lie_where_an_operand_does(name: str) -> None:
    function = CASES[name]
    allowed = overwritable(function)
    assert allowed == RESIDUAL.get(name, allowed) != frozenset()
    workload = Workload.from_function(function)
    space = config_space(workload, HOST)
    rng = np.random.default_rng(0)
    rows = space.sample(rng, 400)
    rows = rows[space.valid(rows)][:6]
    for config in (space.default, *(space.decode(r) for r in rows)):
        kernel = build_kernel(workload, HOST, config, cache=False)
        types = kernel.params
        run = load_kernel([kernel.object], kernel.name, types, target=HOST,
                          workspace_bytes=kernel.workspace_bytes)  # fmt: skip
        arrays = [rng.standard_normal(p.type.shape).astype("float32") for p in function.params]  # type: ignore[union-attr]
        packed = [
            aligned_copy(pack(a, kernel.layouts.get(i), types[i].shape))
            for i, a in enumerate(arrays)
        ]
        apart = aligned_empty(types[-1])
        run.bind(packed, [apart])()
        for index in allowed:
            operands = list(packed)
            place = operands[index] = aligned_copy(packed[index].reshape(types[-1].shape))
            operands[index] = place.reshape(types[index].shape)
            run.bind(operands, [place])()
            np.testing.assert_array_equal(place, apart, err_msg=f"{index} {dict(config)}")


def test_operands_that_other_elements_read_are_not_overwritten() -> None:
    square = [(16, 16), (16, 16)]
    assert not overwritable(function_of(square, lambda x, y: call("matmul", x, y)))
    assert overwritable(function_of(square, lambda x, y: call("add", call("matmul", x, x), y))) == {
        1
    }
    assert not overwritable(function_of(square[:1], lambda x: call("softmax", x, axis=-1)))
    assert not overwritable(
        function_of(square[:1], lambda x: call("add", x, call("transpose", x, axes=(1, 0))))
    )
    normed = function_of(
        square,
        lambda x, y: call("add", call("sum", call("add", x, y), axes=(1,), keepdims=True), y),
    )
    assert not overwritable(normed)


def test_constants_and_other_types_are_not_overwritten() -> None:
    shapes = [(16,), (16,), (1, 16)]
    body = lambda x, y, z: call("add", call("add", x, y), call("reshape", z, shape=(16,)))  # noqa: E731
    assert overwritable(function_of(shapes, body, (0,))) == {1}
