"""A first convolution joins the pooling that alone reads it, where it pays."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from pass_harness import agree, kernels_in, module_of, var
from tunefarm.compiler.evaluate import evaluate
from tunefarm.compiler.extract import tasks_of
from tunefarm.compiler.ir import Constant, Expr, IRModule, Tuple
from tunefarm.compiler.ops import call
from tunefarm.compiler.space import config_space
from tunefarm.compiler.target import Target
from tunefarm.compiler.transform import PassContext, optimize

from tunefarm import api

TARGET = Target("llvm -mcpu=znver5 -num-cores=2")
CONV, WHOLE = "conv add relu", "conv add relu max_pool"
X = var("x", 1, 3, 128, 128)


def _constant(*shape: int) -> Constant:
    rng = np.random.default_rng(sum(shape))
    return Constant(rng.standard_normal(shape, np.float32) * np.float32(0.3))


def first(outputs: int = 64, taps: int = 7, activation: str = "relu") -> Expr:
    """A network's first convolution, channels first, with bias and activation."""
    pad = (taps // 2, taps // 2)
    weights = _constant(outputs, 3, taps, taps)
    value = call("conv", X, weights, strides=(2, 2), padding=(pad, pad))
    return call(activation, call("add", value, _constant(outputs, 1, 1)))


def pooled(value: Expr, op: str = "max_pool") -> Expr:
    border = ((1, 1), (1, 1))
    more = {"counted": border} if op == "avg_pool" else {}
    return call(op, value, kernel=(3, 3), strides=(2, 2), padding=border, **more)  # type: ignore[arg-type]


def _kernels(body: Expr, config: dict[str, int] | None = None) -> tuple[IRModule, list[str]]:
    """The optimised module, whose results agree, and its kernels' operators."""
    module = module_of([X], body)
    with PassContext(config=config or {}):
        optimized = optimize(module, TARGET)
    inputs = {"x": np.random.default_rng(0).standard_normal(X.type.shape).astype(np.float32)}
    agree(optimized, module, inputs, rtol=2e-4, atol=2e-4)
    return optimized, [n for n in kernels_in(optimized) if "conv" in n or "pool" in n]


def test_the_start_of_a_resnet_is_one_kernel_and_one_task() -> None:
    module, names = _kernels(pooled(first()))
    assert names == [WHOLE]
    (task,) = (t for t in tasks_of(module, TARGET) if "conv" in t.workload.summary)
    assert config_space(task.workload, TARGET).default["sketch"] == "pooled_winograd"
    assert _kernels(pooled(first()), {"fuse_ops.join_pooling": 0})[1] == [CONV, "max_pool"]
    assert _kernels(pooled(first()), {"fuse_ops.max_nodes": 3})[1] == [CONV, "max_pool"]


def _read_twice() -> Expr:
    value = first()
    return Tuple((pooled(value), value))


@pytest.mark.parametrize(
    ("build", "wanted"),
    [
        (_read_twice, [CONV, "max_pool"]),
        (lambda: pooled(first(), "avg_pool"), [CONV, "avg_pool"]),
        (lambda: pooled(first(taps=3)), [CONV, "max_pool"]),
        (lambda: call("sigmoid", pooled(first())), [CONV, "max_pool sigmoid"]),
        (lambda: pooled(pooled(first())), [WHOLE, "max_pool"]),
    ],
    ids=["a result", "averages", "3 x 3 taps", "an operator behind", "two poolings"],
)
def test_what_joins_and_what_does_not(build: Callable[[], Expr], wanted: list[str]) -> None:
    assert _kernels(build())[1] == wanted


def test_a_pooled_part_of_a_concatenation_is_written_in_place() -> None:
    """As DenseNets have it: a kernel of whole images whose rows lie apart in the result."""
    joined = call("concat", pooled(first(64)), pooled(first(48)), axis=1)
    body = call("conv", joined, _constant(8, 112, 1, 1), padding=((0, 0), (0, 0)))
    module = module_of([X], body)
    library = api.build(module, TARGET if Target.host().mcpu == "znver5" else Target.host(2))
    x = np.random.default_rng(0).standard_normal(X.type.shape).astype(np.float32)
    (wanted,) = evaluate(module.main, [x])
    (result,) = library.run({"x": x}).values()
    np.testing.assert_allclose(result, wanted, rtol=2e-4, atol=1e-3)
    labels = [node.label for node in library.profile({"x": x}).nodes]
    assert sum("max_pool" in label for label in labels) == 2
    assert not any("concat" in label for label in labels)
