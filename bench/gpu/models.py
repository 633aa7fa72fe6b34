"""Whole models of float16 on a GPU beside torch.compile: ResNet-50 and BERT-base, batch 1 and 16.

    python bench/gpu/models.py [-k resnet50] [--mode max-autotune] [--minutes 9] [--out report.json]
    TUNEFARM_CUDA=emulated python bench/gpu/models.py --small

Both sides run as replays of CUDA graphs, operands on the device; times are medians by the device's
events. Ours has random weights and default configs (or the records of ``--db``), and is held to the
same weights in float32 on this host's processor. PyTorch's models are those of torchvision and
transformers, compiled in ``--mode`` (all of PyTorch's have CUDA graphs but "default"; max-autotune
takes minutes a model), channels last. All of ours come first, then PyTorch's.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import sys
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from peers import find_torch
from reporting import Report, add_options
from tunefarm.compiler.runtime.cuda.driver import Device, open_device
from tunefarm.compiler.runtime.cuda.module import CudaModule
from tunefarm.compiler.target import Target
from watch import watched

import tunefarm

REPEATS = 20
SLOWEST = 20
PATIENCE_S = 300.0  # with builds and compilations
VOCABULARY, TOKENS = 30522, 128
BY_TORCH = " by torch.compile"


def networks() -> ModuleType:
    """``bench/models.py``."""
    path = Path(__file__).parents[1] / "models.py"
    spec = importlib.util.spec_from_file_location("bench_models", path)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def batched(model: Any, batch: int) -> Any:
    """An ONNX model of batch 1 for another: inputs, outputs, and the shapes that it reshapes to."""
    from onnx import numpy_helper

    for port in (*model.graph.input, *model.graph.output):
        port.type.tensor_type.shape.dim[0].dim_value = batch
    shapes = {node.input[1] for node in model.graph.node if node.op_type == "Reshape"}
    for weight in model.graph.initializer:
        if weight.name in shapes:
            values = numpy_helper.to_array(weight).copy()
            values[0] = batch
            weight.CopyFrom(numpy_helper.from_array(values, weight.name))
    return model


def halved(model: Any) -> Any:
    """An ONNX model of float32 in float16: weights, inputs, outputs, casts."""
    from onnx import TensorProto, numpy_helper

    for weight in model.graph.initializer:
        if weight.data_type == TensorProto.FLOAT:
            values = numpy_helper.to_array(weight).astype(np.float16)
            weight.CopyFrom(numpy_helper.from_array(values, weight.name))
    for port in (*model.graph.input, *model.graph.output):
        if port.type.tensor_type.elem_type == TensorProto.FLOAT:
            port.type.tensor_type.elem_type = TensorProto.FLOAT16
    for node in model.graph.node:
        for attribute in node.attribute:
            if (node.op_type, attribute.name, attribute.i) == ("Cast", "to", TensorProto.FLOAT):
                attribute.i = TensorProto.FLOAT16
    return model


def drawn(lib: Any, rng: np.random.Generator) -> dict[str, Any]:
    """Inputs: normal images, words of the vocabulary, masks of ones."""
    found = {}
    for port in lib.inputs:
        if "mask" in port.name:
            found[port.name] = np.ones(port.type.shape, port.type.dtype)
        elif "int" in port.type.dtype:
            found[port.name] = rng.integers(100, size=port.type.shape).astype(port.type.dtype)
        else:
            found[port.name] = rng.standard_normal(port.type.shape).astype(port.type.dtype)
    return found


def measured(
    make: Callable[[], Any],
    batch: int,
    report: Report,
    device: Device,
    options: argparse.Namespace,
) -> dict[str, Any]:
    """Times of our model and of its slowest nodes; the error against float32."""
    target = Target(f"cuda -arch={device.properties.arch} {options.target}")
    report.at("ours", PATIENCE_S)
    with tunefarm.apply_history_best(options.db) if options.db else nullcontext():
        lib = tunefarm.build(tunefarm.from_onnx(halved(batched(make(), batch))), target)
    assert isinstance(lib, CudaModule)
    inputs = drawn(lib, np.random.default_rng(0))
    plain = tunefarm.build(tunefarm.from_onnx(batched(make(), batch)))
    types = {port.name: port.type.dtype for port in plain.inputs}
    wanted = plain.run({name: array.astype(types[name]) for name, array in inputs.items()})
    got = lib.run(inputs)
    if device.properties.emulated:
        timing, profile = lib.time_evaluator(inputs, repeat=1), lib.profile(inputs, 1)
    else:
        timing = lib.time_evaluator(inputs, min_repeat_ms=50, repeat=REPEATS)
        profile = lib.profile(inputs)
    nodes = sorted(profile.nodes, key=lambda node: -node.seconds)[:SLOWEST]
    return {
        "error": max(error_of(got[name], wanted[name]) for name in wanted),
        "seconds": timing.median,
        "seconds_of_nodes": profile.seconds,
        "nodes": [{"node": node.label, "seconds": node.seconds} for node in nodes],
    }


def beside(ours: float, peer: Callable[[], float], report: Report) -> dict[str, Any]:
    """The time of PyTorch's model, and how many times ours goes into it. That it fails is no
    failure of ours."""
    report.at("PyTorch's", PATIENCE_S)
    try:
        seconds = peer()
    except Exception as failure:
        return {"torch_failed": " ".join(str(failure).split())[:300]}
    return {"torch_seconds": seconds, "over_torch": seconds / ours}


def error_of(got: Any, wanted: Any) -> float:
    """The largest difference over the root mean square."""
    difference = np.abs(got.astype(np.float64) - wanted)
    return float(difference.max() / max(np.sqrt(np.mean(wanted.astype(np.float64) ** 2)), 1e-9))


# --- PyTorch's ----------------------------------------------------------------------------------


def torch_resnet50(torch: Any, batch: int) -> tuple[Any, tuple[Any, ...]]:
    from torchvision.models import resnet50

    model = resnet50().to(memory_format=torch.channels_last)
    x = torch.randn(batch, 3, 224, 224, device="cuda", dtype=torch.float16)
    return model, (x.to(memory_format=torch.channels_last),)


def torch_bert_base(torch: Any, batch: int) -> tuple[Any, tuple[Any, ...]]:
    from transformers import BertConfig, BertModel

    model = BertModel(BertConfig(), add_pooling_layer=False)
    ids = torch.randint(VOCABULARY, (batch, TOKENS), device="cuda")
    return model, (ids, torch.ones_like(ids))


PEERS: Mapping[str, Callable[[Any, int], tuple[Any, tuple[Any, ...]]]] = {
    "resnet50": torch_resnet50,
    "bert_base": torch_bert_base,
}


def torch_seconds(torch: Any, name: str, batch: int, mode: str) -> float:
    """The median of event times of a compiled model of float16."""
    model, inputs = PEERS[name](torch, batch)
    model = model.eval().half().cuda()
    with torch.inference_mode():
        call = torch.compile(model, mode=mode)
        for _ in range(5):
            call(*inputs)
        times = []
        for _ in range(REPEATS):
            before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            before.record()
            for _ in range(10):
                call(*inputs)
            after.record()
            torch.cuda.synchronize()
            times.append(before.elapsed_time(after) * 1e-4)
    torch.compiler.reset()
    return statistics.median(times)


def main() -> int:
    options = parse_options()
    device = open_device()
    torch = None if options.no_peers or device.properties.emulated else find_torch()
    report = Report("models", options, device)
    report.facts["torch"] = "" if torch is None else f"{torch.__version__}, mode {options.mode}"
    made = networks()
    small = {"resnet18": partial(made.resnet18, size=16, stages=1),
             "bert": partial(made.bert_base, tokens=5, layers=1, vocabulary=100)}  # fmt: skip
    large = {"resnet50": made.resnet50, "bert_base": made.bert_base}
    makers = small if options.small else large
    chosen = [
        (f"{name} batch {batch} float16", name, batch)
        for batch in ((1, 2) if options.small else (1, 16))
        for name in makers
        if options.k in f"{name} batch {batch} float16"
    ]
    for case, name, batch in chosen:
        if case not in report.done:
            work = partial(measured, makers[name], batch, report, device, options)
            tell(report.run(case, work))
    for case, name, batch in chosen if torch is not None else ():  # minutes each: ours stand by now
        ours = report.result(case).get("seconds")
        if ours is not None and case + BY_TORCH not in report.done:
            peer = partial(torch_seconds, torch, name, batch, options.mode)
            tell(report.run(case + BY_TORCH, partial(beside, ours, peer, report)))
    return report.close()


def tell(told: Mapping[str, Any] | None) -> None:
    if told is not None:
        print(line_of(told), flush=True)


def line_of(told: Mapping[str, Any]) -> str:
    """One line of the table."""
    if "failed" in told:
        return f"{told['case']:<48} failed: {told['failed']}"
    if "torch_failed" in told:
        return f"{told['case']:<48} does not run: {told['torch_failed']}"
    if "torch_seconds" in told:
        times = f"{told['torch_seconds'] * 1e6:10.1f} µs, {told['over_torch']:.2f}× ours"
    else:
        times = f"{told['seconds'] * 1e6:10.1f} µs, error {told['error']:.1e}"
    return f"{told['case']:<48}{times}"


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add_options(parser)
    parser.add_argument("--small", action="store_true", help="tiny models, for an emulator")
    parser.add_argument("--mode", default="reduce-overhead", help="of torch.compile")
    parser.add_argument("--db", default="", help="records to build with")
    parser.add_argument("--target", default="", help="more options of the target")
    parser.add_argument("--no-peers", action="store_true", help="ours alone, without PyTorch")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(watched("models", main))
