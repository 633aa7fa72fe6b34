"""The PTX of every sketch, run by the emulator, against NumPy: odd extents, sampled configs."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from emulation import Array, emulate, run_program
from gpu_harness import F32, HOPPER, emitted, function_of, inputs_of, lowered, operator_cases
from tunefarm.compiler.evaluate import evaluate
from tunefarm.compiler.gpu.emulator import DeviceMemory, KernelFault, load_ptx
from tunefarm.compiler.gpu.emulator.module import EmulatedModule
from tunefarm.compiler.gpu.launches import Launch
from tunefarm.compiler.ir import Function
from tunefarm.compiler.ops import call
from tunefarm.compiler.space import Config, config_space
from tunefarm.compiler.target import Target
from tunefarm.compiler.workload import Workload

CONV: dict[str, Any] = {
    "strides": (1, 1), "padding": ((1, 1), (1, 1)), "dilations": (1, 1), "groups": 1,
    "data_layout": "NSC", "kernel_layout": "SIO", "pad_value": 0, "out_dtype": "",
}  # fmt: skip
HALF, BRAIN = "float16", "bfloat16"
ARCHS = [Target(f"cuda -arch={arch}") for arch in ("sm_75", "sm_80", "sm_90a", "sm_120")]
ROUNDING = {HALF: 2.0**-11, BRAIN: 2.0**-8, F32: 2.0**-21, "float64": 2.0**-50}


def _turned(a: Any, b: Any) -> Any:
    return call("matmul", a, call("transpose", b, axes=(0, 2, 1)))


def _conv(**attrs: Any) -> Callable[..., Any]:
    def build(x: Any, w: Any, b: Any) -> Any:
        return call("relu", call("add", call("conv", x, w, **{**CONV, **attrs}), b))

    return build


def _product(name: str, dtype: str) -> Function:
    """A contraction of numbers of a type."""
    shapes: dict[str, tuple[Any, tuple[tuple[int, ...], ...]]] = {
        "primes": ("matmul", ((17, 37), (37, 11))),
        "a row": ("matmul", ((1, 40), (40, 24))),
        "tails": ("matmul", ((50, 72), (72, 40))),
        "turned": (_turned, ((2, 9, 24), (2, 17, 24))),
        "same": (_conv(), ((1, 5, 6, 8), (3, 3, 8, 24), (24,))),
        "strided": (_conv(strides=(2, 2)), ((1, 7, 5, 3), (3, 3, 3, 10), (10,))),
    }
    op, extents = shapes[name]
    return function_of(op, *((e, dtype) for e in extents))


def _sampled(workload: Workload, target: Target, sketch: str, count: int) -> list[Config]:
    """Valid configs of a sketch whose blocks are not large beside the workload."""
    space = config_space(workload, target)
    rows = space.sample(np.random.default_rng(23), 400)
    found = []
    for row in rows[space.valid(rows)]:
        config = space.decode(row)
        tile = np.prod([int(config.get(n, 1)) for n in ("wm", "wn", "mi", "ni")])
        tile *= np.prod([int(config.get(n, 1)) for n in ("vm", "m4", "vn", "n4")])
        if config["sketch"] == sketch and tile <= 16:
            found.append(config)
    return found[:count]


def agrees(function: Function, exact: Function, config: Config | None, target: Target) -> None:
    """What the kernels write is the function in float64, up to the rounding of the operands' type
    for each sum."""
    workload = Workload.from_function(function)
    config = config or config_space(workload, target).default
    given = inputs_of(workload)
    got = run_program(lowered(workload, config, target), given, target)[0].astype(np.float64)
    wide = [a.astype(np.float64) for a in given]
    (want,) = evaluate(exact, wide)
    (size,) = evaluate(exact, [np.abs(a) for a in wide])
    error = np.abs(got.reshape(want.shape) - want) / np.maximum(np.abs(size), 1e-3)
    assert error.max() <= ROUNDING[function.params[0].type.dtype], (str(target), config)


# --- products -----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [F32, "float64"])
@pytest.mark.parametrize("name", ["primes", "a row", "tails", "turned", "same", "strided"])
def test_products_on_ordinary_arithmetic(name: str, dtype: str) -> None:
    function, exact = _product(name, dtype), _product(name, "float64")
    workload = Workload.from_function(function)
    for config in _sampled(workload, HOPPER, "gpu_simt", 4 if dtype == F32 else 1):
        agrees(function, exact, config, HOPPER)


@pytest.mark.parametrize("dtype", [HALF, BRAIN])
@pytest.mark.parametrize("name", ["primes", "a row", "tails", "turned", "same"])
def test_products_on_tensor_cores(name: str, dtype: str) -> None:
    function, exact = _product(name, dtype), _product(name, "float64")
    workload = Workload.from_function(function)
    for config in _sampled(workload, HOPPER, "gpu_mma", 4):
        agrees(function, exact, config, HOPPER)


@pytest.mark.parametrize("stages", [1, 2, 3, 4])
def test_tiles_in_stages(stages: int) -> None:
    """Copies that run on ahead, in a loop that is longer than they are deep."""
    config = {"sketch": "gpu_mma", "wm": 2, "wn": 1, "mi": 1, "ni": 2, "bk": 16, "stages": stages}
    function = function_of("matmul", ((33, 152), HALF), ((152, 16), HALF))
    exact = function_of("matmul", ((33, 152), "float64"), ((152, 16), "float64"))
    agrees(function, exact, config, HOPPER)
    tile = {"ty": 4, "tx": 8, "vm": 2, "m4": 2, "vn": 1, "n4": 2, "bk": 8, "by_column": 1}
    single = function_of("matmul", ((33, 152), F32), ((152, 16), F32))
    agrees(single, exact, {"sketch": "gpu_simt", **tile, "stages": min(stages, 3)}, HOPPER)


@pytest.mark.parametrize("transpose_b", [False, True])
@pytest.mark.parametrize(
    ("wn", "ni", "bk"), [(1, 1, 16), (1, 2, 32), (2, 2, 64), (2, 4, 16), (4, 8, 32)]
)
def test_tiles_of_swizzled_rows(wn: int, ni: int, bk: int, transpose_b: bool) -> None:
    """Rows of 16 to 512 bytes, of full and of cut tiles, copied in vectors of 16 and of 8 bytes."""
    config = {"sketch": "gpu_mma", "wm": 1, "wn": wn, "mi": 1, "ni": ni, "bk": bk, "stages": 3}
    for columns, depth in ((wn * ni * 8, 4 * bk), (wn * ni * 8 + 4, 4 * bk + 12)):
        shape = (columns, depth) if transpose_b else (depth, columns)
        function, exact = (
            function_of("matmul", ((20, depth), d), (shape, d), transpose_b=transpose_b)
            for d in (HALF, "float64")
        )
        agrees(function, exact, config, HOPPER)


@pytest.mark.parametrize("name", ["primes", "a row", "tails", "turned", "same"])
@pytest.mark.parametrize("split", [2, 3])
def test_parts_of_products_on_tensor_cores(split: int, name: str) -> None:
    tile = {"wm": 1, "wn": 2, "mi": 1, "ni": 2, "bk": 16, "stages": 3}
    function, exact = _product(name, HALF), _product(name, "float64")
    agrees(function, exact, {"sketch": "gpu_mma", **tile, "split": split}, HOPPER)


@pytest.mark.parametrize("kinds", [("uint8", "int8"), ("int8", "int8"), ("uint8", "uint8")])
def test_products_of_bytes(kinds: tuple[str, str]) -> None:
    rng = np.random.default_rng(5)
    limits = [np.iinfo(kind) for kind in kinds]
    arrays = [
        rng.integers(limit.min, limit.max, shape, endpoint=True).astype(kind)
        for limit, shape, kind in zip(limits, ((18, 40), (40, 16)), kinds, strict=True)
    ]
    types = [(a.shape, a.dtype.name) for a in arrays]
    workload = Workload.from_function(function_of("matmul", *types, out_dtype="int32"))
    for sketch in ("gpu_mma", "gpu_simt"):
        for config in _sampled(workload, HOPPER, sketch, 2):
            emulate(workload, config, arrays)


def test_products_of_rounded_floats() -> None:
    """TF32 drops what float32 has beyond ten bits; without those it is exact."""
    rounding = Target("cuda -arch=sm_90a -precision=tf32")
    function = function_of("matmul", ((17, 24), F32), ((24, 16), F32))
    workload = Workload.from_function(function)
    given = [
        (a.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32) for a in inputs_of(workload)
    ]
    for config in _sampled(workload, rounding, "gpu_mma", 4):
        emulate(workload, config, given, rounding)
    more = [(a.view(np.uint32) | np.uint32(0x1FFF)).view(np.float32) for a in given]
    program = lowered(workload, config, rounding)
    cut, whole = (run_program(program, arrays, rounding)[0] for arrays in (more, given))
    assert (cut == whole).all()


# --- rows, elements, every operator, every architecture -------------------------------------------

ROWS: dict[str, Callable[[str], Function]] = {
    "softmax": lambda d: function_of("softmax", ((5, 37), d), axis=-1),
    "softmax of one": lambda d: function_of("softmax", ((7, 1), d), axis=-1),
    "a long row": lambda d: function_of("softmax", ((3, 197), d), axis=-1),
    "layer norm": lambda d: function_of(
        lambda x, g, b: call("layer_norm", x, g, b, axis=-1), ((3, 72), d), ((72,), d), ((72,), d)
    ),
    "mean": lambda d: function_of("mean", ((6, 45), d), axes=(1,), keepdims=False),
}


@pytest.mark.parametrize("dtype", [F32, HALF])
@pytest.mark.parametrize("name", ROWS)
def test_rows(name: str, dtype: str) -> None:
    workload = Workload.from_function(ROWS[name](dtype))
    for config in [
        config_space(workload, HOPPER).default,
        *_sampled(workload, HOPPER, "gpu_rows", 3),
    ]:
        emulate(workload, config)


@pytest.mark.parametrize("dtype", [F32, HALF, BRAIN, "float64", "int32", "int8"])
def test_elements(dtype: str) -> None:
    for shape in ((1,), (5, 23), (3, 8, 16)):
        function = function_of(
            lambda a, b: call("maximum", call("add", a, b), b), (shape, dtype), (shape[-1:], dtype)
        )
        workload = Workload.from_function(function)
        for config in _sampled(workload, HOPPER, "gpu_elements", 3):
            emulate(workload, config)


OPERATORS = operator_cases()
SMALL = {"ty": 8, "tx": 4, "vm": 1, "m4": 1, "vn": 1, "n4": 1, "bk": 4, "stages": 1}


@pytest.mark.parametrize("case", OPERATORS.CASES, ids=str)
def test_an_operator(case: Any) -> None:
    rng = np.random.default_rng(7)
    arrays = [np.asarray(OPERATORS.draw(case, i, rng)) for i in range(len(case.shapes))]
    types = [(a.shape, a.dtype.name) for a in arrays]
    workload = Workload.from_function(function_of(case.op, *types, **case.attrs))
    last = config_space(workload, HOPPER).sketches[-1]
    config = dict(last.default) | (SMALL if last.sketch == "gpu_simt" else {})
    emulate(workload, config, arrays)


@pytest.mark.parametrize("target", ARCHS, ids=lambda target: target.gpu.name)
def test_code_for_other_gpus(target: Target) -> None:
    """Turing copies by itself, Blackwell multiplies two floats at once."""
    for name, dtype in (("primes", F32), ("same", F32), ("tails", HALF), ("same", BRAIN)):
        agrees(_product(name, dtype), _product(name, "float64"), None, target)
    for name in ("softmax", "layer norm"):
        emulate(Workload.from_function(ROWS[name](F32)), target=target)


# --- what the emulator would not let pass ---------------------------------------------------------


def _matmul(stages: int) -> tuple[str, Launch, list[Array]]:
    """The PTX of a product on tensor cores, its launch and operands."""
    workload = Workload.from_function(function_of("matmul", ((32, 96), HALF), ((96, 16), HALF)))
    config = {"sketch": "gpu_mma", "wm": 2, "wn": 1, "mi": 1, "ni": 2, "bk": 16, "stages": stages}
    code, ptx = emitted(lowered(workload, config))
    return ptx, code.launches[0], inputs_of(workload)


def _run(module: EmulatedModule, launch: Launch, arrays: list[Array]) -> Array:
    memory = DeviceMemory()
    addresses = [memory.allocate(n) for n in (32 * 96 * 2, 96 * 16 * 2, 32 * 16 * 2, 0)]
    for address, array in zip(addresses, arrays, strict=False):
        memory.write(address, array)
    module.launch(memory, launch.name, launch.grid, launch.block, addresses, launch.dynamic_bytes)
    return memory.read(addresses[2], 32 * 16 * 2).view(np.float16)


@pytest.mark.parametrize(
    ("stages", "pattern", "instead", "message"),
    [
        (3, r"bar\.sync \t0;", "", "since the last barrier|may be under way"),
        (2, r"bar\.sync \t0;", "", "since the last barrier|may be under way"),
        (1, r"bar\.sync \t0;", "", "since the last barrier|may be under way"),
        (3, r"wait_group \t1", "wait_group 2", "reads 16 bytes .* a copy that may be under way"),
        (2, r"cp\.async\.wait_all;", "", "reads 16 bytes .* a copy that may be under way"),
        (2, r"(cp\.async\S+ \[[^]]+\], \[%rd\d+)(\+\d+)?\]", r"\1+65536]",
         "which is not allocated|beyond"),
    ],
)  # fmt: skip
def test_a_product_whose_code_is_broken(
    stages: int, pattern: str, instead: str, message: str
) -> None:
    ptx, launch, arrays = _matmul(stages)
    whole = _run(load_ptx(ptx), launch, arrays)
    broken, count = re.subn(pattern, instead, ptx)
    assert count
    with pytest.raises(KernelFault, match=message):
        _run(load_ptx(broken), launch, arrays)
    assert np.isfinite(whole).all()


def test_fragments_that_are_mixed_up_give_another_product() -> None:
    ptx, launch, arrays = _matmul(1)
    want = arrays[0].astype(np.float64) @ arrays[1].astype(np.float64)
    good = _run(load_ptx(ptx), launch, arrays).reshape(32, 16)
    np.testing.assert_allclose(good, want, 2e-3, 2e-2)
    for pattern, instead in (
        (r"\{(%r\d+), (%r\d+), (%r\d+), (%r\d+)\},\s+(\{%r\d+, %r\d+\},)", r"{\1, \3, \2, \4}, \5"),
        (r"\.trans", ""),
    ):
        mixed, count = re.subn(pattern, instead, ptx)
        assert count
        try:
            got = _run(load_ptx(mixed), launch, arrays).reshape(32, 16)
        except KernelFault:  # rows that nobody wrote
            continue
        assert np.abs(got - want).max() > 1
