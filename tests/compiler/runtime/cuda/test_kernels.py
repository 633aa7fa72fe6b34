"""Single kernels on an emulated device."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
from tunefarm.compiler import te
from tunefarm.compiler.build import build_function, build_kernel
from tunefarm.compiler.errors import BuildError, ShapeError, TargetError
from tunefarm.compiler.ir import Function, TensorType, Var
from tunefarm.compiler.ops import call
from tunefarm.compiler.packing import pack
from tunefarm.compiler.runtime.cuda.arrays import DeviceArray, to_device
from tunefarm.compiler.runtime.cuda.driver import DriverError, open_device
from tunefarm.compiler.runtime.cuda.kernel import CudaKernel, load_kernel
from tunefarm.compiler.space import config_space
from tunefarm.compiler.target import Target
from tunefarm.compiler.workload import Workload

HOPPER = Target("cuda -arch=sm_90a")


def doubled(size: int = 100) -> CudaKernel:
    x = te.placeholder((size,), name="x")
    made = build_function(te.create_prim_func([x, te.compute((size,), lambda i: x[i] * 2)]), HOPPER)
    assert isinstance(made, CudaKernel)
    return made


def test_a_program_of_plain_loops_runs() -> None:
    x = np.arange(100, dtype=np.float32)
    (result,) = doubled()(x)
    np.testing.assert_array_equal(result, 2 * x)


def test_a_tuned_kernel_runs_with_packed_constants() -> None:
    rng = np.random.default_rng(0)
    x, w = (Var(name, TensorType((48, 32), "float32")) for name in "xw")
    product = call("matmul", x, call("transpose", w, axes=(1, 0)))
    workload = Workload.from_function(
        Function((x, w), product, {"primitive": True, "constants": (1,)})
    )
    built = build_kernel(workload, HOPPER, config_space(workload, HOPPER).default, cache=False)
    kernel = load_kernel(built, HOPPER, open_device(1))
    arrays = [rng.standard_normal(p.type.shape).astype(np.float32) for p in (x, w)]
    given = [
        pack(array, built.layouts.get(i), built.params[i].shape) for i, array in enumerate(arrays)
    ]
    call_ = kernel.bind(given)
    call_()
    (result,) = call_.outputs
    assert result.memory.device is open_device(1)
    wanted = arrays[0] @ arrays[1].T
    np.testing.assert_allclose(result.numpy().reshape(wanted.shape), wanted, 1e-5, 1e-5)


def test_a_thread_alone_has_arrays_between_kernels_of_many() -> None:
    x = Var("x", TensorType((1, 40), "float32"))
    softmax = Function((x,), call("softmax", x), {"primitive": True})
    workload = Workload.from_function(softmax)
    config = config_space(workload, HOPPER).sketches[-1].default
    assert config["sketch"] == "gpu_elements"
    built = build_kernel(workload, HOPPER, config, cache=False)
    threads = [prod(launch.grid) * prod(launch.block) for launch in built.launches]
    assert threads == [1, 1, 256]
    data = np.random.default_rng(0).standard_normal(40).astype(np.float32)
    (got,) = load_kernel(built, HOPPER)(data)
    powers = np.exp(data - data.max())
    np.testing.assert_allclose(got, powers / powers.sum(), 1e-5)


def test_tensors_of_the_device_stay_where_they_are() -> None:
    kernel = doubled()
    (tensor,) = set(kernel.types)
    x = to_device(kernel.device, np.ones(100, np.float32), tensor, "x")
    y = to_device(kernel.device, np.zeros(100, np.float32), tensor, "y")
    bound = kernel.bind([x], [y])
    assert bound.pointers == (x.address, y.address)
    bound()
    np.testing.assert_array_equal(y.numpy(), np.full(100, 2, np.float32))


def test_times_are_told() -> None:
    x = np.ones(100, np.float32)
    kernel = doubled()
    timing = kernel.time_evaluator(x, number=33, repeat=1)
    assert timing.number == 33
    assert min(timing.seconds) > 0
    assert kernel.time_evaluator(x, repeat=1, cold=[0]).median > 0


def test_a_kernel_says_what_it_is() -> None:
    kernel = doubled()
    name = kernel.name
    assert repr(kernel) == (
        f"CudaKernel({name}: float32[100] → float32[100], device=emulated sm_90a, "
        "target=cuda -arch=sm_90a)"
    )
    assert [f.name for f in kernel.functions] == [launch.name for launch in kernel.kernel.launches]
    assert ".target sm_90a" in kernel.get_source("ptx")
    assert "ptx_kernel" in kernel.get_source()
    with pytest.raises(BuildError, match="has no 'c' source"):
        kernel.get_source("c")


def test_what_does_not_fit_is_refused() -> None:
    kernel = doubled()
    x = np.ones(100, np.float32)
    with pytest.raises(ShapeError, match="takes 1 inputs, got 2"):
        kernel(x, x)
    with pytest.raises(ShapeError, match=r"input 0 of \w+ has dtype float64"):
        kernel(x.astype(np.float64))
    with pytest.raises(ShapeError, match="is a list, expected a NumPy array or a DLPack tensor"):
        kernel([1.0])
    with pytest.raises(ShapeError, match="has 1 outputs, got 0"):
        kernel.bind([x], [])
    small = to_device(kernel.device, x[:3], TensorType((3,), "float32"), "y")
    with pytest.raises(ShapeError, match=r"output 0 of \w+ is float32\[3\] on device 0, expected"):
        kernel.bind([x], [small])
    with pytest.raises(TargetError, match=r"device 0, emulated sm_90a, which is sm_90a; build it"):
        load_kernel(kernel.kernel, Target("cuda -arch=sm_100"))


def test_a_fault_is_told_as_one() -> None:
    kernel = doubled()
    tensor = TensorType((100,), "float32")
    x = to_device(kernel.device, np.ones(100, np.float32), tensor, "x")
    bound = kernel.bind([x])
    bound.pointers = (16, bound.pointers[1])
    with pytest.raises(DriverError, match="reads") as failure:
        bound()
    assert failure.value.fatal
    with pytest.raises(BuildError, match="the emulator of PTX refuses the code"):
        kernel.device.load(b"mov.b32;")


def test_an_array_of_a_device_is_copied_on_demand() -> None:
    kernel = doubled(3)
    bound = kernel.bind([np.arange(3, dtype=np.float32)])
    bound()
    (array,) = bound.outputs
    assert isinstance(array, DeviceArray)
    assert np.asarray(array, np.float64).tolist() == [0, 2, 4]
