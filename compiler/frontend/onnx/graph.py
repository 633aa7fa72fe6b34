"""Walk an ONNX graph node by node: constants, functions, branches, and what is unsupported, of
which there may be more behind what cannot be imported."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING, Any

import numpy as np
from tunefarm.compiler.dtypes import DTYPES
from tunefarm.compiler.errors import PluginError, ShapeError
from tunefarm.compiler.frontend.onnx import control_flow, sequence
from tunefarm.compiler.frontend.onnx.faults import Fault, fault_of
from tunefarm.compiler.frontend.onnx.node import Converter, Malformed, Node, Unsupported, dtype_name
from tunefarm.compiler.frontend.onnx.operators import (
    PLAIN_DOMAINS,
    UNKNOWN,
    converter_of,
    standard_body,
    subgraphs,
    unsupported_in,
)
from tunefarm.compiler.frontend.onnx.signature import check_node
from tunefarm.compiler.ir import Constant, Expr, Tuple

if TYPE_CHECKING:
    from onnx import AttributeProto, FunctionProto, GraphProto, NodeProto, TensorProto

Scope = dict[str, "Expr | None"]  # None: its producer is unsupported


@dataclass(frozen=True, slots=True)
class Problem:
    """What cannot be imported: the operator, the node's name, its operands' types, the reason."""

    op: str
    name: str
    operands: str
    reason: str
    fault: Fault = Fault.UNSUPPORTED

    @property
    def subject(self) -> str:
        label = f" {self.name!r}" if self.name else ""
        operands = f" ({self.operands})" if self.operands else ""
        return f"{self.op}{label}{operands}"


@dataclass(frozen=True, slots=True)
class Importer:
    """Turns nodes into expressions; what it cannot import it appends to ``problems``."""

    opsets: Mapping[str, int]
    functions: Mapping[tuple[str, str], FunctionProto]
    problems: list[Problem]
    scanned: set[tuple[str, str]] = field(default_factory=set)
    """The functions of the model that were looked through for what is not supported."""
    of_standard: bool = False
    """Whether ONNX makes the nodes of an operator: they are no fault of the model."""

    def run_graph(self, graph: GraphProto, outer: Mapping[str, Expr | None]) -> list[Expr]:
        """The graph's outputs. ``outer`` has its inputs and what it captures."""
        scope: Scope = dict(outer)
        readers = _readers(graph)
        for tensor in graph.initializer:
            scope[tensor.name] = self._initializer(tensor, readers[tensor.name])
        for sparse in graph.sparse_initializer:
            name = sparse.values.name
            self.problems.append(Problem("initializer", name, "", "sparse tensors"))
            scope[name] = None
        self._run_nodes(graph.node, scope, {o.name for o in graph.output})
        results = [scope.get(o.name) for o in graph.output]
        missing = [o.name for o, r in zip(graph.output, results, strict=True) if r is None]
        if missing and not self.problems:
            reason = "is computed by no node"
            self.problems.append(Problem("output", missing[0], "", reason, Fault.INVALID))
        return [r for r in results if r is not None]

    def _initializer(self, tensor: TensorProto, readers: set[str]) -> Expr | None:
        try:
            return Constant(_array(tensor, _wide_dtype(tensor, readers)), tensor.name)
        except Unsupported as error:
            self.problems.append(Problem("initializer", tensor.name, "", str(error)))
            return None

    def _run_nodes(self, nodes: Iterable[NodeProto], scope: Scope, outputs: set[str]) -> None:
        listed = _in_order(list(nodes))
        read = outputs | {name for node in listed for name in _reads(node)}
        for node in listed:
            self._run_node(node, scope, read)

    def _run_node(self, node: NodeProto, scope: Scope, read: set[str]) -> None:
        absent = [n for n in node.input if n and n not in scope]
        if any(n and scope.get(n, node) is None for n in node.input):
            self._note_unsupported([node])
            results: Sequence[Expr | None] = ()
        elif absent:
            reason = f"input {absent[0]!r} is computed by no node before it"
            self._note(node, (), reason, Fault.INVALID)
            results = ()
        else:
            inputs = tuple(scope[n] if n else None for n in node.input)
            try:
                results = self._convert(node, inputs, scope, read)
            except (Unsupported, ShapeError, PluginError) as error:
                if self.of_standard and isinstance(error, Malformed):
                    error = Unsupported(str(error))
                fault = fault_of(error, node, inputs, self._opset)
                self._note(node, inputs, str(error), fault)
                self._note_unsupported(n for g in subgraphs(node) for n in g.node)
                results = ()
        for i, name in enumerate(node.output):
            if name:
                scope[name] = results[i] if i < len(results) else None
                if scope[name] is None and results and name in read:
                    self._note(node, (), f"output {i} is not supported")

    def _convert(
        self, node: NodeProto, inputs: tuple[Expr | None, ...], scope: Scope, read: set[str]
    ) -> Sequence[Expr | None]:
        """The node's results: of a local function, a branch, a converter, or a standard body."""
        function = self.functions.get((node.domain, node.op_type))
        if function is not None:
            return self._inline(function, node, inputs)
        check_node(node, inputs, self._opset)
        if node.domain in PLAIN_DOMAINS and node.op_type in control_flow.FLOWS:
            return control_flow.FLOWS[node.op_type](node, inputs, scope, self.run_graph)
        converter = converter_of(node)
        if converter is not None:
            return self._converted(converter, node, inputs, read)
        body = standard_body(node, inputs, self._opset)
        if body is None:
            raise Unsupported(UNKNOWN)
        return self._inline(body, node, inputs, of_standard=True)

    def _converted(
        self,
        converter: Converter,
        node: NodeProto,
        inputs: tuple[Expr | None, ...],
        read: set[str],
    ) -> Sequence[Expr | None]:
        takes_sequences = node.op_type in sequence.CONVERTERS or node.op_type == "Identity"
        if not takes_sequences and any(isinstance(i, Tuple) for i in inputs):
            raise Unsupported("takes tensors, not a sequence")
        result = converter(
            Node(
                node.op_type,
                node.name or (node.output[0] if node.output else ""),
                inputs,
                {a.name: _attribute(a) for a in node.attribute},
                self.opsets.get(node.domain or "ai.onnx", self._opset),
                tuple(bool(n) and n in read for n in node.output),
            )
        )
        return result if isinstance(result, Sequence) else (result,)

    def _inline(
        self,
        function: FunctionProto,
        node: NodeProto,
        inputs: tuple[Expr | None, ...],
        of_standard: bool = False,
    ) -> Sequence[Expr | None]:
        """The function's outputs, its body imported in a scope of its own."""
        given: dict[str, AttributeProto] = {a.name: a for a in function.attribute_proto}
        given |= {a.name: a for a in node.attribute}
        scope: Scope = {}
        absent: set[str] = set()
        for i, name in enumerate(function.input):
            if i < len(inputs) and inputs[i] is not None:
                scope[name] = inputs[i]
            else:
                absent.add(name)
        body = [_bound(n, given, absent, node.name) for n in function.node]
        opsets = {e.domain or "ai.onnx": e.version for e in function.opset_import}
        inner = Importer(
            {**self.opsets, **opsets},
            self.functions,
            self.problems,
            self.scanned,
            of_standard or self.of_standard,
        )
        inner._run_nodes(body, scope, set(function.output))
        return [scope.get(name) for name in function.output]

    @property
    def _opset(self) -> int:
        return self.opsets.get("ai.onnx", 1)

    def _note_unsupported(self, nodes: Iterable[NodeProto]) -> None:
        """Of nodes that cannot be reached: the operators that have no converter."""
        for node, reason in unsupported_in(nodes, self.functions, self._opset, self.scanned):
            self._note(node, (), reason)

    def _note(
        self,
        node: NodeProto,
        inputs: Sequence[Expr | None],
        reason: str,
        fault: Fault = Fault.UNSUPPORTED,
    ) -> None:
        operands = ", ".join(str(i.type) for i in inputs if i is not None)
        name = node.name or (node.output[0] if node.output else "")
        prefix = f"{node.domain}." if node.domain not in PLAIN_DOMAINS else ""
        reason = re.sub(rf"^\w+ {re.escape(repr(name))}: ", "", reason)  # of our own operator
        self.problems.append(Problem(prefix + node.op_type, name, operands, reason, fault))


