"""Softmax and normalisations of few long rows, each shared out over blocks."""

from __future__ import annotations

import numpy as np
import pytest
from emulation import emulate
from gpu_harness import (
    F32,
    HOPPER,
    assembled,
    check,
    emitted,
    function_of,
    inputs_of,
    lowered,
    needs_ptxas,
)
from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.gpu.emulator import DeviceMemory, KernelFault, load_ptx
from tunefarm.compiler.ops import call
from tunefarm.compiler.space import Config, config_space
from tunefarm.compiler.target import Target
from tunefarm.compiler.workload import Workload

HALF = "float16"


def softmax(*shape: int, dtype: str = F32) -> Workload:
    return Workload.from_function(function_of("softmax", (shape, dtype), axis=-1))


def layer_norm(*shape: int, dtype: str = F32) -> Workload:
    scale = (shape[-1:], dtype)
    return Workload.from_function(
        function_of(
            lambda x, g, b: call(
                "relu", call("layer_norm", x, g, b, axis=-1, epsilon=1e-5)
            ), (shape, dtype), scale, scale,
        )
    )  # fmt: skip


def config_of(split: int, vec: int, threads: int, kept: int = -1) -> Config:
    """A config of several kernels, or with ``kept`` of a cluster."""
    sizes = {"split": split, "vec": vec, "threads": threads}
    return {"sketch": "gpu_long_rows", **sizes, "cluster": int(kept >= 0), "kept": max(kept, 0)}


CASES = {
    "parts that do not divide a row": (softmax(2, 8200), config_of(4, 4, 64)),
    "odd rows of halves": (softmax(3, 8195, dtype=HALF), config_of(4, 1, 32)),
    "two axes of rows": (softmax(1, 2, 8192, dtype=HALF), config_of(8, 8, 128)),
    "what follows, other operands": (layer_norm(2, 8200, dtype=HALF), config_of(8, 8, 64)),
    "one row": (layer_norm(1, 8200), config_of(16, 2, 32)),
    "a cluster, a part is not whole": (softmax(2, 8200), config_of(4, 4, 64, 1)),
    "a cluster, odd rows of halves": (softmax(3, 8195, dtype=HALF), config_of(8, 1, 32, 1)),
    "a cluster, all kept": (layer_norm(2, 8200, dtype=HALF), config_of(4, 8, 128, 2)),
    "a cluster, nothing kept": (layer_norm(1, 8200), config_of(2, 4, 256, 0)),
    "a large cluster": (layer_norm(1, 40004), config_of(16, 4, 128, 1)),
}


@pytest.mark.parametrize("name", CASES)
def test_a_long_row_agrees(name: str) -> None:
    workload, config = CASES[name]
    emulate(workload, config)


def test_in_lock_step() -> None:
    check(softmax(2, 70), config_of(4, 1, 32))
    check(softmax(2, 70), config_of(2, 2, 32, 1))


@needs_ptxas
@pytest.mark.parametrize("arch", ["sm_90a", "sm_100"])
def test_it_is_assembled(arch: str) -> None:
    workload = softmax(4, 128256, dtype=HALF)
    assert len(assembled(lowered(workload, config_of(32, 8, 256)), arch).kernels) == 3


@needs_ptxas
@pytest.mark.parametrize("split", [8, 16])
def test_a_cluster_is_assembled(split: int) -> None:
    """One kernel; 16 elements of a thread in registers leave room for all threads of a block."""
    program = lowered(softmax(8, 2048 * split), config_of(split, 4, 512, 1))
    assert f".reqnctapercluster {split}, 1, 1" in emitted(program)[1]
    (usage,) = assembled(program, "sm_90a").kernels.values()
    assert usage.registers <= 32
    assert not usage.spilled_bytes


WAIT = "barrier.cluster.wait.acquire.aligned;"
ARRIVE = "barrier.cluster.arrive.release.aligned;"


@pytest.mark.parametrize(
    ("without", "problem"),
    [
        (0, "does not know that block . of its cluster has begun"),
        (1, "which nobody wrote|and does not know that this is over|has ended|may still write"),
    ],
)
def test_a_barrier_that_is_missing_is_told(without: int, problem: str) -> None:
    program = lowered(layer_norm(1, 8200), config_of(2, 1, 32, 0))
    code, ptx = emitted(program)
    lines = ptx.splitlines()
    for word in (ARRIVE, WAIT):
        del lines[[n for n, line in enumerate(lines) if word in line][without]]
    arrays = inputs_of(layer_norm(1, 8200))
    memory = DeviceMemory()
    addresses = [memory.allocate(array.nbytes) for array in (*arrays, arrays[0])]
    for address, array in zip(addresses, arrays, strict=False):
        memory.write(address, array)
    (launch,) = code.launches
    with pytest.raises(KernelFault, match=problem):
        load_ptx("\n".join(lines)).launch(
            memory, launch.name, launch.grid, launch.block, [*addresses, memory.allocate(0)]
        )


def test_which_rows_are_shared_out() -> None:
    workload = softmax(4, 128256, dtype=HALF)
    space = config_space(workload, HOPPER)
    assert space.default == config_of(8, 8, 256, 1)
    assert space.valid(space.encode(space.default)[None])[0]
    rows = space.sample(np.random.default_rng(0), 200)
    drawn = list(map(space.decode, rows[space.valid(rows)]))
    mine = [c for c in drawn if c["sketch"] == "gpu_long_rows"]
    assert mine
    several = [c for c in mine if not c["cluster"]]
    assert all(int(c["split"]) % int(c["vec"]) == 0 and not c["kept"] for c in several)
    assert all(int(c["split"]) <= 16 for c in mine if c["cluster"])
    ampere = config_space(workload, Target("cuda -arch=sm_80")).sketch("gpu_long_rows")
    assert [k.choices for k in ampere.knobs[-2:]] == [(0,), (0,)]
    assert ampere.default == config_of(32, 8, 256)
    assert config_space(softmax(1, 1 << 20), HOPPER).default["cluster"] == 0  # beyond registers
    assert config_space(softmax(60, 8192), HOPPER).default["sketch"] == "gpu_rows"  # short
    for other in (softmax(4096, 8192), softmax(2, 1000)):  # many, too short
        assert "gpu_long_rows" not in [s.sketch for s in config_space(other, HOPPER).sketches]
    summed = Workload.from_function(
        function_of("sum", ((4, 65536), F32), axes=(1,), keepdims=False)
    )
    with pytest.raises(ScheduleError, match="no rows whose stages can be shared out"):
        lowered(summed, config_of(4, 1, 32))
