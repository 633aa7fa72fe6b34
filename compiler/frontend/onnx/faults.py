"""Whose fault it is that a node cannot be imported: the model's, by the standard, or ours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING

from tunefarm.compiler.errors import ShapeError
from tunefarm.compiler.frontend.onnx.node import Malformed
from tunefarm.compiler.frontend.onnx.operators import (
    PLAIN_DOMAINS,
    schema_of,
    subgraphs,
    type_proto,
)
from tunefarm.compiler.ir import Constant, Expr, Tuple

if TYPE_CHECKING:
    from onnx import NodeProto

_MOST_ELEMENTS = 1024
"""Of operands whose values ONNX is told: shapes, axes, sizes of parts."""


class Fault(Enum):
    """What a message says of a model, in this order."""

    INVALID = "the model is not valid"
    MISFIT = "the model cannot be imported"
    UNSUPPORTED = "the model uses what is not supported"


def fault_of(error: Exception, node: NodeProto, inputs: Sequence[Expr | None], opset: int) -> Fault:
    """Whose fault an error at a node is. Operands that do not fit are a misfit where ONNX takes
    them: it does not look at all extents, and some of our operators take fewer ranks and types."""
    if isinstance(error, Malformed) or _refused(node, inputs, opset):
        return Fault.INVALID
    return Fault.MISFIT if isinstance(error, ShapeError) else Fault.UNSUPPORTED


def _refused(node: NodeProto, inputs: Sequence[Expr | None], opset: int) -> bool:
    """Whether ONNX itself finds the node's operands or attributes wrong."""
    import onnx
    from onnx import helper, numpy_helper

    operands = {n: i for n, i in zip(node.input, inputs, strict=False) if i is not None}
    standard = node.domain in PLAIN_DOMAINS and schema_of(node.op_type, opset) is not None
    tensors = not any(isinstance(i, Tuple) for i in operands.values())
    if not standard or not tensors or any(subgraphs(node)):
        return False
    graph = helper.make_graph(
        [node],
        "node",
        [helper.make_value_info(n, type_proto(i)) for n, i in operands.items()],
        [helper.make_value_info(n, onnx.TypeProto()) for n in node.output if n],
        [numpy_helper.from_array(c.data, n) for n, c in _known(operands).items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    try:
        onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True)
    except (onnx.shape_inference.InferenceError, ValueError, IndexError):
        return True
    return False


def _known(operands: Mapping[str, Expr]) -> dict[str, Constant]:
    return {
        name: operand
        for name, operand in operands.items()
        if isinstance(operand, Constant)
        and operand.data.dtype.kind == "i"
        and operand.data.size <= _MOST_ELEMENTS
    }
