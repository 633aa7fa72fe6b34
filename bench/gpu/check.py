"""Every sketch for GPUs on a GPU, held to NumPy: the first thing to run on a new kind of device.

    python bench/gpu/check.py [--configs 8] [-k mma] [--minutes 5] [--out report.json]
    TUNEFARM_CUDA=emulated python bench/gpu/check.py --configs 1 --small

Workloads of odd extents have each sketch of their spaces, with its default config and others drawn
at random. Builders on the host's cores make the code, one after the other it runs on outputs of
NaN, and each element is held to the bound that trials are. A case is a sketch on a workload.
"""

from __future__ import annotations

import argparse
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from builds import build, builders
from cases import workload_of
from reporting import Report, add_options
from tunefarm.compiler.dtypes import numpy_dtype
from tunefarm.compiler.errors import TunefarmError
from tunefarm.compiler.ir import Constant, Expr
from tunefarm.compiler.ops import call
from tunefarm.compiler.runtime.cuda.driver import Device, DriverError, open_device
from tunefarm.compiler.runtime.cuda.kernel import load_kernel
from tunefarm.compiler.space import Config, config_space
from tunefarm.compiler.target import Target
from tunefarm.compiler.workload import Workload, random_inputs
from tunefarm.worker.backend import Built, Problem
from tunefarm.worker.cuda.backend import kernel_of, packed
from tunefarm.worker.problem import judged_as, pose_with
from tunefarm.worker.verify import check_answer
from watch import watched

SMALL_FLOPS = 2e6
UNCERTAIN = ("gpu_mma", "gpu_wgmma", "gpu_tma", "gpu_attention")  # tensor cores


@dataclass(frozen=True, slots=True)
class Task:
    """A workload for code with these options, beside those of the device."""

    name: str
    workload: Workload
    options: str = ""
    shaped: Callable[[list[Any]], list[Any]] = list  # what random operands are made into


def tasks() -> Iterator[Task]:
    """Operators of each kind, of extents that no tile divides; a few large enough for all stages
    of a pipeline and several blocks."""
    for dtype in ("float16", "bfloat16", "float32", "float64", "int8"):
        for options in ("", "-precision=tf32") if dtype == "float32" else ("",):
            for m, n, k in ((67, 91, 53), (200, 328, 264)):
                yield Task(f"matmul {m}×{n}×{k} {dtype}", product(m, n, k, dtype), options)
    for m, n, k in ((67, 92, 136), (200, 328, 520)):
        name = f"relu(a·b + c) + d {m}×{n}×{k} float16"
        yield Task(name, combined_product(m, n, k, "float16"))
    boxes = product(67, 96, 136, "float16")  # small, in rows of whole 16 bytes
    yield Task("matmul 67×96×136 float16", boxes)
    many = product(2000, 2056, 136, "float16")  # tiles, more than there are multiprocessors
    yield Task("matmul 2000×2056×136 float16", many)
    for dtype, options in (("float16", ""), ("float32", ""), ("float32", "-precision=tf32")):
        yield Task(f"conv 3×3 {dtype}", convolution(dtype, 3, 1), options)
        yield Task(f"conv 1×1 by 2 {dtype}", convolution(dtype, 1, 2), options)
    for dtype in ("float16", "bfloat16"):
        for lengths in ((2, 19, 37, 16), (3, 130, 200, 64), (2, 1, 500, 32), (3, 5, 4099, 64)):
            yield Task(f"attention {lengths} {dtype}", attention(*lengths, dtype))
        for lengths in ((1, 35, 53, 16), (2, 200, 333, 64)):
            name = f"causal attention {lengths} {dtype}"
            yield Task(name, attention(*lengths, dtype, masked=True), shaped=causal)
    for dtype in ("float16", "float32"):
        for columns in (37, 1000, 5000):
            yield Task(f"softmax {columns} {dtype}", rows("softmax", columns, dtype))
            yield Task(f"layer norm {columns} {dtype}", rows("layer_norm", columns, dtype))
            yield Task(f"sum {columns} {dtype}", rows("sum", columns, dtype))
        for operator, columns in (("softmax", 70001), ("softmax", 65600), ("layer_norm", 65608)):
            yield Task(
                f"{operator} of few rows, {columns} {dtype}", rows(operator, columns, dtype, 3)
            )
        for shape in ((70001,), (3, 65600)):
            yield Task(f"sum {shape} {dtype}", reduced("sum", shape, len(shape) - 1, dtype))
        for shape in ((777, 91), (1000, 96)):
            yield Task(f"mean of columns {shape} {dtype}", reduced("mean", shape, 0, dtype))
        yield Task(f"transpose {dtype}", transpose(dtype))
        yield Task(f"gelu {dtype}", workload_of(lambda x: call("gelu", x), ((37, 91), dtype)))
        yield Task(f"max pool {dtype}", pool(dtype))
        yield Task(f"depthwise {dtype}", depthwise(dtype))


