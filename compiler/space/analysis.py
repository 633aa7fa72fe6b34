"""What a contraction program is made of: the anchor block, its axes and operands."""

from __future__ import annotations

from dataclasses import dataclass

from tunefarm.compiler.space.nests import inline_all
from tunefarm.compiler.tir import PrimFunc
from tunefarm.compiler.tir import schedule as s
from tunefarm.compiler.tir.affine import affine
from tunefarm.compiler.tir.ir import Binary, Block, Buffer, Cast, Const, Expr, Load, Select, Var
from tunefarm.compiler.tir.schedule.tree import blocks, reads, store_of, written_buffer
from tunefarm.compiler.tir.visit import loads_of


@dataclass(frozen=True, slots=True)
class Axis:
    """One iterator of the anchor: its name, position among the block's iterators, extent."""

    name: str
    position: int
    extent: int


@dataclass(frozen=True, slots=True)
class Operand:
    """A factor of the product: its load, and the parameter's index (None for an intermediate)."""

    load: Load
    param: int | None


@dataclass(frozen=True, slots=True)
class Contraction:
    """``C[…] += lhs[…] · rhs[…]`` with lanes along the last axis of ``C``.

    ``vector`` is that axis, ``rows`` the axes of ``lhs`` alone (the last two make the register
    tile), ``outer`` the other spatial axes, which both operands share or ``rhs`` has alone,
    ``reduce`` the summed ones.
    """

    program: PrimFunc
    block: str
    epilogue: str | None
    vector: Axis
    rows: tuple[Axis, ...]
    outer: tuple[Axis, ...]
    reduce: tuple[Axis, ...]
    lhs: Operand
    rhs: Operand

    @property
    def node(self) -> Block:
        return s.find_block(self.program, self.block)

    @property
    def variables(self) -> dict[Var, str]:
        """Iterator variable → axis name."""
        return {i.var: _name(n, i.var) for n, i in enumerate(self.node.iters)}


def _name(position: int, var: Var) -> str:
    return f"{var.name}.{position}"


def analyse(
    program: PrimFunc, inline_operands: bool = True, column: bool = False
) -> Contraction | None:
    """The contraction of a program with its padding and epilogue inlined; None if it is not one.

    Without ``inline_operands`` the padding stays a block before it. With ``column`` the right
    operand may be a vector, whose product is a single column.
    """
    reductions = [b for b in blocks(program.body) if b.init is not None]
    if len(reductions) != 1 or program.outputs != 1:
        return None
    anchor = reductions[0]
    factors = _factors(anchor)
    if factors is None:
        return None
    kept = set() if inline_operands else {ld.buffer for ld in loads_of(anchor.body)}
    operands = {b.name for b in blocks(program.body) if written_buffer(b) in kept} - {anchor.name}
    program = inline_all(program, {anchor.name, *operands})
    names = [n for n in s.remaining_blocks(program) if n not in operands]
    if names not in ([anchor.name], [anchor.name, names[-1]]):
        return None
    node = s.find_block(program, anchor.name)
    factors = _factors(node)
    if factors is None:
        return None
    epilogue = names[-1] if len(names) == 2 else None
    if epilogue is not None and not _follows_plainly(program, epilogue, written_buffer(node)):
        return None
    return _classify(program, node, epilogue, factors, column)


def _follows_plainly(program: PrimFunc, epilogue: str, buffer: Buffer) -> bool:
    """True if the epilogue reads and writes at the anchor's own indices."""
    node = s.find_block(program, epilogue)
    formals = [i.var for i in node.iters]
    if list(store_of(node).indices) != formals or node.init is not None:
        return False
    return all(
        index is formal or (isinstance(index, Const) and extent == 1)
        for load in reads(node, buffer)
        for index, formal, extent in zip(load.indices, formals, buffer.shape, strict=True)
    )


def _factors(node: Block) -> tuple[Load, Load] | None:
    value = store_of(node).value
    if not isinstance(value, Binary) or value.op != "add":
        return None
    product = value.b
    if not isinstance(product, Binary) or product.op != "mul":
        return None
    left, right = _source(product.a), _source(product.b)
    return None if left is None or right is None else (left, right)


def _source(expr: Expr) -> Load | None:
    """The load below casts and padding."""
    match expr:
        case Load():
            return expr
        case Cast(value, _):
            return _source(value)
        case Select(_, a, _, _):
            return _source(a)
        case _:
            return None


def _classify(
    program: PrimFunc,
    node: Block,
    epilogue: str | None,
    factors: tuple[Load, Load],
    column: bool,
) -> Contraction | None:
    store = store_of(node)
    spatial = [i for i in node.iters if i.kind == "spatial"]
    if not spatial or list(store.indices) != [i.var for i in spatial]:
        return None
    used = [{v for index in load.indices for v in affine(index).variables()} for load in factors]
    vector = spatial[-1].var
    first, second = factors
    # The right operand is the one whose lanes are along the vector axis; on a tie the second.
    if vector in used[0] and vector not in used[1]:
        first, second = second, first
        used.reverse()
    if vector not in used[1] and not (column and spatial[-1].extent == 1):
        return None
    position = {i.var: n for n, i in enumerate(node.iters)}
    axes = {
        i.var: Axis(_name(position[i.var], i.var), position[i.var], i.extent) for i in node.iters
    }
    rest = [i.var for i in spatial[:-1]]
    return Contraction(
        program,
        node.name,
        epilogue,
        axes[vector],
        tuple(axes[v] for v in rest if v in used[0] and v not in used[1]),
        tuple(axes[v] for v in rest if not (v in used[0] and v not in used[1])),
        tuple(axes[i.var] for i in node.iters if i.kind == "reduce"),
        _operand(program, first),
        _operand(program, second),
    )


def _operand(program: PrimFunc, load: Load) -> Operand:
    params = list(program.params)
    return Operand(load, params.index(load.buffer) if load.buffer in params else None)
