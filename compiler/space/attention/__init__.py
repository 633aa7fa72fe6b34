"""softmax(Q·Kᵀ·scale + mask)·V in one kernel: scores never leave the caches of a core.

    parallel over blocks of queries of each head
      copy the block's queries, a vector of queries for each of their elements
      for tile of keys:   scores = Σ queries · keys, scaled and masked          registers → stack
      the largest score of each query; powers; their sum
      for panel of values: for tile of rows: Σ powers · values, divided by the sum → result

All scores of a block's queries are kept (16 KB for 32 queries of 128 keys, 260 KB of 2048), so that
each is computed once (cf. Dao et al., "FlashAttention", 2022, which keeps fewer and rescales). The
lanes lie along the queries until the last product: no statistic is combined across lanes.
"""

from __future__ import annotations

from tunefarm.compiler.ir import Function
from tunefarm.compiler.space.attention.apply import schedule
from tunefarm.compiler.space.attention.default import default_of
from tunefarm.compiler.space.attention.knobs import NAME, VERSION, constraints_of, knobs_of
from tunefarm.compiler.space.attention.nest import nest_of
from tunefarm.compiler.space.attention.program import attention_of
from tunefarm.compiler.space.config import SketchSpace
from tunefarm.compiler.target import Target

__all__ = ["schedule", "space"]


def space(function: Function, target: Target) -> SketchSpace | None:
    """The knobs of an attention; None where the function is none, or a block does not fit.

    Nor are there any for fewer queries than lanes: kernels of their own are faster then.
    """
    if target.kind != "llvm":
        return None
    a, lanes = attention_of(function), target.lanes("float32")
    if a is None or min(i.extent for i in (a.key, a.depth, a.value)) < 2:
        return None
    if a.query.extent < max(lanes, 2):
        return None
    default = default_of(a, target, lanes)
    if default is None:
        return None
    return SketchSpace(
        NAME,
        VERSION,
        knobs_of(a, lanes),
        constraints_of(a, target, lanes),
        default,
        lambda k: nest_of(a, target, lanes, k),
    )
