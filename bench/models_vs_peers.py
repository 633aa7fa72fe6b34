"""Whole models against onnxruntime and OpenVINO (held to f32), in one run.

    python bench/models_vs_peers.py [--cores 1,2] [--db sqlite:///…] [--avx2] [MODEL …]

A MODEL is one of bench/models.py, a file, or a light network of the onnx package (light_resnet50)
with random weights: with its own, equal logits of 1e10 meet in a Softmax, and the last bit of a sum
decides the answer. Ours is built with default configs alone, and with the best records of ``--db``.
Each model is raced as by ``tunefarm bench --peers``. ``--avx2`` shows a processor without AVX-512
on one that has it: our code is made for Alder Lake, OpenVINO is held to AVX2 too, and onnxruntime,
which cannot be held, is left out.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import onnx
from models import ALL, MODELS, QUANTISED
from networks import light, light_names, randomized
from timing import ERROR_LIMIT, show, within_limit

import tunefarm
from tunefarm.benchmark import Subject
from tunefarm.peers.race import libraries_here, race
from tunefarm.peers.rows import DEFAULT, TUNED, Row
from tunefarm.peers.turns import Neighbours

AVX2_ALONE = {"ONEDNN_MAX_CPU_ISA": "AVX2"}  # of OpenVINO
QUANTUM_LIMIT = 0.03  # of the largest magnitude: some quanta of a result in a byte


def load(name: str) -> onnx.ModelProto:
    """A model of bench/models.py or a light network by its name, or one from a file."""
    if name in ALL:
        return ALL[name]()
    if name in [f"light_{n}" for n in light_names()]:
        return randomized(light(name.removeprefix("light_")))
    if not Path(name).is_file():
        sys.exit(f"{name} is no file, light network, or one of {', '.join(ALL)}")
    return onnx.load(name)


def measure(
    path: Path, target: tunefarm.Target, db: str, libraries: Sequence[str], repeats: int
) -> Row:
    """Race one model; who is wrong is left out, and where no record differs tuned is default."""
    result = race(Subject(path, {}, db or None), target, libraries, repeats)
    if result.turns.report():
        print(f"{path.stem}: {result.turns.report()}")
    limit = QUANTUM_LIMIT if path.stem in QUANTISED else ERROR_LIMIT
    row, errors = result.row, within_limit(result.row.errors, limit)
    seconds = {name: row.seconds[name] for name in errors}
    if db:
        print(f"{path.stem}: {result.history.summary(f'tunefarm tune {path.name} --db {db}')}")
        if TUNED not in seconds:  # the same build: noise would pass for a gain
            seconds = {DEFAULT: seconds[DEFAULT], TUNED: seconds[DEFAULT]} | seconds
    return replace(row, seconds=seconds, errors=errors)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="*", default=list(MODELS), metavar="MODEL")
    parser.add_argument("--cores", default="1,2", help="numbers of cores, one table each")
    parser.add_argument("--db", default="", help="database of records")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--avx2", action="store_true", help="without AVX-512, beside OpenVINO")
    options = parser.parse_args()
    libraries = libraries_here(print)
    if options.avx2:
        os.environ.update(AVX2_ALONE)
        libraries = [name for name in libraries if name == "OpenVINO"]
    with tempfile.TemporaryDirectory(prefix="tunefarm-bench-") as folder:
        paths = []
        for name in options.models:
            paths.append(Path(folder) / f"{Path(name).stem}.onnx")
            onnx.save(load(name), paths[-1])
        for cores in map(int, options.cores.split(",")):
            neighbours = Neighbours()
            target = tunefarm.Target.host(cores)
            if options.avx2:
                target = tunefarm.Target(f"llvm -mcpu=alderlake -num-cores={cores}")
            rows = [measure(p, target, options.db, libraries, options.repeats) for p in paths]
            show(rows, f"models, f32, batch 1, {cores} core(s)", {"all": rows})
            print(neighbours.report())
    return 0


if __name__ == "__main__":
    sys.exit(main())
