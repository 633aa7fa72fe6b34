"""The knobs of the sketch of inverted residual blocks, and what a config must hold."""

from __future__ import annotations

import numpy as np
from tunefarm.compiler.space.columns import Mask, Numbers, whole
from tunefarm.compiler.space.config import Columns, Constraint, Knob
from tunefarm.compiler.space.contraction.knobs import MAX_CODE, UNROLLS, VECTORS, up_to
from tunefarm.compiler.space.inverted_residual.program import InvertedResidual
from tunefarm.compiler.target import Target

NAME, VERSION = "inverted_residual", 2

BLOCK_ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 14, 16, 19, 28, 38, 56)
BLOCK_PANELS = (1, 2, 3, 4, 6, 8, 12)
COLUMNS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 16, 19, 28)
STACK_BYTES = (1 << 20) - (1 << 14)  # a thread's rows, beside its register tiles
MAX_BODY = 512  # multiply-adds of one unrolled body


def knobs_of(b: InvertedResidual, lanes: int) -> tuple[Knob, ...]:
    """Rows ``mb`` of a block, panels of ``nv`` vectors of channels, and the register tiles:
    columns of the expansion (``ew``), of the depthwise convolution (``dw``) and of the projection
    (``pw``, by ``pv`` vectors). Sums are unrolled by ``eu`` and ``pu``. With ``roll`` a panel's
    rows are expanded as the windows reach them, and no more are kept than a window reads."""
    _, rows, columns, channels = b.depthwise.shape
    panels = -(-channels // lanes)
    none: tuple[int, ...] = (1,)
    expand, project = b.expand, b.project
    outputs = -(-project.shape[-1] // lanes) if project else 1
    return (
        Knob("mb", up_to(BLOCK_ROWS, rows)),
        Knob("nb", none if project else up_to(BLOCK_PANELS, panels)),
        Knob("nv", up_to(VECTORS, panels)),
        Knob("roll", (0, 1) if shares_rows(b) else (0,)),
        Knob("ew", up_to(COLUMNS, expand.shape[2]) if expand else none),
        Knob("eu", up_to(UNROLLS, expand.inputs) if expand else none),
        Knob("dw", up_to(COLUMNS, columns)),
        Knob("pw", up_to(COLUMNS, columns) if project else none),
        Knob("pv", up_to(VECTORS, outputs) if project else none),
        Knob("pu", up_to(UNROLLS, channels) if project else none),
    )


def shares_rows(b: InvertedResidual) -> bool:
    """True if windows one below the other read rows of an expansion that both reach."""
    return b.expand is not None and b.depthwise.span(0) > b.depthwise.strides[0]


def constraints_of(b: InvertedResidual, target: Target, lanes: int) -> tuple[Constraint, ...]:
    registers = target.vector_registers
    panels = -(-b.channels // lanes)

    def fits_registers(k: Columns) -> Mask:
        windows = 2 * whole(k, "dw") + 3 <= registers
        expands = registers_of(whole(k, "ew"), whole(k, "nv")) <= registers
        projects = registers_of(whole(k, "pw"), whole(k, "pv")) <= registers
        return windows & (expands | (b.expand is None)) & projects

    def small_code(k: Columns) -> Mask:
        return (
            (whole(k, "ew") * whole(k, "nv") * whole(k, "eu") <= MAX_BODY)
            & (whole(k, "pw") * whole(k, "pv") * whole(k, "pu") <= MAX_BODY)
            & (window_code(b, k) <= MAX_CODE)
        )

    def blocks_useful(k: Columns) -> Mask:
        blocks = -(-panels // whole(k, "nv"))
        return (whole(k, "nb") == 1) | (whole(k, "nb") < 2 * blocks)

    return (
        Constraint("registers", fits_registers),
        Constraint("stack", lambda k: scratch_bytes(b, lanes, k) <= STACK_BYTES),
        Constraint("code size", small_code),
        Constraint("blocks within extents", blocks_useful),
    )


def window_code(b: InvertedResidual, k: Columns) -> Numbers:
    """Unrolled multiply-adds of the depthwise convolution, whose borders have code of their own."""
    extent, tile, taps = b.depthwise.shape[2], whole(k, "dw"), b.depthwise.taps[1]
    pieces = np.where(tile >= extent, taps, np.where(extent % tile, 2, 1) + 2 * taps)
    return tile * taps * np.where(tile > 1, pieces, 1)


def registers_of(columns: Numbers, vectors: Numbers) -> Numbers:
    """Vector registers of a product's tile."""
    return columns * vectors + np.where(vectors > 1, vectors + 1, 2)


def block_rows(b: InvertedResidual, k: Columns) -> Numbers:
    """Rows that the windows of a block of rows reach."""
    return (whole(k, "mb") - 1) * b.depthwise.strides[0] + b.depthwise.span(0)


def expanded_bytes(b: InvertedResidual, lanes: int, k: Columns) -> Numbers:
    """Of the expanded rows that are kept for a panel of a block; 0 without an expansion."""
    if b.expand is None:
        return 0 * whole(k, "mb")
    rows = np.where(whole(k, "roll") == 1, b.depthwise.span(0), block_rows(b, k))
    results = -(-b.depthwise.shape[2] // whole(k, "dw")) * whole(k, "dw")
    read = (results - 1) * b.depthwise.strides[1] + b.depthwise.span(1)
    written = -(-b.expand.shape[2] // whole(k, "ew")) * whole(k, "ew") + b.depthwise.span(1) - 1
    return 4 * rows * np.maximum(read, written) * whole(k, "nv") * lanes


def hidden_bytes(b: InvertedResidual, lanes: int, k: Columns) -> Numbers:
    """Of a block's results of the depthwise convolution; 0 without a projection."""
    if b.project is None:
        return 0 * whole(k, "mb")
    width = np.maximum(
        *(-(-b.depthwise.shape[2] // whole(k, n)) * whole(k, n) for n in ("dw", "pw"))
    )
    panel = whole(k, "nv") * lanes
    return 4 * whole(k, "mb") * width * -(-b.channels // panel) * panel


def scratch_bytes(b: InvertedResidual, lanes: int, k: Columns) -> Numbers:
    return expanded_bytes(b, lanes, k) + hidden_bytes(b, lanes, k)
