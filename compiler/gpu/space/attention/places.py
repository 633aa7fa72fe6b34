"""Which query, key and element each thread of the kernel of an attention has."""

from __future__ import annotations

from collections.abc import Callable

from tunefarm.compiler.gpu.intrinsics import QUAD
from tunefarm.compiler.gpu.mma import COLUMNS, ELEMENTS, ROWS
from tunefarm.compiler.gpu.space.attention.problem import Attention
from tunefarm.compiler.gpu.space.attention.tiles import Knobs, TileFiller
from tunefarm.compiler.gpu.space.common import loop
from tunefarm.compiler.tir.ir import Const, Expr, LoopKind, Stmt, Var, binary


class Places(TileFiller):
    """Writes what is done for the elements of a thread: registers are indexed by ``i``, which of a
    warp's groups of 16 queries, and ``element_number``."""

    def __init__(self, a: Attention, k: Knobs) -> None:
        super().__init__(a, k)
        self.block = Var("block")

    def query_of(self, i: Expr, h: Expr) -> Expr:
        """The query of a row that this thread holds."""
        warps = self.block * self.k.warps + self.warp
        return (warps * self.k.mi + i) * ROWS + h * 8 + self.lane // QUAD

    def existing_query(self, i: Expr, h: Expr) -> Expr:
        """The query of a row, or the last one: rows beyond it are computed and not stored."""
        query = self.query_of(i, h)
        exact = self.a.queries % self.k.queries == 0
        return query if exact else binary("min", query, Const(self.a.queries - 1))

    def pair_of(self, n: Expr) -> Expr:
        """Half the column at which a thread's two elements of a row of a tile begin."""
        return n * (COLUMNS // 2) + self.lane % QUAD

    def pair_of_keys(self, n: Expr) -> Expr:
        """Half the key at which a thread's two elements of a row of scores begin."""
        return self.number * (self.k.keys // 2) + self.pair_of(n)

    def existing_key(self, n: Expr, c: Expr) -> Expr:
        """The key of an element of the scores; beyond the last key that one, or its pair."""
        a, pair = self.a, self.pair_of_keys(n)
        if self.exact:
            return pair * 2 + c
        if a.has_pairs[1]:
            return binary("min", pair, Const((a.keys - 1) // 2)) * 2 + c
        return binary("min", pair * 2 + c, Const(a.keys - 1))

    def each_row(self, body: Callable[[Expr, Expr], Stmt]) -> Stmt:
        """The rows of this thread, ``i`` and ``h``."""
        return loop("i", self.k.mi, lambda i: loop("h", 2, lambda h: body(i, h)))

    def each_element(
        self,
        columns: int,
        body: Callable[[Expr, Expr, Expr, Expr], Stmt],
        together: bool = True,
    ) -> Stmt:
        """The elements of this thread, ``i``, ``h``, ``n`` and ``c``: pairs are lanes, if they can
        be taken ``together``."""
        kind = LoopKind.VECTORIZED if together else LoopKind.UNROLLED
        return self.each_row(
            lambda i, h: loop(
                "n", columns // COLUMNS, lambda n: loop("c", 2, lambda c: body(i, h, n, c), kind)
            )
        )

    def each_result(self, columns: int, body: Callable[[Expr, Expr, Expr], Stmt]) -> Stmt:
        """The elements of this thread as two instructions side by side compute them: ``i``, ``n``
        (of 16 columns) and ``e`` of eight."""
        lanes = 2 * ELEMENTS
        return loop(
            "n",
            columns // (2 * COLUMNS),
            lambda n: loop(
                "i",
                self.k.mi,
                lambda i: loop("e", lanes, lambda e: body(i, n, e), LoopKind.VECTORIZED),
            ),
        )


def element_number(n: Expr, h: Expr, c: Expr) -> Expr:
    """Which of a thread's elements is column ``c`` of row ``h`` of tile ``n``."""
    return n * ELEMENTS + h * 2 + c
