"""Make one convolution of branches that add up what they compute of the same image.

    conv(x, v) + conv(x, w)              ->  conv(x, v + w)
    conv3x3(x, w) + conv1x1(x, v)        ->  conv3x3(x, w + v at the tap in the middle)
    conv3x3(x, w) + x * s                ->  conv3x3(x, w + s there, from each channel to itself)

with constant weights; s is a number a channel. Sums and differences of more of them, constants and
factors of channels between them, are one. Networks that are trained with such branches
(RepVGG, MobileOne, FastViT) are often exported with them; their authors' tools "re-parameterise"
them before. A plain ``+ x`` or ``- x`` stays: rounded to bfloat16 with the weights it would lose
digits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from tunefarm.compiler.dtypes import is_float
from tunefarm.compiler.ir import (
    Call,
    Constant,
    Expr,
    IRModule,
    TensorType,
    children,
    post_order,
    tensor_type,
)
from tunefarm.compiler.ops import call
from tunefarm.compiler.ops.common import integers
from tunefarm.compiler.ops.conv import channels_last, pad_value, pairs
from tunefarm.compiler.structural import attrs_text
from tunefarm.compiler.target import Target
from tunefarm.compiler.transform.constants import constant
from tunefarm.compiler.transform.fold_scale_axis import factors_along
from tunefarm.compiler.transform.rewrite import (
    Uses,
    count_uses,
    is_call,
    with_args,
    with_children,
)

Array: TypeAlias = NDArray[Any]
Window: TypeAlias = tuple[slice, ...]
OIS, SIO = (0, 1), (-1, -2)  # the axes of outputs and inputs


def merge_branches(module: IRModule, target: Target) -> IRModule:
    """Branches must have one user each, the sum."""
    main = module.main
    if not any(is_call(node, "conv") for node in post_order(main.body)):
        return module
    uses = count_uses(main.body)
    sums = _whole_sums(main.body, uses)
    done: dict[Expr, Expr] = {}
    for node in post_order(main.body):
        made = with_children(node, [done[c] for c in children(node)])
        uses[made] = uses[node]
        if node in sums and isinstance(made, Call):
            made = _merged(made, uses) or made
            uses[made] = uses[node]
        done[node] = made
    return module.with_body(done[main.body])


def _whole_sums(root: Expr, uses: Uses) -> set[Expr]:
    """Sums of images that are no terms of another sum."""
    inside: set[Expr] = set()
    whole: set[Expr] = set()
    for node in reversed(post_order(root)):
        if not isinstance(node, Call):
            continue
        is_sum = is_call(node, "add", "subtract") and _is_image(node)
        if is_sum and node not in inside:
            whole.add(node)
        if is_sum or (node in inside and _scale(node) is not None):
            inside.update(c for c in node.args if uses[c] == 1 and c.type == node.type)
    return whole


@dataclass(frozen=True, slots=True)
class _Term:
    """``value`` times ``factor``, which broadcasts in the result's rank; ``product`` is the
    outermost one by a constant that the term is a part of, and what that is multiplied by."""

    value: Expr
    factor: Array
    product: tuple[Expr, Array] | None = None


@dataclass(frozen=True, slots=True)
class _Branch:
    """A convolution by constant weights; ``factors`` of its outputs, one each or one for all."""

    conv: Call
    factors: Array

    @property
    def image(self) -> Expr:
        return self.conv.args[0]

    @property
    def kernel(self) -> tuple[int, ...]:
        """The taps along each spatial dimension."""
        shape = tensor_type(self.conv.args[1]).shape
        return shape[:-2] if _outputs_last(self.conv) else shape[2:]

    @property
    def padding(self) -> tuple[int, ...]:
        """Before the image, along each spatial dimension."""
        return tuple(before for before, _ in pairs(self.conv.attrs["padding"]))

    @property
    def weights(self) -> Array:
        """(outputs, inputs of a group, taps …), in float64, times the factors"""
        stored = self.conv.args[1]
        assert isinstance(stored, Constant)
        weights = np.moveaxis(stored.data.astype(np.float64), _axes(self.conv), OIS)
        return weights * self.factors.reshape(-1, *[1] * (weights.ndim - 1))

    def window_of(self, padding: Sequence[int], kernel: Sequence[int]) -> Window | None:
        """Where a window of so many taps, with so much padding before the image, lies in this one;
        None if it reaches beyond."""
        window = []
        for own, other, dilation, k, taps in zip(
            self.padding, padding, integers(self.conv.attrs, "dilations"), self.kernel, kernel,
            strict=True,
        ):  # fmt: skip
            first, rest = divmod(own - other, dilation)
            if rest or first < 0 or first + taps > k:
                return None
            window.append(slice(first, first + taps))
        return tuple(window)


def _merged(node: Call, uses: Uses) -> Expr | None:
    """A whole sum with fewer convolutions; None if none can be left out."""
    terms = _terms(node, uses)
    kind = tensor_type(node)
    branches = {i: b for i, t in enumerate(terms) if (b := _branch(t, kind, uses)) is not None}
    taken: set[int] = set()
    made: list[Expr] = []
    for number in sorted(branches, key=lambda i: -prod(branches[i].kernel)):
        if number in taken:
            continue
        base = branches[number]
        others = [i for i in range(len(terms)) if i != number and i not in taken]
        windows = {i: _window(base, branches.get(i), terms[i]) for i in others}
        parts = {i: window for i, window in windows.items() if window is not None}
        if parts:
            taken |= {number, *parts}
            made.append(_joined(base, [(branches.get(i), terms[i], parts[i]) for i in parts]))
    return _sum(node, made, _rest(terms, taken)) if made else None


def _is_image(node: Call) -> bool:
    kind = node.type
    return isinstance(kind, TensorType) and is_float(kind.dtype) and 3 <= len(kind.shape) <= 5


# --- the terms ----------------------------------------------------------------------------------


def _terms(root: Call, uses: Uses) -> list[_Term]:
    """What a sum adds up: operands of sums, and of products by a constant, that it alone reads."""
    terms: list[_Term] = []
    stack = [_Term(root, np.ones(()))]
    while stack:
        term = stack.pop()
        node = term.value
        inside = node is root or (uses.get(node, 1) == 1 and node.type == root.type)
        if inside and isinstance(node, Call) and is_call(node, "add", "subtract"):
            first, second = node.args
            sign = 1 if node.op == "add" else -1
            stack.append(replace(term, value=second, factor=sign * term.factor))
            stack.append(replace(term, value=first))
        elif inside and isinstance(node, Call) and (scale := _scale(node)) is not None:
            product = term.product or (node, term.factor)
            stack.append(_Term(node.args[0], term.factor * scale, product))
        else:
            terms.append(term)
    return terms


def _rest(terms: Sequence[_Term], taken: set[int]) -> list[_Term]:
    """The terms that are left; a product of which none was taken is one."""
    opened = {p[0] for i in taken if (p := terms[i].product) is not None}
    rest: dict[object, _Term] = {}
    for number, term in enumerate(terms):
        if number in taken:
            continue
        if term.product is None or term.product[0] in opened:
            rest[number] = term
        else:
            rest[term.product[0]] = _Term(*term.product)
    return list(rest.values())


def _scale(node: Call) -> Array | None:
    """The second operand of a product by a number, or by as many as there may be channels, in the
    product's rank; None of another."""
    if node.op != "multiply" or not isinstance(node.args[1], Constant):
        return None
    shape, scale = tensor_type(node).shape, node.args[1].data.astype(np.float64)
    scale = scale.reshape((1,) * (len(shape) - scale.ndim) + scale.shape)
    return scale if scale.size in (1, shape[1], shape[-1]) else None


