"""The roofline: what nodes must do, what the machine's roofs allow, and the picture of both."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tunefarm.compiler.build import plain_name
from tunefarm.compiler.ir import Constant, Function, IRModule, TensorType, Var
from tunefarm.compiler.ops import call
from tunefarm.compiler.runtime.plan import KernelCall
from tunefarm.compiler.space import config_space
from tunefarm.compiler.target import Target
from tunefarm.compiler.transform.lower_precision import allow_precision

from tunefarm import api
from tunefarm.cli.app import run
from tunefarm.roofline.nodes import (
    MAX_ROWS,
    Roofline,
    Work,
    place,
    roofline_columns,
    works_of,
)
from tunefarm.roofline.picture import draw
from tunefarm.roofline.roofs import Cache, Level, Roofs, caches_in, places

ROOFS = Roofs(
    2,
    100e9,
    (Level("L1", 1e5, 400e9), Level("L2", 1e6, 200e9), Level("DRAM", float("inf"), 10e9)),
)
EMPTY = api.apply_history_best((), starter=False)


def test_a_node_meets_the_roof_that_takes_longest() -> None:
    product = place(Work("product", 1e9, 8e8, 0, 1e6), 0.02, ROOFS, 1e6)
    assert (product.bound, product.roof_s, product.nominal_s) == ("FMA", 8e-3, 1e-2)
    rows = place(Work("rows", 1e3, 1e3, 0, 8e5), 1e-5, ROOFS, 1e6)
    assert (rows.bound, rows.roof_s) == ("L2", 4e-6)


def test_an_instruction_of_several_terms_raises_the_roof() -> None:
    node = place(Work("bytes", 1e9, 1e9, 0, 1e3, "dot", rate=4.0), 0.004, ROOFS, 1e3)
    assert (node.nominal_s, node.roof_s) == (1e-2, 2.5e-3)
    assert column(result_of([node.work]), "roof")[0] == "FMA ×4"
    assert [note.split()[0] for note in result_of([node.work]).notes] == ["Dot"]


def test_weights_come_from_where_those_of_the_model_fit() -> None:
    """And they pass the nearer levels with the activations."""
    work = Work("dense", 1e3, 1e3, weight_bytes=1e4, activation_bytes=5e4)
    near, far = place(work, 1.0, ROOFS, 6e4), place(work, 1.0, ROOFS, 1e9)
    assert (near.bound, near.memory_s) == ("L1", pytest.approx(6e4 / 400e9))
    assert (far.bound, far.memory_s) == ("DRAM", pytest.approx(1e4 / 10e9))
    streaming = Work("copy", weight_bytes=1e4, activation_bytes=9e5)
    assert place(streaming, 1.0, ROOFS, 1e6).memory_s == pytest.approx(9.1e5 / 200e9)


def test_each_level_is_read_beyond_the_one_before() -> None:
    caches = [Cache(3, 32 << 20, 8), Cache(1, 48 << 10, 1), Cache(2, 1 << 20, 2)]
    found = {name: (capacity, size) for name, capacity, size in places(caches, 4)}
    assert found == {
        "L1": (4 * (48 << 10), 24 << 10),
        "L2": (2 * (1 << 20), 192 << 10),
        "L3": (32 << 20, 2 << 20),
        "DRAM": (float("inf"), 64 << 20),
    }
    *_, (name, _, size) = places([Cache(3, 260 << 20, 2)], 2)
    assert (name, size) == ("DRAM", 260 << 20)


def test_the_caches_are_those_that_linux_tells(tmp_path: Path) -> None:
    told = [
        ("1", "Data", "48K", "0"),
        ("1", "Instruction", "32K", "0"),
        ("3", "Unified", "1M", "0-2,5"),
    ]
    for number, (level, kind, size, shared) in enumerate(told):
        folder = tmp_path / f"index{number}"
        folder.mkdir()
        for name, text in (("level", level), ("type", kind), ("size", size)):
            (folder / name).write_text(f"{text}\n")
        (folder / "shared_cpu_list").write_text(f"{shared}\n")
    (tmp_path / "index9").mkdir()
    assert list(caches_in(tmp_path)) == [Cache(1, 48 << 10, 1), Cache(3, 1 << 20, 4)]


@pytest.fixture(scope="module")
def convolution(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """x of 1×32×28×28 through a 3×3 convolution, and a transpose of the input."""
    path = tmp_path_factory.mktemp("roofline") / "conv.onnx"
    weights = np.random.default_rng(0).standard_normal((32, 32, 3, 3)).astype(np.float32)
    graph = helper.make_graph(
        [
            helper.make_node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1]),
            helper.make_node("Transpose", ["x"], ["z"], perm=[0, 3, 2, 1]),
        ],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 32, 28, 28])],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in ("y", "z")],
        [numpy_helper.from_array(weights, "w")],
    )
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), path
    )
    return path


@pytest.mark.parametrize("precision", ["", " -precision=strict"])
def test_work_is_counted_node_by_node(convolution: Path, precision: str) -> None:
    target = Target(f"{Target.host(1)}{precision}")
    module, history = api.from_onnx(convolution), api.apply_history_best((), starter=False)
    with history:
        lib = api.build(module, target)
    works = works_of(lib, module, target, history)
    assert len(works) == len(lib.plan.steps)
    (conv,) = (w for w in works if w.name.startswith("conv"))
    assert conv.flops == 2 * 9 * 32 * 32 * 28 * 28
    assert conv.weight_bytes == 4 * 9 * 32 * 32
    assert conv.activation_bytes == 4 * 2 * 32 * 28 * 28
    inside = (28 * 3 - 2) ** 2 / (28 * 3) ** 2
    if precision:
        assert conv.sketch != "winograd"
        assert conv.operations == pytest.approx(conv.flops * inside)
    elif conv.sketch == "winograd":
        (task,) = api.extract_tasks(module, target)
        assert conv.operations < conv.flops * inside
        assert config_space(task.workload, target).default["sketch"] == "winograd"
    transposes = [w for w in works if w.name.startswith("transpose")]
    assert transposes
    assert all(w.flops == 0 and w.bytes == 2 * 4 * 32 * 28 * 28 for w in transposes)


def test_parts_that_are_written_side_by_side_are_nodes_like_others(tmp_path: Path) -> None:
    weights = np.random.default_rng(0).standard_normal((2, 16, 32)).astype(np.float32)
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x0", "w0"], ["a"]),
            helper.make_node("MatMul", ["x1", "w1"], ["b"]),
            helper.make_node("Concat", ["a", "b"], ["y"], axis=1),
        ],
        "g",
        [helper.make_tensor_value_info(x, TensorProto.FLOAT, [8, 16]) for x in ("x0", "x1")],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(w, f"w{n}") for n, w in enumerate(weights)],
    )
    path = tmp_path / "concat.onnx"
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), path
    )
    target = Target.host(1)
    module, history = api.from_onnx(path), api.apply_history_best((), starter=False)
    with history:
        lib = api.build(module, target)
    kernels = [step.kernel for step in lib.plan.steps if isinstance(step, KernelCall)]
    assert any(plain_name(k) != k for k in kernels)
    works = works_of(lib, module, target, history)
    assert sum(w.flops for w in works) == 2 * 2 * 8 * 16 * 32


def test_a_dot_product_s_operations_are_counted_once() -> None:
    """At twice the rate of multiply-adds the roof of bfloat16 is half of their time."""
    x = Var("x", TensorType((96, 64), "float32"))
    body = call("matmul", x, Constant(np.ones((64, 256), np.float32)))
    module = allow_precision(IRModule({"main": Function((x,), body)}), "bf16")
    target, history = Target("llvm -mcpu=znver5 -num-cores=1"), EMPTY
    with history:
        lib = api.build(module, target)
    (dot,) = (w for w in works_of(lib, module, target, history) if w.sketch == "dot")
    assert (dot.rate, dot.operations) == (2.0, dot.flops)
    assert result_of([dot]).notes[0].startswith("Dot products")


def result_of(works: list[Work]) -> Roofline:
    """Every node takes 1 ms."""
    nodes = tuple(place(work, 1e-3, ROOFS, 1e9) for work in works)
    return Roofline(nodes, ROOFS, 1.1e-3 * len(nodes), EMPTY)


def column(result: Roofline, name: str) -> list[str]:
    (found,) = (c for c in roofline_columns(result) if c.name == name)
    return list(found.cells)


def test_equal_nodes_share_a_row_and_the_rows_sum_up() -> None:
    many = [Work(f"odd {i}", 1e7, 1e7, 0, 1e3) for i in range(MAX_ROWS)]
    result = result_of([Work("even", 5e7, 4e7, 0, 1e3, "winograd")] * 3 + many)
    assert column(result, "node")[0] == "even"
    assert column(result, "times")[0] == "3"
    assert column(result, "time")[0] == "3.00 ms"
    assert column(result, "roof")[:2] == ["FMA, Winograd", "FMA"]
    assert column(result, "at FMA peak")[0] == "1.50 ms"
    assert column(result, "at roof")[0] == "1.20 ms"
    assert column(result, "reached")[0] == "40%"
    assert column(result, "GFLOP/s")[0] == "50"
    assert column(result, "node")[-2:] == ["1 more node", "sum"]
    assert column(result, "time")[-1] == "28.0 ms"
    assert result.summary() == (
        "a run takes 30.8 ms, its nodes one by one 28.0 ms; "
        "at the roof 3.70 ms, 12% of the run (FMA 3.70 ms)"
    )


@pytest.mark.parametrize("ending", ["svg", "png", "pdf"])
def test_the_picture_is_drawn_in_the_format_of_its_ending(tmp_path: Path, ending: str) -> None:
    works = [Work(f"node {i}", 10.0**i, 10.0**i, 0, 1e5) for i in range(4, 9)]
    result = result_of([*works, Work("copy", activation_bytes=1e6)])
    path = tmp_path / f"roofs.{ending}"
    draw("model", [result, result_of([Work("copy", activation_bytes=1e6)])], path)
    beginnings = {"svg": b"<?xml", "png": b"\x89PNG", "pdf": b"%PDF"}
    assert path.read_bytes().startswith(beginnings[ending])


def test_the_command_times_nodes_and_draws(
    convolution: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "roofs.svg"
    words = ["bench", str(convolution), "--picture", str(path), "--cores", "1", "--repeat", "2"]
    assert run(words) == 0
    text = capsys.readouterr().out
    assert "\nsum " in text
    assert "at the roof" in text
    assert "GFLOP/s of FMAs; reading from L1" in text
    assert f"wrote {path}" in text
    assert ("Diamonds" in path.read_text()) == ("Winograd" in text)


def test_a_picture_that_cannot_be_drawn_is_refused_first(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, expected in (("roofs.jpeg", ".svg, .png or .pdf"), ("no/roofs.svg", "is no folder")):
        assert run(["bench", model, "--picture", str(tmp_path / name)]) == 2
        assert expected in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert run(["bench", model, "--picture", str(tmp_path / "roofs.svg")]) == 2
    assert "pip install 'tunefarm[plot]'" in capsys.readouterr().err
