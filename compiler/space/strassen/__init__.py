"""Products of matrices by Strassen's method: seven products of half the extents instead of eight,
or 49 of quarters instead of 64, each of the seven by the method again (``strassen_2``).

    [parallel over panels: add up the right operands          packed, if they are variable]
    parallel over blocks of (panels of columns, groups of 2 or 4 rows)
      for group of rows: add up the left operands           planes [groups, terms], in L2
      for panel:
        for product: a plane and the panel's weights              as ``contraction`` tiles it
        add up the parts of results, epilogue

The method ("Gaussian elimination is not optimal", 1969) has the error of short sums: at most 3e-6
of the largest result, of two levels 4e-6 (float32, measured; direct: 2e-6). But it is relative to
all that the rows of a group, or columns half or quarters of the width apart, have: a row of small
numbers beside one of large ones keeps fewer digits, and one that is not finite spoils its
neighbours. A target with ``-precision=strict`` leaves the method out. Weights are added up and
packed when a model is built, a variable matrix before the products; they take 7/4 of the memory,
of two levels 49/16: these are a default where the gain exceeds the time in which that comes.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf

from tunefarm.compiler.ir import Function
from tunefarm.compiler.space.config import SketchSpace
from tunefarm.compiler.space.strassen.apply import schedule
from tunefarm.compiler.space.strassen.default import (
    LARGE_L2,
    come_from_memory,
    default_of,
    direct_cycles,
    streamed_cycles,
    weight_bytes,
)
from tunefarm.compiler.space.strassen.forms import LANES, LEVELS
from tunefarm.compiler.space.strassen.knobs import VERSION, constraints_of, knobs_of
from tunefarm.compiler.space.strassen.nest import nest_of
from tunefarm.compiler.space.strassen.program import Product, product_of
from tunefarm.compiler.target import Target

WORTH = {1: 1.01, 2: 1.02}  # times fewer cycles in the model, by levels, to be a task's default
CROWDED_WORTH = 1.04  # of two levels on cores whose second cache is small (``_worth``)
ADDING_WORTH = 1.2  # of two levels where additions take the units of multiply-adds (``_worth``)
MESH_WORTH = 1.0  # of one level on one core of a mesh, whose cycles are known better (``_worth``)
EXCHANGING_WORTH = 1.2  # of one level on several: more than it can save, 8/7 (``_worth``)
LEAST = (16, 64, 32)  # rows, terms and columns of a product of two levels; smaller ones lose

__all__ = ["LEVELS", "saved_cycles", "schedule", "space", "space_of"]


def space(function: Function, target: Target, levels: int) -> SketchSpace | None:
    """The knobs of a product by Strassen's method; None where it does not apply."""
    if not _has_method(target):
        return None
    p = product_of(function, target.lanes("float32"), levels)
    return None if p is None or not _is_large(p) else space_of(p, target)


def space_of(p: Product, target: Target) -> SketchSpace:
    """The knobs of a product, however small."""
    default, cycles = default_of(p, target)
    return SketchSpace(
        p.sketch,
        VERSION,
        knobs_of(p),
        constraints_of(p, target),
        dict(default),
        lambda k: nest_of(p, target, k),
        preferred=_pays(p, cycles, target),
    )


def saved_cycles(p: Product, target: Target) -> float:
    """Cycles that the best of the levels takes less than the direct product, in the model; 0 where
    that is the default."""
    if not _has_method(target):
        return 0.0
    for levels in sorted(LEVELS.values(), reverse=True):
        of_levels = replace(p, levels=levels)
        cycles = default_of(of_levels, target)[1] if _is_large(of_levels) else inf
        if _pays(of_levels, cycles, target):
            return direct_cycles(p, target) - cycles
    return 0.0


def _has_method(target: Target) -> bool:
    return target.kind == "llvm" and not target.strict and target.lanes("float32") in LANES


def _is_large(p: Product) -> bool:
    least = LEAST if p.levels > 1 else (1, p.lanes, p.lanes)
    return all(n >> p.levels >= few for n, few in zip(p.shape, least, strict=True))


def _pays(p: Product, cycles: float, target: Target) -> bool:
    """Whether a product of so many cycles is a task's default."""
    return _worth(p, target) * cycles < _other_cycles(p, target)


def _worth(p: Product, target: Target) -> float:
    """Times fewer cycles than another method's that make this one a task's default.

    On two cores of a Zen 3 two levels take 1.05 × what the model says beside one, in the mean
    of eleven products (512³ 1.12 × the time of one level, 196×1024×512 0.92); on an Emerald Rapids,
    in the mean of 16, 1.26. On two cores of that one level's more weights and exchanged rows cost
    networks what it saves: without it ViT-S/16 takes 0.925 × the time, BERT-base 0.94, ResNet-50
    0.98.
    """
    if target.has_mesh and p.levels == 1:
        return EXCHANGING_WORTH if target.num_cores > 1 else MESH_WORTH
    if p.levels > 1 and not target.adds_apart:
        return ADDING_WORTH
    crowded = p.levels > 1 and target.num_cores > 1 and target.l2_bytes < LARGE_L2
    return CROWDED_WORTH if crowded else WORTH[p.levels]


def _other_cycles(p: Product, target: Target) -> float:
    """Cycles by one level less, in the same model, but for those in which the weights that this
    level has more come from memory, if they do: networks wait for them."""
    direct = direct_cycles(p, target)
    if p.levels == 1:
        return direct
    less, size_bytes = replace(p, levels=p.levels - 1), weight_bytes(p)
    others = min(direct, default_of(less, target)[1])
    if not come_from_memory(p, target, size_bytes):
        return others
    return others - streamed_cycles(size_bytes - weight_bytes(less), target)
