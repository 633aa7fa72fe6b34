"""3 × 3 convolutions, and 7 × 7 ones of stride 2, by Winograd's method: fewer products for some
additions.

    parallel over blocks of (images, rows of tiles, panels of outputs)
      transform the block's tiles of the input      a plane [tiles, inputs] for each point, in L2
      for panel:
        for point: product of a plane and the panel's weights          as ``contraction`` tiles it
        transform back, epilogue                        the results of a tile, in registers

Of a volume each frame of the result is an image, whose inputs are those of all frames that it
reads, zeros for those beyond the ends. Of a convolution in groups a block has the panels of one
group, and its inputs alone. A few channels beyond whole vectors are transformed by themselves, with
the tiles of a row as lanes (``lone.py``).

With ``by_row`` a panel's products are made and transformed back a row of tiles at a time, with 2 a
register tile of a row, with 3 in registers, a column of its points at a time. Where blocks differ
in their panels alone, several cores transform the tiles together first: each then reads its own
part of the weights, which come from memory, and all of the tiles, which do not.

Tiles have 2 or 4 rows and 2 or 4 columns of results. Of stride 1, 2 × 2 has 2.25 times fewer
products than the direct sum, 2 × 4 has 3 and 4 × 4 has 4 times fewer, with errors of at most 2e-6,
4e-6 and 5e-6 of the largest result (float32, measured; direct: 1e-6); last tiles that have fewer
results can do with fewer products (``ends.py``). Of stride 2 it is 1.4 to 1.8 times, and a third to
half of the products share weights with others. 7 × 7 taps of stride 2 are 4 × 4 over even and odd
pixels, as channels of their own: tiles of 3 × 3 have 3 times fewer products, with errors of at most
2e-6, tiles of 4 × 4 have 4 times fewer, with at most 4e-6. More products of a tile are more weights
to read. A target with ``-precision=strict`` leaves the method out. The weights are transformed and
packed when a model is built.
"""

from __future__ import annotations

import math

from tunefarm.compiler.ir import Function
from tunefarm.compiler.space.config import SketchSpace
from tunefarm.compiler.space.winograd.apply import schedule
from tunefarm.compiler.space.winograd.convolution import Convolution, convolution_of
from tunefarm.compiler.space.winograd.default import default_of, direct_cycles
from tunefarm.compiler.space.winograd.knobs import NAME, VERSION, constraints_of, knobs_of
from tunefarm.compiler.space.winograd.nest import nest_of
from tunefarm.compiler.space.winograd.transforms import phases
from tunefarm.compiler.target import Target

# Times fewer cycles in the model than the direct sum, to be a task's default. Layers of 512
# channels and 7² hang on how fast weights come from memory: on Zen 5 they are 1.35 × as fast by the
# method inside ResNet-18 on one core, 1.24 × on two; on Emerald Rapids it is 2 to 14% slower.
WORTH = 1.03

__all__ = ["least_cycles", "saving", "schedule", "space"]


def space(function: Function, target: Target) -> SketchSpace | None:
    """The knobs of a Winograd convolution; None where the method does not apply, or no tiles fit
    the stack."""
    if target.kind != "llvm" or target.strict:
        return None
    c = convolution_of(function, every=True)
    lanes = target.lanes("float32")
    if c is None or min(c.height, c.width) < 2:
        return None
    if c.group_outputs < lanes or 2 * c.depth < lanes or (phases(c.taps) == 1 and c.inputs < lanes):
        return None
    if not c.fills_lanes(lanes):
        return None
    default, cycles = default_of(c, target, lanes)
    if math.isinf(cycles):
        return None
    return SketchSpace(
        NAME,
        VERSION,
        knobs_of(c, lanes),
        constraints_of(c, target, lanes),
        default,
        lambda k: nest_of(c, target, lanes, k),
        preferred=WORTH * cycles < direct_cycles(c, target, lanes),
    )


def saving(function: Function, target: Target) -> float:
    """How many times fewer cycles the method takes than the direct sum at peak, in the model; 1
    where it does not apply or saves none."""
    c = None if space(function, target) is None else convolution_of(function, every=True)
    if c is None:
        return 1.0
    lanes = target.lanes("float32")
    direct = direct_cycles(c, target, lanes, at_peak=True)
    return max(direct / least_cycles(c, target, lanes), 1.0)


def least_cycles(c: Convolution, target: Target, lanes: int) -> float:
    """Cycles in the model of the best of the method's configs."""
    return default_of(c, target, lanes)[1]
