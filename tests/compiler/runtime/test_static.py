"""Models as objects, archives and libraries for this CPU and for others."""

from __future__ import annotations

import shutil
import struct
import subprocess
from pathlib import Path
from typing import Any

import cross_harness as cross
import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from tunefarm.compiler.errors import BuildError, TargetError
from tunefarm.compiler.runtime.elf import EHDR, RELA, SHDR, SYM
from tunefarm.compiler.runtime.module import Module, load_module
from tunefarm.compiler.runtime.plan import KernelCall
from tunefarm.compiler.target import Target

import tunefarm

AARCH64 = Target("llvm -mtriple=aarch64-linux-gnu -mcpu=neoverse-n1 -num-cores=4")
STRICT = Target(f"{AARCH64} -precision=strict")
RISCV64 = Target("llvm -mtriple=riscv64-linux-gnu -mattr=+zvl256b -num-cores=4")
WASM32 = Target("llvm -mtriple=wasm32-unknown-unknown")
SHAPE = (1, 3, 8, 8)


def small_model() -> onnx.ModelProto:
    """Two convolutions, a ReLU, a mean and a product, with weights; the second one's tiles are in a
    workspace, where sums need not be direct."""
    rng = np.random.default_rng(0)
    weights = {
        "w": rng.standard_normal((64, 3, 3, 3), np.float32),
        "b": rng.standard_normal(64, np.float32),
        "v": rng.standard_normal((64, 64, 3, 3), np.float32) / 24,
        "m": rng.standard_normal((64, 10), np.float32),
    }
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("Conv", ["r", "v"], ["d"], pads=[1, 1, 1, 1]),
        helper.make_node("ReduceMean", ["d"], ["g"], axes=[2, 3], keepdims=0),
        helper.make_node("MatMul", ["g", "m"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, SHAPE)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (1, 10))],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=9)


def built(target: Target) -> Module:
    return tunefarm.build(tunefarm.from_onnx(small_model()), target)


def workspace_bytes(module: Module) -> int:
    calls = [step for step in module.plan.steps if isinstance(step, KernelCall)]
    return max(call.workspace.bytes for call in calls)


def example() -> NDArray[Any]:
    return np.random.default_rng(1).standard_normal(SHAPE, np.float32)


def expected() -> NDArray[Any]:
    """What this machine computes."""
    return built(Target.host(1)).run({"x": example()})["y"]


MAIN = """
#include <stdio.h>
#include "model.h"
static float x[192] __attribute__((aligned(64))), y[10] __attribute__((aligned(64)));
int main(void) {
  model_session session;
  const void *inputs[MODEL_INPUTS] = {x};
  void *outputs[MODEL_OUTPUTS] = {y};
  if (fread(x, sizeof x, 1, stdin) != 1 || model_start(&session, 2)) return 1;
  if (model_call(&session, inputs, outputs) || model_metadata()[0] != '{') return 2;
  model_stop(&session);
  return fwrite(y, sizeof y, 1, stdout) != 1;
}
"""


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
@pytest.mark.parametrize("name", ["model.o", "model.a"])
def test_a_c_program_links_it(name: str, tmp_path: Path) -> None:
    module = built(Target.host(2))
    assert workspace_bytes(module) > 0
    module.export_library(tmp_path / name)
    (tmp_path / "main.c").write_text(MAIN)
    flags = ["-Wall", "-Wextra", "-Werror", "-Wl,--fatal-warnings", "-pthread"]
    build = ["cc", *flags, "main.c", name, "-o", "main"]
    subprocess.run(build, cwd=tmp_path, check=True, timeout=60)
    done = subprocess.run(
        [str(tmp_path / "main")], input=example().tobytes(), capture_output=True, timeout=60
    )
    assert done.returncode == 0
    np.testing.assert_allclose(np.frombuffer(done.stdout, np.float32), expected()[0], 1e-4, 1e-5)


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_two_models_fit_into_one_program(tmp_path: Path) -> None:
    module = built(Target.host(1))
    for name in ("first", "second"):
        module.export_library(tmp_path / f"{name}.o")
    (tmp_path / "main.c").write_text(
        '#include "first.h"\n#include "second.h"\n'
        "int main(void) { return first_weights() == second_weights(); }\n"
    )
    build = ["cc", "main.c", "first.o", "second.o", "-pthread", "-o", "main"]
    subprocess.run(build, cwd=tmp_path, check=True, timeout=60)
    assert subprocess.run([str(tmp_path / "main")], timeout=60).returncode == 0


