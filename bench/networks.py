"""Whole networks against the outputs that onnx ships and against onnxruntime.

    python bench/networks.py [--threads N] [--db sqlite:///… [--trials N]] [NAME ...]

The light networks of the onnx package have the topology of the published ones and constant weights;
their outputs are shipped, and met in strict precision. They run again with random weights, and so
do those of bench/models.py. Errors are the largest difference over the largest magnitude. The exit
status is 1 above 1e-3.
With ``--db`` the builds use its best records, and how many times faster than with default configs
they run is printed; ``--trials`` tunes up to so many trials a task into it first.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from math import prod, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import helper, numpy_helper
from tunefarm.compiler.target import Target

import tunefarm
from tunefarm.benchmark import interleaved
from tunefarm.peers.race import random_feeds

LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
LIMIT = 1e-3

Arrays = Mapping[str, NDArray[Any]]


def light_names() -> list[str]:
    return sorted(p.stem.removeprefix("light_") for p in LIGHT.glob("*.onnx"))


def light(name: str) -> onnx.ModelProto:
    return onnx.load(LIGHT / f"light_{name}.onnx")


def shipped_output(name: str) -> NDArray[Any]:
    """What the network answers to ``ramp``."""
    stored = onnx.TensorProto.FromString((LIGHT / f"light_{name}_output_0.pb").read_bytes())
    return np.asarray(numpy_helper.to_array(stored))


def ramp(shape: Sequence[int]) -> NDArray[Any]:
    """The input of onnx's own test: 0, 1 / n, 2 / n, …"""
    n = prod(shape)
    return (np.arange(n).reshape(shape) / n).astype(np.float32)


def randomized(model: onnx.ModelProto, seed: int = 0) -> onnx.ModelProto:
    """The same network with random weights under which activations neither vanish nor explode.

    A Softmax at the end becomes an Identity: it would hide differences where it saturates.
    """
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    graph, rng = copy.graph, np.random.default_rng(seed)
    drawn = {
        name: _draw(node, operand, shape, rng) for name, node, operand, shape in _weights(graph)
    }
    nodes = [n for n in graph.node if n.output[0] not in drawn]
    results = {o.name for o in graph.output}
    for node in nodes:
        if node.op_type == "Softmax" and node.output[0] in results:
            node.CopyFrom(helper.make_node("Identity", [node.input[0]], [node.output[0]]))
    kept = [i for i in graph.initializer if i.name not in drawn]
    for field, values in (("node", nodes), ("initializer", kept)):
        values = [_copied(v) for v in values]
        del getattr(graph, field)[:]
        getattr(graph, field).extend(values)
    graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in drawn.items())
    return copy


def _copied(message: Any) -> Any:
    copy = type(message)()
    copy.CopyFrom(message)
    return copy


def _weights(graph: Any) -> Iterator[tuple[str, Any, int, tuple[int, ...]]]:
    """Name, using node, operand number and shape of every floating-point weight."""
    stored = {i.name: i for i in graph.initializer}
    shapes = {n: tuple(i.dims) for n, i in stored.items() if i.data_type == onnx.TensorProto.FLOAT}
    uses: dict[str, tuple[Any, int]] = {}
    for node in reversed(graph.node):
        for i, name in enumerate(node.input):
            uses[name] = uses.get(node.output[0], (node, i)) if _is_view(node) else (node, i)
        if node.op_type == "ConstantOfShape":
            dims = numpy_helper.to_array(stored[node.input[0]])
            shapes[node.output[0]] = tuple(int(d) for d in dims)
    for name, shape in shapes.items():
        if name in uses:
            yield name, *uses[name], shape


def _is_view(node: Any) -> bool:
    return bool(node.op_type == "Unsqueeze")


def _draw(
    node: Any, operand: int, shape: tuple[int, ...], rng: np.random.Generator
) -> NDArray[Any]:
    """He et al. 2015 for products; scales near 1, variances positive, the rest near 0."""
    values = rng.standard_normal(shape).astype(np.float32)
    match node.op_type, operand:
        case "Conv", 1:
            return values * np.float32(sqrt(2 / prod(shape[1:])))
        case "Gemm", 1:
            transposed = any(a.name == "transB" and a.i for a in node.attribute)
            return values * np.float32(sqrt(2 / shape[1 if transposed else 0]))
        case "BatchNormalization", 4:
            return np.asarray(np.exp(values * np.float32(0.1)))
        case (("BatchNormalization" | "Mul"), _) if operand < 2:
            return 1 + values * np.float32(0.1)
    return values * np.float32(0.1)


