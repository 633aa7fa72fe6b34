"""Workloads: one text for one computation, safe to read from anyone, and inputs that fit."""

import json
import subprocess
import sys

import numpy as np
import pytest
from tunefarm.compiler.errors import WorkloadError
from tunefarm.compiler.ir import Constant, Function, TensorType, Var
from tunefarm.compiler.ops import call
from tunefarm.compiler.target import Target
from tunefarm.compiler.workload import Task, Workload, random_inputs, reference_outputs


def conv_relu(names: str = "xwbr", channels: int = 8) -> Function:
    x = Var(names[0], TensorType((1, 6, 6, 4), "float32"))
    w = Var(names[1], TensorType((3, 3, 4, channels), "float32"))
    b = Var(names[2], TensorType((channels,), "float32"))
    r = Var(names[3], TensorType((1, 6, 6, channels), "float32"))
    y = call("conv", x, w, padding=((1, 1), (1, 1)), data_layout="NSC", kernel_layout="SIO")
    body = call("relu", call("add", call("add", y, b), r))
    return Function((x, w, b, r), body, {"primitive": True, "constants": (1, 2)})


def gather_sqrt() -> Function:
    table = Var("table", TensorType((10, 3), "float32"))
    at = Var("at", TensorType((5,), "int32"))
    picked = call("gather", table, call("cast", at, dtype="int64"), axis=0)
    scalar = Constant(np.array(0.1, np.float32))
    return Function((table, at), call("sqrt", call("add", picked, scalar)), {"primitive": True})


def test_names_do_not_enter_the_key_and_shapes_do() -> None:
    assert Workload.from_function(conv_relu()) == Workload.from_function(conv_relu("abcd"))
    other = Workload.from_function(conv_relu(channels=9))
    assert Workload.from_function(conv_relu()).key != other.key


def test_which_parameters_are_constant_enters_the_key() -> None:
    f = conv_relu()
    variable = Function(f.params, f.body, {"primitive": True, "constants": ()})
    assert Workload.from_function(f).key != Workload.from_function(variable).key


def test_round_trip_through_text() -> None:
    workload = Workload.from_function(conv_relu())
    again = Workload.from_text(workload.text)
    assert again == workload
    assert again.constants == (1, 2)
    assert [str(p.type) for p in again.function.params] == [str(p.type) for p in conv_relu().params]
    assert Workload.from_function(again.function) == workload


def test_attributes_at_their_defaults_do_not_enter() -> None:
    text = Workload.from_function(conv_relu()).text
    assert '"padding":[[1,1],[1,1]]' in text
    assert "dilations" not in text
    explicit = text.replace('"attrs":{"data_layout"', '"attrs":{"groups":1,"data_layout"')
    assert explicit != text
    with pytest.raises(WorkloadError, match="is not canonical"):
        Workload.from_text(explicit)


def test_key_is_equal_in_another_process() -> None:
    workload = Workload.from_function(conv_relu())
    code = (
        "import sys; from tunefarm.compiler.workload import Workload;"
        "print(Workload.from_function(Workload.from_text(sys.stdin.read()).function).key)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        input=workload.text,
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONHASHSEED": "7"},
    )
    assert done.stdout.strip() == workload.key


def test_summary_and_flops() -> None:
    workload = Workload.from_function(conv_relu())
    assert workload.summary == "conv 3x3 s1 1x6x6x4→8 +add +add +relu"
    taps = 36 * 4 * 8 * 2
    assert 4 * taps + 3 * 36 * 8 <= workload.flops <= 9 * taps + 3 * 36 * 8  # borders may not count


def test_workloads_and_tasks_are_shown_in_a_line() -> None:
    workload = Workload.from_function(conv_relu())
    target = Target("llvm -mcpu=znver5 -num-cores=2")
    assert repr(workload) == f"Workload({workload.summary!r}, key={workload.key[:8]}…)"
    shown = f"Task({workload.summary!r}, weight=3, target={target})"
    assert repr(Task(workload, target, 3)) == str(Task(workload, target, 3)) == shown


def test_random_inputs_obey_domains() -> None:
    workload = Workload.from_function(gather_sqrt())
    assert workload.domains == ("positive", "index<10")
    table, at = random_inputs(workload, np.random.default_rng(0))
    assert table.min() > 0
    assert at.dtype == np.int32
    assert 0 <= at.min() <= at.max() < 10
    (y,) = reference_outputs(workload, [table, at])
    np.testing.assert_allclose(y, np.sqrt(table[at] + np.float32(0.1)), rtol=1e-6)


def test_infinite_attributes_and_scalars_survive() -> None:
    x = Var("x", TensorType((3,), "float32"))
    low = Constant(np.array(-np.inf, np.float32))
    f = Function((x,), call("maximum", call("clip", x, max=float("inf")), low), {"primitive": True})
    workload = Workload.from_function(f)
    assert Workload.from_text(workload.text) == workload


def test_a_large_constant_is_no_part_of_a_kernel() -> None:
    x = Var("x", TensorType((3,), "float32"))
    f = Function((x,), call("add", x, Constant(np.ones(3, np.float32))))
    with pytest.raises(ValueError, match="Constant of type float32"):
        Workload.from_function(f)


def _changed(**edits: object) -> str:
    content = json.loads(Workload.from_function(conv_relu()).text)
    return json.dumps({**content, **edits})


@pytest.mark.parametrize(
    "text, message",
    [
        ("{", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("[]", "not in the form"),
        (_changed(version=99), "of version 99"),
        (_changed(outputs=[99]), "refers to value 99"),
        (_changed(outputs=[-1]), "refers to value -1"),
        (
            _changed(nodes=[{"op": "rm", "args": [], "attrs": {}}]),
            "the operator 'rm', which neither",
        ),
        (
            _changed(nodes=[{"op": "relu", "args": [0], "attrs": {"x": {"y": 1}}}]),
            "attribute of type dict",
        ),
        (_changed(nodes=[{"op": "relu", "args": [0], "attrs": {"x": 1}}]), "not in the form"),
        (_changed(nodes=[{"op": "add", "args": [0, 1], "attrs": {}}]), "does not type-check"),
        (
            _changed(params=[{"shape": [1 << 40], "dtype": "int8", "constant": False}]),
            "extents are whole numbers",
        ),
        (
            _changed(params=[{"shape": [1], "dtype": "object", "constant": False}]),
            "dtype 'object'",
        ),
        (_changed(), "is not canonical"),
        (" " * (1 << 21), "characters"),
    ],
)
def test_bad_texts_are_refused_in_one_sentence(text: str, message: str) -> None:
    if message == "is not canonical":
        text = text.replace('"domain": "any"', '"domain": "positive"')
    with pytest.raises(WorkloadError, match=message):
        Workload.from_text(text)
