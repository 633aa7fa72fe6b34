"""Whole models against onnxruntime and OpenVINO, in one run.

python bench/models_vs_peers.py [--cores 2] [--db sqlite:///…] [resnet18 resnet50 … model.onnx]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import onnx
from models import MODELS
from operators import PEERS, our_call
from timing import Call, Row, interleave, peak_flops, show

import tunefarm


def load(name: str) -> onnx.ModelProto:
    return MODELS[name]() if name in MODELS else onnx.load(name)


def measure(name: str, cores: int, db: str, repeats: int) -> Row:
    model = load(name)
    target = tunefarm.Target.host(cores)
    module = tunefarm.from_onnx(model)
    default = tunefarm.build(module, target)
    feeds = default.example_inputs()
    calls: dict[str, Call] = {"ours default": our_call(module, target, feeds)}
    if db:
        with tunefarm.apply_history_best(db):
            calls["ours tuned"] = our_call(module, target, feeds)
    for peer, make in PEERS.items():
        try:
            calls[peer] = make(model, cores, feeds)
        except ImportError:
            continue
    tasks = tunefarm.extract_tasks(module, target)
    flops = sum(t.workload.flops * t.weight for t in tasks)
    seconds = interleave(calls, repeats)
    return Row(Path(name).stem, seconds, flops, error_of(model, default, feeds))


def error_of(model: onnx.ModelProto, lib: object, feeds: dict[str, np.ndarray]) -> float:
    """Largest difference to onnxruntime as a share of the largest magnitude; must be < 1e-3."""
    import onnxruntime

    expected = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feeds)
    got = lib.run(feeds).values()  # type: ignore[attr-defined]
    error = max(
        float(np.abs(g - e).max() / np.abs(e).max()) for g, e in zip(got, expected, strict=True)
    )
    assert error < 1e-3, f"{model.graph.name} differs by {error}"
    return error


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", default=list(MODELS))
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--db", default="")
    parser.add_argument("--repeats", type=int, default=15)
    options = parser.parse_args()
    rows = [measure(m, options.cores, options.db, options.repeats) for m in options.models]
    ours = ["ours default", *(["ours tuned"] if options.db else [])]
    show(rows, ours, peak_flops(options.cores), f"models, {options.cores} core(s), f32, batch 1")


if __name__ == "__main__":
    main()
