"""What the device can do at best: FLOP/s, bandwidth, and how much equal work differs (A/A).

All of it runs in the runner, on the cores of the device, and takes under two seconds.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable
from functools import cache
from itertools import count

import numpy as np
from tunefarm.compiler.target import Target
from tunefarm.worker.memory import empty_array
from tunefarm.worker.native import Linked, Native, assemble

_ACCUMULATORS = 12  # latency 4 × 2 units ≤ 12, and 12 + 2 operands fit 16 registers
_REFERENCE_ITERATIONS = 250_000
_WINDOW_S = 0.002
_MEASURE_S = 0.15
_L1_BYTES = 16 << 10
_DRAM_BYTES = 256 << 20
_NOISE_REPEATS = 96
_NOISE_GROUP = 8


def fma_text(lanes: int) -> str:
    """A loop of independent fused multiply-adds: ``void fma(i64 iterations, ptr sink)``."""
    vector = f"<{lanes} x float>"
    names = range(_ACCUMULATORS)
    phis = "\n".join(
        f"  %a{i} = phi {vector} [ zeroinitializer, %entry ], [ %b{i}, %loop ]" for i in names
    )
    steps = "\n".join(
        f"  %b{i} = call {vector} @llvm.fma.v{lanes}f32({vector} %x, {vector} %y, {vector} %a{i})"
        for i in names
    )
    sums = "\n".join(
        f"  %s{i} = fadd {vector} {'%b0' if i == 1 else f'%s{i - 1}'}, %b{i}"
        for i in range(1, _ACCUMULATORS)
    )
    return f"""
declare {vector} @llvm.fma.v{lanes}f32({vector}, {vector}, {vector})
define void @fma(i64 %n, ptr %sink) {{
entry:
  %x = load {vector}, ptr %sink, align 4
  %y = load {vector}, ptr %sink, align 4
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
{phis}
{steps}
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %n
  br i1 %more, label %loop, label %done
done:
{sums}
  store {vector} %s{_ACCUMULATORS - 1}, ptr %sink, align 4
  ret void
}}
"""


def read_text(lanes: int) -> str:
    """A loop that reads a buffer: ``void read(ptr data, i64 bytes, i64 passes, ptr sink)``."""
    vector, size = f"<{lanes} x i32>", 4 * lanes
    names = range(8)
    phis = "\n".join(
        f"  %a{i} = phi {vector} [ zeroinitializer, %pass ], [ %b{i}, %loop ]" for i in names
    )
    steps = "\n".join(
        f"  %o{i} = add i64 %at, {i * size}\n"
        f"  %q{i} = getelementptr i8, ptr %data, i64 %o{i}\n"
        f"  %v{i} = load {vector}, ptr %q{i}, align {size}\n"
        f"  %b{i} = xor {vector} %a{i}, %v{i}"
        for i in names
    )
    sums = "\n".join(
        f"  %s{i} = xor {vector} {'%b0' if i == 1 else f'%s{i - 1}'}, %b{i}" for i in range(1, 8)
    )
    return f"""
define void @read(ptr %data, i64 %bytes, i64 %passes, ptr %sink) {{
entry:
  br label %pass
pass:
  %p = phi i64 [ 0, %entry ], [ %nextpass, %passed ]
  br label %loop
loop:
  %at = phi i64 [ 0, %pass ], [ %nextat, %loop ]
{phis}
{steps}
  %nextat = add i64 %at, {8 * size}
  %more = icmp slt i64 %nextat, %bytes
  br i1 %more, label %loop, label %passed
passed:
{sums}
  store {vector} %s7, ptr %sink, align 4
  %nextpass = add i64 %p, 1
  %again = icmp slt i64 %nextpass, %passes
  br i1 %again, label %pass, label %done
done:
  ret void
}}
"""


@cache
def _function(name: str, mcpu: str) -> Native:
    lanes = Target(f"llvm -mcpu={mcpu}").lanes("float32")
    text = fma_text(lanes) if name == "fma" else read_text(lanes)
    linked = Linked(assemble(text, mcpu), name)
    pointer, integer = ctypes.c_void_p, ctypes.c_int64
    signature = [integer, pointer] if name == "fma" else [pointer, integer, integer, pointer]
    return Native(linked, ctypes.CFUNCTYPE(None, *signature)(linked.address))


def reference_s(mcpu: str) -> float:
    """Seconds of a fixed loop of multiply-adds on one core: the device's pulse (about 1 ms)."""
    loop = _function("fma", mcpu)  # kept: two threads that come first make one each
    sink = np.zeros(64, np.float32)
    start = time.perf_counter()
    loop.function(_REFERENCE_ITERATIONS, sink.ctypes.data)
    return time.perf_counter() - start


