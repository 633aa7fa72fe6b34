"""Whether a node has the inputs and attributes that the standard gives its operator.

A converter may then count on inputs that are not optional, on which of them are sequences, and on
the types of attributes; extents and values are its own to look at.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from tunefarm.compiler.frontend.onnx.node import Malformed
from tunefarm.compiler.frontend.onnx.operators import PLAIN_DOMAINS, schema_of
from tunefarm.compiler.ir import Expr, Tuple

if TYPE_CHECKING:
    from onnx import NodeProto
    from onnx.defs import OpSchema


@dataclass(frozen=True, slots=True)
class _Signature:
    """What an operator takes: ``kinds`` are "a tensor", "a sequence" or both, of each input and, of
    further ones, the last; ``types`` are the names of attributes' types."""

    needed: tuple[int, ...]
    most: int
    kinds: tuple[frozenset[str], ...]
    types: Mapping[str, str]
    required: tuple[str, ...]


def check_node(node: NodeProto, inputs: Sequence[Expr | None], opset: int) -> None:
    """Malformed, with what does not fit, for a node of ONNX's own operators."""
    signature = _signature(node.op_type, opset) if node.domain in PLAIN_DOMAINS else None
    if signature is not None:
        _check_inputs(inputs, signature)
        _check_attributes(node, signature)


@cache
def _signature(op: str, opset: int) -> _Signature | None:
    """None of an operator that is not ONNX's. One that is younger than the opset, and attributes
    that are, are what the newest opset says."""
    from onnx.defs import onnx_opset_version

    newest = schema_of(op, onnx_opset_version())
    if newest is None:
        return None
    schema = schema_of(op, opset) or newest
    attributes = {**newest.attributes, **schema.attributes}
    return _Signature(
        tuple(
            i
            for i, formal in enumerate(schema.inputs)
            if formal.option.name != "Optional" and formal.min_arity > 0
        ),
        schema.max_input,
        tuple(_kinds(formal) for formal in schema.inputs),
        {name: formal.type.name for name, formal in attributes.items()},
        tuple(n for n, f in newest.attributes.items() if f.required and attributes[n].required),
    )


def _kinds(formal: OpSchema.FormalParameter) -> frozenset[str]:
    return frozenset("a sequence" if "seq(" in type else "a tensor" for type in formal.types)


def _check_inputs(inputs: Sequence[Expr | None], signature: _Signature) -> None:
    given = {i: expr for i, expr in enumerate(inputs) if expr is not None}
    for i in signature.needed:
        if i not in given:
            raise Malformed(f"input {i} is missing")
    for i, expr in given.items():
        if i >= signature.most:
            raise Malformed(f"input {i} is one too many: it takes {signature.most}")
        kinds = signature.kinds[min(i, len(signature.kinds) - 1)]
        got = "a sequence" if isinstance(expr, Tuple) else "a tensor"
        if got not in kinds:
            raise Malformed(f"input {i} takes {' or '.join(sorted(kinds))}, not {got}")


def _check_attributes(node: NodeProto, signature: _Signature) -> None:
    from onnx import AttributeProto

    for attribute in node.attribute:
        got = AttributeProto.AttributeType.Name(attribute.type)
        wanted = signature.types.get(attribute.name, got)
        if got != wanted:
            raise Malformed(f"attribute {attribute.name} is {got}, and must be {wanted}")
    named = {attribute.name for attribute in node.attribute}
    for name in signature.required:
        if name not in named:
            raise Malformed(f"attribute {name} is missing")
