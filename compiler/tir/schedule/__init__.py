"""Schedule primitives: each is a function from a program to a program, printable after each."""

from tunefarm.compiler.tir.schedule.buffers import (
    pack_buffer,
    packed_shape,
    permute_buffer,
    set_scope,
    transform_layout,
)
from tunefarm.compiler.tir.schedule.caches import cache_read, cache_value, cache_write
from tunefarm.compiler.tir.schedule.inline import compute_inline
from tunefarm.compiler.tir.schedule.loops import (
    fuse,
    limit,
    overlap,
    parallel,
    prefetch,
    reorder,
    split,
    stagger,
    tile,
    unroll,
    vectorize,
)
from tunefarm.compiler.tir.schedule.padding import pad_einsum
from tunefarm.compiler.tir.schedule.pairs import halve_reduction, write_out_reduction
from tunefarm.compiler.tir.schedule.parts import divide, join
from tunefarm.compiler.tir.schedule.placement import compute_at, reverse_compute_at
from tunefarm.compiler.tir.schedule.reduction import (
    decompose_reduction,
    rfactor,
    share_reciprocals,
)
from tunefarm.compiler.tir.schedule.rolling_buffer import rolling_buffer
from tunefarm.compiler.tir.schedule.tensorize import tensorize
from tunefarm.compiler.tir.schedule.threads import bind, double_buffer
from tunefarm.compiler.tir.schedule.tree import (
    find_block,
    find_loop,
    loops_of,
    reads_of,
    remaining_blocks,
)

__all__ = [
    "bind",
    "cache_read",
    "cache_value",
    "cache_write",
    "compute_at",
    "compute_inline",
    "decompose_reduction",
    "divide",
    "double_buffer",
    "find_block",
    "find_loop",
    "fuse",
    "halve_reduction",
    "join",
    "limit",
    "loops_of",
    "overlap",
    "pack_buffer",
    "packed_shape",
    "pad_einsum",
    "parallel",
    "permute_buffer",
    "prefetch",
    "reads_of",
    "remaining_blocks",
    "reorder",
    "reverse_compute_at",
    "rfactor",
    "rolling_buffer",
    "set_scope",
    "share_reciprocals",
    "split",
    "stagger",
    "tensorize",
    "tile",
    "transform_layout",
    "unroll",
    "vectorize",
    "write_out_reduction",
]