def reference_flops(mcpu: str) -> float:
    """The floating-point operations of the loop that ``reference_s`` times."""
    return _flops(mcpu) * _REFERENCE_ITERATIONS


def _flops(mcpu: str) -> float:
    """Operations of one iteration of the loop of multiply-adds."""
    return 2.0 * Target(f"llvm -mcpu={mcpu}").lanes("float32") * _ACCUMULATORS


def measure_peaks(mcpu: str, cores: int) -> dict[str, float]:
    """Those of ``compute_peaks``, and ``bandwidth_dram_n`` in bytes/s."""
    dram = read_bandwidth(mcpu, cores, _DRAM_BYTES // cores)
    return {**compute_peaks(mcpu, cores), "bandwidth_dram_n": dram}


def compute_peaks(mcpu: str, cores: int) -> dict[str, float]:
    """``flops_1``, ``flops_n`` (FLOP/s, all cores at once) and ``bandwidth_l1_n`` (bytes/s)."""
    fma = _function("fma", mcpu)
    flops = _flops(mcpu)

    def multiply(count: int) -> None:
        sink = np.zeros(64, np.float32)
        fma.function(count, sink.ctypes.data)

    return {
        "flops_1": _rate(multiply, 1) * flops,
        "flops_n": _rate(multiply, cores) * flops,
        "bandwidth_l1_n": read_bandwidth(mcpu, cores, _L1_BYTES),
    }


def read_bandwidth(mcpu: str, cores: int, size: int) -> float:
    """Bytes a second that ``cores`` cores read at once, each of its own ``size`` bytes again and
    again; ``size`` is a multiple of 4096."""
    return _rate(_reader(mcpu, size, cores), cores) * size


def _reader(mcpu: str, size: int, buffers: int) -> Callable[[int], None]:
    """``scan(count)`` reads one of some buffers of ``size`` bytes, the next one each time."""
    read = _function("read", mcpu)
    memory = [empty_array((size,), "uint8") for _ in range(buffers)]
    for buffer in memory:
        buffer.fill(1)
    turn = count()

    def scan(passes: int) -> None:
        buffer = memory[next(turn) % buffers]
        sink = np.zeros(64, np.float32)
        read.function(buffer.ctypes.data, size, passes, sink.ctypes.data)

    return scan


def _rate(work: Callable[[int], None], threads: int) -> float:
    """Iterations a second of ``work(number)`` on ``threads`` threads at once.

    The sum of each thread's best window: windows are short, so that some of them fall between the
    interruptions of a busy machine. A peak that is too low would convict honest kernels.
    """
    number = 1
    while (seconds := _seconds(work, number)) < _WINDOW_S:
        number = max(int(number * min(_WINDOW_S / seconds * 1.2, 100.0)), number + 1)
    barrier = threading.Barrier(threads)
    best = [0.0] * threads

    def run(index: int) -> None:
        barrier.wait()
        deadline = time.perf_counter() + _MEASURE_S
        while time.perf_counter() < deadline:
            best[index] = max(best[index], number / _seconds(work, number))

    started = [threading.Thread(target=run, args=(i,)) for i in range(threads)]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join()
    return sum(best)


def _seconds(work: Callable[[int], None], number: int) -> float:
    start = time.perf_counter()
    work(number)
    return time.perf_counter() - start


def noise_floor(mcpu: str) -> float:
    """That of the reference loop on one core."""
    return noise_of(lambda: reference_s(mcpu))


def noise_of(work: Callable[[], float]) -> float:
    """The relative difference that medians of equal, interleaved work stay under in 95 of 100;
    ``work()`` gives its seconds."""
    samples = np.array([work() for _ in range(_NOISE_REPEATS)])
    groups = np.random.default_rng(0).permuted(np.tile(np.arange(_NOISE_REPEATS), (200, 1)), axis=1)
    first = np.median(samples[groups[:, :_NOISE_GROUP]], axis=1)
    second = np.median(samples[groups[:, _NOISE_GROUP : 2 * _NOISE_GROUP]], axis=1)
    return float(np.quantile(np.abs(np.log(first / second)), 0.95))
