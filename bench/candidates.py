"""How many candidates a second one core builds: config → schedule → text → code → loaded kernel.

    python bench/candidates.py [--configs 24] [--seed 0] [TASK …]

The bar is 40 candidates a second for every task. Times are of this process's processor, so other
load on the machine counts little; nothing comes from the cache of kernels. As in a worker, some
candidates of a task are compiled together (``--together``), and each is loaded by itself. Each row
is the mean over one sketch's random valid configs, or its default alone. ``--save FILE`` keeps a
hash of every candidate's text, and ``--against FILE`` says which texts are no longer the same: a
change that only makes the compiler faster leaves them all.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import json
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from tunefarm.compiler.codegen.llvm import LlvmKernel, emit_llvm, join_kernels
from tunefarm.compiler.codegen.llvm_compile import compile_llvm
from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.ir import TensorType
from tunefarm.compiler.runtime.kernel import load_kernel
from tunefarm.compiler.space import Config, ConfigSpace, config_space, schedule_workload
from tunefarm.compiler.tir import PrimFunc
from tunefarm.compiler.tir.transform.lower import lower
from tunefarm.compiler.workload import Workload
from tunefarm.worker.llvm import PLUGIN
from workloads import Operator, conv, layer_norm, matmul, softmax

import tunefarm

BAR = 40.0  # candidates a second, on one core
PHASES = ("schedule", "lower", "text", "code", "load")
OPERATORS: Mapping[str, Any] = {
    "gemm": lambda: matmul("GEMM 512³", (512, 512), (512, 512)),
    "dense": lambda: matmul("dense 128×768×768", (128, 768), (768, 768)),
    "conv3x3": lambda: conv(14, 256, 256, 3),
    "conv1x1": lambda: conv(14, 1024, 256, 1),
    "depthwise": lambda: conv(28, 192, 192, 3, 1, 192),
    "softmax": lambda: softmax(1536, 128),
    "layer_norm": lambda: layer_norm(128, 768),
}


@dataclass(slots=True)
class Row:
    """Seconds in each phase of all candidates of one kind, and their texts' sizes.

    ``refused`` counts configs that could not be applied; their time is lost all the same.
    """

    name: str
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))
    lines: list[int] = field(default_factory=list)
    refused: int = 0

    @property
    def mean_s(self) -> float:
        return sum(self.seconds.values()) / len(self.lines)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        start = time.process_time()
        try:
            yield
        finally:
            self.seconds[name] += time.process_time() - start


def candidates(space: ConfigSpace, sketch: int, count: int, seed: int) -> list[Config]:
    """Random configs of one sketch that hold its constraints."""
    rng = np.random.default_rng(seed)
    found: list[Config] = []
    for _ in range(100):
        rows = space.sample(rng, 64)
        rows = rows[(rows[:, 0] == sketch) & space.valid(rows)]
        found += [space.decode(row) for row in rows]
        if len(found) >= count:
            break
    return found[:count]


def build(
    workload: Workload, target: tunefarm.Target, configs: Sequence[Config], row: Row
) -> list[str]:
    """Build candidates together and load each, their times added to ``row``; the texts."""
    written = [_written(workload, target, config, row) for config in configs]
    sound = [one for one in written if one is not None]
    if sound:
        with row.phase("code"):
            text, names = join_kernels([kernel for _, kernel in sound])
            code = compile_llvm(text, target, cache=False, verify=False)
        for (lowered, _), name in zip(sound, names, strict=True):
            with row.phase("load"):
                types = [TensorType(p.shape, p.dtype) for p in lowered.params]
                load_kernel([code], name, types, lowered.outputs, target=target)
    texts = ["" if one is None else one[1].text for one in written]
    row.lines += [text.count("\n") for text in texts if text]
    return texts


def _written(
    workload: Workload, target: tunefarm.Target, config: Config, row: Row
) -> tuple[PrimFunc, LlvmKernel] | None:
    """The program and the text of a candidate; None if its config cannot be applied."""
    try:
        with row.phase("schedule"):
            program = schedule_workload(workload, target, config)
        with row.phase("lower"):
            lowered = lower(program)
        with row.phase("text"):
            return lowered, emit_llvm(lowered, target)
    except ScheduleError:
        row.refused += 1
        return None


def rows_of(name: str, options: argparse.Namespace, texts: dict[str, str]) -> Iterator[Row]:
    """A row for each sketch of a task, and for its default; hashes of the texts are kept."""
    operator: Operator = OPERATORS[name]()
    workload, target = operator.workload, tunefarm.Target.host(options.cores)
    space = config_space(workload, target)
    for index, sketch in enumerate(space.sketches):
        label = f"{name}, {sketch.sketch}"
        build(workload, target, [sketch.default], Row(""))  # imports, and LLVM's first compile
        for kind, configs in (
            ("default", [sketch.default] * 8),
            ("random", candidates(space, index, options.configs, options.seed)),
        ):
            row = Row(f"{label}, {kind}")
            for start in range(0, len(configs), options.together):
                some = configs[start : start + options.together]
                for config, text in zip(some, build(workload, target, some, row), strict=True):
                    key = json.dumps([name, *sorted(config.items())])
                    texts[key] = hashlib.sha256(text.encode()).hexdigest()
            if row.lines:
                yield row


def show(rows: list[Row]) -> None:
    table = Table(title="candidates from config to loaded kernel, ms", title_justify="left")
    for column in ("task, sketch, configs", *PHASES, "sum", "a second", "lines", "refused"):
        table.add_column(column, justify="left" if column.startswith("task") else "right")
    for row in rows:
        phases = [f"{1e3 * s / len(row.lines):.1f}" for s in row.seconds.values()]
        table.add_row(
            row.name, *phases, f"{1e3 * row.mean_s:.1f}", f"{1 / row.mean_s:.0f}",
            f"{statistics.mean(row.lines):.0f}", str(row.refused),
        )  # fmt: skip
    Console(width=140).print(table)
    rates = [1 / row.mean_s for row in rows]
    print(
        f"geometric mean {statistics.geometric_mean(rates):.0f} a second, "
        f"{sum(r >= BAR for r in rates)} of {len(rates)} rows at the bar of {BAR:.0f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tasks", nargs="*", choices=[*OPERATORS, []], metavar="TASK")
    parser.add_argument("--configs", type=int, default=24, help="random configs a sketch")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--together", type=int, default=PLUGIN.together, help="candidates of a module of LLVM"
    )
    parser.add_argument("--cores", type=int, default=1)
    parser.add_argument("--save", type=Path, help="keep the hashes of the texts here")
    parser.add_argument("--against", type=Path, help="compare with the hashes kept there")
    options = parser.parse_args()
    gc.freeze()  # as a worker's builder does
    gc.disable()
    texts: dict[str, str] = {}
    names = options.tasks or list(OPERATORS)
    show([row for name in names for row in rows_of(name, options, texts)])
    if options.save:
        options.save.write_text(json.dumps(texts, indent=0))
    if options.against:
        before = json.loads(options.against.read_text())
        shared = texts.keys() & before.keys()
        changed = [key for key in shared if texts[key] != before[key]]
        print(f"{len(shared)} candidates compared, {len(changed)} have another text")
        print(*changed, sep="\n")


if __name__ == "__main__":
    main()
