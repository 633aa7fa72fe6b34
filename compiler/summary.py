"""One short line about a fused function, and its nominal operations."""

from __future__ import annotations

from collections.abc import Iterable

from tunefarm.compiler.ir import (
    Attrs,
    Call,
    Function,
    TensorType,
    TupleType,
    post_order,
    tensor_type,
)
from tunefarm.compiler.ops.base import flops_of


def nominal_flops(function: Function) -> int:
    """Operations that the mathematics asks for, a multiply-add counted as two."""
    return sum(
        flops_of(n)
        for n in post_order(function.body)
        if isinstance(n, Call) and isinstance(n.op, str)
    )


def summarize(function: Function) -> str:
    """``conv 3x3 s1 1x56x56x64→64 +add +relu``: the anchor, its shapes, and what is fused."""
    from tunefarm.compiler.workload import anchor

    main = anchor(function)
    if main is None:
        return "copy " + _shape(function.params[0].type.shape if function.params else ())
    calls = [n for n in post_order(function.body) if isinstance(n, Call)]
    parts, casts = _of_attention(function)
    calls = [n for n in calls if n not in (*parts, *casts)]
    before = [str(n.op) for n in calls[: calls.index(main)]]
    after = [str(n.op) for n in calls[calls.index(main) + 1 :]]
    what = [_describe(main), *["of parts"] * bool(parts)]
    what += [f"in {dtype}" for dtype in dict.fromkeys(str(c.attrs["dtype"]) for c in casts)]
    return " ".join([*(f"{name}+" for name in before), *what, *(f"+{n}" for n in after)])


def _of_attention(function: Function) -> tuple[list[Call], list[Call]]:
    """The slices of parameters that the products of an attention read, and the casts by which their
    operands are rounded."""
    body = function.body
    if not isinstance(body, Call):
        return [], []
    products = [n for n in post_order(body) if isinstance(n, Call) and n.op == body.op]
    operands = [a for n in products for a in n.args if isinstance(a, Call)]
    casts = [a for a in operands if a.op == "cast"]
    operands += [a for c in casts for a in c.args if isinstance(a, Call)]
    if not any(a.op == "softmax" for a in operands):
        return [], []
    return [a for a in operands if a.op == "slice" and a.args[0] in function.params], casts


def _describe(node: Call) -> str:
    types = [tensor_type(a) for a in node.args]
    if node.op in ("conv", "conv_transpose"):
        return _describe_conv(str(node.op), types, node.attrs, node)
    if node.op == "matmul":
        return _describe_matmul(types, node.attrs)
    if node.op == "packed_matmul":
        (m, k), n = types[0].shape, types[1].shape[1]
        return f"matmul {m}x{k} @ {k}x{n} of {node.attrs['bits']} bits"
    result = node.type.fields[0] if isinstance(node.type, TupleType) else node.type
    shapes = dict.fromkeys(_shape(t.shape) for t in types if t.size > 1)
    text = f"{node.op} {','.join(shapes)}"
    is_same = _shape(result.shape) in shapes
    return text if is_same else f"{text}→{_shape(result.shape)}"


def _describe_conv(name: str, types: list[TensorType], attrs: Attrs, node: Call) -> str:
    kernel = types[1].shape
    taps = kernel[:-2] if attrs["kernel_layout"] == "SIO" else kernel[2:]
    result = tensor_type(node).shape
    last = (attrs.get("out_layout") or attrs["data_layout"]) == "NSC"
    channels = result[-1] if last else result[1]
    parts = [f"{name} {_shape(taps)} s{_shape(_merged(attrs['strides']))}"]
    if attrs["groups"] != 1:
        parts.append(f"g{attrs['groups']}")
    if _merged(attrs["dilations"]) != (1,):
        parts.append(f"d{_shape(_merged(attrs['dilations']))}")
    return " ".join([*parts, f"{_shape(types[0].shape)}→{channels}"])


def _describe_matmul(types: list[TensorType], attrs: Attrs) -> str:
    a, b = types[0].shape, types[1].shape
    m, k = reversed(a[-2:]) if attrs["transpose_a"] else a[-2:]
    n = b[-2] if attrs["transpose_b"] else b[-1]
    batch = a[:-2] if len(a) >= len(b) else b[:-2]
    head = f"{_shape(batch)}: " if batch and max(batch) > 1 else ""
    return f"matmul {head}{m}x{k} @ {k}x{n}"


def _merged(values: object) -> tuple[int, ...]:
    """(1, 1) as (1,): one number where all dimensions agree."""
    assert isinstance(values, tuple)
    return tuple(values[:1]) if len(set(values)) == 1 else values


def _shape(extents: Iterable[int]) -> str:
    return "x".join(map(str, extents)) or "scalar"
