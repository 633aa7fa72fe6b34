"""Instruction sets and processors by LLVM's names: what code for them may use, and their caches.

Sources: LLVM's tables of processors, the vendors' optimisation manuals.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Isa:
    """An instruction set. ``triple`` is LLVM's, and ``spelled`` ours; ``cpu`` is the processor of
    a target that names none; ``features`` are LLVM's, beside those of the processor.

    ``vector_bytes`` and ``vector_registers`` hold where the processor's name does not say more.
    """

    name: str
    people: str
    triple: str
    spelled: str
    cpu: str
    vector_bytes: int
    vector_registers: int
    features: str = ""
    abi: str = ""


# LLVM would use SSE4a, which only AMD has, in a shuffle here and there; others are as short.
X86_64 = Isa("x86_64", "x86-64", "x86_64-unknown-linux-gnu", "", "x86-64-v3", 16, 16,
             "-prefer-256-bit,-sse4a")  # fmt: skip
# Two of 32 are left for operands, which no instruction takes from memory.
AARCH64 = Isa("aarch64", "AArch64", "aarch64-unknown-linux-gnu", "aarch64-linux-gnu", "generic",
              16, 30)  # fmt: skip
RISCV64 = Isa("riscv64", "RISC-V", "riscv64-unknown-linux-gnu", "riscv64-linux-gnu",
              "generic-rv64", 16, 32, "+m,+a,+f,+d,+c,+v", "lp64d")  # fmt: skip
WASM32 = Isa("wasm32", "WebAssembly", "wasm32-unknown-unknown", "wasm32-unknown-unknown",
             "generic", 16, 16, "+simd128")  # fmt: skip
# A thread loads at most 16 bytes at once, and has 255 registers of 4 bytes.
NVPTX64 = Isa("nvptx64", "NVIDIA GPUs", "nvptx64-nvidia-cuda", "", "sm_80", 16, 63)
ISAS = {isa.name: isa for isa in (X86_64, AARCH64, RISCV64, WASM32)}

AVX512 = frozenset({
    "znver4", "znver5", "skylake-avx512", "cascadelake", "cooperlake", "cannonlake",
    "icelake-client", "icelake-server", "tigerlake", "rocketlake", "sapphirerapids",
    "emeraldrapids", "graniterapids", "graniterapids-d", "diamondrapids", "x86-64-v4",
})  # fmt: skip
AVX2 = frozenset({
    "haswell", "broadwell", "skylake", "alderlake", "raptorlake", "meteorlake", "arrowlake",
    "arrowlake-s", "lunarlake", "pantherlake", "sierraforest", "grandridge", "gracemont",
    "clearwaterforest", "znver1", "znver2", "znver3", "x86-64-v3",
})  # fmt: skip
AMX = frozenset({
    "sapphirerapids", "emeraldrapids", "graniterapids", "graniterapids-d", "diamondrapids",
})  # fmt: skip
_NO_VNNI = frozenset({"skylake-avx512", "cannonlake", "x86-64-v4"})

# Names of processors without fp16 arithmetic and dot products (Armv8.0), with them (8.2), and
# with SVE beside NEON, whose registers are as wide on all but one of them.
ARM_V8 = frozenset({
    "generic", "cortex-a35", "cortex-a53", "cortex-a57", "cortex-a72", "cortex-a73",
    "thunderx2t99",
})  # fmt: skip
ARM_V82 = frozenset({
    "cortex-a55", "cortex-a75", "cortex-a76", "cortex-a77", "cortex-a78", "cortex-x1",
    "neoverse-n1", "ampere1", "ampere1a", "apple-m1", "apple-m2", "apple-m3", "oryon-1",
})  # fmt: skip
ARM_SVE = frozenset({
    "a64fx", "cortex-a510", "cortex-a520", "cortex-a710", "cortex-a715", "cortex-a720",
    "cortex-x2", "cortex-x3", "cortex-x4", "neoverse-n2", "neoverse-n3", "neoverse-v1",
    "neoverse-v2", "neoverse-v3", "grace", "cobalt-100",
})  # fmt: skip

# Bits of a vector register of processors with the RISC-V vector extension.
RISCV_VECTOR_BITS: Mapping[str, int] = {
    "generic-rv64": 128,
    "sifive-p670": 128,
    "sifive-x280": 512,
    "spacemit-x60": 256,
    "tt-ascalon-d8": 256,
    "xiangshan-kunminghu": 128,
}

CPUS: Mapping[str, frozenset[str]] = {
    "x86_64": AVX512 | AVX2 | {"x86-64", "x86-64-v2"},
    "aarch64": ARM_V8 | ARM_V82 | ARM_SVE,
    "riscv64": frozenset(RISCV_VECTOR_BITS),
    "wasm32": frozenset({"generic"}),
}

# Features that code asks for by name, and the processors that have them.
FEATURES: Mapping[str, frozenset[str]] = {
    "avx2": AVX512 | AVX2,
    "avx512bw": AVX512,
    "avx512vnni": AVX512 - _NO_VNNI,
    "avx512bf16": frozenset({
        "cooperlake", "sapphirerapids", "emeraldrapids", "graniterapids", "graniterapids-d",
        "diamondrapids", "znver4", "znver5",
    }),
    "avxvnni": frozenset({
        "alderlake", "raptorlake", "meteorlake", "arrowlake", "arrowlake-s", "lunarlake",
        "pantherlake", "sierraforest", "grandridge", "gracemont", "clearwaterforest",
    }),
    "avx512fp16": AMX,
    "amx-int8": AMX,
    "amx-bf16": AMX,
    "zvfhmin": frozenset({"sifive-x280", "spacemit-x60", "tt-ascalon-d8"}),
}  # fmt: skip

# What a feature is nothing without.
NEEDED: Mapping[str, str] = {"amx-int8": "amx-tile", "amx-bf16": "amx-tile"}

# Data caches in bytes of processors that differ from the defaults.
CACHES: Mapping[str, Mapping[str, int]] = {
    "znver5": {"l1": 48 << 10, "l2": 1 << 20, "l3": 32 << 20},
    "znver4": {"l1": 32 << 10, "l2": 1 << 20, "l3": 32 << 20},
    "znver3": {"l1": 32 << 10, "l2": 512 << 10, "l3": 32 << 20},
    "znver1": {"l1": 32 << 10, "l2": 512 << 10, "l3": 8 << 20},
    "sapphirerapids": {"l1": 48 << 10, "l2": 2 << 20, "l3": 32 << 20},
    "emeraldrapids": {"l1": 48 << 10, "l2": 2 << 20, "l3": 32 << 20},
    "graniterapids": {"l1": 48 << 10, "l2": 2 << 20, "l3": 32 << 20},
    "graniterapids-d": {"l1": 48 << 10, "l2": 2 << 20, "l3": 32 << 20},
    "icelake-server": {"l1": 48 << 10, "l2": 1280 << 10, "l3": 32 << 20},
    "skylake-avx512": {"l1": 32 << 10, "l2": 1 << 20, "l3": 16 << 20},
    "cascadelake": {"l1": 32 << 10, "l2": 1 << 20, "l3": 16 << 20},
    "haswell": {"l1": 32 << 10, "l2": 256 << 10, "l3": 8 << 20},
    "broadwell": {"l1": 32 << 10, "l2": 256 << 10, "l3": 8 << 20},
    "skylake": {"l1": 32 << 10, "l2": 256 << 10, "l3": 8 << 20},
    "alderlake": {"l1": 48 << 10, "l2": 1280 << 10, "l3": 24 << 20},
    "cortex-a53": {"l1": 32 << 10, "l2": 256 << 10, "l3": 1 << 20},
    "cortex-a72": {"l1": 32 << 10, "l2": 512 << 10, "l3": 2 << 20},
    "cortex-a76": {"l1": 64 << 10, "l2": 512 << 10, "l3": 2 << 20},
    "cortex-a78": {"l1": 64 << 10, "l2": 512 << 10, "l3": 4 << 20},
    "neoverse-n1": {"l1": 64 << 10, "l2": 1 << 20, "l3": 32 << 20},
    "neoverse-n2": {"l1": 64 << 10, "l2": 1 << 20, "l3": 32 << 20},
    "neoverse-v1": {"l1": 64 << 10, "l2": 1 << 20, "l3": 32 << 20},
    "neoverse-v2": {"l1": 64 << 10, "l2": 2 << 20, "l3": 32 << 20},
    "grace": {"l1": 64 << 10, "l2": 1 << 20, "l3": 114 << 20},
    "ampere1": {"l1": 64 << 10, "l2": 2 << 20, "l3": 64 << 20},
    "apple-m1": {"l1": 128 << 10, "l2": 3 << 20, "l3": 8 << 20},
    "apple-m2": {"l1": 128 << 10, "l2": 4 << 20, "l3": 8 << 20},
    "spacemit-x60": {"l1": 32 << 10, "l2": 128 << 10, "l3": 512 << 10},
    "generic-rv64": {"l1": 32 << 10, "l2": 256 << 10, "l3": 2 << 20},
}
DEFAULT_CACHES: Mapping[str, int] = {"l1": 32 << 10, "l2": 512 << 10, "l3": 16 << 20}

# The share of the third level that keeps weights: what else a model reads takes the rest, and other
# guests of a server theirs. Of 32 MB a Zen 3 read 8 at 58 GB/s, 16 at 40, 24 at 27 and 32 at 25,
# memory's rate (one core of a virtual machine).
KEPT_SHARES: Mapping[str, float] = {"znver3": 0.5}
DEFAULT_KEPT_SHARE = 0.75

# Processors that start one multiply-add of their longest vectors in a cycle, in two units at once.
ONE_MULTIPLY_ADD = frozenset({
    "znver4", "znver1", "cannonlake", "icelake-client", "tigerlake", "rocketlake",
})  # fmt: skip

# Functions that processors with AVX-512 look up in tables, which registers hold: both where
# multiplications wait for each other while permutations do not; erf where four of these take as
# long as eight of its twenty multiply-adds (GELU takes 0.51 × the time on a Zen 5; exp would take
# 0.9 ×, but 1.4 behind depthwise tiles, which fill the registers), or fill half of the units that
# multiply (RepViT-M1 takes 0.94 × the time on an Emerald Rapids, ConvNeXt-atto 0.95; exp nothing
# sure; those after it were not timed).
QUICK_TABLES: Mapping[str, frozenset[str]] = {
    "znver4": frozenset({"exp", "erf"}),
    "znver5": frozenset({"erf"}),
    "emeraldrapids": frozenset({"erf"}),
    "sapphirerapids": frozenset({"erf"}),  # the same cores
}

# Processors with units that add vectors beside those that multiply them.
ADDS_APART = frozenset({"znver1", "znver2", "znver3", "znver4", "znver5"})

# Processors whose cores read what their second cache cannot hold from the third nearly as fast as
# they multiply it (of a Zen 3 the second one is small).
NEAR_LAST_CACHE = frozenset({"znver4", "znver5"})

# Processors of Intel's whose cores take lines from one another, and from the last cache, over a
# mesh. In bytes a cycle a core of an Emerald Rapids reads 50 from its second cache, 10.5 from the
# last one and 7.6 of what another core has written; it writes 5.8 over what that one holds.
MESHES = AMX - {"diamondrapids"}

# Places that hints ask for in turn there. Line after line memory gives one core 11 to 15 GB/s and
# two 16 to 23, from four places at once 16 and 31; the last cache gives one 11 to 15, and 26
# (Emerald Rapids).
MESH_STREAMS = 4

# Bytes a cycle that hints bring from memory: of one core alone, and of all (measured on two).
MEMORY_STREAMS: Mapping[str, tuple[float, float]] = {
    "emeraldrapids": (5.0, 9.5),
    "sapphirerapids": (5.0, 9.5),  # the same cores
    "graniterapids": (5.0, 9.5),  # as these, not measured
    "graniterapids-d": (5.0, 9.5),
    "znver5": (9.5, 11.5),
    "znver4": (6.0, 10.0),
    "znver3": (6.5, 11.0),
}
DEFAULT_STREAM = 6.0  # of each core

LAST_CACHE_STREAM = 12.0  # bytes of weights a cycle that a core gets from the last cache

# The same of weights that its second cache could not keep, which it reads again for further rows.
MESH_REREAD_STREAM = 8.0

# Cores that read the same weights from memory at once help each other: what each further one of
# them takes, of the time of one.
MESH_REREAD_SHARE = 0.5

# Bytes a cycle of what one core writes over another's lines and that one then reads.
MESH_EXCHANGE_STREAM = 3.3

# The share that is still seen of the shorter one of multiply-adds and weights that come meanwhile.
SEEN_SHARE, MESH_SEEN_SHARE = 0.1, 0.5


def named_by_features(cpu: str, features: Collection[str]) -> str:
    """LLVM's name of an x86-64 processor that LLVM calls ``cpu`` by its number and that has these
    features. Virtual machines may show the number of another model: one of Rocket Lake beside the
    tiles of a Granite Rapids is known."""
    if "amx-tile" not in features or cpu in AMX:
        return cpu
    return "graniterapids" if "prefetchi" in features else "sapphirerapids"


def vectors_of(isa: Isa, cpu: str) -> frozenset[str]:
    """LLVM's names of the vector extensions whose instructions code for a processor has."""
    avx2 = {"avx", "avx2", "fma", "f16c"} if cpu in AVX2 | AVX512 else set()
    avx512 = {"avx512f"} if cpu in AVX512 else set()
    return frozenset(avx2 | avx512 | ({"v"} if isa is RISCV64 else set()))


@functools.cache
def llvm_features() -> Mapping[str, frozenset[str]]:
    """All features that LLVM knows, by the name of the instruction set."""
    text = Path(__file__).with_name("llvm_features.txt").read_text()
    _, *paragraphs = text.split("\n\n")
    named = (paragraph.partition(":") for paragraph in paragraphs)
    return {isa: frozenset(names.split()) for isa, _, names in named}
