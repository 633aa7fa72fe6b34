"""Placing blocks at loops: producers under the loops of their readers, and the other way round."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod

from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.tir.affine import Affine, affine, at_least_zero, conjuncts
from tunefarm.compiler.tir.facts import variables
from tunefarm.compiler.tir.ir import (
    THREAD_AXES,
    Binary,
    Block,
    Buffer,
    Const,
    Expr,
    For,
    PrimFunc,
    Seq,
    Var,
)
from tunefarm.compiler.tir.schedule.regions import Region, loops_over_region, region_of, relax
from tunefarm.compiler.tir.schedule.tree import (
    blocks,
    constant_extent,
    find_block,
    find_loop,
    is_reduction,
    loop_ranges,
    path_to,
    producers_and_consumers,
    reads,
    reads_of,
    replace_stmt,
    shared_writers,
    store_of,
    written_buffer,
)
from tunefarm.compiler.tir.visit import seq


def compute_at(program: PrimFunc, block: str, loop: Var) -> PrimFunc:
    """Move a producer under a loop of its consumers, computing the region they read there.

    for i: B[i] = f(i);  for i: for j: C[i, j] = B[i] + j
    ->  for i: { B[i] = f(i); for j: C[i, j] = B[i] + j }
    """
    node = find_block(program, block)
    buffer = written_buffer(node)
    writers, readers = producers_and_consumers(program, buffer)
    if buffer in program.params:
        raise ScheduleError(f"block {block} writes an output; it cannot be moved to its readers")
    if len(writers) > 1:
        raise ScheduleError(shared_writers(buffer, writers, block))
    target = find_loop(program, loop)
    inside = [b for b in blocks(target) if b in readers]
    if not inside or len(inside) != len(readers):
        raise ScheduleError(f"not every consumer of {block} is inside loop {loop.name}")
    threads = _threads_around(program, target) if buffer.scope == "shared" else {}
    around = ranges_around(program, target)
    accesses = [(b, reads(b, buffer)) for b in inside]
    region = region_of(target, buffer, accesses, threads=threads, around=around)
    removed = replace_stmt(program, node, None)
    target = find_loop(removed, loop)
    moved = loops_over_region(node, region)
    parts = target.body.stmts if isinstance(target.body, Seq) else (target.body,)
    first = next(p for p in parts if any(b in inside for b in blocks(p)))
    return replace_stmt(removed, first, seq(moved, first))


def _threads_around(program: PrimFunc, target: For) -> dict[Var, tuple[int, int]]:
    """Ranges of the threads of a block at a loop, which together fill what they share."""
    path = path_to(program.body, target)
    own = [s for s in path if isinstance(s, For) and s.axis in THREAD_AXES]
    return {s.var: (0, constant_extent(s) - 1) for s in own}


def ranges_around(program: PrimFunc, target: For) -> dict[Var, tuple[int, int]]:
    """Ranges of a loop and of those around it."""
    loops = [s for s in path_to(program.body, target) if isinstance(s, For)]
    return {s.var: (0, constant_extent(s) - 1) for s in loops}


def reverse_compute_at(program: PrimFunc, block: str, loop: Var) -> PrimFunc:
    """Move a spatial consumer under a loop of its producers, after the part they compute there.

    for i: for k: C[i] += f(i, k);  for i: D[i] = g(C[i])
    ->  for i: { for k: C[i] += f(i, k); D[i] = g(C[i]) }
    """
    node = find_block(program, block)
    if is_reduction(node):
        raise ScheduleError(f"block {block} is a reduction; it cannot follow its producer's loops")
    target = find_loop(program, loop)
    sources = [b for b in blocks(target) if reads(node, written_buffer(b))]
    if not sources:
        raise ScheduleError(f"no producer of {block} is inside loop {loop.name}")
    _check_complete(program, block, target, sources)
    placed = _placed(node, target, sources)
    ordered = [placed[i.var] if i.var in placed else (Const(0), i.extent) for i in node.iters]
    removed = replace_stmt(program, node, None)
    target = find_loop(removed, loop)
    moved = loops_over_region(node, ordered, by_iter=True)
    return replace_stmt(removed, target, replace(target, body=seq(target.body, moved)))


def _check_complete(program: PrimFunc, block: str, target: For, sources: list[Block]) -> None:
    """ScheduleError if what a block reads is not finished where ``target``'s body ends."""
    around = {s.var for s in path_to(program.body, target) if isinstance(s, For)}
    for source in sources:
        for axis, binding in zip(source.iters, source.bindings, strict=True):
            if axis.kind == "reduce" and affine(binding).variables() & around:
                raise ScheduleError(
                    f"the reduction of {source.name} is not finished inside loop {target.var.name}"
                )
    needed = set(reads_of(program, block))
    inside = list(blocks(target))
    order = list(blocks(program.body))
    end = max(order.index(b) for b in inside)
    for late in order[end + 1 :]:
        if late.name != block and written_buffer(late) in needed:
            raise ScheduleError(
                f"block {block} reads what {late.name} writes after loop {target.var.name}"
            )


