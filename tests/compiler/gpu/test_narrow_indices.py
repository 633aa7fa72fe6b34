"""Index arithmetic in words: where ranges allow it, and what a step of a convolution computes."""

from __future__ import annotations

import re

from gpu_harness import HOPPER, emitted, function_of, lowered, needs_ptxas
from tunefarm.compiler.gpu.emit import emit_gpu
from tunefarm.compiler.gpu.ptxas import assemble
from tunefarm.compiler.ir import Expr, Function
from tunefarm.compiler.ops import call
from tunefarm.compiler.space import Config
from tunefarm.compiler.workload import Workload

HALF = "float16"


def transposed(rows: int) -> Function:
    """Elements whose places are quotients and remainders of a thread's number."""
    return function_of("transpose", ((3, rows, 5), "float32"), axes=(1, 0, 2))


def divisions(function: Function, dtype: str) -> list[str]:
    workload = Workload.from_function(function)
    config: Config = {"sketch": "gpu_elements", "vec": 1, "threads": 256, "each": 1, "taps": 0}
    text = emit_gpu(lowered(workload, config), HOPPER).text
    return re.findall(rf"= [us](?:div|rem) {dtype} .*", text)


def test_quotients_are_words_where_the_numbers_are_small() -> None:
    assert divisions(transposed(1000), "i32")
    assert not divisions(transposed(1000), "i64")


def test_quotients_of_large_numbers_stay_whole() -> None:
    assert divisions(transposed(1 << 29), "i64")


def test_numbers_beyond_a_word_are_compared_whole() -> None:
    """Columns of the last tile go on to 2^31 + 63, of which a word has no sign left."""
    columns = (1 << 31) - 9
    product = function_of("matmul", ((4, 4), HALF), ((4, columns), HALF))
    config: Config = {"sketch": "gpu_wgmma", "groups": 1, "columns": 96, "stages": 2}
    text = emit_gpu(lowered(Workload.from_function(product), config), HOPPER).text
    assert re.search(rf"icmp slt i64 .*, {columns}\b", text)
    assert not re.search(rf"icmp \w+ i32 .*, {columns - 1}\b", text)


def convolution(channels: int) -> Function:
    def body(x: Expr, w: Expr) -> Expr:
        return call("conv", x, w, padding=((1, 1), (1, 1)), data_layout="NSC", kernel_layout="SIO")

    return function_of(body, ((16, 14, 14, channels), HALF), ((3, 3, channels, 256), HALF))


@needs_ptxas
def test_a_step_of_a_convolution_divides_nothing_but_its_number() -> None:
    """A step lies within one tap, which all threads of a block share: what is divided in the loop
    is that number, and no row's place."""
    workload = Workload.from_function(convolution(256))
    config: Config = {
        "sketch": "gpu_wgmma",
        "groups": 3,
        "columns": 128,
        "stages": 4,
        "split": 3,
        "overlap": 1,
        "swizzle": 128,
        "wide": 1,
    }
    code, ptx = emitted(lowered(workload, config))
    main = next(part for part in code.text.split("define ") if "wgmma" in part)
    inside = main[main.index("phi i64") : main.index("wgmma.mma_async")]
    assert len(re.findall(r"= udiv i32", inside)) == 2  # by taps' channels, and by a row's taps
    assert not re.findall(r"(?:div|rem) i64", inside)
    assert max(k.registers for k in assemble(ptx, "sm_90a").kernels.values()) <= 120
