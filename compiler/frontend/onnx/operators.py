"""What imports an operator of ONNX: a converter, a flow, the body that the standard or the model
gives it. Asked of nodes that were not converted too: those behind others that cannot be."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from tunefarm.compiler import plugins
from tunefarm.compiler.errors import PluginError
from tunefarm.compiler.frontend.onnx import (
    contract,
    control_flow,
    fourier,
    math,
    microsoft,
    nn,
    quantize,
    recurrent,
    reduce,
    resize,
    sample,
    sequence,
    shape,
)
from tunefarm.compiler.frontend.onnx.node import Converter, Malformed, Unsupported
from tunefarm.compiler.ir import Expr, Tuple, tensor_type

if TYPE_CHECKING:
    from onnx import FunctionProto, GraphProto, NodeProto
    from onnx.defs import OpSchema

CONVERTERS: Mapping[str, Converter] = {
    **math.CONVERTERS,
    **contract.CONVERTERS,
    **fourier.CONVERTERS,
    **reduce.CONVERTERS,
    **nn.CONVERTERS,
    **shape.CONVERTERS,
    **resize.CONVERTERS,
    **sample.CONVERTERS,
    **sequence.CONVERTERS,
    **quantize.CONVERTERS,
    **recurrent.CONVERTERS,
}
PLAIN_DOMAINS = ("", "ai.onnx")
UNKNOWN = "the operator is not supported"
Functions = Mapping[tuple[str, str], "FunctionProto"]


def converter_of(node: NodeProto) -> Converter | None:
    """The converter of an operator, None for one of ONNX's own that has none; Unsupported, with the
    reason, for one of another domain."""
    if node.domain == microsoft.DOMAIN and node.op_type in microsoft.CONVERTERS:
        return microsoft.CONVERTERS[node.op_type]
    if node.domain not in PLAIN_DOMAINS:
        return _foreign(node)
    return CONVERTERS.get(node.op_type) or plugins.converters("ai.onnx").get(node.op_type)


def unsupported_in(
    nodes: Iterable[NodeProto],
    functions: Functions,
    opset: int,
    seen: set[tuple[str, str]] | None = None,
) -> Iterator[tuple[NodeProto, str]]:
    """Nodes whose operators nothing imports, whatever their operands are, and why; those of bodies
    of loops, branches and functions too. Functions that were ``seen`` are passed over."""
    seen = set() if seen is None else seen
    for node in nodes:
        key = node.domain, node.op_type
        function = functions.get(key)
        if function is not None:
            if key not in seen:
                seen.add(key)
                own = {e.domain or "ai.onnx": e.version for e in function.opset_import}
                version = own.get("ai.onnx", opset)
                yield from unsupported_in(function.node, functions, version, seen)
            continue
        reason = _why_unsupported(node, functions, opset)
        if reason:
            yield node, reason
        for graph in subgraphs(node):
            yield from unsupported_in(graph.node, functions, opset, seen)


def _why_unsupported(node: NodeProto, functions: Functions, opset: int) -> str:
    """Empty for an operator that is imported with some operands."""
    if node.domain in PLAIN_DOMAINS and node.op_type in control_flow.FLOWS:
        return ""
    try:
        if converter_of(node) is not None:
            return ""
    except (Unsupported, PluginError) as error:
        return str(error)
    schema = schema_of(node.op_type, opset)
    if schema is None or not schema.has_function:
        depends_on_types = schema is not None and schema.has_context_dependent_function
        return "" if depends_on_types else UNKNOWN
    body = standard_body(node, (), opset)
    inner = next(unsupported_in(body.node, functions, opset), None) if body is not None else None
    return "" if inner is None else f"{inner[0].op_type} in its body: {inner[1]}"


def subgraphs(node: NodeProto) -> Iterator[GraphProto]:
    """The bodies of a loop, the branches of a condition."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def _foreign(node: NodeProto) -> Converter:
    """The converter that a plug-in has for an operator of another domain than ONNX's own."""
    known = plugins.converters(node.domain)
    if not known:
        raise Unsupported(
            f"{UNKNOWN}, nor is there a plug-in for its domain "
            f"(an entry point {node.domain} of {plugins.CONVERTERS})"
        )
    if node.op_type not in known:
        names = ", ".join(sorted(known))
        raise Unsupported(f"the plug-ins for the domain {node.domain!r} convert {names} alone")
    return known[node.op_type]


def standard_body(
    node: NodeProto, inputs: Sequence[Expr | None], opset: int
) -> FunctionProto | None:
    """The body in simpler operators that the ONNX standard gives for some operators."""
    import onnx

    schema = schema_of(node.op_type, opset)
    if schema is None:
        return None
    serialized: bytes | None = None
    if schema.has_function:
        version = _latest(schema.function_opset_versions, opset)
        serialized = schema.get_function_with_opset_version(version)
    elif schema.has_context_dependent_function:
        version = _latest(schema.context_dependent_function_opset_versions, opset)
        types = [type_proto(i).SerializeToString() for i in inputs]
        try:
            serialized = schema.get_context_dependent_function_with_opset_version(
                version, node.SerializeToString(), types
            )
        except (ValueError, RuntimeError) as error:
            raise Malformed(f"ONNX makes no body of it: {error}") from None
    if not serialized:
        return None
    body = onnx.FunctionProto()
    body.ParseFromString(serialized)
    for name, default in schema.attributes.items():
        if default.default_value.name and all(a.name != name for a in body.attribute_proto):
            body.attribute_proto.append(default.default_value)
    return body


def schema_of(op: str, opset: int) -> OpSchema | None:
    """What the standard says of an operator; None if it has none of this name."""
    import onnx

    try:
        return onnx.defs.get_schema(op, opset, "")
    except onnx.defs.SchemaError:
        return None


def _latest(versions: Sequence[int], opset: int) -> int:
    return max((v for v in versions if v <= opset), default=min(versions))


def type_proto(expr: Expr | None) -> Any:
    """An operand's type as ONNX writes it; an empty one of an operand that is left out."""
    import onnx

    if expr is None:
        return onnx.TypeProto()
    if isinstance(expr, Tuple):
        if not expr.fields:
            return onnx.TypeProto()
        return onnx.helper.make_sequence_type_proto(type_proto(expr.fields[0]))
    type = tensor_type(expr)
    element = onnx.helper.np_dtype_to_tensor_dtype(_numpy(type.dtype))
    return onnx.helper.make_tensor_type_proto(element, type.shape)


def _numpy(dtype: str) -> np.dtype[Any]:
    from tunefarm.compiler.dtypes import numpy_dtype

    return numpy_dtype(dtype)
