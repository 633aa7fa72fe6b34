"""The knobs of the attention sketch, what a config must hold, and a model of its time."""

from __future__ import annotations

from math import isfinite

import numpy as np
from tunefarm.compiler.gpu.archs import MAX_GRID, MAX_REGISTERS, REGISTERS, WARP
from tunefarm.compiler.gpu.intrinsics import HELD_PRODUCTS, HeldProduct
from tunefarm.compiler.gpu.mma import ROWS
from tunefarm.compiler.gpu.space.attention.kernel import whole_steps
from tunefarm.compiler.gpu.space.attention.masks import visible_of
from tunefarm.compiler.gpu.space.attention.problem import Attention
from tunefarm.compiler.gpu.space.attention.tiles import PADDING_BYTES
from tunefarm.compiler.gpu.space.tiled import Footprint
from tunefarm.compiler.space.columns import Mask, Numbers, cheapest, whole
from tunefarm.compiler.space.config import Access, Columns, Config, Constraint, Knob, Nest
from tunefarm.compiler.target import Target, dtype_bytes

NAME, VERSION = "gpu_attention", 3
OTHER_REGISTERS = 64  # of a thread, beside sums and fragments
QUARTERS = 4  # of a multiprocessor, with tensor cores of their own
MOST_INSTRUCTIONS = 768  # products of a step, unrolled
MOST_MULTIPLIES = 8192  # multiply-adds of one, where these compute it
SPLITS = (1, 2, 4, 8, 16, 32, 64)
LEAST_KEYS = 32  # of a block that shares them with others
SECOND_KERNEL = 200.0  # what its launch costs, in products: some 2 µs


