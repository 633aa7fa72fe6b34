"""Attention as stages with both products in parts: scores, their softmax left unnormalised, the sum
of values, one division.

    queries[p, …, q, d]  = part p of Q, 0 beyond the last query and element
    turned[…, d, k]      = K[…, k, d]
    keys[p, …, d, k]     = part p of turned, 0 beyond the last key and element
    scores[…, q, k]      = Σ_p,d queries[a(p), …, q, d] · keys[b(p), …, d, k]
    scaled[…, q, k]      = what follows element by element: a factor, a mask
    peak, power, total   as in ``attention``, powers below e^-69 zeros where there are several parts
    powers[p, …, q, k]   = part p of power, 0 beyond the last query and key
    values[p, …, k, e]   = part p of V, 0 beyond the last key and element
    mixed[…, q, e]       = Σ_p,k powers[a(p), …, q, k] · values[b(p), …, k, e]
    out[…, q, e]         = mixed / total

Heads (…) stand first and in the order of the scores, whatever the order of the axes in memory. Of a
function that rounds the operands of both products to bfloat16 there is one part.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from tunefarm.compiler import te
from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.ir import Call, Function, post_order
from tunefarm.compiler.ir import Expr as GraphExpr
from tunefarm.compiler.ops import OPS, call
from tunefarm.compiler.space.attention.program import (
    INVERSE,
    PEAK,
    POWER,
    PRODUCTS,
    TOTAL,
    Attention,
    Calls,
    attention_of,
    calls_of,
    softmax_stages,
    used_by,
)
from tunefarm.compiler.space.float_parts.forms import DEPTH, ONE, PART, Parts, parts_of
from tunefarm.compiler.space.float_parts.program import part_of, parts_of_pair
from tunefarm.compiler.space.program import create_program
from tunefarm.compiler.target import Target
from tunefarm.compiler.tir import PrimFunc
from tunefarm.compiler.tir import schedule as s
from tunefarm.compiler.tir.affine import conjunction
from tunefarm.compiler.tir.ir import Expr, Load, Var
from tunefarm.compiler.tir.schedule.tree import blocks, store_of, written_buffer
from tunefarm.compiler.tir.visit import loads_of, substitute

# Below a row's largest score: further parts of smaller powers would be below 2^-126, and such
# numbers cost 150 cycles wherever one is made (masks of -80 made a kernel take 4 times as long).
LEAST_SCORE = -69.0
QUERIES, TURNED, KEYS, SCORES = "queries", "turned", "keys", "scores"
POWERS, VALUES, MIXED, FINAL = "powers", "values", "mixed", "attention"
STAGES = frozenset((
    QUERIES, TURNED, KEYS, SCORES, PEAK, POWER, TOTAL, INVERSE, POWERS, VALUES, MIXED, FINAL,
))  # fmt: skip


@dataclass(frozen=True, slots=True)
class Form:
    """An attention without what rounds its operands, and how many parts these have."""

    function: Function
    attention: Attention
    parts: Parts

    @property
    def heads(self) -> int:
        return self.attention.heads

    @property
    def extents(self) -> tuple[int, int, int, int]:
        """Queries, keys, and the elements of a key and of a value."""
        a = self.attention
        return a.query.extent, a.key.extent, a.depth.extent, a.value.extent


@dataclass(frozen=True, slots=True)
class Sizes:
    """Rows of all blocks of queries, columns of all panels of keys and of values; terms that a step
    of a sum takes, whose last one is filled with zeros."""

    rows: int
    keys: int
    values: int
    terms: int = DEPTH

    def whole(self, extent: int) -> int:
        """Terms of a sum with those of zeros behind them."""
        return -(-extent // self.terms) * self.terms


@lru_cache(maxsize=128)
def form_of(function: Function, target: Target) -> Form | None:
    """The attention that a fused function is, in parts; None if it is something else."""
    plain = without_rounding(function)
    attention = attention_of(plain)
    if attention is None or not _mixes_rows(attention):
        return None
    return Form(plain, attention, parts_of(target) if plain is function else ONE)


def _mixes_rows(a: Attention) -> bool:
    """Whether a row of the softmax has one row of results, and not one for each of several arrays
    of values."""
    scores, mixed = (store_of(s.find_block(a.program, b)) for b in (a.scores, a.mixed))
    return len(scores.indices) == len(mixed.indices)


def without_rounding(function: Function) -> Function:
    """The function without casts of its products' operands to bfloat16; itself if not all four of
    an attention have one."""
    products = _products(function.body)
    operands = [a for n in products for a in n.args]
    if len(operands) != 4 or not all(map(_is_rounded, operands)):
        return function

    def plain(node: Call, args: list[GraphExpr]) -> GraphExpr:
        if node in operands:
            return args[0]
        left_out = ["out_dtype"] if node in products else []
        attrs = {k: v for k, v in node.attrs.items() if k not in left_out}
        return call(str(node.op), *args, name=node.name, **attrs)

    return _rewritten(function, plain)


def with_rounding(function: Function) -> Function:
    """The function with the operands of its products rounded to bfloat16."""

    def rounded(node: Call, args: list[GraphExpr]) -> GraphExpr:
        if node.op not in PRODUCTS:
            return call(str(node.op), *args, name=node.name, **node.attrs)
        casts = [call("cast", a, dtype=PART) for a in args]
        return call(str(node.op), *casts, name=node.name, **{**node.attrs, "out_dtype": "float32"})

    return _rewritten(function, rounded)


def _rewritten(function: Function, rule: Callable[[Call, list[GraphExpr]], GraphExpr]) -> Function:
    """The function with each call made anew of its new operands."""
    done: dict[GraphExpr, GraphExpr] = {}
    for node in post_order(function.body):
        args = [done[a] for a in node.args] if isinstance(node, Call) else []
        done[node] = rule(node, args) if isinstance(node, Call) else node
    return Function(function.params, done[function.body], function.attrs)


def _products(body: GraphExpr) -> list[Call]:
    return [n for n in post_order(body) if isinstance(n, Call) and n.op in PRODUCTS]


def _is_rounded(expr: GraphExpr) -> bool:
    return isinstance(expr, Call) and expr.op == "cast" and expr.attrs["dtype"] == PART


@lru_cache(maxsize=64)
def create_parts(form: Form, sizes: Sizes) -> PrimFunc:
    """The plain loops of the stages."""
    calls = calls_of(form.function, frozenset({"float32"}), parts=True)
    assert calls is not None
    (scores,) = _products(calls.softmax)
    stages = _Stages(form, sizes, calls, scores)
    program = create_program(
        form.function,
        computes={
            scores: stages.scores_of,
            calls.softmax: stages.powers_of,
            calls.mixed: stages.result_of,
        },
    )
    return _joined(program)


def _joined(program: PrimFunc) -> PrimFunc:
    """What stands between scores and softmax as one stage, and of others those of ``STAGES``."""
    for node in blocks(program.body):
        buffer = written_buffer(s.find_block(program, node.name))
        if node.name not in STAGES and buffer not in s.reads_of(program, PEAK):
            program = s.compute_inline(program, node.name)
    if len(s.remaining_blocks(program)) != len(STAGES) + 1:
        raise ScheduleError("what stands between scores and softmax does not fold into one block")
    return program


@dataclass(frozen=True, slots=True)
class _Axis:
    """A variable of a product's operands, and how far it goes with zeros behind its extent."""

    var: Var
    extent: int
    reach: int