def _in_order(nodes: list[NodeProto]) -> list[NodeProto]:
    """The nodes, each behind those whose results it reads: converters to float16 put their casts of
    inputs last. As they stand where that is so, and where they read one another in a circle."""
    maker = {name: n for n, node in enumerate(nodes) for name in node.output if name}
    before = {n: {maker[x] for x in _reads(node) if x in maker} for n, node in enumerate(nodes)}
    if all(first < n for n, makers in before.items() for first in makers):
        return nodes
    try:
        return [nodes[n] for n in TopologicalSorter(before).static_order()]
    except CycleError:
        return nodes


def _reads(node: NodeProto) -> Iterable[str]:
    """The names a node reads, in its subgraphs too."""
    yield from node.input
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            yield from (o.name for o in graph.output)
            for inner in graph.node:
                yield from _reads(inner)


def _readers(graph: GraphProto) -> Mapping[str, set[str]]:
    """The operators that read each name, and "output" of one that is the graph's."""
    readers: defaultdict[str, set[str]] = defaultdict(set)
    for node in graph.node:
        for name in _reads(node):
            readers[name].add(node.op_type)
    for output in graph.output:
        readers[output.name].add("output")
    return readers


def _bound(
    node: NodeProto, given: Mapping[str, AttributeProto], absent: set[str], prefix: str
) -> NodeProto:
    """A function's node with the caller's attributes in place of references to them."""
    import onnx

    bound = onnx.NodeProto()
    bound.CopyFrom(node)
    if prefix:
        bound.name = f"{prefix}/{node.name or node.op_type}"
    for i, name in enumerate(bound.input):
        if name in absent:
            bound.input[i] = ""
    del bound.attribute[:]
    for attribute in node.attribute:
        if not attribute.ref_attr_name:
            bound.attribute.append(attribute)
            for graph in (bound.attribute[-1].g, *bound.attribute[-1].graphs):
                nodes = [_bound(n, given, absent, prefix) for n in graph.node]
                del graph.node[:]
                graph.node.extend(nodes)
        elif attribute.ref_attr_name in given:
            value = onnx.AttributeProto()
            value.CopyFrom(given[attribute.ref_attr_name])
            value.name = attribute.name
            bound.attribute.append(value)
    return bound


