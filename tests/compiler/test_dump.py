"""TUNEFARM_DUMP: the stages of a build as numbered files, and nothing without it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tunefarm.compiler import kernel_cache, settings, te
from tunefarm.compiler.build import build_function, build_kernel, build_module
from tunefarm.compiler.ir import Constant, Function, IRModule, TensorType, Var
from tunefarm.compiler.ops import call
from tunefarm.compiler.parser import parse_module
from tunefarm.compiler.space import config_space
from tunefarm.compiler.target import Target
from tunefarm.compiler.tir.transform.lower import PHASES
from tunefarm.compiler.transform.context import PassContext
from tunefarm.compiler.transform.pipeline import STEPS
from tunefarm.compiler.workload import Workload

TARGET = Target.host(1)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TUNEFARM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TUNEFARM_DUMP", str(tmp_path / "stages"))
    return tmp_path / "stages"


def model() -> IRModule:
    x = Var("x", TensorType((4, 8), "float32"))
    weights = Constant(np.ones((8, 16), "float32"))
    result = call("softmax", call("relu", call("matmul", x, weights)))
    return IRModule({"main": Function((x,), result)})


def product() -> Workload:
    a, b = (Var(n, TensorType((8, 8), "float32")) for n in "ab")
    return Workload.from_function(Function((a, b), call("matmul", a, b), {"primitive": True}))


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_every_stage_of_a_model_is_a_numbered_file(folder: Path) -> None:
    with PassContext(disabled_pass=("fold_scale_axis",)):
        built = build_module(model(), TARGET)
    stages = folder / "00-model"
    graphs = [path for path in sorted(stages.iterdir()) if path.suffix == ".txt"]
    planned = len(STEPS) + 3  # behind the passes and two kernels
    names_of_ends = [graphs[0].name, graphs[-1].name]
    assert names_of_ends == ["00-import.txt", f"{planned}-memory-plan.txt"]
    passes = {f"{n:02}-{step.name.replace('_', '-')}.txt" for n, step in enumerate(STEPS, 1)}
    assert {path.name for path in graphs[1:-1]} < passes  # what changed nothing is left out
    fused = next(path for path in graphs if path.name.endswith("fuse-ops.txt"))
    assert len(parse_module(fused.read_text(), TABLE).functions) == 1
    plan = (stages / f"{planned}-memory-plan.txt").read_text()
    assert plan.splitlines()[1] == "input 0: x float32[4, 8]"
    assert all(f"{name}(" in plan for name in built.plan.kernels)
    assert "@tunefarm_run" in (stages / f"{planned + 1}-executor.ll").read_text()


TABLE = {"c0": np.ones((8, 16), "float32")}


def test_a_kernel_has_a_folder_from_function_to_assembly(folder: Path) -> None:
    build_module(model(), TARGET)
    kernel = folder / "00-model" / f"{len(STEPS) + 1}-matmul-4x8-8x16-relu"
    found = names(kernel)
    assert found[:3] == ["00-function.txt", "01-program.txt", "02-scheduled.txt"]
    count = len(PHASES)
    lowered = {f"{n:02}-{p.__name__.replace('_', '-')}.txt" for n, p in enumerate(PHASES, 3)}
    assert set(found[3:-2]) <= lowered
    assert found[-2:] == [f"{count + 3}-llvm.ll", f"{count + 4}-assembly.s"]
    assert "relu(v0)" in (kernel / found[0]).read_text()
    plain, scheduled = ((kernel / name).read_text() for name in found[1:3])
    assert "block" in plain
    assert "vectorized" in scheduled
    assert "vectorized" not in plain
    assert "block" not in (kernel / found[-3]).read_text()
    assert "define void @tunefarm_" in (kernel / found[-2]).read_text()
    assert "retq" in (kernel / found[-1]).read_text()


def test_builds_do_not_overwrite_one_another(folder: Path) -> None:
    build_kernel(product(), TARGET, config_space(product(), TARGET).default)
    a = te.placeholder((4,), name="a")
    program = te.create_prim_func([a, te.compute((4,), lambda i: a[i] + a[i])], "twice")
    build_function(program, TARGET)
    build_function(program, TARGET)
    assert names(folder) == ["00-matmul-8x8-8x8", "01-twice", "02-twice"]
    assert names(folder / "01-twice") == names(folder / "02-twice")


def test_the_cache_hides_no_stage(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = config_space(product(), TARGET).default
    monkeypatch.delenv("TUNEFARM_DUMP")
    built = build_kernel(product(), TARGET, config)
    assert kernel_cache.load(product(), TARGET, config) == built
    assert not folder.exists()
    monkeypatch.setenv("TUNEFARM_DUMP", str(folder))
    assert build_kernel(product(), TARGET, config) == built
    assert "00-function.txt" in names(folder / "00-matmul-8x8-8x8")


@pytest.mark.parametrize("inside", ["", "file/deeper"])
def test_a_folder_that_cannot_be_made_is_one_sentence(
    folder: Path, monkeypatch: pytest.MonkeyPatch, inside: str
) -> None:
    place = folder / inside if inside else folder
    (folder if inside else folder.parent).mkdir(exist_ok=True)
    (folder / "file" if inside else folder).write_text("no folder")
    monkeypatch.setenv("TUNEFARM_DUMP", str(place))
    with pytest.raises(settings.SettingError, match=r"^TUNEFARM_DUMP: .* cannot be written \(.*or"):
        build_module(model(), TARGET)
