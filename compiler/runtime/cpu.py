"""Which instructions a build needs, and whether this machine has them. Needs no LLVM."""

from __future__ import annotations

import functools
import platform
from pathlib import Path

from tunefarm.compiler.errors import TargetError
from tunefarm.compiler.host import may_use_tiles
from tunefarm.compiler.processors import ARM_V8, ARM_V82, NEEDED, RISCV64, WASM32, X86_64
from tunefarm.compiler.target import Target

# Feature sets by LLVM's names; Linux spells some of them differently. Only what code generation
# may use on its own is listed, and the tiles of AMX, not what takes another intrinsic (AES, …).
_V2 = frozenset({"sse3", "ssse3", "sse4.1", "sse4.2", "popcnt", "cx16"})
_V3 = _V2 | {"avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe"}
_V4 = _V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
_ICELAKE = _V4 | {
    "avx512ifma", "avx512vbmi", "avx512vbmi2", "avx512vnni", "avx512bitalg", "avx512vpopcntdq",
    "gfni",
}  # fmt: skip
_ZEN6 = _ICELAKE | {"avx512bf16", "avx512fp16", "avxvnni"}
_TILES = frozenset({"amx-tile", "amx-int8", "amx-bf16"})
_SAPPHIRE = _ZEN6 | _TILES
_ALDERLAKE = _V3 | {"avxvnni", "gfni"}
_BY_CPU = {
    "x86-64": frozenset[str](),
    "x86-64-v2": _V2,
    "x86-64-v4": _V4,
    "skylake-avx512": _V4,
    "cascadelake": _V4 | {"avx512vnni"},
    "cooperlake": _V4 | {"avx512vnni", "avx512bf16"},
    "cannonlake": _V4 | {"avx512ifma", "avx512vbmi"},
    "icelake-client": _ICELAKE,
    "icelake-server": _ICELAKE,
    "tigerlake": _ICELAKE | {"avx512vp2intersect"},
    "rocketlake": _ICELAKE,
    "sapphirerapids": _SAPPHIRE,
    "emeraldrapids": _SAPPHIRE,
    "graniterapids": _SAPPHIRE,
    "graniterapids-d": _SAPPHIRE,
    "diamondrapids": _SAPPHIRE,
    "znver4": _ICELAKE | {"avx512bf16"},
    "znver5": _ICELAKE | {"avx512bf16", "avxvnni", "avx512vp2intersect"},
    "znver6": _ZEN6,
    "alderlake": _ALDERLAKE,
    "raptorlake": _ALDERLAKE,
    "meteorlake": _ALDERLAKE,
    "gracemont": _ALDERLAKE,
    "arrowlake": _ALDERLAKE,
    "arrowlake-s": _ALDERLAKE,
    "lunarlake": _ALDERLAKE,
    "pantherlake": _ALDERLAKE,
    "sierraforest": _ALDERLAKE,
    "grandridge": _ALDERLAKE,
    "clearwaterforest": _ALDERLAKE,
}
_LSE = frozenset({"neon", "lse", "rcpc", "fullfp16"})
_FEW_ARM = {"thunderx2t99": frozenset({"neon", "lse"}), "a64fx": _LSE - {"rcpc"} | {"sve"}}
_LINUX_NAMES = {
    "neon": "asimd",
    "lse": "atomics",
    "rcpc": "lrcpc",
    "fullfp16": "asimdhp",
    "sse3": "pni",
    "sse4.1": "sse4_1",
    "sse4.2": "sse4_2",
    "bmi": "bmi1",
    "lzcnt": "abm",
    "avx512vbmi2": "avx512_vbmi2",
    "avx512vnni": "avx512_vnni",
    "avx512bitalg": "avx512_bitalg",
    "avx512vpopcntdq": "avx512_vpopcntdq",
    "avx512bf16": "avx512_bf16",
    "avx512fp16": "avx512_fp16",
    "avx512vp2intersect": "avx512_vp2intersect",
    "avxvnni": "avx_vnni",
    "amx-tile": "amx_tile",
    "amx-int8": "amx_int8",
    "amx-bf16": "amx_bf16",
}


@functools.lru_cache(maxsize=64)
def required_features(target: Target, feature_text: str = "") -> tuple[str, ...]:
    """The features, by LLVM's names, that code for ``target`` may use.

    ``feature_text`` is LLVM's feature string of the build: ``-name`` removes, ``+name`` of a
    feature listed for some CPU adds, and so does ``+sse4a``, which no code uses unasked.
    """
    if target.isa is not X86_64:
        return _of_others(target)
    needed = set(_BY_CPU.get(target.mcpu, _V3))
    known = _SAPPHIRE | {"avx512vp2intersect", "sse4a"}
    for word in feature_text.split(","):
        if word.startswith("-"):
            needed -= {word[1:], *(name for name, base in NEEDED.items() if base == word[1:])}
        elif word[1:] in known:
            needed.add(word[1:])
    return tuple(sorted(needed))


def _of_others(target: Target) -> tuple[str, ...]:
    """Those of AArch64, RISC-V and WebAssembly."""
    if target.isa is RISCV64:
        return ("v",)
    if target.isa is WASM32:
        return ("simd128",)
    newer = _LSE if target.mcpu in ARM_V82 else _LSE | {"sve"}
    base = frozenset({"neon"}) if target.mcpu in ARM_V8 else newer
    return tuple(sorted(_FEW_ARM.get(target.mcpu, base)))


def check_features(features: tuple[str, ...], what: str) -> None:
    """Raise TargetError, in one sentence, if this machine lacks one of ``features``."""
    missing = missing_features(features)
    if missing:
        raise TargetError(
            f"{what} needs a CPU with {', '.join(missing)}, which this machine lacks; "
            "build it for this machine's target"
        )


def missing_features(features: tuple[str, ...]) -> list[str]:
    """Those of the features that this machine lacks, or does not give this process, which is asked
    for them; none where the system does not tell."""
    have = _host_features()
    missing = [name for name in features if have and _LINUX_NAMES.get(name, name) not in have]
    refused = "amx-tile" in features and not missing and not may_use_tiles()
    return ["amx-tile"] if refused else missing


def check_machine(machine: str, what: str) -> None:
    """Raise TargetError if this machine's instruction set is not ``machine`` (as in a triple)."""
    here = host_machine()
    if here != machine:
        raise TargetError(
            f"{what} is for {machine}, and this machine is {here}; run it on a machine of that kind"
        )


@functools.cache
def host_machine() -> str:
    """This machine's instruction set, as a triple begins."""
    return platform.machine().lower().replace("amd64", "x86_64").replace("arm64", "aarch64")


@functools.cache
def _host_features() -> frozenset[str]:
    """Linux's names of this CPU's features; empty where the system does not tell."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return frozenset()
    for line in text.splitlines():
        if line.startswith(("flags", "Features")):
            return frozenset(line.partition(":")[2].split())
    return frozenset()
