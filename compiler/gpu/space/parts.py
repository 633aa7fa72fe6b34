"""Products whose terms are shared out over blocks: the kernel that adds what each came to.

parts[s, b, m, n] = Σ_k of part s        the product's kernel, whole tiles, float32
C[b, m, n] = Σ_s parts[s, b, m, n]       another, a thread a vector of elements
out[…]     = epilogue(C[b, m, n])
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from tunefarm.compiler.gpu.space.elements import spread
from tunefarm.compiler.gpu.space.product import Product, Tiles, product_program
from tunefarm.compiler.space.config import Config
from tunefarm.compiler.target import Target
from tunefarm.compiler.tir import PrimFunc
from tunefarm.compiler.tir import schedule as s
from tunefarm.compiler.tir.ir import Block, Buffer, Const, IterVar, Load, Store, Var
from tunefarm.compiler.tir.schedule.tree import blocks, find_block, nest_around, replace_stmt
from tunefarm.compiler.tir.visit import seq

COMBINING: Config = {"vec": 4, "threads": 128, "each": 1, "taps": 1}


@dataclass(frozen=True)
class Parts:
    """The sums of ``split`` parts of a product's terms, in tiles of rows and columns."""

    p: Product
    split: int
    tile: tuple[int, int]

    @cached_property
    def buffer(self) -> Buffer:
        rows, columns = self.tile
        p = self.p
        whole = -(-p.rows // rows) * rows, -(-p.columns // columns) * columns
        return Buffer("parts", (self.split, p.batch, *whole), p.sum_dtype)

    def followed(self, program: PrimFunc, target: Target) -> PrimFunc:
        """A program that stores the parts, and behind it the kernel that makes results of them."""
        for node in blocks(program.body):
            if node.name == "out":
                program = replace_stmt(program, node, replace(node, name="part"))
        combined = self._combined(program.params, target)
        body = seq(program.body, combined.body)
        return replace(program, body=body, buffers=(*program.buffers, *combined.buffers))

    def _combined(self, params: Sequence[Buffer], target: Target) -> PrimFunc:
        source = product_program(self.p, Tiles(1, 1, 1, 1, 1, 1), params)
        out = find_block(source, "out")
        total = next(b for b in source.buffers if b.name == "C")
        part = IterVar(Var("s"), self.split, "reduce")
        axes = [IterVar(Var(n), extent) for n, extent in zip("bmn", total.shape, strict=True)]
        at = tuple(axis.var for axis in axes)
        more = Store(total, at, Load(total, at) + Load(self.buffer, (part.var, *at)))
        zero = Const(0.0 if "float" in total.dtype else 0, total.dtype)
        whole = Block("whole", (*axes, part), (), more, Store(total, at, zero))
        body = seq(nest_around(whole), nest_around(out))
        program = replace(source, body=body, buffers=(self.buffer, total))
        program = s.set_scope(program, "whole", "register")
        return spread(program, find_block(program, "whole"), target, COMBINING, "out")
