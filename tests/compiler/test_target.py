"""Target strings: what they are rewritten to, what they say of a processor, what is refused."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from tunefarm.compiler.errors import TargetError
from tunefarm.compiler.processors import CPUS, ISAS, llvm_features, named_by_features
from tunefarm.compiler.runtime import cpu
from tunefarm.compiler.runtime.cpu import missing_features, required_features
from tunefarm.compiler.target import Target, machine_words

ARM, RISCV = "-mtriple=aarch64-linux-gnu", "-mtriple=riscv64-linux-gnu"


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("llvm --num-cores=2 -mcpu=znver5", "llvm -mcpu=znver5 -num-cores=2"),
        ("llvm -mtriple=x86_64-pc-linux-gnu -mcpu=haswell", "llvm -mcpu=haswell"),
        ("llvm -mcpu=neoverse-n1", f"llvm -mcpu=neoverse-n1 {ARM}"),
        ("llvm -mtriple=arm64-unknown-linux-musl", f"llvm {ARM}"),
        ("llvm -mcpu=spacemit-x60", f"llvm -mcpu=spacemit-x60 {RISCV}"),
        ("llvm -mtriple=wasm32-wasi", "llvm -mtriple=wasm32-unknown-unknown"),
    ],
)
def test_equal_targets_have_one_text(text: str, canonical: str) -> None:
    assert Target(text).text == canonical
    assert Target(canonical) == Target(text)


@pytest.mark.parametrize(
    ("text", "vector_bytes", "registers", "fma"),
    [
        ("llvm -mcpu=znver5", 64, 32, True),
        ("llvm -mcpu=haswell", 32, 16, True),
        ("llvm -mcpu=x86-64", 16, 16, False),
        ("llvm -mcpu=cortex-a72", 16, 30, True),
        (f"llvm {RISCV}", 16, 32, True),
        (f"llvm {RISCV} -mattr=+zvl256b", 32, 32, True),
        (f"llvm {RISCV} -mattr=+zvl256b,+zvl512b", 64, 32, True),
        ("llvm -mcpu=sifive-x280", 64, 32, True),
        ("llvm -mtriple=wasm32-wasi", 16, 16, False),
        ("llvm -mtriple=wasm32-wasi -mattr=+relaxed-simd", 16, 16, True),
    ],
)
def test_vectors(text: str, vector_bytes: int, registers: int, fma: bool) -> None:
    target = Target(text)
    assert target.vector_bytes == vector_bytes
    assert target.lanes("float32") == vector_bytes // 4
    assert target.vector_registers == registers
    assert target.has_fma is fma


def test_memory_brings_more_beside_products_that_take_longer() -> None:
    """Zen 4 starts one multiply-add of 16 lanes a cycle, Zen 5 two."""
    zen4, zen5 = Target("llvm -mcpu=znver4 -num-cores=1"), Target("llvm -mcpu=znver5 -num-cores=1")
    assert (zen4.beside_products(4.0), zen5.beside_products(4.0)) == (8.0, 4.0)
    assert zen4.stream_bytes > zen5.stream_bytes  # of a slower memory


def test_lanes_are_chosen_by_masks_where_the_processor_does() -> None:
    known = {"znver5": (1, 2, 4, 8), "haswell": (4, 8), "znver3": (), "neoverse-n1": ()}
    for mcpu, sizes in known.items():
        target = Target(f"llvm -mcpu={mcpu}")
        assert tuple(n for n in (1, 2, 4, 8) if target.has_masks(n)) == sizes, mcpu
    assert Target(f"llvm {RISCV}").has_masks(1)


@pytest.mark.parametrize("name", ISAS)
def test_caches_grow_outwards(name: str) -> None:
    triple = ISAS[name].triple
    for mcpu in CPUS[name]:
        target = Target(f"llvm -mtriple={triple} -mcpu={mcpu}")
        assert target.isa is ISAS[name]
        assert target.l1_bytes < target.l2_bytes < target.l3_bytes, mcpu


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("llvm -mcpu=generic", r"several kinds; add -mtriple=aarch64-linux-gnu or -mtriple=wasm32"),
        ("llvm -mcpu=pwr10", "no code is made for CPU 'pwr10'; there is code for x86-64, AArch64"),
        ("llvm -mcpu=sifive-u74", "'sifive-u74' has no vector extension"),
        (f"llvm {ARM} -mcpu=haswell", "CPU 'haswell' is x86-64, and the triple says AArch64"),
        (f"llvm {ARM} -mcpu=neoverse-n9", "did you mean neoverse-n"),
        ("llvm -mtriple=aarch64-apple-darwin", "no code is made for -mtriple=aarch64-apple-darwin"),
        (
            f"llvm {RISCV} -mattr=+zba,-v",
            "code for generic-rv64 uses v, and -mattr=-v takes it away",
        ),
        (f"llvm {RISCV} -mattr=+zvl7b", "RISC-V has no feature 'zvl7b' in LLVM; did you mean zvl"),
        ("llvm -mcpu=znver4 -mattr=-avx512f", "code for znver4 uses avx512f, and -mattr=-"),
        (
            "llvm -mcpu=haswell -mattr=+sse3,-fma",
            "code for haswell uses fma, and -mattr=-fma takes",
        ),
        ("llvm -mcpu=znver5 -mattr=avx512vnni", r"write \+NAME for a feature"),
        ("llvm -mattr=+avx2,", r"write \+NAME for a feature"),
        ("llvm -arch=sm_90a", "unknown target option -arch"),
    ],
)
def test_what_is_refused(text: str, message: str) -> None:
    with pytest.raises(TargetError, match=message):
        Target(text)


def test_a_feature_may_be_taken_away() -> None:
    assert Target("llvm -mcpu=znver4").has("avx512vnni")
    assert not Target("llvm -mcpu=znver4 -mattr=-avx512vnni").has("avx512vnni")
    Target("llvm -mcpu=haswell -mattr=-avx512f")  # which it has not


LIST_FEATURES = """
import sys
from llvmlite import binding
binding.initialize_all_targets()
binding.Target.from_triple(sys.argv[1]).create_target_machine(features="+help")
"""


@pytest.mark.parametrize("name", ISAS)
def test_features_are_those_of_llvm(name: str) -> None:
    command = [sys.executable, "-c", LIST_FEATURES, ISAS[name].triple]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    _, _, features = told.partition("Available features for this target:")
    assert llvm_features()[name] == set(re.findall(r"^ +(\S+) +- ", features, re.M))


@pytest.mark.parametrize(
    ("machine", "cpu", "text"),
    [
        ("x86_64", "znver5", "llvm -mcpu=znver5"),
        ("aarch64", "neoverse-v2", f"llvm -mcpu=neoverse-v2 {ARM}"),
        ("aarch64", "cortex-of-tomorrow", f"llvm -mcpu=generic {ARM}"),
        ("riscv64", "spacemit-x60", f"llvm -mcpu=spacemit-x60 {RISCV}"),
    ],
)
def test_machines_are_targets(machine: str, cpu: str, text: str) -> None:
    assert Target(f"llvm {machine_words(machine, cpu)}").text == text


@pytest.mark.parametrize(
    ("shown", "features", "named"),
    [
        ("rocketlake", {"avx512f", "amx-tile", "prefetchi"}, "graniterapids"),
        ("icelake-server", {"avx512f", "amx-tile"}, "sapphirerapids"),
        ("emeraldrapids", {"avx512f", "amx-tile"}, "emeraldrapids"),
        ("rocketlake", {"avx512f"}, "rocketlake"),
        ("znver5", {"avx512f", "prefetchi"}, "znver5"),
    ],
)
def test_guests_are_named_by_what_they_can_do(shown: str, features: set[str], named: str) -> None:
    assert named_by_features(shown, features) == named


def test_tiles_that_linux_refuses_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "_host_features", lambda: frozenset({"amx_tile"}))
    monkeypatch.setattr(cpu, "may_use_tiles", lambda: False)
    assert missing_features(("amx-tile",)) == ["amx-tile"]
    with pytest.raises(TargetError, match="code needs a CPU with amx-tile"):
        cpu.check_features(("amx-tile",), "code")
    assert "amx-tile" in required_features(Target("llvm -mcpu=sapphirerapids"))
    without = Target("llvm -mcpu=sapphirerapids -mattr=-amx-tile")
    assert not [f for f in required_features(without, "-amx-tile") if f.startswith("amx")]
    assert not without.has("amx-int8")


@pytest.mark.parametrize("text", ["llvm -mcpu=neoverse-n1", f"llvm {ARM}", f"llvm {RISCV}"])
def test_this_machine_lacks_what_another_kind_has(text: str) -> None:
    target = Target(text)
    if target.isa is Target.host().isa:
        pytest.skip("this machine is of that kind")
    assert missing_features(required_features(target))