FREESTANDING = """
#include "model.h"
static struct {{ float x[192], y[16]; }} all __attribute__((aligned(64)));
#define memory ((char *)&all)
#define MEMORY_BYTES sizeof all
static char arena[MODEL_MEMORY_BYTES] __attribute__((aligned(64)));
void run(void) {{
  const void *inputs[] = {{all.x}};
  void *outputs[] = {{all.y}};
  model_run(0, arena, model_weights(), inputs, outputs);
}}
{start}
"""


@pytest.mark.parametrize(
    ("target", "name"),
    [(STRICT, "model.o"), (AARCH64, "model.a"), (RISCV64, "model.o"), (WASM32, "model.a")],
    ids=lambda v: v if isinstance(v, str) else v.isa.name,
)
def test_a_program_for_another_cpu_runs_it(target: Target, name: str, tmp_path: Path) -> None:
    module = built(target)
    assert (workspace_bytes(module) > 0) == (not target.strict)
    module.export_library(tmp_path / name)
    source = FREESTANDING.format(start=cross.start_of(target.isa.name))
    program = cross.link(target, [name], source, tmp_path)
    after = cross.execute(target, program, example().tobytes() + bytes(64))
    y = np.frombuffer(after, np.float32, 10, 768)
    np.testing.assert_allclose(y, expected()[0], 1e-4, 1e-5)


def test_vectors_that_are_too_short_are_refused(tmp_path: Path) -> None:
    """Code for registers of 512 bits, on 256: it tells, and leaves the outputs alone."""
    target = Target("llvm -mtriple=riscv64-linux-gnu -mattr=+zvl512b")
    built(target).export_library(tmp_path / "model.o")
    source = FREESTANDING.format(start=cross.start_of("riscv64"))
    source = source.replace("model_run(", "all.y[15] = model_run(")
    program = cross.link(target, ["model.o"], source, tmp_path)
    after = cross.execute(target, program, example().tobytes() + bytes(64))
    y = np.frombuffer(after, np.float32, 16, 768)
    np.testing.assert_array_equal(y, [0] * 15 + [1])


LOADER = """
static char memory[{size}] __attribute__((aligned(65536)));
#define MEMORY_BYTES sizeof memory
static long call_system(long number, long a, long b, long c);
void run(void) {{
  long i, *moved = (long *)(memory + {moved_at});
  const void *inputs[] = {{memory + {x_at}}};
  void *outputs[] = {{memory + {y_at}}};
  const void *(*weights)(void) = (void *)(memory + {weights});
  int (*model)(void *, void *, const void *, const void **, void **) = (void *)(memory + {run});
  for (i = 0; i < {moved}; i++, moved += 3) *(long *)(memory + moved[0]) = (long)memory + moved[2];
  call_system(226, (long)memory, sizeof memory, 7);
  model(0, memory + {arena_at}, weights(), inputs, outputs);
}}
{start}
"""


@pytest.mark.parametrize("target", [AARCH64, RISCV64], ids=lambda t: t.isa.name)
def test_a_library_for_another_cpu_is_relocated(target: Target, tmp_path: Path) -> None:
    """The emulated program does what a dynamic linker does: it moves addresses, and calls."""
    module = built(target)
    module.export_library(tmp_path / "model.so")
    library = (tmp_path / "model.so").read_bytes()
    symbols, (moved_at, moved) = dynamic_symbols(library), moved_places(library)
    memory = bytearray(library) + bytes(-len(library) % 64)
    places = {}
    for name, size in (("x", 768), ("y", 64), ("arena", module.plan.arena_bytes)):
        places[f"{name}_at"] = len(memory)
        memory += (example().tobytes() if name == "x" else bytes(size)) + bytes(-size % 64)
    source = LOADER.format(
        size=len(memory), moved_at=moved_at, moved=moved, **places, run=symbols["model_run"],
        weights=symbols["model_weights"], start=cross.start_of(target.isa.name),
    )  # fmt: skip
    program = cross.link(target, [], source, tmp_path)
    after = cross.execute(target, program, bytes(memory))
    y = np.frombuffer(after, np.float32, 10, places["y_at"])
    np.testing.assert_allclose(y, expected()[0], 1e-4, 1e-5)


