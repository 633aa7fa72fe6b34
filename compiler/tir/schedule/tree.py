"""Finding and replacing loops and blocks in a program."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from operator import is_

from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.tir.facts import blocks_below, buffers_read_below, loops_below
from tunefarm.compiler.tir.ir import (
    SCOPES,
    Allocate,
    Block,
    Buffer,
    Const,
    For,
    If,
    Load,
    PrimFunc,
    Seq,
    Stmt,
    Store,
    Var,
    changed,
)
from tunefarm.compiler.tir.visit import children, loads_of, map_children, seq, with_body


def find_loop(program: PrimFunc, var: Var) -> For:
    """The loop of a variable; ScheduleError if there is none."""
    check_program(program)
    if not isinstance(var, Var):
        raise ScheduleError(
            f"a loop of {program.name} is given as {var!r} ({type(var).__name__}), expected its "
            "variable; loops_of(program, block) has them"
        )
    for loop in loops_below(program.body):
        if loop.var is var:
            return loop
    raise ScheduleError(f"no loop {var.name} in {program.name}")


def find_block(program: PrimFunc, name: str) -> Block:
    """The block of a name; ScheduleError lists the names there are."""
    check_program(program)
    for block in blocks(program.body):
        if block.name == name:
            return block
    known = ", ".join(b.name for b in blocks(program.body))
    raise ScheduleError(f"no block {name!r} in {program.name}; blocks: {known}")


def check_program(program: PrimFunc) -> None:
    """ScheduleError if a primitive was given something else, such as the pair that one returned."""
    if not isinstance(program, PrimFunc):
        raise ScheduleError(
            f"a schedule primitive takes a program, not {type(program).__name__}; some return it "
            "together with new loops or names: program, parts = split(program, …)"
        )


def blocks(stmt: Stmt) -> tuple[Block, ...]:
    """The blocks of a statement in program order."""
    return blocks_below(stmt)


def path_to(root: Stmt, wanted: For | Block) -> list[Stmt]:
    """The statements from ``root`` down to a loop or a block; [] if it is not there."""
    if not _holds(root, wanted):
        return []
    path = [root]
    while path[-1] is not wanted:
        parts = children(path[-1])
        alone = len(parts) == 1
        path.append(parts[0] if alone else next(s for s in parts if _holds(s, wanted)))
    return path


def loops_of(program: PrimFunc, block: str) -> list[Var]:
    """The variables of the loops around a block, outermost first."""
    target = find_block(program, block)
    return [s.var for s in path_to(program.body, target) if isinstance(s, For)]


def replace_stmt(program: PrimFunc, old: Stmt, new: Stmt | None) -> PrimFunc:
    """The program with one statement replaced; None removes it with the loops left empty."""
    path = path_to(program.body, old) if isinstance(old, (For, Block)) else []
    if path and new is not None:
        return changed(program, body=_rebuilt(path, new))
    body = _replace(program.body, old, new)
    if body is None:
        raise ScheduleError(f"{program.name} would become empty")
    return changed(program, body=body)


def _rebuilt(path: Sequence[Stmt], new: Stmt) -> Stmt:
    """The first statement of a path with the last one replaced."""
    for stmt, old in zip(path[-2::-1], path[:0:-1], strict=True):
        new = _with_child(stmt, old, new)
    return new


def _with_child(stmt: Stmt, old: Stmt, new: Stmt) -> Stmt:
    if isinstance(stmt, (For, Allocate)):
        return with_body(stmt, new)
    return map_children(stmt, lambda s: new if s is old else s)


def _replace(stmt: Stmt, old: Stmt, new: Stmt | None) -> Stmt | None:
    if stmt is old:
        return new
    match stmt:
        case Seq(stmts):
            parts = [_replace(s, old, new) for s in stmts]
            if all(map(is_, parts, stmts)):
                return stmt
            kept = [p for p in parts if p is not None]
            return seq(*kept) if kept else None
        case For() | Allocate():
            body = _replace(stmt.body, old, new)
            return None if body is None else with_body(stmt, body)
        case If():
            return map_children(stmt, lambda s: _replace(s, old, new) or s)
        case _:
            return stmt


def _holds(stmt: Stmt, wanted: Stmt) -> bool:
    """False if a loop or a block does not stand in a statement."""
    match wanted:
        case For():
            return wanted in loops_below(stmt)
        case Block():
            return wanted in blocks_below(stmt)
        case _:
            return True


def nest_around(block: Block) -> Stmt:
    """An unscheduled block in loops over its iterators, outermost first."""
    loops = tuple(Var(i.var.name) for i in block.iters)
    stmt: Stmt = replace(block, bindings=loops)
    for loop, axis in reversed(list(zip(loops, block.iters, strict=True))):
        stmt = For(loop, Const(axis.extent), stmt)
    return stmt


def constant_extent(loop: For) -> int:
    if not isinstance(loop.extent, Const):
        raise ScheduleError(f"loop {loop.var.name} has no constant extent")
    return int(loop.extent.value)


def loop_ranges(stmt: Stmt) -> dict[Var, tuple[int, int]]:
    """Inclusive ranges of all loop variables below ``stmt`` whose bounds are constant."""
    ranges: dict[Var, tuple[int, int]] = {}
    for loop in loops_below(stmt):
        if isinstance(loop.extent, Const) and isinstance(loop.start, Const):
            start = int(loop.start.value)
            ranges[loop.var] = (start, start + int(loop.extent.value) - 1)
    return ranges


def written_buffer(block: Block) -> Buffer:
    return store_of(block).buffer


def store_of(block: Block) -> Store:
    if not isinstance(block.body, Store):
        raise ScheduleError(f"block {block.name} is not a single store")
    return block.body


def reads(block: Block, buffer: Buffer) -> list[Load]:
    """The loads of a buffer by which a block makes its value."""
    if buffer not in buffers_read_below(block.body):
        return []
    return [ld for ld in loads_of(block.body) if ld.buffer is buffer]


def is_reduction(block: Block) -> bool:
    return any(i.kind == "reduce" for i in block.iters)


def producers_and_consumers(program: PrimFunc, buffer: Buffer) -> tuple[list[Block], list[Block]]:
    """Blocks that write a buffer, and other blocks that read it."""
    writers = [b for b in blocks(program.body) if written_buffer(b) is buffer]
    readers = [b for b in blocks(program.body) if b not in writers and reads(b, buffer)]
    return writers, readers


def checked_scope(scope: str) -> str:
    """A scope that buffers have; ScheduleError for another word."""
    if scope not in SCOPES:
        raise ScheduleError(f"there is no scope {scope!r}; scopes: {', '.join(SCOPES)}")
    return scope


def fresh_name(program: PrimFunc, name: str) -> str:
    """A block name that the program does not have yet."""
    taken = {b.name for b in blocks(program.body)}
    if name not in taken:
        return name
    return next(f"{name}_{i}" for i in range(1, len(taken) + 2) if f"{name}_{i}" not in taken)


def remaining_blocks(program: PrimFunc) -> list[str]:
    """Names of the program's blocks in order."""
    return [b.name for b in blocks(program.body)]


def reads_of(program: PrimFunc, block: str) -> list[Buffer]:
    """The buffers that a block reads, without what it writes itself, each once."""
    node = find_block(program, block)
    seen = dict.fromkeys(ld.buffer for ld in loads_of(node.body))
    seen.pop(written_buffer(node), None)
    return list(seen)


def shared_writers(buffer: Buffer, writers: Sequence[Block], block: str) -> str:
    """What is wrong if a block is not alone in writing a buffer."""
    others = ", ".join(b.name for b in writers if b.name != block)
    return f"{buffer.name} is written by {others} too, not by {block} alone"


def plain_indices(store: Store, block: str) -> list[Var]:
    """The iterators at which a block stores; ScheduleError if it stores elsewhere."""
    formals = [i for i in store.indices if isinstance(i, Var)]
    if len(formals) != len(store.indices) or len(set(formals)) != len(formals):
        raise ScheduleError(f"block {block} does not store at its plain iterators")
    return formals