def _wide_dtype(tensor: TensorProto, readers: set[str]) -> str:
    """The dtype of bytes that hold an initialiser's numbers of 4 bits, which nodes may dequantise
    and nothing else; empty for others."""
    from onnx import TensorProto as T

    dtype = {T.INT4: "int8", T.UINT4: "uint8"}.get(tensor.data_type, "")
    if dtype and readers - {"DequantizeLinear"}:
        label = T.DataType.Name(tensor.data_type).lower()
        raise Unsupported(f"element type {label} is not supported but in DequantizeLinear")
    return dtype


def _array(tensor: TensorProto, dtype: str = "") -> np.ndarray[Any, Any]:
    """The tensor's elements, in another dtype if one is given."""
    from onnx import checker, numpy_helper

    if not dtype:
        dtype_name(tensor.data_type)
    try:
        array: np.ndarray[Any, Any] = numpy_helper.to_array(tensor)
    except (checker.ValidationError, OSError, ValueError) as error:
        where = next((e.value for e in tensor.external_data if e.key == "location"), "")
        if not where:
            raise Unsupported(f"its data cannot be read: {error}") from None
        raise Unsupported(
            f"its data is in the file {where!r} beside the model; give the path of the model"
        ) from None
    array = array.astype(dtype, copy=False) if dtype else array
    if array.dtype.name not in DTYPES:
        raise Unsupported(f"element type {array.dtype.name} is not supported")
    return array


def _attribute(attribute: AttributeProto) -> Any:
    """The attribute's value: numbers, text, tuples of them, a tensor as an array, or the proto."""
    from onnx import AttributeProto as A

    match attribute.type:
        case A.FLOAT:
            return attribute.f
        case A.INT:
            return attribute.i
        case A.STRING:
            return attribute.s.decode("utf-8", "replace")
        case A.FLOATS:
            return tuple(attribute.floats)
        case A.INTS:
            return tuple(attribute.ints)
        case A.STRINGS:
            return tuple(s.decode("utf-8", "replace") for s in attribute.strings)
        case A.TENSOR:
            return _array(attribute.t)
        case _:
            return attribute
