"""Vectors of which few lanes are wanted become vectors of few lanes.

The last vector of 17 channels has one channel. As 16 lanes under a mask it takes as long as a full
one, and twice as long as 8 lanes or fewer where the processor takes 512 bits in two steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from types import MappingProxyType
from typing import TypeAlias

from tunefarm.compiler.tir.affine import (
    UNBOUNDED,
    Affine,
    affine,
    at_least_zero,
    conjuncts,
    interval_of,
    range_of,
)
from tunefarm.compiler.tir.facts import (
    buffers_read_below,
    buffers_stored,
    kinds_below,
    loops_below,
    variables,
)
from tunefarm.compiler.tir.ir import (
    Allocate,
    Buffer,
    Const,
    Expr,
    For,
    If,
    Intrinsic,
    Load,
    LoopKind,
    PrimFunc,
    Stmt,
    Store,
    Var,
)
from tunefarm.compiler.tir.transform.row_parts import extent_of
from tunefarm.compiler.tir.visit import (
    children,
    expressions,
    loads_of,
    map_children,
    own_expressions,
    seq,
    substitute_stmt,
    walk_expr,
    walk_stmt,
)

Place: TypeAlias = tuple[Buffer, int]
"""A register buffer, and which vector of its last dimension."""
Access: TypeAlias = tuple[Buffer, Sequence[Expr]]

DTYPES = ("float32", "float64")


def shorten_vectors(program: PrimFunc) -> PrimFunc:
    """Give vectorized loops over registers as many lanes as are wanted, up to a power of two, where
    these are at most half of all. Loops that share registers share their lanes. Loops from memory
    to memory stay: what is stored by wide vectors is read by such.

    for v in unrolled(2): for l in vectorized(16): if v*16 + l < 17: T[v*16 + l] = f(x[v*16 + l])
    ->  for l in vectorized(16): T[l] = f(x[l]);  T[16] = f(x[16])
    """
    if any(loop.kind is LoopKind.THREAD for loop in loops_below(program.body)):
        return program
    return replace(program, body=_shortened(program.body))


def _shortened(stmt: Stmt) -> Stmt:
    """Each outermost tile of registers, or nest of unrolled and vectorized loops, by itself."""
    if If not in kinds_below(stmt):
        return stmt
    tile = isinstance(stmt, Allocate) and stmt.buffer.scope == "register"
    if not tile and not (isinstance(stmt, For) and stmt.is_expanded):
        return map_children(stmt, _shortened)
    nests = list(_nests(stmt))
    short = dict(found for nest in nests for found in nest.short_ones())
    if not short and not any(nest.wants_few() for nest in nests):
        return stmt
    apart = _ShortApart(_numbering(stmt, short))(stmt) if short else stmt
    lanes = _lanes(list(_nests(apart)), _element_wise(apart))
    return _WithLanes(iter(lanes))(apart) if any(lanes) else stmt


# --- what is wanted -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class _Nest:
    """A vectorized loop, the unrolled ones around it, whether one that stays a loop is, and of the
    conditions on all of it the last lane that each leaves."""

    loop: For
    around: tuple[For, ...]
    repeated: bool
    limits: tuple[Affine, ...]

    def short_ones(self) -> Iterator[tuple[Var, int]]:
        """The unrolled variables, and the first of their values at which few lanes are wanted."""
        if self.asks:
            return
        for u in self.around:
            if not any(u.var in limit.terms for limit in self.limits):
                continue
            few = (value for value in range(extent_of(u)) if self.wants_few({u.var: value}))
            first = next(few, None)
            if first is not None and extent_of(u) > 1:
                yield u.var, first

    def wants_few(self, values: Mapping[Var, int] = MappingProxyType({})) -> bool:
        """Whether at most half of the lanes are wanted."""
        return 2 * self.wanted(values) <= extent_of(self.loop)

    def wanted(self, values: Mapping[Var, int]) -> int:
        """How many lanes the conditions on all of the loop leave, as far as ``values`` for other
        variables decide them."""
        least = extent_of(self.loop)
        for limit in self.limits:
            if limit.terms.keys() <= values.keys():
                rest = sum(limit.coefficient(v) * n for v, n in values.items())
                least = min(least, 1 + limit.const + rest)
        return least

    def places(self) -> tuple[set[Place], set[Buffer]]:
        """The vectors of registers that the loop takes lane by lane, and the buffers of which it
        takes others."""
        places: set[Place] = set()
        others: set[Buffer] = set()
        lane, lanes = self.loop.var, extent_of(self.loop)
        ranges = {u.var: range_of(u, {}) for u in self.around}
        for buffer, indices in _register_accesses(self.loop):
            *outer, last = map(affine, indices or (Const(0),))
            rest = last - affine(lane)
            low, high = interval_of(rest, ranges)
            steps = (rest.const, *(c for c, _ in rest.terms.values()))
            apart = all(lane not in form.variables() for form in (*outer, rest))
            whole = lanes > 0 and not any(s % lanes for s in steps)
            if apart and whole and (low, high) != UNBOUNDED:
                places |= {(buffer, n // lanes) for n in range(low, high + 1, lanes)}
            else:
                others.add(buffer)
        return places, others

    @property
    def asks(self) -> bool:
        """Whether a condition leaves some lanes out of all that the loop does."""
        return self.wanted({}) < extent_of(self.loop)

    @property
    def keeps_lanes_apart(self) -> bool:
        """Whether each lane stores elements of its own."""
        used = (frozenset[Var]().union(*map(variables, s.indices)) for s in self.stores)
        return all(self.loop.var in found for found in used)

    @property
    def stores(self) -> list[Store]:
        return [s for s in walk_stmt(self.loop) if isinstance(s, Store)]

    @property
    def calls(self) -> bool:
        """Whether it computes functions, whose constants registers would hold once a length."""
        every = (e for root in expressions(self.loop) for e in walk_expr(root))
        return any(isinstance(e, Intrinsic) for e in every)

    @property
    def buffers(self) -> frozenset[Buffer]:
        return buffers_read_below(self.loop) | buffers_stored(self.loop)


def _nests(stmt: Stmt, around: tuple[For, ...] = (), repeated: bool = False) -> Iterator[_Nest]:
    """In the order of the program."""
    if isinstance(stmt, For):
        if stmt.kind is LoopKind.VECTORIZED:
            yield _Nest(stmt, around, repeated, tuple(_limits(stmt)))
            return
        if stmt.kind is LoopKind.UNROLLED:
            around = (*around, stmt)
        else:
            repeated = True
    for child in children(stmt):
        yield from _nests(child, around, repeated)


def _limits(loop: For) -> Iterator[Affine]:
    body, lane = loop.body, affine(loop.var)
    while isinstance(body, If) and body.orelse is None:
        for form in map(at_least_zero, conjuncts(body.condition)):
            if form is not None and form.coefficient(loop.var) == -1:
                yield form + lane
        body = body.then


def _register_accesses(stmt: Stmt) -> Iterator[Access]:
    """What a statement and all below it load and store of registers."""
    accesses: list[Load | Store] = [*loads_of(stmt)]
    accesses += [s for s in walk_stmt(stmt) if isinstance(s, Store)]
    for access in accesses:
        if access.buffer.scope == "register":
            yield access.buffer, access.indices


def _element_wise(stmt: Stmt) -> set[Buffer]:
    """The register buffers of which code outside vectorized loops takes elements."""
    if isinstance(stmt, For) and stmt.kind is LoopKind.VECTORIZED:
        return set()
    found = {load.buffer for e in own_expressions(stmt) for load in loads_of(e)}
    if isinstance(stmt, Store):
        found.add(stmt.buffer)
    return found.union(*map(_element_wise, children(stmt)))


def _lanes(nests: Sequence[_Nest], kept: set[Buffer]) -> list[int]:
    """How many lanes each nest is to have, 0 where it keeps those that it has: as do nests that
    take vectors of the buffers ``kept``."""
    groups: list[tuple[set[int], set[Place]]] = []
    kept = set(kept)
    for number, nest in enumerate(nests):
        places, others = nest.places()
        kept |= others
        mine = ({number}, places)
        for group in [g for g in groups if g[1] & places]:
            groups.remove(group)
            mine = (mine[0] | group[0], mine[1] | group[1])
        groups.append(mine)
    lanes = [0] * len(nests)
    for numbers, places in groups:
        if places and kept.isdisjoint(buffer for buffer, _ in places):
            count = _common_lanes([nests[n] for n in numbers])
            for n in numbers:
                lanes[n] = count
    return lanes


def _common_lanes(nests: Sequence[_Nest]) -> int:
    """The lanes for loops that share registers; 0 if they keep theirs. What nobody asks of must end
    in registers, and no lanes be combined: of vectors that wait for that all are alike. Of tiles
    that loops hand on, no more than as many vectors as one has lanes, half of the registers of x86:
    LLVM counts those of each length by themselves, and lets them spill."""
    extents = {extent_of(nest.loop) for nest in nests}
    asking = [nest for nest in nests if nest.asks]
    others = [store for nest in nests if not nest.asks for store in nest.stores]
    most = max((nest.wanted({}) for nest in asking), default=0)
    if len(extents) > 1 or most < 1 or any(s.buffer.scope != "register" for s in others):
        return 0
    if any(b.dtype not in DTYPES for nest in nests for b in nest.buffers):
        return 0
    if any(nest.calls or not nest.keeps_lanes_apart for nest in nests):
        return 0
    registers = {b for nest in nests for b in nest.buffers if b.scope == "register"}
    vectors = sum(prod(b.shape) for b in registers) // min(extents)
    if any(nest.repeated for nest in nests) and vectors > min(extents):
        return 0
    lanes = 1 << (most - 1).bit_length()
    return lanes if 2 * lanes <= extents.pop() else 0


# --- the rewrite --------------------------------------------------------------------------------


def _numbering(stmt: Stmt, short: Mapping[Var, int]) -> dict[Var, int]:
    """``short``, and the unrolled variables that number vectors of the same register buffers."""
    numbered: dict[Buffer, set[Var]] = {}
    for nest in _nests(stmt):
        for buffer, indices in _register_accesses(nest.loop):
            last = affine(indices[-1]) if indices else affine(Const(0))
            used = {u.var for u in nest.around if last.coefficient(u.var) and extent_of(u) > 1}
            numbered.setdefault(buffer, set()).update(used)
    found = dict(short)
    for used in numbered.values():
        first = min((short[v] for v in used & short.keys()), default=None)
        if first is not None:
            found |= dict.fromkeys(used, first)
    return found


@dataclass(frozen=True, slots=True)
class _ShortApart:
    """One iteration of some unrolled loops apart from those before it and those behind it."""

    iterations: Mapping[Var, int]

    def __call__(self, stmt: Stmt) -> Stmt:
        stmt = map_children(stmt, self)
        if not isinstance(stmt, For) or stmt.var not in self.iterations:
            return stmt
        one, extent = self.iterations[stmt.var], extent_of(stmt)
        parts = [(0, one), (one, 1), (one + 1, extent - one - 1)]
        return seq(*(_part(stmt, first, count) for first, count in parts if count > 0))


def _part(loop: For, first: int, count: int) -> Stmt:
    """``count`` iterations of an unrolled loop."""
    if count == 1:
        return substitute_stmt(loop.body, {loop.var: Const(first)})
    return replace(loop, start=Const(first), extent=Const(count))


@dataclass(frozen=True, slots=True)
class _WithLanes:
    """The vectorized loops with so many lanes each, in the order of the program; 0 leaves one."""

    lanes: Iterator[int]

    def __call__(self, stmt: Stmt) -> Stmt:
        if not isinstance(stmt, For) or stmt.kind is not LoopKind.VECTORIZED:
            return map_children(stmt, self)
        lanes = next(self.lanes)
        return replace(stmt, extent=Const(lanes)) if lanes else stmt
