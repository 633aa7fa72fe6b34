"""Instructions that multiply and add several terms in every lane, and how a program names them.

    acc[l] + Σ_q a[q] · b[l, q]                q < terms, for every lane l at once
    acc[r, l] + Σ_g,q a[r, g, q] · b[g, l, q]    of a matrix unit, for all rows r and groups g too

In a program such an instruction is an ``Intrinsic`` of scalars, as one lane computes it: the
accumulator, then the terms of a, then those of b. What it means is ``meaning``, which interpreter
and C code use; the emitter of LLVM text makes one instruction of a vectorized loop over it, or of a
nest of tiled loops.
"""

from __future__ import annotations

from dataclasses import dataclass

from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.tir.ir import Cast, Expr, Intrinsic


@dataclass(frozen=True, slots=True)
class TensorIntrinsic:
    """One instruction. ``a`` and ``b`` are the dtypes of the factors, ``accumulator`` that of the
    sum; ``feature`` is what LLVM calls the processor's ability.

    ``instruction`` is LLVM's intrinsic: it takes the accumulators and two vectors of lanes · terms
    elements, of which the first holds the terms of a in every lane. One without ``accumulates``
    takes the two alone, and its sums are added to the accumulators. Narrower elements of b are
    widened to those of a on their way from memory. One that is ``turned`` takes the vector of b
    first; its elements of b may also be bits of bytes in memory, shifted and masked. One with
    ``rows`` takes tiles of at most so many rows and ``groups`` of terms.
    """

    name: str
    lanes: int
    terms: int
    accumulator: str
    a: str
    b: str
    instruction: str
    feature: str
    accumulates: bool = True
    turned: bool = False
    rows: int = 0
    groups: int = 0

    def __str__(self) -> str:
        factors = f"{self.a}[{self.terms}] · {self.b}[{self.lanes}, {self.terms}]"
        return f"{self.accumulator}[{self.lanes}] += {factors}"


TENSOR_INTRINSICS: dict[str, TensorIntrinsic] = {}


def register_tensor_intrinsic(intrinsic: TensorIntrinsic) -> TensorIntrinsic:
    """Let ``tensorize`` know an instruction. ValueError if the name is taken."""
    if intrinsic.name in TENSOR_INTRINSICS:
        raise ValueError(f"a tensor intrinsic named {intrinsic.name!r} is already registered")
    TENSOR_INTRINSICS[intrinsic.name] = intrinsic
    return intrinsic


def find_tensor_intrinsic(name: str) -> TensorIntrinsic:
    """ScheduleError lists the names there are."""
    if name not in TENSOR_INTRINSICS:
        known = ", ".join(sorted(TENSOR_INTRINSICS))
        raise ScheduleError(f"no tensor intrinsic {name!r}; there are {known}")
    return TENSOR_INTRINSICS[name]


def meaning(expr: Intrinsic) -> Expr:
    """The sum of products that a tensor intrinsic computes in one lane."""
    total, *factors = expr.args
    terms = TENSOR_INTRINSICS[expr.name].terms
    for a, b in zip(factors[:terms], factors[terms:], strict=True):
        total = total + Cast(a, expr.dtype) * Cast(b, expr.dtype)
    return total


# Intel, "Intel 64 and IA-32 Architectures Software Developer's Manual", volume 2: VPDPBUSD,
# VPDPWSSD, VDPBF16PS. The last one rounds each product and sum to even and flushes denormals.
for _name, _lanes, _terms, _sum, _a, _b, _llvm, _feature in (
    ("x86.vpdpbusd.512", 16, 4, "int32", "uint8", "int8", "vpdpbusd.512", "avx512vnni"),
    ("x86.vpdpbusd.256", 8, 4, "int32", "uint8", "int8", "vpdpbusd.256", "avxvnni"),
    ("x86.vpdpwssd.512", 16, 2, "int32", "int16", "int16", "vpdpwssd.512", "avx512vnni"),
    ("x86.vdpbf16ps.512", 16, 2, "float32", "bfloat16", "bfloat16", "dpbf16ps.512", "avx512bf16"),
):
    _group = "avx512bf16" if _feature == "avx512bf16" else "avx512"
    register_tensor_intrinsic(
        TensorIntrinsic(_name, _lanes, _terms, _sum, _a, _b, f"llvm.x86.{_group}.{_llvm}", _feature)
    )

# VPDPBUSD with the unsigned bytes in the lanes.
for _name, _lanes, _llvm, _feature in (
    ("x86.vpdpbusd.512.turned", 16, "vpdpbusd.512", "avx512vnni"),
    ("x86.vpdpbusd.256.turned", 8, "vpdpbusd.256", "avxvnni"),
):
    _llvm = f"llvm.x86.avx512.{_llvm}"
    register_tensor_intrinsic(
        TensorIntrinsic(_name, _lanes, 4, "int32", "int8", "uint8", _llvm, _feature, turned=True)
    )

# Products of bytes by VPMADDWD: exact, where VPMADDUBSW, which multiplies bytes, saturates.
for _name, _lanes, _llvm, _feature in (
    ("x86.vpmaddwd.512", 16, "llvm.x86.avx512.pmaddw.d.512", "avx512bw"),
    ("x86.vpmaddwd.256", 8, "llvm.x86.avx2.pmadd.wd", "avx2"),
):
    register_tensor_intrinsic(
        TensorIntrinsic(_name, _lanes, 2, "int32", "int16", "int8", _llvm, _feature, False)
    )

# Intel, "Architecture Instruction Set Extensions Programming Reference": TDPBUSD, TDPBSSD,
# TDPBF16PS. The last one rounds and flushes as VDPBF16PS does.
for _name, _terms, _sum, _a, _b, _feature in (
    ("tdpbusd", 4, "int32", "uint8", "int8", "amx-int8"),
    ("tdpbssd", 4, "int32", "int8", "int8", "amx-int8"),
    ("tdpbf16ps", 2, "float32", "bfloat16", "bfloat16", "amx-bf16"),
):
    register_tensor_intrinsic(
        TensorIntrinsic(
            f"x86.{_name}", 16, _terms, _sum, _a, _b, f"llvm.x86.{_name}", _feature,
            rows=16, groups=16,
        )
    )  # fmt: skip