def reference(model: onnx.ModelProto, feeds: Arrays, threads: int = 2) -> list[NDArray[Any]]:
    """The outputs of onnxruntime."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    return list(session.run(None, dict(feeds)))


def error(got: Sequence[NDArray[Any]], want: Sequence[NDArray[Any]]) -> float:
    """The largest difference over the largest magnitude; NaN if anything is not finite."""
    return max(
        float(np.abs(g.astype(np.float64) - w).max() / np.abs(w.astype(np.float64)).max())
        for g, w in zip(got, want, strict=True)
    )


def shipped_error(name: str, target: Target) -> float:
    """The compiled light network on onnx's input against onnx's output.

    SqueezeNet has a softmax of a thousand equal values of 1e10: it is right only where all channels
    are summed alike, to the last bit, which strict precision does.
    """
    module = tunefarm.from_onnx(light(name))
    feeds = {p.name: ramp(p.type.shape) for p in module.main.params}
    built = tunefarm.build(module, Target(f"{target} -precision=strict"))
    return error(list(built.run(feeds).values()), [shipped_output(name)])


def random_error(model: onnx.ModelProto, target: Target) -> float:
    """The compiled model on random input against onnxruntime."""
    module = tunefarm.from_onnx(model)
    feeds = random_feeds(module)
    return error(list(tunefarm.build(module, target).run(feeds).values()), reference(model, feeds))


def models_named(names: Sequence[str]) -> Iterator[tuple[str, onnx.ModelProto]]:
    """Names and models: the light networks' with random weights."""
    from models import ALL, MODELS

    for name in names or [*(f"light_{n}" for n in light_names()), *MODELS]:
        if name.startswith("light_"):
            yield name, randomized(light(name.removeprefix("light_")))
        else:
            yield name, ALL[name]()


def check(name: str, model: onnx.ModelProto, target: Target) -> dict[str, float]:
    """Errors against what is shipped, if anything is, and against onnxruntime."""
    found = {"random": random_error(model, target)}
    if name.startswith("light_"):
        found["shipped"] = shipped_error(name.removeprefix("light_"), target)
    return found


def tuned_gain(model: onnx.ModelProto, target: Target, db: str, trials: int) -> str:
    """Tune the model's tasks, and time its tuned build beside the default one."""
    module = tunefarm.from_onnx(model)
    tasks = tunefarm.extract_tasks(module, target)
    if trials:
        tunefarm.tune(tasks, db=db, trials=trials * len(tasks))
    with tunefarm.apply_history_best((), starter=False):
        default = tunefarm.build(module, target)
    with tunefarm.apply_history_best(db) as history:
        tuned = tunefarm.build(module, target)
        exact = sum(d.settled for d in history.lookup([t.workload for t in tasks], target))
    before, after = (statistics.median(t) for t in interleaved([default, tuned], 15))
    return f"{exact}/{len(tasks)} tasks tuned or confirmed, {before / after:.2f}x the default  "


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--db", default="", help="database of records")
    parser.add_argument("--trials", type=int, default=0, help="tune so many trials a task first")
    options = parser.parse_args()
    if options.trials and not options.db:
        parser.error("--trials needs --db, where the records go")
    target, worst = Target.host(options.threads), 0.0
    for name, model in models_named(options.names):
        start = time.perf_counter()
        gain = tuned_gain(model, target, options.db, options.trials) if options.db else ""
        with tunefarm.apply_history_best(options.db or ()):
            found = check(name, model, target)
        text = "  ".join(f"{kind} {e:.1e}" for kind, e in found.items())
        print(f"{name:20} {text:36} {gain}{time.perf_counter() - start:5.1f} s", flush=True)
        worst = np.fmax(worst, max(found.values())) if np.isfinite([*found.values()]).all() else 1
    print(f"worst {worst:.1e}, allowed {LIMIT:.0e}")
    return int(worst > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
