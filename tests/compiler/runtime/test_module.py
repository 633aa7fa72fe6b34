"""A whole model: run, profile, export, load elsewhere, call from C."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from tunefarm.compiler.codegen.llvm_compile import compile_llvm
from tunefarm.compiler.errors import BuildError, ShapeError, TargetError, TunefarmError
from tunefarm.compiler.runtime import export
from tunefarm.compiler.runtime.cpu import missing_features, required_features
from tunefarm.compiler.runtime.graph_executor import GraphExecutor, Profile
from tunefarm.compiler.runtime.module import Module, create_module, load_module
from tunefarm.compiler.runtime.plan import (
    Argument,
    ExecutionPlan,
    KernelCall,
    Port,
    verify_plan,
)
from tunefarm.compiler.target import Target


@pytest.fixture(params=["jit", "file"])
def module(
    request: pytest.FixtureRequest, programs: ModuleType, target: Target, tmp_path: Path
) -> Module:
    """The same model loaded through ORC, and from an exported library."""
    built = programs.example_module(target, threads=2)
    if request.param == "jit":
        return built
    built.export_library(tmp_path / "model.so")
    return load_module(tmp_path / "model.so")


def expected(programs: ModuleType, x: np.ndarray) -> np.ndarray:
    return 3 * (x + programs.example_weight())


def test_it_computes(module: Module, programs: ModuleType) -> None:
    x = programs.example_input()
    outputs = module.run({"x": x})
    assert list(outputs) == ["y", "z"]
    np.testing.assert_allclose(outputs["y"], expected(programs, x), rtol=1e-6)
    np.testing.assert_array_equal(outputs["z"], x)


def test_results_own_their_memory(module: Module, programs: ModuleType) -> None:
    x = programs.example_input()
    first = module.run({"x": x})["y"]
    kept = first.copy()
    module.run({"x": x + 1})
    np.testing.assert_array_equal(first, kept)


def test_threads_may_run_it_at_once(module: Module, programs: ModuleType) -> None:
    wrong: list[int] = []

    def run_often(seed: int) -> None:
        x = programs.example_input(seed)
        for _ in range(100):
            if not np.allclose(module.run({"x": x})["y"], expected(programs, x), rtol=1e-5):
                wrong.append(seed)

    threads = [threading.Thread(target=run_often, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert wrong == []


def test_dlpack_goes_both_ways(module: Module, programs: ModuleType) -> None:
    torch = pytest.importorskip("torch")
    x = torch.arange(64 * 16, dtype=torch.float32).reshape(64, 16)
    result = torch.from_dlpack(module.run({"x": x})["y"])
    np.testing.assert_allclose(result.numpy(), expected(programs, x.numpy()))


def test_wrong_inputs_are_refused(module: Module, programs: ModuleType) -> None:
    x = programs.example_input()
    with pytest.raises(ShapeError, match="no input 'w'; its inputs: x"):
        module.run({"x": x, "w": x})
    with pytest.raises(ShapeError, match="input 'x' is missing"):
        module.run({})
    with pytest.raises(ShapeError, match="input 'x' has dtype int64, expected float32"):
        module.run({"x": x.astype(np.int64)})
    with pytest.raises(ShapeError, match=r"input 'x' has shape \(64,\), expected \(64, 16\)"):
        module.run({"x": x[:, 0]})


def test_times_and_profile(module: Module) -> None:
    timing = module.time_evaluator(repeat=3, min_repeat_ms=1)
    assert 1e-8 < timing.best < 1e-2
    profile = module.profile(repeat=3)
    assert [node.label for node in profile.nodes] == ["x + w", "3 (x + w)", "copy"]
    assert all(node.seconds > 0 for node in profile.nodes)
    assert Profile.from_json(profile.to_json()) == profile
    assert "3 nodes" in str(profile)


@pytest.mark.parametrize("count", [0, -1, 2.5, None])
def test_what_is_timed_runs_at_least_once(module: Module, count: Any) -> None:
    message = f"{{}} is {count!r}, expected a whole number from 1"
    for name in ("repeat", "number"):
        with pytest.raises(TunefarmError, match=message.format(name)):
            module.time_evaluator(**{name: count})
    with pytest.raises(TunefarmError, match=message.format("repeat")):
        module.profile(repeat=count)


def test_the_graph_executor_agrees(module: Module, programs: ModuleType) -> None:
    executor = module.graph_executor()
    saved = GraphExecutor.from_json(executor.to_json(), module.library, module.weights)
    x = module.check_inputs({"x": programs.example_input()})
    seen: list[str] = []
    outputs = saved.run(x, lambda number, step, pointers: seen.append(f"{number} {step.label}"))
    assert seen == ["0 x + w", "1 3 (x + w)", "2 copy"]
    np.testing.assert_array_equal(outputs[0], module.run({"x": x[0]})["y"])


def test_sources(programs: ModuleType, target: Target, tmp_path: Path) -> None:
    module = programs.example_module(target)
    assert "define void @add(" in module.get_source("llvm")
    assert "add_row:" in module.get_source("asm")
    with pytest.raises(BuildError, match="no 'c' source; it has llvm and asm"):
        module.get_source("c")
    module.export_library(tmp_path / "m.so")
    with pytest.raises(BuildError, match=r"m.so holds machine code alone"):
        load_module(tmp_path / "m.so").get_source("asm")


def test_a_loaded_module_can_be_exported_again(
    programs: ModuleType, target: Target, tmp_path: Path
) -> None:
    programs.example_module(target).export_library(tmp_path / "a.so")
    load_module(tmp_path / "a.so").export_library(tmp_path / "b.so")
    assert (tmp_path / "a.so").read_bytes() == (tmp_path / "b.so").read_bytes()
    assert (tmp_path / "a.h").read_text() == (tmp_path / "b.h").read_text()


NUMPY_ONLY = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        root = name.partition(".")[0]
        if root not in sys.stdlib_module_names and root not in ("numpy", "tunefarm"):
            if not root.startswith(("__editable", "_virtualenv", "_numpy")):
                raise ImportError(f"{name} is not here")
sys.meta_path.insert(0, Refuse())
import numpy as np
from tunefarm.compiler.runtime.module import load_module
module = load_module(sys.argv[1])
x = np.ones((64, 16), np.float32)
w = np.arange(1024, dtype=np.float32).reshape(64, 16)
assert np.array_equal(module.run({"x": x})["y"], 3 * (x + w))
assert not [m for m in ("llvmlite", "onnx", "platformdirs") if m in sys.modules]
print("fine")
"""


