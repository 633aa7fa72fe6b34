"""What the sketches of GPUs share: vectors that fit, written loops, and nests in numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

import numpy as np
from tunefarm.compiler.ir import Function
from tunefarm.compiler.space.analysis import Contraction
from tunefarm.compiler.space.columns import Numbers, whole
from tunefarm.compiler.space.config import Columns, Nest
from tunefarm.compiler.space.contraction.shape import contraction_of, shares_vector
from tunefarm.compiler.space.flatten import flat_index
from tunefarm.compiler.space.injective import lane_axes
from tunefarm.compiler.space.nests import accesses_of, cost_of, lanes_of, strides
from tunefarm.compiler.target import Target
from tunefarm.compiler.tir import PrimFunc
from tunefarm.compiler.tir.affine import affine
from tunefarm.compiler.tir.ir import (
    Allocate,
    Block,
    Const,
    Expr,
    For,
    If,
    IterVar,
    Load,
    LoopKind,
    Select,
    Seq,
    Stmt,
    Var,
)
from tunefarm.compiler.tir.schedule.tree import store_of
from tunefarm.compiler.tir.visit import children, loads_of, operands


def contains_only_blocks(program: PrimFunc) -> bool:
    """False if a statement of the program is no block: scans, sorts."""

    def plain(stmt: Stmt) -> bool:
        if isinstance(stmt, Block):
            return True
        return isinstance(stmt, (Seq, For, If, Allocate)) and all(map(plain, children(stmt)))

    return plain(program.body)


def loop(
    name: str,
    extent: int,
    body: Callable[[Var], Stmt],
    kind: LoopKind = LoopKind.UNROLLED,
    axis: str = "",
) -> Stmt:
    """A loop in a program that is written rather than scheduled."""
    var = Var(name)
    return For(var, Const(extent), body(var), LoopKind.THREAD if axis else kind, axis=axis)


def certain_loads(expr: Expr) -> list[Load]:
    """The loads that are made whatever is chosen."""
    if isinstance(expr, Load):
        return [expr]
    if isinstance(expr, Select):
        return certain_loads(expr.condition)
    return [load for part in operands(expr) for load in certain_loads(part)]


def digits(axes: Sequence[IterVar], number: Expr) -> dict[Var, Expr]:
    """The axes whose elements a number counts, row-major."""
    found: dict[Var, Expr] = {}
    for position, axis in reversed(list(enumerate(axes))):
        found[axis.var] = number if position == 0 else number % axis.extent
        number = number // axis.extent
    return found


def product_of(function: Function) -> Contraction | None:
    """The contraction that a function is, if its operands have axes of their own."""
    c = contraction_of(function)
    return None if c is None or shares_vector(c) else c


def is_product(function: Function) -> bool:
    return product_of(function) is not None


def lane_axis(node: Block, target: Target) -> IterVar | None:
    """The axis of a thread's vector; None for a single element. A pixel whose channels are one
    vector is one, also where they are read from planes: threads side by side read those so."""
    if _is_pixel_of_planes(node, target):
        return node.iters[-1]
    return next(iter(lane_axes(node, target)), None)


def _is_pixel_of_planes(node: Block, target: Target) -> bool:
    last, lanes = node.iters[-1] if node.iters else None, lanes_of([node], target)
    if last is None or node.init is not None or last.extent not in (2, 4, 8) or last.extent > lanes:
        return False
    store = store_of(node)
    loads = loads_of(store.value)
    if len(loads) != 1 or affine(store.indices[-1]).coefficient(last.var) != 1:
        return False
    flat = affine(flat_index(loads[0].indices, loads[0].buffer.shape))
    others = [flat.coefficient(i.var) for i in node.iters[:-1]]
    return flat.coefficient(last.var) > 1 and 1 in others


def widest_vector(node: Block, target: Target) -> int:
    """Elements that a thread takes at once: 16 bytes, where they stand side by side and divide
    the axis."""
    axis, width = lane_axis(node, target), lanes_of([node], target)
    apart = axis is None or any(step not in (0, 1) for step in strides(node, axis.var))
    if axis is None or (apart and not _is_pixel_of_planes(node, target)):
        return 1
    while axis.extent % width:
        width //= 2
    return width


def block_nest(
    program: PrimFunc,
    node: Block | None,
    k: Columns,
    elements: Numbers,
    extra: Sequence[str],
) -> Nest:
    """The nest of a block whose threads compute ``elements`` each along its best axis."""
    count = len(elements)
    one = np.ones(count, np.int64)
    if node is None:
        return Nest({}, frozenset(), (), {}, one, np.ones(count))
    names = {i.var: f"{i.var.name}.{n}" for n, i in enumerate(node.iters)}
    extents = {names[i.var]: i.extent for i in node.iters}
    spatial = [i for i in node.iters if i.kind == "spatial"]
    register = dict.fromkeys(extents, one)
    block = dict(register)
    if spatial:
        last = spatial[-1]
        register[names[last.var]] = np.minimum(elements, last.extent)
        block[names[last.var]] = np.minimum(elements * whole(k, "threads"), last.extent)
    reduced = {names[i.var] for i in node.iters if i.kind == "reduce"}
    l1 = {a: extents[a] * one if a in reduced else block[a] for a in extents}
    total = prod(i.extent for i in spatial)
    operations = prod(extents.values()) * cost_of(store_of(node).value)
    return Nest(
        extents,
        frozenset(reduced),
        tuple(accesses_of(node, program, names)),
        {"vector": register, "register": register, "l1": l1, "l2": l1, "core": l1},
        np.maximum(total // np.maximum(elements * whole(k, "threads"), 1), 1),
        np.full(count, float(operations)),
        {name: whole(k, name).astype(np.float64) for name in extra},
    )
