"""Numbers below 2^-126: zeros in a run of a model on x86-64, kept by strict targets and by whoever
calls."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper
from tunefarm.compiler.runtime.native import FLOAT_MODE, flush_bits
from tunefarm.compiler.target import Target

import tunefarm

SHAPE = (1000, 513)  # enough for both threads
SMALL, FACTOR = np.float32(1e-30), np.float32(1e-10)


def product(target: Target) -> tunefarm.Module:
    """x · y, element by element."""
    graph = helper.make_graph(
        [helper.make_node("Mul", ["x", "y"], ["z"])],
        "product",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, SHAPE) for name in "xy"],
        [helper.make_tensor_value_info("z", TensorProto.FLOAT, SHAPE)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    return tunefarm.build(tunefarm.from_onnx(model), target)


def inputs() -> dict[str, NDArray[np.float32]]:
    return {"x": np.full(SHAPE, SMALL), "y": np.full(SHAPE, FACTOR)}


def strict(target: Target) -> Target:
    return Target(f"{target} -precision=strict")


@pytest.mark.parametrize("threads", [1, 2])
def test_results_too_small_for_full_precision_are_zeros(threads: int) -> None:
    target = Target.host(threads)
    expected = np.float32(0) if flush_bits(target) else SMALL * FACTOR
    lib = product(target)
    np.testing.assert_array_equal(lib.run(inputs())["z"], expected)
    seen = lib.graph_executor().run([*inputs().values()])
    np.testing.assert_array_equal(seen[0], expected)


@pytest.mark.parametrize("threads", [1, 2])
def test_strict_targets_keep_them(threads: int) -> None:
    lib = product(strict(Target.host(threads)))
    np.testing.assert_array_equal(lib.run(inputs())["z"], SMALL * FACTOR)
    np.testing.assert_array_equal(lib.graph_executor().run([*inputs().values()])[0], SMALL * FACTOR)


def test_who_calls_keeps_them() -> None:
    lib = product(Target.host(2))
    lib.run(inputs())
    lib.profile(inputs(), repeat=1)
    assert SMALL * FACTOR > 0


def test_threads_compute_as_the_caller_does() -> None:
    """A caller that flushes by itself has its way on all threads."""
    target = strict(Target.host(2))
    lib, bits = product(target), flush_bits(Target.host(2))
    assert lib.library is not None
    set_mode = lib.library.function(FLOAT_MODE)
    mode = set_mode(0)
    set_mode(mode | bits)
    try:
        results = lib.run(inputs())["z"]
    finally:
        set_mode(mode)
    np.testing.assert_array_equal(results, 0 if bits else SMALL * FACTOR)
    np.testing.assert_array_equal(lib.run(inputs())["z"], SMALL * FACTOR)
