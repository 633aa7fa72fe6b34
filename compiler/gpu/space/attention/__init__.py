"""softmax(Q·Kᵀ·scale + mask)·V in one kernel: scores never leave the registers of a warp.

blocks of warps · mi · 16 queries of a head:
  each warp: its queries, as fragments                     registers
  for steps of ``keys`` keys:
    the threads fill tiles of K and V                      shared, copied asynchronously, ``stages``
    what follows, unless a mask hides all of the step from the warp:
    scores = Q · Kᵀ, scaled and masked                     mma.sync, registers
    the largest score of each query so far; powers; what was summed is scaled to it
    mixed += powers · V                                    mma.sync: results are the next A
  out = mixed / the sums of powers

Source: Dao, "FlashAttention-2", 2023. Between the two products nothing is written: a thread holds
of a result just what it holds of a left factor.
"""

from __future__ import annotations

from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.gpu.space.attention.kernel import attention_kernel
from tunefarm.compiler.gpu.space.attention.knobs import (
    NAME,
    VERSION,
    constraints_of,
    default_of,
    knobs_of,
    nest_of,
    product_of,
)
from tunefarm.compiler.gpu.space.attention.problem import attention_of
from tunefarm.compiler.gpu.space.attention.tiles import Knobs
from tunefarm.compiler.ir import Function
from tunefarm.compiler.space.config import Config, SketchSpace
from tunefarm.compiler.target import Target
from tunefarm.compiler.tir import PrimFunc

__all__ = ["schedule", "space"]


def space(function: Function, target: Target) -> SketchSpace | None:
    """The knobs of an attention; None for other dtypes than float16, bfloat16 and float32, and
    where no config fits a thread's registers (heads of more than 200 elements or so, of float32
    160)."""
    a = attention_of(function) if target.kind == "cuda" else None
    held = product_of(a, target) if a is not None else None
    if a is None or held is None:
        return None
    constraints = constraints_of(a, target, held)
    default = default_of(a, target, constraints)
    if default is None:
        return None
    knobs = knobs_of(a, target)
    return SketchSpace(NAME, VERSION, knobs, constraints, default, lambda k: nest_of(a, target, k))


def schedule(function: Function, target: Target, config: Config) -> PrimFunc:
    """Apply a config. Raises ScheduleError if the function is no attention."""
    a = attention_of(function)
    held = product_of(a, target) if a is not None else None
    if a is None or held is None:
        raise ScheduleError("the workload is no attention on operands that the target multiplies")
    knobs = {name: int(value) for name, value in config.items() if name != "sketch"}
    return attention_kernel(a, Knobs(**knobs), held)
