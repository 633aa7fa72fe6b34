"""Which groups of ``fuse_ops`` become one kernel though each has a contraction of its own.

    clip(conv1x1(x))  ->  clip(conv3x3 depthwise)  ->  conv1x1 + x      one function, if it pays

The tensors in between never leave a core then (``space/inverted_residual``). A network's first
convolution begins such a chain as a 1 × 1 one does. The tensors must have no other reader, and a
model of both ways decides; without a saving the groups stay apart.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tunefarm.compiler.ir import Call, Expr, Function
from tunefarm.compiler.space import inverted_residual
from tunefarm.compiler.space.inverted_residual import (
    is_depthwise,
    is_expansion,
    is_pointwise,
)
from tunefarm.compiler.target import Target

Group = Sequence[Call]


def joined_convolutions(
    groups: Sequence[Group],
    users: Mapping[Expr, Sequence[Expr]],
    outlined: Callable[[Group], Function],
    target: Target,
) -> list[list[Group]]:
    """Chains of groups to merge, in graph order; no group is in two of them.

    The last member of a group is what leaves it, ``outlined`` gives groups' fused function.
    """
    by_anchor = {m: g for g in groups for m in g if is_depthwise(m) or is_pointwise(m)}
    by_result: dict[Expr, Group] = {g[-1]: g for g in groups}
    chains: list[list[Group]] = []
    taken: set[Call] = set()
    for anchor, group in by_anchor.items():
        if not is_depthwise(anchor) or group[-1] in taken:
            continue
        before = _producer(anchor, by_result, users)
        after = _consumer(group[-1], by_anchor, users)
        before = None if before is not None and before[-1] in taken else before
        chain = _widest(before, group, after, outlined, target)
        if chain is not None:
            chains.append(chain)
            taken.update(g[-1] for g in chain)
    return chains


def _producer(
    anchor: Call, by_result: Mapping[Expr, Group], users: Mapping[Expr, Sequence[Expr]]
) -> Group | None:
    """The group that expands what a depthwise convolution alone reads."""
    data = anchor.args[0]
    group = by_result.get(data)
    if group is None or set(users[data]) != {anchor}:
        return None
    return group if any(is_expansion(m) for m in group) else None


def _consumer(
    result: Call, by_anchor: Mapping[Call, Group], users: Mapping[Expr, Sequence[Expr]]
) -> Group | None:
    """The group that projects a result that nobody else reads."""
    readers = set(users.get(result, ()))
    reader = readers.pop() if len(readers) == 1 else None
    if not isinstance(reader, Call) or reader.args[0] is not result:
        return None
    return by_anchor.get(reader) if is_pointwise(reader) else None


def _widest(
    before: Group | None,
    group: Group,
    after: Group | None,
    outlined: Callable[[Group], Function],
    target: Target,
) -> list[Group] | None:
    """The widest chain around a depthwise convolution that saves anything; None if none does.

    Of chains that save something the widest was the fastest wherever it was measured.
    """
    for chain in ([before, group, after], [before, group], [group, after]):
        groups = [g for g in chain if g is not None]
        if len(groups) < len(chain):
            continue
        if inverted_residual.saving(outlined([m for g in groups for m in g]), target) > 0:
            return groups
    return None
