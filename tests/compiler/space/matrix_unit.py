"""A processor with a matrix unit (AMX), and whether this machine is one."""

from __future__ import annotations

import pytest
from tunefarm.compiler.host import may_use_tiles
from tunefarm.compiler.target import Target

TARGET = Target("llvm -mcpu=sapphirerapids -num-cores=2")
ROUNDING = Target(f"{TARGET} -precision=tf32")
HAS_TILES = may_use_tiles() and Target.host().has("amx-bf16")
RUN = "execute" if HAS_TILES else "interpret"
EXAMPLES = 12 if HAS_TILES else 1  # as interpreting one takes up to half a minute
needs_tiles = pytest.mark.skipif(not HAS_TILES, reason="this machine has no tiles (AMX)")
