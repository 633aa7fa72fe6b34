"""Memory of one run beside weights, inputs and outputs: ours against onnxruntime and OpenVINO.

    python bench/memory.py [--cores 1,2] [MODEL …]

Method: each library loads the model in a process of its own, whose malloc maps and unmaps
every block of 64 KiB and more by itself, and its first runs are watched. The figure is the highest
resident set (VmHWM, reset through /proc/self/clear_refs) during three runs less the resident set
before them; code that the first run pages in is part of it. onnxruntime runs without its arena,
which had room left over from loading: what is counted is the least that its plan needs, every
tensor freed after its last use. ``planned`` is what our build says of itself (``lib.peak_bytes``).
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from models import ALL, MODELS
from networks import random_feeds
from rich.console import Console
from rich.table import Table

import tunefarm
from tunefarm.peers.libraries import Feeds, in_openvino, installed

RUNS = 3
OURS = "ours"
MALLOC = {
    "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "0", "MALLOC_TOP_PAD_": "0",
}  # fmt: skip


def resident(field: str) -> int:
    """Bytes that /proc/self/status gives for ``field``: VmRSS (now) or VmHWM (the highest)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) << 10
    raise AssertionError(field)


def onnxruntime_call(model: bytes, feeds: Feeds, cores: int) -> Callable[[], object]:
    """A run of a session that has no arena."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = cores
    options.enable_cpu_mem_arena = False
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return lambda: session.run(None, dict(feeds))


def openvino_call(model: bytes, feeds: Feeds, cores: int) -> Callable[[], object]:
    return in_openvino(model, feeds, cores).call


PEERS = {"onnxruntime": onnxruntime_call, "OpenVINO": openvino_call}


def grown(library: str, name: str, cores: int) -> dict[str, int]:
    """Build the model in this process, run it, and say by how many bytes the process grew."""
    model = ALL[name]()
    module = tunefarm.from_onnx(model)
    feeds = random_feeds(module)
    planned = {}
    if library == OURS:
        with tunefarm.apply_history_best((), starter=False):
            lib = tunefarm.build(module, tunefarm.Target.host(cores))
        planned = {"planned": lib.peak_bytes}
        call = lambda: lib.run(feeds)  # noqa: E731
    else:
        del module
        call = PEERS[library](model.SerializeToString(), feeds, cores)
    del model
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")
    before = resident("VmRSS")
    for _ in range(RUNS):
        call()
    return {"grown": resident("VmHWM") - before, **planned}


def measured(library: str, name: str, cores: int) -> dict[str, int]:
    """``grown`` in a fresh process."""
    command = [sys.executable, __file__, "--one", library, "--cores", str(cores), name]
    environment = {**os.environ, **MALLOC}
    answer = subprocess.run(command, capture_output=True, text=True, env=environment)
    if answer.returncode:
        sys.exit(f"{library} failed on {name}:\n{answer.stderr}")
    figures: dict[str, int] = json.loads(answer.stdout.splitlines()[-1])
    return figures


def show(rows: Mapping[str, Mapping[str, Mapping[str, int]]], cores: int) -> bool:
    """Print the table; False if a model of ours takes more than onnxruntime."""
    names = list(next(iter(rows.values())))
    table = Table(title=f"MB of one run, {cores} core(s)", title_justify="left")
    table.add_column("model")
    for column in (*names, "planned", "ours / onnxruntime"):
        table.add_column(column, justify="right")
    ratios = []
    for model, figures in rows.items():
        ours, peer = figures[OURS], figures.get("onnxruntime")
        ratio = ours["grown"] / peer["grown"] if peer else None
        ratios.append(ratio)
        cells = [f"{figures[n]['grown'] / 1e6:.1f}" for n in names]
        table.add_row(
            model, *cells, f"{ours['planned'] / 1e6:.1f}", "–" if ratio is None else f"{ratio:.2f}"
        )
    Console(width=110).print(table)
    return all(ratio is None or ratio <= 1 for ratio in ratios)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="*", default=list(MODELS), metavar="MODEL")
    parser.add_argument("--cores", default="1,2", help="numbers of cores, one table each")
    parser.add_argument("--one", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(grown(options.one, options.models[0], int(options.cores))))
        return 0
    libraries = [OURS, *installed()]
    fine = True
    for cores in map(int, options.cores.split(",")):
        rows = {m: {n: measured(n, m, cores) for n in libraries} for m in options.models}
        fine &= show(rows, cores)
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
