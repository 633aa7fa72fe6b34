"""Models of one operator of onnxruntime's own, built by us and run beside onnxruntime."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper
from tunefarm.compiler.frontend.onnx import from_onnx
from tunefarm.compiler.target import Target

import tunefarm

Array = np.ndarray[Any, Any]
Shapes = Mapping[str, Sequence[int]]
RNG = np.random.default_rng(5)


def normal(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


def ints(*values: Any) -> Array:
    return np.array(values, np.int32)


def model_of(
    op: str,
    inputs: Sequence[Array | None],
    known: Sequence[int] = (),
    outputs: Sequence[int] = (0,),
    domain: str = "com.microsoft",
    opset: int = 18,
    **attrs: Any,
) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """A model of one node, and what its inputs are fed with; ``known`` inputs are initialisers, and
    ``outputs`` tells which of the node's results are read."""
    arrays = {f"i{i}": a for i, a in enumerate(inputs) if a is not None}
    feeds = {n: a for n, a in arrays.items() if int(n[1:]) not in known}
    results = [f"o{i}" if i in outputs else "" for i in range(max(outputs) + 1)]
    names = [f"i{i}" if a is not None else "" for i, a in enumerate(inputs)]
    graph = helper.make_graph(
        [helper.make_node(op, names, results, name="it", domain=domain, **attrs)],
        "g",
        [
            helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
            for n, a in feeds.items()
        ],
        [helper.make_value_info(name, onnx.TypeProto()) for name in results if name],
        [numpy_helper.from_array(a, n) for n, a in arrays.items() if n not in feeds],
    )
    return in_model(graph, opset), feeds


def in_model(graph: onnx.GraphProto, opset: int = 18) -> onnx.ModelProto:
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def by_onnxruntime(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> list[Array]:
    """Its results of the nodes as they are: its optimizers would round operands to bytes."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    results: list[Array] = session.run(None, dict(feeds))
    return results


def assert_alike(
    model: onnx.ModelProto,
    feeds: Mapping[str, Array],
    part: Callable[[int, Array], Array] = lambda i, a: a,
    tolerance: float = 1e-5,
) -> None:
    """Our build's results are onnxruntime's, of each the ``part`` that counts."""
    want = by_onnxruntime(model, feeds)
    module = from_onnx(model, {n: a.shape for n, a in feeds.items()})
    got = list(tunefarm.build(module, Target.host(1)).run(dict(feeds)).values())
    for i, (ours, theirs) in enumerate(zip(got, want, strict=True)):
        assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
        np.testing.assert_allclose(
            part(i, ours), part(i, theirs), rtol=tolerance, atol=tolerance * np.abs(theirs).max()
        )