class _Stages:
    """What the three calls of an attention compute, one after the other."""

    def __init__(self, form: Form, sizes: Sizes, calls: Calls, scores: Call) -> None:
        self.parts, self.calls, self.scores = form.parts, calls, scores
        self.row = form.attention.row_position
        queries, keys, depth, values = form.extents
        self.rows = queries, sizes.rows
        self.keys = keys, sizes.keys
        self.depth = depth, sizes.whole(depth)
        self.terms = keys, sizes.whole(keys)
        self.values = values, sizes.values
        self.inverse: te.Tensor | None = None

    def scores_of(self, args: Sequence[te.Tensor]) -> te.Tensor:
        plain, loads, summed = _product_of(self.scores, args)
        axes = [axis.var for axis in plain.axes]
        key, query = axes[-1], axes[self.row]
        heads = [_Axis(v, n, n) for v, n in zip(axes, plain.shape, strict=True)]
        heads = [axis for axis in heads if axis.var not in (key, query)]
        a, b = loads if key in used_by(loads[1]) else loads[::-1]
        row, depth = _Axis(query, *self.rows), _Axis(summed, *self.depth)
        left = self._in_parts(QUERIES, a, [*heads, row, depth])
        shape = (*(axis.extent for axis in heads), depth.extent, self.keys[0])
        order = [*(axis.var for axis in heads), summed, key]
        turned = te.compute(shape, lambda *i: _read(b, order, i), TURNED)
        keys = [*heads, depth, _Axis(key, *self.keys)]
        right = self._in_parts(KEYS, turned[tuple(order)], keys)
        total = self._summed(SCORES, left, right)
        return te.compute(plain.shape, lambda *i: total[_heads_first(i, self.row)], "scaled")

    def powers_of(self, args: Sequence[te.Tensor]) -> te.Tensor:
        least = LEAST_SCORE if self.parts.number > 1 else None
        power, self.inverse = softmax_stages(args[0], least)
        return power

    def result_of(self, args: Sequence[te.Tensor]) -> te.Tensor:
        plain, loads, summed = _product_of(self.calls.mixed, args)
        side = self.calls.mixed.args.index(self.calls.softmax)
        powers, b = loads[side], loads[1 - side]
        extents = {axis.var: axis.extent for axis in plain.axes}
        rows = [v for v in powers.indices[:-1] if isinstance(v, Var)]
        heads = [_Axis(v, extents[v], extents[v]) for n, v in enumerate(rows) if n != self.row]
        (element,) = [v for v in extents if v not in rows]
        key = _Axis(summed, *self.terms)
        left = self._in_parts(POWERS, powers, [*heads, _Axis(rows[self.row], *self.rows), key])
        right = self._in_parts(VALUES, b, [*heads, key, _Axis(element, *self.values)])
        total = self._summed(MIXED, left, right)
        order = [*(axis.var for axis in heads), rows[self.row], element]
        inverse = self.inverse
        assert inverse is not None

        def result(*i: Expr) -> Expr:
            at = dict(zip(extents, i, strict=True))
            return total[tuple(at[v] for v in order)] * inverse[tuple(at[v] for v in rows)]

        return te.compute(plain.shape, result, FINAL)

    def _in_parts(self, name: str, load: Load, axes: Sequence[_Axis]) -> te.Tensor:
        """What a product reads at its axes, in parts, with zeros beyond their extents."""
        variables = [axis.var for axis in axes]

        def part(number: Expr, *at: Expr) -> Expr:
            value: Expr = _read(load, variables, at)
            pairs = zip(at, axes, strict=True)
            inside = [i < axis.extent for i, axis in pairs if axis.reach > axis.extent]
            if inside:
                value = te.if_then_else(conjunction(inside), value, te.const(0, "float32"))
            return part_of(self.parts, number, value)

        return te.compute((self.parts.number, *(axis.reach for axis in axes)), part, name)

    def _summed(self, name: str, left: te.Tensor, right: te.Tensor) -> te.Tensor:
        """The product of two operands in parts: of heads, rows and columns."""
        *_, terms, columns = right.shape

        def total(*i: Expr) -> te.Reduce:
            *heads, row, column = i
            pair, k = te.reduce_axis(len(self.parts.pairs), "pair"), te.reduce_axis(terms, "k")
            a, b = parts_of_pair(self.parts, pair)
            x, y = left[(a, *heads, row, k)], right[(b, *heads, k, column)]
            return te.sum(te.cast(x, "float32") * te.cast(y, "float32"), [pair, k])

        return te.compute((*left.shape[1:-1], columns), total, name)


def _product_of(node: Call, args: Sequence[te.Tensor]) -> tuple[te.Tensor, tuple[Load, Load], Var]:
    """A product as its operator computes it, what it multiplies, and the axis that it sums over."""
    plain = OPS[str(node.op)].compute(args, node.attrs, node.type)
    assert isinstance(plain, te.Tensor)
    assert isinstance(plain.value, te.Reduce)
    a, b = loads_of(plain.value.value)
    (axis,) = plain.value.axes
    return plain, (a, b), axis.var


def _read(load: Load, variables: Sequence[Var], at: Sequence[Expr]) -> Load:
    """An operand's load with other values of its variables."""
    values = dict(zip(variables, at, strict=True))
    return Load(load.buffer, tuple(substitute(i, values) for i in load.indices))


def _heads_first(indices: Sequence[Expr], row: int) -> tuple[Expr, ...]:
    """Indices of scores, of which number ``row`` is the query's, with that second last."""
    rest = [i for n, i in enumerate(indices) if n != row]
    return (*rest[:-1], indices[row], rest[-1])
