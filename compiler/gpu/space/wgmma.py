"""Products on the tensor cores of ``sm_90a`` by warpgroups: float16, bfloat16, and float32 where a
target allows TF32.

blocks of (groups · 64) × columns elements of the result, four warps a group:
  each group: 64 × columns sums, in registers
  for steps of 128, 64 or 32 bytes of terms:   the ``swizzle``, and the bytes of a tile's row
    the threads fill tiles of A and B       shared, swizzled, copied asynchronously, ``stages``
    sums += A[64, 16] · B[16, columns]      up to four instructions, which end before the next step
                                            begins, or if they ``overlap`` before the one after
  if ``wide``: the four threads of a row exchange parts of four tiles, as in ``gpu_mma``
  epilogue → out

The instruction for TF32 takes 8 terms, and wants them side by side in shared memory. Where columns
of B stand so it computes outᵀ = Bᵀ · Aᵀ, and the threads load Bᵀ as fragments.

Several blocks may ``split`` the terms of a tile: their sums are parts, which another kernel adds
(``parts.py``). Or they are a cluster, whose sums are ``joined``: each block gets those of its share
of the tile, some columns of the upper or lower eight of 16 rows, and stores their sum.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.gpu import wgmma as w
from tunefarm.compiler.gpu.archs import MAX_CLUSTER, REGISTERS
from tunefarm.compiler.gpu.mma import COLUMNS
from tunefarm.compiler.gpu.space import tiled
from tunefarm.compiler.gpu.space.product import Product
from tunefarm.compiler.gpu.space.tiled import (
    SPLITS,
    Tiling,
    fits_grid,
    product,
    shares_terms,
)
from tunefarm.compiler.gpu.space.wgmma_kernel import Knobs, WgmmaKernel, shares_of_config
from tunefarm.compiler.gpu.space.wgmma_tiles import (
    cost_of,
    footprint_of,
    shares_of,
    tile_of,
    turned,
)
from tunefarm.compiler.ir import Function
from tunefarm.compiler.space.columns import Mask, Numbers, cheapest, whole
from tunefarm.compiler.space.config import Columns, Config, Constraint, Knob, Nest, SketchSpace
from tunefarm.compiler.target import Target, dtype_bytes
from tunefarm.compiler.tir import PrimFunc

NAME, VERSION = "gpu_wgmma", 5
MOST_JOINED = 3 * 192  # groups · columns of a tile whose sums are joined
PART_BLOCKS = 2  # to a multiprocessor, of parts
KNOBS = (
    Knob("groups", (1, 2, 3)),
    Knob("columns", w.COLUMNS),
    Knob("stages", (2, 3, 4, 5, 6)),
    Knob("overlap", (0, 1)),
    Knob("swizzle", tuple(w.SWIZZLES)),
    Knob("split", SPLITS),
    Knob("joined", (0, 1)),
)


def wide_of(p: Product) -> Knob:
    """Whether threads exchange what they hold, where their rows are long enough for that."""
    return Knob("wide", (0, 1) if p.result_vector >= 4 and not turned(p) else (0,))


def space(function: Function, target: Target) -> SketchSpace | None:
    """The knobs; None for GPUs without such instructions, and for other dtypes."""
    p = computed(function, target)
    if p is None:
        return None
    default: Config = {"sketch": NAME, **cheapest_of(p, target)[0]}
    return SketchSpace(
        NAME, VERSION, knobs_of(p), constraints_of(p, target), default,
        lambda k: nest_of(p, target, k),
    )  # fmt: skip


def knobs_of(p: Product) -> tuple[Knob, ...]:
    return (*KNOBS, wide_of(p))


def cheapest_of(p: Product, target: Target) -> tuple[dict[str, int], float]:
    """The config that costs least by the model, and its clocks."""
    knobs = knobs_of(p)
    fixed = {"overlap": 1, "swizzle": max(w.SWIZZLES), "wide": int(knobs[-1].choices[-1])}
    choices = {k.name: [int(c) for c in k.choices] for k in knobs if k.name not in fixed}
    return cheapest(choices, fixed, constraints_of(p, target), lambda k: cost_of(p, target, k))


def computed(function: Function, target: Target) -> Product | None:
    """The product that a function is, if warpgroups of a target compute it."""
    p = product(function) if target.kind == "cuda" and target.takes_wgmma else None
    return p if p is not None and computes(p, target) and p.columns >= w.COLUMNS[0] else None


def computes(p: Product, target: Target) -> bool:
    """True if there is an instruction for the dtypes of a product; that of TF32 rounds float32,
    where that is allowed."""
    operands = {m.operand for m in w.WGMMAS.values()}
    allowed = p.dtypes[0] != "float32" or target.rounds_to_tf32
    same = p.dtypes[0] == p.dtypes[1] and p.sum_dtype == "float32"
    return same and allowed and p.dtypes[0] in operands


def constraints_of(p: Product, target: Target) -> tuple[Constraint, ...]:
    def registers_fit(k: Columns) -> Mask:
        f = footprint_of(k)
        return f.registers * f.threads <= REGISTERS

    def shared_fits(k: Columns) -> Mask:
        return footprint_of(k).shared_bytes <= target.gpu.shared_bytes

    return (
        Constraint("registers", registers_fit),
        Constraint("shared memory", shared_fits),
        Constraint("overlap", stages_overlap),
        parts_of(p, target),
        joins_of(p),
        fits_grid(p, lambda k: tile_of(p, k)),
    )


def stages_overlap(k: Columns) -> Mask:
    """Products that overlap keep two tiles, while another is filled."""
    return (whole(k, "overlap") == 0) | (whole(k, "stages") >= 3)


def parts_of(p: Product, target: Target) -> Constraint:
    """Terms are shared out where the tiles alone are too few (``shares_terms``)."""

    def holds(k: Columns) -> Mask:
        step = whole(k, "swizzle") // dtype_bytes(p.dtypes[0])
        return shares_terms(p, target, whole(k, "split"), tile_of(p, k), step, PART_BLOCKS)

    return Constraint("parts", holds)


def joins_of(p: Product) -> Constraint:
    """The blocks that share terms out are a cluster, and share the tile out in whole columns of
    eight; those of other rows do not share B then. Of the largest tiles threads have no registers
    left to choose among shares: they would spill 500 bytes each."""

    def holds(k: Columns) -> Mask:
        split, cluster = whole(k, "split"), whole(k, "cluster") if "cluster" in k else 1
        columns, groups = whole(k, "columns"), whole(k, "groups")
        _, across = shares_of(columns, split)
        fits = (split > 1) & (split <= MAX_CLUSTER) & (columns // COLUMNS % across == 0)
        fits &= groups * columns <= MOST_JOINED
        return (whole(k, "joined") == 0) | (fits & (cluster == 1) & (not turned(p)))

    return Constraint("joined", holds)


def nest_of(
    p: Product,
    target: Target,
    k: Columns,
    cost: Callable[[Product, Target, Columns], Numbers] = cost_of,
) -> Nest:
    own = np.full(len(whole(k, "groups")), w.ROWS), whole(k, "columns")
    own = own[::-1] if turned(p) else own
    steps = {**k, "bk": whole(k, "swizzle") // dtype_bytes(p.dtypes[0])}
    more = footprint_of(k).columns(target)
    return tiled.nest_of(p, steps, Tiling(tile_of(p, k), own, cost(p, target, k), more))


# --- the schedule -------------------------------------------------------------------------------


def schedule(function: Function, target: Target, config: Config) -> PrimFunc:
    """Apply a config. Raises ScheduleError if no such instruction computes the function."""
    p = product(function)
    if p is None or not computes(p, target):
        raise ScheduleError("the workload is no product that warpgroups compute")
    k = Knobs(**{name: int(value) for name, value in config.items() if name != "sketch"})
    check_stages(k)
    check_joined(p, k)
    return WgmmaKernel(p, k).whole_program(target)


def check_stages(k: Knobs) -> None:
    """ScheduleError if there are too few stages for products that overlap."""
    if k.overlap and k.stages < 3:
        raise ScheduleError(f"products overlap where there are 3 stages or more, not {k.stages}")


def check_joined(p: Product, k: Knobs) -> None:
    """ScheduleError if the blocks that share terms out cannot be a cluster."""
    if not k.joined:
        return
    across = shares_of_config(k)[1]
    if turned(p) or not 1 < k.split <= MAX_CLUSTER or k.columns // COLUMNS % across:
        raise ScheduleError(
            f"a cluster of {k.split} blocks cannot share out {k.columns} columns of a tile; let "
            f"2 to {MAX_CLUSTER} blocks have whole eights of them, of a product that is not turned"
        )
