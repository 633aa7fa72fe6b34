"""Matrix instructions of a warpgroup, ``wgmma.mma_async``: 64 × n results of four warps.

    C[64, n] += A[64, 16] · B[16, n]

Warp ``w`` of the four holds rows 16·w to 16·w + 15 as the result of ``mma.sync`` (``gpu/mma.py``):
thread ``4·g + t`` has number e = 4·j + 2·h + c, which is (16·w + 8·h + g, 8·j + 2·t + c), of n / 2.
A and B are read from shared memory, where rows of 128, 64 or 32 bytes are swizzled: 16 bytes
number ``i`` of row ``r`` lie at number ``i xor r % 8``, ``i xor r % 8 / 2`` or ``i xor r % 8 / 4``,
so that those of eight rows lie in banks of their own. In a program an instruction is an
``Intrinsic`` as one of its elements is computed, by a vectorized loop over them.

**No GPU has run any of this.** Source: NVIDIA, "PTX ISA", asynchronous warpgroup-level matrix
instructions, matrix descriptors; the layouts of operands also NVIDIA, CUTLASS,
``cute/arch/mma_sm90_desc.hpp``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tunefarm.compiler.tir.ir import Expr, Intrinsic, Stmt, Store, binary
from tunefarm.compiler.tir.tensor_intrinsics import TensorIntrinsic, register_tensor_intrinsic
from tunefarm.compiler.tir.visit import walk_stmt

GROUP = 4  # warps
ROWS = 64
DEPTH = 16
COLUMNS = (64, 96, 128, 192, 256)
SWIZZLES: Mapping[int, int] = {128: 1, 64: 2, 32: 3}
"""The mode of a descriptor by the bytes of a row in shared memory."""
ITEM_BYTES = 2
ROWS_TOGETHER = 8  # that are swizzled together
CHUNK = 8  # elements of 16 bytes
RATE_BYTES = 4096  # of operands of products that a multiprocessor multiplies in a clock
ALIGN = 1024  # of a tile: the swizzle is a function of addresses


@dataclass(frozen=True, slots=True)
class Wgmma:
    """One instruction, of ``columns`` columns; ``kind`` is what PTX calls its operands' dtype.

    One that ``overlaps`` goes on until those of the loop's next iteration have begun, and reads its
    operands so long.
    """

    kind: str
    operand: str
    columns: int
    overlaps: bool = False

    @property
    def name(self) -> str:
        return f"wgmma.m64n{self.columns}k16.{self.kind}{'.overlaps' if self.overlaps else ''}"

    @property
    def elements(self) -> int:
        """Of the result, that a thread holds."""
        return self.columns // 2


WGMMAS: Mapping[str, Wgmma] = {
    w.name: w
    for w in (
        Wgmma(kind, operand, columns, overlaps)
        for kind, operand in (("f16", "float16"), ("bf16", "bfloat16"))
        for columns in COLUMNS
        for overlaps in (False, True)
    )
}
for _w in WGMMAS.values():
    register_tensor_intrinsic(
        TensorIntrinsic(
            _w.name, _w.elements, DEPTH, "float32", _w.operand, _w.operand, _w.name, "wgmma"
        )
    )


def wgmmas_of(stmt: Stmt) -> list[Wgmma]:
    """The instructions of warpgroups below a statement."""
    values = (s.value for s in walk_stmt(stmt) if isinstance(s, Store))
    found = (v.name for v in values if isinstance(v, Intrinsic))
    return [WGMMAS[name] for name in found if name in WGMMAS]


def swizzled(row: Expr, element: Expr, length: int) -> Expr:
    """Where an element of a row of 64, 32 or 16 lies in it; ``row`` counts modulo 8."""
    together = max(SWIZZLES) // (length * ITEM_BYTES)
    moved = row // together if together > 1 else row
    return binary("bitxor", element // CHUNK, moved) * CHUNK + element % CHUNK


def next_row(length: int) -> int:
    """How far the first element of row 1 is from that of row 0."""
    return length + CHUNK if length * ITEM_BYTES == max(SWIZZLES) else length


def text_of(w: Wgmma, columns_first: bool, fenced: bool) -> str:
    """The instruction in PTX: operands are the results, two descriptors, and the results before.

    ``columns_first``: columns of B stand side by side, not its terms. ``fenced``: it is the first
    after others have written the results' registers.
    """
    results = ",".join(f"${n}" for n in range(w.elements))
    shape = f"m64n{w.columns}k16.f32.{w.kind}.{w.kind}"
    lines = [
        "{",
        ".reg .pred p;",
        "setp.ne.b32 p, 1, 0;",
        *(["wgmma.fence.sync.aligned;"] if fenced else []),
        f"wgmma.mma_async.sync.aligned.{shape} {{{results}}}, "
        f"${w.elements}, ${w.elements + 1}, p, 1, 1, 0, {int(columns_first)};",
        "}",
    ]
    return "\\0A".join(lines)


def descriptor_of(leading: int, row_bytes: int) -> int:
    """A matrix descriptor but for its address: eight rows of swizzled bytes after another;
    ``leading`` bytes to the next columns, where those of a row stand side by side.

    Bits 0 to 13 are the address, 16 to 29 the leading and 32 to 45 the stride offset, all in units
    of 16 bytes, 49 to 51 the base offset (0 of aligned tiles), 62 and 63 the mode. In units of 16
    bytes CUTLASS' ``make_gmma_desc`` has rows of terms as Swizzle<3,4,3> o ((8,m),2):((8,SBO),1),
    and rows of columns as Swizzle<3,4,3> o ((8,n),(8,k)):((1,LBO),(8,SBO)), for 128 bytes.
    """
    stride = ROWS_TOGETHER * row_bytes
    return SWIZZLES[row_bytes] << 62 | (stride >> 4) << 32 | (leading >> 4) << 16
