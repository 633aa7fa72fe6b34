"""Former place of primitives on blocks."""

from tunefarm.compiler.tir.schedule.buffers import replace_buffer
from tunefarm.compiler.tir.schedule.regions import relax
from tunefarm.compiler.tir.schedule.tree import reads_of

__all__ = ["reads_of", "relax", "replace_buffer"]
