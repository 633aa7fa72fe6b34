"""Elementwise functions that a graph spells out become one operator.

x / (1 + exp(-x))                                    ->  silu(x)
x * sigmoid(1.702 * x)                               ->  silu[alpha=1.702](x)
0.5 * x * (1 + tanh(√(2/π) * (x + 0.044715 * x³)))   ->  gelu[approximate](x)
x * relu6(x + 3) / 6                                 ->  hard_swish(x)
x * tanh(where(x > 20, x, softplus(x)))              ->  mish(x)

Functions are known by their values and not by their spelling: what depends on one tensor and on
numbers alone is evaluated on points from -30 to 30 in float64 and compared with each operator of
``FUNCTIONS``. Two of these differ by far more than the tolerance at some point.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
from tunefarm.compiler.dtypes import is_float
from tunefarm.compiler.evaluate import evaluate
from tunefarm.compiler.ir import (
    AttrValue,
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
from tunefarm.compiler.ops import OPS, call
from tunefarm.compiler.ops.base import Array, Pattern
from tunefarm.compiler.target import Target
from tunefarm.compiler.transform.constants import scalar_of
from tunefarm.compiler.transform.rewrite import with_children

FUNCTIONS: tuple[tuple[str, Mapping[str, AttrValue]], ...] = (
    ("sigmoid", {}),
    ("silu", {"alpha": 1.0}),
    ("silu", {"alpha": 1.702}),
    ("gelu", {"approximate": False}),
    ("gelu", {"approximate": True}),
    ("hard_sigmoid", {"alpha": 1 / 6, "beta": 0.5}),
    ("hard_swish", {}),
    ("softplus", {}),
    ("mish", {}),
)
_TOLERANCE = 1e-6  # what constants rounded to float32 leave, not silu(0.99999 · x)
_SHAPED = ("cast", "broadcast_to", "batch_norm")
_MAX_NODES = 16


def recognize_functions(module: IRModule, target: Target) -> IRModule:
    """The largest regions first; an operator that others read too keeps its region as it is."""
    main = module.main
    regions = _Regions(main.body)
    found: dict[Expr, Call] = {}
    inside: set[Expr] = set()
    for node in reversed(regions.order):
        if node not in inside and _is_function(node):
            match = regions.recognize(node)
            if match is not None:
                found[node], region = match
                inside |= region
    if not found:
        return module
    done: dict[Expr, Expr] = {}
    for node in regions.order:
        kept = found.get(node, node)
        done[node] = with_children(kept, [done[c] for c in children(kept)])
    return module.with_body(done[main.body])


class _Regions:
    """What each expression depends on, of one graph."""

    def __init__(self, root: Expr) -> None:
        self.order = post_order(root)
        self.place = {node: i for i, node in enumerate(self.order)}
        self.users: dict[Expr, set[Expr]] = {}
        for node in self.order:
            for child in children(node):
                self.users.setdefault(child, set()).add(node)

    def recognize(self, root: Expr) -> tuple[Call, set[Expr]] | None:
        """The operator that the largest region below ``root`` is, and the region."""
        region, frontier = {root}, _tensors(root)
        match = None
        while len(region) <= _MAX_NODES and frontier:
            if len(frontier) == 1 and len(region) > 1:
                match = self._match(root, region, next(iter(frontier))) or match
            last = max(frontier, key=self.place.__getitem__)
            if not _is_function(last):
                break
            region.add(last)
            frontier = (frontier - {last}) | _tensors(last)
        return match

    def _match(self, root: Expr, region: set[Expr], x: Expr) -> tuple[Call, set[Expr]] | None:
        if tensor_type(x) != tensor_type(root):
            return None
        if any(self.users[n] - region for n in region - {root}):
            return None
        values = _values_of(sorted(region, key=self.place.__getitem__), x)
        for (op, attrs), wanted in zip(FUNCTIONS, _known_values(), strict=True):
            if np.allclose(values, wanted, rtol=_TOLERANCE, atol=_TOLERANCE):
                name = root.name if isinstance(root, Call) else ""
                return call(op, x, name=name, **dict[str, Any](attrs)), set(region)
        return None


def _is_function(node: Expr) -> bool:
    """Whether the node is elementwise on one tensor's elements and on numbers."""
    if not isinstance(node, Call) or not isinstance(node.op, str) or node.op in _SHAPED:
        return False
    if not isinstance(node.type, TensorType) or OPS[node.op].pattern > Pattern.BROADCAST:
        return False
    if not all(is_float(tensor_type(t).dtype) or node.op == "where" for t in _tensors(node)):
        return False
    shape = node.type.shape
    return all(
        tensor_type(a).shape == shape if not isinstance(a, Constant) else scalar_of(a) is not None
        for a in node.args
    )


def _tensors(node: Expr) -> set[Expr]:
    return {c for c in children(node) if not isinstance(c, Constant)}


def _points() -> Array:
    return np.concatenate([np.linspace(-30, 30, 41), np.linspace(-4, 4, 60)])


@cache
def _known_values() -> tuple[Array, ...]:
    return tuple(OPS[op].reference([_points()], {**OPS[op].defaults, **a}) for op, a in FUNCTIONS)  # type: ignore[misc]


def _values_of(region: Sequence[Expr], x: Expr) -> Array:
    """The values of the region's last node at ``_points()``, in float64."""
    points = _points()
    var = Var("x", TensorType(points.shape, "float64"))
    done: dict[Expr, Expr] = {x: var}
    for node in region:
        assert isinstance(node, Call)
        operands = [done[a] if a in done else _wide_scalar(a) for a in node.args]
        done[node] = call(str(node.op), *operands, **dict[str, Any](node.attrs))
    with np.errstate(all="ignore"):
        return evaluate(Function((var,), done[region[-1]]), [points])[0]


def _wide_scalar(expr: Expr) -> Expr:
    assert isinstance(expr, Constant)
    return Constant(np.array(scalar_of(expr), "float64"))
