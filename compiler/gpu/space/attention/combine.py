"""What combines an attention whose keys are shared out over several blocks.

    peak[s], total[s], mixed[s, e]      of part s: its largest score, Σ powers, Σ powers · V
    factor[s] = exp(peak[s] - max peak)
    out[e]    = Σ_s factor[s] · mixed[s, e] / Σ_s factor[s] · total[s]

A second kernel, of a thread for some elements of a query's result. Source: Dao et al.,
"Flash-Decoding for long-context inference", 2023.
"""

from __future__ import annotations

from collections.abc import Callable

from tunefarm.compiler.gpu.space.attention.problem import HEAD, QUERY, VALUE, Attention
from tunefarm.compiler.gpu.space.common import loop
from tunefarm.compiler.tir.affine import affine
from tunefarm.compiler.tir.ir import (
    Buffer,
    Cast,
    Const,
    Expr,
    For,
    If,
    Intrinsic,
    Load,
    LoopKind,
    Stmt,
    Store,
    Var,
    binary,
)
from tunefarm.compiler.tir.visit import seq, substitute

F32 = "float32"
THREADS = 128
PEAK, TOTAL = Const(0), Const(1)  # what is told of a part's row


class Parts:
    """Where the blocks of ``split`` parts leave their results: ``mixed`` and ``rows``, in the
    workspace."""

    def __init__(self, a: Attention, split: int) -> None:
        self.a, self.split = a, split
        self.mixed = Buffer("parts", (split, a.heads, a.queries, a.values), F32)
        self.rows = Buffer("rows", (split, a.heads, a.queries, 2), F32)
        self.top = Buffer("highest", (1,), F32, "register")
        self.weight = Buffer("weight", (1,), F32, "register")
        self.whole = Buffer("whole", (1,), F32, "register")
        together = affine(a.result.indices[0]).coefficient(VALUE) == 1
        self.lanes = next(n for n in (4, 2, 1) if a.values % n == 0 and (together or n == 1))
        self.sums = Buffer("combined", (self.lanes,), F32, "register")

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        return (self.mixed, self.rows, self.top, self.weight, self.whole, self.sums)

    def combine(self) -> Stmt:
        """The second kernel."""
        a, block, thread = self.a, Var("group"), Var("thread")
        number = block * THREADS + thread
        each = a.values // self.lanes
        count = a.heads * a.queries * each
        row, place = number // each, number % each
        body = self._row(row // a.queries, row % a.queries, place)
        if count % THREADS:
            body = If(number < count, body)
        body = For(thread, Const(THREADS), body, LoopKind.THREAD, axis="threadIdx.x")
        blocks = Const(-(-count // THREADS))
        return For(block, blocks, body, LoopKind.THREAD, axis="blockIdx.x")

    def _row(self, head: Expr, query: Expr, place: Expr) -> Stmt:
        """``lanes`` elements of a query's result."""
        a, zero = self.a, Const(0)
        top, weight, whole = (Load(b, (zero,)) for b in (self.top, self.weight, self.whole))

        def told(part: Expr, what: Const) -> Load:
            return Load(self.rows, (part, head, query, what))

        def lane(c: Expr) -> Expr:
            return place * self.lanes + c

        def more(part: Expr) -> Stmt:
            factor = Intrinsic("exp", (told(part, PEAK) - top,), F32)
            return seq(
                Store(self.weight, (zero,), factor),
                Store(self.whole, (zero,), whole + weight * told(part, TOTAL)),
                self._lanes(lambda c: Store(self.sums, (c,), Load(self.sums, (c,)) + weight * Load(
                    self.mixed, (part, head, query, lane(c))
                ))),
            )  # fmt: skip

        def result(c: Expr) -> Stmt:
            at = {HEAD: head, QUERY: query, VALUE: lane(c)}
            buffer = a.result.buffer
            value = Cast(Load(self.sums, (c,)) * weight, buffer.dtype)
            return Store(buffer, tuple(substitute(i, at) for i in a.result.indices), value)

        def higher(part: Expr) -> Stmt:
            return Store(self.top, (zero,), binary("max", top, told(part, PEAK)))

        return seq(
            Store(self.top, (zero,), told(zero, PEAK)),
            loop("part", self.split, higher, LoopKind.SERIAL),
            Store(self.whole, (zero,), Const(0.0, F32)),
            self._lanes(lambda c: Store(self.sums, (c,), Const(0.0, F32))),
            loop("part", self.split, more, LoopKind.SERIAL),
            Store(self.weight, (zero,), binary("div", Const(1.0, F32), whole)),
            self._lanes(result),
        )

    def _lanes(self, body: Callable[[Expr], Stmt]) -> Stmt:
        return loop("c", self.lanes, body, LoopKind.VECTORIZED)
