"""How fast tuning is: trials a second on GEMM 1024³ with checks on, beside TVM's MetaSchedule.

    python bench/tuning_speed.py [--trials 200] [--seed 0] [--size 1024] [--no-peer]
                                 [--no-proposals]

Ours is what `tunefarm tune` does: tracker, worker, tuner on loopback and an empty database; every
candidate is built, checked and timed in processes of its own. Wall time counts from the call to its
return; "steady" is from the first trial to the last. MetaSchedule has its default settings and
checks no answers. Both use all cores, and both operands are variables: nothing is packed before.
Then: how long one proposal from 10,000 candidates takes.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tunefarm.peers.pace import Pace
from tunefarm.peers.turns import Neighbours

MARKS = (16, 32, 64, 128, 200, 500, 1000)
BAR_TRIALS_A_SECOND = 8.0
BATCH = 64  # of MetaSchedule: its default


@dataclass(frozen=True, slots=True)
class Run:
    """One tuning: seconds of each trial in order (None if it failed), and when each was reported.

    ``first_report`` trials were reported together first.
    """

    name: str
    wall_s: float
    seconds: Sequence[float | None]
    ends_s: Sequence[float]
    checked: int
    first_report: int

    @property
    def rate(self) -> float:
        """Trials a second of the whole call."""
        return len(self.seconds) / self.wall_s

    @property
    def steady_rate(self) -> float | None:
        """Trials a second after the first report; None if all came at once."""
        later = len(self.ends_s) - self.first_report
        span = self.ends_s[-1] - self.ends_s[self.first_report - 1]
        return later / span if later > 0 and span > 0 else None

    def best(self, count: int) -> float | None:
        """The shortest of the first ``count`` trials; None if there are fewer or all failed."""
        known = [s for s in self.seconds[:count] if s is not None]
        return min(known) if known and count <= len(self.seconds) else None


def tune_ours(size: int, trials: int, seed: int, folder: Path) -> Run:
    """The product of two variables, in an embedded farm whose files are in ``folder``."""
    # Read when the farm's processes start; the user's database and cache stay out of it.
    os.environ |= {"TUNEFARM_HOME": str(folder), "TUNEFARM_CACHE": str(folder / "cache")}
    from tunefarm.compiler.workload import Task
    from tunefarm.db.store import Store
    from workloads import matmul

    import tunefarm

    shape = (size, size)
    workload = matmul("GEMM", shape, shape, constant=False).workload
    task = Task(workload, tunefarm.Target.host(), 1, f"GEMM {size}³")
    database = tunefarm.default_database()
    start, epoch = time.perf_counter(), time.time()
    tunefarm.tune([task], trials=trials, seed=seed)
    wall_s = time.perf_counter() - start
    with Store.open(database, readonly=True) as store:
        page = store.history(workloads=[workload.key], limit=trials)
    found = sorted(page.trials, key=lambda t: t.created_at)
    seconds = [t.median_s if t.ok else None for t in found]
    checked = sum(t.phases_s.get("check", 0.0) > 0 for t in found)
    return Run("ours", wall_s, seconds, [t.created_at - epoch for t in found], checked, 1)


def tune_metaschedule(size: int, trials: int, seed: int) -> Run | None:
    """None, after one line, if TVM is not installed, fails, or measures nothing."""
    cores = len(os.sched_getaffinity(0))
    arguments = [str(n) for n in (size, trials, cores, min(BATCH, trials), seed)]
    script = Path(__file__).with_name("metaschedule.py")
    done = subprocess.run([sys.executable, script, *arguments], capture_output=True, text=True)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        print(f"MetaSchedule is left out (exit status {done.returncode}): {last}")
        return None
    result = json.loads(done.stdout)
    if not any(result["seconds"]):
        reasons = ", ".join(dict.fromkeys(result["errors"])) or "no reason given"
        print(f"MetaSchedule is left out: all {len(result['seconds'])} trials failed: {reasons}")
        return None
    return Run(
        "MetaSchedule", result["wall_s"], result["seconds"], result["ends_s"], 0, int(arguments[3])
    )


def show(runs: Sequence[Run], size: int, peak: float) -> None:
    table = Table(title=f"tuning GEMM {size}³, all cores", title_justify="left")
    table.add_column("")
    for run in runs:
        table.add_column(run.name, justify="right")
    table.add_column("ours / peer", justify="right")
    measured: list[tuple[str, list[float | None], int]] = [
        ("trials", [float(len(r.seconds)) for r in runs], 0),
        ("of them failed", [float(sum(s is None for s in r.seconds)) for r in runs], 0),
        ("of them with a checked answer", [float(r.checked) for r in runs], 0),
        ("wall time, s", [r.wall_s for r in runs], 1),
        ("trials a second", [r.rate for r in runs], 2),
        ("trials a second, steady", [r.steady_rate for r in runs], 2),
    ]
    for label, values, places in measured:
        cells = ["–" if v is None else f"{v:.{places}f}" for v in values]
        table.add_row(label, *cells, _ratio(values))
    longest = max(len(r.seconds) for r in runs)
    for mark in sorted({*(m for m in MARKS if m <= longest), longest}):
        best = [r.best(mark) for r in runs]
        reached = [2 * size**3 / s / peak if s else None for s in best]
        shares = ["–" if r is None else f"{100 * r:.0f}% of peak" for r in reached]
        table.add_row(f"best by trial {mark}", *shares, _ratio(reached))
    Console().print(table)
    print(f"{runs[0].rate / BAR_TRIALS_A_SECOND:.2f} of the bar of 8 trials a second, start-up too")


def _ratio(values: Sequence[float | None]) -> str:
    """The first over the second; a dash if one is missing or the second is zero."""
    match values:
        case [float(ours), float(theirs)] if theirs:
            return f"{ours / theirs:.2f}x"
    return "–"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--size", type=int, default=1024)
    parser.add_argument("--no-peer", action="store_true", help="leave MetaSchedule out")
    parser.add_argument("--no-proposals", action="store_true", help="leave proposals out")
    options = parser.parse_args()
    neighbours = Neighbours()
    with tempfile.TemporaryDirectory(prefix="tunefarm-bench-") as folder:
        runs = [tune_ours(options.size, options.trials, options.seed, Path(folder))]
    if not options.no_peer:
        peer = tune_metaschedule(options.size, options.trials, options.seed)
        runs += [peer] if peer else []
    with Pace(len(os.sched_getaffinity(0))) as pace:
        pace.steady(lambda: 0.0)  # waits for full speed
        show(runs, options.size, pace.peak_flops())
    print(neighbours.report())
    if not options.no_proposals:
        from search_quality import time_proposals
        from tunefarm.compiler.target import Target

        print("one proposal of 32 from 10,000 candidates (bar 0.5 s):")
        time_proposals(Target.host())


if __name__ == "__main__":
    main()
