"""Workloads and tasks: what is tuned, in a form that is equal in every process.

The text of a workload is canonical JSON (sorted keys, no spaces):

    {"version": 1,
     "params": [{"shape": [1, 56, 56, 64], "dtype": "float32", "constant": false,
                 "domain": "any"}, …],
     "nodes":  [{"op": "conv", "args": [0, 1], "attrs": {…}, "type": ["float32", [1, 56, 56, 64]]},
                {"scalar": 0.5, "dtype": "float32", "shape": []},
                {"item": 0, "args": [2]}, …],
     "outputs": [7]}

Values are numbered: parameters first, then nodes, each after its operands. Attributes at their
defaults are left out. No names, and no values but those of single-element constants, which are part
of the computation.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import isfinite, prod
from typing import Any

import numpy as np
from tunefarm.compiler.domains import draw, param_domains
from tunefarm.compiler.dtypes import DTYPES, numpy_dtype
from tunefarm.compiler.errors import TunefarmError, WorkloadError
from tunefarm.compiler.ir import (
    Attrs,
    AttrValue,
    Call,
    Constant,
    Expr,
    Function,
    TensorType,
    Tuple,
    TupleGetItem,
    TupleType,
    Type,
    Var,
    post_order,
    tensor_type,
)
from tunefarm.compiler.ops import OPS, call, find
from tunefarm.compiler.target import Target

VERSION = 1
MAX_TEXT_BYTES = 1 << 20
MAX_NODES = 2000
MAX_TENSOR_ELEMENTS = 1 << 33


@dataclass(frozen=True)
class Workload:
    """One fused function as canonical text; equal computations have equal keys everywhere."""

    text: str

    @staticmethod
    def from_function(function: Function) -> Workload:
        """The workload of a fused function; ``attrs["constants"]`` lists its constant parameters.

        Raises ValueError if the function holds a constant of more than one element or a call of a
        function: such a function is not one kernel.
        """
        content = {
            "version": VERSION,
            "params": _params_json(function),
            **_body_json(function),
        }
        return Workload(_canonical(content))

    @staticmethod
    @lru_cache(maxsize=256)
    def from_text(text: str) -> Workload:
        """A workload from text of any origin; WorkloadError says what is wrong with it."""
        if len(text) > MAX_TEXT_BYTES:
            raise WorkloadError(
                f"the workload has {len(text)} characters; {MAX_TEXT_BYTES} at most"
            )
        try:
            content = json.loads(text)
        except (ValueError, RecursionError):
            raise WorkloadError("the workload is not JSON") from None
        try:
            function = _function_of(content)
        except WorkloadError:
            raise
        except TunefarmError as error:
            raise WorkloadError(f"the workload does not type-check: {error}") from None
        except (KeyError, IndexError, TypeError, ValueError, AttributeError, AssertionError):
            raise WorkloadError(
                "the workload is not in the form that this version writes; export it again"
            ) from None
        workload = Workload.from_function(function)
        if workload.text != _canonical(content):
            raise WorkloadError("the workload's text is not canonical; export it again")
        return workload

    @cached_property
    def key(self) -> str:
        """SHA-256 of the text, in hexadecimal."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    @cached_property
    def function(self) -> Function:
        """The fused function again, with parameters ``p0``, ``p1``, … in the original order."""
        return _function_of(json.loads(self.text))

    @cached_property
    def constants(self) -> tuple[int, ...]:
        """Indices of the parameters that are constant in the model (weights)."""
        return self.function.constants

    @cached_property
    def domains(self) -> tuple[str, ...]:
        """What values each parameter may take: see ``domains.py``."""
        return param_domains(self.function)

    @cached_property
    def output_types(self) -> tuple[TensorType, ...]:
        """Types of the results in order."""
        kind = self.function.type
        return kind.fields if isinstance(kind, TupleType) else (kind,)

    @cached_property
    def summary(self) -> str:
        """A short line for people: ``conv 3x3 s1 1x56x56x64→64 +add +relu``."""
        from tunefarm.compiler.summary import summarize

        return summarize(self.function)

    @cached_property
    def flops(self) -> int:
        """Nominal operations, a multiply-add counted as two."""
        from tunefarm.compiler.summary import nominal_flops

        return nominal_flops(self.function)

    def __str__(self) -> str:
        return self.summary

    def __repr__(self) -> str:
        return f"Workload({self.summary!r}, key={self.key[:8]}…)"

    def _repr_html_(self) -> str:
        from tunefarm.notebook import page, text

        facts = {"key": self.key, "MFLOP": f"{self.flops / 1e6:.1f}"}
        return page(self.summary, facts) + text(str(self.function))


