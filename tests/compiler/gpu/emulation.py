"""Runs the PTX of scheduled workloads on the emulator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gpu_harness import HOPPER, compare, emitted, inputs_of
from numpy.typing import NDArray
from tunefarm.compiler.dtypes import numpy_dtype
from tunefarm.compiler.evaluate import evaluate
from tunefarm.compiler.gpu.emulator import DeviceMemory, Traffic, load_ptx
from tunefarm.compiler.gpu.lower import lower_gpu
from tunefarm.compiler.runtime.cuda.emulated import map_of
from tunefarm.compiler.space import Config, config_space, schedule_workload
from tunefarm.compiler.target import Target
from tunefarm.compiler.tir import PrimFunc
from tunefarm.compiler.workload import Workload

Array = NDArray[Any]


def run_program(
    program: PrimFunc,
    arrays: Sequence[Array],
    target: Target = HOPPER,
    traffic: Traffic | None = None,
) -> list[Array]:
    """What a lowered program's kernels write to its outputs; ``traffic`` counts their accesses."""
    code, ptx = emitted(program, target)
    module, memory = load_ptx(ptx), DeviceMemory()
    addresses = []
    for param, array in zip(program.params, arrays, strict=False):
        data = np.ascontiguousarray(array, numpy_dtype(param.dtype))
        addresses.append(memory.allocate(data.nbytes))
        memory.write(addresses[-1], data)
    outputs = program.params[len(arrays) :]
    sizes = [int(np.prod(p.shape)) * numpy_dtype(p.dtype).itemsize for p in outputs]
    results = [memory.allocate(size) for size in sizes]
    workspace = memory.allocate(code.workspace_bytes)
    for launch in code.launches:
        given = [*addresses, *results, workspace]
        given += [map_of(each, given) for each in launch.maps]
        module.launch(
            memory, launch.name, launch.grid, launch.block, given, launch.dynamic_bytes,
            traffic=traffic,
        )  # fmt: skip
    return [
        memory.read(at, size).view(numpy_dtype(p.dtype)).reshape(p.shape)
        for p, at, size in zip(outputs, results, sizes, strict=True)
    ]


def emulate(
    workload: Workload,
    config: Config | None = None,
    arrays: Sequence[Array] | None = None,
    target: Target = HOPPER,
) -> None:
    """The workload's PTX, run by the emulator, agrees with the operators' NumPy meaning."""
    given = list(arrays or inputs_of(workload))
    config = config or config_space(workload, target).default
    program = lower_gpu(schedule_workload(workload, target, config))
    wanted = evaluate(workload.function, given)
    for got, want in zip(run_program(program, given, target), wanted, strict=True):
        compare(got.reshape(np.shape(want)), want, f"{workload.summary} {target} {config}")