def sections(library: bytes) -> list[tuple[int, ...]]:
    header = EHDR.unpack_from(library)
    return [SHDR.unpack_from(library, header[6] + i * SHDR.size) for i in range(header[12])]


def dynamic_symbols(library: bytes) -> dict[str, int]:
    """Addresses by name."""
    table = next(s for s in sections(library) if s[1] == 11)
    strings = sections(library)[table[6]][4]
    found = {}
    for at in range(table[4], table[4] + table[5], SYM.size):
        name, _, _, _, value, _ = SYM.unpack_from(library, at)
        start = strings + name
        found[library[start : library.index(0, start)].decode()] = value
    return found


def moved_places(library: bytes) -> tuple[int, int]:
    """Where the list of addresses to move begins, and its length; all are relative to the base."""
    table = next(s for s in sections(library) if s[1] == 4)
    relative = {AARCH64: 1027, RISCV64: 3}
    count = table[5] // RELA.size
    kinds = {RELA.unpack_from(library, table[4] + i * RELA.size)[1] for i in range(count)}
    assert kinds <= set(relative.values())
    return table[4], count


def test_a_module_for_another_kind_of_machine_is_shown_and_not_run(tmp_path: Path) -> None:
    module = built(AARCH64)
    assert "fmla" in module.get_source("asm")
    assert "define void" in module.get_source("llvm")
    assert "void" in module.get_source("c")
    wanted = f"code for {AARCH64} is for aarch64, and this machine is x86_64"
    with pytest.raises(TargetError, match=wanted):
        module.run({"x": example()})
    with pytest.raises(TargetError, match=wanted):
        module.time_evaluator()
    module.export_library(tmp_path / "model.so")
    with pytest.raises(TargetError, match=r"model.so is for aarch64, and this machine is x86_64"):
        load_module(tmp_path / "model.so")


def test_what_webassembly_cannot_be(tmp_path: Path) -> None:
    module = built(WASM32)
    with pytest.raises(BuildError, match=r"has no shared libraries here; write an archive \(.a\)"):
        module.export_library(tmp_path / "model.so")
    with pytest.raises(BuildError, match=r"two objects; write an archive: model.a"):
        module.export_library(tmp_path / "model.o")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "system"), [("m.dll", "Windows"), ("m.dylib", "macOS"), ("M.DLL", "Windows")]
)
def test_files_for_other_systems_are_not_made(tmp_path: Path, name: str, system: str) -> None:
    module = built(Target.host(1))
    wanted = f"{name} would be a file for {system}, .* export the model to .\\.so$"
    with pytest.raises(BuildError, match=wanted):
        module.export_library(tmp_path / name)
    assert list(tmp_path.iterdir()) == []
    module.export_library(tmp_path / "model.so")
    with pytest.raises(BuildError, match=wanted):
        load_module(tmp_path / "model.so").export_library(tmp_path / name)


def test_a_loaded_library_is_no_object(tmp_path: Path) -> None:
    built(Target.host(1)).export_library(tmp_path / "model.so")
    with pytest.raises(BuildError, match=r"is a shared library; build the model anew for model.o"):
        load_module(tmp_path / "model.so").export_library(tmp_path / "model.o")


def test_an_archive_lists_its_symbols(tmp_path: Path) -> None:
    built(AARCH64).export_library(tmp_path / "model.a")
    data = (tmp_path / "model.a").read_bytes()
    assert data.startswith(b"!<arch>\n/ ")
    count, first = struct.unpack_from(">2I", data, 68)
    names = data[68 + 4 + 4 * count :].split(b"\0", count)[:count]
    assert b"model_run" in names
    assert data[first : first + 8] == b"model.o/"
