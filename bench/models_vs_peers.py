"""Whole models against onnxruntime and OpenVINO (held to f32), in one run.

    python bench/models_vs_peers.py [--cores 1,2] [--db sqlite:///…] [MODEL …]

A MODEL is one of bench/models.py, a file, or a light network of the onnx package (light_resnet50)
with random weights: with its own, equal logits of 1e10 meet in a Softmax, and the last bit of a sum
decides the answer. Ours is built with default configs alone, and with the best records of ``--db``.
Every output of every contender is compared with onnxruntime's before anything is timed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from models import MODELS
from networks import light, light_names, random_feeds, randomized, reference
from peers import MODEL_PEERS, Feeds, installed
from timing import (
    Call,
    Contender,
    Neighbours,
    Row,
    errors_of,
    for_each_core_count,
    interleave,
    peak_flops,
    show,
)
from tunefarm.compiler.dispatch import History
from tunefarm.compiler.runtime.arrays import aligned_empty

import tunefarm


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


def measure(name: str, cores: int, db: str, peers: Sequence[str], repeats: int) -> Row:
    model = load(name)
    target = tunefarm.Target.host(cores)
    module = tunefarm.from_onnx(model)
    feeds = random_feeds(module)
    defaults = tunefarm.apply_history_best((), starter=False)
    contenders = {"ours default": our_outputs(module, target, defaults, feeds)}
    if db:
        history = tunefarm.apply_history_best(db)
        tuned = our_outputs(module, target, history, feeds)
        if any(decision.tuned for decision in history.decisions.values()):
            contenders["ours tuned"] = tuned
        print(f"{name}: {history.summary(f'tunefarm tune {name} --db {db}')}", flush=True)
    for peer in peers:
        if peer in MODEL_PEERS:
            contenders[peer] = MODEL_PEERS[peer](model, feeds, cores)
    errors = check(contenders, reference(model, feeds, cores))
    calls: dict[str, Call] = {n: contenders[n][0].call for n in errors}
    before = peak_flops(cores)
    seconds = interleave(calls, repeats)
    if db and "ours tuned" not in seconds:  # the same build: noise would pass for a gain
        both = dict.fromkeys(("ours default", "ours tuned"), seconds["ours default"])
        seconds = both | seconds
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
    cores, peers = int(options.cores), installed()
    neighbours = Neighbours()
    rows = [measure(m, cores, options.db, peers, options.repeats) for m in options.models]
    show(rows, f"models, f32, batch 1, {cores} core(s)", {"all": rows})
    print(neighbours.report())
    return 0


if __name__ == "__main__":
    sys.exit(main())
