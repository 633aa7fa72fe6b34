"""Conditions leave the inner loops: turned into loop bounds, or specialised away."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tunefarm.compiler.tir.affine import (
    Affine,
    Key,
    at_least_zero,
    conjunction,
    conjuncts,
    decide,
    gcd_of,
    interval,
    interval_of,
    key_of,
)
from tunefarm.compiler.tir.facts import kinds_below, loops_below, variables
from tunefarm.compiler.tir.ir import (
    Barrier,
    Const,
    Expr,
    For,
    If,
    LoopKind,
    PrimFunc,
    Seq,
    Stmt,
    Var,
    binary,
)
from tunefarm.compiler.tir.transform.simplify import simplify_stmt
from tunefarm.compiler.tir.visit import (
    children,
    map_children,
    seq,
    substitute_stmt,
    with_body,
)

Ranges = dict[Var, tuple[int, int]]
MAX_EDGES = 4  # edge iterations of a partitioned loop that get code of their own
MAX_EXPANDED = 8  # iterations of a loop whose every iteration gets code of its own
_INNER = (LoopKind.UNROLLED, LoopKind.VECTORIZED)


def tighten_loops(program: PrimFunc) -> PrimFunc:
    """Turn a condition on a serial loop's variable into the loop's bounds.

    for k in [0, 3): if i + k - 1 >= 0: f   ->   for k in [max(0, 1 - i), 3): f
    """
    return replace(program, body=_tighten(program.body, frozenset()))


def _tighten(stmt: Stmt, lanes: frozenset[Var]) -> Stmt:
    """``lanes`` are the vectorized variables, on which no bound may depend."""
    inside = lanes
    if isinstance(stmt, For) and stmt.kind is LoopKind.VECTORIZED:
        inside = lanes | {stmt.var}
    if If not in kinds_below(stmt):
        return stmt
    stmt = map_children(stmt, lambda s: _tighten(s, inside))
    if not isinstance(stmt, For) or stmt.kind is not LoopKind.SERIAL:
        return stmt
    if not isinstance(stmt.body, If) or stmt.body.orelse is not None:
        return stmt
    start, end = stmt.start, stmt.start + stmt.extent
    stay: list[Expr] = []
    for part in conjuncts(stmt.body.condition):
        bound = _bound(part, stmt.var)
        if bound is None or not variables(bound[1]).isdisjoint(lanes):
            stay.append(part)
        elif bound[0] == "lower":
            start = binary("max", start, bound[1])
        else:
            end = binary("min", end, bound[1])
    if len(stay) == len(conjuncts(stmt.body.condition)):
        return stmt
    body = If(conjunction(stay), stmt.body.then) if stay else stmt.body.then
    return replace(stmt, start=start, extent=end - start, body=body)


def _bound(part: Expr, var: Var) -> tuple[str, Expr] | None:
    """("lower", first value) or ("upper", one past the last) that a condition allows."""
    form = at_least_zero(part)
    if form is None:
        return None
    factor = form.coefficient(var)
    rest = Affine(form.const, {k: t for k, t in form.terms.items() if k is not var})
    if factor == 0 or var in rest.variables():
        return None
    if factor > 0:
        return "lower", (Affine(factor - 1, {}) - rest).expr() // factor
    return "upper", rest.expr() // -factor + 1


@dataclass(frozen=True, slots=True, eq=False)
class _Open:
    """A condition ``form ≥ 0`` that mentions an unrolled or vectorized variable and is undecided.

    ``ranges`` are the bounds of all variables at its place, ``inner`` its unrolled variables.
    """

    part: Expr
    form: Affine
    ranges: Ranges
    inner: frozenset[Var]
    serial_inside: bool

    def split(self) -> tuple[Affine, Affine]:
        """The form's inner part (without constant) and the rest."""
        inside = self.form.only(set(self.inner))
        return inside, self.form - inside