@dataclass(frozen=True)
class Task:
    """A workload on a target. ``weight`` is how often the model runs it, ``name`` is for people.
    Its weights come ``from_memory`` where those of its model exceed the caches."""

    workload: Workload
    target: Target
    weight: int = 1
    name: str = ""
    from_memory: bool = False

    def __repr__(self) -> str:
        return f"Task({self.workload.summary!r}, weight={self.weight}, target={self.target})"

    def _repr_html_(self) -> str:
        from tunefarm.notebook import page, text

        facts = {
            "target": self.target,
            "weight": f"{self.weight} a run of the model",
            "MFLOP": f"{self.workload.flops / 1e6:.1f}",
            "workload": self.workload.key,
        }
        return page(self.name or self.workload.summary, facts) + text(str(self.workload.function))


def _canonical(content: object) -> str:
    return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _params_json(function: Function) -> list[dict[str, object]]:
    constants = set(function.constants)
    return [
        {
            "shape": list(param.type.shape),
            "dtype": param.type.dtype,
            "constant": index in constants,
            "domain": domain,
        }
        for index, (param, domain) in enumerate(
            zip(function.params, param_domains(function), strict=True)
        )
    ]


def _body_json(function: Function) -> dict[str, object]:
    number: dict[Expr, int] = {p: i for i, p in enumerate(function.params)}
    nodes: list[dict[str, object]] = []
    body = function.body
    for node in post_order(body):
        if node in number or (node is body and isinstance(node, Tuple)):
            continue
        nodes.append(_node_json(node, number))
        number[node] = len(function.params) + len(nodes) - 1
    outputs = body.fields if isinstance(body, Tuple) else (body,)
    return {"nodes": nodes, "outputs": [number[o] for o in outputs]}


def _node_json(node: Expr, number: dict[Expr, int]) -> dict[str, object]:
    match node:
        case Constant() if node.data.size == 1:
            value = node.data.reshape(-1)[0].item()
            return {
                "scalar": _plain(value),
                "dtype": node.type.dtype,
                "shape": list(node.type.shape),
            }
        case TupleGetItem():
            return {"item": node.index, "args": [number[node.value]]}
        case Call() if isinstance(node.op, str):
            return {
                "op": node.op,
                "args": [number[a] for a in node.args],
                "attrs": _attrs_json(node.op, node.attrs),
                "type": _type_json(node.type),
            }
        case _:
            raise ValueError(f"a {type(node).__name__} of type {node.type} is not part of a kernel")


def _attrs_json(op: str, attrs: Attrs) -> dict[str, object]:
    """Attributes that are not at their defaults: one that is added to an operator later changes
    no key."""
    defaults = {name: _plain(value) for name, value in OPS[op].defaults.items()}
    plain = {name: _plain(value) for name, value in attrs.items()}
    return {
        name: value
        for name, value in plain.items()
        if name not in defaults or repr(value) != repr(defaults[name])
    }


def _type_json(kind: Type) -> list[object]:
    if isinstance(kind, TupleType):
        return [_type_json(f) for f in kind.fields]
    return [kind.dtype, list(kind.shape)]


