"""Operators against onnxruntime, OpenVINO, PyTorch and NumPy, in one run.

    python bench/operators.py [--cores 1,2] [--db sqlite:///…] [--trials 64] [-k conv]

Ours is built with the default config, and with the best record of ``--db``; ``--trials N`` first
tunes each operator to N trials, in that database or in one for this run alone. Everyone gets the
layout that suits them: ours, torch and (if that is faster) OpenVINO NHWC, onnxruntime NCHW.

Times are net of what a call costs each library: that of a 4×4 product, timed the same way and
printed, is taken off, down to a quarter of the time at most. Every kernel is checked first. Each
library has a process of its own, and they are timed in turn.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from peers import installed, operator_peer
from timing import errors_of, for_each_core_count, on_lasting_pages, show
from tunefarm.compiler.build import build_kernel
from tunefarm.compiler.dispatch import History
from tunefarm.compiler.packing import pack
from tunefarm.compiler.runtime.arrays import aligned_empty
from tunefarm.compiler.runtime.kernel import load_kernel
from tunefarm.compiler.space import config_space
from tunefarm.compiler.workload import Task
from tunefarm.db.records import Config
from workloads import Operator, all_operators, matmul

import tunefarm
from tunefarm.peers.apart import Apart, apart
from tunefarm.peers.pace import Pace
from tunefarm.peers.rows import Row
from tunefarm.peers.turns import Contender, Neighbours, in_turn

LEAST_NET_SHARE = 0.25


def our_kernel(operator: Operator, target: tunefarm.Target, config: Config) -> Contender:
    """The kernel of one config on the operator's arrays, weights packed beforehand; they lie on the
    pages that a model's memory has, so that no luck with small ones decides."""
    kernel = build_kernel(operator.workload, target, config)
    function = load_kernel(
        [kernel.object], kernel.name, kernel.params, kernel.outputs,
        target=target, workspace_bytes=kernel.workspace_bytes,
    )  # fmt: skip
    arrays = [
        on_lasting_pages(pack(a, kernel.layouts.get(i), kernel.params[i].shape))
        for i, a in enumerate(operator.our_inputs)
    ]
    results = tuple(aligned_empty(t) for t in kernel.params[-kernel.outputs :])
    (shape,) = (t.shape for t in operator.workload.output_types)
    return Contender(
        function.bind(arrays, results), lambda: [operator.canonical(results[0].reshape(shape))]
    )


def operator_at(number: int) -> Operator:
    """A row of the table; its inputs are the same in every process. Number −1 is the 4×4 product,
    whose time is what a call costs."""
    if number < 0:
        return matmul("4×4", (4, 4), (4, 4), constant=False)
    return all_operators()[number]()


def make_ours(number: int, cores: int, configs: Mapping[str, Config]) -> dict[str, Contender]:
    """Our kernels of an operator with these configs."""
    operator, target = operator_at(number), tunefarm.Target.host(cores)
    return {name: our_kernel(operator, target, config) for name, config in configs.items()}


def make_peer(library: str, number: int, cores: int) -> dict[str, Contender]:
    return operator_peer(operator_at(number), cores, library)


def our_configs(
    operator: Operator, target: tunefarm.Target, history: History | None
) -> dict[str, Config]:
    """The default, and the best record if there is one that is not the default."""
    default = config_space(operator.workload, target).default
    found = {"ours default": default}
    if history is not None:
        (decision,) = history.lookup([operator.workload], target)
        if decision.config != default:
            found["ours tuned"] = decision.config
    return found


def measure(
    number: int,
    target: tunefarm.Target,
    history: History | None,
    libraries: Sequence[Apart],
    repeats: int,
    overhead: Mapping[str, float],
    pace: Pace,
) -> Row:
    """Check, then time, all contenders on one operator; a build without a record is the default.

    ``libraries`` are the processes of ours and of the peers.
    """
    operator, cores = operator_at(number), target.num_cores
    ours, *peers = libraries
    contenders = ours.make(number, cores, our_configs(operator, target, history))
    for peer in peers:
        contenders |= peer.make(number, cores)
    errors = errors_of(contenders, operator.reference())
    timers = {n: t for n in errors if (t := contenders[n].timer)}
    gross = in_turn(timers, repeats, pace=pace)
    seconds = {
        n: max(s - overhead.get(n.replace("tuned", "default"), 0.0), LEAST_NET_SHARE * s)
        for n, s in gross.items()
    }
    if history is not None:
        seconds = {"ours default": 0.0, "ours tuned": seconds["ours default"]} | seconds
    flops = operator.workload.flops if operator.group != "rows" else 0
    return Row(operator.name, seconds, flops, pace.peak_flops(), errors)


def tune(operators: Sequence[Operator], target: tunefarm.Target, db: str, trials: int) -> None:
    """Bring each operator to ``trials`` trials in the database ``db``, one after the other."""
    from tunefarm.embedded import EmbeddedFarm

    with EmbeddedFarm(db, target.text):
        for operator in operators:
            task = Task(operator.workload, target, 1, operator.name)
            done = tunefarm.tune([task], db=db, trials=trials)
            print(f"tuned {operator.name}: {done.trials} trials", flush=True)


def compare(options: argparse.Namespace, db: str) -> None:
    target = tunefarm.Target.host(int(options.cores))
    numbered = {i: make() for i, make in enumerate(all_operators())}
    operators = {i: o for i, o in numbered.items() if options.k in o.name}
    if not operators:
        sys.exit(f"no operator's name contains {options.k!r}")
    peers = [*installed(), "NumPy"]
    if options.trials:
        tune(list(operators.values()), target, db, options.trials)
    history = tunefarm.apply_history_best(db) if db else None
    neighbours = Neighbours()
    makers = (make_ours, *(partial(make_peer, name) for name in peers))
    with Pace(target.num_cores) as pace, apart(*makers) as libraries:
        calls = measure(-1, target, None, libraries, options.repeats, {}, pace).seconds
        rows = {
            operator: measure(number, target, history, libraries, options.repeats, calls, pace)
            for number, operator in operators.items()
        }
    groups = {
        group: [row for o, row in rows.items() if o.group == group]
        for group in dict.fromkeys(o.group for o in operators.values())
    }
    show(
        list(rows.values()),
        f"operators, f32, {options.cores} core(s) of {target.mcpu}",
        groups | {"all": list(rows.values())},
    )
    print(neighbours.report(), pace.turns.report())
    costs = ", ".join(f"{n} {s * 1e6:.1f} µs" for n, s in calls.items())
    print(f"A call costs (taken off above): {costs}.")
    if history is not None:
        print(history.summary("bench/operators.py --db … --trials 64"))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cores", default="1,2", help="numbers of cores, one table each")
    parser.add_argument("--db", default="", help="database of records")
    parser.add_argument("--trials", type=int, default=0, help="tune each operator so far first")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("-k", default="", help="only operators whose name contains this")
    options = parser.parse_args()
    status = for_each_core_count(options.cores)
    if status is not None:
        return status
    with tempfile.TemporaryDirectory(prefix="tunefarm-bench-") as folder:
        scratch = f"sqlite:///{Path(folder) / 'tunefarm.db'}" if options.trials else ""
        compare(options, options.db or scratch)
    return 0


if __name__ == "__main__":
    sys.exit(main())
