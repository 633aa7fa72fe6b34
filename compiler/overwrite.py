"""Which operands a kernel may overwrite with its result: residuals, most of all.

relu(add(conv(x, w), r))      r's element is read where the result's is stored, and nowhere else
"""

from __future__ import annotations

from tunefarm.compiler.ir import Call, Function, TensorType, post_order
from tunefarm.compiler.ops.base import OPS, Pattern


def overwritable(function: Function) -> frozenset[int]:
    """The parameters that every path to the result passes element by element, in its type.

    Whatever the schedule, all reads of an element come before the store that depends on them. What
    a product or a window reads, or a constant, is not among them.
    """
    body = function.body
    if not isinstance(body, Call) or not isinstance(body.type, TensorType):
        return frozenset()
    calls = [n for n in post_order(body) if isinstance(n, Call)]
    spread = {a for n in calls if not _is_elementwise(n, body.type) for a in n.args}
    for node in reversed(calls):
        if node in spread:
            spread.update(node.args)
    return frozenset(
        i
        for i, p in enumerate(function.params)
        if p.type == body.type and p not in spread and i not in function.constants
    )


def _is_elementwise(node: Call, result: TensorType) -> bool:
    simple = isinstance(node.op, str) and OPS[node.op].pattern <= Pattern.BROADCAST
    return simple and isinstance(node.type, TensorType) and node.type.shape == result.shape
