"""Rules that move reshapes, which are free, out of the way of fusion.

relu(R(x))             ->  R(relu(x))
add(R(x), y)           ->  R(add(x, R⁻(y)))        y of the same shape
add(R(x), b)           ->  R(add(x, b))            b along trailing axes that R leaves alone
layer_norm(R(x))       ->  R(layer_norm(x))        so for softmax over the last axis
"""

from __future__ import annotations

from tunefarm.compiler.ir import Call, Expr, TensorType, tensor_type
from tunefarm.compiler.ops.base import OPS, Pattern, call
from tunefarm.compiler.transform.constants import reshape
from tunefarm.compiler.transform.rewrite import Rule, Uses


def _reshaped(expr: Expr) -> Expr | None:
    return expr.args[0] if isinstance(expr, Call) and expr.op == "reshape" else None


def sink_elementwise(node: Call, uses: Uses) -> Expr | None:
    """f(R(x), y)  ->  R(f(x, y')) where y follows for free."""
    if not isinstance(node.op, str) or node.op in ("batch_norm", "broadcast_to"):
        return None
    if OPS[node.op].pattern not in (Pattern.ELEMENTWISE, Pattern.BROADCAST):
        return None
    kind = tensor_type(node)
    inner = _inner_shape(node, kind)
    if inner is None or 0 in kind.shape:
        return None
    operands = [_follow(a, kind, inner) for a in node.args]
    if any(o is None for o in operands):
        return None
    made = call(node.op, *(o for o in operands if o is not None), name=node.name, **node.attrs)
    return reshape(made, kind.shape)


def _inner_shape(node: Call, kind: TensorType) -> tuple[int, ...] | None:
    """The shape to compute in: that of all reshaped operands, or one of fewer dimensions.

    The second is one-way, so that two operands of different shapes do not push to and fro.
    """
    large = [a for a in node.args if tensor_type(a).shape == kind.shape]
    sources = [_reshaped(a) for a in large]
    shapes = {tensor_type(x).shape for x in sources if x is not None}
    if not shapes:
        return None
    if len(shapes) == 1 and None not in sources:
        return shapes.pop()
    smallest = min(shapes, key=len)
    return smallest if len(smallest) < len(kind.shape) else None


def _follow(operand: Expr, kind: TensorType, inner: tuple[int, ...]) -> Expr | None:
    """The operand as it stands beside x of shape ``inner``; None if no free view serves."""
    shape = tensor_type(operand).shape
    if shape == kind.shape:
        source = _reshaped(operand)
        same = source is not None and tensor_type(source).shape == inner
        return source if same else reshape(operand, inner)
    if tensor_type(operand).size == 1:
        return reshape(operand, ())
    first = next(d for d, extent in enumerate(shape) if extent != 1)
    tail = shape[first:]
    if inner[-len(tail) :] != kind.shape[-len(tail) :] or len(inner) < len(tail):
        return None
    return reshape(operand, tail)


RESHAPE_RULES: tuple[Rule, ...] = (sink_elementwise,)
