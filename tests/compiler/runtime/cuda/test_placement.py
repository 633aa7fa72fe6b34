"""Models some of whose kernels run on the host."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from small_networks import Array, attention, branches, classifier, dense, inputs_of
from tunefarm.compiler.build import build_module
from tunefarm.compiler.errors import BuildError
from tunefarm.compiler.evaluate import evaluate
from tunefarm.compiler.ir import IRModule, TensorType
from tunefarm.compiler.kernel import Kernel
from tunefarm.compiler.runtime.cuda.module import CudaModule
from tunefarm.compiler.runtime.cuda.placement import (
    HostCall,
    PlacedStep,
    ToDevice,
    ToHost,
    placed_steps,
)
from tunefarm.compiler.runtime.plan import Argument, Copy, ExecutionPlan, KernelCall, Port
from tunefarm.compiler.target import Target

HOPPER = Target("cuda -arch=sm_90a")


def split(program: IRModule, on_host: Sequence[str]) -> CudaModule:
    made = build_module(program, HOPPER, on_host)
    assert isinstance(made, CudaModule)
    return made


@pytest.mark.parametrize(
    ("network", "on_host"),
    [
        (classifier, ["max_pool", "softmax"]),
        (attention, ["softmax"]),
        (branches, ["conv"]),
        (branches, ["concat"]),
        (dense, ["matmul", "softmax"]),
    ],
)
def test_results_are_the_same(network: Callable[[], IRModule], on_host: list[str]) -> None:
    program = network()
    lib = split(program, on_host)
    for seed in range(3):  # the third run is the replay of graphs
        given = inputs_of(program, seed)
        wanted = evaluate(program, given)
        for got, want in zip(lib.run(given).values(), wanted, strict=True):
            np.testing.assert_allclose(got, want, 1e-4, 1e-5)


def test_what_stays_on_a_side_is_not_copied() -> None:
    lib = split(classifier(), ["max_pool", "matmul", "softmax"])
    steps = lib.residence.steps
    assert [type(s) for s in steps if not isinstance(s, KernelCall)] == [
        ToHost,
        HostCall,
        HostCall,
        HostCall,
        ToDevice,
    ]
    labels = [node.label for node in lib.profile(repeat=1).nodes]
    assert "softmax 1x10, on the host" in labels
    assert "40 bytes to the device" in labels
    assert lib.get_source("llvm").count("; kernel") == 5
    assert lib.get_source("ptx").count("// kernel") == 2


def test_what_cannot_be_pinned() -> None:
    with pytest.raises(BuildError, match="names 'lstm', which is no node and no operator of the"):
        split(dense(), ["lstm"])
    with pytest.raises(BuildError, match="on_host is for models for GPUs; llvm"):
        build_module(dense(), Target.host(1), ["softmax"])


# --- random plans -------------------------------------------------------------------------------

SLOT = 256
SLOTS = 8
Memory = dict[tuple[str, int], Array]


def random_plan(rng: np.random.Generator) -> tuple[ExecutionPlan, dict[str, Kernel]]:
    """Steps that read what was written before and write ranges of an arena, an input, outputs."""
    port = TensorType((SLOT,), "uint8")
    written = [Argument("input", 0, 0)]
    steps: list[KernelCall | Copy] = []
    kernels: dict[str, Kernel] = {}
    for number in range(12):
        reads = [written[i] for i in rng.integers(0, len(written), 2)]
        slots = int(rng.integers(1, 3))
        target = Argument("arena", SLOT * int(rng.integers(0, SLOTS - slots + 1)))
        if number % 5 == 4:
            target, slots = Argument("output", 0, number // 5), 1
        if number == 6:
            steps.append(Copy(reads[0], target, SLOT))
            slots = 1
        else:
            name = f"{'host ' if rng.integers(2) else ''}k{number}"
            params = (port, port, TensorType((SLOT * slots,), "uint8"))
            kernels[name] = Kernel(name, b"", "", params, 1, {}, 0, False)
            steps.append(KernelCall(name, (*reads, target)))
        written = [a for a in written if a.place != "arena" or not meets(a, target, slots)]
        for i in range(slots):
            written.append(Argument(target.place, target.offset + SLOT * i, target.index))
    outputs = tuple(Port(name, port) for name in "yz")
    return ExecutionPlan((Port("x", port),), outputs, tuple(steps), SLOT * SLOTS), kernels


def meets(argument: Argument, target: Argument, slots: int) -> bool:
    inside = 0 <= argument.offset - target.offset < SLOT * slots
    return argument.place == target.place and inside


def fresh(value: int) -> Memory:
    sizes = {
        ("arena", 0): SLOTS * SLOT,
        ("input", 0): SLOT,
        ("output", 0): SLOT,
        ("output", 1): SLOT,
    }
    return {key: np.full(size, value, np.int64) for key, size in sizes.items()}


def view(memory: Memory, argument: Argument, size: int) -> Array:
    return memory[argument.place, argument.index][argument.offset : argument.offset + size]


def run(steps: Sequence[PlacedStep], kernels: dict[str, Kernel]) -> Memory:
    """The device's memory at the end; a kernel writes a hash of what it reads."""
    device, host = fresh(-1), fresh(-2)
    device["input", 0][:] = 7
    for step in steps:
        match step:
            case ToHost(argument, size):
                view(host, argument, size)[:] = view(device, argument, size)
            case ToDevice(argument, size):
                view(device, argument, size)[:] = view(host, argument, size)
            case Copy(source, destination, size):
                view(device, destination, size)[:] = view(device, source, size)
            case HostCall(call):
                work(host, call, kernels)
            case KernelCall():
                work(device, step, kernels)
    return device


def work(memory: Memory, call: KernelCall, kernels: dict[str, Kernel]) -> None:
    *reads, target = call.arguments
    size = kernels[call.kernel].params[-1].size
    seen = tuple(int(view(memory, a, SLOT)[0]) for a in reads)
    view(memory, target, size)[:] = np.arange(size) // SLOT + hash((call.kernel, seen)) % 1000003


@pytest.mark.parametrize("seed", range(40))
def test_every_kernel_reads_what_was_written_last(seed: int) -> None:
    plan, kernels = random_plan(np.random.default_rng(seed))
    on_host = {name: kernel for name, kernel in kernels.items() if name.startswith("host")}
    alone = run(plan.steps, kernels)
    device = run(placed_steps(plan, kernels, on_host), kernels)
    for index in range(2):
        np.testing.assert_array_equal(device["output", index], alone["output", index])
