"""Models on emulated devices: their results, their memory, and what a module is asked."""

from __future__ import annotations

import gc
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import numpy as np
import pytest
from small_networks import (
    F16,
    F32,
    Array,
    attention,
    branches,
    classifier,
    dense,
    inputs_of,
    residual,
)
from tunefarm.compiler.build import build_module
from tunefarm.compiler.errors import BuildError, ShapeError, TargetError
from tunefarm.compiler.evaluate import evaluate
from tunefarm.compiler.ir import IRModule, TensorType
from tunefarm.compiler.runtime.arrays import aligned_empty
from tunefarm.compiler.runtime.cuda.arrays import DeviceArray, to_device
from tunefarm.compiler.runtime.cuda.driver import open_device
from tunefarm.compiler.runtime.cuda.memory import block_size, pool_of
from tunefarm.compiler.runtime.cuda.module import CudaModule
from tunefarm.compiler.target import Target

HOPPER = Target("cuda -arch=sm_90a")
Network = Callable[[], IRModule]
NETWORKS: dict[str, Network] = {
    "dense": dense,
    "classifier": classifier,
    "classifier, f16": lambda: classifier(F16),
    "residual": residual,
    "residual, f16": lambda: residual(F16),
    "attention": attention,
    "attention, f16": lambda: attention(F16),
    "branches": branches,
}


@cache
def built(name: str) -> CudaModule:
    made = build_module(NETWORKS[name](), HOPPER)
    assert isinstance(made, CudaModule)
    return made


def close(name: str, got: dict[str, Array], wanted: dict[str, Array]) -> None:
    tolerance = 5e-3 if "f16" in name else 2e-5
    for (output, value), want in zip(got.items(), wanted.values(), strict=True):
        assert value.dtype == want.dtype
        assert value.shape == want.shape
        largest = np.abs(want.astype(np.float64)).max()
        error = np.abs(value.astype(np.float64) - want.astype(np.float64)).max()
        assert error <= tolerance * largest, output


@pytest.mark.parametrize("name", NETWORKS)
def test_a_model_gives_what_numpy_and_processors_give(name: str) -> None:
    program, lib = NETWORKS[name](), built(name)
    given = inputs_of(program)
    wanted = dict(zip((p.name for p in lib.outputs), evaluate(program, given), strict=True))
    got = lib.run(given)
    close(name, got, wanted)
    close(name, got, build_module(program, Target.host(1)).run(given))


def test_replayed_runs_read_their_own_inputs() -> None:
    lib, program = built("dense"), dense()
    for seed in range(4):
        given = inputs_of(program, seed)
        close("dense", lib.run(given), {"output": evaluate(program, given)[0]})


def test_results_stay_on_the_device_if_one_asks() -> None:
    lib, program = built("dense"), dense()
    given = inputs_of(program)
    device = open_device(0)
    x = to_device(device, given["x"], lib.inputs[0].type, "x")
    (first,) = lib.run({"x": x}, device=True).values()
    assert isinstance(first, DeviceArray)
    assert first.memory.device is device
    assert first.shape == (4, 24)
    assert repr(first) == "DeviceArray(float32[4, 24] on device 0)"
    (wanted,) = lib.run(given).values()
    np.testing.assert_array_equal(first.numpy(), wanted)
    np.testing.assert_array_equal(np.asarray(first), wanted)


def test_results_go_where_they_are_wanted() -> None:
    lib = built("branches")
    given = inputs_of(branches())
    wanted = lib.run(given)
    host = {p.name: aligned_empty(p.type) for p in lib.outputs}
    lib.run_into(given, host)
    device = open_device(0)
    there = {
        p.name: to_device(device, np.zeros(p.type.shape, np.float32), p.type, p.name)
        for p in lib.outputs
    }
    lib.run_into(given, there)
    raw = [aligned_empty(p.type) for p in lib.outputs]
    lib.run_raw(lib.check_inputs(given), raw)
    for (name, want), array in zip(wanted.items(), raw, strict=True):
        np.testing.assert_array_equal(host[name], want)
        np.testing.assert_array_equal(there[name].numpy(), want)
        np.testing.assert_array_equal(array, want)
    with pytest.raises(ShapeError, match="output 'joined' is missing"):
        lib.run_into(given, {"projected": host["projected"]})


