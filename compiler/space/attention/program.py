"""Attention as stages: scores, their softmax left unnormalised, the sum of values, one division.

    scores[…, q, k]  = Σ_d Q[…, q, d] · K[…, k, d]
    scaled[…, q, k]  = what follows element by element: a factor, a mask        (or the scores)
    peak[…, q]       = max_k scaled
    power[…, q, k]   = exp(scaled - peak)
    total[…, q]      = Σ_k power
    inverse[…, q]    = 1 / total
    mixed[…, q, e]   = Σ_k power · V[…, k, e]
    out[…, q, e]     = mixed · inverse

The axes stand in any order in memory: queries, keys and values are read where they lie.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tunefarm.compiler import te
from tunefarm.compiler.ir import Call, Function, TensorType, Var, post_order, tensor_type
from tunefarm.compiler.ir import Expr as GraphExpr
from tunefarm.compiler.ops import OPS
from tunefarm.compiler.space.program import create_program, is_elementwise
from tunefarm.compiler.tir import PrimFunc
from tunefarm.compiler.tir import schedule as s
from tunefarm.compiler.tir.affine import affine
from tunefarm.compiler.tir.ir import Binary, Block, Buffer, Expr, IterVar, Load
from tunefarm.compiler.tir.ir import Var as LoopVar
from tunefarm.compiler.tir.schedule.tree import blocks, store_of, written_buffer
from tunefarm.compiler.tir.visit import loads_of

PRODUCTS = ("matmul", "einsum")  # what scores and results may be made by
PEAK, POWER, TOTAL, INVERSE = "row_peak", "row_power", "row_total", "row_inverse"


@dataclass(frozen=True, slots=True)
class Attention:
    """The plain loops of an attention, its blocks and the iterators of two of them.

    ``scaled`` is None where nothing stands between scores and softmax. ``query``, ``key`` and
    ``depth`` are iterators of ``scores``, ``mixed_query``, ``mixed_key`` and ``value`` those of
    ``mixed``. The query is index ``query_dim`` of ``queries``, ``row_position`` of the scores and
    ``result_position`` of the result.
    """

    program: PrimFunc
    scores: str
    scaled: str | None
    mixed: str
    final: str
    query: IterVar
    key: IterVar
    depth: IterVar
    mixed_query: IterVar
    mixed_key: IterVar
    value: IterVar
    queries: Buffer
    query_dim: int
    row_position: int
    result_position: int

    @property
    def heads(self) -> int:
        """Attentions that are independent of each other."""
        node = s.find_block(self.program, self.scores)
        rest = [i for i in node.iters if i not in (self.query, self.key, self.depth)]
        count = 1
        for axis in rest:
            count *= axis.extent
        return count


@dataclass(frozen=True, slots=True)
class Calls:
    """The softmax and the last product."""

    softmax: Call
    mixed: Call


def attention_of(function: Function) -> Attention | None:
    """The attention that a fused function is; None if it is something else."""
    calls = calls_of(function, frozenset({"float32"}), parts=True)
    row = None if calls is None else _row_places(calls.mixed, calls.softmax)
    if calls is None or row is None:
        return None
    return _analysed(_create(function, calls, row))


def calls_of(function: Function, dtypes: frozenset[str], parts: bool = False) -> Calls | None:
    """The two products and the softmax between them, with elementwise calls before it alone, if
    operands and result have one of some dtypes; None for another function. The products' operands
    are parameters, or slices of them if they may be ``parts``."""
    mixed = function.body
    if not isinstance(mixed, Call) or mixed.op not in PRODUCTS:
        return None
    softmax = next((a for a in mixed.args if isinstance(a, Call) and a.op == "softmax"), None)
    if softmax is None or not _is_of(mixed, dtypes):
        return None
    if softmax.attrs["axis"] not in (-1, len(tensor_type(softmax).shape) - 1):
        return None
    inside = [n for n in post_order(softmax.args[0]) if isinstance(n, Call)]
    products = [n for n in inside if n.op in PRODUCTS]
    read = [a for n in products for a in n.args]
    rest = [n for n in inside if n not in products and n not in read]
    if len(products) != 1 or len(products[0].args) != 2 or not all(map(is_elementwise, rest)):
        return None
    operands = (*products[0].args, *(a for a in mixed.args if a is not softmax))
    if len(operands) != 3 or not all(_is_read(a, parts) and _is_of(a, dtypes) for a in operands):
        return None
    if tensor_type(products[0]) != tensor_type(softmax):
        return None
    return Calls(softmax, mixed)


def _is_read(operand: GraphExpr, parts: bool) -> bool:
    """Whether an operand is a parameter, or a part of one where that may be."""
    if parts and isinstance(operand, Call) and operand.op == "slice":
        operand = operand.args[0]
    return isinstance(operand, Var)


def _row_places(mixed: Call, softmax: Call) -> tuple[int, ...] | None:
    """Which index of a product each index of a row of the softmax is.

    None where one is no index of it, as for heads that are repeated, or where nothing is summed.
    """
    operands = [te.placeholder(t.shape, t.dtype) for t in map(tensor_type, mixed.args)]
    product = OPS[str(mixed.op)].compute(operands, mixed.attrs, mixed.type)
    if not isinstance(product, te.Tensor) or not isinstance(product.value, te.Reduce):
        return None
    rows = operands[mixed.args.index(softmax)]
    load = next(ld for ld in loads_of(product.value.value) if ld.buffer is rows)
    places = {axis.var: n for n, axis in enumerate(product.axes)}
    found = [places.get(i, -1) if isinstance(i, LoopVar) else -1 for i in load.indices[:-1]]
    return None if -1 in found else tuple(found)


def _is_of(expr: GraphExpr, dtypes: frozenset[str]) -> bool:
    return isinstance(expr.type, TensorType) and expr.type.dtype in dtypes


def _create(function: Function, calls: Calls, row: tuple[int, ...]) -> PrimFunc:
    """The stages; ``row`` are the result's indices for those of a row of the softmax."""
    kept: list[te.Tensor] = []

    def powers(args: Sequence[te.Tensor]) -> te.Tensor:
        power, inverse = softmax_stages(args[0])
        kept.append(inverse)
        return power

    def mixed(args: Sequence[te.Tensor]) -> te.Tensor:
        node = calls.mixed
        product = OPS[str(node.op)].compute(args, node.attrs, node.type)
        assert isinstance(product, te.Tensor)
        (inverse,) = kept
        return te.compute(
            product.shape,
            lambda *i: product[i] * inverse[tuple(i[p] for p in row)],
            "attention",
        )

    return create_program(function, computes={calls.softmax: powers, calls.mixed: mixed})


