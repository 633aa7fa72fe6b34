"""Loops of operators that no element by element formula describes: scans, scatters, sorts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tunefarm.compiler.tir.ir import (
    Allocate,
    Buffer,
    Const,
    Expr,
    For,
    If,
    LoopKind,
    Select,
    Seq,
    Stmt,
    Store,
    Var,
    binary,
)


def with_index(index: Sequence[Expr], axis: int, at: Expr) -> tuple[Expr, ...]:
    """The index with another place along one axis."""
    return (*index[:axis], at, *index[axis + 1 :])


def scan_place(step: Expr, extent: int, reverse: bool) -> Expr:
    """Where a scan of ``extent`` elements is after some steps, from the front or the back."""
    return Const(extent - 1) - step if reverse else step


def over(
    shape: Sequence[int], axis: int, body: Callable[[list[Expr]], Stmt], parallel: bool = True
) -> Stmt:
    """``body(index)`` for every index along the axes but one, the first of them in parallel.

    The index holds 0 at the axis itself. Bodies that share scratch cannot run in parallel.
    """
    index: list[Expr] = [Const(0) if d == axis else Var(f"i{d}") for d in range(len(shape))]
    stmt = body(index)
    for d in reversed(range(len(shape))):
        place = index[d]
        if isinstance(place, Var):
            outermost = parallel and d == (0 if axis else 1)
            kind = LoopKind.PARALLEL if outermost and shape[d] > 1 else LoopKind.SERIAL
            stmt = For(place, Const(shape[d]), stmt, kind)
    return stmt


def every(shape: Sequence[int], body: Callable[[list[Expr]], Stmt]) -> Stmt:
    """``body(index)`` for every index in row-major order."""
    index = [Var(f"i{d}") for d in range(len(shape))]
    stmt = body([*index])
    for var, extent in reversed(list(zip(index, shape, strict=True))):
        stmt = For(var, Const(extent), stmt)
    return stmt


LANES = 16
FIRST = (Const(0),)


def in_lanes(body: Callable[[Expr], Stmt]) -> Stmt:
    """``body(lane)`` for the lanes of a vector."""
    lane = Var("lane")
    return For(lane, Const(LANES), body(lane), LoopKind.VECTORIZED)


def along(extent: int, body: Callable[[Expr], Stmt]) -> Stmt:
    """``body(place)`` for every place of a row, whole vectors first."""
    vectors, rest = divmod(extent, LANES)
    block, e = Var("block"), Var("e")
    whole = For(block, Const(vectors), in_lanes(lambda lane: body(block * LANES + lane)))
    others = For(e, Const(rest), body(e + vectors * LANES))
    return Seq(tuple(loop for loop, count in ((whole, vectors), (others, rest)) if count))


def every_row(shape: Sequence[int], body: Callable[[list[Expr]], Stmt]) -> Stmt:
    """``body(index)`` for every index, a vector of the last axis at once."""
    if not shape:
        return body([])
    *outer, last = shape
    return every(outer, lambda i: along(last, lambda e: body([*i, e])))


def where(blocks: int, holds: Callable[[Expr], Expr], body: Callable[[Expr], Stmt]) -> Stmt:
    """``body(place)`` where a condition holds, in the order of the places of whole vectors.

    for each vector: if it holds in any lane: for each lane: if it holds: body
    """
    found = Buffer("found", (1,), "bool", "local")
    block, e = Var("block"), Var("e")
    at = block * LANES + e
    clear = Store(found, FIRST, Const(False, "bool"))
    look = in_lanes(lambda lane: Store(found, FIRST, found[0] | holds(block * LANES + lane)))
    each = For(e, Const(LANES), If(holds(at), body(at)))
    return Allocate(found, For(block, Const(blocks), Seq((clear, look, If(found[0], each)))))


Before = Callable[[Expr, Expr], Expr]
"""Whether the element at one position comes before the element at another."""


def insert_best(
    extent: int,
    k: int,
    before: Before,
    best: Callable[[Expr], Expr],
    put: Callable[[Expr, Expr], Stmt],
    side_by_side: bool,
) -> Stmt:
    """The positions of the first ``k`` of ``extent`` elements in order, by insertion.

    for e: if e is before best[k - 1]: halve the places for e's; move what follows; best[place] = e

    Equal elements stay in the order of their positions, in which elements come. Those that lie
    ``side_by_side`` are looked at a vector at a time.
    """
    found = Buffer("inserted", (1,), "int64", "local")
    e, j, slot, last = Var("e"), Var("j"), Var("slot"), Const(k - 1)
    place = found[0]

    def precedes(e: Expr, at: Expr) -> Expr:
        """Empty places, of index -1, come after everything."""
        other = best(at)
        return (other < 0) | before(e, binary("max", other, Const(0)))

    def insert(e: Expr) -> Stmt:
        def halve(step: int) -> Stmt:
            """Move ``place`` forward by a step if all places before stay before ``e``."""
            ahead = place + step
            is_before = precedes(e, binary("min", ahead, last) - 1)
            moves = Select(is_before, Const(False, "bool"), ahead < k, "bool")
            return Store(found, FIRST, Select(moves, ahead, place, "int64"))

        return Seq((
            Store(found, FIRST, Const(0)),
            *(halve(1 << bit) for bit in reversed(range((k - 1).bit_length()))),
            For(j, last - place, put(last - j, best(last - j - 1))),
            put(place, e),
        ))  # fmt: skip

    def scan(e: Expr) -> Stmt:
        return If(precedes(e, last), insert(e))

    clear = For(slot, Const(k), put(slot, Const(-1)))
    blocks = extent // LANES if side_by_side else 0
    vectors = where(blocks, lambda e: precedes(e, last), insert)
    others = For(e, Const(extent - blocks * LANES), scan(e + blocks * LANES))
    return Allocate(found, Seq((clear, vectors, others)))


ROOM = 3  # times k elements are in the list that is sorted
MANY = 4  # such lists: with fewer it gains little, and in the worst order takes 1.3 x the time


def sort_room(extent: int, k: int) -> int:
    """How many elements ``sort_best`` sorts at a time: all where these are not many more."""
    return ROOM * k if extent >= MANY * ROOM * k else extent


def sort_best(
    extent: int,
    k: int,
    before: Before,
    put: Callable[[Expr, Expr], Stmt],
    scratch: tuple[Buffer, Buffer],
) -> Stmt:
    """The positions of the first ``k`` of ``extent`` elements in order, sorting few at a time.

    for blocks of k elements:
      append those before the k-th best so far, which is none at first
      if the list is two thirds full, or at the end: sort it; keep k

    ``scratch`` is two arrays of ``sort_room`` int64, allocated around all rows. Equal elements
    stay in the order of their positions.
    """
    room = sort_room(extent, k)
    if room == extent:
        return merge_sort(extent, k, before, put, scratch)
    state = Buffer("state", (2,), "int64", "local")  # how long the list is, and the k-th best
    many, worst = state[0], state[1]
    kept, block, e, last = scratch[0], Var("block"), Var("e"), Var("last")
    blocks = -(-extent // k)

    def set_state(place: int, value: Expr) -> Stmt:
        return Store(state, (Const(place),), value)

    def is_ahead(at: Expr) -> Expr:
        return (worst < 0) | before(at, binary("max", worst, Const(0)))

    def put_back(place: Expr, index: Expr) -> Stmt:
        return Store(kept, (place,), index)

    at = block * k + e
    append = Seq((Store(kept, (many,), at), set_state(0, many + 1)))
    scan = For(e, binary("min", Const(k), extent - block * k), If(is_ahead(at), append))
    keep = Seq((set_state(0, Const(k)), set_state(1, kept[k - 1])))
    sort = Seq((merge_sort(room, k, before, put_back, scratch, filled=many), keep))
    full = (many > (ROOM - 1) * k) | (block >= blocks - 1)
    begin = (set_state(0, Const(0)), set_state(1, Const(-1)))
    rounds = For(block, Const(blocks), Seq((scan, If(full, sort))))
    return Allocate(state, Seq((*begin, rounds, For(last, Const(k), put(last, kept[last])))))


def merge_sort(
    extent: int,
    k: int,
    before: Before,
    put: Callable[[Expr, Expr], Stmt],
    scratch: tuple[Buffer, Buffer],
    filled: Expr | None = None,
) -> Stmt:
    """The first ``k`` of ``extent`` elements in order, from runs of 1, 2, 4, …

    ``scratch`` is two arrays of ``extent`` int64, allocated around all sorts. The positions are
    0, 1, 2, …, or, of as many as are ``filled``, those that the first of them holds.
    """
    source, target = scratch
    ends = Buffer("ends", (2,), "int64", "local")
    first, last = Var("first"), Var("last")
    stmts: list[Stmt] = []
    count = Const(extent) if filled is None else filled
    if filled is None:
        stmts.append(For(first, Const(extent), Store(source, (first,), first)))
    a, b, width = source, target, 1
    while width < extent:
        stmts.append(_merge_runs(a, b, ends, width, count, before))
        a, b, width = b, a, 2 * width
    stmts.append(For(last, Const(k), put(last, a[last])))
    return Allocate(ends, Seq(tuple(stmts)))


def _merge_runs(
    a: Buffer, b: Buffer, ends: Buffer, width: int, extent: Expr, before: Before
) -> Stmt:
    """Sorted runs of ``width`` in ``a`` become runs of twice the width in ``b``."""
    run, at = Var("run"), Var("at")
    low = run * (2 * width)
    middle, high = (binary("min", low + n * width, extent) for n in (1, 2))
    left, right = ends[0], ends[1]
    left_element, right_element = (a[binary("min", end, extent - 1)] for end in (left, right))
    takes_right = (right < high) & ((left >= middle) | before(right_element, left_element))
    step = Select(takes_right, Const(1), Const(0), "int64")
    merge = Seq((
        Store(b, (low + at,), Select(takes_right, right_element, left_element, "int64")),
        Store(ends, (Const(0),), ends[0] + 1 - step),
        Store(ends, (Const(1),), low + at + 1 + middle - ends[0]),
    ))  # fmt: skip
    begin = (Store(ends, (Const(0),), low), Store(ends, (Const(1),), middle))
    inner = For(at, high - low, merge)
    runs = (extent + (2 * width - 1)) // (2 * width)
    return For(run, runs, Seq((*begin, inner)))
