"""Targets: what code is generated for, with a canonical string that keys the database.

Target("llvm -mcpu=znver5 -num-cores=2")      Target("sim")      Target.host()
Target("llvm -mtriple=aarch64-linux-gnu -mcpu=neoverse-n1 -num-cores=4")
Target("cuda -arch=sm_90a")

A triple stands in the string of every target that is not x86-64, with LLVM's usual spelling.
"""

from __future__ import annotations

import difflib
import functools
import os
import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import entry_points

from tunefarm.compiler.errors import TargetError
from tunefarm.compiler.gpu.archs import GPU_ARCHS, GpuArch
from tunefarm.compiler.host import llvm_cpu, may_use_tiles
from tunefarm.compiler.processors import (
    ADDS_APART,
    AMX,
    AVX2,
    AVX512,
    CACHES,
    CPUS,
    DEFAULT_CACHES,
    DEFAULT_KEPT_SHARE,
    DEFAULT_STREAM,
    FEATURES,
    ISAS,
    KEPT_SHARES,
    LAST_CACHE_STREAM,
    MEMORY_STREAMS,
    MESH_REREAD_SHARE,
    MESH_REREAD_STREAM,
    MESH_SEEN_SHARE,
    MESH_STREAMS,
    MESHES,
    NEAR_LAST_CACHE,
    NEEDED,
    NVPTX64,
    ONE_MULTIPLY_ADD,
    QUICK_TABLES,
    RISCV64,
    RISCV_VECTOR_BITS,
    SEEN_SHARE,
    WASM32,
    X86_64,
    Isa,
    llvm_features,
    vectors_of,
)

_FOREIGN_CPU = re.compile(
    r"ppc|pwr|power|z1[0-9]$|mips|loongson|la[46]64|sparc|arm(7|v7)|cortex-[mr]"
)  # beginnings of the names that LLVM gives processors that no code is made for
_RISCV_WITHOUT_VECTORS = re.compile(r"rocket-rv|generic-rv32|sifive-[esu]|rp2350|veyron")
_TRIPLE = re.compile(
    r"(x86_64|amd64|aarch64|arm64|riscv64|wasm32)(-(unknown|pc|none))?"
    r"-(linux(-(gnu|musl|android)\w*)?|wasi\w*|unknown)"
)
_ALIASES = {"amd64": "x86_64", "arm64": "aarch64"}
_EXAMPLES = {
    "x86_64": ("znver5", "sapphirerapids", "haswell", "x86-64-v3", "neoverse-n1"),
    "aarch64": ("neoverse-n1", "neoverse-v2", "cortex-a72", "apple-m1", "generic"),
    "riscv64": ("spacemit-x60", "sifive-x280", "generic-rv64"),
    "wasm32": ("generic",),
}  # a few processors of each kind for messages
MAX_CORES = 4096
LINE_BYTES = 64  # of a cache
STAGGER_BYTES, STAGGER_PERIOD = 896, 1024
"""How far a kernel's result begins from its operand, where there is a choice: so many bytes, modulo
the period. Pixels of 1 or 2 KB meet in few sets of the first cache, those of an operand and a
result that begin alike in the same ones: depthwise layers of 256 and 512 channels take 1.5 to 2 ×
the time then (Zen 5)."""
SAME_SET_BYTES = 4096  # addresses so far apart end alike, and meet in one set of the first level
_TEST_KINDS = frozenset({"sim"})
_OPTIONS = ("mcpu", "mtriple", "num-cores", "mattr", "precision")
_CUDA_OPTIONS = ("arch", "num-cores", "precision")
TF32 = "tf32"
_PRECISIONS = ("strict", TF32)
_BUILT_IN = frozenset({"llvm", "cuda"})