def _plain(value: object) -> object:
    """An attribute as JSON has it: tuples as lists, infinities and NaN as ``{"float": "inf"}``."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, tuple):
        return [_plain(v) for v in value]
    if isinstance(value, float) and not isfinite(value):
        return {"float": repr(value)}
    return value


def _attribute(value: Any) -> AttrValue:
    match value:
        case list():
            return tuple(_attribute(v) for v in value)
        case {"float": "inf" | "-inf" | "nan" as text}:
            return float(text)
        case bool() | int() | float() | str() | None:
            return value
        case _:
            raise WorkloadError(f"the workload has an attribute of type {type(value).__name__}")


def _function_of(content: Any) -> Function:
    if content["version"] != VERSION:
        raise WorkloadError(
            f"the workload is of version {content['version']} and this program reads {VERSION}; "
            "export it again"
        )
    params = tuple(_param(i, p) for i, p in enumerate(content["params"]))
    if len(params) + len(content["nodes"]) > MAX_NODES:
        raise WorkloadError(f"the workload has more than {MAX_NODES} values")
    values: list[Expr] = list(params)
    for node in content["nodes"]:
        values.append(_node(node, values))
    outputs = [values[_index(i, values)] for i in content["outputs"]]
    constants = tuple(i for i, p in enumerate(content["params"]) if p["constant"])
    body: Expr = outputs[0] if len(outputs) == 1 else Tuple(tuple(outputs))
    return Function(params, body, {"primitive": True, "constants": constants})


def _param(index: int, param: Any) -> Var:
    return Var(f"p{index}", _checked_type(param["shape"], param["dtype"]))


def _checked_type(shape: Any, dtype: Any) -> TensorType:
    if dtype not in DTYPES:
        raise WorkloadError(f"the workload has dtype {dtype!r}; known: {', '.join(DTYPES)}")
    extents = tuple(shape)
    if any(type(e) is not int or e < 0 for e in extents) or prod(extents) > MAX_TENSOR_ELEMENTS:
        raise WorkloadError(
            f"the workload has a tensor of shape {extents}; extents are whole numbers ≥ 0 "
            f"with a product of {MAX_TENSOR_ELEMENTS} at most"
        )
    return TensorType(extents, dtype)


def _index(index: Any, values: Sequence[Expr]) -> int:
    if type(index) is not int or not 0 <= index < len(values):
        raise WorkloadError(f"the workload refers to value {index!r} before it is defined")
    return index


def _node(node: Any, values: Sequence[Expr]) -> Expr:
    if "scalar" in node:
        kind = _checked_type(node["shape"], node["dtype"])
        value = _attribute(node["scalar"])
        return Constant(np.full(kind.shape, value, numpy_dtype(kind.dtype)))
    args = [values[_index(i, values)] for i in node["args"]]
    if "item" in node:
        return TupleGetItem(args[0], int(node["item"]))
    name = node["op"]
    if find(name) is None:
        raise WorkloadError(
            f"the workload has the operator {name!r}, which neither tunefarm nor an installed "
            "plug-in has"
        )
    attrs: Attrs = {k: _attribute(v) for k, v in node["attrs"].items()}
    made = call(name, *args, **attrs)  # type: ignore[arg-type]
    for kind in made.type.fields if isinstance(made.type, TupleType) else (made.type,):
        _checked_type(kind.shape, kind.dtype)
    return made


def random_inputs(workload: Workload, rng: np.random.Generator) -> list[np.ndarray[Any, Any]]:
    """Arrays for every parameter, in order, that obey the parameters' domains."""
    return [
        draw(param.type, domain, rng)
        for param, domain in zip(workload.function.params, workload.domains, strict=True)
    ]


def reference_outputs(
    workload: Workload, arrays: Sequence[np.ndarray[Any, Any]]
) -> list[np.ndarray[Any, Any]]:
    """What a kernel of this workload must compute, by the operators' NumPy meanings."""
    from tunefarm.compiler.evaluate import evaluate

    return list(evaluate(workload.function, arrays))


def tolerance(
    workload: Workload, arrays: Sequence[np.ndarray[Any, Any]]
) -> list[np.ndarray[Any, Any]]:
    """For each output, how far each element may be from the reference: tol(dtype) · (|a|·|b|)."""
    from tunefarm.compiler.accuracy import error_bounds

    return error_bounds(workload.function, arrays)


def anchor(function: Function) -> Call | None:
    """The call that a fused function is scheduled around: the one of the hardest pattern."""
    calls = [n for n in post_order(function.body) if isinstance(n, Call) and isinstance(n.op, str)]
    return max(calls, key=lambda c: (OPS[str(c.op)].pattern, tensor_type_size(c)), default=None)


def tensor_type_size(node: Call) -> int:
    """Elements of the result; of the first field where there are several."""
    return node.type.fields[0].size if isinstance(node.type, TupleType) else tensor_type(node).size
