"""What one call of a workload must do at the least."""

from __future__ import annotations

from typing import Any

from tunefarm.compiler.ir import Expr, Function, TensorType, Tuple, Var
from tunefarm.compiler.ops import call
from tunefarm.compiler.space import config_space
from tunefarm.compiler.target import Target
from tunefarm.compiler.workload import Workload
from tunefarm.worker.roofline import (
    executed_operations,
    read_bytes,
    scheduled_operations,
    written_bytes,
)


def fused(params: list[Var], body: Expr) -> Workload:
    return Workload.from_function(Function(tuple(params), body, {"primitive": True}))


def tensor(name: str, *shape: int, dtype: str = "float32") -> Var:
    return Var(name, TensorType(shape, dtype))


def conv(data: Var, kernel: Var, stride: int, **attrs: Any) -> Expr:
    return call(
        "conv", data, kernel, padding=((0, 0),) * 2, data_layout="NSC", kernel_layout="SIO",
        strides=(stride,) * 2, dilations=(1, 1), **attrs,
    )  # fmt: skip


def test_every_operand_of_a_sum_is_read() -> None:
    a, b = tensor("a", 8, 16), tensor("b", 16)
    workload = fused([a, b], call("add", a, b))
    assert read_bytes(workload) == (8 * 16 * 4, 16 * 4)
    assert written_bytes(workload) == 8 * 16 * 4


def test_a_gather_reads_a_row_and_not_its_table() -> None:
    table, rows = tensor("table", 1000, 16), tensor("rows", 3, dtype="int64")
    workload = fused([table, rows], call("gather", table, rows, axis=0))
    assert read_bytes(workload) == (16 * 4, 3 * 8)


def test_what_is_sliced_away_is_not_read_even_through_a_view() -> None:
    x = tensor("x", 4, 100)
    flat = call("reshape", x, shape=(400,))
    workload = fused([x], call("slice", flat, begin=(10,), size=(20,), strides=(1,)))
    assert read_bytes(workload) == (20 * 4,)


def test_of_several_results_the_larger_need_counts() -> None:
    x = tensor("x", 8, 16)
    small = call("sum", x, axes=(1,), keepdims=False)
    workload = fused([x], Tuple((call("exp", x), small)))
    assert read_bytes(workload) == (8 * 16 * 4,)
    assert written_bytes(workload) == (8 * 16 + 8) * 4


def test_a_strided_convolution_steps_over_pixels() -> None:
    data = tensor("data", 1, 16, 16, 8)
    for taps, share in ((1, 0.25), (3, 1.0)):
        kernel = tensor("kernel", taps, taps, 8, 4)
        workload = fused([data, kernel], conv(data, kernel, 2))
        assert read_bytes(workload) == (16 * 16 * 8 * 4 * share, taps * taps * 8 * 4 * 4)


def test_winograds_operations_are_fewer_than_nominal_and_padding_is_counted() -> None:
    data, kernel = tensor("data", 1, 30, 30, 64), tensor("kernel", 3, 3, 64, 64)
    function = Function((data, kernel), conv(data, kernel, 1), {"constants": (1,)})
    workload = Workload.from_function(function)
    space = config_space(workload, Target("llvm -mcpu=znver5 -num-cores=1"))
    config = space.sketch("winograd").default
    operations = scheduled_operations(space, config)
    assert workload.flops / 4.5 < operations < workload.flops / 2
    assert executed_operations(workload, space, config) == operations


def test_terms_of_a_dot_product_count_as_one() -> None:
    """Columns beyond the 72 are padding, which a program may leave out."""
    x, w = (Var(n, TensorType(s, "bfloat16")) for n, s in (("x", (784, 16)), ("w", (16, 72))))
    body = call("matmul", x, w, out_dtype="float32")
    workload = Workload.from_function(Function((x, w), body, {"constants": (1,)}))
    space = config_space(workload, Target("llvm -mcpu=znver5 -num-cores=1"))
    wide = {**space.sketch("dot").default, "nv": 4, "rw": 4, "nb": 2, "mb": 64}
    assert scheduled_operations(space, wide) > workload.flops / 2
    assert executed_operations(workload, space, wide) == workload.flops / 2