def _placed(node: Block, target: For, sources: list[Block]) -> dict[Var, tuple[Expr, int]]:
    """The (base, extent) of a block's iterators in which ``target``'s body writes what it reads."""
    placed: dict[Var, tuple[Expr, int]] = {}
    extents = {i.var: i.extent for i in node.iters}
    writers: dict[Buffer, list[Block]] = {}
    for source in sources:
        writers.setdefault(written_buffer(source), []).append(source)
    whole: dict[Var, tuple[Expr, int]] = {v: (Const(0), e) for v, e in extents.items()}
    for buffer, members in writers.items():
        region = region_of(target, buffer, [(b, [store_of(b)]) for b in members], written=True)
        formals = _read_at(node, buffer, region)
        for formal, extent in zip(formals, buffer.shape, strict=True):
            if formal is not None and extents[formal[0]] > extent * formal[1]:
                raise ScheduleError(
                    f"block {node.name} has elements beyond those of {buffer.name}; "
                    "it cannot follow the loops that write it"
                )
        for source in members:
            _check_all_written(source, target)
        mine: dict[Var, tuple[Expr, int]] = {}
        for formal, (base, extent) in zip(formals, region, strict=True):
            if formal is not None:
                var, each = formal  # a last group may have fewer values
                values = extent if each == 1 else min(extent * each, extents[var])
                mine[var] = base * each, values
        for var in extents if placed else ():
            a, b = placed.get(var, whole[var]), mine.get(var, whole[var])
            narrower = var in mine and _differ(a, b) and _differ(b, whole[var])
            if narrower:
                raise ScheduleError(
                    f"block {node.name} reads parts of {buffer.name} that are written outside "
                    f"an iteration of loop {target.var.name}"
                )
        placed = {**mine, **placed}
    return placed


def _check_all_written(source: Block, target: For) -> None:
    """ScheduleError if an iteration of ``target`` writes only some elements of a region.

    for p in 2: for q in 3: B[q*2 + p] = …   an iteration of p writes every other element
    """
    inner = [s for s in path_to(target.body, source) if isinstance(s, For)]
    pairs = zip(source.iters, source.bindings, strict=True)
    spatial = [(i, b) for i, b in pairs if i.kind == "spatial"]
    used = {v for _, b in spatial for v in variables(b)}
    steps = {s.var: constant_extent(s) for s in inner if s.var in used}
    spans = [relax(b, loop_ranges(target.body))[1] for _, b in spatial]
    ends = [affine(i.extent - 1 - b) for i, b in spatial]
    rest = [
        p
        for p in (conjuncts(source.predicate) if source.predicate is not None else [])
        if not variables(p).isdisjoint(steps) and not any(_same_bound(p, end) for end in ends)
    ]
    # Divisions come from fused loops: as many iterations as elements reach every one.
    divided = any(_divides(b, steps) for _, b in spatial)
    full = prod(steps.values()) == prod(spans)
    if rest or not (full if divided else all(_is_dense(b, steps) for _, b in spatial)):
        raise ScheduleError(
            f"{source.name} writes a part of a region in an iteration of loop {target.var.name}"
        )


def _same_bound(condition: Expr, end: Affine) -> bool:
    """True if the condition says ``end ≥ 0``."""
    form = at_least_zero(condition)
    if form is None:
        return False
    difference = form - end
    return not difference.terms and difference.const == 0


def _inner_terms(binding: Expr, steps: Mapping[Var, int]) -> list[tuple[int, Expr]]:
    """(size of the coefficient, atom) of the terms that depend on the loops in ``steps``."""
    terms = affine(binding).terms.values()
    return [(abs(c), atom) for c, atom in terms if not steps.keys().isdisjoint(variables(atom))]


def _divides(binding: Expr, steps: Mapping[Var, int]) -> bool:
    return any(not isinstance(atom, Var) for _, atom in _inner_terms(binding, steps))


def _is_dense(binding: Expr, steps: Mapping[Var, int]) -> bool:
    """True if the loops in ``steps`` together give a binding every value of an interval."""
    reach = 1
    for factor, atom in sorted(_inner_terms(binding, steps), key=lambda t: t[0]):
        assert isinstance(atom, Var)
        if factor > reach:
            return False
        reach += factor * (steps[atom] - 1)
    return True


def _differ(a: tuple[Expr, int], b: tuple[Expr, int]) -> bool:
    difference = affine(a[0]) - affine(b[0])
    return bool(difference.terms) or difference.const != 0 or a[1] != b[1]


def _read_at(node: Block, buffer: Buffer, region: Region) -> list[tuple[Var, int] | None]:
    """The iterators at which a block reads a buffer, each with how many of its values read the same
    index: ``v`` has 1, ``v // 4`` has 4. None where an index is 0 of extent 1, or any other in a
    dimension of which the ``region`` is the whole.

    Raises ScheduleError if the block reads elsewhere too.
    """
    found: list[tuple[Var, int] | None] | None = None
    for access in reads(node, buffer):
        formals: list[tuple[Var, int] | None] = []
        dimensions = zip(access.indices, buffer.shape, region, strict=True)
        for index, extent, (base, written) in dimensions:
            formals.append(_iterator_of(index))
            start = isinstance(base, Const) and base.value == 0
            whole = extent == 1 or (written == extent and start)
            changed = found is not None and found[len(formals) - 1] != formals[-1]
            if (formals[-1] is None and not whole) or changed:
                raise ScheduleError(
                    f"block {node.name} does not read {buffer.name} at its own iterators"
                )
        found = formals
    assert found is not None
    iterators = [formal[0] for formal in found if formal is not None]
    if len(set(iterators)) != len(iterators):
        raise ScheduleError(f"block {node.name} reads the diagonal of {buffer.name}")
    return found


def _iterator_of(index: Expr) -> tuple[Var, int] | None:
    """An iterator and what it is divided by to be an index."""
    match index:
        case Var():
            return index, 1
        case Binary("floordiv", Var() as var, Const(value=int() as factor)) if factor > 0:
            return var, factor
    return None
