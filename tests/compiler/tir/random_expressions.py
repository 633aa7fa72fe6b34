"""Tensor expressions that are chosen by numbers, with the values that NumPy gives them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, TypeAlias

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray
from tunefarm.compiler import te
from tunefarm.compiler.tir.ir import Expr, PrimFunc, binary

EXACT = {"float32": 2.0**23, "float64": 2.0**52}  # whole numbers below are exact
Numbers: TypeAlias = tuple[int, int, int]


@dataclass(frozen=True)
class Stage:
    """A tensor expression and the value that NumPy gives it."""

    tensor: te.Tensor
    value: NDArray[Any]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.value.shape

    def at(self, *indices: Any) -> Expr:
        return self.tensor[indices]


Stages: TypeAlias = Sequence[Stage]
Step: TypeAlias = Callable[[Stages, Numbers], Stage]


def pick(stages: Stages, number: int) -> Stage:
    return stages[-1 - number % len(stages)]


def stage(f: Callable[..., Any], value: NDArray[Any]) -> Stage:
    return Stage(te.compute(value.shape, f, name="t"), value)


def axis_of(x: Stage, number: int) -> int:
    return number % len(x.shape)


def replaced(items: Sequence[Any], axis: int, item: Any) -> tuple[Any, ...]:
    return (*items[:axis], item, *items[axis + 1 :])


# --- steps -------------------------------------------------------------------------------------


def scaled(stages: Stages, n: Numbers) -> Stage:
    x, factor, offset = pick(stages, n[0]), n[1] % 3, n[2] % 4
    value = x.value * x.value.dtype.type(factor) + x.value.dtype.type(offset)
    return stage(lambda *i: x.at(*i) * factor + offset, value)


def transposed(stages: Stages, n: Numbers) -> Stage:
    x = pick(stages, n[0])
    order = np.random.default_rng(n[1]).permutation(len(x.shape))
    back = [int(d) for d in np.argsort(order)]
    return stage(lambda *i: x.at(*(i[d] for d in back)), x.value.transpose(order))


def reduced(stages: Stages, n: Numbers) -> Stage:
    x = pick(stages, n[0])
    mask = 1 + n[1] % (2 ** len(x.shape) - 1)
    axes = tuple(d for d in range(len(x.shape)) if mask >> d & 1)
    name, reduce, meaning = (
        ("sum", te.sum, np.add),
        ("max", te.max, np.maximum),
        ("min", te.min, np.minimum),
        ("prod", te.prod, np.multiply),
    )[n[2] % 4]
    value = meaning.reduce(x.value, axis=axes, dtype=x.value.dtype)
    terms = {d: te.reduce_axis(x.shape[d], f"r{d}") for d in axes}

    def element(*i: Any) -> Any:
        kept = iter(i)
        return reduce(
            x.at(*(terms[d] if d in terms else next(kept) for d in range(len(x.shape)))),
            list(terms.values()),
        )

    return Stage(te.compute(value.shape, element, name=name), np.asarray(value))


def padded(stages: Stages, n: Numbers) -> Stage:
    x, low, high = pick(stages, n[0]), n[1] % 3, n[2] % 3
    axis = axis_of(x, n[1])
    width = [(low, high) if d == axis else (0, 0) for d in range(len(x.shape))]
    extent = x.shape[axis]

    def element(*i: Any) -> Any:
        here = i[axis]
        inside = binary("and", here >= low, here < low + extent)
        return te.if_then_else(inside, x.at(*replaced(i, axis, here - low)), 7)

    return stage(element, np.pad(x.value, width, constant_values=7))


def strided(stages: Stages, n: Numbers) -> Stage:
    x = pick(stages, n[0])
    axis = axis_of(x, n[0])
    start, step = n[1] % x.shape[axis], 1 + n[2] % 3
    cut = replaced([slice(None)] * len(x.shape), axis, slice(start, None, step))
    return stage(lambda *i: x.at(*replaced(i, axis, i[axis] * step + start)), x.value[cut])


def reversed_(stages: Stages, n: Numbers) -> Stage:
    x = pick(stages, n[0])
    axis = axis_of(x, n[1])
    last = x.shape[axis] - 1
    return stage(lambda *i: x.at(*replaced(i, axis, last - i[axis])), np.flip(x.value, axis))


def reshaped(stages: Stages, n: Numbers) -> Stage:
    x = pick(stages, n[0])
    size = x.value.size
    rows = [d for d in range(1, size + 1) if size % d == 0]
    shape = (rows[n[1] % len(rows)], size // rows[n[1] % len(rows)])

    def element(i: Any, j: Any) -> Any:
        flat, indices = i * shape[1] + j, []
        for d, extent in enumerate(x.shape):
            indices.append(flat // prod(x.shape[d + 1 :]) % extent)
        return x.at(*indices)

    return stage(element, x.value.reshape(shape))


def concatenated(stages: Stages, n: Numbers) -> Stage:
    x, y = pick(stages, n[0]), pick(stages, n[1])
    axis = axis_of(x, n[2])
    if replaced(x.shape, axis, 0) != replaced(y.shape, min(axis, len(y.shape) - 1), 0):
        y = x
    at = x.shape[axis]

    def element(*i: Any) -> Any:
        second = y.at(*replaced(i, axis, i[axis] - at))
        return te.if_then_else(i[axis] < at, x.at(*i), second)

    return stage(element, np.concatenate([x.value, y.value], axis))


def gathered(stages: Stages, n: Numbers) -> Stage:
    x, count, step = pick(stages, n[0]), 1 + n[1] % 5, n[2] % 7
    axis = axis_of(x, n[2])
    extent = x.shape[axis]
    rows = te.compute((count,), lambda i: (i * step + 1) % extent, name="rows")
    value = np.take(x.value, (np.arange(count) * step + 1) % extent, axis)
    return stage(lambda *i: x.at(*replaced(i, axis, rows[i[axis]])), value)


def combined(stages: Stages, n: Numbers) -> Stage:
    """With the other's element of the same place, or its first where it has no such place."""
    x, y = pick(stages, n[0]), pick(stages, n[1])
    fits = len(y.shape) == len(x.shape) and all(
        b in (1, a) for a, b in zip(x.shape, y.shape, strict=True)
    )
    operations: list[tuple[Any, Any]] = [
        ("add", np.add), ("sub", np.subtract), ("mul", np.multiply), ("max", np.maximum),
        ("min", np.minimum), ("lt", np.less),
    ]  # fmt: skip
    op, meaning = operations[n[2] % len(operations)]
    other = y.value if fits else y.value.ravel()[0]
    value = np.asarray(meaning(x.value, other)).astype(x.value.dtype)

    def element(*i: Any) -> Any:
        place = [v if e > 1 else 0 for v, e in zip(i, y.shape, strict=False)]
        b = y.at(*(place if fits else [0] * len(y.shape)))
        result = binary(op, x.at(*i), b)
        return te.cast(result, x.tensor.dtype)

    return stage(element, value)