def _branch(term: _Term, kind: TensorType, uses: Uses) -> _Branch | None:
    conv = term.value
    if not isinstance(conv, Call) or conv.op != "conv" or uses.get(conv, 1) > 1:
        return None
    if conv.type != kind:
        return None  # the sum repeats it
    attrs = conv.attrs
    if not isinstance(conv.args[1], Constant) or pad_value(attrs) or attrs["out_dtype"]:
        return None
    if attrs["out_layout"] not in ("", attrs["data_layout"]):
        return None
    factors = _of_channels(term.factor, conv)
    return None if factors is None else _Branch(conv, factors)


def _outputs_last(conv: Call) -> bool:
    return conv.attrs["kernel_layout"] == "SIO"


def _axes(conv: Call) -> tuple[int, int]:
    return SIO if _outputs_last(conv) else OIS


def _of_channels(factor: Array, conv: Call) -> Array | None:
    """The factor of each output channel, or of all; None if it varies otherwise."""
    rank = len(tensor_type(conv).shape)
    return factors_along(factor, rank - 1 if channels_last(conv.attrs) else 1, rank)


# --- what becomes one ---------------------------------------------------------------------------


def _window(base: _Branch, branch: _Branch | None, term: _Term) -> Window | None:
    """The taps of ``base`` to which a term's weights are added; None if it must stay."""
    rank = len(base.kernel)
    if branch is not None:
        same = branch.image is base.image and _likeness(branch, base) == _likeness(base, base)
        return base.window_of(branch.padding, branch.kernel) if same else None
    if term.value is not base.image or bool(np.all(np.abs(term.factor) == 1)):
        return None
    shape_stays = tensor_type(base.image) == tensor_type(base.conv)
    steps = set(integers(base.conv.attrs, "strides"))
    if not shape_stays or steps != {1} or _of_channels(term.factor, base.conv) is None:
        return None
    return base.window_of([0] * rank, [1] * rank)


