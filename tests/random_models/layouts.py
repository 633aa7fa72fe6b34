"""Steps that move elements and compute little: parts, joins, orders, shapes."""

from __future__ import annotations

import numpy as np

from tests.random_models.draft import Draft, Unsuitable

BEYOND = 1 << 40  # an end of a slice that stands for the axis's


def concat(draft: Draft) -> str:
    x = draft.pick(least=1)
    shape = draft.shape(x)
    axis = draft.any(1 % len(shape), draft.between(0, len(shape) - 1), len(shape) - 1)
    rest = [*shape[:axis], *shape[axis + 1 :]]
    fits = [
        name
        for name, value in draft.floats().items()
        if value.ndim == len(shape) and [*np.delete(value.shape, axis)] == rest
    ]
    parts = [draft.any(*fits) for _ in range(draft.between(1, 3))]
    parts.insert(draft.between(0, len(parts)), x)
    if draft.chance(0.2):
        extents = [*shape[:axis], draft.between(1, 5), *shape[axis + 1 :]]
        parts.append(draft.constant(draft.normal(*extents)))
    return draft.node("Concat", *parts, axis=axis - draft.any(0, len(shape)))


def split(draft: Draft) -> list[str]:
    x = draft.pick(least=1)
    axis = draft.between(0, len(draft.shape(x)) - 1)
    extent = draft.shape(x)[axis]
    if extent < 2:
        raise Unsuitable("the axis has no parts")
    count = draft.between(2, min(4, extent))
    cuts = np.sort(draft.rng.choice(np.arange(1, extent), count - 1, replace=False))
    sizes = np.diff([0, *cuts, extent])
    return draft.results("Split", x, draft.ints(*sizes), count=count, axis=axis)


def slices(draft: Draft) -> str:
    """A part of some axes, in steps, or from the end to the beginning."""
    x = draft.pick(least=1)
    shape = draft.shape(x)
    axes = [i for i in range(len(shape)) if draft.chance(0.5)] or [0]
    starts, ends, steps = [], [], []
    for axis in axes:
        step = draft.any(1, 1, 1, 2, -1, 3)
        low = draft.between(0, shape[axis] - 1)
        high = draft.between(low + 1, shape[axis])
        if step > 0:
            starts.append(low)
            ends.append(high if draft.chance(0.5) else BEYOND)
        else:
            starts.append(high - 1 if draft.chance(0.5) else -1)
            ends.append(low - 1 if low else -BEYOND)
        steps.append(step)
    return draft.node("Slice", x, *(draft.ints(*v) for v in (starts, ends, axes, steps)))


def rolled(draft: Draft) -> str:
    """A tensor rolled along an axis, as attention in shifted windows does it."""
    x = draft.pick(least=2)
    axis = draft.between(0, len(draft.shape(x)) - 1)
    extent = draft.shape(x)[axis]
    if extent < 2:
        raise Unsuitable("there is nothing to roll")
    zero, cut, end, axes = (
        draft.ints(value) for value in (0, draft.between(1, extent - 1), BEYOND, axis)
    )
    tail, head = draft.node("Slice", x, cut, end, axes), draft.node("Slice", x, zero, cut, axes)
    return draft.node("Concat", tail, head, axis=axis)


def reshape(draft: Draft) -> str:
    x = draft.pick()
    shape = draft.shape(x)
    if len(shape) >= 2 and draft.chance(0.3):
        return draft.node("Flatten", x, axis=draft.between(0, len(shape)))
    if draft.chance(0.3):
        if len(shape) >= 5:
            return draft.node("Squeeze", x)
        return draft.node("Unsqueeze", x, draft.ints(draft.between(0, len(shape))))
    left = int(np.prod(shape))
    extents: list[int] = []
    while left > 1 and len(extents) < 3:
        extents.append(draft.any(*(f for f in range(1, min(left, 64) + 1) if left % f == 0)))
        left //= extents[-1]
    return draft.node("Reshape", x, draft.ints(*extents, left))


