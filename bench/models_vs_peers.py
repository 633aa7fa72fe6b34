"""Whole models against onnxruntime and OpenVINO (held to f32), in one run.

    python bench/models_vs_peers.py [--cores 1,2] [--db sqlite:///…] [MODEL …]

A MODEL is one of bench/models.py, a file, or a light network of the onnx package (light_resnet50)
with random weights: with its own, equal logits of 1e10 meet in a Softmax, and the last bit of a sum
decides the answer. Ours is built with default configs alone, and with the best records of ``--db``.
Every output of every contender is compared with onnxruntime's before anything is timed. Each
library runs in a process of its own, and only while the others' threads sleep.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import onnx
from apart import Apart, apart
from models import MODELS
from networks import light, light_names, random_feeds, randomized, reference
from peers import MODEL_PEERS, Feeds, installed
from timing import (
    Contender,
    Neighbours,
    Row,
    errors_of,
    for_each_core_count,
    in_turn,
    peak_flops,
    show,
)
from tunefarm.compiler.dispatch import History
from tunefarm.compiler.runtime.arrays import aligned_empty

import tunefarm

SPAN_S = 0.05  # timed at once, after five times as long to wake the cores
DEFAULT, TUNED = "ours default", "ours tuned"


def load(name: str) -> onnx.ModelProto:
    """A model of bench/models.py or a light network by its name, or one from a file."""
    if name in MODELS:
        return MODELS[name]()
    if name in [f"light_{n}" for n in light_names()]:
        return randomized(light(name.removeprefix("light_")))
    if not Path(name).is_file():
        sys.exit(f"{name} is no file, light network, or one of {', '.join(MODELS)}")
    return onnx.load(name)


def our_outputs(
    module: tunefarm.IRModule, target: tunefarm.Target, history: History, feeds: Feeds
) -> list[Contender]:
    """A build on given arrays; one contender an output, all with the same call."""
    with history:
        lib = tunefarm.build(module, target)
    arrays = lib.check_inputs(feeds)
    results = [aligned_empty(port.type) for port in lib.outputs]
    return [
        Contender(lambda: lib.run_raw(arrays, results), lambda r=r: r)  # type: ignore[misc]
        for r in results
    ]


def make_ours(name: str, cores: int, db: str) -> dict[str, Contender]:
    """Our builds in a process of their own: with default configs, and with the records of ``db``
    where they make a difference."""
    target, module = tunefarm.Target.host(cores), tunefarm.from_onnx(load(name))
    feeds = random_feeds(module)
    defaults = tunefarm.apply_history_best((), starter=False)
    made = _numbered(DEFAULT, our_outputs(module, target, defaults, feeds))
    if db:
        history = tunefarm.apply_history_best(db)
        tuned = our_outputs(module, target, history, feeds)
        if any(decision.tuned for decision in history.decisions.values()):
            made |= _numbered(TUNED, tuned)
        print(f"{name}: {history.summary(f'tunefarm tune {name} --db {db}')}", flush=True)
    return made


def make_peer(library: str, name: str, cores: int, db: str) -> dict[str, Contender]:
    """A library in a process of its own."""
    model = load(name)
    feeds = random_feeds(tunefarm.from_onnx(model))
    return _numbered(library, MODEL_PEERS[library](model, feeds, cores))


def _numbered(name: str, contenders: Sequence[Contender]) -> dict[str, Contender]:
    return {f"{name}/{i}": c for i, c in enumerate(contenders)}


def measure(name: str, cores: int, db: str, libraries: Sequence[Apart], repeats: int) -> Row:
    model, target = load(name), tunefarm.Target.host(cores)
    module = tunefarm.from_onnx(model)
    made: dict[str, list[Contender]] = {}
    for library in libraries:
        for key, contender in library.make(name, cores, db).items():
            made.setdefault(key.rpartition("/")[0], []).append(contender)
    errors = check(made, reference(model, random_feeds(module), cores))
    before = peak_flops(cores)
    seconds = in_turn({n: t for n in errors if (t := made[n][0].timer)}, repeats, SPAN_S)
    if db and TUNED not in seconds:  # the same build: noise would pass for a gain
        seconds = {DEFAULT: seconds[DEFAULT], TUNED: seconds[DEFAULT]} | seconds
    flops = sum(t.workload.flops * t.weight for t in tunefarm.extract_tasks(module, target))
    return Row(Path(name).stem, seconds, flops, max(before, peak_flops(cores)), errors)


def check(
    contenders: dict[str, list[Contender]], expected: Sequence[np.ndarray]
) -> dict[str, float]:
    """The largest error over all outputs of each contender that is right everywhere."""
    worst = dict.fromkeys(contenders, 0.0)
    for i, want in enumerate(expected):
        errors = errors_of({n: contenders[n][i] for n in worst}, want)
        worst = {n: max(worst[n], error) for n, error in errors.items()}
    return worst


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="*", default=list(MODELS), metavar="MODEL")
    parser.add_argument("--cores", default="1,2", help="numbers of cores, one table each")
    parser.add_argument("--db", default="", help="database of records")
    parser.add_argument("--repeats", type=int, default=15)
    options = parser.parse_args()
    status = for_each_core_count(options.cores)
    if status is not None:
        return status
    cores = int(options.cores)
    peers = [partial(make_peer, name) for name in installed() if name in MODEL_PEERS]
    neighbours = Neighbours()
    with apart(make_ours, *peers) as libraries:
        rows = [measure(m, cores, options.db, libraries, options.repeats) for m in options.models]
    show(rows, f"models, f32, batch 1, {cores} core(s)", {"all": rows})
    print(neighbours.report())
    return 0


if __name__ == "__main__":
    sys.exit(main())
