"""A product with weights of a few bits as stages: rows as whole numbers in bytes, sums of bytes,
and what is fused.

    top[i, b]            = the largest |x[i, k]| of block b
    step[i, b]           = top over the largest number of P bytes
    inverse[i, b]        = 1 / step, and 0 of a block of zeros
    parts[q, i, k]       = byte q of round(x[i, k] · inverse), the highest first, from -128 to 127
    sums[q, i, b]        = Σ_k parts[q, i, k] of block b                                 int32
    product[q, i, b, j]  = Σ_k parts[q, i, k] · w[k, j] of block b                       int32
    moved[q]             = product[q, i, b, j] - zeros[b, j] · sums[q, i, b]             int32
    total[i, j]          = Σ_b scales[b, j] · step[i, b] · Σ_q 256^(P - 1 - q) · moved[q]

What is summed in int32 is exact, zero points that are whole numbers included. Without an
instruction that sums bytes rows stay floats, of one part, x itself; zero points are taken from
weights in front of the products.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from tunefarm.compiler import te
from tunefarm.compiler.ir import Call, Function, Tuple, Var, post_order, tensor_type
from tunefarm.compiler.ops.packed import (
    LARGEST,
    NEIGHBOURS,
    bits_of,
    sizes_of,
    terms_of_group,
    zero_of,
)
from tunefarm.compiler.space.program import (
    create_program,
    find_anchor,
    fold_epilogue,
    is_elementwise,
)
from tunefarm.compiler.space.strassen.program import zero_beyond
from tunefarm.compiler.tir import PrimFunc
from tunefarm.compiler.tir.ir import Expr, binary

ZEROS = 3  # the operand of zero points
TINY = 1e-36  # a step below it makes zeros of a block
TOP, STEP, INVERSE, BYTES = "top", "step", "inverse", "parts"
SUMS, PRODUCT, TOTAL = "sums", "product", "total"
STAGES = (TOP, STEP, INVERSE, BYTES, SUMS, PRODUCT, TOTAL)
OF_FLOATS = (BYTES, PRODUCT, TOTAL)


@dataclass(frozen=True, slots=True)
class PackedProduct:
    """A fused product of ``[rows, depth]`` with weights of ``bits`` in blocks of ``block`` terms.

    Rows are numbers of so many ``bytes``, or floats for 0. ``quanta`` and ``parameters`` are the
    numbers of the function's parameters that hold weights, and their scales and zero points.
    """

    function: Function
    anchor: Call
    quanta: int
    parameters: tuple[int, ...]
    rows: int
    depth: int
    columns: int
    bits: int
    block: int
    bytes: int

    @property
    def parts(self) -> int:
        """Of a number of the rows."""
        return max(self.bytes, 1)

    @property
    def stages(self) -> tuple[str, ...]:
        return STAGES if self.bytes else OF_FLOATS

    @property
    def whole_zeros(self) -> bool:
        """Whether zero points are whole numbers."""
        if len(self.anchor.args) > ZEROS:
            return tensor_type(self.anchor.args[ZEROS]).dtype == "uint8"
        zero = self.anchor.attrs["zero"]
        assert isinstance(zero, (int, float))
        return float(zero).is_integer()

    @property
    def group(self) -> int:
        """Terms of a column in four bytes."""
        return terms_of_group(self.bits)

    @property
    def planes(self) -> int:
        """Neighbours in turn that a group of terms is made of."""
        return self.group // NEIGHBOURS

    @property
    def blocks(self) -> int:
        return -(-self.depth // self.block)

    @property
    def block_terms(self) -> int:
        """Terms of a block in whole groups."""
        return -(-min(self.block, self.depth) // self.group) * self.group


@lru_cache(maxsize=128)
def packed_product_of(function: Function) -> PackedProduct | None:
    """The product that a fused function is; None if it is something else."""
    anchor = find_anchor(function)
    if anchor is None or anchor.op != "packed_matmul" or isinstance(function.body, Tuple):
        return None
    weights = anchor.args[1:]
    places = {p: i for i, p in enumerate(function.params)}
    if any(not isinstance(a, Var) or places[a] not in function.constants for a in weights):
        return None
    before = set(post_order(anchor.args[0]))
    calls = [
        e
        for e in post_order(function.body)
        if isinstance(e, Call) and e is not anchor and e not in before
    ]
    if not all(is_elementwise(c) for c in calls) or any({*weights} & {*c.args} for c in calls):
        return None
    types = [tensor_type(a) for a in anchor.args]
    depth, columns, bits, block = sizes_of(types, anchor.attrs)
    quanta, *parameters = (places[a] for a in weights if isinstance(a, Var))
    rows, count = types[0].shape[0], anchor.attrs["bytes"]
    assert isinstance(count, int)
    p = PackedProduct(
        function, anchor, quanta, tuple(parameters), rows, depth, columns, bits, block, count
    )
    return p if has_whole_groups(depth, bits, block) and columns > 1 else None


def has_whole_groups(depth: int, bits: int, block: int) -> bool:
    """Whether blocks of terms end where groups do, the last block is whole, or the only one, and
    sums of a block's products of bytes fit int32."""
    whole = block >= depth or block % terms_of_group(bits) == 0 == depth % block
    return whole and (2**bits - 1) * 128 * min(block, depth) < 2**31