def test_a_library_of_another_pool_is_exported_again(
    programs: ModuleType, target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads of one pool run the kernels of all libraries, which must agree on what a job says."""
    path = tmp_path / "old.so"
    with monkeypatch.context() as older:
        older.setattr(export, "POOL_VERSION", export.POOL_VERSION - 1)
        programs.example_module(target).export_library(path)
    with pytest.raises(BuildError, match="export the model again"):
        load_module(path)


def test_loading_needs_numpy_alone(programs: ModuleType, target: Target, tmp_path: Path) -> None:
    programs.example_module(target).export_library(tmp_path / "model.so")
    done = subprocess.run(
        [sys.executable, "-c", NUMPY_ONLY, str(tmp_path / "model.so")],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout == "fine\n", done.stderr


C_PROGRAM = """
#include <stdio.h>
#include "model.h"
static float x[1024] __attribute__((aligned(64))), y[1024] __attribute__((aligned(64)));
static float z[1024] __attribute__((aligned(64)));
int main(void) {
  model_session session;
  const void *inputs[MODEL_INPUTS] = {x};
  void *outputs[MODEL_OUTPUTS] = {y, z};
  int i, threads, wrong = 0;
  for (i = 0; i < 1024; i++) x[i] = 2 * i;
  if (model_start(&session, 2)) return 1;
  for (threads = 3; threads >= 1; threads--) {
    if (model_call(&session, inputs, outputs)) return 2;
    for (i = 0; i < 1024; i++) wrong += y[i] != 9.0f * i || z[i] != 2.0f * i;
    memset(y, 0, sizeof y);
    if (model_set_threads(&session, threads) || session.workers != threads - 1) return 3;
  }
  model_stop(&session);
  printf("%d wrong, metadata %c\\n", wrong, model_metadata()[0]);
  return 0;
}
"""


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_a_c_program_runs_it(programs: ModuleType, target: Target, tmp_path: Path) -> None:
    programs.example_module(target).export_library(tmp_path / "model.so")
    (tmp_path / "main.c").write_text(C_PROGRAM)
    flags = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-pthread", f"-Wl,-rpath,{tmp_path}"]
    build = ["cc", *flags, "main.c", "model.so", "-o", "main"]
    subprocess.run(build, cwd=tmp_path, check=True, timeout=60)
    done = subprocess.run(["./main"], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.stdout == "0 wrong, metadata {\n", done


def test_files_that_are_no_module_are_refused(
    programs: ModuleType, target: Target, tmp_path: Path
) -> None:
    path = tmp_path / "model.so"
    with pytest.raises(BuildError, match="cannot be read: No such file"):
        load_module(path)
    path.write_text("hello")
    with pytest.raises(BuildError, match="it is not an ELF file"):
        load_module(path)
    programs.example_module(target).export_library(path)
    whole = path.read_bytes()
    path.unlink()
    path.write_bytes(whole[:-100])
    with pytest.raises(BuildError, match="is cut off at"):
        load_module(path)
    path.unlink()
    path.write_bytes(whole[:18] + b"\xb7\0" + whole[20:])
    with pytest.raises(TargetError, match="is for aarch64, and this machine is x86_64"):
        load_module(path)


def test_a_module_for_another_cpu_is_refused(
    programs: ModuleType, target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.so"
    to_json = export.Metadata.to_json

    def with_a_feature_of_tomorrow(metadata: export.Metadata) -> str:
        return json.dumps({**json.loads(to_json(metadata)), "features": ["avx2", "avx99"]})

    monkeypatch.setattr(export.Metadata, "to_json", with_a_feature_of_tomorrow)
    programs.example_module(target).export_library(path)
    with pytest.raises(TargetError, match=r"model.so needs a CPU with avx99, which this machine"):
        load_module(path)


def test_a_module_for_another_cpu_is_exported_and_not_run(
    programs: ModuleType, tmp_path: Path
) -> None:
    foreign = next(
        t
        for cpu in ("znver5", "sapphirerapids", "tigerlake")
        if missing_features(required_features(t := Target(f"llvm -mcpu={cpu} -num-cores=2")))
    )
    module = programs.example_module(foreign)
    with pytest.raises(TargetError, match=rf"code for {foreign} needs a CPU with .*, which this"):
        module.run({"x": programs.example_input()})
    with pytest.raises(TargetError, match="which this machine lacks"):
        module.time_evaluator()
    assert "define void" in module.get_source("llvm")
    module.export_library(tmp_path / "model.so")
    assert (tmp_path / "model.h").exists()
    with pytest.raises(TargetError, match=r"model.so needs a CPU with .*, which this machine"):
        load_module(tmp_path / "model.so")


def test_code_with_imports_cannot_be_exported(
    programs: ModuleType, target: Target, tmp_path: Path
) -> None:
    text = """
    declare float @expf(float)
    define void @exp(ptr %pool, ptr %workspace, ptr %x, ptr %y) {
      %a = load float, ptr %x
      %b = call float @expf(float %a)
      store float %b, ptr %y
      ret void
    }
    """
    plan = ExecutionPlan(
        (Port("x", programs.MATRIX),),
        (Port("y", programs.MATRIX),),
        (KernelCall("exp", (Argument("input"), Argument("output"))),),
    )
    kernel = programs.Kernel("exp", compile_llvm(text, target), text)
    module = create_module(plan, [kernel], np.empty(0, np.uint8), target)
    x = programs.example_input()
    assert module.run({"x": x})["y"][0, 0] == pytest.approx(np.exp(x[0, 0]), rel=1e-6)
    with pytest.raises(BuildError, match="imports expf"):
        module.export_library(tmp_path / "exp.so")
    assert list(tmp_path.iterdir()) == []


def test_a_module_is_shown_in_a_line(programs: ModuleType, target: Target, tmp_path: Path) -> None:
    built = programs.example_module(target, threads=2)
    built.export_library(tmp_path / "model.so")
    loaded = load_module(tmp_path / "model.so").with_threads(2)
    count = len(built.plan.kernels)
    for module, place in ((built, ""), (loaded, f", path={tmp_path / 'model.so'}")):
        matrix = programs.MATRIX
        shown = f"Module(x: {matrix} → y: {matrix}, z: {matrix}, kernels={count}, weights="
        assert str(module).startswith(shown)
        assert str(module).endswith(f" MB, threads=2, target={target}{place})")


def test_plans_survive_json(programs: ModuleType) -> None:
    plan = programs.example_plan(4096)
    assert ExecutionPlan.from_json(plan.to_json()) == plan
    other = json.dumps({**json.loads(plan.to_json()), "version": 99})
    with pytest.raises(BuildError, match="version 99"):
        ExecutionPlan.from_json(other)


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        (Argument("arena", 32), "byte 32"),
        (Argument("arena", 1 << 20), "byte 1048576"),
        (Argument("weight", -64), "byte -64"),
        (Argument("input", 0, 5), "input 5"),
    ],
)
def test_pointers_outside_their_memory_are_refused(
    programs: ModuleType, argument: Argument, message: str
) -> None:
    port = (Port("x", programs.MATRIX),)
    call = KernelCall("add", (argument, Argument("output")))
    with pytest.raises(BuildError, match=message):
        verify_plan(ExecutionPlan(port, port, (call,), 4096, 4096))


def test_an_output_that_nothing_writes_is_refused(programs: ModuleType) -> None:
    port = (Port("x", programs.MATRIX),)
    with pytest.raises(BuildError, match="no step of the plan writes output 'x'"):
        verify_plan(ExecutionPlan(port, port, ()))
