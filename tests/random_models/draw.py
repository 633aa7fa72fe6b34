"""The random model of a seed."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from tests.random_models import elements, layouts, narrow, networks, products, shapes, windows
from tests.random_models.draft import Draft, Unsuitable

STEPS: Mapping[Callable[[Draft], object], float] = {
    windows.conv: 4,
    windows.conv_transpose: 0.5,
    windows.pool: 1.5,
    windows.resize: 0.8,
    windows.blocks_of_pixels: 0.3,
    products.matmul: 2,
    products.gemm: 1,
    products.einsum: 0.5,
    products.recurrent: 0.5,
    elements.unary: 3,
    elements.binary: 3,
    elements.compared: 0.6,
    elements.softmax: 1,
    elements.norm_of_channels: 0.8,
    elements.norm_of_rows: 0.8,
    elements.reduction: 1.5,
    layouts.concat: 1.5,
    layouts.split: 1,
    layouts.slices: 1.5,
    layouts.rolled: 0.7,
    layouts.reshape: 2,
    layouts.transpose: 2,
    layouts.pad: 1,
    layouts.repeat: 0.3,
    layouts.gather: 0.6,
    layouts.scatter: 0.5,
    layouts.along_axis: 0.6,
    shapes.view: 0.7,
    shapes.positions: 0.4,
    shapes.filled: 0.4,
    shapes.expanded: 0.5,
    shapes.gated: 0.5,
    narrow.rounded_to_bytes: 0.5,
    narrow.quantized_layer: 1.2,
    narrow.rounded_to_halves: 0.4,
    narrow.layer_of_halves: 0.4,
    networks.residual: 1.5,
    networks.inverted_residual: 1,
    networks.squeeze_excite: 0.5,
    networks.shuffled_channels: 1,
    networks.branches: 1,
    networks.summed_branches: 0.7,
    networks.many_channels: 0.7,
    networks.attention: 1.5,
    networks.tokens: 1,
    networks.mlp: 0.7,
}
"""The steps, and how often each is chosen beside the others."""
CHANNELS = (1, 2, 3, 4, 8, 12, 16, 17, 24, 32, 33, 48, 64)
SIDES = (1, 2, 3, 5, 7, 8, 9, 12, 14, 16, 17, 20, 28)


def draw(seed: int) -> Draft:
    """The model of this seed: 3 to 25 steps over one or two inputs."""
    draft = Draft(seed)
    for _ in range(draft.any(1, 1, 2)):
        draft.input(*_input_shape(draft))
    weights = np.array([*STEPS.values()])
    steps, shares = [*STEPS], weights / weights.sum()
    wanted = draft.between(3, 25)
    made = 0
    for _ in range(4 * wanted):
        made += _grows(draft, steps[draft.rng.choice(len(steps), p=shares)])
        if made == wanted:
            break
    return draft


def _grows(draft: Draft, step: Callable[[Draft], object]) -> bool:
    """Whether the step could be made; the nodes stay that it made before it could not."""
    try:
        step(draft)
    except Unsuitable:
        return False
    return True


def _input_shape(draft: Draft) -> tuple[int, ...]:
    n, c = draft.any(1, 1, 1, 2, 3), draft.any(*CHANNELS)
    side = draft.any(*SIDES)
    match draft.any("image", "image", "image", "sequence", "rows", "signal", "volume"):
        case "image":
            return n, c, side, side if draft.chance(0.7) else draft.any(*SIDES)
        case "sequence":
            return n, draft.any(1, 5, 16, 17, 33, 50), draft.any(8, 16, 17, 32, 48, 64)
        case "rows":
            return draft.any(1, 2, 7, 32), draft.any(3, 16, 50, 100)
        case "signal":
            return n, c, draft.any(5, 16, 33, 100)
        case _:
            return 1, draft.any(1, 3, 8, 16), draft.any(1, 3, 4), side, draft.any(*SIDES)
