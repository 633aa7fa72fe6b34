"""Infer every type again and check it against the type that the node carries."""

from __future__ import annotations

from tunefarm.compiler.ir import Call, Function, IRModule, post_order
from tunefarm.compiler.ops import call
from tunefarm.compiler.target import Target


def infer_types(module: IRModule, target: Target) -> IRModule:
    """The same module; AssertionError with the call if a pass left a wrong type behind."""
    for function in module.functions.values():
        _check(function, set())
    return module


def _check(function: Function, done: set[int]) -> None:
    for node in post_order(function.body):
        if not isinstance(node, Call):
            continue
        if isinstance(node.op, Function):
            _check_call(node, node.op)
            if id(node.op) not in done:
                done.add(id(node.op))
                _check(node.op, done)
            continue
        inferred = call(node.op, *node.args, name=node.name, **node.attrs).type
        assert inferred == node.type, f"{node.op} {node.name!r} is {node.type}, not {inferred}"


def _check_call(node: Call, function: Function) -> None:
    wanted = [p.type for p in function.params]
    got = [a.type for a in node.args]
    assert got == wanted, f"{function.attrs.get('name')} takes {wanted} and gets {got}"
    assert node.type == function.type, f"the call is {node.type}, its function {function.type}"
