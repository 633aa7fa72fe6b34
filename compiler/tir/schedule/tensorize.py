"""The primitive that makes one instruction of a small loop nest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NoReturn

from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.tir.affine import Affine, affine, conjunction, conjuncts, decide
from tunefarm.compiler.tir.facts import variables
from tunefarm.compiler.tir.ir import (
    Binary,
    Block,
    Cast,
    Const,
    Expr,
    For,
    Intrinsic,
    IterVar,
    Load,
    LoopKind,
    PrimFunc,
    Store,
    Var,
)
from tunefarm.compiler.tir.schedule.tree import (
    constant_extent,
    find_loop,
    loop_ranges,
    replace_stmt,
    store_of,
)
from tunefarm.compiler.tir.tensor_intrinsics import TensorIntrinsic, find_tensor_intrinsic
from tunefarm.compiler.tir.transform.simplify import simplify_expr
from tunefarm.compiler.tir.visit import substitute


def tensorize(program: PrimFunc, loop: Var, intrinsic: str) -> PrimFunc:
    """Compute two loops, of the lanes and of the terms, by an instruction that has a name.

    for l in 16: for q in 4: C[l] = C[l] + int32(A[4·k + q]) · int32(B[k, l, q])
    ->  for l in vectorized(16): C[l] = x86.vpdpbusd.512(C[l], A[4·k], …, B[k, l, 0], …)

    A matrix unit's takes tiles: ``tile`` makes the loops over rows and groups its own afterwards.

    ``loop`` is the outer of the two. A must not depend on the lanes and have its terms side by
    side, and so must B, lane after lane (``transform_layout`` or ``cache_read`` make such tiles). A
    turned instruction's B may be bits of such bytes, shifted and masked alike in all lanes.
    Split the loops without a remainder first. ScheduleError says what does not match.
    """
    return _Match(program, loop, find_tensor_intrinsic(intrinsic)).rewritten()


class _Match:
    """A nest of two loops around one block, compared with what an instruction computes."""

    def __init__(self, program: PrimFunc, loop: Var, intrinsic: TensorIntrinsic) -> None:
        self.program, self.intrinsic = program, intrinsic
        self.nest = find_loop(program, loop)
        inner = self.nest.body
        if not isinstance(inner, For) or not isinstance(inner.body, Block):
            self.fail(f"loop {loop.name} holds no second loop around a block alone")
        self.block = inner.body
        self.ranges = loop_ranges(program.body)
        self.values = dict(zip((i.var for i in self.block.iters), self.block.bindings, strict=True))
        self.store = store_of(self.block)
        self.lanes, self.terms = self.told_apart(self.nest, inner)

    def fail(self, what: str) -> NoReturn:
        raise ScheduleError(f"{self.intrinsic.name} ({self.intrinsic}) does not match: {what}")

    def told_apart(self, a: For, b: For) -> tuple[Var, Var]:
        """The loop that the sum runs along, and the one that it runs over."""
        t = self.intrinsic
        place = self.place(Load(self.store.buffer, self.store.indices))
        lanes, terms = (a, b) if place.coefficient(a.var) else (b, a)
        for loop, count, what in ((lanes, t.lanes, "lanes"), (terms, t.terms, "terms")):
            if constant_extent(loop) != count:
                self.fail(
                    f"loop {loop.var.name} runs {constant_extent(loop)} times, and it has "
                    f"{count} {what}"
                )
        return lanes.var, terms.var

    def place(self, load: Load) -> Affine:
        """Where a load stands in its buffer's memory, in terms of the loops."""
        flat: Expr = Const(0)
        row = load.buffer.shape[-1] + load.buffer.padding if load.buffer.shape else 1
        extents = (*load.buffer.shape[:-1], row)
        for index, extent in zip(load.indices, extents, strict=True):
            flat = flat * extent + simplify_expr(substitute(index, self.values), self.ranges)
        return affine(flat)

    def rewritten(self) -> PrimFunc:
        accumulator, a, b = self.operands()
        self.check_place(accumulator, "the sum", lanes=1, terms=0)
        self.check_place(a, f"{a.buffer.name}", lanes=0, terms=1)
        element = self.element_of(b)
        self.check_place(element, f"{element.buffer.name}", lanes=self.intrinsic.terms, terms=1)
        iters, bindings, old, new = self.divided()
        args: list[Expr] = [accumulator]
        for factor in (a, b):
            for term in range(self.intrinsic.terms):
                args.append(_at(factor, {old: new * self.intrinsic.terms + term}, iters))
        value = Intrinsic(self.intrinsic.name, tuple(args), self.intrinsic.accumulator)
        block = replace(
            self.block,
            iters=iters,
            bindings=bindings,
            body=Store(self.store.buffer, self.store.indices, value),
            predicate=self.predicate(),
        )
        kind = LoopKind.TILED if self.intrinsic.rows else LoopKind.VECTORIZED
        loop = For(self.lanes, Const(self.intrinsic.lanes), block, kind)
        return replace_stmt(self.program, self.nest, loop)

    def operands(self) -> tuple[Load, Load, Expr]:
        """The accumulator and the factors of ``acc + cast(a) · cast(b)``, in any order."""
        t, value = self.intrinsic, self.store.value
        shape = f"block {self.block.name} is no sum of products"
        if not isinstance(value, Binary) or value.op != "add":
            self.fail(shape)
        for total, product in ((value.a, value.b), (value.b, value.a)):
            if not isinstance(total, Load) or total.buffer is not self.store.buffer:
                continue
            if not isinstance(product, Binary) or product.op != "mul":
                continue
            x, y = (f.value if isinstance(f, Cast) else f for f in (product.a, product.b))
            if (y.dtype, x.dtype) == (t.a, t.b) and not self.is_shared(x):
                x, y = y, x
            self.element_of(y)
            if not isinstance(x, Load):
                self.fail(f"a factor of block {self.block.name} is no plain element")
            if (x.dtype, y.dtype) == (t.a, t.b):
                return total, x, y
            self.fail(f"block {self.block.name} multiplies {x.dtype} by {y.dtype}")
        self.fail(shape)

    def is_shared(self, factor: Expr) -> bool:
        """Whether all lanes read the same element."""
        return isinstance(factor, Load) and not self.place(factor).coefficient(self.lanes)

    def element_of(self, factor: Expr) -> Load:
        """The element that a factor is, or of which it is some bits."""
        bits = factor
        while self.intrinsic.turned and isinstance(bits, Binary) and bits.op in ("shr", "bitand"):
            counted = variables(substitute(bits.b, self.values))
            if not counted.isdisjoint((self.lanes, self.terms)):
                break
            bits = bits.a
        if not isinstance(bits, Load):
            self.fail(f"a factor of block {self.block.name} is no plain element")
        return bits

    def check_place(self, load: Load, what: str, lanes: int, terms: int) -> None:
        t = self.intrinsic
        dtype = t.accumulator if what == "the sum" else load.dtype
        if load.dtype != dtype:
            self.fail(f"the sum is {load.dtype}")
        place = self.place(load)
        found = place.coefficient(self.lanes), place.coefficient(self.terms)
        opaque = [e for _, e in place.terms.values() if not isinstance(e, Var)]
        inside = {self.lanes, self.terms}
        if found != (lanes, terms) or any(inside & affine(e).variables() for e in opaque):
            self.fail(
                f"{what} moves by {found[0]} elements a lane and {found[1]} a term, "
                f"expected {lanes} and {terms}"
            )

    def divided(self) -> tuple[tuple[IterVar, ...], tuple[Expr, ...], Var, Var]:
        """The iterators with the summed one counted in whole instructions: it, and the new one."""
        t = self.intrinsic
        found = [
            n
            for n, binding in enumerate(self.block.bindings)
            if affine(binding).coefficient(self.terms)
        ]
        axis = self.block.iters[found[0]] if len(found) == 1 else None
        if axis is None or axis.kind != "reduce":
            self.fail(f"loop {self.terms.name} is not the inner part of one summed iterator")
        form = affine(self.block.bindings[found[0]]) - affine(self.terms)
        if axis.extent % t.terms or form.const % t.terms:
            self.fail(f"{axis.var.name} has {axis.extent} terms, which {t.terms} do not divide")
        if any(c % t.terms for c, _ in form.terms.values()):
            self.fail(f"iterator {axis.var.name} is not split by {t.terms}")
        var = Var(axis.var.name)
        whole = {k: (c // t.terms, e) for k, (c, e) in form.terms.items()}
        iters, bindings = list(self.block.iters), list(self.block.bindings)
        iters[found[0]] = IterVar(var, axis.extent // t.terms, "reduce")
        bindings[found[0]] = Affine(form.const // t.terms, whole).expr()
        return tuple(iters), tuple(bindings), axis.var, var

    def predicate(self) -> Expr | None:
        """What is left of the block's condition; it must not cut through lanes or terms."""
        if self.block.predicate is None:
            return None
        parts = conjuncts(simplify_expr(self.block.predicate, self.ranges))
        parts = [p for p in parts if not decide(p, self.ranges)]
        inside = {self.lanes, self.terms}
        for part in parts:
            if inside & affine(part).variables():
                self.fail(
                    f"block {self.block.name} has a remainder along "
                    f"{self.lanes.name} or {self.terms.name}; split where the factor divides"
                )
        return conjunction(parts) if parts else None


def _at(factor: Expr, values: dict[Var, Expr], iters: Sequence[IterVar]) -> Expr:
    """A factor with an iterator replaced, its indices simplified."""
    ranges = {i.var: (0, i.extent - 1) for i in iters}
    return simplify_expr(substitute(factor, values), ranges)