def _likeness(branch: _Branch, like: _Branch) -> str:
    """What branches have in common: all attributes but the padding, as text; a single tap has any
    dilation, that of ``like``."""
    own, theirs = (integers(b.conv.attrs, "dilations") for b in (branch, like))
    taps = zip(own, theirs, branch.kernel, strict=True)
    dilations = tuple(b if k == 1 else a for a, b, k in taps)
    return attrs_text({**branch.conv.attrs, "dilations": dilations, "padding": ()})


def _joined(base: _Branch, parts: Sequence[tuple[_Branch | None, _Term, Window]]) -> Call:
    """The convolution of ``base`` with the weights of others added to its own."""
    weights = base.weights
    outputs, inner = weights.shape[:2]
    channels = np.arange(outputs)
    for branch, term, window in parts:
        if branch is not None:
            weights[(slice(None), slice(None), *window)] += branch.weights
        else:  # x * s: a tap from each channel to itself
            factors = _of_channels(term.factor, base.conv)
            weights[(channels, channels % inner, *(taps.start for taps in window))] += factors
    stored = base.conv.args[1]
    assert isinstance(stored, Constant)
    whole = constant(np.moveaxis(weights, OIS, _axes(base.conv)), stored, stored.name)
    return with_args(base.conv, [base.image, whole])


def _sum(node: Call, made: Sequence[Expr], rest: Sequence[_Term]) -> Expr:
    """The convolutions, the constants as their bias, and the terms that are left."""
    value = made[0]
    for part in (*_shifts(rest, value), *made[1:]):
        value = call("add", value, part)
    for term in rest:
        if isinstance(term.value, Constant):
            continue
        op, factor = ("subtract", -term.factor) if np.all(term.factor < 0) else ("add", term.factor)
        part = term.value
        if not bool(np.all(factor == 1)):
            part = call("multiply", part, constant(factor, value))
        value = call(op, value, part)
    assert isinstance(value, Call)
    assert value.type == node.type
    return value if value is made[0] else replace(value, name=node.name)


def _shifts(rest: Sequence[_Term], like: Expr) -> list[Constant]:
    """The sum of the constants; those that would make it larger than each of them stand alone."""
    sums: list[Array] = []
    for term in rest:
        if not isinstance(term.value, Constant):
            continue
        values = term.factor * term.value.data
        for place, other in enumerate(sums):
            if (values + other).size <= max(values.size, other.size):
                sums[place] = values + other
                break
        else:
            sums.append(values)
    return [constant(values, like) for values in sums if values.any()]
