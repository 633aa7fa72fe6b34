"""Matrix instructions of a warpgroup, ``wgmma.mma_async``: 64 × n results of four warps.

    C[64, n] += A[64, depth] · B[depth, n]      depth: 16, or 8 of float32, which rounds to TF32

Warp ``w`` of the four holds rows 16·w to 16·w + 15 as the result of ``mma.sync`` (``gpu/mma.py``):
thread ``4·g + t`` has number e = 4·j + 2·h + c, which is (16·w + 8·h + g, 8·j + 2·t + c), of n / 2.
A and B are read from shared memory, where rows of 128, 64 or 32 bytes are swizzled: 16 bytes
number ``i`` of row ``r`` lie at number ``i xor r % 8``, ``i xor r % 8 / 2`` or ``i xor r % 8 / 4``,
so that those of eight rows lie in banks of their own. Of 16 bits also the rows of A and the columns
of B may stand side by side there; of float32 the terms have to, or A is in registers, as that of
``mma.sync``: thread ``4·g + t`` has terms t and t + 4 of its rows. In a program an instruction is
an ``Intrinsic`` as one of its elements is computed, by a vectorized loop over them.

Source: NVIDIA, "PTX ISA", asynchronous warpgroup-level matrix instructions, matrix descriptors; the
layouts of operands also NVIDIA, CUTLASS, ``cute/arch/mma_sm90_desc.hpp``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tunefarm.compiler.target import dtype_bytes
from tunefarm.compiler.tir.ir import Expr, Intrinsic, Stmt, Store, binary
from tunefarm.compiler.tir.tensor_intrinsics import TensorIntrinsic, register_tensor_intrinsic
from tunefarm.compiler.tir.visit import walk_stmt

GROUP = 4  # warps
ROWS = 64
DEPTH_BYTES = 32  # of the terms of one instruction
COLUMNS = (64, 96, 128, 192, 256)
SWIZZLES: Mapping[int, int] = {128: 1, 64: 2, 32: 3}
"""The mode of a descriptor by the bytes of a row in shared memory."""
ROWS_TOGETHER = 8  # that are swizzled together
CHUNK_BYTES = 16  # that stay together
RATE_BYTES = 4096  # of operands of products that a multiprocessor multiplies in a clock
ADDRESSES = 1 << 14  # that a descriptor tells apart, in units of 16 bytes
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
        overlaps = ".overlaps" if self.overlaps else ""
        return f"wgmma.m64n{self.columns}k{self.depth}.{self.kind}{overlaps}"

    @property
    def item_bytes(self) -> int:
        """Of an element of an operand."""
        return dtype_bytes(self.operand)

    @property
    def depth(self) -> int:
        """Terms of one instruction."""
        return DEPTH_BYTES // self.item_bytes

    @property
    def turns(self) -> bool:
        """True if rows of A and columns of B may stand side by side in shared memory."""
        return self.item_bytes == 2

    @property
    def elements(self) -> int:
        """Of the result, that a thread holds."""
        return self.columns // 2


WGMMAS: Mapping[str, Wgmma] = {
    w.name: w
    for w in (
        Wgmma(kind, operand, columns, overlaps)
        for kind, operand in (("f16", "float16"), ("bf16", "bfloat16"), ("tf32", "float32"))
        for columns in COLUMNS
        for overlaps in (False, True)
    )
}
for _w in WGMMAS.values():
    register_tensor_intrinsic(
        TensorIntrinsic(
            _w.name, _w.elements, _w.depth, "float32", _w.operand, _w.operand, _w.name, "wgmma"
        )
    )


def wgmmas_of(stmt: Stmt) -> list[Wgmma]:
    """The instructions of warpgroups below a statement."""
    values = (s.value for s in walk_stmt(stmt) if isinstance(s, Store))
    found = (v.name for v in values if isinstance(v, Intrinsic))
    return [WGMMAS[name] for name in found if name in WGMMAS]


def swizzled(row: Expr, element: Expr, length: int, item_bytes: int) -> Expr:
    """Where an element of a row of 128, 64 or 32 bytes lies in it; ``row`` counts modulo 8."""
    chunk, together = CHUNK_BYTES // item_bytes, max(SWIZZLES) // (length * item_bytes)
    moved = row // together if together > 1 else row
    return binary("bitxor", element // chunk, moved) * chunk + element % chunk


def next_row(length: int, item_bytes: int) -> int:
    """How far the first element of row 1 is from that of row 0."""
    swizzled_next = length * item_bytes == max(SWIZZLES)
    return length + CHUNK_BYTES // item_bytes if swizzled_next else length


def text_of(w: Wgmma, columns_first: bool, held: int, fenced: bool) -> str:
    """The instruction in PTX: operands are the results, two descriptors, and the results before.

    ``columns_first``: columns of B stand side by side, not its terms. ``held``: how many registers
    come in the place of the first descriptor, if A is in them. ``fenced``: it is the first after
    others have written the results' registers, or those.
    """
    results = ",".join(f"${n}" for n in range(w.elements))
    given = [f"${w.elements + n}" for n in range(max(held, 1) + 1)]
    left = f"{{{','.join(given[:held])}}}" if held else given[0]
    shape = f"m64n{w.columns}k{w.depth}.f32.{w.kind}.{w.kind}"
    turned = [] if not w.turns else ["0"] * (not held) + [str(int(columns_first))]
    lines = [
        "{",
        ".reg .pred p;",
        "setp.ne.b32 p, 1, 0;",
        *(["wgmma.fence.sync.aligned;"] if fenced else []),
        f"wgmma.mma_async.sync.aligned.{shape} {{{results}}}, "
        f"{', '.join([left, given[-1], 'p', '1', '1', *turned])};",
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