def knobs_of(a: Attention, target: Target) -> tuple[Knob, ...]:
    """The knobs; steps can be skipped where a mask may hide them, and keys are shared out where
    queries alone are too few for all multiprocessors."""
    few = a.heads * -(-a.queries // ROWS)
    splits = tuple(
        n for n in SPLITS
        if n == 1 or (n * LEAST_KEYS <= a.keys and few * n <= 4 * target.num_cores)
    )  # fmt: skip
    return (
        Knob("split", splits),
        Knob("warps", (1, 2, 4, 8)),
        Knob("mi", (1, 2)),
        Knob("keys", (16, 32, 64, 128)),
        Knob("stages", (1, 2, 3, 4)),
        Knob("skip", (0,) if visible_of(a) is None else (0, 1, 2)),
    )


def product_of(a: Attention, target: Target) -> HeldProduct | None:
    """What multiplies: tensor cores, of float32 if the target allows to round it to TF32, or else
    multiply-adds; None if the target has nothing for the dtype."""
    name = {
        "float16": "mma.m16n8k16.f16.held",
        "bfloat16": "mma.m16n8k16.bf16.held",
        "float32": f"{'mma.m16n8k8.tf32' if target.rounds_to_tf32 else 'fma.m16n8k8.f32'}.held",
    }[a.dtype]
    needs_cores = name.startswith("mma")
    return HELD_PRODUCTS[name] if target.gpu.has_tensor_cores or not needs_cores else None


def instructions_of(held: HeldProduct) -> int:
    """Instructions for a product of 16 × 8 × 16."""
    return 16 // held.depth if held.mma.startswith("mma") else 64


def constraints_of(a: Attention, target: Target, held: HeldProduct) -> tuple[Constraint, ...]:
    depth, values = whole_steps(a.depth), whole_steps(a.values)

    def registers_fit(k: Columns) -> Mask:
        threads = whole(k, "warps") * WARP
        taken = registers_of(a, k)
        # Of two stages a step is written twice, which ptxas does not keep apart: 324 bytes spilled.
        kept_apart = (whole(k, "stages") != 2) | held.mma.startswith("mma")
        return (taken <= MAX_REGISTERS) & (taken * threads <= REGISTERS) & kept_apart

    def shared_fits(k: Columns) -> Mask:
        return shared_bytes(a, k) <= target.gpu.shared_bytes

    def small_code(k: Columns) -> Mask:
        products = whole(k, "mi") * whole(k, "keys") * (depth + values) // 128
        copies = np.where(whole(k, "stages") == 2, 2, 1)
        most = MOST_INSTRUCTIONS if held.mma.startswith("mma") else MOST_MULTIPLIES
        return products * instructions_of(held) * copies <= most

    def each_has_keys(k: Columns) -> Mask:
        split = whole(k, "split")
        return (split == 1) | (whole(k, "keys") * split <= a.keys)

    def grid_fits(k: Columns) -> Mask:
        return (whole(k, "warps") > 0) & (a.heads <= MAX_GRID[1])

    return (
        Constraint("registers", registers_fit),
        Constraint("shared memory", shared_fits),
        Constraint("code size", small_code),
        Constraint("split", each_has_keys),
        Constraint("grid", grid_fits),
    )


def registers_of(a: Attention, k: Columns) -> Numbers:
    """Of a thread: fragments of 16 queries, sums of values, scores, and powers in their dtype."""
    depth, values, size = whole_steps(a.depth), whole_steps(a.values), dtype_bytes(a.dtype)
    keys = whole(k, "keys")
    own = depth * size // 8 + values // 2 + keys // 2 + keys * size // 8 + 6
    return whole(k, "mi") * own + OTHER_REGISTERS


def shared_bytes(a: Attention, k: Columns) -> Numbers:
    """Of a block: tiles of K and V with their padding, in each stage; which steps a warp sees."""
    keys, size = whole(k, "keys"), dtype_bytes(a.dtype)
    padding = PADDING_BYTES // size
    room: Numbers = 0
    for extent, columns_first in (
        (whole_steps(a.depth), a.along[0] == "terms"),
        (whole_steps(a.values), a.along[1] != "terms"),
    ):
        room = room + (keys * (extent + padding) if columns_first else extent * (keys + padding))
    steps = -(-a.keys // (keys * whole(k, "split")))
    shown = np.where(whole(k, "skip") == 2, 4 * whole(k, "warps") * (steps + whole(k, "stages")), 0)
    return whole(k, "stages") * room * size + shown


def footprint_of(a: Attention, k: Columns) -> Footprint:
    return Footprint(whole(k, "warps") * WARP, registers_of(a, k), shared_bytes(a, k))


def cost_of(a: Attention, target: Target, k: Columns) -> Numbers:
    """What a quarter of the busiest multiprocessor does, in products of 16 × 8 × 16: those of its
    warps with their loads of K and V, and the softmax, which takes some three of them for a tile
    of scores.

    A warp alone waits for itself; steps of few keys wait more often. What blocks of the same
    queries have made is written, read and combined by another kernel.
    """
    mi, keys, warps, split = (whole(k, n) for n in ("mi", "keys", "warps", "split"))
    depth, values = whole_steps(a.depth), whole_steps(a.values)
    blocks = a.heads * -(-a.queries // (warps * mi * ROWS)) * split
    held = footprint_of(a, k).resident(target)
    each = -(-blocks // target.num_cores)
    waits = 1.0 + QUARTERS / (2.0 * np.minimum(each, held) * warps)
    tiles = (depth + values) / 128.0
    step = mi * keys * (tiles * (1.0 + 1.0 / mi) + 0.4) + 24.0
    copies = keys * (depth + values) / 256.0 / warps
    ahead = np.where(whole(k, "stages") == 1, 1.5, 1.0) + 0.01 * whole(k, "stages")
    mine = np.maximum(each * warps / QUARTERS, 1.0)
    combined = a.heads * a.queries * values * split / (16.0 * target.num_cores)
    second = np.where(split > 1, SECOND_KERNEL + combined, 0.0)
    return mine * -(-a.keys // (keys * split)) * (step + copies) * waits * ahead + second


def default_of(a: Attention, target: Target, constraints: tuple[Constraint, ...]) -> Config | None:
    """The config that costs least in the model, which skips what it may; None if there is none
    that fits."""
    *knobs, skip = knobs_of(a, target)
    choices = {k.name: k.choices for k in knobs}
    for most in reversed(skip.choices):
        fixed = {skip.name: int(most)}
        found, cost = cheapest(choices, fixed, constraints, lambda k: cost_of(a, target, k))
        if isfinite(cost):
            return {"sketch": NAME, **found, **fixed}
    return None


def nest_of(a: Attention, target: Target, k: Columns) -> Nest:
    """Axes: heads, queries, keys, and the sizes of a head's keys (d) and values (e)."""
    one = np.ones(len(whole(k, "keys")), np.int64)
    axes = {"h": a.heads, "q": a.queries, "k": a.keys, "d": a.depth, "e": a.values}
    warp = whole(k, "mi") * ROWS
    register = {"h": one, "q": warp, "k": whole(k, "keys"), "d": 16 * one, "e": a.values * one}
    block = {**register, "q": warp * whole(k, "warps"), "d": a.depth * one}
    step = whole(k, "keys") * whole(k, "split")
    padded = -(-a.keys // step) * step
    l2 = {**block, "k": padded // whole(k, "split")}
    blocks = a.heads * -(-a.queries // block["q"]) * whole(k, "split")
    executed = 2.0 * blocks * block["q"] * l2["k"] * (whole_steps(a.depth) + whole_steps(a.values))
    extra = {n: whole(k, n).astype(np.float64) for n in k if n != "sketch"}
    extra |= footprint_of(a, k).columns(target)
    extra["cost"] = np.asarray(cost_of(a, target, k), np.float64)
    size = dtype_bytes(a.dtype)
    h, q, n = a.heads, a.queries, a.keys
    return Nest(
        axes,
        frozenset({"k", "d"}),
        (
            Access("queries", size, (h, q, a.depth), ({"h": 1}, {"q": 1}, {"d": 1})),
            Access("keys", size, (h, n, a.depth), ({"h": 1}, {"k": 1}, {"d": 1})),
            Access("values", size, (h, n, a.values), ({"h": 1}, {"k": 1}, {"e": 1})),
            Access("out", size, (h, q, a.values), ({"h": 1}, {"q": 1}, {"e": 1}), write=True),
        ),
        {"vector": register, "register": register, "l1": block, "l2": l2, "core": l2},
        np.asarray(blocks, np.int64),
        np.asarray(executed, np.float64),
        extra,
    )
