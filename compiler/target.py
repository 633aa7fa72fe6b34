"""Targets: what code is generated for, with a canonical string that keys the database.

Target("llvm -mcpu=znver5 -num-cores=2")      Target("sim")      Target.host()
"""

from __future__ import annotations

import difflib
import functools
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import entry_points

from tunefarm.compiler.errors import TargetError

# Data caches in bytes and FMA units of CPUs that behave differently from the default of their
# vector width. Sources: vendors' optimisation manuals; measured where facts say so.
_CPU_FACTS: Mapping[str, Mapping[str, int]] = {
    "znver5": {"l1": 48 << 10, "l2": 1 << 20, "l3": 32 << 20},
    "znver4": {"l1": 32 << 10, "l2": 1 << 20, "l3": 32 << 20},
    "sapphirerapids": {"l1": 48 << 10, "l2": 2 << 20, "l3": 32 << 20},
    "emeraldrapids": {"l1": 48 << 10, "l2": 2 << 20, "l3": 32 << 20},
    "graniterapids": {"l1": 48 << 10, "l2": 2 << 20, "l3": 32 << 20},
    "icelake-server": {"l1": 48 << 10, "l2": 1280 << 10, "l3": 32 << 20},
    "skylake-avx512": {"l1": 32 << 10, "l2": 1 << 20, "l3": 16 << 20},
    "cascadelake": {"l1": 32 << 10, "l2": 1 << 20, "l3": 16 << 20},
}
_AVX512 = frozenset({
    "znver4", "znver5", "skylake-avx512", "cascadelake", "cooperlake", "cannonlake",
    "icelake-client", "icelake-server", "tigerlake", "rocketlake", "sapphirerapids",
    "emeraldrapids", "graniterapids", "graniterapids-d", "diamondrapids", "x86-64-v4",
})  # fmt: skip
_NO_VNNI = frozenset({"skylake-avx512", "cannonlake", "x86-64-v4"})
_FEATURES = {
    "avx512vnni": _AVX512 - _NO_VNNI,
    "avx512bf16": frozenset({
        "cooperlake", "sapphirerapids", "emeraldrapids", "graniterapids", "graniterapids-d",
        "diamondrapids", "znver4", "znver5",
    }),
}  # fmt: skip
_AVX2 = frozenset({
    "haswell", "broadwell", "skylake", "alderlake", "raptorlake", "meteorlake", "arrowlake",
    "arrowlake-s", "lunarlake", "pantherlake", "sierraforest", "grandridge", "gracemont",
    "clearwaterforest", "znver1", "znver2", "znver3", "x86-64-v3",
})  # fmt: skip
CPUS = _AVX512 | _AVX2 | {"x86-64", "x86-64-v2"}
_FOREIGN_CPU = re.compile(
    r"cortex|neoverse|apple|a64fx|ampere|thunderx|exynos|kryo|falkor|oryon|grace|cyclone|arm|"
    r"generic-?rv|rv(32|64)|rocket-rv|sifive|spacemit|veyron|ppc|pwr|power|z1[0-9]$|mips|loongson|la[46]64"
)  # beginnings of the names that LLVM gives processors of other makers
_TEST_KINDS = frozenset({"sim"})
_OPTIONS = ("mcpu", "num-cores", "mattr", "arch", "precision")
_PRECISIONS = ("strict",)