def contracted(stages: Stages, n: Numbers) -> Stage:
    """Over the last axis of one and the first of the other, or of one with itself."""
    x, y = pick(stages, n[0]), pick(stages, n[1])
    k = te.reduce_axis(x.shape[-1])
    if x.shape[-1] != y.shape[0]:
        inner = len(x.shape) - 1
        value = np.tensordot(x.value, x.value, ((inner,), (inner,))).astype(x.value.dtype)
        return stage(lambda *i: te.sum(x.at(*i[:inner], k) * x.at(*i[inner:], k), [k]), value)
    value = np.tensordot(x.value, y.value, 1).astype(x.value.dtype)
    kept = len(x.shape) - 1
    return stage(lambda *i: te.sum(x.at(*i[:kept], k) * y.at(k, *i[kept:]), [k]), value)


STEPS: tuple[Step, ...] = (
    scaled, transposed, reduced, padded, strided, reversed_, reshaped, concatenated, gathered,
    combined, contracted,
)  # fmt: skip


# --- programs ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A program, its inputs, and the outputs that NumPy computes."""

    program: PrimFunc
    arrays: list[NDArray[Any]]
    want: list[NDArray[Any]]


def case(
    shapes: Sequence[tuple[int, ...]], dtype: str, steps: Sequence[tuple[Step, Numbers]]
) -> Case:
    """The last one or two stages that the steps add to the inputs."""
    with np.errstate(all="ignore"):
        stages = _grown(shapes, dtype, steps)
    inputs, outputs = stages[: len(shapes)], stages[len(shapes) :][-2:]
    program = te.create_prim_func([s.tensor for s in (*inputs, *outputs)])
    return Case(program, [s.value for s in inputs], [s.value for s in outputs])


def _grown(
    shapes: Sequence[tuple[int, ...]], dtype: str, steps: Sequence[tuple[Step, Numbers]]
) -> list[Stage]:
    """Placeholders and the stages that the steps add; what would grow too large is left out."""
    rng = np.random.default_rng(len(steps))
    low = 0 if dtype.startswith("u") else -3
    stages = [
        Stage(te.placeholder(s, dtype, f"x{n}"), rng.integers(low, 4, s).astype(dtype))
        for n, s in enumerate(shapes)
    ]
    for step, numbers in [*steps, (scaled, (0, 2, 1))]:
        new = step(stages, numbers)
        shaped = 0 < new.value.size <= 500 and 1 <= len(new.shape) <= 4
        peak = np.abs(new.value.astype(np.float64)).max(initial=0)
        if shaped and peak < EXACT.get(dtype, np.inf):
            stages.append(new)
    return stages


number = st.integers(0, 999)
shape = st.lists(st.integers(1, 6), min_size=1, max_size=3).map(tuple)
step = st.tuples(st.sampled_from(STEPS), st.tuples(number, number, number))
dtypes = st.sampled_from(["float32", "float64", "int8", "int32", "int64", "uint8", "uint32"])
cases = st.builds(case, st.lists(shape, min_size=1, max_size=2), dtypes, st.lists(step, max_size=5))
