"""Products of few columns more than whole vectors, as two products side by side.

relu(conv(x, w) + b)   ->   concat(relu(conv(x, w[:16]) + b[:16]), relu(conv(x, w[16:]) + b[16:]))

A vector that is all but empty costs as much as a full one. The columns beyond have their lanes
along the terms of the sum (``space/narrow.py``), and both kernels write into one array. A model of
both ways decides. Constants are split when the model is built.

Of products, and of convolutions of one tap, a quarter of a vector at most has a kernel with the
whole ones (``space/last_columns``), which reads their rows once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from tunefarm.compiler.ir import (
    Attrs,
    Call,
    Constant,
    Expr,
    Function,
    IRModule,
    TensorType,
    Var,
    children,
    post_order,
    tensor_type,
)
from tunefarm.compiler.ops import call
from tunefarm.compiler.ops.conv import result_channels_last
from tunefarm.compiler.runtime.arrays import ALIGNMENT
from tunefarm.compiler.space.estimate import cycles_on_one_core
from tunefarm.compiler.space.narrow import MAX_COLUMNS
from tunefarm.compiler.space.program import find_anchor, has_channels_last, is_elementwise
from tunefarm.compiler.target import Target, dtype_bytes
from tunefarm.compiler.transform.constants import constant
from tunefarm.compiler.transform.rewrite import with_children

WORTH = 1.03  # times fewer cycles in the model
CALL_CYCLES = 500.0  # of a kernel more
_STEP = ALIGNMENT // dtype_bytes("float32")  # columns of a line of the cache, where parts begin


def split_columns(module: IRModule, target: Target) -> IRModule:
    """The fused module with such products split where that pays."""
    if target.kind != "llvm":
        return module
    main = module.main
    done: dict[Expr, Expr] = {}
    for node in post_order(main.body):
        operands = [done[c] for c in children(node)]
        done[node] = _split(node, operands, target) or with_children(node, operands)
    return module.with_body(done[main.body])


def _split(node: Expr, operands: Sequence[Expr], target: Target) -> Call | None:
    """The concatenation of both parts; None for other nodes, and where it does not pay."""
    if not isinstance(node, Call) or not isinstance(node.op, Function):
        return None
    function, columns = node.op, tensor_type(node).shape[-1:]
    whole = columns[0] // _STEP * _STEP if columns else 0
    if not 0 < whole < columns[0] <= whole + MAX_COLUMNS:
        return None
    sliced = _sliced_params(function)
    if sliced is None:
        return None
    ranges = (slice(0, whole), slice(whole, columns[0]))
    parts = [_part(function, sliced, r) for r in ranges]
    if not _pays(function, parts, target):
        return None
    calls = []
    for part, columns_of in zip(parts, ranges, strict=True):
        args = [_columns(arg, columns_of) if i in sliced else arg for i, arg in enumerate(operands)]
        calls.append(Call(part, tuple(args), {}, part.type, node.name))
    return _concatenated(calls)


def _sliced_params(function: Function) -> frozenset[int] | None:
    """The parameters with an element a column, all of them constant; None if the function is no
    product whose columns can be told apart."""
    anchor = find_anchor(function)
    if anchor is None or not _has_columns_last(anchor):
        return None
    data, weights = anchor.args
    calls = [e for e in post_order(function.body) if isinstance(e, Call) and e is not anchor]
    if not all(is_elementwise(c) for c in calls) or any({data, weights} & {*c.args} for c in calls):
        return None
    shape = tensor_type(anchor).shape
    if tensor_type(function.body) != TensorType(shape, "float32"):
        return None
    constants, sliced = function.constants, []
    for i, param in enumerate(function.params):
        if param is data or prod(tensor_type(param).shape[-1:]) == 1:
            continue
        if i not in constants:
            return None
        sliced.append(i)
    return frozenset(sliced)


def _has_columns_last(anchor: Call) -> bool:
    """True for convolutions in one group, and for products with a matrix of weights."""
    if not all(isinstance(a, Var) for a in anchor.args):
        return False
    if anchor.op == "matmul":
        return len(tensor_type(anchor.args[1]).shape) == 2 and not anchor.attrs["transpose_b"]
    last = has_channels_last(anchor) and result_channels_last(anchor.attrs)
    return last and anchor.attrs["groups"] == 1


def _part(function: Function, sliced: frozenset[int], columns: slice) -> Function:
    """The function of some of the columns."""
    count = columns.stop - columns.start
    done: dict[Expr, Expr] = {}
    for i, param in enumerate(function.params):
        kind = tensor_type(param)
        shape = (*kind.shape[:-1], count) if i in sliced else kind.shape
        done[param] = Var(param.name, TensorType(shape, kind.dtype))
    params: list[Var] = [v for v in done.values() if isinstance(v, Var)]
    for node in post_order(function.body):
        if node not in done:
            done[node] = _again(node, done)
    return Function(tuple(params), done[function.body], function.attrs)


def _again(node: Expr, done: Mapping[Expr, Expr]) -> Expr:
    if not isinstance(node, Call):
        return node
    return call(str(node.op), *(done[a] for a in node.args), **dict(node.attrs))  # type: ignore[arg-type]


def _pays(whole: Function, parts: Sequence[Function], target: Target) -> bool:
    together, *apart = (cycles_on_one_core(f, target) for f in (whole, *parts))
    if together is None or None in apart:
        return False
    return WORTH * (sum(c for c in apart if c is not None) + CALL_CYCLES) < together


def _columns(value: Expr, columns: slice) -> Constant:
    assert isinstance(value, Constant)
    return constant(value.data[..., columns], value, value.name)


def _concatenated(calls: Sequence[Call]) -> Call:
    params = tuple(Var(f"p{i}", tensor_type(c)) for i, c in enumerate(calls))
    body = call("concat", *params, axis=len(tensor_type(calls[0]).shape) - 1)
    attrs: Attrs = {"primitive": True, "constants": (), "name": "concat"}
    return Call(Function(params, body, attrs), tuple(calls), {}, body.type)
