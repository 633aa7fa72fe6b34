"""Convolutions of many inputs as sums of ones of some of them, where Winograd's method then pays.

conv(x, w)             ->  conv(x[…, :256], w[…, :256, :]) + conv(x[…, 256:], w[…, 256:, :])
conv(concat(a, b), w)  ->  conv(a, …) + conv(b, …)                    where parts end as a does

A block of that method holds the transformed tiles of all inputs in the second cache. Of many inputs
it has room for few tiles, by which each weight that it fetches is multiplied, or for none. Each sum
but the first is added to the one before in its kernel's epilogue; these and the copies of the parts
are in the model that decides, which knows one core.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TypeGuard

from tunefarm.compiler.ir import Call, Constant, Expr, IRModule, tensor_type
from tunefarm.compiler.ops import call
from tunefarm.compiler.ops.common import integer, normalize_axis
from tunefarm.compiler.ops.conv import result_channels_last
from tunefarm.compiler.space.estimate import cycles_on_one_core
from tunefarm.compiler.space.winograd.transforms import ROW_TILES
from tunefarm.compiler.target import Target
from tunefarm.compiler.transform.constants import constant
from tunefarm.compiler.transform.outline import alone
from tunefarm.compiler.transform.rewrite import Uses, is_call, rewrite_main

WORTH = 1.1  # times fewer cycles in the model
LEAST, MOST = 160, 320  # inputs of a part: of fewer, sums are added more often than tiles gain
TRIED = 2  # numbers of parts, from the fewest on
_STEP = 16  # inputs of a line of the cache
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
    parts = _best(node, uses, target)[1] if _fits(node) else []
    return _sum(parts) if parts else None


def _best(node: Call, uses: Uses, target: Target) -> tuple[float | None, list[Call]]:
    """Cycles of a convolution, and the parts that it splits into; none where it stays whole."""
    together = _cycles(node, target)
    if together is None:
        return None, []
    limit, found = together / WORTH, []
    for count in _counts(node):
        parts = _parts(node, count)
        cycles = _cycles_of(node, parts, uses, target)
        if cycles is not None and cycles < limit:
            limit, found = cycles, parts
    return limit if found else together, found


def _fits(node: Call) -> bool:
    """True for convolutions of constant weights, of as many taps as Winograd's method knows."""
    if node.op != "conv":
        return False
    attrs, (x, weight) = node.attrs, node.args
    return (
        isinstance(weight, Constant)
        and (attrs["data_layout"], attrs["kernel_layout"]) == ("NSC", "SIO")
        and result_channels_last(attrs)
        and len(weight.data.shape) in (4, 5)
        and max(weight.data.shape[:-2]) in ROW_TILES
        and tensor_type(x).dtype == tensor_type(node).dtype == "float32"
        and attrs["groups"] == 1
        and bool(tensor_type(node).size)
    )


def _counts(node: Call) -> Sequence[int]:
    """Into how many equal parts the inputs are split, the fewest first. Those of a volume are the
    inputs of all frames that a result reads."""
    *taps, inputs, _ = tensor_type(node.args[1]).shape
    terms = inputs * (taps[0] if len(taps) == 3 else 1)
    counts = range(-(-terms // MOST), terms // LEAST + 1)
    return [n for n in counts if n > 1 and inputs % (n * _STEP) == 0][:TRIED]


def _parts(node: Call, count: int) -> list[Call]:
    """The convolutions of equal parts of the inputs."""
    x, weight = node.args
    assert isinstance(weight, Constant)
    inputs = tensor_type(x).shape[-1]
    parts = []
    for first, behind in pairwise(range(0, inputs + 1, inputs // count)):
        weights = constant(weight.data[..., first:behind, :], weight, weight.name)
        data = _channels(x, first, behind)
        parts.append(call("conv", data, weights, name=node.name, **node.attrs))
    return parts


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
    if not is_call(x, "concat"):
        return False
    rank = len(tensor_type(x).shape)
    return normalize_axis(integer(x.attrs, "axis"), rank) == rank - 1


def _cycles_of(node: Call, parts: Sequence[Call], uses: Uses, target: Target) -> float | None:
    """Of all parts, their copies and their sums; a concatenation that nobody needs is saved."""
    each = _cycles(parts[0], target)
    if each is None:
        return None
    x, copies = node.args[0], [p.args[0] for p in parts if is_call(p.args[0], "slice")]
    copied = sum(tensor_type(c).size for c in copies)
    if _joins_channels(x) and uses.get(x, 1) == 1 and all(c.args[0] is not x for c in copies):
        copied -= tensor_type(x).size
    summed = (len(parts) - 1) * tensor_type(node).size
    return len(parts) * each + _COPY_CYCLES * copied + _SUM_CYCLES * summed


def _cycles(node: Call, target: Target) -> float | None:
    return cycles_on_one_core(alone(node, ("float32",) * 2, node.attrs), target)


def _sum(parts: Sequence[Call]) -> Expr:
    total: Expr = parts[0]
    for part in parts[1:]:
        total = call("add", part, total)
    return total
