"""The knobs of Winograd's method with filters transformed in registers, and what a config must
hold."""

from __future__ import annotations

from tunefarm.compiler.space.columns import Mask, Numbers, whole
from tunefarm.compiler.space.config import Columns, Constraint, Knob
from tunefarm.compiler.space.contraction.knobs import up_to
from tunefarm.compiler.space.winograd.convolution import Convolution
from tunefarm.compiler.space.winograd.knobs import BLOCK_PANELS
from tunefarm.compiler.space.winograd.memory import tile_padding
from tunefarm.compiler.space.winograd_online.program import points_of_last
from tunefarm.compiler.space.winograd_online.transforms import POINTS, TAPS, TILE
from tunefarm.compiler.target import Target

NAME, VERSION = "winograd_online", 1

TILE_ROWS = (1, 2, 3, 4)
INPUT_BLOCKS = (1, 2, 4, 8, 16)
UNROLLS = (1, 2)
OPERANDS = 6  # registers beside the sums


def knobs_of(c: Convolution, lanes: int) -> tuple[Knob, ...]:
    return (
        Knob("rt", up_to(TILE_ROWS, tile_rows(c))),
        Knob("nb", up_to(BLOCK_PANELS, panels(c, lanes))),
        Knob("kb", tuple(n for n in INPUT_BLOCKS if c.inputs % n == 0)),
        Knob("ku", UNROLLS),
    )


def constraints_of(c: Convolution, target: Target, lanes: int) -> tuple[Constraint, ...]:
    columns = tile_columns(c)

    def fits_registers(k: Columns) -> Mask:
        return POINTS * whole(k, "rt") * columns + OPERANDS <= target.vector_registers

    def blocks_useful(k: Columns) -> Mask:
        return (whole(k, "nb") == 1) | (whole(k, "nb") < 2 * panels(c, lanes))

    return (
        Constraint("registers", fits_registers),
        Constraint("groups of equal rows", lambda k: tile_rows(c) % whole(k, "rt") == 0),
        Constraint("blocks within extents", blocks_useful),
        Constraint("inputs of one group", lambda k: (whole(k, "kb") == 1) | (groups(c, k) == 1)),
        Constraint("unroll", lambda k: c.inputs // whole(k, "kb") % whole(k, "ku") == 0),
    )


def panels(c: Convolution, lanes: int) -> int:
    """Vectors of outputs."""
    return -(-c.outputs // lanes)


def tile_rows(c: Convolution) -> int:
    return -(-c.height // TILE)


def tile_columns(c: Convolution) -> int:
    return -(-c.width // TILE)


def groups(c: Convolution, k: Columns) -> Numbers:
    """Groups of tiles of all images, whose products are held at once."""
    return c.batch * -(-tile_rows(c) // whole(k, "rt"))


def products(c: Convolution) -> int:
    """Products of all tiles of all images for one input and one output."""
    rows, columns = (
        (count - 1) * POINTS + points_of_last(extent)
        for count, extent in ((tile_rows(c), c.height), (tile_columns(c), c.width))
    )
    return c.batch * rows * columns


def weight_bytes(c: Convolution) -> int:
    return 4 * TAPS**2 * c.inputs * c.outputs


def block_bytes(c: Convolution, lanes: int, k: Columns) -> Numbers:
    """Of a panel and a block of inputs the weights, as many of the next, and the tiles."""
    inputs = c.inputs // whole(k, "kb")
    return 2 * panel_bytes(c, lanes, k) + 4 * inputs * products(c)


def panel_bytes(c: Convolution, lanes: int, k: Columns) -> Numbers:
    """Weights of a panel and a block of inputs."""
    return 4 * TAPS**2 * lanes * (c.inputs // whole(k, "kb"))


def held_bytes(c: Convolution, lanes: int) -> int:
    """Transformed tiles, padded, which all cores share."""
    row = -(-c.inputs // lanes) * lanes + tile_padding(c, lanes)
    return 4 * POINTS**2 * c.batch * tile_rows(c) * tile_columns(c) * row