@dataclass(frozen=True, slots=True)
class Target:
    """A target string, parsed. Equal canonical strings mean equal code.

    ``kind`` is "llvm", "cuda" or the name of a plug-in (entry point group ``tunefarm.targets``).
    Where a model's weights do not stay in the caches the sketches are asked for the same target
    with ``weights_in_memory``: their models of time then differ, and nothing else does.
    Raises TargetError for what cannot be understood.
    """

    text: str
    weights_in_memory: bool = field(default=False, kw_only=True)
    kind: str = field(init=False)
    options: Mapping[str, str] = field(init=False, compare=False, hash=False)
    isa: Isa = field(init=False, compare=False)
    """The instruction set; x86-64 for a plug-in's kind."""
    mcpu: str = field(init=False, compare=False)
    """The processor by LLVM's name; the instruction set's plainest if none is named."""
    num_cores: int = field(init=False, compare=False)
    """Cores of a processor, multiprocessors of a GPU."""

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
            isa = _isa_of(options)
            _check_llvm_options(options, isa)
            options.pop("mtriple", None)
            if isa.spelled:
                options["mtriple"] = isa.spelled
        elif kind == "cuda":
            _check_cuda_options(options)
        elif kind not in plugin_kinds():
            known = ", ".join(sorted({*_BUILT_IN, *plugin_kinds()} - _TEST_KINDS))
            raise TargetError(f"unknown target kind {kind!r}; known kinds: {known}")
        canonical = " ".join([kind, *(f"-{k}={options[k]}" for k in sorted(options))])
        object.__setattr__(self, "text", canonical)
        object.__setattr__(self, "kind", kind)
        object.__setattr__(self, "options", options)
        self._set_processor()

    def _set_processor(self) -> None:
        """What the models of time ask for some thousand times a task."""
        if self.kind == "cuda":
            isa, mcpu, cores = NVPTX64, self.gpu.name, self.gpu.multiprocessors
        else:
            isa = ISAS[self.options.get("mtriple", X86_64.name).partition("-")[0]]
            mcpu, cores = self.options.get("mcpu", isa.cpu), 1
        object.__setattr__(self, "isa", isa)
        object.__setattr__(self, "mcpu", mcpu)
        object.__setattr__(self, "num_cores", int(self.options.get("num-cores", cores)))

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"Target({self.text!r})"

    @staticmethod
    def host(num_cores: int | None = None) -> Target:
        """This machine: its CPU's LLVM name and the cores this process may use."""
        cores = num_cores or len(os.sched_getaffinity(0))
        words = machine_words(platform.machine(), llvm_cpu())
        if llvm_cpu() in AMX and not may_use_tiles():  # a virtual machine's, or a sandbox
            words += " -mattr=-amx-tile"
        return Target(f"llvm {words} -num-cores={cores}")

    @property
    def gpu(self) -> GpuArch:
        """The architecture of a target of kind "cuda"."""
        return GPU_ARCHS[self.options["arch"]]

    @property
    def strict(self) -> bool:
        """True if sums may be reordered, but not computed by Winograd's or Strassen's method."""
        return self.options.get("precision") == "strict"

    @property
    def rounds_to_tf32(self) -> bool:
        """True if products of float32 may keep as few as ten bits of their operands' fraction."""
        return self.options.get("precision") == TF32

    @property
    def may_round_to_tf32(self) -> bool:
        """True if code for ``-precision=tf32`` differs: by tensor cores, or the tiles of AMX."""
        if self.kind == "cuda":
            return self.gpu.has_tensor_cores
        return self.kind == "llvm" and self.has("amx-bf16")

    def allowing(self, precision: str) -> Target:
        """The target of kernels of a model that allows a precision: with ``-precision=tf32`` for
        "tf32" if that makes other code. TargetError if that target is strict."""
        if precision != TF32 or self.rounds_to_tf32 or not self.may_round_to_tf32:
            return self
        if self.strict:
            raise TargetError(f"the model allows {TF32}, which {self} forbids: ask for one of both")
        return Target(f"{self} -precision={TF32}", weights_in_memory=self.weights_in_memory)

    @property
    def takes_wgmma(self) -> bool:
        """True if a GPU has the instructions of warpgroups, which are those of ``sm_90a`` alone."""
        return self.options.get("arch") == "sm_90a"

    @property
    def has_avx512(self) -> bool:
        """Whether code may use AVX-512."""
        return self.mcpu in AVX512

    def has(self, feature: str) -> bool:
        """True if the CPU has what LLVM calls ``feature``, unless ``-mattr`` says otherwise."""
        without = {f"-{feature}", f"-{NEEDED.get(feature, feature)}"}
        own = self.mcpu in FEATURES.get(feature, ()) and without.isdisjoint(self._attributes)
        return own or f"+{feature}" in self._attributes

    @property
    def _attributes(self) -> list[str]:
        return self.options.get("mattr", "").split(",")

    @property
    def quick_tables(self) -> frozenset[str]:
        """Functions of which a table in registers costs less than the multiplications it saves."""
        return QUICK_TABLES.get(self.mcpu, frozenset())

    @property
    def has_fma(self) -> bool:
        """True if the processor multiplies and adds with one rounding.

        WebAssembly's relaxed SIMD may round once or twice, as the machine that runs it likes.
        """
        if self.isa is WASM32:
            return self.has("relaxed-simd")
        return self.isa is not X86_64 or self.has_avx512 or self.mcpu in AVX2

    @property
    def has_rounding(self) -> bool:
        """True if one instruction rounds a vector of floats to whole numbers."""
        return self.isa is not X86_64 or self.has_fma

    @property
    def has_float16(self) -> bool:
        """True if the processor converts between float16 and float32."""
        if self.isa is RISCV64:
            return self.has("zvfhmin") or self.has("zvfh")
        return self.isa is not WASM32 and self.has_fma

    @property
    def has_one_memory(self) -> bool:
        """Whether a pointer may be to an array or to zeros instead: GPUs have several memories."""
        return self.kind != "cuda"

    def has_masks(self, element_bytes: int) -> bool:
        """True if the processor loads and stores chosen lanes of such elements at once.

        With AVX2 it does so as fast as piece by piece where measured (0.91 to 1.10 × the time, on
        tails of eight operators, Emerald Rapids); Zen 1 to 3 store by 42 operations of microcode.
        """
        if self.isa is X86_64:
            quick = self.mcpu in AVX2 and not self.mcpu.startswith("znver")
            return self.has_avx512 or (quick and element_bytes >= 4)
        return self.isa is RISCV64

    @property
    def vector_bytes(self) -> int:
        """Bytes in one vector register.

        Those of RISC-V are as long as ``-mattr=+zvl256b`` promises, or as the CPU's name says.
        """
        if self.isa is X86_64:
            return 64 if self.has_avx512 else 32 if self.mcpu in AVX2 else self.isa.vector_bytes
        if self.isa is RISCV64:
            promised = (re.fullmatch(r"\+zvl(\d+)b", word) for word in self._attributes)
            bits = [int(match[1]) for match in promised if match]
            return max([*bits, RISCV_VECTOR_BITS[self.mcpu]]) // 8
        return self.isa.vector_bytes

    @property
    def vector_registers(self) -> int:
        """Vector registers that sums and operands of a tile may fill."""
        return 32 if self.has_avx512 else self.isa.vector_registers

    @property
    def has_few_registers(self) -> bool:
        """Whether a tile has 12 sums at most, beside operands in 16 registers: AVX2 and less."""
        return self.vector_registers <= 16

    def lanes(self, dtype: str) -> int:
        """Elements of ``dtype`` in one vector register."""
        return self.vector_bytes // dtype_bytes(dtype)

    @property
    def l1_bytes(self) -> int:
        """Bytes of a core's first data cache, or of a multiprocessor's shared memory."""
        return self._cache("l1")

    @property
    def l2_bytes(self) -> int:
        """Bytes of the second cache."""
        return self._cache("l2")

    @property
    def l3_bytes(self) -> int:
        """Bytes of the last cache, which cores share."""
        return self._cache("l3")

    @property
    def kept_bytes(self) -> int:
        """Bytes of weights that stay in the last cache."""
        return int(self.l3_bytes * KEPT_SHARES.get(self.mcpu, DEFAULT_KEPT_SHARE))

    @property
    def stream_bytes(self) -> float:
        """Bytes that each core gets from memory beside two multiply-adds if all of them stream."""
        one, both = MEMORY_STREAMS.get(self.mcpu, (DEFAULT_STREAM, DEFAULT_STREAM * self.num_cores))
        return self.beside_products(min(one, both / self.num_cores))

    @property
    def cached_stream_bytes(self) -> float:
        """Bytes of weights that a core gets from the last cache, which keeps them, beside two
        multiply-adds."""
        return max(self.beside_products(LAST_CACHE_STREAM), self.stream_bytes)

    @property
    def reread_stream_bytes(self) -> float:
        """The same of weights that it has read before, but that its second cache cannot keep."""
        rate = MESH_REREAD_STREAM if self.has_mesh else LAST_CACHE_STREAM
        return max(self.beside_products(rate), self.stream_bytes)

    @property
    def seen_share(self) -> float:
        """The share that is still seen of the shorter one of multiply-adds and weights that come
        meanwhile."""
        return MESH_SEEN_SHARE if self.has_mesh else SEEN_SHARE

    @property
    def hint_streams(self) -> int:
        """Parts of what hints bring from memory that they ask for in turn."""
        return MESH_STREAMS if self.has_mesh else 1

    @property
    def reread_share(self) -> float:
        """The share of the time of weights from memory that another core takes which reads the same
        ones at once."""
        return MESH_REREAD_SHARE if self.has_mesh else 1.0

    @property
    def has_mesh(self) -> bool:
        """Whether lines of other cores and of the last cache come over a mesh, several times slower
        than from the second cache."""
        return self.mcpu in MESHES

    def beside_products(self, bytes_a_cycle: float) -> float:
        """Bytes in the time of two multiply-adds of vectors: the sketches' models call it a cycle,
        and most processors take one for it."""
        return bytes_a_cycle * self.product_clocks

    @property
    def product_clocks(self) -> int:
        """Clocks in which two multiply-adds of the longest vectors begin: 1, or 2 where each takes
        two units at once, so that vectors of half the length take half the time."""
        return 2 if self.mcpu in ONE_MULTIPLY_ADD else 1

    @property
    def adds_apart(self) -> bool:
        """Whether additions of vectors begin beside multiply-adds, in units of their own."""
        return self.mcpu in ADDS_APART

    @property
    def has_near_last_cache(self) -> bool:
        """Whether blocks of a product may exceed the second level of cache."""
        return self.mcpu in NEAR_LAST_CACHE

    @property
    def outruns_lines(self) -> bool:
        """Whether multiply-adds are faster than what the first cache is brought for them, though
        the second and third are near: two of the longest vectors begin each clock (Zen 5)."""
        return self.product_clocks == 1 and self.has_near_last_cache

    def _cache(self, level: str) -> int:
        if self.kind == "cuda":
            return self.gpu.shared_bytes if level == "l1" else self.gpu.l2_bytes
        return CACHES.get(self.mcpu, DEFAULT_CACHES)[level]