def product(m: int, n: int, k: int, dtype: str) -> Workload:
    more = {"out_dtype": "int32"} if dtype == "int8" else {}
    return workload_of(lambda a, b: call("matmul", a, b, **more), ((m, k), dtype), ((k, n), dtype))


def combined_product(m: int, n: int, k: int, dtype: str) -> Workload:
    """A product with a bias, an activation and a residual."""
    return workload_of(
        lambda a, b, c, d: call("add", call("relu", call("add", call("matmul", a, b), c)), d),
        ((m, k), dtype), ((k, n), dtype), ((n,), dtype), ((m, n), dtype),
    )  # fmt: skip


def convolution(dtype: str, width: int, stride: int) -> Workload:
    attributes = images(width, stride, 1)
    return workload_of(
        lambda x, w: call("relu", call("conv", x, w, **attributes)),
        ((2, 15, 13, 40), dtype), ((width, width, 40, 72), dtype),
    )  # fmt: skip


def depthwise(dtype: str) -> Workload:
    attributes = images(3, 1, 40)
    return workload_of(
        lambda x, w: call("conv", x, w, **attributes),
        ((2, 15, 13, 40), dtype), ((3, 3, 1, 40), dtype),
    )  # fmt: skip


def images(width: int, stride: int, groups: int) -> dict[str, Any]:
    """Attributes of a convolution of images, channels last."""
    edge = width // 2
    return {
        "strides": (stride, stride), "padding": ((edge, edge), (edge, edge)),
        "dilations": (1, 1), "groups": groups, "data_layout": "NSC", "kernel_layout": "SIO",
        "pad_value": 0, "out_dtype": "",
    }  # fmt: skip


def attention(
    heads: int, queries: int, keys: int, size: int, dtype: str, masked: bool = False
) -> Workload:
    def body(q: Any, k: Any, v: Any, *mask: Any) -> Expr:
        scale = Constant(np.full((1,), size**-0.5, numpy_dtype(dtype)))
        scores = call("multiply", call("matmul", q, k, transpose_b=True), scale)
        if mask:
            nothing = Constant(np.full((1,), -np.inf, numpy_dtype(dtype)))
            scores = call("where", *mask, scores, nothing)
        return call("matmul", call("softmax", scores, axis=-1), v)

    return workload_of(
        body, ((heads, queries, size), dtype), ((heads, keys, size), dtype),
        ((heads, keys, size), dtype), *([((queries, keys), "bool")] if masked else []),
    )  # fmt: skip


def causal(inputs: list[Any]) -> list[Any]:
    """The operands with a mask, the last of them, of the keys that precede a query."""
    *operands, mask = inputs
    queries, keys = mask.shape
    return [*operands, np.tri(queries, keys, keys - queries, dtype=np.bool_)]


def rows(operator: str, columns: int, dtype: str, count: int = 19) -> Workload:
    x = ((count, columns), dtype)
    if operator == "layer_norm":
        scale = ((columns,), dtype)
        return workload_of(
            lambda x, g, b: call("layer_norm", x, g, b, axis=-1, epsilon=1e-5), x, scale, scale
        )
    if operator == "sum":
        return workload_of(lambda x: call("sum", x, axes=(1,), keepdims=False), x)
    return workload_of(lambda x: call("softmax", x, axis=-1), x)


def reduced(operator: str, shape: tuple[int, ...], axis: int, dtype: str) -> Workload:
    """Few results of many terms."""
    return workload_of(
        lambda x: call("abs", call(operator, x, axes=(axis,), keepdims=False)), (shape, dtype)
    )


def transpose(dtype: str) -> Workload:
    return workload_of(
        lambda x: call("relu", call("transpose", x, axes=(0, 2, 1))), ((3, 67, 91), dtype)
    )


def pool(dtype: str) -> Workload:
    return workload_of(
        lambda x: call("max_pool", x, kernel=(3, 3), strides=(2, 2), padding=((1, 1), (1, 1)),
                       data_layout="NSC"),
        ((2, 15, 13, 40), dtype),
    )  # fmt: skip


