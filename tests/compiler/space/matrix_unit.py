"""A processor with a matrix unit (AMX), and whether this machine is one."""

from __future__ import annotations

from tunefarm.compiler.host import may_use_tiles
from tunefarm.compiler.target import Target

TARGET = Target("llvm -mcpu=sapphirerapids -num-cores=2")
ROUNDING = Target(f"{TARGET} -precision=tf32")
HAS_TILES = may_use_tiles() and Target.host().has("amx-bf16")
RUN = "execute" if HAS_TILES else "interpret"
BOTH = [TARGET, ROUNDING] if HAS_TILES else [TARGET]  # as interpreting takes half a minute
