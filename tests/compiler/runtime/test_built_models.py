"""Built models: results for any number of threads, native from end to end, weights kept once."""

from __future__ import annotations

import gc
import importlib.util
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tunefarm.compiler.build import build_module
from tunefarm.compiler.errors import ShapeError, TunefarmError
from tunefarm.compiler.frontend.onnx.model import from_onnx
from tunefarm.compiler.ir import Constant, Expr, Function, IRModule, TensorType, Tuple, Var
from tunefarm.compiler.ops import call
from tunefarm.compiler.runtime.module import Module
from tunefarm.compiler.target import Target


@cache
def models() -> Any:
    path = Path(__file__).parents[3] / "bench" / "models.py"
    spec = importlib.util.spec_from_file_location("bench_models", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@cache
def resnet(depth: int) -> Module:
    """Two stages of ResNet-18 on a small image, for five cores."""
    made = models()._resnet("small", models()._basic_block, (depth, 1), 1, 0, 32)
    return build_module(from_onnx(made), Target.host(5))


@cache
def bert() -> Module:
    """A layer of BERT-base on 17 tokens, for five cores."""
    return build_module(from_onnx(models().bert_base(0, 17, 1, 50)), Target.host(5))


def inputs_of(lib: Module) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    return {
        p.name: rng.standard_normal(p.type.shape).astype(np.float32)
        if p.type.dtype == "float32"
        else rng.integers(0, 2, p.type.shape).astype(p.type.dtype)
        for p in lib.inputs
    }


@pytest.mark.parametrize("build", [lambda: resnet(1), bert], ids=["resnet", "bert"])
def test_any_number_of_threads_gives_the_same_bits(build: Any) -> None:
    lib = build()
    feeds = inputs_of(lib)
    (alone,) = lib.run(feeds, threads=1).values()
    assert np.isfinite(alone).all()
    for threads in (2, 3, 5):
        for _ in range(5):
            (shared,) = lib.run(feeds, threads=threads).values()
            np.testing.assert_array_equal(shared.view(np.uint32), alone.view(np.uint32))


def test_an_exported_model_gives_the_same_bits(tmp_path: Path) -> None:
    from tunefarm.compiler.runtime.module import load_module

    lib = bert()
    feeds = inputs_of(lib)
    (alone,) = lib.run(feeds, threads=1).values()
    lib.export_library(tmp_path / "bert.so")
    loaded = load_module(tmp_path / "bert.so")
    for threads in (1, 2, 3, 5):
        (shared,) = loaded.run(feeds, threads=threads).values()
        np.testing.assert_array_equal(shared.view(np.uint32), alone.view(np.uint32))


def test_results_go_into_given_arrays() -> None:
    lib = resnet(1)
    feeds = inputs_of(lib)
    ((name, wanted),) = lib.run(feeds).items()
    made = moved(np.zeros_like(wanted), 0)
    lib.run_into(feeds, {name: made})
    np.testing.assert_array_equal(made.view(np.uint32), wanted.view(np.uint32))
    with pytest.raises(ShapeError, match=f"output '{name}' is missing"):
        lib.run_into(feeds, {})
    with pytest.raises(ShapeError, match=f"output '{name}'"):
        lib.run_into(feeds, {name: made[..., :-1]})


def moved(array: np.ndarray, byte: int) -> np.ndarray:
    """A copy that begins ``byte`` bytes behind a multiple of 64."""
    raw = np.empty(array.nbytes + 128, np.uint8)
    start = (byte - raw.ctypes.data) % 64
    copy = raw[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


@pytest.mark.parametrize("build", [lambda: resnet(1), bert], ids=["resnet", "bert"])
@pytest.mark.parametrize("byte", [2, 16, 40])
def test_inputs_may_begin_anywhere(build: Any, byte: int) -> None:
    lib = build()
    feeds = {name: moved(array, byte) for name, array in inputs_of(lib).items()}
    for given, taken in zip(feeds.values(), lib.check_inputs(feeds, aligned=False), strict=True):
        assert np.shares_memory(given, taken) == (byte % given.itemsize == 0)
        assert taken.flags.aligned
    assert all(a.ctypes.data % 64 == 0 for a in lib.check_inputs(feeds))
    (wanted,) = lib.run(inputs_of(lib)).values()
    (made,) = lib.run(feeds).values()
    np.testing.assert_array_equal(made.view(np.uint32), wanted.view(np.uint32))


@pytest.mark.parametrize("threads", [0, -1, 257, 1.5, "2"])
def test_impossible_numbers_of_threads_are_refused(threads: Any) -> None:
    with pytest.raises(TunefarmError, match="expected a whole number, 1 to 256"):
        resnet(1).run(inputs_of(resnet(1)), threads=threads)


def events_of(lib: Module) -> int:
    """Calls that the interpreter sees while a model runs: of Python and of C functions."""
    feeds = inputs_of(lib)
    lib.run(feeds)
    count = 0

    def watch(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(watch)
    try:
        lib.run(feeds)
    finally:
        sys.setprofile(None)
    return count


def test_no_python_runs_between_nodes() -> None:
    short, long = resnet(1), resnet(2)
    assert len(long.plan.steps) > len(short.plan.steps)
    assert events_of(long) == events_of(short) > 0


def test_the_peak_is_arena_and_workspace() -> None:
    lib = resnet(1)
    assert lib.peak_bytes == lib.plan.arena_bytes > 0


def product(seed: int, rows: int = 3) -> IRModule:
    """Two products with one weight, given as two constants of equal values."""
    weight = np.random.default_rng(seed).standard_normal((64, 64)).astype(np.float32)
    x = Var("x", TensorType((rows, 64), "float32"))
    once = call("relu", call("matmul", x, Constant(weight, "first")))
    again = call("matmul", once, Constant(weight.copy(), "second"))
    return IRModule({"main": Function((x,), Tuple((once, again)))}, ("once", "again"))


def test_equal_weights_are_packed_once() -> None:
    lib = build_module(product(0), Target.host(1))
    assert is_one_copy(lib.plan.weight_bytes)


def is_one_copy(weight_bytes: int) -> bool:
    """Of 64 × 64 floats, whose columns are packed by whole panels."""
    return 64 * 64 * 4 <= weight_bytes <= 64 * 96 * 4


def test_equal_weights_may_lie_anyhow_in_memory() -> None:
    one = np.float32(0.5)
    weights = (
        np.broadcast_to(one, (64, 64)),
        np.full((64, 64), one),
        np.full((128, 64), one)[::2],
        np.full((64, 64), one).T,
    )
    x = Var("x", TensorType((3, 64), "float32"))
    y: Expr = x
    for weight in weights:
        y = call("matmul", y, Constant(weight))
    lib = build_module(IRModule({"main": Function((x,), y)}), Target.host(1))
    assert is_one_copy(lib.plan.weight_bytes)
    (made,) = lib.run({"x": np.ones((3, 64), np.float32)}).values()
    np.testing.assert_array_equal(made, np.full((3, 64), 32.0**4, np.float32))


def test_builds_of_equal_weights_share_them() -> None:
    one, same, other = (build_module(product(seed), Target.host(1)) for seed in (0, 0, 1))
    assert one.weights is same.weights
    assert one.weights_address == same.weights_address != other.weights_address
    for lib in (one, same):
        x = np.ones((3, 64), np.float32)
        with pytest.raises(ValueError, match="read-only"):
            lib.weights[0] = 1
        assert lib.run({"x": x})


def test_weights_go_with_the_last_module() -> None:
    import weakref

    one, same = (build_module(product(2), Target.host(1)) for _ in range(2))
    watched = weakref.ref(one.weights)
    del one
    gc.collect()
    assert watched() is same.weights
    del same
    gc.collect()
    assert watched() is None
