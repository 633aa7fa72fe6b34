"""Convolutions of many inputs as sums of ones of some of them, by Winograd's method, where it pays.

conv(x, w)             ->  conv(x[…, :256], w[…, :256, :]) + conv(x[…, 256:], w[…, 256:, :])
conv(concat(a, b), w)  ->  conv(a, …) + conv(b, …)                    where parts end as a does

A block of that method holds the transformed tiles of all inputs in the second cache. Of many inputs
it has room for few tiles, by which each weight that it fetches is multiplied, or for none. Each sum
but the first is added to the one before in its kernel's epilogue; these and the copies of the parts
are in the model that decides, which knows one core.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TypeGuard

from tunefarm.compiler.ir import Call, Constant, Expr, IRModule, tensor_type
from tunefarm.compiler.ops import call
from tunefarm.compiler.ops.common import integer, normalize_axis
from tunefarm.compiler.ops.conv import result_channels_last
from tunefarm.compiler.space.estimate import cycles_on_one_core
from tunefarm.compiler.space.winograd.parts import equal_parts, part_counts
from tunefarm.compiler.target import Target
from tunefarm.compiler.transform.constants import constant
from tunefarm.compiler.transform.outline import alone
from tunefarm.compiler.transform.rewrite import Uses, rewrite_main

WORTH = 1.1  # times fewer cycles in the model
COPY_CYCLES = 0.5  # an element copied: 0.35 on Zen 4, of images in the second cache
SUM_CYCLES = 1.0  # an element of a sum stored and read again
METHODS = ("winograd", "winograd_1d", "winograd_online")


def split_inputs(module: IRModule, target: Target) -> IRModule:
    """Runs on channels-last graphs, when the precision of each product is known."""
    if target.kind != "llvm" or target.strict:
        return module
    return rewrite_main(module, [_Splitter(target).split])


def least_cycles(node: Call, target: Target) -> float | None:
    """Cycles of a convolution, or of its parts where it splits; None where no model knows them."""
    return _best(node, _cycles_between(node, {}), target)[0]


@dataclass(slots=True)
class _Splitter:
    """Splits convolutions, which share the parts of what they read, and of their weights."""

    target: Target
    counts: dict[Hashable, int] = field(default_factory=dict)
    channels: dict[tuple[Expr, int, int], Expr] = field(default_factory=dict)
    weights: dict[tuple[Constant, int, int], Constant] = field(default_factory=dict)

    def split(self, node: Call, uses: Uses) -> Expr | None:
        if not _fits(node):
            return None
        between = _cycles_between(node, uses)
        key = (*(a.type for a in node.args), tuple(sorted(node.attrs.items())), *between.values())
        if key not in self.counts:
            self.counts[key] = _best(node, between, self.target)[1]
        count = self.counts[key]
        return self._sum_of_parts(node, count) if count > 1 else None

    def _sum_of_parts(self, node: Call, count: int) -> Expr:
        x, weight = node.args
        assert isinstance(weight, Constant)
        total: Expr | None = None
        for first, behind in _ranges(x, count):
            operands = self._channels(x, first, behind), self._weights(weight, first, behind)
            part = call("conv", *operands, name=node.name, **node.attrs)
            total = part if total is None else call("add", part, total)
        assert total is not None
        return total

    def _channels(self, x: Expr, first: int, behind: int) -> Expr:
        whole, first, behind = place = _part_with(x, first, behind)
        *pixels, channels = tensor_type(whole).shape
        if (first, behind) == (0, channels):
            return whole
        if place not in self.channels:
            begin, size = (*(0 for _ in pixels), first), (*pixels, behind - first)
            strides = (1,) * len(size)
            self.channels[place] = call("slice", whole, begin=begin, size=size, strides=strides)
        return self.channels[place]

    def _weights(self, weight: Constant, first: int, behind: int) -> Constant:
        place = weight, first, behind
        if place not in self.weights:
            values = weight.data[..., first:behind, :]
            self.weights[place] = constant(values, weight, weight.name)
        return self.weights[place]


def _fits(node: Call) -> bool:
    """True for float32 convolutions of constant weights, channels last, of enough inputs."""
    if not part_counts(node):
        return False
    x, weight = node.args
    return (
        isinstance(weight, Constant)
        and result_channels_last(node.attrs)
        and tensor_type(x).dtype == tensor_type(node).dtype == "float32"
        and bool(tensor_type(node).size)
    )


def _best(node: Call, between: Mapping[int, float], target: Target) -> tuple[float | None, int]:
    """Cycles of a convolution, and into how many parts it splits, which cost so many ``between``
    them."""
    whole = alone(node, ("float32",) * 2, node.attrs)
    together = cycles_on_one_core(whole, target)
    if together is None:
        return None, 1
    limit, found = together / WORTH, 1
    for count, part in equal_parts(whole).items():
        each = cycles_on_one_core(part, target, METHODS)
        if each is not None and count * each + between[count] < limit:
            limit, found = count * each + between[count], count
    return limit if found > 1 else together, found


def _cycles_between(node: Call, uses: Uses) -> dict[int, float]:
    """Of the copies and the sums, by the number of parts; a concatenation that nobody needs any
    more is saved."""
    x, result = node.args[0], tensor_type(node).size
    cycles = {}
    for count in part_counts(node):
        places = [_part_with(x, *r) for r in _ranges(x, count)]
        copied = sum(
            tensor_type(whole).size // tensor_type(whole).shape[-1] * (behind - first)
            for whole, first, behind in places
            if behind - first < tensor_type(whole).shape[-1]
        )
        if uses.get(x, 1) == 1 and all(whole is not x for whole, _, _ in places):
            copied -= tensor_type(x).size
        cycles[count] = COPY_CYCLES * copied + SUM_CYCLES * (count - 1) * result
    return cycles


def _ranges(x: Expr, count: int) -> Iterator[tuple[int, int]]:
    """First channels of equal parts, and those behind them."""
    inputs = tensor_type(x).shape[-1]
    return pairwise(range(0, inputs + 1, inputs // count))


def _part_with(x: Expr, first: int, behind: int) -> tuple[Expr, int, int]:
    """What has some of the channels, and which of its own they are: the part of a concatenation
    that has all of them, or ``x``."""
    begin = 0
    for part in x.args if _joins_channels(x) else ():
        end = begin + tensor_type(part).shape[-1]
        if begin <= first and behind <= end:
            return _part_with(part, first - begin, behind - begin)
        begin = end
    return x, first, behind


def _joins_channels(x: Expr) -> TypeGuard[Call]:
    if not isinstance(x, Call) or x.op != "concat":
        return False
    rank = len(tensor_type(x).shape)
    return normalize_axis(integer(x.attrs, "axis"), rank) == rank - 1
