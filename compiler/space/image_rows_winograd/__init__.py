"""Depthwise 3 × 3 convolutions of stride 1 by Winograd's method, lanes along rows of the image.

    parallel over blocks of (images, rows of the result)
      for strip of a vector of a row:                        12 weights in registers
        for tile of two rows, unrolled:                      down the strip
          for taps across, unrolled:
            4 points of four rows of the image: 4 additions  two rows of the tile before
            products += points · 4 weights                   in registers
          two results: 4 additions, epilogue

What ``depthwise_winograd`` does along rows, down the columns: there a vector's lanes may be of any
pixels, as in ``image_rows``, so that channels need not fill vectors. Two results take 12
multiply-adds instead of 18 and 16 additions, with an error of at most 5e-7 of the largest result
(float32; 1.5e-7 measured). Loads of neighbouring pixels meet two lines, as in ``image_rows``; a
strip of 28 rows loads 3.2 vectors for each of results.

On one core of a Zen 4 it takes 0.79 to 0.97 × the time of ``image_rows`` (28² of 17, 20 and 33
channels 0.89, 0.84 and 0.85, 56² of 33 0.84, 112² of 20 0.79, 112² of 3 0.81), and 0.8 to 1.1 × on
two; more where a row is about a multiple of 4 KiB long. Where channels fill three quarters of their
vectors ``depthwise_winograd`` takes as long or less. It is a default on the processors of which
that is one.
"""

from __future__ import annotations

from tunefarm.compiler.ir import Function
from tunefarm.compiler.space import depthwise_winograd, image_rows
from tunefarm.compiler.space.config import SketchSpace
from tunefarm.compiler.space.depthwise_winograd.knobs import waits_for_stores
from tunefarm.compiler.space.image_rows_winograd.apply import schedule
from tunefarm.compiler.space.image_rows_winograd.knobs import (
    NAME,
    VERSION,
    default_of,
    knobs_of,
    nest_of,
)
from tunefarm.compiler.space.image_rows_winograd.program import rows_of
from tunefarm.compiler.target import Target

LEAST_ROWS = 9  # of the result, for it to be a default: with 5 to 8 neither is faster

__all__ = ["schedule", "space"]


def space(function: Function, target: Target) -> SketchSpace | None:
    """The knobs of such a convolution; None where the method does not apply, or channels fill
    vectors."""
    if not depthwise_winograd.suits(target):
        return None
    c, along_rows = rows_of(function), image_rows.space(function, target)
    if c is None or along_rows is None:
        return None
    lanes = target.lanes("float32")
    knobs = knobs_of(c)
    worth = along_rows.preferred and c.height >= LEAST_ROWS and not waits_for_stores(c)
    return SketchSpace(
        NAME,
        VERSION,
        knobs,
        (),
        default_of(c, target, lanes, knobs),
        lambda k: nest_of(c, target, lanes, k),
        preferred=worth and target.product_clocks > 1,
    )