def specialise(program: PrimFunc) -> PrimFunc:
    """Give the border iterations of a loop code of their own, where conditions are constants.

    for i in 4: for u in unroll(14): if i*14 + u < 50: f
    ->  for i in 3: for u in unroll(14): f;  for u in unroll(14): if u < 8: f
    """
    return replace(program, body=_specialise(program.body, {}))


def _specialise(stmt: Stmt, ranges: Ranges) -> Stmt:
    if If not in kinds_below(stmt):
        return stmt
    if not isinstance(stmt, For):
        return map_children(stmt, lambda s: _specialise(s, ranges))
    ranges = {**ranges, stmt.var: range_of(stmt, ranges)}
    if stmt.kind in _INNER:
        return stmt
    opens = [o for o in _open_conditions(stmt.body, ranges) if stmt.var in o.form.variables()]
    plain = all(stmt.var in o.form.terms for o in opens)
    # What also depends on the loops around is not decided by this loop's variable.
    loops = {loop.var for loop in loops_below(stmt)}
    alone = all(o.form.variables() <= loops for o in opens)
    if opens and plain and alone and stmt.kind is LoopKind.SERIAL and _has_constant_bounds(stmt):
        pieces = _pieces(stmt.var, opens, ranges[stmt.var])
        if pieces is not None:
            return seq(*(_piece(stmt, piece, ranges) for piece in pieces))
    body = _version(stmt.body, [o for o in opens if not o.serial_inside])
    return with_body(stmt, _specialise(body, ranges))


def range_of(loop: For, ranges: Ranges) -> tuple[int, int]:
    """Inclusive bounds of a loop's variable."""
    low, _ = interval(loop.start, ranges)
    _, high = interval(loop.start + loop.extent, ranges)
    return low, high - 1


def _has_constant_bounds(loop: For) -> bool:
    return isinstance(loop.extent, Const) and isinstance(loop.start, Const)


def _open_conditions(stmt: Stmt, ranges: Ranges) -> list[_Open]:
    found: list[_Open] = []

    def visit(node: Stmt, ranges: Ranges, inner: frozenset[Var], serial: frozenset[Var]) -> None:
        if isinstance(node, For):
            ranges = {**ranges, node.var: range_of(node, ranges)}
            if node.kind in _INNER:
                inner = inner | {node.var}
            else:
                serial = serial | {node.var}
        elif isinstance(node, If):
            for part in conjuncts(node.condition):
                form = at_least_zero(part) if variables(part) & inner else None
                if form is None or decide(part, ranges) is not None:
                    continue
                mine = form.variables()
                inside = inner & mine
                if inside and _plain_in(form, inside):
                    found.append(_Open(part, form, ranges, inside, bool(mine & serial)))
        for child in children(node):
            if If in kinds_below(child):
                visit(child, ranges, inner, serial)

    visit(stmt, ranges, frozenset(), frozenset())
    return found


def _plain_in(form: Affine, inside: frozenset[Var]) -> bool:
    """True if the variables stand in terms of their own, not inside divisions."""
    opaque = (atom for _, atom in form.terms.values() if not isinstance(atom, Var))
    plain = all(v in form.terms for v in inside)
    return plain and all(variables(atom).isdisjoint(inside) for atom in opaque)


