"""Matrix instructions of a warp, ``mma.sync``: 16 × 8 results from tiles in shared memory.

    C[16, 8] += A[16, depth] · B[depth, 8]

Thread ``4·g + t`` of the warp holds the elements of C in rows g and g + 8, columns 2·t and
2·t + 1: number e = 2·h + c is (g + 8·h, 2·t + c). In a program an instruction is an ``Intrinsic``
as one of these four elements is computed, by a vectorized loop over them; A and B are read from
shared memory. The emitter loads them as fragments (``ldmatrix``), and multiplies by one instruction
for the whole warp. A vectorized loop over the elements of several tiles, side by side, is an
instruction for each; fragments of B are loaded for two of them at once.

Source: NVIDIA, "PTX ISA", matrix fragments for mma.m16n8k16 and its kin.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.tir.ir import (
    Binary,
    Block,
    Buffer,
    Cast,
    Expr,
    Intrinsic,
    IterVar,
    Load,
    PrimFunc,
    Stmt,
    Store,
    Var,
)
from tunefarm.compiler.tir.schedule.tree import (
    blocks,
    find_block,
    find_loop,
    loops_of,
    nest_around,
    reads,
    replace_stmt,
    store_of,
)
from tunefarm.compiler.tir.tensor_intrinsics import TensorIntrinsic, register_tensor_intrinsic
from tunefarm.compiler.tir.transform.simplify import simplify_expr
from tunefarm.compiler.tir.visit import substitute, transform_accesses

ROWS, COLUMNS = 16, 8
ELEMENTS = 4  # of the result, that a thread holds
FRAGMENT = ("mt", "nt", "g", "t", "e")  # iterators of the result's rows and columns


@dataclass(frozen=True, slots=True)
class Mma:
    """One instruction. ``operand`` is the LLVM type of 32 bits of A or B."""

    name: str
    a: str
    b: str
    accumulator: str
    depth: int
    instruction: str
    operand: str = "i32"


def _mma(name: str, a: str, b: str, accumulator: str, depth: int, operand: str = "i32") -> Mma:
    whole = f"m16n8k{depth}"
    return Mma(
        f"mma.{whole}.{name}", a, b, accumulator, depth,
        f"llvm.nvvm.mma.{whole}.row.col.{'f32.f32' if name == 'f16' else name}", operand,
    )  # fmt: skip


MMAS: Mapping[str, Mma] = {
    m.name: m
    for m in (
        _mma("f16", "float16", "float16", "float32", 16, "<2 x half>"),
        _mma("bf16", "bfloat16", "bfloat16", "float32", 16),
        _mma("s8", "int8", "int8", "int32", 32),
        _mma("u8", "uint8", "uint8", "int32", 32),
        _mma("u8.s8", "uint8", "int8", "int32", 32),
        _mma("s8.u8", "int8", "uint8", "int32", 32),
        _mma("tf32", "float32", "float32", "float32", 8),
    )
}
for _m in MMAS.values():
    register_tensor_intrinsic(
        TensorIntrinsic(
            _m.name, ELEMENTS, _m.depth, _m.accumulator, _m.a, _m.b, _m.instruction, "mma"
        )
    )


def tensorize_product(program: PrimFunc, block: str, intrinsic: str) -> PrimFunc:
    """Compute a product by a warp's matrix instruction, in tiles of 16 rows and 8 columns.

    for m in 32: for n in 16: for k in 48: C[m, n] += f32(A[m, k]) · f32(B[k, n])
    ->  for mt in 2: for nt in 2: for g in 8: for t in 4: for e in 4: for kt in 3:
          C[mt, nt, g, t, e] = mma.m16n8k16.f16(C[…], A[mt·16 + e // 2·8 + g, kt·16], …, B[…], …)

    The result is stored as threads hold it, and so are the loops of its readers; those over g and
    t are for the threads of a warp (``fuse``, ``bind``), that over e for lanes. Extents must be
    multiples of whole tiles. ScheduleError says what does not match.
    """
    m = MMAS.get(intrinsic)
    if m is None:
        raise ScheduleError(f"no matrix instruction {intrinsic!r}; there are {', '.join(MMAS)}")
    node = find_block(program, block)
    old = store_of(node).buffer
    if old not in program.buffers or len(node.iters) < 3 or node.predicate is not None:
        raise ScheduleError(f"{intrinsic} needs an unscheduled product into a buffer of its own")
    extents = [i.extent for i in node.iters[-3:]]
    if any(e % size for e, size in zip(extents, (ROWS, COLUMNS, m.depth), strict=True)):
        raise ScheduleError(
            f"{block} has {' × '.join(map(str, extents))} terms; {intrinsic} takes multiples of "
            f"{ROWS} × {COLUMNS} × {m.depth}"
        )
    tiles = (extents[0] // ROWS, extents[1] // COLUMNS)
    new = replace(old, shape=(*old.shape[:-2], *tiles, 8, 4, ELEMENTS))
    for reader in [b for b in blocks(program.body) if b is not node and reads(b, old)]:
        program = _renested(program, reader, _result_nest(reader, old, new, tiles))
    program = _renested(program, node, _product_nest(node, new, tiles, m))
    return replace(program, buffers=tuple(new if b is old else b for b in program.buffers))


def _renested(program: PrimFunc, node: Block, nest: Stmt) -> PrimFunc:
    """The program with the whole nest around a block replaced."""
    top = loops_of(program, node.name)
    return replace_stmt(program, find_loop(program, top[0]), nest)


def _fragment(tiles: tuple[int, int]) -> tuple[list[IterVar], Expr, Expr]:
    """The iterators of a result as threads hold it, its row and its column."""
    sizes = (*tiles, 8, 4, ELEMENTS)
    iters = [IterVar(Var(n), e) for n, e in zip(FRAGMENT, sizes, strict=True)]
    row, column = fragment_place(*(i.var for i in iters))
    return iters, row, column


def fragment_place(mt: Expr, nt: Expr, g: Expr, t: Expr, e: Expr) -> tuple[Expr, Expr]:
    """The row and the column of an element of the result, from the iterators of ``FRAGMENT``."""
    return mt * ROWS + e // 2 * 8 + g, nt * COLUMNS + t * 2 + e % 2


def _result_nest(node: Block, old: Buffer, new: Buffer, tiles: tuple[int, int]) -> Stmt:
    """A reader of the result at its own iterators, in the order of fragments."""
    *batch, m, n = node.iters
    for load in reads(node, old):
        if list(load.indices) != [i.var for i in node.iters]:
            raise ScheduleError(f"{node.name} does not read {old.name} at its own iterators")
    iters, row, column = _fragment(tiles)
    at = (*(i.var for i in batch), *(i.var for i in iters))
    body = transform_accesses(node.body, (old,), lambda _: Load(new, at), lambda store: store)
    assert isinstance(body, Store)
    ranges = {i.var: (0, i.extent - 1) for i in (*batch, *iters)}
    values: dict[Var, Expr] = {m.var: row, n.var: column}
    store = Store(
        body.buffer,
        tuple(simplify_expr(substitute(i, values), ranges) for i in body.indices),
        simplify_expr(substitute(body.value, values), ranges),
    )
    return nest_around(replace(node, iters=(*batch, *iters), body=store))


def _product_nest(node: Block, new: Buffer, tiles: tuple[int, int], m: Mma) -> Stmt:
    x, y = _factors(node, m)
    *batch, rows, columns, depth = node.iters
    iters, row, column = _fragment(tiles)
    step = IterVar(Var("kt"), depth.extent // m.depth, "reduce")
    at = (*(i.var for i in batch), *(i.var for i in iters))
    args: list[Expr] = [Load(new, at)]
    for load in (x, y):
        for term in range(m.depth):
            values: dict[Var, Expr] = {
                rows.var: row, columns.var: column, depth.var: step.var * m.depth + term,
            }  # fmt: skip
            args.append(Load(load.buffer, tuple(substitute(i, values) for i in load.indices)))
    body = Store(new, at, Intrinsic(m.name, tuple(args), m.accumulator))
    assert isinstance(node.init, Store)
    init = Store(new, at, node.init.value)
    return nest_around(replace(node, iters=(*batch, *iters, step), body=body, init=init))


def _factors(node: Block, m: Mma) -> tuple[Load, Load]:
    """The operands of C + a · b; ScheduleError if they are not those of the instruction."""
    value = store_of(node).value
    product = value.b if isinstance(value, Binary) and value.op == "add" else None
    if isinstance(product, Binary) and product.op == "mul" and node.init is not None:
        x, y = (f.value if isinstance(f, Cast) else f for f in (product.a, product.b))
        kinds = (x.dtype, y.dtype, value.dtype)
        if isinstance(x, Load) and isinstance(y, Load) and kinds == (m.a, m.b, m.accumulator):
            return x, y
    raise ScheduleError(
        f"{node.name} is no sum of products of {m.a} and {m.b} in {m.accumulator}, which "
        f"{m.name} computes"
    )
