"""Are odd shapes a cliff? Each beside its round neighbour: the ratio of their times per FLOP.

    python bench/odd_shapes.py [--cores 1] [--repeats 40]

Default configs. Each operator is built as a model of it alone would be, so that passes take part.
Both of a pair run in turn, and the ratio is the median of those of each turn. Inputs lie elsewhere
in each turn: kernels of a microsecond take up to 1.4 × as long where loads wait for stores of the
same last 12 bits of address. What has no products (softmax, layer norm, pooling, sums) counts
elements read instead of FLOPs.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from itertools import cycle
from math import prod

import numpy as np
from attention import spelled_out
from rich.console import Console
from rich.table import Table
from search_quality import fused
from tunefarm.compiler.build import build_module
from tunefarm.compiler.ir import (
    Constant,
    Expr,
    Function,
    IRModule,
    children,
    post_order,
    tensor_type,
)
from tunefarm.compiler.ops import call
from tunefarm.compiler.transform.rewrite import with_children
from tunefarm.compiler.workload import Workload, random_inputs
from workloads import Operator, conv, layer_norm, matmul, softmax

import tunefarm
from tunefarm.peers.turns import Array

LIMIT = 1.3
MIN_REPEAT_MS = 0.2  # a single run of a microsecond would find code and data where others left them
PLACES, STEP_BYTES = 16, 832  # of inputs in memory
PAGE_BYTES = 4096


def attention(tokens: int) -> Workload:
    """Attention of six heads of 64, with a mask: one kernel of a model."""
    module = tunefarm.from_onnx(spelled_out((tokens, 6, 64)))
    (task,) = tunefarm.extract_tasks(module)
    return task.workload


def images(batch: int, size: int, channels: int, kernel: int, depthwise: bool = False) -> Workload:
    """A convolution of a batch of images that keeps their size and channels."""
    pad = kernel // 2
    return fused(
        lambda x, w: call(
            "conv", x, w, padding=((pad, pad), (pad, pad)), groups=channels if depthwise else 1,
            data_layout="NSC", kernel_layout="SIO",
        ),
        (batch, size, size, channels),
        (kernel, kernel, 1 if depthwise else channels, channels),
        constants=[1],
    )  # fmt: skip


def pooling(size: int, channels: int, stride: int, op: str = "max_pool") -> Workload:
    """The greatest, or the average, of 3 × 3 pixels, channels last, padded."""
    padding = ((1, 1), (1, 1))
    attrs = {"counted": padding} if op == "avg_pool" else {}
    return fused(
        lambda x: call(
            op, x, kernel=(3, 3), strides=(stride, stride), padding=padding, data_layout="NSC",
            **attrs,
        ),
        (1, size, size, channels),
        constants=[],
    )  # fmt: skip


def sums(columns: int) -> Workload:
    """A sum over each of 4096 rows."""
    return fused(lambda x: call("sum", x, axes=(1,)), (4096, columns), constants=[])


def pairs() -> list[tuple[str, Workload, str, Workload]]:
    """Odd and round: what they are called, and their workloads."""

    def of(
        name: str, make: Callable[[int], Operator], odd: int, even: int
    ) -> tuple[str, Workload, str, Workload]:
        return f"{name} {odd}", make(odd).workload, f"{even}", make(even).workload

    return [
        of("dense 384×384, tokens", lambda m: matmul("", (m, 384), (384, 384)), 197, 192),
        of("dense 384×1536, tokens", lambda m: matmul("", (m, 384), (384, 1536)), 197, 192),
        of("dense 768×768, tokens", lambda m: matmul("", (m, 768), (768, 768)), 127, 128),
        of("GEMM, size", lambda n: matmul("", (n, n), (n, n)), 509, 512),
        of("GEMM, size", lambda n: matmul("", (n, n), (n, n)), 131, 128),
        ("attention, tokens 197", attention(197), "192", attention(192)),
        of("softmax, columns", lambda n: softmax(1182, n), 197, 192),
        of("layer norm, columns", lambda n: layer_norm(197, n), 383, 384),
        of("conv 3×3 512, image", lambda n: conv(n, 512, 512, 3), 7, 8),
        of("conv 1×1 512, image", lambda n: conv(n, 512, 512, 1), 7, 8),
        of("conv 3×3 64, image", lambda n: conv(n, 64, 64, 3), 55, 56),
        of("conv 3×3 28², channels", lambda n: conv(28, n, n, 3), 17, 16),
        of("conv 1×1 56², channels", lambda n: conv(56, n, n, 1), 17, 16),
        of("conv 1×1 28², channels", lambda n: conv(28, n, n, 1), 127, 128),
        of("conv 1×1 56², 64 to", lambda n: conv(56, 64, n, 1), 17, 16),
        of("conv 3×3 28², 64 to", lambda n: conv(28, 64, n, 3), 17, 16),
        of("conv 3×3 28², 64 to", lambda n: conv(28, 64, n, 3), 3, 4),
        of("depthwise 28², channels", lambda n: conv(28, n, n, 3, 1, n), 17, 16),
        of("depthwise 56², channels", lambda n: conv(56, n, n, 3, 1, n), 33, 32),
        of("depthwise/2 28², channels", lambda n: conv(28, n, n, 3, 2, n), 17, 16),
        of("depthwise/2 56², channels", lambda n: conv(56, n, n, 3, 2, n), 33, 32),
        ("max pool/2 56², channels 17", pooling(56, 17, 2), "16", pooling(56, 16, 2)),
        ("max pool/2 56², channels 33", pooling(56, 33, 2), "32", pooling(56, 32, 2)),
        ("max pool 28², channels 17", pooling(28, 17, 1), "16", pooling(28, 16, 1)),
        (
            "average pool 28², channels 17", pooling(28, 17, 1, "avg_pool"),
            "16", pooling(28, 16, 1, "avg_pool"),
        ),
        (
            "average pool/2 56², channels 33", pooling(56, 33, 2, "avg_pool"),
            "32", pooling(56, 32, 2, "avg_pool"),
        ),
        of("softmax, columns", lambda n: softmax(1536, n), 65, 64),
        of("softmax, columns", lambda n: softmax(1536, n), 17, 16),
        ("sum, columns 17", sums(17), "16", sums(16)),
        of("depthwise 960, image", lambda n: conv(n, 960, 960, 3, 1, 960), 7, 8),
        ("conv 3×3 128 28², batch 3", images(3, 28, 128, 3), "4", images(4, 28, 128, 3)),
        ("conv 3×3 512 7², batch 3", images(3, 7, 512, 3), "4", images(4, 7, 512, 3)),
        ("conv 1×1 256 14², batch 3", images(3, 14, 256, 1), "4", images(4, 14, 256, 1)),
        (
            "depthwise 96 28², batch 3", images(3, 28, 96, 3, True),
            "4", images(4, 28, 96, 3, True),
        ),
    ]  # fmt: skip


def work(workload: Workload) -> float:
    """FLOPs of its products, or the elements that it reads if it has none."""
    if workload.summary.startswith(("softmax", "layer_norm", "max_pool", "avg_pool", "sum")):
        return float(prod(tensor_type(workload.function.params[0]).shape))
    return float(workload.flops)


def model_of(workload: Workload) -> IRModule:
    """A model of one workload, its constants random numbers."""
    function = workload.function
    constants = function.attrs["constants"]
    assert isinstance(constants, tuple)
    arrays = random_inputs(workload, np.random.default_rng(0))
    done: dict[Expr, Expr] = {
        p: Constant(arrays[i]) if i in constants else p for i, p in enumerate(function.params)
    }
    for node in post_order(function.body):
        if node not in done:
            done[node] = with_children(node, [done[c] for c in children(node)])
    inputs = tuple(p for p in function.params if done[p] is p)
    names = tuple(f"x{i}" for i in range(len(inputs)))
    main = Function(inputs, done[function.body], {"input_names": names})
    return IRModule({"main": main}, ("y",))


def callable_of(workload: Workload, target: tunefarm.Target) -> Callable[[], float]:
    """A function that runs a model of the workload, warm, and returns its seconds."""
    module = build_module(model_of(workload), target)
    inputs = module.example_inputs()
    places = cycle(
        {name: moved(array, place * STEP_BYTES) for name, array in inputs.items()}
        for place in range(PLACES)
    )
    return lambda: min(module.time_evaluator(next(places), min_repeat_ms=MIN_REPEAT_MS).seconds)


def moved(array: Array, offset: int) -> Array:
    """A copy that begins ``offset`` bytes behind the start of a page."""
    memory = np.empty(array.nbytes + offset + PAGE_BYTES, np.uint8)
    start = -memory.ctypes.data % PAGE_BYTES + offset
    copy: Array = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cores", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=40)
    options = parser.parse_args()
    target = tunefarm.Target.host(options.cores)
    table = Table(title=f"odd shapes, {options.cores} core(s), {target.mcpu}")
    for column in ("odd", "G/s", "round", "G/s", "time per FLOP"):
        table.add_column(column, justify="left" if column in ("odd", "round") else "right")
    worst = 0.0
    for odd_name, odd, round_name, even in pairs():
        odd_call, even_call = (callable_of(w, target) for w in (odd, even))
        turns = [(odd_call(), even_call()) for _ in range(options.repeats)]
        odd_s, even_s = (statistics.median(t) for t in zip(*turns, strict=True))
        scale = work(even) / work(odd)
        ratio = statistics.median(a / b for a, b in turns) * scale
        worst = max(worst, ratio)
        first, second = (f"{work(w) / s / 1e9:.1f}" for w, s in ((odd, odd_s), (even, even_s)))
        mark = "[red]" if ratio > LIMIT else ""
        table.add_row(odd_name, first, round_name, second, f"{mark}{ratio:.2f}x")
    Console().print(table)
    print(f"Worst: {worst:.2f}x, wanted at most {LIMIT}x.")


if __name__ == "__main__":
    main()
