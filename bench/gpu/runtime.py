"""The runtime on a GPU, held in one call to what no emulator shows.

    python bench/gpu/runtime.py [-k torch] [--minutes 5] [--out report.json]
    TUNEFARM_CUDA=emulated python bench/gpu/runtime.py

Each check is a function below: it passes, fails with a sentence, or is left out where a library is
missing. Prints a line each, and writes a report with its date: bench/gpu/reports/runtime-DATE.json.
"""

from __future__ import annotations

import argparse
import importlib.util
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from reporting import Report, add_options
from tunefarm.compiler.build import build_module
from tunefarm.compiler.evaluate import evaluate
from tunefarm.compiler.ir import Constant, Function, IRModule, TensorType, Var
from tunefarm.compiler.ops import call
from tunefarm.compiler.runtime.cuda.arrays import to_device
from tunefarm.compiler.runtime.cuda.driver import Device, open_device
from tunefarm.compiler.runtime.cuda.module import CudaModule
from tunefarm.compiler.target import Target
from watch import watched

FAULT = """
from tunefarm.compiler.runtime.cuda.driver import DriverError
from runtime import Bench
bench = Bench.here()
bound = bench.kernel().bind([bench.data[0]])
bound.pointers = (256, *bound.pointers[1:])
try:
    bound()
except DriverError as error:
    print("fatal" if error.fatal else "told", error)
"""


class LeftOut(Exception):
    """A check that needs what is not here."""


class Bench:
    """A small network on the device, inputs for it, and what NumPy makes of them."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.target = Target(f"cuda -arch={device.properties.arch}")
        self.program = network()
        made = build_module(self.program, self.target)
        assert isinstance(made, CudaModule)
        self.lib = made
        rng = np.random.default_rng(1)
        self.data = [rng.standard_normal((64, 128), np.float32) for _ in range(8)]
        self.wanted = [evaluate(self.program, {"x": x})[0] for x in self.data]

    @staticmethod
    def here() -> Bench:
        return Bench(open_device())

    def kernel(self) -> Any:
        from tunefarm.compiler import te
        from tunefarm.compiler.build import build_function

        x = te.placeholder((64, 128), name="x")
        twice = te.compute((64, 128), lambda i, j: x[i, j] * 2)
        return build_function(te.create_prim_func([x, twice]), self.target)

    def count(self, wanted: int) -> int:
        """How often to do something: seldom on an emulator."""
        return min(wanted, 2) if self.device.properties.emulated else wanted

    def near(self, got: Any, index: int) -> None:
        np.testing.assert_allclose(got, self.wanted[index], 1e-3, 1e-4)


def network() -> IRModule:
    rng = np.random.default_rng(0)
    x = Var("x", TensorType((64, 128), "float32"))
    first, second = (Constant(rng.standard_normal((128, 128), np.float32) / 11) for _ in range(2))
    hidden = call("relu", call("matmul", x, first))
    return IRModule({"main": Function((x,), call("softmax", call("matmul", hidden, second)))})


# --- checks -------------------------------------------------------------------------------------


def check_replays_read_new_inputs(bench: Bench) -> None:
    for index, x in enumerate(bench.data):
        bench.near(bench.lib.run({"x": x})["output"], index)


def check_threads_at_once(bench: Bench) -> None:
    def run(index: int) -> Any:
        return bench.lib.run({"x": bench.data[index % 8]})["output"]

    with ThreadPoolExecutor(8) as threads:
        for index, got in enumerate(threads.map(run, range(4 * bench.count(16)))):
            bench.near(got, index % 8)


def check_nodes_on_the_host(bench: Bench) -> None:
    lib = build_module(bench.program, bench.target, ["softmax"])
    for index, x in enumerate(bench.data):
        bench.near(lib.run({"x": x})["output"], index)


def check_torch_shares_memory(bench: Bench) -> None:
    torch = torch_here()
    for index, x in enumerate(bench.data):
        tensor = torch.from_numpy(x).cuda()
        (output,) = bench.lib.run({"x": tensor}, device=True).values()
        seen = torch.from_dlpack(output)
        assert seen.data_ptr() == output.address
        bench.near(seen.cpu().numpy(), index)
    with_interface = bench.lib.run({"x": Interfaced(torch.from_numpy(bench.data[0]).cuda())})
    bench.near(with_interface["output"], 0)


def check_torch_streams(bench: Bench) -> None:
    """Runs between torch's own work, in its order, with nobody waiting."""
    torch = torch_here()
    stream = torch.cuda.Stream()
    results = []
    with torch.cuda.stream(stream):
        for repeat in range(100):
            x = torch.from_numpy(bench.data[repeat % 8]).cuda()
            torch.cuda._sleep(100_000)
            doubled = x * 2
            (output,) = bench.lib.run({"x": doubled / 2}, stream=stream.cuda_stream).values()
            results.append(torch.from_dlpack(output) + 0)
            del doubled, output
    stream.synchronize()
    for repeat, got in enumerate(results):
        bench.near(got.cpu().numpy(), repeat % 8)


