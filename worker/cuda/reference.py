"""What a GPU is measured by itself: a fixed loop, a copy, and a product with its default config.

All of it runs in the gauge, which no candidate shares. The loop is the device's pulse: independent
multiply-adds of float32 in registers, in 16 warps on each multiprocessor, half a millisecond of an
H100 by its data sheet.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from tunefarm.compiler.gpu.launches import Launch
from tunefarm.compiler.gpu.ptx import ptx_of
from tunefarm.compiler.ir import TensorType
from tunefarm.compiler.kernel import Kernel
from tunefarm.compiler.runtime.cuda.driver import Device
from tunefarm.compiler.runtime.cuda.kernel import CudaCall, CudaKernel
from tunefarm.compiler.runtime.cuda.loading import load
from tunefarm.compiler.runtime.cuda.memory import take
from tunefarm.compiler.runtime.cuda.timing import flush_bytes, seconds_together
from tunefarm.compiler.target import Target

_NAME = "tunefarm_reference"
_ARCH = "sm_75"  # whose code runs on every later one
_THREADS = 256
_BLOCKS_EACH = 2  # of a multiprocessor
_ACCUMULATORS = 8  # latency 4 × 4 schedulers ≤ 8 × 16 warps
_ITERATIONS = 32768
_FEW_ITERATIONS = 16  # of an emulated device
_WARM_SECONDS = 0.02
_COPY_BYTES = 1 << 29
_PRODUCT = 4096
_SMALL_PRODUCT = 32
_WINDOW_S = 0.005
_BEST_OF = 5


@dataclass(frozen=True, slots=True)
class Loop:
    """The reference loop on a device, and its floating-point operations."""

    call: CudaCall
    operations: float

    def seconds(self) -> float:
        """Seconds of one run by the device's clock."""
        return self.call.seconds(1)

    def warm_up(self) -> None:
        """Run until the clock has risen from where it idles."""
        spent = 0.0
        while spent < _WARM_SECONDS and not self.call.function.device.properties.emulated:
            spent += self.seconds()


@functools.cache
def reference_loop(device: Device) -> Loop:
    """The loop, loaded; BuildError if the driver refuses it."""
    properties = device.properties
    iterations = _FEW_ITERATIONS if properties.emulated else _ITERATIONS
    blocks = _BLOCKS_EACH * (1 if properties.emulated else properties.multiprocessors)
    threads = blocks * _THREADS
    out = TensorType((threads,), "float32")
    text = loop_text(iterations)
    launch = Launch(_NAME, (blocks, 1, 1), (_THREADS, 1, 1))
    ptx = ptx_of(text, _ARCH).encode()
    kernel = Kernel(_NAME, ptx, text, (out,), 1, {}, 0, False, (launch,))
    call = CudaKernel(load(device, kernel), Target(f"cuda -arch={_ARCH}"), device).bind([])
    (sums,) = call.outputs
    call.stream.fill(sums.address, 0, sums.memory.size_bytes)
    return Loop(call, 2.0 * _ACCUMULATORS * iterations * threads)


def loop_text(iterations: int) -> str:
    """LLVM text of the loop: each thread takes its sums from what its output held."""
    names = range(_ACCUMULATORS)
    phis = "\n".join(f"  %a{i} = phi float [ %x, %entry ], [ %b{i}, %loop ]" for i in names)
    steps = "\n".join(
        f"  %b{i} = call float @llvm.fma.f32(float %a{i}, float %x, float {i + 1}.0)" for i in names
    )
    sums = "\n".join(
        f"  %s{i} = fadd float {'%b0' if i == 1 else f'%s{i - 1}'}, %b{i}"
        for i in range(1, _ACCUMULATORS)
    )
    return f"""
declare float @llvm.fma.f32(float, float, float)
declare i32 @llvm.nvvm.read.ptx.sreg.tid.x()
declare i32 @llvm.nvvm.read.ptx.sreg.ctaid.x()
define ptx_kernel void @{_NAME}(ptr addrspace(1) %out, ptr addrspace(1) %workspace) {{
entry:
  %thread = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
  %block = call i32 @llvm.nvvm.read.ptx.sreg.ctaid.x()
  %first = mul i32 %block, {_THREADS}
  %place = add i32 %first, %thread
  %at = getelementptr float, ptr addrspace(1) %out, i32 %place
  %x = load float, ptr addrspace(1) %at, align 4
  br label %loop
loop:
  %i = phi i32 [ 0, %entry ], [ %next, %loop ]
{phis}
{steps}
  %next = add i32 %i, 1
  %more = icmp slt i32 %next, {iterations}
  br i1 %more, label %loop, label %done
done:
{sums}
  store float %s{_ACCUMULATORS - 1}, ptr addrspace(1) %at, align 4
  ret void
}}
"""


def peaks(device: Device, target: Target) -> dict[str, float]:
    """``flops_f32`` of the loop and ``flops_n`` of a product (FLOP/s), and ``bandwidth_dram_n`` of
    a copy, read and written (bytes/s)."""
    loop = reference_loop(device)
    loop.warm_up()
    return {
        "flops_f32": loop.operations / min(loop.seconds() for _ in range(_BEST_OF)),
        "flops_n": product_flops(device, target),
        "bandwidth_dram_n": copy_bandwidth(device),
    }


def copy_bandwidth(device: Device) -> float:
    """Bytes a second that the driver's copy reads and writes, of more than any cache holds."""
    size = min(_COPY_BYTES, device.properties.memory_bytes // 8)
    if device.properties.emulated:
        size = flush_bytes(device)
    source, destination, stream = take(device, size), take(device, size), device.stream()
    stream.fill(source.address, 0, size)

    def copy() -> None:
        stream.copy(destination.address, source.address, size)

    return 2 * size / _least(lambda n: seconds_together(device, stream, copy, n))


def product_flops(device: Device, target: Target) -> float:
    """FLOP/s of a square product with its default config: of float16 where the target has tensor
    cores, else of float32."""
    from tunefarm.compiler.build import build_kernel
    from tunefarm.compiler.runtime.cuda.kernel import load_kernel
    from tunefarm.compiler.workload import Workload
    from tunefarm.worker.cuda.backend import check, packed

    dtype = "float16" if target.gpu.has_tensor_cores else "float32"
    size = _SMALL_PRODUCT if device.properties.emulated else _PRODUCT
    _, text, config = check("matmul", size, dtype, target)
    kernel = build_kernel(Workload.from_text(text), target, config, cache=False)
    rng = np.random.default_rng(0)
    operands = [rng.standard_normal((size, size), np.float32).astype(dtype) for _ in range(2)]
    call = load_kernel(kernel, target, device).bind(packed(operands, kernel))
    return 2.0 * size**3 / _least(call.seconds)


def _least(seconds: Callable[[int], float]) -> float:
    """Seconds of one of some calls, in the best of a few windows."""
    once = seconds(1)
    number = max(1, min(int(_WINDOW_S / max(once, 1e-9)), 1000))
    if once >= _WINDOW_S:
        return min(once, seconds(1))
    return min(seconds(number) / number for _ in range(_BEST_OF))
