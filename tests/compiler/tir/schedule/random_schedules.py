"""Small tensor programs, and schedule steps that are chosen by numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias, TypeVar

from tunefarm.compiler import te
from tunefarm.compiler.tir import schedule as s
from tunefarm.compiler.tir.ir import Block, For, PackedLayout, PrimFunc, Var
from tunefarm.compiler.tir.schedule.tree import blocks, find_block, is_reduction
from tunefarm.compiler.tir.visit import walk_stmt

Numbers: TypeAlias = Sequence[int]
Step: TypeAlias = Callable[[PrimFunc, Numbers], PrimFunc]
Item = TypeVar("Item")


# --- programs ----------------------------------------------------------------------------------


def matmul(m: int, n: int, k: int, dtype: str = "float32") -> PrimFunc:
    """relu(A · B + bias)."""
    a, b = te.placeholder((m, k), dtype, "A"), te.placeholder((k, n), dtype, "B")
    bias = te.placeholder((n,), dtype, "bias")
    r = te.reduce_axis(k)
    c = te.compute((m, n), lambda i, j: te.sum(a[i, r] * b[r, j], [r]), name="C")
    d = te.compute((m, n), lambda i, j: te.maximum(c[i, j] + bias[j], 0), name="D")
    return te.create_prim_func([a, b, bias, d], "matmul")


def conv(h: int, w: int, pad: int, stride: int, dilation: int, dtype: str = "float32") -> PrimFunc:
    """A 3×2 convolution of two channels to three, padded by an intermediate tensor."""
    x, f = te.placeholder((2, h, w), dtype, "X"), te.placeholder((3, 2, 3, 2), dtype, "F")
    p = te.compute(
        (2, h + 2 * pad, w + 2 * pad),
        lambda c, y, z: te.if_then_else(
            (y >= pad) & (y < h + pad) & (z >= pad) & (z < w + pad), x[c, y - pad, z - pad], 0
        ),
        name="P",
    )
    rows = (h + 2 * pad - 2 * dilation - 1) // stride + 1
    columns = (w + 2 * pad - dilation - 1) // stride + 1
    c, u, v = te.reduce_axis(2, "c"), te.reduce_axis(3, "u"), te.reduce_axis(2, "v")
    o = te.compute(
        (3, rows, columns),
        lambda k, y, z: te.sum(
            p[c, y * stride + u * dilation, z * stride + v * dilation] * f[k, c, u, v], [c, u, v]
        ),
        name="O",
    )
    return te.create_prim_func([x, f, o], "conv")


def chain(m: int, n: int, dtype: str = "float32") -> PrimFunc:
    """Elementwise steps, a transposition and a shift with two readers."""
    x, y = te.placeholder((m, n), dtype, "X"), te.placeholder((n, m), dtype, "Y")
    a = te.compute((m, n), lambda i, j: x[i, j] * 2 + 1, name="A")
    b = te.compute((m, n), lambda i, j: a[i, j] - y[j, i], name="B")
    c = te.compute((m, n), lambda i, j: b[i, j] + te.if_then_else(i >= 1, a[i - 1, j], 5), name="C")
    return te.create_prim_func([x, y, c], "chain")


def rows(m: int, n: int, dtype: str = "float32") -> PrimFunc:
    """The maximum of each row, the row without it, and a count; two outputs."""
    x = te.placeholder((m, n), dtype, "X")
    r, q = te.reduce_axis(n, "r"), te.reduce_axis(n, "q")
    top = te.compute((m,), lambda i: te.max(x[i, r], [r]), name="M")
    rest = te.compute((m, n), lambda i, j: x[i, j] - top[i], name="S")
    total = te.compute((m,), lambda i: te.sum(rest[i, q] + 1, [q]), name="T")
    out = te.compute((m, n), lambda i, j: rest[i, j] + total[i], name="U")
    return te.create_prim_func([x, total, out], "rows")


# --- steps -------------------------------------------------------------------------------------


def _pick(items: Sequence[Item], number: int) -> Item:
    return items[number % len(items)]


def _loops(program: PrimFunc) -> list[Var]:
    return [x.var for x in walk_stmt(program.body) if isinstance(x, For)]


def _block(program: PrimFunc, number: int) -> str:
    return _pick([b.name for b in blocks(program.body)], number)


def _nest(program: PrimFunc, number: int) -> list[Var]:
    """The loops around one block."""
    return s.loops_of(program, _block(program, number)) or _loops(program)


def split(program: PrimFunc, n: Numbers) -> PrimFunc:
    factors = (1 + n[1] % 5,) if n[2] % 3 else (1 + n[1] % 3, 1 + n[2] % 4)
    return s.split(program, _pick(_loops(program), n[0]), *factors)[0]


def fuse(program: PrimFunc, n: Numbers) -> PrimFunc:
    nest = _nest(program, n[0])
    at = n[1] % len(nest)
    return s.fuse(program, *nest[at : at + 2 + n[2] % 2])[0]


def reorder(program: PrimFunc, n: Numbers) -> PrimFunc:
    nest = _nest(program, n[0])
    a, b = _pick(nest, n[1]), _pick(nest, n[2])
    return program if a is b else s.reorder(program, *([a, b] if n[1] % 2 else [b, a]))


def unroll(program: PrimFunc, n: Numbers) -> PrimFunc:
    return s.unroll(program, _pick(_loops(program), n[0]))


def vectorize(program: PrimFunc, n: Numbers) -> PrimFunc:
    return s.vectorize(program, _pick(_loops(program), n[0]))


def vectorize_innermost(program: PrimFunc, n: Numbers) -> PrimFunc:
    return s.vectorize(program, _nest(program, n[0])[-1])


def parallel(program: PrimFunc, n: Numbers) -> PrimFunc:
    return s.parallel(program, _pick(_loops(program), n[0]))


def compute_inline(program: PrimFunc, n: Numbers) -> PrimFunc:
    return s.compute_inline(program, _block(program, n[0]))


def compute_at(program: PrimFunc, n: Numbers) -> PrimFunc:
    return s.compute_at(program, _block(program, n[0]), _pick(_nest(program, n[1]), n[2]))


def reverse_compute_at(program: PrimFunc, n: Numbers) -> PrimFunc:
    return s.reverse_compute_at(program, _block(program, n[0]), _pick(_nest(program, n[1]), n[2]))


def cache_read(program: PrimFunc, n: Numbers) -> PrimFunc:
    block = _block(program, n[0])
    buffers = s.reads_of(program, block) or [program.params[0]]
    scope = _pick(("global", "local"), n[2])
    return s.cache_read(program, block, _pick(buffers, n[1]), scope, n[2] % 3)[0]


def cache_write(program: PrimFunc, n: Numbers) -> PrimFunc:
    return s.cache_write(program, _block(program, n[0]), _pick(("global", "local"), n[1]))[0]


def set_scope(program: PrimFunc, n: Numbers) -> PrimFunc:
    return s.set_scope(program, _block(program, n[0]), _pick(("global", "local", "register"), n[1]))


def permute_buffer(program: PrimFunc, n: Numbers) -> PrimFunc:
    block = _block(program, n[0])
    body = find_block(program, block).body
    rank = len(getattr(body, "buffer").shape)  # noqa: B009
    order = list(range(rank))
    return s.permute_buffer(program, block, order[::-1] if n[1] % 2 else order[1:] + order[:1])


def decompose_reduction(program: PrimFunc, n: Numbers) -> PrimFunc:
    block = _reduction(program, n[0])
    return s.decompose_reduction(program, block, _pick(s.loops_of(program, block), n[1]))


def rfactor(program: PrimFunc, n: Numbers) -> PrimFunc:
    block = _reduction(program, n[0])
    scope = _pick(("local", "register", "global"), n[2])
    return s.rfactor(program, block, _pick(s.loops_of(program, block), n[1]), scope=scope)[0]


def halve_reduction(program: PrimFunc, n: Numbers) -> PrimFunc:
    block = _reduction(program, n[0])
    return s.halve_reduction(program, block, _pick(s.loops_of(program, block), n[1]))


def write_out_reduction(program: PrimFunc, n: Numbers) -> PrimFunc:
    block = _reduction(program, n[0])
    return s.write_out_reduction(program, block, _pick(s.loops_of(program, block), n[1]))


def _reduction(program: PrimFunc, number: int) -> str:
    def reduces(block: Block) -> bool:
        return is_reduction(block)

    found = [b.name for b in blocks(program.body) if reduces(b)]
    return _pick(found, number) if found else _block(program, number)


def divide(program: PrimFunc, n: Numbers) -> PrimFunc:
    block = _block(program, n[0])
    iters = find_block(program, block).iters
    return s.divide(program, block, n[1] % max(len(iters), 1), n[2])[0]


def join(program: PrimFunc, n: Numbers) -> PrimFunc:
    return s.join(program, _pick(_loops(program), n[0]), _pick(_loops(program), n[1]))


def transform_layout(program: PrimFunc, n: Numbers) -> PrimFunc:
    param = n[0] % len(program.params)
    rank = len(program.params[param].shape)
    factors = tuple((1 + n[1] % 5,) if d == n[2] % rank else () for d in range(rank))
    order = [*range(1, rank + 1), 0] if n[1] % 2 else [rank, *range(rank)]
    if param in program.layouts:
        return program
    return s.transform_layout(program, param, PackedLayout(factors, tuple(order)))


STEPS: tuple[Step, ...] = (
    split, fuse, reorder, unroll, vectorize, vectorize_innermost, parallel, compute_inline,
    compute_at, reverse_compute_at, cache_read, cache_write, set_scope, permute_buffer,
    decompose_reduction, rfactor, halve_reduction, write_out_reduction, transform_layout,
    divide, join,
)  # fmt: skip
