"""What an attention reads and computes, at any head, query, key and element of it.

    total[head, query, key] = Σ_d Q[head, query, d] · K[head, key, d]
    score[head, query, key] = what follows on it element by element: a factor, a mask
    out[head, query, e]     = Σ_key softmax(score)[head, query, key] · V[head, key, e]

The workload is the fused function that processors have (``transform/fuse_attention.py``). Q, K, V
and the result lie in memory as the graph has them, heads among their other axes; parameters are
read as vectors.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import gcd, prod

from tunefarm.compiler import te
from tunefarm.compiler.dtypes import is_float
from tunefarm.compiler.ir import Function
from tunefarm.compiler.ops import OPS
from tunefarm.compiler.ops.common import read_wide
from tunefarm.compiler.space.attention.program import calls_of
from tunefarm.compiler.space.flatten import flat_index
from tunefarm.compiler.space.nests import inline_all
from tunefarm.compiler.space.program import create_program
from tunefarm.compiler.target import dtype_bytes
from tunefarm.compiler.tir import PrimFunc
from tunefarm.compiler.tir.affine import affine
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
    Select,
    Store,
    Var,
    binary,
)
from tunefarm.compiler.tir.schedule.tree import blocks, store_of
from tunefarm.compiler.tir.transform.simplify import simplify_expr
from tunefarm.compiler.tir.visit import loads_of, seq, substitute, transform_expr

DTYPES = frozenset({"float16", "bfloat16", "float32"})
SCALED = "scaled"
HEAD, QUERY, KEY, DEPTH, VALUE = (Var(n) for n in ("head", "query", "key", "d", "e"))


@dataclass(frozen=True)
class Attention:
    """An attention in the variables ``HEAD`` (of all heads together), ``QUERY``, ``KEY``, ``DEPTH``
    and ``VALUE``, which range over ``heads``, ``queries``, ``keys``, ``depth`` and ``values``.

    ``program`` has its parameters, as vectors; ``query``, ``key`` and ``value`` load the operands,
    ``score`` is a score in float32 made of the sum ``total``, a load, and ``result`` stores a value
    that is computed in float32.
    """

    program: PrimFunc
    heads: int
    queries: int
    keys: int
    depth: int
    values: int
    query: Load
    key: Load
    value: Load
    total: Load
    score: Expr
    result: Store

    @property
    def dtype(self) -> str:
        """The dtype of queries, keys and values."""
        return self.query.dtype

    @cached_property
    def along(self) -> tuple[str, str]:
        """Which axis of K and of V stands side by side in memory: that of the "terms" of their
        products, their "columns" (keys of K, elements of V), or none ("")."""
        return self._along(self.key, DEPTH, KEY), self._along(self.value, KEY, VALUE)

    def _along(self, load: Load, terms: Var, columns: Var) -> str:
        form = affine(load.indices[0])
        return next(
            (n for n, v in (("terms", terms), ("columns", columns)) if form.coefficient(v) == 1), ""
        )

    @cached_property
    def has_pairs(self) -> tuple[bool, bool, bool]:
        """Whether two elements can be taken at once: of a row of Q, of what scores are combined
        with (a mask), of a row of the result."""
        q = self.depth % 2 == 0 and affine(self.query.indices[0]).coefficient(DEPTH) == 1
        others = [ld for ld in loads_of(self.score) if ld is not self.total]
        steps = [affine(i).coefficient(KEY) for ld in others for i in ld.indices]
        masks = all(step in (0, 1) for step in steps) and (self.keys % 2 == 0 or not any(steps))
        out = self.values % 2 == 0 and affine(self.result.indices[0]).coefficient(VALUE) == 1
        return q, masks, out

    @property
    def result_vector(self) -> int:
        """Elements of a row of the result that lie side by side: a power of two, of at most 16
        bytes; 1 if neighbours lie apart."""
        together = affine(self.result.indices[0]).coefficient(VALUE) == 1
        most = 16 // dtype_bytes(self.result.buffer.dtype) if together else 1
        return gcd(most, self.values)


@functools.lru_cache(maxsize=64)
def attention_of(function: Function) -> Attention | None:
    """The attention that a fused function is, on operands of one dtype; None if it is something
    else."""
    calls = calls_of(function, DTYPES)
    if calls is None:
        return None
    mixed = calls.mixed

    def scaled(args: Sequence[te.Tensor]) -> te.Tensor:
        return te.compute(args[0].shape, lambda *i: read_wide(args[0], i), SCALED)

    def weighted(args: Sequence[te.Tensor]) -> te.Tensor:
        made = OPS[str(mixed.op)].compute(args, mixed.attrs, mixed.type)
        assert isinstance(made, te.Tensor)
        return made

    program = create_program(function, computes={calls.softmax: scaled, mixed: weighted})
    return _analysed(inline_all(program, kept=(SCALED,)))


def _analysed(program: PrimFunc) -> Attention | None:
    """The attention of three stages, and perhaps a fourth that rounds their result."""
    nodes = blocks(program.body)
    spatial = [b.init is None for b in nodes]
    if spatial not in ([False, True, False], [False, True, False, True]):
        return None
    first, scaled, second, last = nodes[0], nodes[1], nodes[2], nodes[-1]
    products = _factors(first), _factors(second)
    if products[0] is None or products[1] is None:
        return None
    axes = _Axes.of(first, products[0])
    mixing = _mixing(second, products[1], store_of(scaled).buffer)
    if axes is None or mixing is None:
        return None
    weights, values, value = mixing
    first_of_one: dict[Var, Expr] = {i.var: Const(0) for i in second.iters if i.extent == 1}
    rows = first_of_one | axes.at(weights.indices) | {value.var: VALUE}
    if any(rows.get(v) is QUERY for v in _used(values)) or values.dtype != axes.query.dtype:
        return None
    own = axes.at(store_of(scaled).indices)
    totals = [ld for ld in loads_of(scaled.body) if ld.buffer is store_of(first).buffer]
    depth = next(i for i in first.iters if i.kind == "reduce")
    sizes = {HEAD: axes.heads, QUERY: axes.queries, KEY: axes.keys, DEPTH: depth.extent}
    flat = _Flat(program, {**sizes, VALUE: value.extent})
    total = Load(Buffer("total", ()), ())
    score = transform_expr(
        store_of(scaled).value, lambda e: total if any(e is ld for ld in totals) else None
    )
    result = store_of(last)
    places = zip(result.indices, store_of(second).indices, strict=True)
    stored = {v: substitute(at, rows) for v, at in places if isinstance(v, Var)}
    scores = axes.at(store_of(first).indices) | {depth.var: DEPTH}
    return Attention(
        flat.program,
        axes.heads,
        axes.queries,
        axes.keys,
        depth.extent,
        value.extent,
        flat.load(axes.query, scores),
        flat.load(axes.key, scores),
        flat.load(values, rows),
        total,
        flat.expr(_widened(score), own),
        flat.store(result, stored),
    )


def _factors(node: Block) -> tuple[Load, Load] | None:
    """The loads that a sum of products multiplies, widened or not."""
    value = store_of(node).value
    product = value.b if isinstance(value, Binary) and value.op == "add" else None
    if not isinstance(product, Binary) or product.op != "mul":
        return None
    a, b = (f.value if isinstance(f, Cast) else f for f in (product.a, product.b))
    return (a, b) if isinstance(a, Load) and isinstance(b, Load) else None


def _used(load: Load) -> frozenset[Var]:
    return frozenset().union(*(affine(index).variables() for index in load.indices))


def _mixing(
    node: Block, factors: tuple[Load, Load], scores: Buffer
) -> tuple[Load, Load, IterVar] | None:
    """The weights and the values of the second product, and its axis along a row of the values."""
    weights, values = factors if factors[0].buffer is scores else factors[::-1]
    summed = [i for i in node.iters if i.kind == "reduce"]
    rows = _used(weights)
    own = [i for i in node.iters if i.kind == "spatial" and i.extent > 1 and i.var not in rows]
    if weights.buffer is not scores or values.buffer is scores or len(summed) != 1 or len(own) != 1:
        return None
    plain = weights.indices[-1] is summed[0].var and own[0].var in _used(values)
    return (weights, values, own[0]) if plain else None


@dataclass(frozen=True, slots=True)
class _Axes:
    """The dimensions of the scores: what each is in terms of ``HEAD``, ``QUERY`` and ``KEY``."""

    dims: tuple[Expr, ...]
    query: Load
    key: Load
    heads: int
    queries: int
    keys: int

    @staticmethod
    def of(node: Block, factors: tuple[Load, Load]) -> _Axes | None:
        """Those of the first product; None if no axis is the queries' alone. Of a single query it
        is the last axis of one element, which no load speaks of."""
        shape, indices = store_of(node).buffer.shape, store_of(node).indices
        query, key = factors if indices[-1] in _used(factors[1]) else factors[::-1]
        alone = [n for n, i in enumerate(indices[:-1]) if i in _used(query) - _used(key)]
        alone = alone or [n for n, extent in enumerate(shape[:-1]) if extent == 1][-1:]
        summed = [i for i in node.iters if i.kind == "reduce"]
        outside = indices[-1] in _used(query) or indices[-1] not in _used(key)
        if len(alone) != 1 or len(summed) != 1 or outside or query.buffer is key.buffer:
            return None
        dims: list[Expr] = [KEY]
        heads = 1
        for n in reversed(range(len(shape) - 1)):
            if n == alone[0]:
                dims.append(QUERY)
                continue
            dims.append(HEAD // heads % shape[n])
            heads *= shape[n]
        return _Axes(tuple(reversed(dims)), query, key, heads, shape[alone[0]], shape[-1])

    def at(self, indices: Sequence[Expr]) -> dict[Var, Expr]:
        """What the variables are by which the scores are indexed."""
        found = zip(indices, self.dims, strict=True)
        return {i: dim for i, dim in found if isinstance(i, Var)}


@dataclass(frozen=True, slots=True)
class _Flat:
    """Expressions on parameters that are read as vectors, in variables of known extents."""

    source: PrimFunc
    extents: Mapping[Var, int]
    params: dict[Buffer, Buffer] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        for b in self.source.params:
            self.params[b] = Buffer(b.name, (prod(b.shape),), b.dtype)

    @property
    def program(self) -> PrimFunc:
        """A program of the parameters alone."""
        params = tuple(self.params[b] for b in self.source.params)
        return replace(self.source, params=params, body=seq(), buffers=(), layouts={})

    def expr(self, expr: Expr, values: Mapping[Var, Expr]) -> Expr:
        """An expression in the variables of an attention."""

        def rule(e: Expr) -> Expr | None:
            if isinstance(e, Load) and e.buffer in self.params:
                return Load(self.params[e.buffer], (self._place(e.indices, e.buffer),))
            return None

        return transform_expr(substitute(expr, values), rule)

    def load(self, load: Load, values: Mapping[Var, Expr]) -> Load:
        made = self.expr(load, values)
        assert isinstance(made, Load)
        return made

    def store(self, store: Store, values: Mapping[Var, Expr]) -> Store:
        """The place of a result."""
        at = tuple(substitute(i, values) for i in store.indices)
        buffer = self.params[store.buffer]
        return Store(buffer, (self._place(at, store.buffer),), Const(0.0, buffer.dtype))

    def _place(self, indices: Sequence[Expr], buffer: Buffer) -> Expr:
        ranges = {v: (0, n - 1) for v, n in self.extents.items()}
        plain = [simplify_expr(i, ranges) for i in indices]
        return simplify_expr(flat_index(plain, buffer.shape), ranges)


def _widened(expr: Expr) -> Expr:
    """An expression of 16-bit floats in float32, rounded nowhere on the way."""
    match expr:
        case Cast(value, dtype) if is_float(value.dtype) and is_float(dtype):
            return _widened(value)
        case Load() | Cast() | Var():
            narrow = is_float(expr.dtype) and expr.dtype != "float32"
            return Cast(expr, "float32") if narrow else expr
        case Const(value, dtype):
            return Const(value, "float32") if is_float(dtype) else expr
        case Binary(op, a, b, _):
            return binary(op, _widened(a), _widened(b))
        case Select(condition, a, b, _):
            then, other = _widened(a), _widened(b)
            return Select(_widened(condition), then, other, then.dtype)
        case Intrinsic(name, args, dtype):
            wide = tuple(map(_widened, args))
            return Intrinsic(name, wide, "float32" if is_float(dtype) else dtype)
