"""``nvidia.py`` through the real cuda-bindings, on the driver of ``fake_driver.py``.

``test_nvidia.py`` runs these tests in a process of their own, which then has a libcuda.so.1.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import fake_driver
import numpy as np
import pytest
from fake_driver import FakeDriver
from small_networks import Array, branches, dense, inputs_of
from tunefarm.compiler import te
from tunefarm.compiler.build import build_function, build_kernel, build_module
from tunefarm.compiler.errors import BuildError, ShapeError, TargetError
from tunefarm.compiler.evaluate import evaluate
from tunefarm.compiler.gpu.cubin import assembled
from tunefarm.compiler.gpu.launches import Launch
from tunefarm.compiler.gpu.ptxas import find_ptxas
from tunefarm.compiler.ir import Function, TensorType, Var
from tunefarm.compiler.kernel import Kernel
from tunefarm.compiler.ops import call
from tunefarm.compiler.runtime.arrays import aligned_empty
from tunefarm.compiler.runtime.cuda import loading, nvidia
from tunefarm.compiler.runtime.cuda.arrays import DeviceArray, to_device
from tunefarm.compiler.runtime.cuda.driver import (
    DeviceMemoryError,
    DeviceProperties,
    DriverError,
    arch_of,
    check_device,
    devices,
    open_device,
)
from tunefarm.compiler.runtime.cuda.kernel import load_kernel
from tunefarm.compiler.runtime.cuda.memory import pool_of, take
from tunefarm.compiler.runtime.cuda.module import CudaModule
from tunefarm.compiler.space import config_space
from tunefarm.compiler.target import Target
from tunefarm.compiler.workload import Workload

HOPPER = Target("cuda -arch=sm_90a")
DEVICE_UNAVAILABLE, INVALID_DEVICE, UNKNOWN = 46, 101, 999
needs_ptxas = pytest.mark.skipif(
    find_ptxas() is None, reason="no ptxas here: pip install tunefarm[ptxas]"
)


@pytest.fixture(autouse=True)
def _real(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TUNEFARM_CUDA")


@pytest.fixture(autouse=True)
def _known_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """Machine code of modules that the driver can run."""

    def known(kernel: Kernel, arch: str) -> Kernel:
        made = assembled(kernel, arch)
        if made.cubin is not None:
            fake_driver.SOURCES[made.cubin.code] = made.object
        return made

    monkeypatch.setattr(loading, "assembled", known)


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> FakeDriver:
    made = FakeDriver()
    made.install(tmp_path_factory.mktemp("driver"))
    return made


@pytest.fixture(scope="module")
def lib(driver: FakeDriver) -> CudaModule:
    made = build_module(dense(), HOPPER)
    assert isinstance(made, CudaModule)
    return made


def live(driver: FakeDriver, kind: type) -> int:
    gc.collect()
    open_device(0).synchronize()  # what is gone is given back at such calls
    return sum(type(value) is kind for value in driver.live.values())


def test_a_driver_without_a_device(driver: FakeDriver) -> None:
    driver.devices = 0
    with pytest.raises(TargetError, match=r"shows no GPU; look at nvidia-smi and CUDA_VISIBLE"):
        devices()
    driver.devices = 1
    with pytest.raises(TargetError, match="there is no device 1 here; there are 0"):
        open_device(1)


def test_what_a_device_says_of_itself(driver: FakeDriver) -> None:
    assert devices() == (
        DeviceProperties(
            ordinal=0,
            name="Fake H200",
            arch="sm_90a",
            multiprocessors=132,
            memory_bytes=1 << 30,
            l2_bytes=50 << 20,
            shared_bytes=227 << 10,
            clock_hz=1_980_000_000,
            memory_clock_hz=3_201_000_000,
            pci="0000:17:00.0",
            uuid="GPU-00010203-0405-0607-0809-0a0b0c0d0e0f",
        ),
    )
    with pytest.raises(TargetError, match=r"device 0, Fake H200, which is sm_90a; build it for"):
        check_device(devices()[0], Target("cuda -arch=sm_100"))


def test_a_model_runs_and_is_replayed(driver: FakeDriver, lib: CudaModule) -> None:
    launched = []
    for seed in range(3):
        given = inputs_of(dense(), seed)
        before = driver.counts.get("cuLaunchKernel", 0)
        np.testing.assert_allclose(
            lib.run(given)["output"], evaluate(dense(), given)[0], 1e-4, 1e-5
        )
        launched.append(driver.counts["cuLaunchKernel"] - before)
    assert launched == [launched[0], launched[0], 0]  # the second is captured, the third replayed
    assert driver.counts["cuGraphLaunch"] == 2
    assert "device=0 (Fake H200)" in repr(lib)


def test_what_the_compiler_said_of_each_kernel_is_kept(lib: CudaModule) -> None:
    assert lib.logs == {kernel.name: "ptxas info" for kernel in lib.kernels}
    assert len(lib.logs) > 1


def test_copies_are_captured_too(driver: FakeDriver) -> None:
    lib = build_module(branches(), HOPPER)
    for seed in range(3):
        given = inputs_of(branches(), seed)
        got = lib.run(given)
        np.testing.assert_array_equal(got["same"], given["x"])
        wanted = evaluate(branches(), given)
        for value, want in zip(got.values(), wanted, strict=True):
            np.testing.assert_allclose(value, want, 1e-4, 1e-5)


def test_times_and_profiles(driver: FakeDriver, lib: CudaModule) -> None:
    assert lib.time_evaluator(repeat=1).median > 0
    assert lib.time_evaluator(repeat=1, cold_weights=True).median > 0
    assert len(lib.profile(repeat=1).nodes) == len(lib.plan.steps)


class Foreign:
    """An array of a device as another library would give it, by DLPack alone."""

    def __init__(self, array: DeviceArray) -> None:
        self.array = array

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()

    def __dlpack__(self, *, stream: int) -> object:
        assert stream > 2
        return self.array.__dlpack__(stream=stream)


class Interfaced:
    """The same by the CUDA array interface, still being written by the default stream."""

    def __init__(self, array: DeviceArray, **changed: Any) -> None:
        self.array = array
        self.__cuda_array_interface__ = {
            **array.__cuda_array_interface__,
            "stream": 1,
            **changed,
        }


@pytest.mark.parametrize("kind", [Foreign, Interfaced])
def test_tensors_of_the_device_are_taken_without_a_copy(
    driver: FakeDriver, lib: CudaModule, kind: Callable[[DeviceArray], object]
) -> None:
    given = inputs_of(dense())
    (wanted,) = lib.run(given).values()
    port, result = lib.inputs[0], lib.outputs[0]
    x = kind(to_device(open_device(0), given["x"], port.type, "x"))
    copied = driver.counts["cuMemcpyHtoDAsync"]
    waited = driver.counts.get("cuStreamWaitEvent", 0)
    (got,) = lib.run({"x": x}, device=True).values()
    assert driver.counts["cuMemcpyHtoDAsync"] == copied
    assert (driver.counts.get("cuStreamWaitEvent", 0) > waited) == (kind is Interfaced)
    np.testing.assert_array_equal(got.numpy(), wanted)
    target = to_device(open_device(0), np.zeros_like(wanted), result.type, "y")
    lib.run_into({"x": x}, {result.name: kind(target)})
    np.testing.assert_array_equal(target.numpy(), wanted)


def test_a_run_in_the_order_of_another_stream(driver: FakeDriver, lib: CudaModule) -> None:
    given = inputs_of(dense())
    (wanted,) = lib.run(given).values()
    x = to_device(open_device(0), given["x"], lib.inputs[0].type, "x")
    counted = ("cuStreamSynchronize", "cuStreamWaitEvent", "cuCtxSynchronize")
    before = [driver.counts.get(name, 0) for name in counted]
    (got,) = lib.run({"x": x}, stream=0).values()
    assert [driver.counts.get(name, 0) for name in counted] == [before[0], before[1] + 2, before[2]]
    got.__dlpack__(stream=1)
    assert driver.counts.get("cuCtxSynchronize", 0) == before[2]
    got.__dlpack__(stream=2)
    assert driver.counts["cuCtxSynchronize"] == before[2] + 1
    np.testing.assert_array_equal(got.numpy(), wanted)


def test_nodes_on_the_host(driver: FakeDriver) -> None:
    lib = build_module(dense(), HOPPER, ["softmax"])
    for seed in range(3):
        given = inputs_of(dense(), seed)
        wanted = evaluate(dense(), given)[0]
        np.testing.assert_allclose(lib.run(given)["output"], wanted, 1e-4, 1e-5)


def test_tensors_that_do_not_fit(driver: FakeDriver, lib: CudaModule) -> None:
    x = to_device(open_device(0), inputs_of(dense())["x"], lib.inputs[0].type, "x")
    turned = Interfaced(x, strides=(4, 16))
    with pytest.raises(ShapeError, match="input 'x' is not C-contiguous"):
        lib.run({"x": turned})
    moved = Interfaced(x, data=(x.address + 8, False))
    with pytest.raises(ShapeError, match="not C-contiguous from a multiple of 16 bytes on"):
        lib.run({"x": moved})
    with pytest.raises(ShapeError, match=r"input 'x' has dtype float64, expected float32"):
        lib.run({"x": Interfaced(x, typestr="<f8")})
    array = DeviceArray(x.memory, TensorType((2, 3), "bfloat16"))
    with pytest.raises(AttributeError, match="has no bfloat16"):
        array.__cuda_array_interface__  # noqa: B018
    with pytest.raises(ShapeError, match=r"has dtype bfloat16, expected float32"):
        lib.run({"x": Foreign(array)})


def test_lent_memory_is_kept_until_it_is_given_back(driver: FakeDriver) -> None:
    device = open_device(0)
    pool = pool_of(device)
    gc.collect()
    used = pool.held_bytes - pool.free_bytes
    array = to_device(device, np.zeros(1000, np.float32), TensorType((1000,), "float32"), "x")
    capsule = array.__dlpack__()
    del array
    gc.collect()
    assert pool.held_bytes - pool.free_bytes > used
    waited = driver.counts.get("cuCtxSynchronize", 0)
    del capsule
    gc.collect()
    assert pool.held_bytes - pool.free_bytes == used
    assert driver.counts["cuCtxSynchronize"] == waited + 1


def product() -> tuple[Workload, list[Array]]:
    rng = np.random.default_rng(0)
    x, w = (Var(n, TensorType(s, "float16")) for n, s in (("x", (64, 256)), ("w", (256, 64))))
    workload = Workload.from_function(Function((x, w), call("matmul", x, w), {"primitive": True}))
    return workload, [rng.standard_normal(p.type.shape).astype(np.float16) for p in (x, w)]


def test_a_kernel_with_a_large_cluster(driver: FakeDriver) -> None:
    x = Var("x", TensorType((1, 32768), "float32"))
    softmax = call("softmax", x, axis=-1)
    workload = Workload.from_function(Function((x,), softmax, {"primitive": True}))
    config = {"sketch": "gpu_long_rows", "split": 16, "vec": 4, "threads": 128}
    config |= {"cluster": 1, "kept": 1}
    before = driver.counts.get("cuFuncSetAttribute", 0)
    kernel = load_kernel(build_kernel(workload, HOPPER, config, cache=False), HOPPER)
    assert driver.counts["cuFuncSetAttribute"] == before + 1
    given = np.random.default_rng(0).standard_normal((1, 32768)).astype(np.float32)
    (got,) = kernel(given.reshape(kernel.types[0].shape))
    wanted = np.exp(given.astype(np.float64))
    np.testing.assert_allclose(got.reshape(1, -1), wanted / wanted.sum(), 1e-4)


def test_a_kernel_with_much_shared_memory(driver: FakeDriver) -> None:
    workload, operands = product()
    config = {"sketch": "gpu_mma", "wm": 2, "wn": 2, "mi": 2, "ni": 4, "bk": 64, "stages": 4}
    config = {**config_space(workload, HOPPER).sketch("gpu_mma").default, **config}
    before = driver.counts.get("cuFuncSetAttribute", 0)
    kernel = load_kernel(build_kernel(workload, HOPPER, config, cache=False), HOPPER)
    (launch,) = kernel.kernel.launches
    assert launch.dynamic_bytes > 48 << 10
    assert driver.counts["cuFuncSetAttribute"] == before + 1
    assert kernel.log == "ptxas info"
    assert kernel.functions[0].registers > 0
    wanted = operands[0].astype(np.float64) @ operands[1]
    operands = [a.reshape(t.shape) for a, t in zip(operands, kernel.types, strict=False)]
    (got,) = kernel(*operands)
    np.testing.assert_allclose(got.reshape(wanted.shape), wanted, 1e-2, 5e-2)


@needs_ptxas
def test_machine_code_is_loaded_where_there_is_an_assembler(driver: FakeDriver) -> None:
    workload, operands = product()
    kernel = build_kernel(workload, HOPPER, config_space(workload, HOPPER).default, cache=False)
    made = assembled(kernel, "sm_90a")
    assert made.cubin is not None
    fake_driver.SOURCES[made.cubin.code] = made.object
    compiled = driver.counts["machine code"]
    (got,) = load_kernel(made, HOPPER)(*shaped(operands, made))
    assert driver.counts["machine code"] == compiled + 1
    (other,) = load_kernel(kernel, HOPPER)(*shaped(operands, kernel))
    assert driver.counts["machine code"] == compiled + 1
    warned = replace(made, cubin=replace(made.cubin, warnings=("wgmma serialized",)))
    assert load_kernel(warned, HOPPER).log == "ptxas info\nwgmma serialized"
    assert load_kernel(kernel, HOPPER).log == "ptxas info"
    np.testing.assert_array_equal(got, other)


@needs_ptxas
def test_the_driver_compiles_where_it_does_not_take_machine_code(driver: FakeDriver) -> None:
    workload, operands = product()
    kernel = build_kernel(workload, HOPPER, config_space(workload, HOPPER).default, cache=False)
    made = assembled(kernel, "sm_90a")
    assert made.cubin is not None
    broken = bytearray(made.cubin.code)
    broken[18:20] = b"\x3e\0"  # of another machine
    given = driver.counts["cuModuleLoadDataEx"]
    (wanted,) = load_kernel(kernel, HOPPER)(*shaped(operands, kernel))
    for cubin, loads in (
        (replace(made.cubin, code=bytes(broken)), 2),  # the driver refuses it
        (replace(made.cubin, arch="sm_80"), 1),  # it is not asked
    ):
        given = driver.counts["cuModuleLoadDataEx"]
        other = replace(kernel, cubin=cubin)
        (got,) = load_kernel(other, HOPPER)(*shaped(operands, other))
        assert driver.counts["cuModuleLoadDataEx"] == given + loads
        np.testing.assert_array_equal(got, wanted)


def shaped(operands: list[Array], kernel: Kernel) -> list[Array]:
    return [a.reshape(t.shape) for a, t in zip(operands, kernel.params, strict=False)]


def test_a_kernel_that_takes_tensor_maps(driver: FakeDriver) -> None:
    workload, operands = product()
    target = Target("cuda -arch=sm_90a")
    config = {"sketch": "gpu_tma", "groups": 1, "columns": 64, "stages": 3, "producer": 1}
    kernel = load_kernel(build_kernel(workload, target, config, cache=False), target)
    assert len(kernel.kernel.launches[0].maps) == 2
    wanted = operands[0].astype(np.float64) @ operands[1]
    operands = [a.reshape(t.shape) for a, t in zip(operands, kernel.types, strict=False)]
    (got,) = kernel(*operands)
    np.testing.assert_allclose(got.reshape(wanted.shape), wanted, 1e-2, 5e-2)
    call_again = kernel.bind(operands)
    call_again()
    made = driver.counts["cuTensorMapEncodeTiled"]
    call_again()
    assert driver.counts["cuTensorMapEncodeTiled"] == made >= 2


def test_a_kernel_is_timed_by_graphs(driver: FakeDriver) -> None:
    x = te.placeholder((64,), name="x")
    program = te.create_prim_func([x, te.compute((64,), lambda i: x[i] + 1)])
    kernel = build_function(program, HOPPER)
    data = np.ones(64, np.float32)
    replayed, launched = (driver.counts[n] for n in ("cuGraphLaunch", "cuLaunchKernel"))
    assert kernel.time_evaluator(data, number=33, repeat=1).median > 0
    assert driver.counts["cuGraphLaunch"] == replayed + 2
    assert driver.counts["cuLaunchKernel"] == launched + 2 + 32 + 2
    filled = driver.counts["cuMemsetD8Async"]
    events = live(driver, fake_driver.Event)
    assert kernel.time_evaluator(data, number=33, repeat=1, cold=[0]).median > 0
    assert kernel.time_evaluator(data, number=70, repeat=1, cold=[0]).median > 0
    assert sum(type(value) is fake_driver.Event for value in driver.live.values()) < events + 150
    calls = 1 + 33 + 1 + 70
    assert driver.counts["cuMemsetD8Async"] >= filled + 2 * calls  # the host is ahead


def test_code_that_the_driver_refuses(driver: FakeDriver) -> None:
    device = open_device(0)
    with pytest.raises(BuildError, match=r"CUDA_ERROR_\w+\): ptxas: [^\n]*$"):
        device.load(b"not PTX")
    workload, _ = product()
    kernel = build_kernel(workload, HOPPER, config_space(workload, HOPPER).default, cache=False)
    driver.version = 11080
    with pytest.raises(BuildError, match=r"^the code is PTX for drivers of CUDA 12.0 on, and this "
                       r"host's is of CUDA 11.8; update the driver$"):  # fmt: skip
        device.load(kernel.object)
    driver.version = 13000
    code = device.load(kernel.object)
    with pytest.raises(DriverError, match="cuModuleGetFunction on device 0, Fake H200, failed"):
        code.function(Launch("other", (1, 1, 1), (32, 1, 1)))
    with pytest.raises(DriverError, match="CUDA_ERROR_INVALID_VALUE"):
        code.function(Launch(kernel.launches[0].name, (1, 1, 1), (32, 1, 1), 1 << 20))


def test_a_kernel_that_faults(driver: FakeDriver) -> None:
    workload, _ = product()
    kernel = build_kernel(workload, HOPPER, config_space(workload, HOPPER).default, cache=False)
    device = open_device(0)
    function = device.load(kernel.object).function(kernel.launches[0])
    stream = device.stream()
    stream.launch(function, kernel.launches[0], [16, 16, 16, 16])
    with pytest.raises(DriverError, match="cuStreamSynchronize on device 0") as failure:
        stream.synchronize()
    assert failure.value.fatal
    assert failure.value.code == "CUDA_ERROR_LAUNCH_FAILED"
    driver.ended = UNKNOWN
    with pytest.raises(DriverError, match="cuMemAlloc") as failure:
        device.allocate(1)
    assert failure.value.fatal, "no other call succeeds, whatever this one's failure is called"
    del function, stream
    gc.collect()
    with pytest.raises(DriverError):
        device.synchronize()
    driver.ended = fake_driver.SUCCESS
    device.synchronize()


def test_a_device_that_lets_nobody_in(driver: FakeDriver) -> None:
    driver.refused = DEVICE_UNAVAILABLE
    with pytest.raises(TargetError, match=r"^device 0 lets no further process in: .* -c DEFAULT"):
        nvidia.open_device(0)
    driver.refused = INVALID_DEVICE
    with pytest.raises(DriverError, match="cuDevicePrimaryCtxRetain failed"):
        nvidia.open_device(0)
    driver.refused = fake_driver.SUCCESS


def test_memory_that_there_is_not(driver: FakeDriver) -> None:
    device = open_device(0)
    free = device.free_bytes()
    with pytest.raises(DeviceMemoryError, match=r"CUDA_ERROR_OUT_OF_MEMORY"):
        take(device, fake_driver.MEMORY_BYTES + 1)
    assert device.free_bytes() >= free  # what was kept is given back first


def test_nothing_is_left(driver: FakeDriver) -> None:
    given = inputs_of(dense())
    gc.collect()
    kinds = (fake_driver.Stream, fake_driver.Event, fake_driver.Code, fake_driver.Executable)
    before = [live(driver, kind) for kind in kinds]
    pinned = len(driver.pinned)
    lib = build_module(dense(), HOPPER)
    for _ in range(3):
        lib.run(given)
    lib.profile(repeat=1)
    assert live(driver, fake_driver.Executable) > before[-1]
    assert len(driver.pinned) > pinned
    del lib
    assert [live(driver, kind) for kind in kinds] == before
    assert len(driver.pinned) == pinned
    assert live(driver, fake_driver.Graph) == 0


def test_a_context_of_another_library_stays_current(driver: FakeDriver, lib: CudaModule) -> None:
    assert driver.contexts == []
    lib.run(inputs_of(dense()))
    assert driver.contexts == []


def test_results_are_written_in_place(driver: FakeDriver, lib: CudaModule) -> None:
    given = inputs_of(dense())
    (wanted,) = lib.run(given).values()
    result = aligned_empty(lib.outputs[0].type)
    lib.run_into(given, {lib.outputs[0].name: result})
    np.testing.assert_array_equal(result, wanted)


def test_architectures_and_uuids() -> None:
    assert arch_of(9, 0) == "sm_90a"
    assert arch_of(8, 0) == "sm_80"
    assert [arch_of(10, 3), arch_of(12, 1), arch_of(7, 0)] == ["sm_100", "sm_120", "sm_70"]
    assert Path(nvidia.__file__).name == "nvidia.py"