@dataclass(frozen=True, slots=True)
class Target:
    """A target string, parsed. Equal canonical strings mean equal code.

    ``kind`` is "llvm" or the name of a plug-in (entry point group ``tunefarm.targets``).
    Raises TargetError for what cannot be understood.
    """

    text: str
    kind: str = field(init=False)
    options: Mapping[str, str] = field(init=False, compare=False, hash=False)

    def __post_init__(self) -> None:
        words = self.text.split()
        if not words:
            raise TargetError('the target is empty; write for instance "llvm -mcpu=znver5"')
        options: dict[str, str] = {}
        for word in words[1:]:
            match = re.fullmatch(r"--?([\w-]+)=(\S+)", word)
            if match is None:
                raise TargetError(f"target option {word!r} is not of the form -name=value")
            options[match[1]] = match[2]
        kind = words[0]
        if kind == "llvm":
            _check_llvm_options(options)
        elif kind not in plugin_kinds():
            known = ", ".join(sorted({"llvm", *plugin_kinds()} - _TEST_KINDS))
            raise TargetError(f"unknown target kind {kind!r}; known kinds: {known}")
        canonical = " ".join([kind, *(f"-{k}={options[k]}" for k in sorted(options))])
        object.__setattr__(self, "text", canonical)
        object.__setattr__(self, "kind", kind)
        object.__setattr__(self, "options", options)

    def __str__(self) -> str:
        return self.text

    @staticmethod
    def host(num_cores: int | None = None) -> Target:
        """This machine: its CPU's LLVM name and the cores this process may use."""
        from llvmlite import binding

        cores = num_cores or len(os.sched_getaffinity(0))
        return Target(f"llvm -mcpu={binding.get_host_cpu_name()} -num-cores={cores}")

    @property
    def mcpu(self) -> str:
        return self.options.get("mcpu", "x86-64-v3")

    @property
    def strict(self) -> bool:
        """True if sums may be reordered but not computed by methods that add error (Winograd)."""
        return self.options.get("precision") == "strict"

    @property
    def num_cores(self) -> int:
        return int(self.options.get("num-cores", "1"))

    @property
    def has_avx512(self) -> bool:
        return self.mcpu in _AVX512

    def has(self, feature: str) -> bool:
        """True if the CPU has what LLVM calls ``feature``, or ``-mattr=+feature`` says so."""
        given = f"+{feature}" in self.options.get("mattr", "").split(",")
        return given or self.mcpu in _FEATURES.get(feature, frozenset())

    @property
    def has_fma(self) -> bool:
        """True if the processor multiplies and adds with one rounding."""
        return self.has_avx512 or self.mcpu in _AVX2

    @property
    def vector_bytes(self) -> int:
        """Bytes in one vector register."""
        return 64 if self.has_avx512 else 32 if self.mcpu in _AVX2 else 16

    @property
    def vector_registers(self) -> int:
        return 32 if self.has_avx512 else 16

    def lanes(self, dtype: str) -> int:
        """Elements of ``dtype`` in one vector register."""
        return self.vector_bytes // dtype_bytes(dtype)

    @property
    def l1_bytes(self) -> int:
        return self._fact("l1", 32 << 10)

    @property
    def l2_bytes(self) -> int:
        return self._fact("l2", 512 << 10)

    @property
    def l3_bytes(self) -> int:
        return self._fact("l3", 16 << 20)

    def _fact(self, name: str, default: int) -> int:
        return _CPU_FACTS.get(self.mcpu, {}).get(name, default)


def dtype_bytes(dtype: str) -> int:
    """Bytes of one element; a bool is stored in one byte."""
    bits = re.search(r"\d+", dtype)
    return 1 if bits is None else max(1, int(bits[0]) // 8)


@functools.cache
def plugin_kinds() -> frozenset[str]:
    return frozenset(p.name for p in entry_points(group="tunefarm.targets"))


def _check_llvm_options(options: Mapping[str, str]) -> None:
    for name in options:
        if name not in _OPTIONS:
            raise TargetError(f"unknown target option -{name}; known: {', '.join(_OPTIONS)}")
    cores = options.get("num-cores", "1")
    if not cores.isdigit() or int(cores) < 1:
        raise TargetError(f"-num-cores={cores} is not a positive whole number")
    precision = options.get("precision")
    if precision is not None and precision not in _PRECISIONS:
        raise TargetError(f"-precision={precision} is unknown; known: {', '.join(_PRECISIONS)}")
    mcpu = options.get("mcpu")
    if mcpu is not None and mcpu not in CPUS:
        raise TargetError(_unknown_cpu(mcpu))


def _unknown_cpu(name: str) -> str:
    """Why there is no such CPU, and what may have been meant."""
    if _FOREIGN_CPU.match(name):
        return f"CPU {name!r} is not x86-64, and only x86-64 code is made today"
    close = difflib.get_close_matches(name.lower(), sorted(CPUS), n=3)
    meant = f"did you mean {' or '.join(close)}? Others" if close else "LLVM's names are meant"
    few = [cpu for cpu in ("znver5", "sapphirerapids", "haswell", "x86-64-v3") if cpu not in close]
    return f"unknown CPU {name!r}; {meant}: {', '.join(few)}, …"
