"""Schedule primitives: each is a function from a program to a program, printable after each."""

from tunefarm.compiler.tir.schedule.blocks import (
    cache_read,
    cache_write,
    compute_at,
    compute_inline,
    decompose_reduction,
    packed_shape,
    permute_buffer,
    reads_of,
    remaining_blocks,
    reverse_compute_at,
    set_scope,
    transform_layout,
)
from tunefarm.compiler.tir.schedule.loops import (
    fuse,
    parallel,
    prefetch,
    reorder,
    split,
    unroll,
    vectorize,
)
from tunefarm.compiler.tir.schedule.padding import pad_einsum
from tunefarm.compiler.tir.schedule.reduction import rfactor, share_reciprocals
from tunefarm.compiler.tir.schedule.tensorize import tensorize
from tunefarm.compiler.tir.schedule.threads import bind, double_buffer
from tunefarm.compiler.tir.schedule.tree import find_block, find_loop, loops_of

__all__ = [
    "bind",
    "cache_read",
    "cache_write",
    "compute_at",
    "compute_inline",
    "decompose_reduction",
    "double_buffer",
    "find_block",
    "find_loop",
    "fuse",
    "loops_of",
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
    "set_scope",
    "share_reciprocals",
    "split",
    "tensorize",
    "transform_layout",
    "unroll",
    "vectorize",
]
