"""Is the default search at 64 trials at least as good as random search at 256?

    python bench/search_quality.py [--seeds 5] [--tasks gemm,conv3x3,…] [--strategy xgb-genetic]
                                   [--trials 64] [--random-trials 256] [--target …]
                                   [--tables FOLDER] [--speed]

Six tasks of different kinds on this machine's cores, several seeds. Every candidate is built,
checked and timed by the worker's own device, each distinct config once for all searches. Each
search ends as ``tune`` does: its best few meet the default in a paired final, and one that is
surely faster is promoted. The winners are then timed again, paired and interleaved, and the ratio
is random's time over the default search's: 1.05 is 5% faster with a quarter of the trials.

``--tables FOLDER`` keeps what was timed, a JSON-lines file a task, and starts from what it holds:
so a search can be tuned without timing everything again. ``--speed`` prints instead how long one
proposal from 10,000 candidates takes.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from tunefarm.compiler.ir import Expr, Function, TensorType, Var
from tunefarm.compiler.ops import call
from tunefarm.compiler.space import config_space
from tunefarm.compiler.space.config import ConfigSpace, Population
from tunefarm.compiler.target import Target
from tunefarm.compiler.workload import Workload
from tunefarm.db.records import Config, TaskKey, Trial, TrialRequest
from tunefarm.tuner.finals import DEFAULT_NOISE, decide
from tunefarm.tuner.search import DEFAULT_STRATEGY, Guidance, Ledger, make_search
from tunefarm.tuner.search.xgb_genetic import XgbGeneticOptions
from tunefarm.tuner.tasks import plain
from tunefarm.worker.device import DeviceOptions, OpenDevice, open_device

BATCH = 8
FINALISTS = 3


def fused(
    body: Callable[..., Expr], *shapes: tuple[int, ...], constants: Sequence[int]
) -> Workload:
    params = tuple(Var(f"p{i}", TensorType(s, "float32")) for i, s in enumerate(shapes))
    attrs = {"primitive": True, "constants": tuple(constants)}
    return Workload.from_function(Function(params, body(*params), attrs))


def conv(x: Expr, weight: Expr, bias: Expr, padding: int = 0, groups: int = 1) -> Expr:
    sides = ((padding, padding), (padding, padding))
    layouts = {"data_layout": "NSC", "kernel_layout": "SIO"}
    result = call("conv", x, weight, padding=sides, groups=groups, **layouts)
    return call("relu", call("add", result, bias))


TASKS: dict[str, Callable[[], Workload]] = {
    "gemm": lambda: fused(
        lambda a, b: call("matmul", a, b), (512, 512), (512, 512), constants=[1]
    ),
    "dense": lambda: fused(
        lambda a, b, c: call("add", call("matmul", a, b), c),
        (128, 768), (768, 768), (768,), constants=[1, 2],
    ),
    "conv3x3": lambda: fused(
        lambda x, w, b: conv(x, w, b, 1),
        (1, 14, 14, 256), (3, 3, 256, 256), (256,), constants=[1, 2],
    ),
    "conv1x1": lambda: fused(
        lambda x, w, b: conv(x, w, b),
        (1, 28, 28, 128), (1, 1, 128, 512), (512,), constants=[1, 2],
    ),
    "depthwise": lambda: fused(
        lambda x, w, b: conv(x, w, b, 1, 192),
        (1, 28, 28, 192), (3, 3, 1, 192), (192,), constants=[1, 2],
    ),
    "softmax": lambda: fused(
        lambda x: call("softmax", x, axis=-1), (12, 128, 128), constants=[]
    ),
}  # fmt: skip


@dataclass
class Table:
    """Measured seconds of one task's configs; each is measured once."""

    device: OpenDevice
    workload: Workload
    space: ConfigSpace
    file: Path | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    measured_s: float = 0.0
    fresh: int = 0

    def __post_init__(self) -> None:
        if self.file is not None and self.file.exists():
            self.seconds.update(json.loads(line) for line in self.file.read_text().splitlines())

    def look_up(self, rows: Population) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        configs = [self.space.decode(row) for row in rows]
        fresh = {plain(c): c for c in configs if plain(c) not in self.seconds}
        trials = self.run([self.request(c, number) for number, c in enumerate(fresh.values(), 1)])
        self.keep([(plain(t.config), t.median_s) for t in trials])
        return np.array([self.seconds[plain(c)] for c in configs])

    def keep(self, timed: Sequence[tuple[str, float]]) -> None:
        self.seconds.update(timed)
        self.fresh += len(timed)
        if self.file is not None:
            with self.file.open("a") as lines:
                lines.writelines(json.dumps(entry) + "\n" for entry in timed)

    def paired(self, configs: Sequence[Config]) -> list[tuple[float, ...]]:
        """Repeats in seconds of configs timed interleaved, a row each."""
        (trial,) = self.run([self.request(configs[0], 0, tuple(configs[1:]))])
        if not trial.ok:
            sys.exit(f"{self.workload.summary}: {trial.error}: {trial.message}")
        return list(trial.paired_times_s or (trial.times_s,))

    def medians(self, configs: Sequence[Config]) -> list[float]:
        """Median seconds of each config, timed interleaved; equal configs are timed once."""
        distinct = {plain(c): c for c in configs}
        rows = self.paired(list(distinct.values()))
        seconds = dict(zip(distinct, map(statistics.median, rows), strict=True))
        return [seconds[plain(c)] for c in configs]

    def winner(self, finalists: Sequence[Config]) -> Config:
        """The config that is promoted when these meet the default, timed interleaved."""
        default = self.space.default
        distinct = list({plain(c): c for c in (default, *finalists)}.values())
        if len(distinct) == 1:
            return default
        noise = self.device.device.noise or DEFAULT_NOISE
        return distinct[decide(self.paired(distinct), 0, None, noise).winner]

    def run(self, requests: Sequence[TrialRequest]) -> list[Trial]:
        start = time.monotonic()
        trials: list[Trial] = []
        if requests:
            self.device.measure(requests, lambda _, t: trials.append(t), lambda _: False)
        self.measured_s += time.monotonic() - start
        return trials

    def request(
        self, config: Config, number: int, against: tuple[Config, ...] = ()
    ) -> TrialRequest:
        key = TaskKey(self.workload.key, self.device.device.target)
        text = self.workload.text
        return TrialRequest("bench", key, number, config, text, against=against)


