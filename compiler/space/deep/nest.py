"""The loop nest of a product with a long sum in numbers, for the features of the cost model."""

from __future__ import annotations

import numpy as np
from tunefarm.compiler.space.analysis import Contraction
from tunefarm.compiler.space.columns import whole
from tunefarm.compiler.space.config import Columns, Nest
from tunefarm.compiler.space.contraction import nest as contraction_nest
from tunefarm.compiler.target import Target


def nest_of(c: Contraction, target: Target, k: Columns) -> Nest:
    """That of the contraction sketch, whose other knobs are at their least."""
    ones = np.ones_like(whole(k, "rw"))
    others = dict.fromkeys(("pack_lhs", "pack_rhs", "prefetch", "next_panel"), 0 * ones)
    order = np.array(["nm"] * len(ones))
    columns = {**k, **others, "rh": ones, "order": order}
    return contraction_nest.nest_of(c, target, target.lanes("float32"), columns)
