"""Loops, scans and sequences of ONNX, written out at import, held to onnxruntime."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from tunefarm.compiler.errors import ModelError
from tunefarm.compiler.evaluate import evaluate
from tunefarm.compiler.frontend.onnx import from_onnx
from tunefarm.compiler.ir import Call, post_order

import tunefarm

HEAD = '<ir_version: 9, opset_import: ["" : 18]>\n'

LOOP = """
main (float[3, 4] x) => (float[3, 4] y, float[N, 4] rows)
{
    trips = Constant <value: tensor = int64 {5}> ()
    yes = Constant <value: tensor = bool {1}> ()
    y, rows = Loop (trips, yes, x) <body = step (int64 i, bool on, float[3, 4] state)
        => (bool go, float[3, 4] next, float[4] row)
    {
        three = Constant <value: tensor = int64 {3}> ()
        go = Less (i, three)
        at = Mod (i, three)
        read = Gather <axis: int = 0> (x, at)
        row = Add (read, read)
        next = Mul (state, row)
    }>
}
"""
COLLECT = """
main (float[2, 5] x) => (float[2, 5] y, float[6, 3] z, int64 n)
{
    trips = Constant <value: tensor = int64 {3}> ()
    none = SequenceEmpty ()
    kept = Loop (trips, , none) <body = step (int64 i, bool on, seq(float[2, 3]) before)
        => (bool go, seq(float[2, 3]) after)
    {
        go = Identity (on)
        axes = Constant <value: tensor = int64[1] {1}> ()
        one = Constant <value: tensor = int64[1] {1}> ()
        three = Constant <value: tensor = int64[1] {3}> ()
        start = Reshape (i, one)
        end = Add (start, three)
        part = Slice (x, start, end, axes)
        after = SequenceInsert (before, part)
    }>
    z = ConcatFromSequence <axis: int = 0> (kept)
    n = SequenceLength (kept)
    first = Constant <value: tensor = int64 {-2}> ()
    sizes = Constant <value: tensor = int64[3] {1, 3, 1}> ()
    parts = SplitToSequence <axis: int = 1> (x, sizes)
    middle = SequenceAt (parts, first)
    fewer = SequenceErase (parts, first)
    all = SequenceInsert (fewer, middle, first)
    y = ConcatFromSequence <axis: int = 1> (all)
}
"""
SCAN = """
main (float[4] a, float[3, 7] x, float[7, 3] z) => (float[3] last, float[3, 7] sums)
{
    zero = Constant <value: tensor = float[3] {0, 0, 0}> ()
    last, sums = Scan <num_scan_inputs: int = 2, scan_input_axes: ints = [1, 0],
        scan_input_directions: ints = [0, 1], scan_output_axes: ints = [1],
        scan_output_directions: ints = [1],
        body: graph = step (float[3] state, float[3] u, float[3] v) => (float[3] next, float[3] out)
    {
        part = Mul (u, v)
        next = Add (state, part)
        out = Identity (next)
    }> (zero, x, z)
}
"""

MAP = """
main (float[2, 5] x, float[2, 2] z) => (float[2, 5] y)
{
    sizes = Constant <value: tensor = int64[2] {2, 3}> ()
    parts = SplitToSequence <axis: int = 1> (x, sizes)
    mapped = SequenceMap <body = each (float[2, N] one, float[2, 2] by) => (float[2, N] made)
    {
        made = MatMul (by, one)
    }> (parts, z)
    y = ConcatFromSequence <axis: int = 1> (mapped)
}
"""


def drawn(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    shapes = {
        i.name: [d.dim_value for d in i.type.tensor_type.shape.dim] for i in model.graph.input
    }
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


@pytest.mark.parametrize(
    "text", [LOOP, COLLECT, SCAN, MAP], ids=["loop", "sequences", "scan", "map"]
)
def test_what_is_written_out_agrees_with_onnxruntime(text: str) -> None:
    model = onnx.parser.parse_model(HEAD + text)
    feeds = drawn(model)
    wanted = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feeds)
    module = from_onnx(model)
    built = tunefarm.build(module).run(feeds)
    for got, name, want in zip(evaluate(module, feeds), built, wanted, strict=True):
        assert got.shape == want.shape
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(built[name], want, rtol=1e-5, atol=1e-6)


def test_a_loop_ends_where_its_condition_says() -> None:
    body = from_onnx(onnx.parser.parse_model(HEAD + LOOP)).main.body
    products = [n for n in post_order(body) if isinstance(n, Call) and n.op == "multiply"]
    assert len(products) == 4


@pytest.mark.parametrize(
    "text, old, new, reason",
    [
        (COLLECT, "kept)\n    n", "x)\n    n", "takes a sequence, not a tensor"),
        (COLLECT, "middle = SequenceAt", "middle = Add", "input 0 takes a tensor, not a sequence"),
        (COLLECT, "int64[3] {1, 3, 1}", "int64[2, 2] {1, 3, 1, 1}", "does not add up to 5"),
        (COLLECT, "int64 {-2}", "int64 {-4}", "position -4 is not in a sequence of 3"),
        (SCAN, "float[7, 3] z", "float[6, 3] z", r"\[6, 7\] elements"),
        (SCAN, "float[7, 3] z", "float z", "axis 0 is not an axis of a single number"),
        (SCAN, "_inputs: int = 2", "_inputs: int = 4", "num_scan_inputs=4 of 3 inputs"),
        (SCAN, "scan_input_axes: ints = [1, 0]", "scan_input_axes: ints = [1]",
         r"scan_input_axes is \[1\], and must be 2 integers"),
        (SCAN, "body: graph", "other: graph", "Scan 'last' .*: attribute body is missing"),
        (LOOP, "yes, x)", "yes, x, x)", "a body of 3 inputs and 3 outputs for 2 values"),
        (LOOP, "yes, x)", "yes)", "a body of 3 inputs and 3 outputs for 0 values"),
        (LOOP, "int64 {5}", "int64[2] {5, 5}", r"the trip count is int64\[2\], expected one"),
        (LOOP, "body = step", "other = step", "Loop 'y' .*: attribute body is missing"),
        (COLLECT, "SequenceLength (kept)", "SequenceLength (kept, x)", "input 1 is one too many"),
        (MAP, "(parts, z)", "(x, z)", "input 0 takes a sequence, not a tensor"),
        (MAP, "float[2, 2] by)", "float[2, 2] by, float a)", "SequenceMap 'mapped' .*: ONNX makes"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(text: str, old: str, new: str, reason: str) -> None:
    assert old in text
    model = onnx.parser.parse_model(HEAD + text.replace(old, new))
    with pytest.raises(ModelError, match=reason):
        from_onnx(model)


REFUSED = """
main (float[3] x, int64 n) => (float[3] y)
{
    yes = Constant <value: tensor = bool {1}> ()
    TRIPS
    y = Loop (trips, yes, x) <body = step (int64 i, bool on, float[3] state)
        => (bool go, float[3] next)
    {
        GO
        next = Add (state, x)
    }>
}
"""


@pytest.mark.parametrize(
    "trips, go, reason",
    [
        ("trips = Identity (n)", "go = Identity (on)", "the trip count is computed at run time"),
        ("trips = Constant <value: tensor = int64 {3}> ()", "go = Less (i, n)",
         "whether the loop goes on is computed at run time"),
        ("trips = Constant <value: tensor = int64 {1025}> ()", "go = Identity (on)",
         "more than 1024 iterations"),
        ("trips = Constant <value: tensor = int64 {3}> ()", "go = Unknown (on)",
         "Unknown 'go' .*the operator is not supported$"),
    ],
)  # fmt: skip
def test_a_loop_of_unknown_or_great_length_is_refused(trips: str, go: str, reason: str) -> None:
    text = REFUSED.replace("TRIPS", trips).replace("GO", go)
    with pytest.raises(ModelError, match=reason):
        from_onnx(onnx.parser.parse_model(HEAD + text))


def test_a_sequence_is_no_result() -> None:
    text = "main (float[2, 5] x) => (seq(float[1, 5]) y) { y = SplitToSequence (x) }"
    with pytest.raises(ModelError, match="output 'y': is a sequence, not a tensor"):
        from_onnx(onnx.parser.parse_model(HEAD + text))
