"""How long building ResNet-50 takes: with an empty cache of kernels, and from a full one.

    python bench/build_time.py [--db sqlite:///…] [--cores 2] [--repeats 3] [MODEL]

Every build is a fresh process that reads the model from a file; medians over them, phase by phase.
The bars are 5 s cold and 2 s from the cache, for import and build (Python's imports not counted).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from rich.console import Console
from rich.table import Table

from tunefarm.peers.turns import Neighbours

BARS_S = {"cold": 5.0, "cached": 2.0}
IMPORTS = "Python imports"
REST = "everything else"
# What build_module calls, in order, and what a reader should see it as.
PHASES = {
    "optimize": "graph passes",
    "plan_memory": "memory plan",
    "choose_configs": "look-up of records",
    "schedule_workload": "schedules",
    "lower": "lowering",
    "emit_llvm": "LLVM text",
    "compile_llvm": "machine code",
    "link_model": "weights packed",
}


def timed(module: ModuleType, name: str, seconds: dict[str, float], phase: str) -> None:
    """Let ``module``'s ``name`` add its time to ``seconds[phase]``."""
    function: Callable[..., Any] = getattr(module, name)

    def run(*arguments: Any, **options: Any) -> Any:
        start = time.perf_counter()
        try:
            return function(*arguments, **options)
        finally:
            seconds[phase] = seconds.get(phase, 0.0) + time.perf_counter() - start

    setattr(module, name, run)


def build_once(model: str, db: str, cores: int) -> dict[str, float]:
    """Seconds of each phase of one build in this process."""
    start = time.perf_counter()
    import tunefarm.compiler.frontend.onnx
    import tunefarm.compiler.runtime.module as modules
    from tunefarm.compiler import build, kernel_cache

    import tunefarm

    seconds = {IMPORTS: time.perf_counter() - start}
    for name, phase in PHASES.items():
        timed(build, name, seconds, phase)
    for name, phase in (("load", "cache read"), ("store", "cache written")):
        timed(kernel_cache, name, seconds, phase)
    timed(modules, "create_module", seconds, "code loaded")
    start = time.perf_counter()
    module = tunefarm.from_onnx(model)
    seconds["model read"] = time.perf_counter() - start
    with tunefarm.apply_history_best(db or []) as history:
        tunefarm.build(module, tunefarm.Target.host(cores))
    whole = time.perf_counter() - start
    seconds[REST] = whole - sum(s for phase, s in seconds.items() if phase != IMPORTS)
    print(history.summary("tunefarm tune"), file=sys.stderr)
    return seconds


def build_in_child(options: argparse.Namespace, model: str, cache: Path) -> dict[str, float]:
    command = [sys.executable, __file__, model, "--child", "--db", options.db]
    command += ["--cores", str(options.cores)]
    environment = {**os.environ, "TUNEFARM_CACHE": str(cache)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    print(done.stderr.strip().splitlines()[-1], flush=True)
    return dict(json.loads(done.stdout))


def show(cold: Mapping[str, float], cached: Mapping[str, float], title: str) -> None:
    table = Table(title=title, title_justify="left")
    table.add_column("phase")
    for column in ("cold", "share", "cached", "share", "cold / cached"):
        table.add_column(column, justify="right")
    totals = {"cold": total(cold), "cached": total(cached)}
    for phase in dict.fromkeys([*cold, *cached]):
        cells = [cell for s in (cold, cached) for cell in _cells(s, phase)]
        a, b = cold.get(phase, 0.0), cached.get(phase, 0.0)
        table.add_row(phase, *cells, f"{a / b:.1f}x" if min(a, b) > 1e-3 else "–")
    table.add_row(
        "import and build", f"{totals['cold']:.3f} s", "", f"{totals['cached']:.3f} s", "",
        f"{totals['cold'] / totals['cached']:.1f}x", style="bold",
    )  # fmt: skip
    Console().print(table)
    for name, bar in BARS_S.items():
        print(f"{name}: {totals[name] / bar:.2f} of the bar of {bar:.0f} s")


def _cells(seconds: Mapping[str, float], phase: str) -> tuple[str, str]:
    """Time and share of a phase; a phase that did not happen is a dash."""
    if phase not in seconds:
        return "–", "–"
    share = f"{100 * seconds[phase] / total(seconds):.0f}%" if phase != IMPORTS else "–"
    return f"{seconds[phase]:.3f} s", share


def total(seconds: Mapping[str, float]) -> float:
    return sum(s for phase, s in seconds.items() if phase != IMPORTS)


def medians(runs: list[dict[str, float]]) -> dict[str, float]:
    return {phase: statistics.median(run[phase] for run in runs) for phase in runs[0]}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", default="resnet50", help="a name or an ONNX file")
    parser.add_argument("--db", default="", help="database of records")
    parser.add_argument("--cores", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(build_once(options.model, options.db, options.cores)))
        return
    import onnx
    from models import ALL

    with tempfile.TemporaryDirectory(prefix="tunefarm-bench-") as folder:
        path = options.model
        if path in ALL:
            path = str(Path(folder) / f"{options.model}.onnx")
            onnx.save(ALL[options.model](), path)
        neighbours = Neighbours()
        cold, cached = [], []
        for number in range(options.repeats):  # in turn: a cold build, then one from its cache
            cache = Path(folder) / f"cache-{number}"
            cold.append(build_in_child(options, path, cache))
            cached.append(build_in_child(options, path, cache))
        show(medians(cold), medians(cached), f"building {Path(path).stem}")
        print(neighbours.report())


if __name__ == "__main__":
    main()
