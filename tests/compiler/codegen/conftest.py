"""Makes this folder's harness, that of the loop IR and that of the sketches importable."""

import sys
from pathlib import Path

for folder in ("codegen", "space", "tir"):
    sys.path.insert(0, str(Path(__file__).parents[1] / folder))
