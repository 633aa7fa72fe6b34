"""Groups of calls as functions of their own, and the graph that calls those."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tunefarm.compiler.ir import (
    Attrs,
    AttrValue,
    Call,
    Constant,
    Expr,
    Function,
    TensorType,
    TupleType,
    Var,
    children,
    post_order,
    tensor_type,
)
from tunefarm.compiler.ops import call
from tunefarm.compiler.ops.base import OPS, Pattern
from tunefarm.compiler.transform.rewrite import with_children
from tunefarm.compiler.workload import Workload

SIMPLE = (Pattern.ELEMENTWISE, Pattern.BROADCAST)
CALIBRATED = ("quantize", "requantize", "dequantize", "add_quanta")


def alone(node: Call, dtypes: Sequence[str], attrs: Attrs) -> Function:
    """A kernel of one product of a tensor and weights, of these dtypes, and nothing else."""
    params = tuple(
        Var(f"p{n}", TensorType(tensor_type(a).shape, dtype))
        for n, (a, dtype) in enumerate(zip(node.args, dtypes, strict=True))
    )
    body = call(str(node.op), *params, **attrs)  # type: ignore[arg-type]
    return Function(params, body, {"primitive": True, "constants": (1,)})


def outline(root: Expr, groups: Sequence[Sequence[Call]]) -> Expr:
    """The graph with each group replaced by a call of its function."""
    group_of: dict[Expr, Sequence[Call]] = {n: members for members in groups for n in members}
    functions: dict[str, Function] = {}
    done: dict[Expr, Expr] = {}
    for node in post_order(root):
        members = group_of.get(node)
        if members is None or _is_fused(node):
            done[node] = with_children(node, [done[c] for c in children(node)])
        elif node is members[-1]:
            function, operands = function_of(members)
            function = interned(function, functions)
            done[node] = call_of(function, [done[o] for o in operands], members)
        else:
            done[node] = node
    return done[root]


def call_of(function: Function, args: Sequence[Expr], members: Sequence[Call]) -> Call:
    """The call that stands for a group, with the first name that one of its members has."""
    name = next((m.name for m in members if m.name), "")
    return Call(function, tuple(args), {}, function.body.type, name)


def _is_fused(node: Expr) -> bool:
    return isinstance(node, Call) and isinstance(node.op, Function)


def function_of(members: Sequence[Call]) -> tuple[Function, list[Expr]]:
    """The fused function and the expressions that are its operands, in parameter order."""
    body = members[-1]
    inside = set(members)
    done: dict[Expr, Expr] = {}
    operands: list[Expr] = []
    params: list[Var] = []
    for node in _group_order(body, inside):
        if node in inside:
            assert isinstance(node, Call)
            done[node] = _ordered(node, done, inside)
        elif stays_inside(node) and _reads_elementwise(node, members):
            done[node] = node
        else:
            param = Var(f"p{len(params)}", tensor_type(node))
            done[node] = param
            operands.append(node)
            params.append(param)
    constants = tuple(i for i, o in enumerate(operands) if isinstance(o, Constant))
    attrs: dict[str, AttrValue] = {
        "primitive": True,
        "constants": constants,
        "name": "_".join(str(m.op) for m in members)[:80],
    }
    if all(m.op == "reshape" for m in members):
        attrs["view"] = True
    return Function(tuple(params), done[body], attrs), operands


def _group_order(body: Call, inside: set[Call]) -> list[Expr]:
    """Members and operands, each after what it reads; the walk stops at the group's edge."""
    order: list[Expr] = []
    done: set[Expr] = set()
    stack: list[tuple[Expr, bool]] = [(body, False)]
    while stack:
        node, expanded = stack.pop()
        if node in done:
            continue
        if expanded or node not in inside:
            done.add(node)
            order.append(node)
            continue
        stack.append((node, True))
        assert isinstance(node, Call)
        stack.extend((a, False) for a in reversed(_operand_order(node, inside)))
    return order


def _operand_order(node: Call, inside: set[Call]) -> tuple[Expr, ...]:
    """Operands of a commutative operator: members first, then variables, then constants."""
    if not isinstance(node.op, str) or not OPS[node.op].commutative:
        return node.args
    return tuple(sorted(node.args, key=lambda a: (a not in inside) + isinstance(a, Constant)))


def _ordered(node: Call, done: Mapping[Expr, Expr], inside: set[Call]) -> Call:
    args = tuple(done[a] for a in _operand_order(node, inside))
    return Call(node.op, args, node.attrs, node.type)


def _reads_elementwise(scalar: Expr, members: Sequence[Call]) -> bool:
    """Whether only elementwise operators read the constant, so that its value may stay inside."""
    readers = [m for m in members if scalar in m.args]
    return all(pattern_of(m) in SIMPLE and m.op not in CALIBRATED for m in readers)


def interned(function: Function, functions: dict[str, Function]) -> Function:
    """The function of an equal group met before, or this one."""
    try:
        text = Workload.from_function(function).text
    except ValueError:
        return function
    return functions.setdefault(text, function)


def pattern_of(node: Expr) -> Pattern:
    """The node's pattern; opaque for what is not a call with one tensor as its result."""
    if not isinstance(node, Call) or not isinstance(node.op, str):
        return Pattern.OPAQUE
    if isinstance(node.type, TupleType):
        return Pattern.OPAQUE
    return OPS[node.op].pattern


def stays_inside(expr: Expr) -> bool:
    """True for a constant of one element, whose value may stand inside a function."""
    return isinstance(expr, Constant) and expr.data.size == 1
