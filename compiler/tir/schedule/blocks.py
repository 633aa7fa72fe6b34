"""Primitives on blocks: inlining, placing at loops, caches, reductions, layouts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod

from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.tir.affine import Affine, affine, at_least_zero, conjuncts, interval
from tunefarm.compiler.tir.ir import (
    THREAD_AXES,
    Block,
    Buffer,
    Const,
    Expr,
    For,
    IterVar,
    Load,
    PackedLayout,
    PrimFunc,
    Seq,
    Stmt,
    Store,
    Var,
    binary,
)
from tunefarm.compiler.tir.schedule.tree import (
    blocks,
    constant_extent,
    find_block,
    find_loop,
    fresh_name,
    is_reduction,
    loop_ranges,
    path_to,
    producers_and_consumers,
    reads,
    replace_stmt,
    store_of,
    written_buffer,
)
from tunefarm.compiler.tir.transform.simplify import simplify_expr
from tunefarm.compiler.tir.visit import (
    loads_of,
    seq,
    substitute,
    transform_expr,
    transform_stmt,
    walk_stmt,
)


def compute_inline(program: PrimFunc, block: str) -> PrimFunc:
    """Compute a spatial block's value where it is read, and drop its buffer.

    B[i] = A[i] + 1; C[i] = B[i] * 2   ->   C[i] = (A[i] + 1) * 2
    """
    node = find_block(program, block)
    store = store_of(node)
    if is_reduction(node):
        raise ScheduleError(f"block {block} is a reduction; only spatial blocks can be inlined")
    if store.buffer in program.params:
        raise ScheduleError(f"block {block} writes an output; it cannot be inlined")
    writers, _ = producers_and_consumers(program, store.buffer)
    if len(writers) > 1:
        raise ScheduleError(_shared(store.buffer, writers, block))
    if node.predicate is not None:
        raise ScheduleError(f"block {block} has a predicate; inline it before splitting its loops")
    formals = _plain_indices(store, block)
    removed = replace_stmt(program, node, None)

    def rule(expr: Expr) -> Expr | None:
        if isinstance(expr, Load) and expr.buffer is store.buffer:
            return substitute(store.value, dict(zip(formals, expr.indices, strict=True)))
        return None

    body = transform_stmt(removed.body, expr_rule=lambda e: transform_expr(e, rule))
    left = tuple(b for b in removed.buffers if b is not store.buffer)
    return replace(removed, body=body, buffers=left)


def _shared(buffer: Buffer, writers: Sequence[Block], block: str) -> str:
    others = ", ".join(b.name for b in writers if b.name != block)
    return f"{buffer.name} is written by {others} too, not by {block} alone"


def _plain_indices(store: Store, block: str) -> list[Var]:
    formals = [i for i in store.indices if isinstance(i, Var)]
    if len(formals) != len(store.indices) or len(set(formals)) != len(formals):
        raise ScheduleError(f"block {block} does not store at its plain iterators")
    return formals


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
        raise ScheduleError(_shared(buffer, writers, block))
    target = find_loop(program, loop)
    inside = [b for b in blocks(target) if b in readers]
    if not inside or len(inside) != len(readers):
        raise ScheduleError(f"not every consumer of {block} is inside loop {loop.name}")
    threads = _threads_around(program, target) if buffer.scope == "shared" else {}
    region = _region(target, buffer, [(b, reads(b, buffer)) for b in inside], threads=threads)
    removed = replace_stmt(program, node, None)
    target = find_loop(removed, loop)
    moved = _loops_over_region(node, region)
    parts = target.body.stmts if isinstance(target.body, Seq) else (target.body,)
    first = next(p for p in parts if any(b in inside for b in blocks(p)))
    return replace_stmt(removed, first, seq(moved, first))


def _threads_around(program: PrimFunc, target: For) -> dict[Var, tuple[int, int]]:
    """Ranges of the threads of a block at a loop, which together fill what they share."""
    path = path_to(program.body, lambda s: s is target)
    own = [s for s in path if isinstance(s, For) and s.axis in THREAD_AXES]
    return {s.var: (0, constant_extent(s) - 1) for s in own}


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
    moved = _loops_over_region(node, ordered, by_iter=True)
    return replace_stmt(removed, target, replace(target, body=seq(target.body, moved)))


def _check_complete(program: PrimFunc, block: str, target: For, sources: list[Block]) -> None:
    """ScheduleError if what a block reads is not finished where ``target``'s body ends."""
    around = {s.var for s in path_to(program.body, lambda s: s is target) if isinstance(s, For)}
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
        formals = _identity_read(node, buffer)
        for var, extent in zip(formals, buffer.shape, strict=True):
            if var is not None and extents[var] > extent:
                raise ScheduleError(
                    f"block {node.name} has elements beyond those of {buffer.name}; "
                    "it cannot follow the loops that write it"
                )
        region = _region(target, buffer, [(b, [store_of(b)]) for b in members], written=True)
        for source in members:
            _check_all_written(source, target)
        mine = {v: r for v, r in zip(formals, region, strict=True) if v is not None}
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
    inner = [s for s in path_to(target.body, lambda s: s is source) if isinstance(s, For)]
    pairs = zip(source.iters, source.bindings, strict=True)
    spatial = [(i, b) for i, b in pairs if i.kind == "spatial"]
    used = {v for _, b in spatial for v in _vars(b)}
    steps = {s.var: constant_extent(s) for s in inner if s.var in used}
    spans = [relax(b, loop_ranges(target.body))[1] for _, b in spatial]
    ends = [affine(i.extent - 1 - b) for i, b in spatial]
    rest = [
        p
        for p in (conjuncts(source.predicate) if source.predicate is not None else [])
        if _vars(p) & steps.keys() and not any(_same_bound(p, end) for end in ends)
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
    return [(abs(c), atom) for c, atom in terms if not steps.keys().isdisjoint(_vars(atom))]


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


def _identity_read(node: Block, buffer: Buffer) -> list[Var | None]:
    """The iterators at which a block reads a buffer; None where an index is 0 of extent 1.

    Raises ScheduleError if the block reads elsewhere too.
    """
    found: list[Var | None] | None = None
    for access in reads(node, buffer):
        formals: list[Var | None] = []
        for index, extent in zip(access.indices, buffer.shape, strict=True):
            plain = index if isinstance(index, Var) else None
            zero = isinstance(index, Const) and extent == 1
            formals.append(plain)
            changed = found is not None and found[len(formals) - 1] is not plain
            if (plain is None and not zero) or changed:
                raise ScheduleError(
                    f"block {node.name} does not read {buffer.name} at its own iterators"
                )
        found = formals
    assert found is not None
    variables = [v for v in found if v is not None]
    if len(set(variables)) != len(variables):
        raise ScheduleError(f"block {node.name} reads the diagonal of {buffer.name}")
    return found


Region = list[tuple[Expr, int]]


def _region(
    loop: For,
    buffer: Buffer,
    accesses: Sequence[tuple[Block, Sequence[Load | Store]]],
    written: bool = False,
    threads: Mapping[Var, tuple[int, int]] | None = None,
) -> Region:
    """(base, extent) of each dimension of ``buffer`` touched inside ``loop``'s body.

    What is read may be less than the region, but not what is ``written``: ScheduleError if that is
    not known. The variables of ``threads`` take all their values too.
    """
    ranges = loop_ranges(loop.body) | dict(threads or {})
    region: list[tuple[Expr, int]] = []
    for dim, size in enumerate(buffer.shape):
        spans = []
        for block, touches in accesses:
            values = dict(zip((i.var for i in block.iters), block.bindings, strict=True))
            for touch in touches:
                index = simplify_expr(substitute(touch.indices[dim], values), ranges)
                spans.append(relax(index, ranges))
        base, extent = spans[0]
        if any(affine(b - base).terms for b, _ in spans[1:]):
            if written:
                raise ScheduleError(
                    f"{buffer.name} is written in parts by the loops inside {loop.var.name}"
                )
            region.append((Const(0), size))
            continue
        offsets = [affine(b - base).const for b, _ in spans]
        low = min(offsets)
        extent = max(o + e for o, (_, e) in zip(offsets, spans, strict=True)) - low
        base = base + low
        whole = extent >= size and (not written or isinstance(base, Const))
        region.append((Const(0), size) if whole else (base, extent))
    return region


def relax(expr: Expr, ranges: dict[Var, tuple[int, int]]) -> tuple[Expr, int]:
    """(base, extent) of an index when the variables in ``ranges`` take all their values."""
    form = affine(expr)
    inner = {
        key: term
        for key, term in form.terms.items()
        if any(v in ranges for v in Affine(0, {key: term}).variables())
    }
    outer = {key: term for key, term in form.terms.items() if key not in inner}
    low = high = 0
    for coefficient, atom in inner.values():
        a, b = interval(atom, ranges)
        low += coefficient * (a if coefficient > 0 else b)
        high += coefficient * (b if coefficient > 0 else a)
    return Affine(form.const + low, outer).expr(), high - low + 1


def _loops_over_region(node: Block, region: Region, by_iter: bool = False) -> Stmt:
    """A block again, its iterators running over a region of its buffer (or of its iterators)."""
    if by_iter:
        spans = {i.var: r for i, r in zip(node.iters, region, strict=True)}
    else:
        formals = _plain_indices(store_of(node), node.name)
        spans = dict(zip(formals, region, strict=True))
    loops: list[tuple[Var, int]] = []
    bindings: list[Expr] = []
    predicate: Expr = Const(True, "bool")
    for axis in node.iters:
        base, extent = spans.get(axis.var, (Const(0), axis.extent))
        var = Var(axis.var.name)
        value = base + var if extent > 1 else base
        if extent > 1:
            loops.append((var, extent))
        if isinstance(base, Const):
            safe = int(base.value) >= 0 and int(base.value) + extent <= axis.extent
        else:
            safe = False
        if not safe:
            predicate = binary("and", predicate, value < axis.extent)
            if affine(base).const < 0:
                predicate = binary("and", predicate, value >= 0)
        bindings.append(value)
    keep = None if isinstance(predicate, Const) else predicate
    stmt: Stmt = replace(node, bindings=tuple(bindings), predicate=keep)
    for var, extent in reversed(loops):
        stmt = For(var, Const(extent), stmt)
    return stmt


def decompose_reduction(program: PrimFunc, block: str, loop: Var) -> PrimFunc:
    """Store the reduction's first value before ``loop`` instead of inside it.

    for i: for k: {if k == 0: C[i] = 0}; C[i] += …   ->   for i: C[i] = 0; for k: C[i] += …
    """
    node = find_block(program, block)
    if node.init is None:
        raise ScheduleError(f"block {block} has no init to decompose")
    target = find_loop(program, loop)
    path = path_to(target, lambda s: s is node)
    if not path:
        raise ScheduleError(f"block {block} is not inside loop {loop.name}")
    inner = {s.var: s for s in path if isinstance(s, For)}
    _check_reduction_inside(program, node, inner, loop)
    spatial = [
        (i, b) for i, b in zip(node.iters, node.bindings, strict=True) if i.kind == "spatial"
    ]
    used = {v for _, b in spatial for v in affine(b).variables()}
    renamed: dict[Var, Expr] = {v: Var(v.name) for v in inner if v in used}
    predicate = _spatial_predicate(node, inner, used, renamed)
    init = Block(
        fresh_name(program, f"{block}_init"),
        tuple(i for i, _ in spatial),
        tuple(substitute(b, renamed) for _, b in spatial),
        node.init,
        None,
        predicate,
    )
    stmt: Stmt = init
    for var, for_node in reversed(inner.items()):
        if var in renamed:
            new = renamed[var]
            assert isinstance(new, Var)
            stmt = replace(for_node, var=new, body=stmt)
    changed = replace_stmt(program, node, replace(node, init=None))
    target = find_loop(changed, loop)
    return replace_stmt(changed, target, seq(stmt, target))


def _check_reduction_inside(
    program: PrimFunc, node: Block, inner: dict[Var, For], loop: Var
) -> None:
    around = {s.var for s in path_to(program.body, lambda s: s is node) if isinstance(s, For)}
    for axis, binding in zip(node.iters, node.bindings, strict=True):
        outside = affine(binding).variables() & around - inner.keys()
        if axis.kind == "reduce" and outside:
            raise ScheduleError(
                f"loop {next(iter(outside)).name} of the reduction of {node.name} "
                f"is outside loop {loop.name}"
            )
    _check_visits_once(node, inner, loop)


def _check_visits_once(node: Block, inner: dict[Var, For], loop: Var) -> None:
    """ScheduleError if the loops from ``loop`` inwards reduce into an element more than once."""
    ranges: dict[Var, tuple[int, int]] = {v: (0, constant_extent(f) - 1) for v, f in inner.items()}
    used: set[Var] = set()
    for axis, binding in zip(node.iters, node.bindings, strict=True):
        form = affine(binding)
        used |= form.variables()
        if axis.kind == "reduce":
            continue
        reach = 0
        terms = [(abs(c), atom) for c, atom in form.terms.values() if _vars(atom) & inner.keys()]
        for step, atom in sorted(terms, key=lambda t: t[0]):
            if step <= reach:
                raise ScheduleError(
                    f"tiles of {node.name} overlap inside loop {loop.name}; "
                    "its first value must be stored in each"
                )
            low, high = interval(atom, ranges)
            reach += step * (high - low)
    again = [v.name for v, f in inner.items() if v not in used and constant_extent(f) > 1]
    if again:
        raise ScheduleError(f"loop {again[0]} repeats {node.name} inside loop {loop.name}")


def _spatial_predicate(
    node: Block, inner: dict[Var, For], used: set[Var], renamed: dict[Var, Expr]
) -> Expr | None:
    """The parts of the predicate that do not depend on reduction loops."""
    from tunefarm.compiler.tir.affine import conjunction, conjuncts

    if node.predicate is None:
        return None
    parts = [
        substitute(c, renamed)
        for c in conjuncts(node.predicate)
        if not (_vars(c) & (inner.keys() - used))
    ]
    return conjunction(parts) if parts else None


def _vars(expr: Expr) -> set[Var]:
    from tunefarm.compiler.tir.visit import walk_expr

    return {e for e in walk_expr(expr) if isinstance(e, Var)}


def cache_write(program: PrimFunc, block: str, scope: str) -> tuple[PrimFunc, str]:
    """Let a block write into a new buffer of ``scope``, copied to the old one by a new block."""
    node = find_block(program, block)
    old = store_of(node).buffer
    top = _top(program, block)
    writers, readers = producers_and_consumers(program, old)
    if len(writers) > 1:
        raise ScheduleError(_shared(old, writers, block))
    early = [b.name for b in blocks(top) if b in readers]
    if early:
        raise ScheduleError(f"block {early[0]} reads {old.name} inside the loops of {block}")
    new = Buffer(f"{old.name}_{scope}", old.shape, old.dtype, scope)
    changed = _retarget(program, node, old, new)
    top = _top(changed, block)
    name = fresh_name(program, f"{block}_write")
    changed = replace_stmt(changed, top, seq(top, _copy_loops(name, new, old)))
    return replace(changed, buffers=(*changed.buffers, new)), name


def _top(program: PrimFunc, block: str) -> Stmt:
    """The outermost loop around a block, or the block itself."""
    path = path_to(program.body, lambda s: isinstance(s, Block) and s.name == block)
    return next((s for s in path if isinstance(s, (For, Block))), path[0])


def _retarget(program: PrimFunc, node: Block, old: Buffer, new: Buffer) -> PrimFunc:
    def rule(expr: Expr) -> Expr | None:
        return Load(new, expr.indices) if isinstance(expr, Load) and expr.buffer is old else None

    def store(stmt: Stmt) -> Stmt | None:
        if isinstance(stmt, Store) and stmt.buffer is old:
            return Store(new, stmt.indices, stmt.value)
        return None

    def whole(stmt: Stmt | None) -> Stmt | None:
        if stmt is None:
            return None
        return transform_stmt(stmt, store, lambda e: transform_expr(e, rule))

    body = whole(node.body)
    assert body is not None
    return replace_stmt(program, node, replace(node, body=body, init=whole(node.init)))


def cache_read(
    program: PrimFunc, block: str, buffer: Buffer, scope: str, padding: int = 0
) -> tuple[PrimFunc, str]:
    """Let a block read a copy of ``buffer`` in a new buffer of ``scope``, made by a new block.

    ``padding`` elements are added to each row of the copy.
    """
    node = find_block(program, block)
    if not reads(node, buffer):
        raise ScheduleError(f"block {block} does not read {buffer.name}")
    for other in blocks(_top(program, block)):
        if written_buffer(other) is buffer:
            raise ScheduleError(
                f"{buffer.name} is written inside the loops of {block}, by {other.name}"
            )
    new = Buffer(f"{buffer.name}_{scope}", buffer.shape, buffer.dtype, scope, padding)
    name = fresh_name(program, f"{buffer.name}_read")

    def rule(expr: Expr) -> Expr | None:
        if isinstance(expr, Load) and expr.buffer is buffer:
            return Load(new, expr.indices)
        return None

    body = transform_stmt(node.body, expr_rule=lambda e: transform_expr(e, rule))
    changed = replace_stmt(program, node, replace(node, body=body))
    top = _top(changed, block)
    changed = replace_stmt(changed, top, seq(_copy_loops(name, buffer, new), top))
    return replace(changed, buffers=(*changed.buffers, new)), name


def _copy_loops(name: str, source: Buffer, target: Buffer) -> Stmt:
    iters = tuple(IterVar(Var(f"i{d}"), e) for d, e in enumerate(source.shape))
    loops = tuple(Var(f"i{d}") for d in range(len(source.shape)))
    indices = tuple(i.var for i in iters)
    stmt: Stmt = Block(name, iters, loops, Store(target, indices, Load(source, indices)))
    for loop, axis in reversed(list(zip(loops, iters, strict=True))):
        stmt = For(loop, Const(axis.extent), stmt)
    return stmt


def set_scope(program: PrimFunc, block: str, scope: str, padding: int = 0) -> PrimFunc:
    """Change where the (intermediate) buffer that a block writes lives.

    ``padding`` elements are left between the rows of what is allocated, against cache conflicts.
    """
    old = written_buffer(find_block(program, block))
    if old not in program.buffers:
        raise ScheduleError(f"{old.name} is not an intermediate buffer; its scope is fixed")
    return replace_buffer(program, old, replace(old, scope=scope, padding=padding))


def replace_buffer(
    program: PrimFunc,
    old: Buffer,
    new: Buffer,
    place: Callable[[tuple[Expr, ...]], tuple[Expr, ...]] = lambda indices: indices,
) -> PrimFunc:
    """Let everybody use ``new`` for ``old``, at ``place(indices)``."""

    def rule(expr: Expr) -> Expr | None:
        if isinstance(expr, Load) and expr.buffer is old:
            return Load(new, place(expr.indices))
        return None

    def store(stmt: Stmt) -> Stmt | None:
        if isinstance(stmt, Store) and stmt.buffer is old:
            return Store(new, place(stmt.indices), stmt.value)
        return None

    def swap(buffers: tuple[Buffer, ...]) -> tuple[Buffer, ...]:
        return tuple(new if b is old else b for b in buffers)

    body = transform_stmt(program.body, store, lambda e: transform_expr(e, rule))
    return replace(program, body=body, buffers=swap(program.buffers), params=swap(program.params))


def permute_buffer(program: PrimFunc, block: str, order: Sequence[int]) -> PrimFunc:
    """Store the (intermediate) buffer that a block writes with its dimensions in another order.

    T[i, j]   ->   permute_buffer(…, (1, 0))   ->   T[j, i]
    """
    old = written_buffer(find_block(program, block))
    if old not in program.buffers:
        raise ScheduleError(f"{old.name} is not an intermediate buffer; its layout is fixed")
    if sorted(order) != list(range(len(old.shape))):
        raise ScheduleError(f"{tuple(order)} is not an order of {old.name}'s dimensions")
    shape = tuple(old.shape[d] for d in order)
    new = replace(old, shape=shape)
    return replace_buffer(program, old, new, lambda i: tuple(i[d] for d in order))


def transform_layout(program: PrimFunc, param: int, layout: PackedLayout) -> PrimFunc:
    """Read a constant parameter in a packed layout, which its owner prepares once.

    W[k, n]   ->   W[n // 32, k, n % 32]      for factors ((), (32,)), order (1, 0, 2)
    """
    old = program.params[param]
    if param >= len(program.params) - program.outputs:
        raise ScheduleError(f"{old.name} is an output; only inputs can be packed")
    new = Buffer(old.name, packed_shape(old.shape, layout), old.dtype, old.scope)

    changed = replace_buffer(program, old, new, lambda i: packed_indices(i, layout))
    layouts = {**program.layouts, param: replace(layout, shape=old.shape)}
    return replace(changed, layouts=layouts)


def packed_shape(shape: Sequence[int], layout: PackedLayout) -> tuple[int, ...]:
    """The shape of a tensor once packed."""
    split: list[int] = []
    for extent, factors in zip(shape, layout.factors, strict=True):
        inner = 1
        for factor in factors:
            inner *= factor
        split.extend((-(-extent // inner), *factors))
    return tuple(split[d] for d in layout.order)


def packed_indices(indices: Sequence[Expr], layout: PackedLayout) -> tuple[Expr, ...]:
    """Where a packed tensor holds the element that stood at ``indices``."""
    split: list[Expr] = []
    for index, factors in zip(indices, layout.factors, strict=True):
        rest = index
        parts: list[Expr] = []
        for factor in reversed(factors):
            parts.append(rest % factor)
            rest = rest // factor
        split.extend((rest, *reversed(parts)))
    return tuple(split[d] for d in layout.order)


def remaining_blocks(program: PrimFunc) -> list[str]:
    """Names of the program's blocks in order."""
    return [s.name for s in walk_stmt(program.body) if isinstance(s, Block)]


def reads_of(program: PrimFunc, block: str) -> list[Buffer]:
    """The buffers that a block reads, without what it writes itself, each once."""
    node = find_block(program, block)
    seen = dict.fromkeys(ld.buffer for ld in loads_of(node.body))
    seen.pop(written_buffer(node), None)
    return list(seen)
