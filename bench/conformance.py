"""Count how many of ONNX's node tests a runner passes.

    python bench/conformance.py [--evaluate | --build] [-k substring] [--verbose]

A test passes if every output agrees within the test's tolerance; it is unsupported if the importer
refuses the model in a ModelError; anything else is wrong. Inputs that fix shapes (Reshape's shape,
Slice's starts, …) are bound as constants, as exporters do.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tunefarm.compiler.errors import ModelError
from tunefarm.compiler.frontend.onnx import from_onnx
from tunefarm.compiler.ir import IRModule

Runner = Callable[[IRModule, Mapping[str, np.ndarray[Any, Any]]], Sequence[np.ndarray[Any, Any]]]

# Operator → the inputs that must be known when the model is imported.
CONSTANT_INPUTS: dict[str, tuple[int, ...]] = {
    "CenterCropPad": (1,), "Compress": (1,), "ConstantOfShape": (0,), "CumProd": (1,),
    "CumSum": (1,), "Dropout": (1, 2), "Expand": (1,), "If": (0,), "Loop": (0, 1),
    "MelWeightMatrix": range(5), "OneHot": (1,), "Pad": (1, 2, 3), "Range": (0, 1, 2),
    "Reshape": (1,), "Resize": (1, 2, 3), "ReverseSequence": (1,), "Slice": (1, 2, 3, 4),
    "Split": (1,), "Squeeze": (1,), "Tile": (1,), "TopK": (1,), "Trilu": (1,), "Unsqueeze": (1,),
    "Upsample": (1,), "BlackmanWindow": (0,), "HannWindow": (0,), "HammingWindow": (0,),
    "AffineGrid": (1,), "Col2Im": (1, 2), "DFT": (1, 2), "STFT": (1, 3), "NonZero": (),
    **{f"Reduce{kind}": (1,) for kind in (
        "L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")},
}  # fmt: skip

# The tests' expected values round every intermediate; onnx's own runner allows bfloat16 as much.
TWO_ULP = {"bfloat16": 2**-6, "float16": 2**-9}
# Where a sum cancels out, the expected value holds what its own order of float32 additions leaves.
SUM_ULP = 2**-24


@dataclass(frozen=True, slots=True)
class Outcome:
    name: str
    verdict: str  # "passed", "unsupported" or "wrong"
    reason: str = ""


def node_cases(pattern: str = "") -> list[Any]:
    """ONNX's node tests whose name contains ``pattern``."""
    import onnx.backend.test.case.node as node_tests

    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        cases = node_tests.collect_testcases(None)
    return [c for c in cases if pattern in c.name]


def shape_inputs(graph: Any) -> set[str]:
    """The graph's inputs that an operand which must be constant is computed from."""
    producer = {name: node for node in graph.node for name in node.output}
    stack = [
        node.input[i]
        for node in graph.node
        for i in CONSTANT_INPUTS.get(node.op_type, ())
        if i < len(node.input)
    ]
    found: set[str] = set()
    while stack:
        name = stack.pop()
        if name in found:
            continue
        found.add(name)
        node = producer.get(name)
        if node is not None and node.op_type not in ("Shape", "Size"):
            stack.extend(node.input)
    return found & {i.name for i in graph.input}


def run_case(case: Any, runner: Runner) -> Outcome:
    """Import the test's model, run it on its inputs, compare its outputs."""
    import onnx
    from onnx import numpy_helper

    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    bound = shape_inputs(model.graph)
    for values in case.data_sets:
        inputs, expected = ([_dense(v) for v in side] for side in values)
        if not all(isinstance(v, np.ndarray) or np.isscalar(v) for v in [*inputs, *expected]):
            return Outcome(case.name, "unsupported", "sequences and optional values")
        named = dict(zip((i.name for i in case.model.graph.input), inputs, strict=False))
        for name in bound:
            model.graph.initializer.append(numpy_helper.from_array(np.asarray(named[name]), name))
        try:
            module = from_onnx(model)
        except ModelError as error:
            return Outcome(case.name, "unsupported", str(error))
        feeds = {p.name: np.asarray(named[p.name]) for p in module.main.params}
        problem = _compare(runner(module, feeds), expected, case.rtol, case.atol)
        if problem:
            return Outcome(case.name, "wrong", problem)
    return Outcome(case.name, "passed")


def _compare(outputs: Sequence[Any], expected: Sequence[Any], rtol: float, atol: float) -> str:
    """What differs, in one sentence; nothing if all agrees."""
    if len(outputs) != len(expected):
        return f"{len(outputs)} outputs instead of {len(expected)}"
    for i, (got, want) in enumerate(zip(outputs, expected, strict=True)):
        want = np.asarray(want)
        if got.shape != want.shape or got.dtype != want.dtype:
            return f"output {i} is {got.dtype}{got.shape}, not {want.dtype}{want.shape}"
        if want.dtype.kind in "biu":
            agrees = np.array_equal(got, want)
        else:
            a, b = got.astype(np.float64), want.astype(np.float64)
            tolerance = max(rtol, TWO_ULP.get(want.dtype.name, 0.0))
            largest = np.max(np.abs(b), where=np.isfinite(b), initial=0.0)
            floor = max(atol, SUM_ULP * float(largest))
            agrees = np.allclose(a, b, rtol=tolerance, atol=floor, equal_nan=True)
        if not agrees:
            return f"output {i} differs in {np.sum(got != want)} of {want.size} elements"
    return ""


def _dense(value: Any) -> Any:
    """A TensorProto (of a type that NumPy lacks) as an array; anything else as it is."""
    import onnx
    from onnx import numpy_helper

    return numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value


def run_cases(cases: Iterable[Any], runner: Runner) -> list[Outcome]:
    outcomes = []
    for case in cases:
        try:
            outcomes.append(run_case(case, runner))
        except Exception as error:  # a crash of ours is a wrong answer, and the run goes on
            reason = f"{type(error).__name__}: {error}"
            outcomes.append(Outcome(case.name, "wrong", reason))
    return outcomes


def _evaluate(module: IRModule, feeds: Mapping[str, Any]) -> Sequence[Any]:
    from tunefarm.compiler.evaluate import evaluate

    return evaluate(module, feeds)


def _build(module: IRModule, feeds: Mapping[str, Any]) -> Sequence[Any]:
    import tunefarm

    results = tunefarm.build(module).run(feeds)
    return [results[name] for name in module.output_names]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--evaluate", action="store_true", help="NumPy evaluator (the default)")
    mode.add_argument("--build", action="store_true", help="compiled code for this host")
    parser.add_argument("-k", default="", metavar="SUBSTRING", help="only tests named so")
    parser.add_argument("--verbose", action="store_true", help="list the passed tests too")
    options = parser.parse_args()
    start = time.perf_counter()
    outcomes = run_cases(node_cases(options.k), _build if options.build else _evaluate)
    for outcome in outcomes:
        if options.verbose or outcome.verdict != "passed":
            print(f"{outcome.verdict:11} {outcome.name}  {outcome.reason}")
    count = {v: sum(o.verdict == v for o in outcomes) for v in ("passed", "unsupported", "wrong")}
    total = ", ".join(f"{n} {v}" for v, n in count.items())
    print(f"{total}, of {len(outcomes)} node tests, in {time.perf_counter() - start:.0f} s")
    return 1 if count["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