def check_cupy_shares_memory(bench: Bench) -> None:
    if importlib.util.find_spec("cupy") is None:
        raise LeftOut("no CuPy")
    import cupy

    (output,) = bench.lib.run({"x": cupy.asarray(bench.data[0])}, device=True).values()
    bench.near(cupy.asnumpy(cupy.from_dlpack(output)), 0)


def check_clocks_agree(bench: Bench) -> None:
    """A second of replays takes as long by events as by the host's clock, within 5%."""
    if bench.device.properties.emulated:
        raise LeftOut("an emulator has the host's clock")
    count = int(0.5 / bench.lib.time_evaluator(min_repeat_ms=50).median)
    start = time.perf_counter()
    timing = bench.lib.time_evaluator(number=count, repeat=1)
    wall = time.perf_counter() - start
    told = timing.median * (count + 2)
    assert abs(told / wall - 1) < 0.05, f"{told:.3f} s by events, {wall:.3f} s by the host"


def check_cold_is_not_faster(bench: Bench) -> None:
    if bench.device.properties.emulated:
        raise LeftOut("an emulator has no cache")
    warm = bench.lib.time_evaluator(number=50).median
    cold = bench.lib.time_evaluator(number=50, cold_weights=True).median
    assert cold > 0.9 * warm, f"cold {cold * 1e6:.2f} µs, warm {warm * 1e6:.2f} µs"


def check_a_fault_costs_its_process_alone(bench: Bench) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FAULT],
        cwd=Path(__file__).parent, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.stdout.startswith("fatal"), done.stdout + done.stderr[-500:]
    bench.near(bench.lib.run({"x": bench.data[0]})["output"], 0)


class Interfaced:
    """A tensor by the CUDA array interface alone."""

    def __init__(self, tensor: Any) -> None:
        self.keep, self.__cuda_array_interface__ = tensor, tensor.__cuda_array_interface__


def torch_here() -> Any:
    try:
        import torch
    except ImportError:
        raise LeftOut("no PyTorch") from None
    if not torch.cuda.is_available():
        raise LeftOut("this PyTorch has no CUDA")
    return torch


# --- times --------------------------------------------------------------------------------------


def overheads(bench: Bench) -> Iterator[tuple[str, float]]:
    """Seconds of the host for a run, by what it is given and asked for."""
    lib, x = bench.lib, bench.data[0]
    there = to_device(bench.device, x, lib.inputs[0].type, "x")
    for name, run in {
        "NumPy in and out": lambda: lib.run({"x": x}),
        "device in and out": lambda: lib.run({"x": there}, device=True),
        "in the order of a stream": lambda: lib.run({"x": there}, stream=0),
    }.items():
        yield name, median_seconds(run, bench.count(30))


def median_seconds(run: Callable[[], object], count: int) -> float:
    times = []
    for _ in range(count):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return float(np.median(times[count // 3 :]))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add_options(parser)
    options = parser.parse_args()
    bench = Bench.here()
    report = Report("runtime", options, bench.device)
    checks = {name: value for name, value in globals().items() if name.startswith("check_")}
    for name, check in checks.items():
        if options.k in name and name not in report.done:
            told = report.run(name, partial(outcome, check, bench))
            if told is not None:
                said = told.get("failed") or told["outcome"]
                print(f"{name.removeprefix('check_').replace('_', ' ')}: {said}", flush=True)
    report.facts["host_seconds_of_a_run"] = took = dict(overheads(bench))
    for name, seconds in took.items():
        print(f"a run, {name}: {seconds * 1e6:.1f} µs", flush=True)
    return report.close()


def outcome(check: Callable[[Bench], None], bench: Bench) -> dict[str, Any]:
    try:
        check(bench)
    except LeftOut as reason:
        return {"outcome": f"left out: {reason}"}
    return {"outcome": "passes"}


if __name__ == "__main__":
    sys.exit(watched("runtime", main))
