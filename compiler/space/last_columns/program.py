"""A product as two stages, of its whole vectors of columns and of the columns behind them.

    vectors[m, n]  = Σ x[m, k] · w[(n // lanes · K + k) · lanes + n % lanes]      n < whole
    last[m, c]     = Σ x[m, k] · w[whole · K + c · K + k]
    y[m, n]        = vectors[m, n] where n < whole, else last[m, n - whole], and what follows

The weights w, one array, are put in this order when the model is built (``forms.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from tunefarm.compiler import te
from tunefarm.compiler.ir import Call, Function, TensorType, Var, tensor_type
from tunefarm.compiler.ops import call
from tunefarm.compiler.space.analysis import Contraction
from tunefarm.compiler.space.contraction.shape import contraction_of
from tunefarm.compiler.space.last_columns.forms import LANES, transform_name
from tunefarm.compiler.space.narrow import narrow_of
from tunefarm.compiler.space.program import (
    create_program,
    find_anchor,
    fold_epilogue,
    view_contraction,
)
from tunefarm.compiler.tir import PackedLayout, PrimFunc
from tunefarm.compiler.tir import schedule as s
from tunefarm.compiler.tir.ir import Expr

MAX_VECTORS = 6  # of the whole ones: of more, one that is all but empty is little


@dataclass(frozen=True, slots=True)
class Product:
    """A fused product of float32, ``[rows, depth] · [depth, columns]``, of few columns more than
    whole vectors of ``lanes``.

    ``function`` has a pointwise convolution as such a product too, whose constant matrix is
    parameter ``weights``, ``turned`` if its rows are columns. ``both`` is its contraction,
    ``vectors`` and ``last`` are those of the parts alone.
    """

    function: Function
    anchor: Call
    weights: int
    turned: bool
    lanes: int
    rows: int
    depth: int
    columns: int
    both: Contraction
    vectors: Contraction
    last: Contraction

    @property
    def whole(self) -> int:
        """Columns of the whole vectors."""
        return self.columns // self.lanes * self.lanes

    @property
    def rest(self) -> int:
        """Columns behind them."""
        return self.columns % self.lanes


@lru_cache(maxsize=64)
def product_of(function: Function, lanes: int) -> Product | None:
    """The product that a fused function is; None for others, for those of whole vectors or of more
    columns than a quarter of a vector behind them, and for sums of less than half a vector."""
    function = view_contraction(function)
    anchor, both = find_anchor(function), contraction_of(function)
    if anchor is None or both is None or lanes not in LANES or not _fits(anchor):
        return None
    turned = bool(anchor.attrs["transpose_b"])
    (rows, columns), depth = tensor_type(anchor).shape, tensor_type(anchor.args[0]).shape[1]
    whole, rest = columns // lanes, columns % lanes
    few = 0 < rest <= lanes // 4 and 0 < whole <= MAX_VECTORS
    if not few or rows == 1 or 2 * depth < lanes or both.rhs.param not in function.constants:
        return None
    parts = [_plain(rows, depth, count) for count in (columns - rest, rest)]
    vectors, last = contraction_of(parts[0]), narrow_of(parts[1], lanes)
    assert vectors is not None
    assert last is not None
    return Product(
        function, anchor, both.rhs.param, turned, lanes, rows, depth, columns, both, vectors, last
    )


def _fits(anchor: Call) -> bool:
    types = [tensor_type(v) for v in (*anchor.args, anchor)]
    return (
        anchor.op == "matmul"
        and all(isinstance(a, Var) for a in anchor.args)
        and all(t.dtype == "float32" and len(t.shape) == 2 for t in types)
        and not anchor.attrs["transpose_a"]
    )


def _plain(rows: int, depth: int, columns: int) -> Function:
    """A product by itself."""
    shapes = (rows, depth), (depth, columns)
    params = tuple(Var(n, TensorType(e, "float32")) for n, e in zip("xw", shapes, strict=True))
    return Function(params, call("matmul", *params), {"primitive": True, "constants": (1,)})


@lru_cache(maxsize=64)
def create_parts(p: Product) -> tuple[PrimFunc, tuple[str, str]]:
    """The loops of both stages, and of what is fused behind each: the program, and the names of the
    blocks that write the results."""
    program = create_program(
        p.function,
        computes={p.anchor: lambda args: _stages(p, args)},
        shapes={p.function.params[p.weights]: (p.depth * p.columns,)},
    )
    program = fold_epilogue(program, ("vectors", "last"))
    layout = PackedLayout(((),), (0,), transform_name(p.lanes, p.turned))
    program = s.transform_layout(program, p.weights, layout)
    written = s.remaining_blocks(program)[-1]
    program, rest = s.divide(program, written, 1, p.whole)
    return program, (written, rest)


def _stages(p: Product, args: Sequence[te.Tensor]) -> te.Tensor:
    x, w = args
    k, t = (te.reduce_axis(p.depth, name) for name in "kt")

    def of_vectors(m: Expr, n: Expr) -> te.Reduce:
        return te.sum(x[m, k] * w[(n // p.lanes * p.depth + k) * p.lanes + n % p.lanes], [k])

    def of_last(m: Expr, c: Expr) -> te.Reduce:
        return te.sum(x[m, t] * w[p.whole * p.depth + c * p.depth + t], [t])

    vectors = te.compute((p.rows, p.whole), of_vectors, "vectors")
    last = te.compute((p.rows, p.rest), of_last, "last")
    return te.compute(
        (p.rows, p.columns),
        lambda m, n: te.if_then_else(n < p.whole, vectors[m, n], last[m, n - p.whole]),
        "columns",
    )
