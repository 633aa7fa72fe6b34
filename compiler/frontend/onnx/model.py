"""``from_onnx``: read a model, fix its shapes, walk its graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import index
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tunefarm.compiler.errors import ModelError, OpenShapeError
from tunefarm.compiler.frontend.onnx.faults import Fault
from tunefarm.compiler.frontend.onnx.graph import Importer, Problem
from tunefarm.compiler.frontend.onnx.node import Unsupported, dtype_name
from tunefarm.compiler.ir import Function, IRModule, TensorType, Tuple, Var

if TYPE_CHECKING:
    from onnx import ModelProto, ValueInfoProto

OLDEST_OPSET = 7
MOST_NAMES = 3  # of nodes that have one problem


def from_onnx(
    model: str | Path | bytes | ModelProto,
    shapes: Mapping[str, Sequence[int]] | None = None,
) -> IRModule:
    """The model as a graph module, with its initialisers bound as constants.

    ``shapes`` gives the shape of inputs whose dimensions are symbolic; a symbol that it fixes is
    fixed in the other inputs too. Raises ModelError, in one
    sentence, for a file that is not ONNX, a dimension left symbolic, or all nodes that are invalid
    or unsupported.
    """
    proto = _read(model)
    opsets = {entry.domain or "ai.onnx": entry.version for entry in proto.opset_import}
    if opsets.get("ai.onnx", OLDEST_OPSET) < OLDEST_OPSET:
        raise ModelError(
            f"the model has opset {opsets['ai.onnx']}, and the oldest supported is "
            f"{OLDEST_OPSET}; convert it with onnx.version_converter"
        )
    initial = {t.name for t in proto.graph.initializer}
    initial |= {t.values.name for t in proto.graph.sparse_initializer}
    inputs = [i for i in proto.graph.input if i.name not in initial]
    given = given_shapes(shapes or {})
    unknown = given.keys() - {i.name for i in inputs}
    if unknown:
        names = ", ".join(i.name for i in inputs) or "none"
        raise ModelError(f"the model has no input {sorted(unknown)[0]!r}; its inputs are {names}")
    problems: list[Problem] = []
    symbols = _symbols(inputs, given)
    found = {i.name: _param(i, given.get(i.name), symbols, problems) for i in inputs}
    params = tuple(p for p in found.values() if p is not None)
    importer = Importer(opsets, {(f.domain, f.name): f for f in proto.functions}, problems)
    outputs = importer.run_graph(proto.graph, found)
    for value, output in zip(proto.graph.output, outputs, strict=False):
        if isinstance(output, Tuple):
            problems.append(Problem("output", value.name, "", "is a sequence, not a tensor"))
    if problems:
        raise ModelError(_report(problems))
    output_names = tuple(o.name for o in proto.graph.output)
    body = outputs[0] if len(outputs) == 1 else Tuple(tuple(outputs))
    return IRModule({"main": Function(params, body)}, output_names)


def _read(model: str | Path | bytes | ModelProto) -> ModelProto:
    import onnx
    from google.protobuf.message import DecodeError

    if isinstance(model, onnx.ModelProto):
        return model
    where = "the given bytes" if isinstance(model, bytes) else str(model)
    try:
        if isinstance(model, bytes):
            proto = onnx.load_model_from_string(model)
        else:
            proto = onnx.load_model(str(model))
    except FileNotFoundError as error:
        missing = error.filename or where
        raise ModelError(f"{missing} does not exist; give the path of an ONNX model") from None
    except IsADirectoryError:
        raise ModelError(f"{where} is a folder; give the ONNX file in it") from None
    except (DecodeError, UnicodeDecodeError):
        if where.endswith(".pt2"):
            raise ModelError(f"{where} is a model of PyTorch; read it with from_torch") from None
        raise ModelError(f"{where} is not an ONNX model, or was cut short") from None
    except (OSError, ValueError, onnx.checker.ValidationError) as error:  # of weights in a file
        raise ModelError(f"{where} cannot be read: {error}") from None
    if not proto.HasField("graph"):
        raise ModelError(f"{where} is not an ONNX model: there is no graph in it")
    if not proto.graph.output:
        raise ModelError(f"{where} computes nothing: its graph names no outputs")
    return proto


def _param(
    value: ValueInfoProto,
    given: tuple[int, ...] | None,
    symbols: Mapping[str, int],
    problems: list[Problem],
) -> Var | None:
    """The parameter of one model input; None, with a problem noted, for a type we lack."""
    if not value.type.HasField("tensor_type"):
        kind = value.type.WhichOneof("value") or "no type"
        problems.append(Problem("input", value.name, "", f"has {kind}, which is not a tensor"))
        return None
    tensor = value.type.tensor_type
    try:
        dtype = dtype_name(tensor.elem_type)
    except Unsupported as error:
        problems.append(Problem("input", value.name, "", str(error)))
        return None
    return Var(value.name, TensorType(_fixed_shape(value.name, tensor, given, symbols), dtype))


def given_shapes(shapes: Mapping[str, Sequence[int]]) -> dict[str, tuple[int, ...]]:
    """The shapes that the caller fixes, of plain whole numbers."""
    if not isinstance(shapes, Mapping):
        raise ModelError(f"shapes are {shapes!r}, expected a dictionary such as {{'x': (1, 3)}}")
    found = {}
    for name, shape in shapes.items():
        try:
            found[name] = tuple(index(extent) for extent in shape)
        except TypeError:
            raise ModelError(
                f"shapes[{name!r}] is {shape!r}, expected whole numbers such as (1, 3, 224, 224)"
            ) from None
    return found


def _symbols(
    inputs: Sequence[ValueInfoProto], given: Mapping[str, tuple[int, ...]]
) -> dict[str, int]:
    """What the given shapes make of the symbolic dimensions that have names."""
    symbols: dict[str, int] = {}
    for value in inputs:
        dims = value.type.tensor_type.shape.dim
        for dim, extent in zip(dims, given.get(value.name, ()), strict=False):
            if dim.dim_param and symbols.setdefault(dim.dim_param, extent) != extent:
                raise ModelError(
                    f"input {value.name!r} is given {extent} for the dimension {dim.dim_param!r}, "
                    f"which another input has as {symbols[dim.dim_param]}"
                )
    return symbols


def _fixed_shape(
    name: str, tensor: Any, given: tuple[int, ...] | None, symbols: Mapping[str, int]
) -> tuple[int, ...]:
    """The shape that is given, or the model's own with its symbols replaced. An extent below 0, as
    exporters write -1, is open like a symbol without a name."""
    if not tensor.HasField("shape"):
        if given is None:
            raise OpenShapeError(f"input {name!r} has no shape", name, (1, 3, 224, 224))
        return given
    dims: list[int | str] = [
        d.dim_value if d.HasField("dim_value") and d.dim_value >= 0 else d.dim_param or "?"
        for d in tensor.shape.dim
    ]
    text = f"({', '.join(map(str, dims))})"
    if given is None:
        known = [symbols.get(d, d) if isinstance(d, str) else d for d in dims]
        if any(isinstance(d, str) for d in known):
            example = tuple(1 if isinstance(d, str) else d for d in known)
            raise OpenShapeError(f"input {name!r} has the symbolic shape {text}", name, example)
        return tuple(int(d) for d in known)
    fits = len(given) == len(dims) and all(
        isinstance(d, str) or d == g for d, g in zip(dims, given, strict=True)
    )
    if not fits or min(given, default=0) < 0:
        raise ModelError(f"input {name!r} has shape {text} and cannot be given {given}")
    return given


def _report(problems: Sequence[Problem]) -> str:
    """``the model is not valid: MatMul 'a': …; the model uses what is not supported: …``."""
    kinds = [(fault, [p for p in problems if p.fault is fault]) for fault in Fault]
    return "; ".join(f"{fault.value}: {_listed(of_it)}" for fault, of_it in kinds if of_it)


def _listed(problems: Sequence[Problem]) -> str:
    alike: dict[tuple[str, str], list[Problem]] = {}
    for problem in problems:
        alike.setdefault((problem.op, problem.reason), []).append(problem)
    return "; ".join(map(_told, alike.values()))


def _told(alike: Sequence[Problem]) -> str:
    """``NonMaxSuppression 'a' (float32[2, 3]), 'b', 'c' and 2 more: the reason`` of all of them."""
    first = alike[0]
    others = dict.fromkeys(problem.name for problem in alike[1:] if problem.name != first.name)
    named = [repr(name) for name in list(others)[: MOST_NAMES - 1] if name]
    rest = len(alike) - 1 - len(named)
    more = f" and {rest} more" if rest else ""
    return f"{', '.join([first.subject, *named])}{more}: {first.reason}"