def test_threads_have_memory_of_their_own() -> None:
    lib, program = built("dense"), dense()
    feeds = [inputs_of(program, seed) for seed in range(4)]
    alone = [lib.run(feed)["output"] for feed in feeds]
    with ThreadPoolExecutor(4) as threads:
        together = list(threads.map(lambda feed: lib.run(feed)["output"], feeds))
    np.testing.assert_array_equal(together, alone)


def test_a_module_runs_on_another_device() -> None:
    lib = built("dense")
    other = lib.on_device(1)
    given = inputs_of(dense())
    np.testing.assert_array_equal(other.run(given)["output"], lib.run(given)["output"])
    assert "device=1 (emulated sm_90a)" in repr(other)
    x = to_device(open_device(0), given["x"], lib.inputs[0].type, "x")
    with pytest.raises(TargetError, match=r"input 'x' lies on device 0 and the code on device 1"):
        other.run({"x": x})
    with pytest.raises(TargetError, match=r"there is no device 2 here; there are 0, 1"):
        lib.on_device(2).run(given)


def test_what_does_not_fit_is_refused() -> None:
    lib = built("classifier")
    with pytest.raises(ShapeError, match="input 'x' is missing"):
        lib.run({})
    with pytest.raises(ShapeError, match="has dtype float64, expected float32"):
        lib.run({"x": np.zeros((1, 8, 12, 12))})
    x = to_device(open_device(0), np.zeros((2, 3), np.float32), TensorType((2, 3), F32), "x")
    with pytest.raises(ShapeError, match=r"input 'x' has shape \(2, 3\)"):
        lib.run({"x": x})
    with pytest.raises(BuildError, match="kernels of processors"):
        lib.graph_executor()
    with pytest.raises(BuildError, match=r"has no 'asm' source here; it has llvm, ptx and acc"):
        lib.get_source("asm")


def test_code_is_shown_without_a_device() -> None:
    lib = build_module(residual(), HOPPER)
    kernels = len(lib.plan.kernels)
    assert lib.get_source("ptx").count(".visible .entry") >= kernels
    assert lib.get_source().count("define ptx_kernel") >= kernels
    assert re.fullmatch(
        r"CudaModule\(x: float32\[1, 16, 6, 6\] → output: float32\[1, 32\], kernels=\d, .*"
        r"target=cuda -arch=sm_90a, device=0\)",
        repr(lib),
    )
    assert "cuda -arch=sm_90a" in lib._repr_html_()


def test_weights_lie_on_a_device_once() -> None:
    gc.collect()
    pool = pool_of(open_device(1))
    used = pool.held_bytes - pool.free_bytes
    one, same = (build_module(dense(), HOPPER) for _ in range(2))
    given = inputs_of(dense())
    sizes = []
    for lib in (one, same):
        assert isinstance(lib, CudaModule)
        lib = lib.on_device(1)
        lib.run(given)
        sizes.append(pool.held_bytes - pool.free_bytes - used)
        sizes.append(lib)
    first, mine, second, other = sizes
    assert isinstance(mine, CudaModule)
    assert isinstance(other, CudaModule)
    run = [mine.peak_bytes, *(4 * p.type.size for p in (*mine.inputs, *mine.outputs))]
    weights = block_size(mine.plan.weight_bytes)
    assert first == weights + sum(map(block_size, run))
    assert second == first + sum(map(block_size, run))
    del mine, other, lib, one, same, sizes
    gc.collect()
    assert pool.held_bytes - pool.free_bytes == used


def test_times_are_told() -> None:
    lib = built("dense")
    timing = lib.time_evaluator(number=2, repeat=2)
    assert timing.number == 2
    assert all(seconds > 0 for seconds in timing.seconds)
    assert lib.time_evaluator(repeat=1, cold_weights=True).median > 0
    profile = lib.profile(inputs_of(dense()), repeat=1)
    assert [node.kernel for node in profile.nodes] == [step.kernel for step in lib.plan.steps]
    assert all(node.seconds > 0 for node in profile.nodes)
    copied = [n for n in built("branches").profile(repeat=1).nodes if n.kernel == "copy"]
    assert len(copied) == 1
