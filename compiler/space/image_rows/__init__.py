"""Depthwise convolutions with lanes along rows of the image: pixels and channels as one axis.

    parallel over blocks of (rows, vectors of a row)
      for tile of rows:
        for taps across:
          for taps down, for rows, unrolled:             rw + taps - 1 loads for rw · taps products
            accumulators += x[row + tap, lanes] · w[lanes]
        epilogue on the accumulators → result

The tile is that of ``contraction``, over rows of the image. It serves channels that leave vectors
half empty: 28 pixels of 17 channels take 30 vectors here, and 56 where each pixel has its own. The
price is that loads begin anywhere in a line of the cache, and weights for as many pixels as it
takes until channels meet the same lanes again.
"""

from __future__ import annotations

from tunefarm.compiler.ir import Function
from tunefarm.compiler.space import contraction
from tunefarm.compiler.space.config import Config, SketchSpace
from tunefarm.compiler.space.contraction.apply import tiled
from tunefarm.compiler.space.contraction.default import config_cycles
from tunefarm.compiler.space.contraction.knobs import constraints_of, knobs_of
from tunefarm.compiler.space.contraction.nest import nest_of
from tunefarm.compiler.space.contraction.shape import contraction_of, lanes_of, takes_few_sums
from tunefarm.compiler.space.image_rows.default import WORTH, default_of
from tunefarm.compiler.space.image_rows.periods import with_repeated
from tunefarm.compiler.space.image_rows.program import image_rows_of, scheduled
from tunefarm.compiler.target import Target
from tunefarm.compiler.tir import PrimFunc

__all__ = ["schedule", "space"]

NAME, VERSION = "image_rows", 2
LEAST_WASTE = 1.08  # lanes of whole vectors over channels, for the sketch to be of use
FEW_SUMS_WASTE = 1.6  # beside tiles of few sums, of which channels fill at least one vector


def space(function: Function, target: Target) -> SketchSpace | None:
    """The knobs of a depthwise convolution whose channels fill no vectors; None for others."""
    c = image_rows_of(function) if target.kind == "llvm" else None
    by_channel = contraction_of(function) if c is not None else None
    if c is None or by_channel is None:
        return None
    lanes, channels = target.lanes("float32"), by_channel.vector.extent
    waste = -(-channels // lanes) * lanes / channels
    if waste < LEAST_WASTE:
        return None
    # 12 to 49 channels take 1.05 to 1.47 × the time along rows, 9 as long, fewer half (Zen 3).
    few = takes_few_sums(by_channel, target) and channels > lanes and waste < FEW_SUMS_WASTE
    lanes = lanes_of(c, target)
    knobs, constraints = knobs_of(c, lanes), constraints_of(c, target, lanes)
    default, cycles = default_of(c, target, lanes, knobs, constraints)
    other = contraction.space(function, target)
    assert other is not None
    apart = config_cycles(by_channel, target, lanes_of(by_channel, target), other.default)
    return SketchSpace(
        NAME,
        VERSION,
        knobs,
        constraints,
        {"sketch": NAME, **default},
        lambda columns: nest_of(c, target, lanes, columns),
        preferred=WORTH * cycles < apart and not few,
    )


def schedule(function: Function, target: Target, config: Config) -> PrimFunc:
    """Apply a config. Raises ScheduleError if the function is no such convolution."""
    c = scheduled(function)
    # Hints run through all panels.
    hints = int(config["prefetch"]) or int(config["next_panel"])
    return with_repeated(tiled(c, target, config), function, one_period=not hints)
