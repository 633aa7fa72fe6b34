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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.gpu.intrinsics import TURNED
from tunefarm.compiler.tir.ir import (
    Binary,
    Block,
    Buffer,
    Cast,
    Const,
    Expr,
    Intrinsic,
    IterVar,
    Load,
    PrimFunc,
    Stmt,
    Store,
    Var,
)
from tunefarm.compiler.tir.schedule.regions import loops_over_region, region_of
from tunefarm.compiler.tir.schedule.tree import (
    blocks,
    find_block,
    find_loop,
    loop_ranges,
    loops_of,
    nest_around,
    reads,
    replace_stmt,
    store_of,
)
from tunefarm.compiler.tir.tensor_intrinsics import TensorIntrinsic, register_tensor_intrinsic
from tunefarm.compiler.tir.transform.simplify import simplify_expr
from tunefarm.compiler.tir.visit import seq, substitute, transform_accesses

ROWS, COLUMNS = 16, 8
ELEMENTS = 4  # of the result, that a thread holds
FRAGMENT = ("mt", "nt", "g", "t", "e")  # iterators of the result's rows and columns
SQUARE = ("mt", "nj", "h", "g", "t", "e")  # those of a result that threads have exchanged


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


def tensorize_product(program: PrimFunc, block: str, intrinsic: str, width: int = 1) -> PrimFunc:
    """Compute a product by a warp's matrix instruction, in tiles of 16 rows and 8 columns.

    for m in 32: for n in 16: for k in 48: C[m, n] += f32(A[m, k]) · f32(B[k, n])
    ->  for mt in 2: for nt in 2: for g in 8: for t in 4: for e in 4: for kt in 3:
          C[mt, nt, g, t, e] = mma.m16n8k16.f16(C[…], A[mt·16 + e // 2·8 + g, kt·16], …, B[…], …)

    The result is stored as threads hold it, and so are the loops of its readers; those over g and
    t are for the threads of a warp (``fuse``, ``bind``), that over e for lanes. Extents must be
    multiples of whole tiles. ScheduleError says what does not match.

    Of a ``width`` of 2 or 4 a block ``T`` comes between the result and its readers, by which as
    many threads give each other parts of as many tiles, so that each has 2 · width elements of a
    row side by side:

    for nj: for h in 2: for g in 8: for t in 4: for e in 8: T[mt, nj, h, g, t, e] = turned(C[…], …)
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
    own, read, iters = [new], new, _fragment(tiles)
    if width > 1:
        iters = _square(tiles, width)
        read = Buffer("T", (*old.shape[:-2], *(i.extent for i in iters)), old.dtype)
        own.append(read)
    for reader in [b for b in blocks(program.body) if b is not node and reads(b, old)]:
        program = _renested(program, reader, _result_nest(reader, old, read, iters, width))
    product = _product_nest(node, new, tiles, m)
    if width > 1:
        product = seq(product, _square_nest(node, new, read, iters, width))
    program = _renested(program, node, product)
    buffers = [b for b in program.buffers if b is not old]
    return replace(program, buffers=(*buffers, *own))


def exchange_at(program: PrimFunc, block: str, loop: Var) -> PrimFunc:
    """Move block ``T`` under a loop of the product ``block``, after the sums that are complete
    there: ``reverse_compute_at`` for a block that reads other elements of a row than it writes.

    for n: for k: C[…] += …;  for n: T[…] = turned(C[…], …)
    ->  for n: { for k: C[…] += …; T[…] = turned(C[…], …) }
    """
    node, source = find_block(program, "T"), find_block(program, block)
    store = store_of(source)
    *batch, mt, nt, g, t, _ = region_of(
        find_loop(program, loop), store.buffer, [(source, [store])], written=True
    )
    h, e = (node.iters[-n].extent for n in (4, 1))
    width = e // 2
    if nt[1] % width:
        raise ScheduleError(f"loop {loop.name} has no whole groups of {width} tiles of columns")
    groups = simplify_expr(nt[0] // width, loop_ranges(program.body)), nt[1] // width
    region = [*batch, mt, groups, (Const(0), h), g, t, (Const(0), e)]
    moved = loops_over_region(node, region, by_iter=True)
    removed = replace_stmt(program, node, None)
    target = find_loop(removed, loop)
    return replace_stmt(removed, target, replace(target, body=seq(target.body, moved)))


def _renested(program: PrimFunc, node: Block, nest: Stmt) -> PrimFunc:
    """The program with the whole nest around a block replaced."""
    top = loops_of(program, node.name)
    return replace_stmt(program, find_loop(program, top[0]), nest)


def _fragment(tiles: tuple[int, int]) -> list[IterVar]:
    """The iterators of a result as threads hold it."""
    sizes = (*tiles, 8, 4, ELEMENTS)
    return [IterVar(Var(n), e) for n, e in zip(FRAGMENT, sizes, strict=True)]


def _square(tiles: tuple[int, int], width: int) -> list[IterVar]:
    """Those of one whose parts ``width`` threads have exchanged."""
    if tiles[1] % width:
        raise ScheduleError(f"{tiles[1]} tiles of columns are no multiple of {width}")
    sizes = (tiles[0], tiles[1] // width, 2, 8, 4, 2 * width)
    return [IterVar(Var(n), e) for n, e in zip(SQUARE, sizes, strict=True)]


def fragment_place(mt: Expr, nt: Expr, g: Expr, t: Expr, e: Expr) -> tuple[Expr, Expr]:
    """The row and the column of an element of the result, from the iterators of ``FRAGMENT``."""
    return mt * ROWS + e // 2 * 8 + g, nt * COLUMNS + t * 2 + e % 2


def square_place(
    width: int, mt: Expr, nj: Expr, h: Expr, g: Expr, t: Expr, e: Expr
) -> tuple[Expr, Expr]:
    """The row and the column of an element that threads have exchanged, from the iterators of
    ``SQUARE``: thread t has 2 · width columns of tile t % width of as many."""
    column = nj * (width * COLUMNS) + t % width * COLUMNS + t // width * (2 * width) + e
    return mt * ROWS + h * 8 + g, column


def exchanged(held: Sequence[Expr], t: Expr, e: Expr) -> Intrinsic:
    """Element e of what a thread gets, for its pairs of columns of as many tiles, of which
    ``held`` has number e % 2."""
    return Intrinsic(TURNED, (*held, t % len(held), e // 2), held[0].dtype)


def _square_nest(
    node: Block, old: Buffer, new: Buffer, iters: Sequence[IterVar], width: int
) -> Stmt:
    """The nest of block ``T``."""
    batch = [IterVar(Var(i.var.name), i.extent) for i in node.iters[:-3]]
    mt, nj, h, g, t, e = (i.var for i in iters)
    around = [i.var for i in batch]
    held = [Load(old, (*around, mt, nj * width + n, g, t, h * 2 + e % 2)) for n in range(width)]
    store = Store(new, (*around, *(i.var for i in iters)), exchanged(held, t, e))
    return nest_around(Block("T", (*batch, *iters), (), store))


def _result_nest(
    node: Block, old: Buffer, new: Buffer, iters: Sequence[IterVar], width: int
) -> Stmt:
    """A reader of the result at its own iterators, in the order in which threads hold it."""
    *batch, m, n = node.iters
    for load in reads(node, old):
        if list(load.indices) != [i.var for i in node.iters]:
            raise ScheduleError(f"{node.name} does not read {old.name} at its own iterators")
    own = [i.var for i in iters]
    row, column = fragment_place(*own) if width == 1 else square_place(width, *own)
    at = (*(i.var for i in batch), *own)
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
    iters = _fragment(tiles)
    row, column = fragment_place(*(i.var for i in iters))
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
