"""Rows that the windows of one iteration share with those of the next, computed once."""

from __future__ import annotations

from dataclasses import replace

from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.tir.affine import affine, conjunction, conjuncts
from tunefarm.compiler.tir.ir import (
    Block,
    Expr,
    For,
    LoopKind,
    PrimFunc,
    Ring,
    Stmt,
    Var,
    binary,
)
from tunefarm.compiler.tir.schedule.buffers import replace_buffer
from tunefarm.compiler.tir.schedule.placement import ranges_around
from tunefarm.compiler.tir.schedule.regions import region_of
from tunefarm.compiler.tir.schedule.tree import (
    blocks,
    constant_extent,
    find_block,
    find_loop,
    path_to,
    plain_indices,
    producers_and_consumers,
    reads,
    replace_stmt,
    store_of,
)
from tunefarm.compiler.tir.visit import transform_stmt


def rolling_buffer(program: PrimFunc, block: str, loop: Var) -> PrimFunc:
    """Compute in each iteration of a serial loop only the rows that the one before did not.

    ``block`` was moved into the loop (``compute_at``), where it computes the rows that overlapping
    windows read. Its buffer is kept over the iterations, of no more rows than one of them reads.

    for h: { for e in 3: T[h + e] = …; use(T[h], T[h + 1], T[h + 2]) }
    ->  for h: { for e in 3: if e >= min(h, 1) * 2: T[(h + e) % 3] = …; use(T[h % 3], …) }
    """
    node, outer = find_block(program, block), find_loop(program, loop)
    buffer = store_of(node).buffer
    if buffer not in program.buffers or buffer.scope == "register":
        raise ScheduleError(f"{buffer.name} is no intermediate buffer in memory")
    if outer.kind is not LoopKind.SERIAL:
        raise ScheduleError(f"loop {loop.name} is {outer.kind}; rows are kept by a serial one")
    writers, readers = producers_and_consumers(program, buffer)
    if writers != [node] or any(b not in blocks(outer) for b in (node, *readers)):
        raise ScheduleError(f"{buffer.name} is used outside of loop {loop.name}")
    dim, step, rows = _moving_rows(program, node, outer)
    extent = constant_extent(rows)
    if step >= extent:
        raise ScheduleError(f"no two iterations of loop {loop.name} read a row of {buffer.name}")
    _check_reads(program, node, readers, outer)
    known = binary("min", loop, 1) * (extent - step)
    program = replace_stmt(program, rows, _only_where(rows, rows.var >= known))
    return replace_buffer(program, buffer, replace(buffer, ring=Ring(dim, extent, loop)))


def _moving_rows(program: PrimFunc, node: Block, outer: For) -> tuple[int, int, For]:
    """The dimension along which a block moves with a loop, by how many rows an iteration, and its
    own loop over them."""
    values = dict(zip((i.var for i in node.iters), node.bindings, strict=True))
    formals = plain_indices(store_of(node), node.name)
    indices = [affine(values[v]) for v in formals]
    moving = [d for d, index in enumerate(indices) if outer.var in index.variables()]
    if len(moving) == 1:
        (dim,) = moving
        index = indices[dim]
        below = [s for s in path_to(outer.body, node) if isinstance(s, For)]
        own = [s for s in below if s.var in index.variables()]
        step = index.coefficient(outer.var)
        if len(own) == 1 and index.coefficient(own[0].var) == 1 and step > 0:
            return dim, step, own[0]
    raise ScheduleError(f"loop {outer.var.name} does not move rows that {node.name} computes")


def _check_reads(program: PrimFunc, node: Block, readers: list[Block], outer: For) -> None:
    """ScheduleError if an iteration reads other rows than its block computes for it."""
    buffer, around = store_of(node).buffer, ranges_around(program, outer)
    written = region_of(outer, buffer, [(node, [store_of(node)])], around=around)
    for reader in readers:
        read = region_of(outer, buffer, [(reader, reads(reader, buffer))], around=around)
        for (base, extent), (first, size) in zip(written, read, strict=True):
            ahead = affine(first) - affine(base)
            if ahead.terms or ahead.const < 0 or ahead.const + size > extent:
                raise ScheduleError(f"{reader.name} reads more of {buffer.name} than is there")


def _only_where(rows: For, condition: Expr) -> Stmt:
    """A loop whose blocks are computed only where a condition holds."""

    def rule(stmt: Stmt) -> Stmt | None:
        if not isinstance(stmt, Block):
            return None
        parts = conjuncts(stmt.predicate) if stmt.predicate is not None else []
        return replace(stmt, predicate=conjunction([*parts, condition]))

    return transform_stmt(rows, rule)
