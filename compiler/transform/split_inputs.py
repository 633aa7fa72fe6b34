"""Convolutions of many inputs as sums of ones of some of them, where Winograd's method then pays.

conv(x, w)             ->  conv(x[…, :256], w[…, :256, :]) + conv(x[…, 256:], w[…, 256:, :])
conv(concat(a, b), w)  ->  conv(a, …) + conv(b, …)                    where parts end as a does

A block of that method holds the transformed tiles of all inputs in the second cache. Of many inputs
it has room for few tiles, by which each weight that it fetches is multiplied, or for none. Each sum
but the first is added to the one before in its kernel's epilogue; these and the copies of the parts
are in the model that decides, which knows one core.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import TypeGuard

from tunefarm.compiler.ir import Call, Constant, Expr, IRModule, children, tensor_type
from tunefarm.compiler.ops import call
from tunefarm.compiler.ops.common import integer, normalize_axis
from tunefarm.compiler.ops.conv import result_channels_last
from tunefarm.compiler.space.estimate import cycles_on_one_core
from tunefarm.compiler.space.winograd.parts import equal_parts, part_counts
from tunefarm.compiler.target import Target
from tunefarm.compiler.transform.constants import constant
from tunefarm.compiler.transform.outline import alone
from tunefarm.compiler.transform.rewrite import Uses, is_call, rewrite_main

WORTH = 1.1  # times fewer cycles in the model
_COPY_CYCLES = 0.5  # an element copied, as in ``split_dilation``
_SUM_CYCLES = 1.0  # an element of a sum stored and read again


def split_inputs(module: IRModule, target: Target) -> IRModule:
    """Runs on channels-last graphs, when the precision of each product is known."""
    if target.kind != "llvm" or target.strict:
        return module
    return rewrite_main(module, [lambda node, uses: _split(node, uses, target)])


def least_cycles(node: Call, target: Target) -> float | None:
    """Cycles of a convolution, or of its parts where it splits; None where no model knows them."""
    return _best(node, {}, target)[0]


def _split(node: Call, uses: Uses, target: Target) -> Expr | None:
    count = _best(node, uses, target)[1] if _fits(node) else 1
    return _sum_of_parts(node, count) if count > 1 else None


def _best(node: Call, uses: Uses, target: Target) -> tuple[float | None, int]:
    """Cycles of a convolution, and into how many parts it splits."""
    whole = alone(node, ("float32",) * 2, node.attrs)
    together = cycles_on_one_core(whole, target)
    if together is None:
        return None, 1
    limit, found = together / WORTH, 1
    for count, part in equal_parts(whole).items():
        each = cycles_on_one_core(part, target)
        if each is None:
            continue
        cycles = count * each + _cycles_between(node, count, uses)
        if cycles < limit:
            limit, found = cycles, count
    return limit if found > 1 else together, found


def _fits(node: Call) -> bool:
    """True for float32 convolutions of constant weights, channels last, of enough inputs."""
    if not part_counts(node):
        return False
    attrs, (x, weight) = node.attrs, node.args
    return (
        isinstance(weight, Constant)
        and attrs["data_layout"] == "NSC"
        and result_channels_last(attrs)
        and tensor_type(x).dtype == tensor_type(node).dtype == "float32"
        and bool(tensor_type(node).size)
    )


def _sum_of_parts(node: Call, count: int) -> Expr:
    x, weight = node.args
    assert isinstance(weight, Constant)
    total: Expr | None = None
    for first, behind in _ranges(x, count):
        weights = constant(weight.data[..., first:behind, :], weight, weight.name)
        data = _channels(x, first, behind)
        part = call("conv", data, weights, name=node.name, **node.attrs)
        total = part if total is None else call("add", part, total)
    assert total is not None
    return total


def _ranges(x: Expr, count: int) -> Iterator[tuple[int, int]]:
    """First channels of equal parts, and those behind them."""
    inputs = tensor_type(x).shape[-1]
    return pairwise(range(0, inputs + 1, inputs // count))


def _channels(x: Expr, first: int, behind: int) -> Expr:
    """Some of the channels, from the part of a concatenation that has all of them."""
    begin, shape = 0, tensor_type(x).shape
    if _joins_channels(x):
        for part in x.args:
            end = begin + tensor_type(part).shape[-1]
            if begin <= first and behind <= end:
                return _channels(part, first - begin, behind - begin)
            begin = end
    if (first, behind) == (0, shape[-1]):
        return x
    at = (0,) * (len(shape) - 1)
    size = (*shape[:-1], behind - first)
    return call("slice", x, begin=(*at, first), size=size, strides=(1,) * len(shape))


def _joins_channels(x: Expr) -> TypeGuard[Call]:
    if not isinstance(x, Call) or x.op != "concat":
        return False
    rank = len(tensor_type(x).shape)
    return normalize_axis(integer(x.attrs, "axis"), rank) == rank - 1


def _cycles_between(node: Call, count: int, uses: Uses) -> float:
    """Of the parts' copies and their sums; a concatenation that nobody needs any more is saved."""
    x = node.args[0]
    copies = [c for c in (_channels(x, *r) for r in _ranges(x, count)) if is_call(c, "slice")]
    copied = sum(tensor_type(c).size for c in copies)
    if _joins_channels(x) and uses.get(x, 1) == 1 and all(x not in children(c) for c in copies):
        copied -= tensor_type(x).size
    summed = (count - 1) * tensor_type(node).size
    return _COPY_CYCLES * copied + _SUM_CYCLES * summed