@lru_cache(maxsize=64)
def create_stages(p: PackedProduct, rows: int, columns: int) -> PrimFunc:
    """The plain loops of the stages, of so many rows and columns, and of what is fused as one last
    block. Weights and their parameters have to be packed to as many columns."""
    program = create_program(
        p.function, computes={p.anchor: lambda args: _stages(p, rows, columns, args)}
    )
    return fold_epilogue(program, p.stages)


def _stages(p: PackedProduct, rows: int, columns: int, args: Sequence[te.Tensor]) -> te.Tensor:
    x, quanta, scales, *zeros = args
    size, depth = p.block_terms, p.blocks * p.block_terms

    def value(i: Expr, k: Expr) -> Expr:
        return zero_beyond(zero_beyond(x[i, k], i, p.rows, rows), k, p.depth, depth)

    k, n = te.reduce_axis(size), te.reduce_axis(size, "n")
    each = rows, p.blocks

    def largest(i: Expr, b: Expr) -> te.Reduce:
        return te.max(te.intrinsic("abs", value(i, b * size + k)), [k])

    def part(q: Expr, i: Expr, k: Expr) -> Expr:
        if not p.bytes:
            return value(i, k)
        number = te.intrinsic("round", value(i, k) * inverse[i, k // size])
        return te.one_of(q, _bytes(number, p.bytes))

    def summed(q: Expr, i: Expr, b: Expr) -> te.Reduce:
        return te.sum(te.cast(parts[q, i, b * size + n], "int32"), [n])

    if p.bytes:
        top = te.compute(each, largest, TOP)
        limit = te.const(1 / LARGEST[p.bytes], "float32")
        step = te.compute(each, lambda i, b: top[i, b] * limit, STEP)
        inverse = te.compute(each, lambda i, b: _inverse(step[i, b]), INVERSE)
    parts = te.compute((p.parts, rows, depth), part, BYTES)
    if p.bytes:
        sums = te.compute((p.parts, *each), summed, SUMS)
    group = te.reduce_axis(size // p.group, "g")
    plane, term = te.reduce_axis(p.planes, "s"), te.reduce_axis(NEIGHBOURS, "t")

    def zero(b: Expr, j: Expr, dtype: str) -> Expr:
        return te.cast(zeros[0][b, j] if zeros else zero_of(p.anchor.attrs), dtype)

    def multiplied(q: Expr, i: Expr, b: Expr, j: Expr) -> te.Reduce:
        left = parts[q, i, b * size + (group * p.planes + plane) * NEIGHBOURS + term]
        weight: Expr = quanta[b * (size // p.group) + group, j, term]
        axes = [group, plane, term]
        if p.bytes:
            right = te.cast(bits_of(weight, p.bits, plane), "int32")
            return te.sum(te.cast(left, "int32") * right, axes)
        # Wider bytes first: those of all planes are one load.
        number = te.cast(bits_of(te.cast(weight, "int32"), p.bits, plane), "float32")
        return te.sum(left * (number - zero(b, j, "float32")), axes)

    product = te.compute((p.parts, rows, p.blocks, columns), multiplied, PRODUCT)
    b = te.reduce_axis(p.blocks, "b")

    def moved(q: int, i: Expr, j: Expr) -> Expr:
        found: Expr = product[q, i, b, j]
        if p.whole_zeros:
            return te.cast(found - zero(b, j, "int32") * sums[q, i, b], "float32")
        off = zero(b, j, "float32") * te.cast(sums[q, i, b], "float32")
        return te.cast(found, "float32") - off

    def summed_up(i: Expr, j: Expr) -> te.Reduce:
        if not p.bytes:
            return te.sum(scales[b, j] * product[0, i, b, j], [b])
        whole = moved(0, i, j)
        for q in range(1, p.bytes):
            whole = whole * te.const(256, "float32") + moved(q, i, j)
        return te.sum(scales[b, j] * (whole * step[i, b]), [b])

    total = te.compute((rows, columns), summed_up, TOTAL)
    return te.compute((p.rows, p.columns), lambda i, j: total[i, j], "rows")


def _inverse(step: Expr) -> Expr:
    """What makes whole numbers of a block; NaN and infinities come back by the step."""
    some = te.const(1, "float32") / step
    return te.if_then_else(te.const(TINY, "float32") < step, some, te.const(0, "float32"))


def _bytes(value: Expr, count: int) -> list[Expr]:
    """A whole number in digits of base 256 from -128 to 127, the highest first."""
    rest = te.cast(value, "int32")
    found: list[Expr] = []
    while len(found) < count:
        digit = te.cast(rest, "int8")
        found.insert(0, digit)
        rest = binary("shr", rest - te.cast(digit, "int32"), te.const(8, "int32"))
    return found
