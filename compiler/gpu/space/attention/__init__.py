"""softmax(Q·Kᵀ·scale + mask)·V in one kernel: scores never leave the registers of a warp.

blocks of warps · mi · 16 queries of a head:
  each warp: its queries, as fragments                     registers
  for steps of ``keys`` keys:
    the threads fill tiles of K and V                      shared, copied asynchronously, ``stages``
    scores = Q · Kᵀ, scaled and masked                     mma.sync, registers
    the largest score of each query so far; powers; what was summed is scaled to it
    mixed += powers · V                                    mma.sync: results are the next A
  out = mixed / the sums of powers

Source: Dao, "FlashAttention-2", 2023. Between the two products nothing is written: a thread holds
of a result just what it holds of a left factor.
"""

from __future__ import annotations

from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.gpu.space.attention.kernel import Knobs, attention_kernel
from tunefarm.compiler.gpu.space.attention.knobs import (
    KNOBS,
    NAME,
    VERSION,
    constraints_of,
    default_of,
    nest_of,
)
from tunefarm.compiler.gpu.space.attention.problem import attention_of
from tunefarm.compiler.ir import Function
from tunefarm.compiler.space.config import Config, SketchSpace
from tunefarm.compiler.target import Target
from tunefarm.compiler.tir import PrimFunc

__all__ = ["schedule", "space"]


def space(function: Function, target: Target) -> SketchSpace | None:
    """The knobs of an attention on operands of 16 bits; None for others, and where no config fits
    a thread's registers (heads of more than 256 elements or so)."""
    if target.kind != "cuda" or not target.gpu.has_tensor_cores:
        return None
    a = attention_of(function)
    if a is None:
        return None
    constraints = constraints_of(a, target)
    default = default_of(a, target, constraints)
    if default is None:
        return None
    return SketchSpace(NAME, VERSION, KNOBS, constraints, default, lambda k: nest_of(a, target, k))


def schedule(function: Function, target: Target, config: Config) -> PrimFunc:
    """Apply a config. Raises ScheduleError if the function is no attention."""
    a = attention_of(function)
    if a is None:
        raise ScheduleError("the workload is no attention on operands of 16 bits")
    knobs = {name: int(value) for name, value in config.items() if name != "sketch"}
    return attention_kernel(a, Knobs(**knobs))