def _pieces(var: Var, opens: list[_Open], bounds: tuple[int, int]) -> list[tuple[int, int]] | None:
    """Split a loop's range into single border iterations and one middle; None if pointless."""
    low, high = bounds
    first, last = low, high
    for condition in opens:
        factor = condition.form.coefficient(var)
        rest = condition.form - Affine(0, {var: (factor, var)})
        worst, _ = interval_of(rest, condition.ranges)
        if factor > 0:
            first = max(first, -(worst // factor))
        else:
            last = min(last, worst // -factor)
    edges = (first - low) + (high - last)
    if first <= last and edges <= MAX_EDGES:
        before = [(v, v) for v in range(low, first)]
        return [*before, (first, last), *((v, v) for v in range(last + 1, high + 1))]
    alone = all(set(o.form.terms) <= o.inner | {var} or o.serial_inside for o in opens)
    if alone and high - low < MAX_EXPANDED:
        return [(v, v) for v in range(low, high + 1)]
    return None


def _piece(loop: For, piece: tuple[int, int], ranges: Ranges) -> Stmt:
    first, last = piece
    if first == last:
        body = substitute_stmt(loop.body, {loop.var: Const(first)})
        simple = simplify_stmt(body, ranges)
        if simple is None:
            return Seq(())
        opens = [o for o in _open_conditions(simple, ranges) if not o.serial_inside]
        return _specialise(_version(simple, opens), ranges)
    narrowed = replace(loop, start=Const(first), extent=Const(last - first + 1))
    inside = {**ranges, loop.var: (first, last)}
    simple = simplify_stmt(loop.body, inside)
    return Seq(()) if simple is None else replace(narrowed, body=_specialise(simple, inside))


def _version(body: Stmt, opens: list[_Open]) -> Stmt:
    """One branch a tile instead of one an element.

    for u in unroll(14): if i*14 + u < n: f
    ->  if i*14 + 13 < n: for u: f   else: for u: if u < n % 14: f
    """
    groups: dict[Key, list[_Open]] = {}
    for condition in opens:
        inside, outside = condition.split()
        span = interval_of(inside, condition.ranges)
        groups.setdefault((outside.const, key_of(outside.expr()), span), []).append(condition)
    for members in groups.values():
        body = _version_group(body, members)
    return body


def _version_group(body: Stmt, members: list[_Open]) -> Stmt:
    """Version the smallest statement that holds all of the group's conditions."""
    if Barrier in kinds_below(body):
        return body  # threads of both versions would have to meet
    parts = {m.part for m in members}
    below = _only_child_with(body, parts)
    if below is not None:
        return map_children(body, lambda s: _version_group(s, members) if s is below else s)
    inside, outside = members[0].split()
    low, high = interval_of(inside, members[0].ranges)
    step = gcd_of(outside)
    full = _with_parts(body, dict.fromkeys(parts, Const(True, "bool")))
    void = _with_parts(body, dict.fromkeys(parts, Const(False, "bool")))
    tail = body
    rest = outside.expr()
    if high - low <= step:
        # All values of ``outside`` are congruent, and at most one lies in [-high, -low).
        value = -high + (outside.const + high) % step
        if value >= -low:
            return If(rest >= -low, full, void)
        tail = _with_parts(
            body,
            {m.part: (m.split()[0] + Affine(value, {})).expr() >= Const(0) for m in members},
        )
    return If(rest >= -low, full, If(rest >= -high, tail, void))


def _only_child_with(stmt: Stmt, parts: set[Expr]) -> Stmt | None:
    """The one child that holds all the conditions, if ``stmt`` itself need not be versioned."""
    if isinstance(stmt, For) and stmt.kind in _INNER:
        return None
    if isinstance(stmt, If) and not parts.isdisjoint(conjuncts(stmt.condition)):
        return None
    holding = [c for c in children(stmt) if _holds(c, parts)]
    return holding[0] if len(holding) == 1 else None


def _holds(stmt: Stmt, parts: set[Expr]) -> bool:
    if If not in kinds_below(stmt):
        return False
    here = isinstance(stmt, If) and not parts.isdisjoint(conjuncts(stmt.condition))
    return here or any(_holds(s, parts) for s in children(stmt))


def _with_parts(stmt: Stmt, parts: dict[Expr, Expr]) -> Stmt:
    """Replace single conditions, by identity, wherever they stand."""
    if If not in kinds_below(stmt):
        return stmt
    stmt = map_children(stmt, lambda s: _with_parts(s, parts))
    if not isinstance(stmt, If):
        return stmt
    found = conjuncts(stmt.condition)
    if not any(p in parts for p in found):
        return stmt
    return If(conjunction([parts.get(p, p) for p in found]), stmt.then, stmt.orelse)
