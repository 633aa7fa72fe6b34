"""The time of a fused block in a closed form, and the config of the least.

A block of rows is expanded panel by panel into a scratch that the depthwise convolution reads at
once. What it costs is the rows that neighbouring blocks both expand; what it saves is that tensors
of the expanded channels never leave the second-level cache of a core.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np
from tunefarm.compiler.space import float_parts, strassen
from tunefarm.compiler.space.columns import Mask, Numbers, cheapest, whole
from tunefarm.compiler.space.config import Columns, Config, Constraint
from tunefarm.compiler.space.contraction.default import MAX_BODY
from tunefarm.compiler.space.inverted_residual.knobs import (
    NAME,
    block_rows,
    constraints_of,
    expanded_bytes,
    hidden_bytes,
    knobs_of,
    registers_of,
)
from tunefarm.compiler.space.inverted_residual.program import InvertedResidual
from tunefarm.compiler.space.strassen.program import Product
from tunefarm.compiler.target import Target

L2_BYTES = 32.0  # a cycle, written and read again
BEYOND_BYTES = 20.0  # a cycle of what a separate kernel writes, and of what the next one reads
L2_SHARE = 4  # a tensor of less than this part of the second level is still there when it is read
ROLLED_SHARE = 2  # rows that are kept for the next take this part of the first level, not more
FULL = 1.06  # of a tile without registers to spare: broadcasts wait, or sums pass through the stack
TASK_CYCLES = 300.0
PANEL_CYCLES = 50.0  # of a row, for every panel that goes through it again
FORK_CYCLES = 1000.0
# What kernels apart take on a mesh of the cycles that the model has for them: of blocks with an
# expansion, and of others.
EXPANDED_SHARE, PAIR_SHARE = 0.95, 0.82


def cycles(b: InvertedResidual, target: Target, lanes: int, k: Columns) -> Numbers:
    """Of the slowest core: of one with more tasks, or with more channels of a block of rows."""
    batch, rows, _, channels = b.depthwise.shape
    panels = -(-channels // (whole(k, "nv") * lanes))
    blocks = -(-rows // whole(k, "mb"))
    work = arithmetic_cycles(b, target, k, blocks) + PANEL_CYCLES * rows * panels
    kept = expanded_bytes(b, lanes, k)
    rolled = whole(k, "roll") == 1  # what is kept is written anew with every row
    times = panels * np.where(rolled, block_rows(b, k) / b.depthwise.span(0), 1.0)
    room = np.where(rolled, target.l1_bytes // ROLLED_SHARE, target.l1_bytes)
    for size, often, fits in ((kept, times, room), (hidden_bytes(b, lanes, k), 1, target.l1_bytes)):
        work = work + np.where(size > fits, size * often * blocks / L2_BYTES, 0.0)
    panel_blocks = -(-panels // whole(k, "nb")) if b.project is None else 1
    tasks = batch * blocks * panel_blocks
    per_core = -(-tasks // target.num_cores)
    vectors = -(-channels // lanes)  # of which the last block of panels may have fewer
    part = np.minimum(per_core % panel_blocks * whole(k, "nb") * whole(k, "nv") / vectors, 1.0)
    share = np.maximum(batch / target.num_cores, (per_core // panel_blocks + part) / blocks)
    last = blocks * whole(k, "mb") / rows  # what the last block lacks, if it is alone on its core
    uneven = np.where(tasks % target.num_cores == 0, 1.0, last)
    return work * share * uneven + TASK_CYCLES * per_core + FORK_CYCLES * (target.num_cores > 1)


def arithmetic_cycles(b: InvertedResidual, target: Target, k: Columns, blocks: Numbers) -> Numbers:
    """Of one image in so many blocks of rows, everything in the first-level cache."""
    rows, columns, channels = b.depthwise.shape[1:]
    lanes, registers = target.lanes("float32"), target.vector_registers
    vectors = -(-channels // lanes)
    work = rows * vectors * window_cycles(b, whole(k, "dw"))
    if b.expand is not None:
        tiles = -(-b.expand.shape[2] // whole(k, "ew")) * vectors / whole(k, "nv")
        product = product_cycles(b.expand.terms, whole(k, "ew"), whole(k, "nv"), registers)
        work = work + expanded_rows(b, blocks) * tiles * product
    if b.project is not None:
        outputs = -(-b.project.shape[-1] // (whole(k, "pv") * lanes))
        tiles = rows * -(-columns // whole(k, "pw")) * outputs
        product = product_cycles(channels, whole(k, "pw"), whole(k, "pv"), registers)
        work = work + tiles * product
    return work


def expanded_rows(b: InvertedResidual, blocks: Numbers) -> Numbers:
    """Of one image, those that two blocks read counted twice."""
    assert b.expand is not None
    stride, span = b.depthwise.strides[0], b.depthwise.span(0)
    whole_image = min(b.expand.shape[1], (b.depthwise.shape[1] - 1) * stride + span)
    return whole_image + (blocks - 1) * max(span - stride, 0)


def product_cycles(terms: int, columns: Numbers, vectors: Numbers, registers: int) -> Numbers:
    """Of one register tile of a product."""
    sums = columns * vectors
    step = np.maximum(sums / 2, 4.0) + 0.2 * columns + 0.3 * vectors
    full = registers_of(columns, vectors) + 2 >= registers
    return np.where(full, FULL, 1.0) * (terms * step + 3.0 * sums)


def window_cycles(b: InvertedResidual, columns: Numbers) -> Numbers:
    """Of one row and one vector of channels of the depthwise convolution's results."""
    taps = b.depthwise.taps[0] * b.depthwise.taps[1]
    tile = taps * np.maximum(0.75 * columns, 4.0) + 3.0 * columns + 8.0
    return -(-b.depthwise.shape[2] // columns) * tile


def default_of(b: InvertedResidual, target: Target, lanes: int) -> tuple[Config, float]:
    """The config of the fewest cycles in the model, and their number: infinite if none is allowed.

    The register tiles of the depthwise convolution and of the projection hang on nothing else.
    """
    knobs, constraints = knobs_of(b, lanes), constraints_of(b, target, lanes)
    choices = {n.name: [int(c) for c in n.choices] for n in knobs}
    fixed = {
        "eu": 1,
        "pu": 1,
        **_window_tile(b, target, choices),
        **_projection_tile(b, target, lanes, choices),
    }
    free = {n: choices[n] for n in ("mb", "nb", "nv", "roll", "ew")}
    found, estimate = cheapest(free, fixed, constraints, lambda k: cycles(b, target, lanes, k))
    expand = found["ew"] * found["nv"], b.expand.inputs if b.expand else 1
    project = found["pw"] * found["pv"], b.channels
    found |= {n: _unrolled(choices[n], *s) for n, s in (("eu", expand), ("pu", project))}
    return {"sketch": NAME, **{n.name: found[n.name] for n in knobs}}, estimate


def _unrolled(choices: Sequence[int], sums: int, terms: int) -> int:
    """Terms of a sum that are unrolled, of a tile of so many sums."""
    return max(u for u in choices if u == 1 or (u * sums <= MAX_BODY and terms % u == 0))


def _window_tile(
    b: InvertedResidual, target: Target, choices: Mapping[str, Sequence[int]]
) -> dict[str, int]:
    fits = [n for n in choices["dw"] if 2 * n + 3 <= target.vector_registers]
    return cheapest({"dw": fits}, {}, (), lambda k: window_cycles(b, whole(k, "dw")))[0]


def _projection_tile(
    b: InvertedResidual, target: Target, lanes: int, choices: Mapping[str, Sequence[int]]
) -> dict[str, int]:
    if b.project is None:
        return {"pw": 1, "pv": 1}
    width, outputs = b.depthwise.shape[2], b.project.shape[-1]

    def fits(k: Columns) -> Mask:
        return registers_of(whole(k, "pw"), whole(k, "pv")) <= target.vector_registers

    def cost(k: Columns) -> Numbers:
        columns, vectors = whole(k, "pw"), whole(k, "pv")
        tiles = -(-width // columns) * -(-outputs // (vectors * lanes))
        return tiles * product_cycles(b.channels, columns, vectors, target.vector_registers)

    tile = {n: choices[n] for n in ("pw", "pv")}
    return cheapest(tile, {}, (Constraint("registers", fits),), cost)[0]


def saved_cycles(b: InvertedResidual, target: Target) -> float:
    """What one kernel saves over one for each convolution, all at their defaults; 0 or less where
    every tensor between them stays in the cores' second-level caches anyway.

    Nothing in 16 registers: kernels apart, whose depthwise tiles have all taps at once and whose
    products run on from row to row, take 0.95 × the time of 11 networks on one core of a Zen 3 and
    on two (0.89 to 1.03), and 0.93 and 0.89 of that of MobileNetV2's blocks.

    On a mesh kernels apart are faster than the model says: products run on from row to row, and
    strips down the image ask for the lines that they store to. Of 18 shapes with an expansion they
    take 0.86 to 0.97 × the time where the model saves less than 5%, and 1.03 to 1.28 × where it
    saves more, but once 0.98; of 17 others 0.85 to 1.09 ×, 0.96 in the mean, and of seven of these
    on two cores 0.93 to 1.07 × (Emerald Rapids).
    """
    if target.has_few_registers:
        return 0.0
    lanes = target.lanes("float32")
    config, fused = default_of(b, target, lanes)
    moved = 0.0
    for stage in (b.expand, b.depthwise if b.project else None):
        if stage is not None:
            share = 4.0 * prod(stage.shape) / target.num_cores
            moved += 2 * share / BEYOND_BYTES if share * L2_SHARE > target.l2_bytes else 0.0
    k = {n: np.array([int(v)]) for n, v in config.items() if n != "sketch"}
    whole_images = b.depthwise.shape[0] * arithmetic_cycles(b, target, k, 1)
    taken = (PAIR_SHARE if b.expand is None else EXPANDED_SHARE) if target.has_mesh else 1.0
    alone = taken * float(whole_images[0]) / target.num_cores - _saved_apart(b, target)
    return alone + moved - fused if moved > 0 else 0.0


def _saved_apart(b: InvertedResidual, target: Target) -> float:
    """Cycles that products of one tap take less by methods of kernels alone: in parts by a matrix
    unit, and Strassen's."""
    saved = 0.0
    for c in (b.expand, b.project):
        if c is not None and c.taps == (1, 1):
            p = Product(
                b.function,
                c.anchor,
                weights=c.param,
                rows=prod(c.shape[:-1]),
                depth=c.inputs,
                columns=c.shape[-1],
                lanes=target.lanes("float32"),
                variable=False,
                levels=1,
            )
            saved += max(float_parts.saved_cycles(p, target), strassen.saved_cycles(p, target))
    return saved
