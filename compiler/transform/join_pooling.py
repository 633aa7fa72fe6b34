"""Which convolutions of ``fuse_ops`` become one kernel with the pooling behind them.

    relu(add(conv7x7(x), b))  ->  max_pool      one function, if it pays

The convolution's result never leaves a core then (``space/pooled_winograd``). It must have no other
reader, and a model of both ways decides. What could join the pooling, elementwise operators behind
it, keeps it apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from tunefarm.compiler.ir import Call, Expr, Function
from tunefarm.compiler.space import pooled_winograd
from tunefarm.compiler.target import Target
from tunefarm.compiler.transform.outline import SIMPLE, pattern_of

Group = Sequence[Call]


def joined_pooling(
    groups: Sequence[Group],
    users: Mapping[Expr, Sequence[Expr]],
    outlined: Callable[[Group], Function],
    target: Target,
) -> Iterator[tuple[Call, Call]]:
    """What a group makes and the pooling that joins it, in graph order.

    The last member of a group is what leaves it, ``outlined`` gives a group's fused function.
    """
    by_result: dict[Expr, Group] = {g[-1]: g for g in groups}
    for group in groups:
        pool = group[-1]
        producer = by_result.get(pool.args[0]) if pool.op == "max_pool" else None
        if producer is None or list(users[producer[-1]]) != [pool]:
            continue
        if len(users[pool]) == 1 and pattern_of(users[pool][0]) in SIMPLE:
            continue
        if pooled_winograd.saving(outlined([*producer, *group]), target) > 0:
            yield producer[-1], pool
