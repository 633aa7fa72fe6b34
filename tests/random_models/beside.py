"""Our build of a random model beside onnxruntime: what differs, in words.

Results are equal to the last bit whatever the number of threads, in every run, and from an exported
library. onnxruntime's they are but for rounding. How much that may change depends on the model: it
is held against how far onnxruntime's own results move when the inputs move by a rounding, or when
its optimizers are off.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import onnx
from tunefarm.compiler.runtime.module import Module

import tunefarm
from tests.random_models.builds import Build, build, choose_build, has_halves
from tests.random_models.draft import Array, Draft, Unsuitable, session_of
from tests.random_models.draw import draw

Values = Mapping[str, Array]
TIGHT, LOOSE = 2e-4, 0.08
"""Errors, as shares of the largest result, that need no excuse: of float32, and of what is rounded
to fewer bits, where a number at a boundary becomes one or the other neighbour."""
WORST_TIGHT, WORST_LOOSE = 0.3, 0.25
"""What no excuse covers in float32, and what needs none where neighbours multiply."""
MOVES = 30
"""How many times as far as onnxruntime's own results move ours may be off: its move is one sample,
and Winograd's and Strassen's methods round more often than it does."""
ROUNDING = 3e-7
LEAST = 1e-4  # results that are smaller are what differences of equal numbers leave


def differences(seed: int) -> list[str]:
    """What is wrong with our build of this seed's model. Unsuitable if onnxruntime, which took its
    nodes one by one, refuses the whole of them."""
    draft = draw(seed)
    model = draft.model()
    by_onnxruntime(model, draft.inputs)
    how = choose_build(seed, model)
    try:
        return [f"{how}: {told}" for told in _differences(draft, model, how, seed)]
    except Exception as error:
        error.add_note(f"seed {seed}, {how}")
        raise


def _differences(draft: Draft, model: onnx.ModelProto, how: Build, seed: int) -> Iterator[str]:
    module = build(model, how, seed)
    rng = np.random.default_rng((seed, 3))
    others = {
        name: np.asarray(rng.standard_normal(value.shape), np.float32)
        for name, value in draft.inputs.items()
    }
    first = module.run(draft.inputs)
    for feeds in (draft.inputs, others):
        ours = module.run(feeds, threads=1)
        yield from _unequal(ours, module.run(feeds, threads=2), "with two threads")
        yield from unlike(model, feeds, ours, _is_loose(model, how))
    # After another run, whose values lay in the same memory.
    yield from _unequal(first, module.run(draft.inputs), "in another run")
    if how.exported:
        yield from _unequal(first, _exported(module).run(draft.inputs), "from a library")


def _exported(module: Module) -> Module:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.so"
        module.export_library(path)
        return tunefarm.load_module(path)


def _unequal(some: Values, others: Values, where: str) -> Iterator[str]:
    for name, value in some.items():
        if not np.array_equal(value, others[name], equal_nan=value.dtype.kind == "f"):
            yield f"{name} is another {where}"


def _is_loose(model: onnx.ModelProto, how: Build) -> bool:
    """True if a part of the model computes with fewer bits than float32 has."""
    ops = {node.op_type for node in model.graph.node}
    return bool(how.precision) or "DequantizeLinear" in ops or has_halves(model)


def unlike(model: onnx.ModelProto, feeds: Values, ours: Values, loose: bool) -> Iterator[str]:
    """What is wrong with results of ours for these inputs, beside onnxruntime's."""
    theirs = by_onnxruntime(model, feeds)
    for name, want in theirs.items():
        got = ours[name]
        if (got.shape, got.dtype) != (want.shape, want.dtype):
            yield f"{name} is {got.dtype}{got.shape}, {want.dtype}{want.shape} in onnxruntime"
        elif _is_comparable(want):
            error = _distance(got, want)
            if error < (LOOSE if loose else TIGHT):
                continue
            moved = max(_distance(other[name], want) for other in _as_good(model, feeds))
            if not _is_excused(error, moved, loose):
                yield f"{name} {want.shape} is off by {error:.1e}, onnxruntime's by {moved:.1e}"


def _is_comparable(want: Array) -> bool:
    """False for indices and truth values, which change where numbers are nearly equal, and for
    results of nothing but rounding."""
    if want.dtype in (np.int64, np.bool_) or not np.isfinite(want).all():
        return False
    return bool(np.abs(want.astype(np.float64)).max() >= LEAST)


def _is_excused(error: float, moved: float, loose: bool) -> bool:
    if loose and error < WORST_LOOSE:
        return True
    return error <= MOVES * moved and (loose or error <= WORST_TIGHT)


def _as_good(model: onnx.ModelProto, feeds: Values) -> Iterator[Values]:
    """onnxruntime's results for inputs a rounding away, and without its optimizers."""
    rng = np.random.default_rng(0)
    near = {
        name: (value * (1 + ROUNDING * rng.standard_normal(value.shape))).astype(np.float32)
        for name, value in feeds.items()
    }
    yield by_onnxruntime(model, near)
    yield by_onnxruntime(model, feeds, optimized=False)


def _distance(some: Array, want: Array) -> float:
    """The largest difference as a share of the largest result; infinite if one is no number."""
    difference = np.abs(some.astype(np.float64) - want.astype(np.float64)).max()
    largest = np.abs(want.astype(np.float64)).max()
    return float(difference / max(largest, 1e-3)) if np.isfinite(difference) else np.inf


def by_onnxruntime(model: onnx.ModelProto, feeds: Values, optimized: bool = True) -> Values:
    """Unsuitable if it refuses the model: its shape inference and optimizers stumble over some."""
    try:
        results = session_of(model, optimized).run(None, dict(feeds))
    except Exception as error:  # its errors have no common base
        raise Unsuitable(f"onnxruntime refuses the model: {error}") from error
    names = [output.name for output in model.graph.output]
    return dict(zip(names, results, strict=True))