def transpose(draft: Draft) -> str:
    x = draft.pick(least=2)
    order = draft.rng.permutation(len(draft.shape(x)))
    return draft.node("Transpose", x, perm=[int(axis) for axis in order])


def pad(draft: Draft) -> str:
    """Elements added at the ends, or taken off."""
    x = draft.pick(least=1)
    mode = draft.any("constant", "constant", "reflect", "edge")
    pads = []
    for extent in draft.shape(x) * 2:
        if draft.chance(0.5):
            pads.append(draft.between(0, min(3, extent - 1)))
        else:
            pads.append(-draft.between(0, 1) if mode == "constant" and extent > 3 else 0)
    value = [draft.number(draft.any(0, 1.5))] if mode == "constant" and draft.chance(0.5) else []
    return draft.node("Pad", x, draft.ints(*pads), *value, mode=mode)


def repeat(draft: Draft) -> str:
    x = draft.pick(least=1)
    shape = draft.shape(x)
    if draft.chance(0.5):
        return draft.node("Tile", x, draft.ints(*(draft.any(1, 1, 2, 3) for _ in shape)))
    extents = [draft.between(1, 3) if extent == 1 else 1 for extent in shape]
    if draft.chance(0.5):
        extents.insert(0, draft.between(1, 3))
    return draft.node("Expand", x, draft.ints(*extents))


def gather(draft: Draft) -> str:
    """Gather or GatherElements by constant indices, some of them negative."""
    x = draft.pick(least=1)
    shape = draft.shape(x)
    axis = draft.between(-len(shape), len(shape) - 1)
    if draft.chance(0.3):
        op, extents = "GatherElements", [draft.between(1, extent) for extent in shape]
    else:
        op, extents = "Gather", [draft.between(1, 5) for _ in range(draft.between(0, 2))]
    index = draft.rng.integers(-shape[axis], shape[axis], extents)
    return draft.node(op, x, draft.constant(np.asarray(index, np.int64)), axis=axis)


def scatter(draft: Draft) -> str:
    """ScatterND or ScatterElements that write no element twice."""
    x = draft.pick(least=2)
    shape = draft.shape(x)
    if draft.chance(0.5):
        rows = draft.rng.choice(shape[0], draft.between(1, shape[0]), replace=False)[:, None]
        updates = draft.constant(draft.normal(len(rows), *shape[1:]))
        return draft.node("ScatterND", x, draft.constant(rows.astype(np.int64)), updates)
    axis = draft.between(0, len(shape) - 1)
    count = draft.between(1, shape[axis])
    rest = [extent for i, extent in enumerate(shape) if i != axis]
    orders = [draft.rng.permutation(shape[axis])[:count] for _ in range(int(np.prod(rest)))]
    index = np.moveaxis(np.reshape(orders, (*rest, count)), -1, axis).astype(np.int64)
    updates = draft.constant(draft.normal(*index.shape))
    return draft.node("ScatterElements", x, draft.constant(index), updates, axis=axis)


def along_axis(draft: Draft) -> str:
    """Sums of what is before or behind, a triangle, or the largest or least elements."""
    x = draft.pick(least=2)
    shape = draft.shape(x)
    axis = draft.between(0, len(shape) - 1)
    match draft.any("sum", "triangle", "top"):
        case "sum":
            where = draft.constant(np.int64(axis - draft.any(0, len(shape))))
            ways = {"exclusive": draft.between(0, 1), "reverse": draft.between(0, 1)}
            y = draft.node("CumSum", x, where, **ways)
            return draft.node("Div", y, draft.number(shape[axis]))
        case "triangle":
            diagonal = draft.constant(np.int64(draft.between(-2, 2)))
            return draft.node("Trilu", x, diagonal, upper=draft.between(0, 1))
        case _:
            count = draft.ints(draft.between(1, shape[axis]))
            largest = draft.between(0, 1)
            return draft.results("TopK", x, count, count=2, axis=axis, largest=largest)[0]
