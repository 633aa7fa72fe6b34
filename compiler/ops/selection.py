"""The few best of many elements: what is ahead of a pivot that a sample of them gives, sorted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tunefarm.compiler.ops.loops import (
    FIRST,
    LANES,
    Before,
    in_lanes,
    merge_sort,
    sort_best,
    sort_room,
    where,
)
from tunefarm.compiler.tir.ir import (
    Allocate,
    Buffer,
    Cast,
    Const,
    Expr,
    For,
    If,
    Intrinsic,
    Select,
    Seq,
    Stmt,
    Store,
    Var,
    binary,
)

RANKED = 1024  # best elements, above which to sort takes less than to count what is before each
SPREAD = 8  # distances in the sample, of which so many hold a pivot but once in e^8 rows


@dataclass(frozen=True, slots=True)
class Row:
    """``extent`` values and an order of values, padded to whole vectors with ``last``, which comes
    before none."""

    values: Buffer
    extent: int
    before: Before
    last: Const

    @property
    def blocks(self) -> int:
        """Vectors of the row."""
        return self.values.shape[0] // LANES

    def not_after(self, a: Expr, b: Expr) -> Expr:
        """Whether value ``a`` is before ``b`` or equal."""
        return _not(self.before(b, a))


def whole_vectors(extent: int) -> int:
    """Elements of the vectors that hold ``extent`` elements."""
    return -(-extent // LANES) * LANES


def sample_size(extent: int) -> int:
    """How many elements of a row its sample has: a power of two above the square root."""
    return 1 << min(10, max(4, extent.bit_length() // 2 + 1))


def list_room(extent: int, k: int) -> int:
    """How many elements may be ahead of the pivot."""
    return k + SPREAD * -(-extent // sample_size(extent))


def select_best(row: Row, k: int, put: Callable[[Expr, Expr], Stmt]) -> Stmt:
    """The positions of the first ``k`` elements of a row in order.

    sort a sample of the row; halve it until the pivot is its first with k of the row not after it
    list what is before the pivot, then its equals up to k
    sort the list, or all of the row where more is ahead of the pivot than the list takes

    With √n of n elements in the sample the list has about k + √n, and a pass over the row compares
    whole vectors with one value (after Floyd and Rivest's SELECT, 1975). Equal elements stay in
    the order of their positions.
    """
    room = list_room(row.extent, k)
    scratch = max(room, sort_room(row.extent, k))
    listed, other = (Buffer(name, (scratch,), "int64", "local") for name in ("listed", "other"))
    values = Buffer("values", (whole_vectors(room) + LANES,), row.values.dtype, "local")
    many = Buffer("many", (1,), "int64", "local")
    pivot = Buffer("pivot", (1,), row.values.dtype, "local")

    def place_before(a: Expr, b: Expr) -> Expr:
        return row.before(row.values[a], row.values[b])

    if k <= RANKED:
        sort = _put_ranked(row, k, listed, values, many[0], put)
    else:
        sort = merge_sort(room, k, place_before, put, (listed, other), filled=many[0])
    fits = (many[0] >= k) & (many[0] <= room)
    body: Stmt = Seq((
        _find_pivot(row, k, pivot),
        Store(many, FIRST, Const(0)),
        _list_ahead(row, k, pivot[0], (listed, values), many),
        If(fits, sort, sort_best(row.extent, k, place_before, put, (listed, other))),
    ))  # fmt: skip
    for buffer in (pivot, many, values, other, listed):
        body = Allocate(buffer, body)
    return body


def rank_best(row: Row, k: int, put: Callable[[Expr, Expr], Stmt]) -> Stmt:
    """The positions of the first ``k`` elements of a row in order: each at its rank. It compares
    all with all, by whole vectors."""
    return _ranked(row, row.values, Const(row.extent), lambda i, rank: If(rank < k, put(rank, i)))


def _find_pivot(row: Row, k: int, pivot: Buffer) -> Stmt:
    """The first element of the sorted sample that ``k`` elements are not after, if it is among
    those that it is looked for."""
    size = sample_size(row.extent)
    step = row.extent // size
    step -= step % 2 == 0  # rows of images repeat at even distances
    sample, ordered = (
        Buffer(name, (size,), row.values.dtype, "local") for name in ("sample", "ordered")
    )
    at = Buffer("at", (2,), "int64", "local")
    place, part = at[0], at[1]
    count = Buffer("count", (1,), "int32", "local")
    e, half = Var("e"), Var("half")
    take = For(e, Const(size), Store(sample, (e,), row.values[e * step]))
    order = _ranked(row, sample, Const(size), lambda i, rank: Store(ordered, (rank,), sample[i]))
    first = _candidates(row.extent, k)
    move = Seq((
        Store(at, (Const(1),), part // 2),
        Store(pivot, FIRST, ordered[place + part - 1]),
        _count_in(row, count, lambda x: row.not_after(x, pivot[0])),
        If(count[0] < k, Store(at, FIRST, place + part)),
    ))  # fmt: skip
    body: Stmt = Seq((
        take,
        order,
        Store(at, FIRST, Const(0)),
        Store(at, (Const(1),), Const(first)),
        For(half, Const(first.bit_length() - 1), move),
        Store(pivot, FIRST, ordered[place]),
    ))  # fmt: skip
    for buffer in (count, at, ordered, sample):
        body = Allocate(buffer, body)
    return body


def _candidates(extent: int, k: int) -> int:
    """How many elements of the sorted sample the pivot is looked for among: a power of two, beyond
    which it lies in hardly any row."""
    size = sample_size(extent)
    expected = 4 * k * size // extent + 12
    return min(size, 1 << (expected - 1).bit_length())


def _list_ahead(row: Row, k: int, pivot: Expr, lists: tuple[Buffer, Buffer], many: Buffer) -> Stmt:
    """Append the positions and values before the pivot, then those that equal it up to ``k``."""
    listed, values = lists
    room = list_room(row.extent, k)

    def append(at: Expr) -> Stmt:
        kept = (Store(listed, (many[0],), at), Store(values, (many[0],), row.values[at]))
        return Seq((If(many[0] < room, Seq(kept)), Store(many, FIRST, many[0] + 1)))

    def equal(at: Expr) -> Expr:
        x = row.values[at]
        return row.not_after(x, pivot) & row.not_after(pivot, x) & (many[0] < k)

    before = where(row.blocks, lambda at: row.before(row.values[at], pivot), append)
    return Seq((before, If(many[0] < k, where(row.blocks, equal, append))))


def _put_ranked(
    row: Row, k: int, listed: Buffer, values: Buffer, many: Expr, put: Callable[[Expr, Expr], Stmt]
) -> Stmt:
    """Put each listed position at its rank, if that is below ``k``."""
    e = Var("e")
    fill = For(e, Const(LANES), Store(values, (many + e,), row.last))
    ranked = _ranked(row, values, many, lambda i, rank: If(rank < k, put(rank, listed[i])))
    return Seq((fill, ranked))


def _ranked(row: Row, values: Buffer, many: Expr, body: Callable[[Expr, Expr], Stmt]) -> Stmt:
    """``body(i, rank)`` for each of the first values: how many come before it, equal ones in the
    order they stand in. Behind them stands ``row.last`` to the end of a vector."""
    sums, ranks = (
        Buffer(n, (LANES,), "int32", s) for n, s in (("sums", "register"), ("ranks", "local"))
    )
    block, j, lane = Var("block"), Var("j"), Var("lane")
    own = block * LANES

    def add(first: Expr, extent: Expr, holds: Callable[[Expr, Expr, Expr], Expr]) -> Stmt:
        """Count the places from the first at which a value holds beside that of each lane."""
        return For(j, extent, in_lanes(lambda lane: Store(
            sums, (lane,), sums[lane] + _one_if(holds(values[first + j], values[own + lane], lane))
        )))  # fmt: skip

    def in_own(x: Expr, this: Expr, lane: Expr) -> Expr:
        return row.before(x, this) | (row.not_after(x, this) & (j < lane))

    later = binary("max", many - own - LANES, Const(0))
    count = Seq((
        in_lanes(lambda lane: Store(sums, (lane,), Const(0, "int32"))),
        add(Const(0), own, lambda x, this, lane: row.not_after(x, this)),
        add(own, Const(LANES), in_own),
        add(own + LANES, later, lambda x, this, lane: row.before(x, this)),
        in_lanes(lambda lane: Store(ranks, (lane,), sums[lane])),
    ))  # fmt: skip
    rank = Cast(ranks[lane], "int64")
    use = For(lane, binary("min", Const(LANES), many - own), body(own + lane, rank))
    blocks = For(block, (many + (LANES - 1)) // LANES, Seq((Allocate(sums, count), use)))
    return Allocate(ranks, blocks)


def _count_in(row: Row, count: Buffer, holds: Callable[[Expr], Expr]) -> Stmt:
    """``count`` = for how many values of the row a condition holds."""
    sums, block = Buffer("sums", (LANES,), "int32", "register"), Var("block")

    def add(lane: Expr) -> Stmt:
        return Store(sums, (lane,), sums[lane] + _one_if(holds(row.values[block * LANES + lane])))

    body = Seq((
        Store(count, FIRST, Const(0, "int32")),
        in_lanes(lambda lane: Store(sums, (lane,), Const(0, "int32"))),
        For(block, Const(row.blocks), in_lanes(add)),
        in_lanes(lambda lane: Store(count, FIRST, count[0] + sums[lane])),
    ))  # fmt: skip
    return Allocate(sums, body)


def _one_if(condition: Expr) -> Expr:
    return Select(condition, Const(1, "int32"), Const(0, "int32"), "int32")


def _not(condition: Expr) -> Expr:
    return Intrinsic("not", (condition,), "bool")
