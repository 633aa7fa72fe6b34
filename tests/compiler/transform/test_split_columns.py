"""Products of few columns more than whole vectors become two, and compute the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tunefarm.compiler.build import build_module
from tunefarm.compiler.ir import Call, Constant, Function, IRModule, TensorType, Var, post_order
from tunefarm.compiler.ops import call
from tunefarm.compiler.target import Target
from tunefarm.compiler.transform.context import PassContext
from tunefarm.compiler.transform.pipeline import optimize

F32 = "float32"
ZEN5 = Target("llvm -mcpu=znver5 -num-cores=1")
ZEN4 = Target("llvm -mcpu=znver4 -num-cores=1")
HOST = Target.host(2)


def module_of(
    shape: tuple[int, ...],
    columns: int,
    taps: int = 1,
    residual: bool = False,
    turned: bool = False,
) -> IRModule:
    """A product or a convolution with a bias and relu, of small whole numbers."""
    rng = np.random.default_rng(0)

    def weights(*extents: int) -> Constant:
        return Constant(rng.integers(-3, 4, extents).astype(F32))

    inputs = [Var("x", TensorType(shape, F32))]
    if len(shape) == 4:
        pad = ((taps // 2,) * 2,) * 2
        filters = weights(taps, taps, shape[-1], columns)
        layouts = {"data_layout": "NSC", "kernel_layout": "SIO"}
        y = call("conv", inputs[0], filters, padding=pad, **layouts)
    else:
        matrix = weights(columns, shape[-1]) if turned else weights(shape[-1], columns)
        y = call("matmul", inputs[0], matrix, transpose_b=turned)
    y = call("add", y, weights(columns))
    if residual:
        inputs.append(Var("r", y.type))  # type: ignore[arg-type]
        y = call("add", y, inputs[1])
    names = tuple(v.name for v in inputs)
    main = Function(tuple(inputs), call("relu", y), {"input_names": names})
    return IRModule({"main": main}, ("y",))


def widths(module: IRModule, target: Target = ZEN5) -> list[int]:
    """Columns of each kernel's result that holds a product."""
    found = []
    for node in post_order(optimize(module, target).main.body):
        if isinstance(node, Call) and isinstance(node.op, Function):
            ops = {str(n.op) for n in post_order(node.op.body) if isinstance(n, Call)}
            if ops & {"conv", "matmul"}:
                found.append(node.type.shape[-1])  # type: ignore[union-attr]
    return found


SPLIT: dict[str, tuple[Any, ...]] = {
    "a product of many more": ((400, 512), 22),
    "a convolution": ((1, 15, 15, 64), 17, 3),
}


@pytest.mark.parametrize("name", SPLIT)
def test_both_parts_make_the_whole(name: str) -> None:
    module = module_of(*SPLIT[name])
    columns = SPLIT[name][1]
    assert widths(module) == [16, columns - 16]
    shape = SPLIT[name][0]
    x = np.random.default_rng(1).integers(-3, 4, shape).astype(F32)
    with PassContext(disabled_pass=("split_columns",)):
        whole = build_module(module, HOST).run({"x": x})["y"]
    np.testing.assert_allclose(build_module(module, HOST).run({"x": x})["y"], whole, 1e-5, 1e-3)


@pytest.mark.parametrize(
    ("inputs", "columns", "parts"),
    [(17, 17, [16, 1]), (16, 18, [16, 2]), (32, 18, [16, 2]), (17, 19, [19]), (16, 20, [20])],
)
def test_a_zen_4_splits_where_it_measured_a_gain(
    inputs: int, columns: int, parts: list[int]
) -> None:
    """0.81 to 0.95 × the time on one core, 18 columns among them; of 19 and 20 1.05 to 1.17 ×."""
    assert widths(module_of((1, 28, 28, inputs), columns, 3), ZEN4) == parts


@pytest.mark.parametrize(
    ("module", "why"),
    [
        (module_of((400, 64), 32), "whole vectors"),
        (module_of((400, 64), 31), "an almost full vector"),
        (module_of((400, 64), 513), "many vectors"),
        (module_of((400, 64), 17), "a sketch that has both parts in one kernel"),
        (module_of((1, 30, 30, 64), 33), "the same of pixels"),
        (module_of((400, 512), 22, residual=True), "a residual would have to be taken apart"),
        (module_of((400, 512), 22, turned=True), "weights whose columns are rows"),
        (module_of((1, 64), 17), "one row"),
    ],
)
def test_it_leaves_alone(module: IRModule, why: str) -> None:
    assert len(widths(module)) == 1, why