def tune(
    table: Table, strategy: str, target: Target, trials: int, seed: int
) -> tuple[Config, float]:
    """The config that wins a search's final, and the seconds that the search itself took."""
    space, own_s = table.space, 0.0
    ledger = Ledger(space, target, np.random.default_rng(seed))
    search = make_search(strategy, ledger, Guidance(seed=seed))
    rows = space.encode(space.default)[None, :]
    search.observe(rows, table.look_up(rows))
    while len(ledger.rows) < trials:
        start = time.monotonic()
        rows = search.propose(min(BATCH, trials - len(ledger.rows))).rows
        own_s += time.monotonic() - start
        if not len(rows):
            break
        search.observe(rows, table.look_up(rows))
    finalists = [space.decode(row) for row in ledger.best(FINALISTS)]
    return table.winner(finalists), own_s


def compare(name: str, table: Table, target: Target, options: argparse.Namespace) -> list[float]:
    """Random's paired time over the strategy's, one ratio a seed."""
    found: list[Config] = []
    own_s = 0.0
    for seed in range(options.seeds):
        best, seconds = tune(table, options.strategy, target, options.trials, seed)
        found.append(best)
        own_s += seconds
    for seed in range(options.seeds):
        found.append(tune(table, "random", target, options.random_trials, seed)[0])
    times = table.medians([*found, table.space.default])
    ours, theirs = times[: options.seeds], times[options.seeds : -1]
    ratios = [b / a for a, b in zip(ours, theirs, strict=True)]
    count = len(table.seconds)
    print(
        f"{name:10} {table.space.size:>12} {count:>7} {table.fresh / table.measured_s:>6.1f} "
        f"{own_s / options.seeds / options.trials * 1e3:>8.1f} {min(times) * 1e6:>9.1f} "
        f"{mean(ours) * 1e6:>9.1f} {mean(theirs) * 1e6:>9.1f} {times[-1] * 1e6:>9.1f} "
        f"{mean(ratios):>7.3f} {min(ratios):>7.3f}",
        flush=True,
    )
    return ratios


def mean(values: Sequence[float]) -> float:
    return statistics.geometric_mean(values)


def time_proposals(target: Target) -> None:
    """Seconds of one trained proposal of 32 rows from a population of 10,000 candidates."""
    from tunefarm.tuner.cost_model import make_model
    from tunefarm.tuner.search.xgb_genetic import XgbGeneticSearch

    options = XgbGeneticOptions(population=2000, generations=4)
    for name, make in TASKS.items():
        space = config_space(make(), target)
        rng = np.random.default_rng(0)
        ledger = Ledger(space, target, rng)
        search = XgbGeneticSearch(ledger, make_model("xgboost", 0), options=options)
        rows = ledger.random(256)
        search.observe(rows, rng.uniform(1, 2, len(rows)))
        times = []
        for _ in range(5):
            start = time.perf_counter()
            search.propose(32)
            times.append(time.perf_counter() - start)
        print(f"{name:10} first, with training {times[0]:.3f} s, then {min(times):.3f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--trials", type=int, default=64)
    parser.add_argument("--random-trials", type=int, default=256)
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--strategy", default=DEFAULT_STRATEGY)
    parser.add_argument("--target", default="")
    parser.add_argument("--tables", type=Path)
    parser.add_argument("--speed", action="store_true")
    options = parser.parse_args()
    target = Target(options.target) if options.target else Target.host()
    if options.speed:
        return time_proposals(target)
    if options.tables:
        options.tables.mkdir(parents=True, exist_ok=True)
    device = open_device(DeviceOptions(target.text))
    print(
        f"{options.strategy} at {options.trials} against random at {options.random_trials}, "
        f"{options.seeds} seeds, {target}\n{'task':10} {'configs':>12} {'timed':>7} {'1/s':>6} "
        f"{'own ms':>8} {'best µs':>9} {'ours':>9} {'random':>9} {'default':>9} "
        f"{'ratio':>7} {'worst':>7}"
    )
    try:
        ratios: list[float] = []
        for name in options.tasks.split(","):
            workload = TASKS[name]()
            file = options.tables and options.tables / f"{name}.jsonl"
            table = Table(device, workload, config_space(workload, target), file)
            ratios += compare(name, table, target, options)
        print(f"geometric mean {mean(ratios):.3f}")
    finally:
        device.close()


if __name__ == "__main__":
    main()
