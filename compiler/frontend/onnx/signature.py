"""Whether a node has the inputs and attributes that the standard gives its operator.

A converter may then count on inputs that are not optional, on which of them are sequences, and on
the types of attributes; extents and values are its own to look at.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tunefarm.compiler.frontend.onnx.node import Malformed
from tunefarm.compiler.frontend.onnx.operators import PLAIN_DOMAINS, schema_of
from tunefarm.compiler.ir import Expr, Tuple

if TYPE_CHECKING:
    from onnx import NodeProto
    from onnx.defs import OpSchema


def check_node(node: NodeProto, inputs: Sequence[Expr | None], opset: int) -> None:
    """Malformed, with what does not fit, for a node of ONNX's own operators. An operator that is
    younger than the opset, and attributes that are, are what the newest opset says."""
    from onnx.defs import onnx_opset_version

    newest = schema_of(node, onnx_opset_version()) if node.domain in PLAIN_DOMAINS else None
    if newest is not None:
        schema = schema_of(node, opset) or newest
        _check_inputs(inputs, schema)
        _check_attributes(node, schema, newest)


def _check_inputs(inputs: Sequence[Expr | None], schema: OpSchema) -> None:
    given = [i for i, expr in enumerate(inputs) if expr is not None]
    if given and given[-1] >= schema.max_input:
        raise Malformed(f"input {given[-1]} is one too many: it takes {schema.max_input}")
    for i, formal in enumerate(schema.inputs):
        optional = formal.option.name == "Optional" or formal.min_arity == 0
        if i not in given and not optional:
            raise Malformed(f"input {i} is missing")
    for i in given:
        allowed = schema.inputs[min(i, len(schema.inputs) - 1)].types
        if not any("tensor" in t and ("seq" in t) == isinstance(inputs[i], Tuple) for t in allowed):
            kinds = ("a tensor", "a sequence")
            got, wanted = kinds if not isinstance(inputs[i], Tuple) else reversed(kinds)
            raise Malformed(f"input {i} takes {wanted}, not {got}")


def _check_attributes(node: NodeProto, schema: OpSchema, newest: OpSchema) -> None:
    from onnx import AttributeProto

    known = {**newest.attributes, **schema.attributes}
    for attribute in node.attribute:
        formal = known.get(attribute.name)
        got = AttributeProto.AttributeType.Name(attribute.type)
        if formal is not None and got != formal.type.name:
            raise Malformed(f"attribute {attribute.name} is {got}, and must be {formal.type.name}")
    named = {attribute.name for attribute in node.attribute}
    for name, formal in newest.attributes.items():
        if formal.required and known[name].required and name not in named:
            raise Malformed(f"attribute {name} is missing")
