"""Makes the harness of the loop IR importable."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tir"))