def machine_words(machine: str, cpu: str) -> str:
    """The options of a machine, as its system and LLVM call it.

    A processor of another kind than x86-64 whose name is not known is taken as the least of its
    kind; on x86-64 the refusal of its name says what is near.
    """
    isa = ISAS.get(_ALIASES.get(machine, machine), X86_64)
    if isa is X86_64:
        return f"-mcpu={cpu}"
    return f"-mtriple={isa.spelled} -mcpu={cpu if cpu in CPUS[isa.name] else isa.cpu}"


@functools.cache
def dtype_bytes(dtype: str) -> int:
    """Bytes of one element; a bool is stored in one byte."""
    bits = re.search(r"\d+", dtype)
    return 1 if bits is None else max(1, int(bits[0]) // 8)


@functools.cache
def plugin_kinds() -> frozenset[str]:
    """The kinds of targets that installed plug-ins bring."""
    return frozenset(p.name for p in entry_points(group="tunefarm.targets"))


def _isa_of(options: Mapping[str, str]) -> Isa:
    """What the triple says, or else the CPU's name; TargetError if no code is made for it."""
    triple, mcpu = options.get("mtriple"), options.get("mcpu")
    if triple is not None:
        match = _TRIPLE.fullmatch(triple)
        if match is None:
            known = ", ".join(isa.spelled or "x86_64-linux-gnu" for isa in ISAS.values())
            raise TargetError(f"no code is made for -mtriple={triple}; known: {known}")
        return ISAS[_ALIASES.get(match[1], match[1])]
    owners = [isa for isa in ISAS.values() if mcpu in CPUS[isa.name]]
    if len(owners) > 1:
        some = " or ".join(f"-mtriple={isa.spelled}" for isa in owners)
        raise TargetError(f"-mcpu={mcpu} names processors of several kinds; add {some}")
    return owners[0] if owners else X86_64


def _check_llvm_options(options: Mapping[str, str], isa: Isa) -> None:
    for name in options:
        if name not in _OPTIONS:
            raise TargetError(f"unknown target option -{name}; known: {', '.join(_OPTIONS)}")
    _check_common_options(options)
    mcpu = options.get("mcpu")
    if mcpu is not None and mcpu not in CPUS[isa.name]:
        raise TargetError(_unknown_cpu(mcpu, isa))
    if "mattr" in options:
        _check_attributes(options["mattr"], isa, mcpu or isa.cpu)


def _check_attributes(mattr: str, isa: Isa, mcpu: str) -> None:
    """LLVM would go on without a feature unknown to it, and end the process for one taken away."""
    known = llvm_features()[isa.name]
    for word in mattr.split(","):
        if word[:1] not in ("+", "-"):
            raise TargetError(f"-mattr={mattr}: write +NAME for a feature, -NAME against it")
        if word[1:] not in known:
            close = difflib.get_close_matches(word[1:], sorted(known), n=3)
            meant = f"; did you mean {' or '.join(close)}?" if close else ""
            raise TargetError(f"{isa.people} has no feature {word[1:]!r} in LLVM{meant}")
        if word[0] == "-" and word[1:] in vectors_of(isa, mcpu):
            raise TargetError(f"code for {mcpu} uses {word[1:]}, and -mattr={word} takes it away")


def _check_cuda_options(options: Mapping[str, str]) -> None:
    for name in options:
        if name not in _CUDA_OPTIONS:
            known = ", ".join(_CUDA_OPTIONS)
            raise TargetError(f"unknown option -{name} of a cuda target; known: {known}")
    _check_common_options(options)
    arch = options.get("arch")
    if arch not in GPU_ARCHS:
        given = "no -arch" if arch is None else f"-arch={arch}"
        raise TargetError(
            f"a cuda target has {given}; write for instance -arch=sm_90a, one of "
            f"{', '.join(GPU_ARCHS)}"
        )


def _check_common_options(options: Mapping[str, str]) -> None:
    cores = options.get("num-cores", "1")
    if not cores.isdigit() or not 1 <= int(cores) <= MAX_CORES:
        raise TargetError(f"-num-cores={cores} is not a whole number from 1 to {MAX_CORES}")
    precision = options.get("precision")
    if precision is not None and precision not in _PRECISIONS:
        raise TargetError(f"-precision={precision} is unknown; known: {', '.join(_PRECISIONS)}")


def _unknown_cpu(name: str, isa: Isa) -> str:
    """Why there is no such CPU, and what may have been meant."""
    kinds = ", ".join(known.people for known in ISAS.values())
    if _FOREIGN_CPU.match(name):
        return f"no code is made for CPU {name!r}; there is code for {kinds}"
    if _RISCV_WITHOUT_VECTORS.match(name):
        return f"CPU {name!r} has no vector extension, which RISC-V code uses"
    owner = next((known for known in ISAS.values() if name in CPUS[known.name]), None)
    if owner is not None:
        return f"CPU {name!r} is {owner.people}, and the triple says {isa.people}"
    pool = CPUS[isa.name] if isa is not X86_64 else frozenset().union(*CPUS.values())
    close = difflib.get_close_matches(name.lower(), sorted(pool), n=3)
    meant = f"did you mean {' or '.join(close)}? Others" if close else "LLVM's names are meant"
    few = [cpu for cpu in _EXAMPLES[isa.name] if cpu not in close]
    return f"unknown CPU {name!r}; {meant}: {', '.join(few)}, …"
