"""Regions: the part of a buffer that the loops inside another one touch, and loops over it."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import replace
from types import MappingProxyType
from typing import TypeAlias

from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.tir.affine import Affine, Key, Ranges, affine, interval, key_of
from tunefarm.compiler.tir.facts import variables
from tunefarm.compiler.tir.ir import (
    Binary,
    Block,
    Buffer,
    Const,
    Expr,
    For,
    Load,
    Stmt,
    Store,
    Var,
    binary,
)
from tunefarm.compiler.tir.schedule.tree import loop_ranges, plain_indices, store_of
from tunefarm.compiler.tir.transform.simplify import simplify_expr
from tunefarm.compiler.tir.visit import substitute

Region: TypeAlias = list[tuple[Expr, int]]
Accesses: TypeAlias = Sequence[tuple[Block, Sequence[Load | Store]]]


def region_of(
    loop: For,
    buffer: Buffer,
    accesses: Accesses,
    written: bool = False,
    threads: Ranges = MappingProxyType({}),
    around: Ranges = MappingProxyType({}),
) -> Region:
    """(base, extent) of each dimension of ``buffer`` touched inside ``loop``'s body, where the
    loops ``around`` it have one value each.

    What is read may be less than the region, but not what is ``written``: ScheduleError if that is
    not known. The variables of ``threads`` take all their values too.
    """
    ranges = loop_ranges(loop.body) | dict(threads)
    region: Region = []
    for dim, size in enumerate(buffer.shape):
        spans = _spans(dim, accesses, ranges, around)
        base, extent = spans[0]
        offsets = [affine(b) - affine(base) for b, _ in spans]
        if any(o.terms for o in offsets):
            if written:
                raise ScheduleError(
                    f"{buffer.name} is written in parts by the loops inside {loop.var.name}"
                )
            region.append((Const(0), size))
            continue
        low = min(o.const for o in offsets)
        extent = max(o.const + e for o, (_, e) in zip(offsets, spans, strict=True)) - low
        base = base + low
        whole = extent >= size and (not written or isinstance(base, Const))
        region.append((Const(0), size) if whole else (base, extent))
    return region


def _spans(dim: int, accesses: Accesses, ranges: Ranges, around: Ranges) -> Region:
    """(base, extent) of each index of a dimension, equal ones once."""
    known = dict(around) | dict(ranges)
    spans: dict[tuple[Block, Key], tuple[Expr, int]] = {}
    for block, touches in accesses:
        values = dict(zip((i.var for i in block.iters), block.bindings, strict=True))
        for touch in touches:
            key = (block, key_of(touch.indices[dim]))
            if key not in spans:
                index = simplify_expr(substitute(touch.indices[dim], values), known)
                spans[key] = relax(index, ranges)
    return list(spans.values())


def relax(expr: Expr, ranges: Ranges) -> tuple[Expr, int]:
    """(base, extent) of an index when the variables in ``ranges`` take all their values."""
    form, moving = _parted(affine(expr), ranges.keys()), ranges.keys()
    outer: dict[Key, tuple[int, Expr]] = {}
    low = high = 0
    for key, (coefficient, atom) in form.terms.items():
        if variables(atom).isdisjoint(moving):
            outer[key] = (coefficient, atom)
            continue
        a, b = interval(atom, ranges)
        low += coefficient * (a if coefficient > 0 else b)
        high += coefficient * (b if coefficient > 0 else a)
    return Affine(form.const + low, outer).expr(), high - low + 1


def _parted(form: Affine, moving: Set[Var]) -> Affine:
    """``(6·i + j) // 3`` as ``2·i + j // 3`` where j alone moves."""
    for key, (coefficient, atom) in form.terms.items():
        fixed = variables(atom) - moving
        if not fixed or fixed == variables(atom):
            continue
        match atom:
            case Binary(op="floordiv", a=a, b=Const(value=divisor)) if divisor > 0:
                inner = affine(a)
                whole = {
                    k: (c // int(divisor), e)
                    for k, (c, e) in inner.terms.items()
                    if c % divisor == 0
                }
                if not whole:
                    continue
                rest = {k: t for k, t in inner.terms.items() if k not in whole}
                part = affine(Affine(inner.const, rest).expr() // int(divisor))
                others = {k: t for k, t in form.terms.items() if k != key}
                part = (Affine(0, whole) + part).scaled(coefficient)
                return _parted(Affine(form.const, others) + part, moving)
    return form


def loops_over_region(node: Block, region: Region, by_iter: bool = False) -> Stmt:
    """A block again, its iterators running over a region of its buffer (or of its iterators)."""
    if by_iter:
        spans = {i.var: r for i, r in zip(node.iters, region, strict=True)}
    else:
        formals = plain_indices(store_of(node), node.name)
        spans = dict(zip(formals, region, strict=True))
    loops: list[tuple[Var, int]] = []
    bindings: list[Expr] = []
    predicate: Expr = Const(True, "bool")
    for axis in node.iters:
        base, extent = spans.get(axis.var, (Const(0), axis.extent))
        var = Var(axis.var.name)
        value = base + var if extent > 1 else base
        if extent > 1:
            loops.append((var, extent))
        if isinstance(base, Const):
            safe = int(base.value) >= 0 and int(base.value) + extent <= axis.extent
        else:
            safe = False
        if not safe:
            predicate = binary("and", predicate, value < axis.extent)
            if affine(base).const < 0:
                predicate = binary("and", predicate, value >= 0)
        bindings.append(value)
    keep = None if isinstance(predicate, Const) else predicate
    stmt: Stmt = replace(node, bindings=tuple(bindings), predicate=keep)
    for var, extent in reversed(loops):
        stmt = For(var, Const(extent), stmt)
    return stmt