def softmax_stages(x: te.Tensor, least: float | None = None) -> tuple[te.Tensor, te.Tensor]:
    """The powers of rows, those of numbers less than ``least`` 0, and what these are multiplied
    with to be their softmax."""
    k = te.reduce_axis(x.shape[-1])
    peak = te.compute(x.shape[:-1], lambda *i: te.maxnum(x[(*i, k)], [k]), PEAK)

    def power_of(*i: Expr) -> Expr:
        shifted = x[i] - peak[i[:-1]]
        power = te.intrinsic("exp_shifted", shifted)
        return power if least is None else te.if_then_else(shifted < least, 0.0, power)

    power = te.compute(x.shape, power_of, POWER)
    n = te.reduce_axis(x.shape[-1])
    total = te.compute(x.shape[:-1], lambda *i: te.sum(power[(*i, n)], [n]), TOTAL)
    one = te.const(1.0, "float32")
    return power, te.compute(x.shape[:-1], lambda *i: one / total[i], INVERSE)


def _analysed(program: PrimFunc) -> Attention | None:
    program = _chain_in_one(_read_in_place(program))
    names = s.remaining_blocks(program)
    before, after = names[: names.index(PEAK)], names[names.index(POWER) + 1 : -1]
    after = [n for n in after if n not in (TOTAL, INVERSE)]
    if len(before) not in (1, 2) or len(after) != 1:
        return None
    scores, mixed = before[0], after[0]
    first, second = s.find_block(program, scores), s.find_block(program, mixed)
    factors, mixing = _factors(first), _factors(second)
    if factors is None or mixing is None:
        return None
    key = _iterator(first, store_of(first).indices[-1])
    depth = [i for i in first.iters if i.kind == "reduce"]
    summed = [i for i in second.iters if i.kind == "reduce"]
    power = written_buffer(s.find_block(program, POWER))
    weights, values = mixing if mixing[0].buffer is power else mixing[::-1]
    if key is None or len(depth) != 1 or len(summed) != 1 or weights.buffer is not power:
        return None
    data, keys = factors if key.var in used_by(factors[1]) else factors[::-1]
    own = [i for i in first.iters if i.var in used_by(data) and i.var not in used_by(keys)]
    value = _iterator(second, store_of(second).indices[-1])
    if (
        len(own) != 1
        or data.buffer is keys.buffer
        or key.var in used_by(data)
        or value is None
        or value.var in used_by(weights)
    ):
        return None
    at = list(store_of(first).indices).index(own[0].var)
    query = _iterator(second, weights.indices[at])
    if query is None or query.var in used_by(values) or value.var not in used_by(values):
        return None
    scaled = before[1] if len(before) == 2 else None
    places = (list(data.indices), list(store_of(second).indices))
    if own[0].var not in places[0]:
        return None
    return Attention(
        program, scores, scaled, mixed, names[-1], own[0], key, depth[0], query, summed[0], value,
        data.buffer, places[0].index(own[0].var), at, places[1].index(query.var),
    )  # fmt: skip


def _read_in_place(program: PrimFunc) -> PrimFunc:
    """Parts of a larger array read in it."""
    for node in blocks(program.body):
        if node.name.startswith("slice"):
            program = s.compute_inline(program, node.name)
    return program


def _chain_in_one(program: PrimFunc) -> PrimFunc:
    """The elementwise stages between scores and softmax in the last of them."""
    names = s.remaining_blocks(program)
    for block in names[: names.index(PEAK)]:
        node = s.find_block(program, block)
        readers = [
            b.name
            for b in blocks(program.body)
            if written_buffer(node) in s.reads_of(program, b.name)
        ]
        if node.init is None and PEAK not in readers:
            program = s.compute_inline(program, block)
    return program


def _factors(node: Block) -> tuple[Load, Load] | None:
    value = store_of(node).value
    product = value.b if isinstance(value, Binary) and value.op == "add" else None
    if not isinstance(product, Binary) or product.op != "mul":
        return None
    a, b = product.a, product.b
    plain = isinstance(a, Load) and isinstance(b, Load)
    return (a, b) if plain else None  # type: ignore[return-value]


def used_by(load: Load) -> set[LoopVar]:
    """The variables of an operand's place."""
    return {v for index in load.indices for v in affine(index).variables()}


def _iterator(node: Block, index: Expr) -> IterVar | None:
    return next((i for i in node.iters if i.var is index), None)