# --- one after the other ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Sketched:
    """A sketch on a task, and the configs of it that are tried: its default, then random ones."""

    sketch: str
    task: Task
    target: Target
    configs: tuple[Config, ...]

    @property
    def name(self) -> str:
        return " ".join(filter(None, (self.sketch, self.task.name, self.task.options)))

    def run(
        self, builds: Sequence[Future[Built]], device: Device, at: Callable[[str], None]
    ) -> dict[str, Any]:
        """How many configs answered right, and what the others did; ``at`` is told each one."""
        rng = np.random.default_rng(zlib.crc32(self.name.encode()))
        workload = self.task.workload
        problem = pose_with(workload, self.task.shaped(random_inputs(workload, rng)))
        problem = judged_as(problem, self.target)
        wrong = {}
        for config, future in zip(self.configs, builds, strict=True):
            words = " ".join(f"{k}={v}" for k, v in config.items())
            at(words)
            try:
                why = fault_of(future.result(), problem, device)
            except DriverError as error:
                if error.fatal:
                    raise
                why = str(error)
            except TunefarmError as error:
                why = f"{type(error).__name__}: {error}"
            if why is not None:
                wrong[words] = why
        told: dict[str, Any] = {"configs": len(self.configs)}
        return {**told, "failed": wrong} if wrong else told


def fault_of(built: Built, problem: Problem, device: Device) -> str | None:
    """What is wrong with the answer of one call, over outputs that held NaN; None if nothing is."""
    kernel = kernel_of(built)
    target = Target(built.metadata["target"])
    call = load_kernel(kernel, target, device).bind(packed(problem.inputs, kernel))
    for output in call.outputs:
        call.stream.fill(output.address, 0xFF, output.memory.size_bytes)
    call()
    answers = [np.ascontiguousarray(output.numpy()) for output in call.outputs]
    return check_answer(problem, [a.reshape(-1).view(np.uint8).data for a in answers])


def cases(device: Device, count: int) -> Iterator[Sketched]:
    """Each sketch of each task's space: one task of each first, then tensor cores, as they are the
    least certain, then the others."""
    found = []
    for task in tasks():
        arch = device.properties.arch
        target = Target(f"cuda -arch={arch} {task.options}")
        space = config_space(task.workload, target)
        drawn = space.sample(np.random.default_rng(0), 256 * count)
        rows = map(space.decode, drawn[space.valid(drawn)])
        by_sketch: dict[str, list[Config]] = {s.sketch: [s.default] for s in space.sketches}
        for config in rows:
            mine = by_sketch.get(str(config["sketch"]))
            if mine is not None and len(mine) < count and config not in mine:
                mine.append(dict(config))
        found += [Sketched(s, task, target, tuple(c)) for s, c in by_sketch.items()]
    firsts = {each.sketch: each for each in reversed(found)}
    rest = [each for each in found if each is not firsts[each.sketch]]
    for cases_of in ([*firsts.values()], rest):
        yield from sorted(cases_of, key=lambda each: each.sketch not in UNCERTAIN)


def main() -> int:
    options = parse_options()
    device = open_device()
    report = Report("check", options, device)
    chosen = [case for case in cases(device, options.configs) if options.k in case.name]
    if options.small:
        chosen = [case for case in chosen if case.task.workload.flops < SMALL_FLOPS]
    with builders(options.builders) as pool:
        waiting = [
            (case, [pool.submit(build, case.task.workload.text, case.target.text, dict(config))
                    for config in case.configs])
            for case in chosen if case.name not in report.done
        ]  # fmt: skip
        for case, builds in waiting:
            work = partial(case.run, builds, device, report.at)
            told = report.run(case.name, work, case.sketch)
            if told is not None:
                print(line_of(told), flush=True)
            for each in builds:
                each.cancel()  # those of cases that are left out
    return report.close()


def line_of(told: Mapping[str, Any]) -> str:
    """One line of the table."""
    failed = told.get("failed", {})
    if isinstance(failed, str):
        return f"{told['case']:<60} {failed}"
    right = f"{told['configs'] - len(failed)} of {told['configs']} right"
    first = next((f"; {config}: {why}" for config, why in failed.items()), "")
    return f"{told['case']:<60} {right}{first}"


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add_options(parser)
    parser.add_argument("--configs", type=int, default=8, help="configs of each sketch")
    parser.add_argument("--small", action="store_true", help="the smaller workloads alone")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(watched("check", main))
