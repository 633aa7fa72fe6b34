"""Square tiles that are transposed in registers, as many vectors as they have lanes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tunefarm.compiler.codegen.builder import FunctionBuilder
from tunefarm.compiler.codegen.types import scalar_type, vector_of
from tunefarm.compiler.codegen.values import Val, make
from tunefarm.compiler.target import dtype_bytes

BLOCK_BYTES = 16  # of a vector, in which processors interleave two in one instruction
MOST_BLOCKS = 4  # of a vector


def transposed(builder: FunctionBuilder, rows: Sequence[Val]) -> list[Val] | None:
    """The columns of a tile; None if its elements do not fill blocks of 16 bytes.

    Blocks of as many rows are transposed in place, by interleaving ever longer runs of two; then
    the blocks themselves, as wholes. A tile is transposed once, however often it is asked for.
    """
    lanes, dtype = len(rows), rows[0].dtype
    width = BLOCK_BYTES // dtype_bytes(dtype)
    if dtype == "bool" or lanes % width or lanes // width not in (1, 2, MOST_BLOCKS):
        return None
    key = ("columns", *(row.text for row in rows))
    keys = [(*key, n) for n in range(lanes)]
    if keys[0] not in builder.known:
        shuffles = _Shuffles(builder, scalar_type(dtype), lanes, width)
        for n, column in enumerate(shuffles.columns([row.text for row in rows])):
            builder.remember(keys[n], column)
    return [make(Val, (builder.known[k], dtype, lanes)) for k in keys]


class _Shuffles:
    """Writes shuffles of two vectors of ``lanes`` elements, ``width`` of them a block."""

    def __init__(self, builder: FunctionBuilder, kind: str, lanes: int, width: int) -> None:
        self._builder, self._vector = builder, vector_of(kind, lanes)
        self._lanes, self._width = lanes, width

    def columns(self, rows: Sequence[str]) -> list[str]:
        """All columns of a tile, in order."""
        width = self._width
        groups = [self._in_blocks(rows[n : n + width], 1) for n in range(0, self._lanes, width)]
        ended = [self._of_blocks([group[n] for group in groups]) for n in range(width)]
        return [ended[n % width][n // width] for n in range(self._lanes)]

    def _in_blocks(self, rows: Sequence[str], run: int) -> list[str]:
        """Columns of each block: of the lower halves of pairs of rows, then of the upper ones."""
        if len(rows) == 1:
            return list(rows)
        pairs = list(zip(rows[::2], rows[1::2], strict=True))
        halves = ([self._mixed(a, b, self._interleaved(run, h)) for a, b in pairs] for h in (0, 1))
        return [column for half in halves for column in self._in_blocks(half, 2 * run)]

    def _interleaved(self, run: int, half: int) -> Iterator[int]:
        """Runs of the lower or upper halves of all blocks, of both vectors in turn."""
        width = self._width
        for block in range(0, self._lanes, width):
            begin = block + half * width // 2
            for start in range(begin, begin + width // 2, run):
                for vector in (0, self._lanes):
                    yield from range(vector + start, vector + start + run)

    def _of_blocks(self, vectors: Sequence[str]) -> list[str]:
        """What is transposed in blocks, with the blocks transposed."""
        count = len(vectors)
        if count == 1:
            return list(vectors)
        pairs = list(zip(vectors[::2], vectors[1::2], strict=True))
        halves = [
            [self._mixed(a, b, self._blocks(range(h * count // 2, (h + 1) * count // 2)))
             for a, b in pairs]
            for h in (0, 1)
        ]  # fmt: skip
        if count == 2:
            return [half[0] for half in halves]
        return [
            self._mixed(first, second, self._blocks(range(odd, count, 2)))
            for first, second in halves
            for odd in (0, 1)
        ]

    def _blocks(self, chosen: range) -> Iterator[int]:
        """The chosen blocks of one vector, then of the other."""
        for vector in (0, self._lanes):
            for block in chosen:
                start = vector + block * self._width
                yield from range(start, start + self._width)

    def _mixed(self, a: str, b: str, taken: Iterator[int]) -> str:
        mask = ", ".join(f"i32 {n}" for n in taken)
        return self._builder.pure(
            f"shufflevector {self._vector} {a}, {self._vector} {b}, <{self._lanes} x i32> <{mask}>",
            [a, b],
        )
